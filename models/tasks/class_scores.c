/* Finds the scores of an image in an output, converts them to probabilities if the model does not,
 * and selects the k best classes. */
#include "models/tasks/class_scores.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/heap.h"
#include "engine/base/size.h"

enum status scores_check(const struct session_tensor *output, size_t *ret_classes,
                         struct error *err)
{
    int wide = 0;
    *ret_classes = 0;
    if (output->shape.rank == SHAPE_UNKNOWN)
        return STATUS_OK;
    for (int i = 0; i < output->shape.rank; i++)
        wide += output->shape.dims[i] != 1;
    if (wide > 1 || shape_count(&output->shape) == 0)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "output '%s' of an image has the shape %s, which is not one score per class; an image "
            "classifier needs an output such as [N, C] or [N, C, 1, 1]",
            output->name, SHAPE_STRING(&output->shape));
    *ret_classes = shape_count(&output->shape);
    return STATUS_OK;
}

enum status scores_of_image(const struct tensor *output, int batch, int row,
                            struct task_buffer *buffer, const float **ret, size_t *ret_count,
                            struct error *err)
{
    const struct shape *shape = &output->shape;
    const bool has_rows = batch > 1 || (shape->rank >= 1 && shape->dims[0] == 1);
    struct task_rows rows;
    TRY(task_rows_of(output, has_rows, batch, row, buffer, &rows, err));
    int wide = 0;
    for (int i = 0; i < rows.shape.rank; i++)
        wide += rows.shape.dims[i] != 1;
    if (wide > 1 || rows.count == 0)
        return error_set(err, STATUS_INVALID,
                         "the model's output has the shape %s for %d image%s, which is not one "
                         "score per class",
                         SHAPE_STRING(shape), batch, batch > 1 ? "s" : "");
    *ret = rows.data;
    *ret_count = rows.count;
    return STATUS_OK;
}

/* Returns a number that is greater for a higher score, and for equal scores for a lower index. */
static uint64_t rank_score(float score, size_t index)
{
    uint32_t bits = 0;                   /* the bits of a NaN, which ranks last */
    const float positive = score + 0.0F; /* not -0, which equals 0 */
    if (!isnan(score)) {
        memcpy(&bits, &positive, sizeof bits);
        bits = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    }
    return (uint64_t)bits << 32 | (uint32_t)~index;
}

size_t ranking_index(const struct ranking *ranking, size_t place)
{
    return (uint32_t)~ranking->best[place];
}

/* `best` is a heap, whose first number is the worst. */
void ranking_add(struct ranking *ranking, float score, size_t index)
{
    const uint64_t added = rank_score(score, index);
    if (ranking->count == ranking->k && added < ranking->best[0])
        return;
    if (ranking->count == ranking->k)
        (void)heap_pop(ranking->best, &ranking->count);
    heap_push(ranking->best, &ranking->count, added);
}

void ranking_sort(struct ranking *ranking)
{
    for (size_t size = ranking->count; size > 1;) {
        const uint64_t worst = heap_pop(ranking->best, &size);
        ranking->best[size] = worst;
    }
}

static enum status find_greatest(const float *scores, size_t count, float *ret, struct error *err)
{
    float greatest = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(scores[i]))
            return error_set(
                err, STATUS_NUMERIC,
                "the model's score of class %zu is %s for this image; the image may contain values "
                "that the model cannot handle, or the model overflows in this precision",
                i, isnan(scores[i]) ? "not a number (NaN)" : "infinite");
        if (scores[i] > greatest)
            greatest = scores[i];
    }
    *ret = greatest;
    return STATUS_OK;
}

enum status scores_top_k(const float *scores, size_t count, bool is_probabilities, size_t k,
                         struct prediction **ret_predictions, size_t *ret_count, struct error *err)
{
    assert(count >= 1 && k >= 1);
    float greatest = 0;
    TRY(find_greatest(scores, count, &greatest, err));
    if (k > count)
        k = count;
    struct ranking ranking = {alloc_array(k, sizeof *ranking.best), k, 0};
    struct prediction *best = alloc_array(k, sizeof *best);
    if (!best || !ranking.best) {
        FREE_ALL(ranking.best, best);
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu predictions", k);
    }
    for (size_t i = 0; i < count; i++)
        ranking_add(&ranking, scores[i], i);
    ranking_sort(&ranking);
    double sum = 0;
    for (size_t i = 0; i < count && !is_probabilities; i++)
        sum += exp((double)scores[i] - (double)greatest);
    for (size_t i = 0; i < k; i++) {
        best[i].index = ranking_index(&ranking, i);
        const double score = (double)scores[best[i].index];
        best[i].probability = (float)(is_probabilities ? score
                                      : count == 1     ? 1 / (1 + exp(-score))
                                                       : exp(score - (double)greatest) / sum);
    }
    free(ranking.best);
    *ret_predictions = best;
    *ret_count = k;
    return STATUS_OK;
}
