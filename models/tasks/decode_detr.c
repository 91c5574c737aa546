/* Decodes detectors with a fixed number of queries. Their boxes are fractions of the input's sides.
 *
 * Sources: post_process_object_detection of Hugging Face's DETR (softmax; the last class is
 * "nothing") and RT-DETR (sigmoid; the best of all pairs of query and class),
 * post_process_instance_segmentation of DETR and MaskFormer, Ultralytics' RTDETRPredictor. */
#include <math.h>

#include "models/tasks/decoders.h"

enum status decode_rtdetr(const struct task_rows *outputs, struct candidates *candidates,
                          struct error *err)
{
    const struct task_rows *rows = &outputs[0];
    if (rows->shape.rank != 2 || rows->shape.dims[1] < 5)
        return task_rows_wrong(rows, "[queries, 4 + classes]", err);
    const size_t columns = (size_t)rows->shape.dims[1];
    for (size_t i = 0; i < (size_t)rows->shape.dims[0]; i++) {
        const float *row = rows->data + i * columns;
        const size_t best = 4 + decode_greatest(row + 4, columns - 4);
        if (!(row[best] > candidates->options->confidence))
            continue;
        struct detection found = decode_shares(row, candidates->geometry);
        found.score = row[best];
        found.index = (uint32_t)(best - 4);
        found.place = (uint32_t)i;
        candidates_add(candidates, &found);
    }
    return STATUS_OK;
}

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

/* Returns the best class of a row of logits except the last, and its softmax over all logits. */
static struct detection softmax_row(const float *logits, size_t classes)
{
    const struct softmax_scale scale = softmax_scale(logits, classes);
    const size_t best = decode_greatest(logits, classes - 1);
    return (struct detection){.index = (uint32_t)best,
                              .score = expf(logits[best] - scale.greatest) / scale.sum};
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
        struct detection found = {.place = (uint32_t)i};
        if (is_panoptic) {
            found.index = (uint32_t)decode_greatest(row, classes);
            found.score = expf(row[found.index] - scale.greatest) / scale.sum;
            if (found.index + 1 < classes) /* the last one is "nothing" */
                candidates_add(candidates, &found);
            continue;
        }
        for (size_t c = 0; c + 1 < classes; c++) {
            found.index = (uint32_t)c;
            found.score = expf(row[c] - scale.greatest) / scale.sum;
            found.place = (uint32_t)(i * classes + c);
            candidates_add(candidates, &found);
        }
    }
    return STATUS_OK;
}

static void add_pairs(const float *logits, size_t classes, size_t query,
                      const struct detection *box, struct candidates *candidates)
{
    const float confidence = candidates->options->confidence;
    /* A logit below this gives a score below the threshold: skip its sigmoid. */
    const float floor = logf(confidence / (1 - confidence)) - 0.01f;
    for (size_t c = 0; c < classes; c++) {
        if (logits[c] < floor)
            continue;
        struct detection found = *box;
        found.score = 1 / (1 + expf(-logits[c]));
        found.index = (uint32_t)c;
        found.place = (uint32_t)(query * classes + c);
        candidates_add(candidates, &found);
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
        struct detection found = decode_shares(boxes->data + 4 * i, candidates->geometry);
        if (is_sigmoid) {
            add_pairs(logits->data + i * classes, classes, i, &found, candidates);
            continue;
        }
        const struct detection scored = softmax_row(logits->data + i * classes, classes);
        found.score = scored.score;
        found.index = scored.index;
        found.place = (uint32_t)i;
        candidates_add(candidates, &found);
    }
    return STATUS_OK;
}
