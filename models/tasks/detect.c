/* Calls the decoder of the layout, suppresses overlaps, and converts boxes to pixels of the photo.
 */
#include "models/tasks/detect.h"

#include "models/tasks/decoders.h"

static enum status decode_layout(const struct task *task, const struct task_rows *outputs,
                                 const struct task_geometry *geometry,
                                 struct candidates *candidates, struct error *err)
{
    switch (task->layout) {
    case LAYOUT_YOLOV8:
        return decode_yolov8(outputs, candidates, err);
    case LAYOUT_YOLOV5:
    case LAYOUT_YOLOX_PIXELS:
        return decode_yolov5(outputs, candidates, err);
    case LAYOUT_YOLOX:
        return decode_yolox(outputs, geometry, candidates, err);
    case LAYOUT_YOLO_FINAL:
        return decode_yolo_final(outputs, candidates, err);
    case LAYOUT_RTDETR:
        return decode_rtdetr(outputs, geometry, candidates, err);
    case LAYOUT_RTDETR_FINAL:
        return decode_rtdetr_final(outputs, geometry, candidates, err);
    case LAYOUT_DETR:
    case LAYOUT_DETR_SIGMOID:
        return decode_detr(outputs, geometry, task->layout == LAYOUT_DETR_SIGMOID, candidates, err);
    case LAYOUT_TORCHVISION:
        return decode_torchvision(outputs, candidates, err);
    case LAYOUT_TENSORFLOW:
        return decode_tensorflow(outputs, task->output_count, geometry, candidates, err);
    case LAYOUT_NONE:
        break;
    }
    return error_set(err, STATUS_INTERNAL, "the model is not a detector");
}

static float to_photo(float at, float begin, float gain, float side)
{
    const float moved = (at - begin) / gain;
    return moved < 0 ? 0 : moved > side ? side : moved;
}

static void place_in_photo(struct detection *box, const struct task_geometry *g)
{
    box->x1 = to_photo(box->x1, g->left, g->gain_x, g->photo_width);
    box->x2 = to_photo(box->x2, g->left, g->gain_x, g->photo_width);
    box->y1 = to_photo(box->y1, g->top, g->gain_y, g->photo_height);
    box->y2 = to_photo(box->y2, g->top, g->gain_y, g->photo_height);
}

enum status detect_decode(const struct task *task, const struct task_rows *outputs,
                          const struct task_options *options, const struct task_geometry *geometry,
                          struct detections *ret, struct error *err)
{
    struct candidates candidates = {.options = options};
    enum status status = decode_layout(task, outputs, geometry, &candidates, err);
    if (status == STATUS_OK && candidates.is_out_of_memory)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the boxes of an image");
    if (status != STATUS_OK) {
        detections_done(&candidates.found);
        return status;
    }
    /* Of all pairs of query and class, keep as many as there are queries. */
    struct task_options cut = *options;
    if (task->layout == LAYOUT_DETR_SIGMOID && outputs[1].shape.dims[0] < cut.max_detections)
        cut.max_detections = (int)outputs[1].shape.dims[0];
    candidates_suppress(&candidates.found, &cut);
    for (size_t i = 0; i < candidates.found.count; i++)
        place_in_photo(&candidates.found.items[i], geometry);
    *ret = candidates.found;
    return STATUS_OK;
}
