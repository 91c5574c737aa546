/* Decodes detectors that suppress overlaps themselves and return lists: torchvision's (boxes,
 * labels, scores) and TensorFlow's (detection_boxes, detection_classes, detection_scores,
 * num_detections). In both, class 0 is the background. RT-DETR's and D-FINE's own exports end in
 * the same lists as torchvision's, with one entry per query. */
#include "models/tasks/decoders.h"

static enum status check_lists(const struct task_rows *outputs, struct error *err)
{
    const struct task_rows *boxes = &outputs[0];
    if (boxes->shape.rank != 2 || boxes->shape.dims[1] != 4)
        return task_rows_wrong(boxes, "boxes, [n, 4]", err);
    for (int i = 1; i < 3; i++)
        if (outputs[i].shape.rank != 1 || outputs[i].shape.dims[0] != boxes->shape.dims[0])
            return task_rows_wrong(&outputs[i], "a number for each box, [n]", err);
    return STATUS_OK;
}

enum status decode_lists(const struct task_rows *outputs, struct candidates *candidates,
                         struct error *err)
{
    const bool is_tensorflow = candidates->task->layout == LAYOUT_TENSORFLOW;
    const float width = candidates->geometry->input_width;
    const float height = candidates->geometry->input_height;
    TRY(check_lists(outputs, err));
    size_t count = (size_t)outputs[0].shape.dims[0];
    if (is_tensorflow && candidates->task->output_count > 3 && outputs[3].count == 1 &&
        outputs[3].data[0] >= 0 && outputs[3].data[0] < (float)count)
        count = (size_t)outputs[3].data[0];
    for (size_t i = 0; i < count; i++) {
        const float *box = outputs[0].data + 4 * i;
        const struct detection found =
            is_tensorflow
                ? decode_corners(box[1] * width, box[0] * height, box[3] * width, box[2] * height)
                : decode_corners(box[0], box[1], box[2], box[3]);
        uint32_t index;
        if (decode_class(outputs[1].data[i], &index))
            candidates_add(candidates, found, outputs[2].data[i], index, i);
    }
    return STATUS_OK;
}
