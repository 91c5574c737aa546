/* Decodes YOLO-NAS, as exported by SuperGradients: either boxes and scores, where each class of a
 * box with a score above the threshold is a candidate (its multi_label_per_box), or a flat list of
 * the boxes that the graph itself has kept. */
#include "models/tasks/decoders.h"

enum { FLAT_COLUMNS = 7 };

static enum status decode_flat(const struct task_rows *rows, struct candidates *candidates,
                               struct error *err)
{
    if (rows->shape.rank != 2 || rows->shape.dims[1] != FLAT_COLUMNS)
        return task_rows_wrong(rows, "[boxes, 7]: image, corners, score, class", err);
    for (size_t i = 0; i < (size_t)rows->shape.dims[0]; i++) {
        const float *row = rows->data + FLAT_COLUMNS * i;
        struct detection found = decode_corners(row[1], row[2], row[3], row[4]);
        found.score = row[5];
        found.place = (uint32_t)i;
        if (decode_class(row[6], &found.index))
            candidates_add(candidates, &found);
    }
    return STATUS_OK;
}

enum status decode_yolo_nas(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct task_rows *boxes = &outputs[0], *scores = &outputs[1];
    if (candidates->task->layout == LAYOUT_YOLO_NAS_FLAT)
        return decode_flat(boxes, candidates, err);
    if (boxes->shape.rank != 2 || boxes->shape.dims[1] != 4)
        return task_rows_wrong(boxes, "boxes, [candidates, 4]", err);
    if (scores->shape.rank != 2 || scores->shape.dims[0] != boxes->shape.dims[0])
        return task_rows_wrong(scores, "scores for each box, [candidates, classes]", err);
    const size_t classes = (size_t)scores->shape.dims[1];
    for (size_t i = 0; i < scores->count; i++) {
        if (!(scores->data[i] > candidates->options->confidence))
            continue;
        const float *box = boxes->data + i / classes * 4;
        struct detection found = decode_corners(box[0], box[1], box[2], box[3]);
        found.score = scores->data[i];
        found.index = (uint32_t)(i % classes);
        found.place = (uint32_t)i;
        candidates_add(candidates, &found);
    }
    return STATUS_OK;
}
