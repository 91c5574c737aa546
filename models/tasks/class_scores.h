/* Finds the best classes in a model's output tensor: softmax, top-k. Pure; any thread. */
#pragma once

#include "engine/runtime/session.h"
#include "models/tasks/rows.h"

struct prediction {
    size_t index;      /* class */
    float probability; /* 0 … 1 */
    const char *label; /* NULL from these functions; the server sets a borrowed label */
};

/* Checks that an output, described for one image, has at most one dimension other than 1, as class
 * scores have: [1, C], [1, C, 1, 1], [1, 1, C], [C]. *ret_classes is C; 0: the shape depends on
 * data. STATUS_UNSUPPORTED names the output. */
enum status scores_check(const struct session_tensor *output, size_t *ret_classes,
                         struct error *err) MUST_USE;

/* Finds the scores of image `row` of a run with `batch` images: *ret_count floats, in the tensor
 * itself (float32) or converted into `buffer` (float16, bfloat16, float64). The result is valid
 * while the tensor and `buffer` are. STATUS_INVALID: the tensor does not divide into `batch`
 * images, is empty, or has more than one dimension other than 1 per image; STATUS_NO_MEMORY. */
enum status scores_of_image(const struct tensor *output, int batch, int row,
                            struct task_buffer *buffer, const float **ret, size_t *ret_count,
                            struct error *err) MUST_USE;

/* Collects the k best scores in one pass. The caller provides `best` with room for k (at least 1)
 * and sets `count` to 0. An index is below 2^32. ranking_sort() sorts the scores, best first; for
 * equal scores the lower index comes first, and NaN comes last. */
struct ranking {
    uint64_t *best;
    size_t k, count;
};

void ranking_add(struct ranking *ranking, float score, size_t index);
void ranking_sort(struct ranking *ranking);
/* Returns the index of the score at a place. */
size_t ranking_index(const struct ranking *ranking, size_t place);

/* Finds the k best of `count` scores (both at least 1; k is limited to count), best first; for
 * equal scores the lower class comes first. Probabilities are softmax(scores), summed in float64
 * after subtracting the highest score. With `is_probabilities` they are the scores themselves. A
 * single score gets the logistic function, because its softmax would always be 1. The caller frees
 * *ret_predictions. STATUS_NUMERIC names a score that is NaN or infinite; STATUS_NO_MEMORY. */
enum status scores_top_k(const float *scores, size_t count, bool is_probabilities, size_t k,
                         struct prediction **ret_predictions, size_t *ret_count,
                         struct error *err) MUST_USE;
