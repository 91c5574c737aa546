/* Decodes YOLO-NAS, as exported by SuperGradients: boxes and scores. Each class of a box with a
 * score above the threshold is a candidate (its multi_label_per_box). */
#include "models/tasks/decoders.h"

enum status decode_yolo_nas(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct task_rows *boxes = &outputs[0], *scores = &outputs[1];
    if (boxes->shape.rank != 2 || boxes->shape.dims[1] != 4)
        return task_rows_wrong(boxes, "boxes, [candidates, 4]", err);
    if (scores->shape.rank != 2 || scores->shape.dims[0] != boxes->shape.dims[0])
        return task_rows_wrong(scores, "scores for each box, [candidates, classes]", err);
    const size_t classes = (size_t)scores->shape.dims[1];
    for (size_t i = 0; i < scores->count; i++) {
        const float *box = boxes->data + i / classes * 4;
        if (scores->data[i] > candidates->options->confidence)
            candidates_add(candidates, decode_corners(box[0], box[1], box[2], box[3]),
                           scores->data[i], i % classes, i);
    }
    return STATUS_OK;
}
