/* Decodes detectors that suppress overlaps themselves and return lists: torchvision's (boxes,
 * labels, scores) and TensorFlow's (detection_boxes, detection_classes, detection_scores,
 * num_detections). In both, class 0 is the background. */
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

/* Adds box `i` of the lists. */
static void add_listed(const struct task_rows *outputs, size_t i, struct detection box,
                       struct candidates *candidates)
{
    if (!decode_class(outputs[1].data[i], &box.index))
        return;
    box.score = outputs[2].data[i];
    box.place = (uint32_t)i;
    candidates_add(candidates, &box);
}

enum status decode_torchvision(const struct task_rows *outputs, struct candidates *candidates,
                               struct error *err)
{
    TRY(check_lists(outputs, err));
    for (size_t i = 0; i < (size_t)outputs[0].shape.dims[0]; i++) {
        const float *box = outputs[0].data + 4 * i;
        add_listed(outputs, i,
                   (struct detection){.x1 = box[0], .y1 = box[1], .x2 = box[2], .y2 = box[3]},
                   candidates);
    }
    return STATUS_OK;
}

enum status decode_tensorflow(const struct task_rows *outputs, size_t output_count,
                              const struct task_geometry *geometry, struct candidates *candidates,
                              struct error *err)
{
    TRY(check_lists(outputs, err));
    const float width = geometry->input_width, height = geometry->input_height;
    size_t count = (size_t)outputs[0].shape.dims[0];
    if (output_count > 3 && outputs[3].count == 1 && outputs[3].data[0] >= 0 &&
        outputs[3].data[0] < (float)count)
        count = (size_t)outputs[3].data[0];
    for (size_t i = 0; i < count; i++) {
        const float *box = outputs[0].data + 4 * i;
        add_listed(outputs, i,
                   (struct detection){.x1 = box[1] * width,
                                      .y1 = box[0] * height,
                                      .x2 = box[3] * width,
                                      .y2 = box[2] * height},
                   candidates);
    }
    return STATUS_OK;
}
