/* Finds the scores of an image in an output, converts them to probabilities if the model does not,
 * and selects the k best classes. */
#include "models/tasks/class_scores.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"

enum status scores_check(const struct session_tensor *output, size_t *ret_classes,
                         struct error *err)
{
    if (!dtype_is_float(output->dtype))
        return error_set(err, STATUS_UNSUPPORTED,
                         "output '%s' is %s, but class scores are floating point; export the model "
                         "with its logits or probabilities as output",
                         output->name, dtype_name(output->dtype));
    if (output->shape.rank == SHAPE_UNKNOWN) {
        *ret_classes = 0;
        return STATUS_OK;
    }
    int wide = 0;
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

static bool comes_before(const struct ranked *a, const struct ranked *b)
{
    if (a->value > b->value || a->value < b->value)
        return a->value > b->value;
    bool a_nan = isnan(a->value), b_nan = isnan(b->value);
    return a_nan != b_nan ? b_nan : a->index < b->index;
}

/* Moves the entry at `root` down until no child is worse: the root of the heap is the worst. */
static void ranking_sift_down(struct ranked *heap, size_t size, size_t root)
{
    for (;;) {
        size_t worst = root, left = 2 * root + 1;
        for (size_t child = left; child < size && child <= left + 1; child++)
            if (comes_before(&heap[worst], &heap[child]))
                worst = child;
        if (worst == root)
            return;
        struct ranked moved = heap[root];
        heap[root] = heap[worst];
        heap[worst] = moved;
        root = worst;
    }
}

static void make_heap(struct ranking *ranking)
{
    for (size_t i = ranking->count / 2; i-- > 0;)
        ranking_sift_down(ranking->best, ranking->count, i);
}

/* Once full, `best` is a heap; a new value must exceed its root. */
void ranking_add(struct ranking *ranking, double value, size_t index)
{
    const struct ranked added = {value, index};
    if (ranking->count < ranking->k) {
        ranking->best[ranking->count++] = added;
        if (ranking->count == ranking->k)
            make_heap(ranking);
    } else if (comes_before(&added, &ranking->best[0])) {
        ranking->best[0] = added;
        ranking_sift_down(ranking->best, ranking->k, 0);
    }
}

void ranking_sort(struct ranking *ranking)
{
    if (ranking->count < ranking->k)
        make_heap(ranking);
    for (size_t size = ranking->count; size > 1; size--) {
        struct ranked worst = ranking->best[0];
        ranking->best[0] = ranking->best[size - 1];
        ranking->best[size - 1] = worst;
        ranking_sift_down(ranking->best, size - 1, 0);
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
        ranking_add(&ranking, (double)scores[i], i);
    ranking_sort(&ranking);
    double sum = 0;
    for (size_t i = 0; i < count && !is_probabilities; i++)
        sum += exp((double)scores[i] - (double)greatest);
    for (size_t i = 0; i < k; i++) {
        best[i].index = ranking.best[i].index;
        const double score = ranking.best[i].value;
        best[i].probability = (float)(is_probabilities ? score
                                      : count == 1     ? 1 / (1 + exp(-score))
                                                       : exp(score - (double)greatest) / sum);
    }
    free(ranking.best);
    *ret_predictions = best;
    *ret_count = k;
    return STATUS_OK;
}
