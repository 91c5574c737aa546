/* From a model's output tensor to the best classes: softmax, top-k. Pure; any thread. */
#pragma once

#include "engine/runtime/session.h"
#include "models/tasks/rows.h"

struct prediction {
    size_t index;      /* class */
    float probability; /* 0 … 1 */
    const char *label; /* NULL from these functions; the server sets it (borrowed) */
};

/* Whether an output, as described for one image, is a vector of class scores: floating point, and
 * of all its dimensions (batch included: 1 here) at most one is not 1, as in [N, C], [N, C, 1, 1],
 * [N, 1, C], [C]. *ret_classes: C; 0 when the shape depends on data. STATUS_UNSUPPORTED names the
 * output and its shape. */
enum status scores_check(const struct session_tensor *output, size_t *ret_classes,
                         struct error *err) MUST_USE;

/* The scores of image `row` of a run with `batch` images: *ret_count floats, in the tensor itself
 * (float32) or converted into `buffer` (float16, bfloat16, float64). It is valid while both are.
 * STATUS_INVALID when the tensor does not divide into `batch` images, is empty, or has more than
 * one dimension of an image that is not 1; STATUS_NO_MEMORY. */
enum status scores_of_image(const struct tensor *output, int batch, int row,
                            struct task_buffer *buffer, const float **ret, size_t *ret_count,
                            struct error *err) MUST_USE;

/* The k greatest of any number of values, in one pass: `best` is the caller's, with room for k (at
 * least 1), `count` 0 in the beginning. ranking_sort() puts the `count` entries in order, best
 * first; equal values: the lower index first; NaN: last. */
struct ranked {
    double value;
    size_t index;
};

struct ranking {
    struct ranked *best;
    size_t k, count;
};

void ranking_add(struct ranking *ranking, double value, size_t index);
void ranking_sort(struct ranking *ranking);

/* The k best of `count` scores (both at least 1; k is cut to count), best first; equal scores: the
 * lower class first. Probabilities are softmax(scores), summed in float64 after the greatest score
 * was subtracted; the scores themselves with `is_probabilities`; for a single score, where softmax
 * could only say 1, the logistic function of it.
 * *ret_predictions: malloc'ed, the caller frees. STATUS_NUMERIC when a score is NaN or infinite
 * (the text says which); STATUS_NO_MEMORY. */
enum status scores_top_k(const float *scores, size_t count, bool is_probabilities, size_t k,
                         struct prediction **ret_predictions, size_t *ret_count,
                         struct error *err) MUST_USE;

/* The same from what a device has found (session_best_of), which has at least one score of `count`
 * (0: unknown) classes. */
enum status scores_from_best(const struct session_best *best, size_t count, bool is_probabilities,
                             size_t k, struct prediction **ret_predictions, size_t *ret_count,
                             struct error *err) MUST_USE;
