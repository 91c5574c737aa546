/* Decodes detectors with a fixed number of queries. Their boxes are fractions of the input's sides.
 *
 * Sources: post_process_object_detection of Hugging Face's DETR (softmax; the last class is
 * "nothing") and RT-DETR (sigmoid; the best of all pairs of query and class),
 * post_process_instance_segmentation of DETR and MaskFormer. */
#include <math.h>

#include "models/tasks/decoders.h"

/* Limit of the masks of a prompt; SAM's decoder makes up to four. */
#define PROMPTED_MAX 64

/* The softmax of a logit in a row is exp(logit - greatest) / sum. */
struct softmax_scale {
    float greatest, sum;
};

static struct softmax_scale softmax_scale(const float *logits, size_t classes)
{
    struct softmax_scale scale = {.greatest = logits[decode_greatest(logits, classes)]};
    for (size_t c = 0; c < classes; c++)
        scale.sum += expf(logits[c] - scale.greatest);
    return scale;
}

enum status decode_mask_queries(const struct task_rows *outputs, struct candidates *candidates,
                                struct error *err)
{
    const struct task_rows *logits = &outputs[0], *masks = &outputs[1];
    if (masks->shape.rank != 3 || masks->count == 0 || masks->shape.dims[1] > INT16_MAX ||
        masks->shape.dims[2] > INT16_MAX)
        return task_rows_wrong(masks, "masks, [queries, height, width]", err);
    if (logits->shape.rank != 2 || logits->shape.dims[0] != masks->shape.dims[0] ||
        logits->shape.dims[1] < 2)
        return task_rows_wrong(logits, "logits, [queries, classes + 1]", err);
    const size_t classes = (size_t)logits->shape.dims[1];
    const bool is_panoptic = candidates->task->layout == LAYOUT_PANOPTIC;
    for (size_t i = 0; i < (size_t)logits->shape.dims[0]; i++) {
        const float *row = logits->data + i * classes;
        const struct softmax_scale scale = softmax_scale(row, classes);
        const struct detection none = {.index = 0}; /* query_masks_add() sets the box */
        const size_t best = is_panoptic ? decode_greatest(row, classes) : classes;
        for (size_t c = 0; c + 1 < classes; c++) /* the last class is "nothing" */
            if (!is_panoptic || c == best)
                candidates_add(candidates, none, expf(row[c] - scale.greatest) / scale.sum, c,
                               is_panoptic ? i : i * classes + c);
    }
    return STATUS_OK;
}

/* Adds the masks of a prompt. STATUS_NUMERIC: a score is not finite. */
enum status decode_prompted(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct task_rows *masks = &outputs[0], *scores = &outputs[1];
    const struct shape *shape = &masks->shape;
    if (shape->rank < 3 || !masks->count || masks->count > INT32_MAX || !scores->count ||
        scores->count > PROMPTED_MAX ||
        masks->count != scores->count * (size_t)shape->dims[shape->rank - 1] *
                            (size_t)shape->dims[shape->rank - 2])
        return task_rows_wrong(masks, "a mask for each score, [1, masks, height, width]", err);
    for (size_t i = 0; i < scores->count; i++) {
        if (!isfinite(scores->data[i]))
            return error_set(err, STATUS_NUMERIC,
                             "the score of a mask is NaN or infinite for this photo");
        candidates_add(candidates, (struct detection){0}, scores->data[i], 0, i);
    }
    return STATUS_OK;
}

static void add_pairs(const float *logits, size_t classes, size_t query,
                      const struct detection *box, struct candidates *candidates)
{
    const float confidence = candidates->options->confidence;
    /* A logit below this gives a score below the threshold, so its sigmoid is not needed. */
    const float floor = logf(confidence / (1 - confidence)) - 0.01f;
    for (size_t c = 0; c < classes; c++) {
        if (logits[c] < floor)
            continue;
        candidates_add(candidates, *box, 1 / (1 + expf(-logits[c])), c, query * classes + c);
    }
}

enum status decode_detr(const struct task_rows *outputs, struct candidates *candidates,
                        struct error *err)
{
    const struct task_rows *logits = &outputs[0], *boxes = &outputs[1];
    const bool is_sigmoid = candidates->task->layout != LAYOUT_DETR;
    if (boxes->shape.rank != 2 || boxes->shape.dims[1] != 4)
        return task_rows_wrong(boxes, "boxes, [queries, 4]", err);
    if (logits->shape.rank != 2 || logits->shape.dims[0] != boxes->shape.dims[0] ||
        logits->shape.dims[1] < (is_sigmoid ? 1 : 2))
        return task_rows_wrong(logits, "logits, [queries, classes]", err);
    const size_t classes = (size_t)logits->shape.dims[1];
    for (size_t i = 0; i < (size_t)boxes->shape.dims[0]; i++) {
        const float *row = logits->data + i * classes;
        const struct detection box = decode_shares(boxes->data + 4 * i, candidates->geometry);
        if (is_sigmoid) {
            add_pairs(row, classes, i, &box, candidates);
            continue;
        }
        const struct softmax_scale scale = softmax_scale(row, classes);
        const size_t best = decode_greatest(row, classes - 1); /* the last class is "nothing" */
        candidates_add(candidates, box, expf(row[best] - scale.greatest) / scale.sum, best, i);
    }
    return STATUS_OK;
}
