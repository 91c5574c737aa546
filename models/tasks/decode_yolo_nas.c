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
