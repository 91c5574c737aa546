/* Calls the layout's decoder, suppresses overlaps, and converts boxes to pixels of the photo. */
#include "models/tasks/detect.h"

#include <math.h>

#include "engine/base/size.h"
#include "models/tasks/decoders.h"

static layout_decoder *const decoders[] = {
    [LAYOUT_YOLOV8] = decode_yolov8,
    [LAYOUT_YOLOV5] = decode_yolo_grids,
    [LAYOUT_YOLOX] = decode_yolo_grids,
    [LAYOUT_YOLOX_PIXELS] = decode_yolo_grids,
    [LAYOUT_YOLO_FINAL] = decode_final,
    [LAYOUT_RTDETR] = decode_rtdetr,
    [LAYOUT_RTDETR_FINAL] = decode_final,
    [LAYOUT_DETR] = decode_detr,
    [LAYOUT_DETR_SIGMOID] = decode_detr,
    [LAYOUT_TORCHVISION] = decode_lists,
    [LAYOUT_RTDETR_LISTS] = decode_lists,
    [LAYOUT_TENSORFLOW] = decode_lists,
    [LAYOUT_RFDETR] = decode_detr,
    [LAYOUT_PANOPTIC] = decode_mask_queries,
    [LAYOUT_MASKFORMER] = decode_mask_queries,
    [LAYOUT_YUNET] = decode_faces,
    [LAYOUT_TEXT] = decode_text_map,
    [LAYOUT_SCRFD] = decode_faces,
    [LAYOUT_SCRFD_FLAT] = decode_faces,
    [LAYOUT_YOLO_NAS] = decode_yolo_nas,
    [LAYOUT_YOLO_NAS_FLAT] = decode_yolo_nas,
    [LAYOUT_PADDLE] = decode_final,
    [LAYOUT_PADDLE_FLAT] = decode_final,
    [LAYOUT_OWL] = decode_words,
    [LAYOUT_GROUNDING] = decode_words,
    [LAYOUT_HEATMAPS] = decode_heatmaps,
};

static float to_photo(float at, float begin, float gain, float side)
{
    const float moved = (at - begin) / gain;
    return moved > side ? side : moved > 0 ? moved : 0;
}

static void place_in_photo(struct detection *box, const struct task_geometry *g, bool is_oriented)
{
    if (is_oriented) {
        box->x1 = (box->x1 - g->left) / g->gain_x;
        box->y1 = (box->y1 - g->top) / g->gain_y;
        box->x2 = (box->x2 - g->left) / g->gain_x;
        box->y2 = (box->y2 - g->top) / g->gain_y;
        return;
    }
    box->x1 = to_photo(box->x1, g->left, g->gain_x, g->photo_width);
    box->x2 = to_photo(box->x2, g->left, g->gain_x, g->photo_width);
    box->y1 = to_photo(box->y1, g->top, g->gain_y, g->photo_height);
    box->y2 = to_photo(box->y2, g->top, g->gain_y, g->photo_height);
}

/* Converts a coordinate of a point. The point may lie outside the photo by at most its side. */
static float place_point(float at, float begin, float gain, float side, bool may_be_outside)
{
    const float moved = (at - begin) / gain;
    return may_be_outside && isfinite(moved) ? fminf(fmaxf(moved, -side), 2 * side)
                                             : to_photo(at, begin, gain, side);
}

static enum status add_points(const struct task *task, const struct task_rows *rows,
                              const struct task_geometry *g, struct detections *found,
                              struct error *err)
{
    found->points = alloc_array(found->count * task->point_count, sizeof *found->points);
    found->point_count = task->point_count;
    TRY(check_memory(found->points, "for the key points of an image", err));
    struct task_point *point = found->points;
    const bool is_face = task_layout_is_faces(task->layout);
    const bool are_maps = task->layout == LAYOUT_HEATMAPS;
    for (size_t i = 0; i < found->count; i++) {
        float own[2 * FACE_POINTS];
        struct extra_numbers numbers = {own, 1};
        if (is_face)
            face_points(task, rows, g, found->items[i].place, own);
        else if (!are_maps)
            numbers = detect_extras(task, rows, found->items[i].place);
        for (size_t p = 0; p < task->point_count; p++, point++) {
            const float *at =
                numbers.first + (are_maps ? 0 : p * task->point_numbers) * numbers.step;
            if (are_maps)
                heatmap_point(rows, g, p, own);
            const bool may_leave = is_face || are_maps;
            point->x = place_point(at[0], g->left, g->gain_x, g->photo_width, may_leave);
            point->y = place_point(at[numbers.step], g->top, g->gain_y, g->photo_height, may_leave);
            const float score = task->point_numbers > 2 ? at[2 * numbers.step] : -1;
            point->score = task->point_numbers > 2 && !(score >= 0) ? 0 : score > 1 ? 1 : score;
        }
    }
    return STATUS_OK;
}

/* Refuses outputs that are mostly NaN or infinite. A class or a coordinate may still be finite: an
 * index from TopK, or a constant. */
static enum status check_finite(const struct task *task, const struct task_rows *outputs,
                                struct error *err)
{
    for (size_t o = 0; o < task->output_count; o++) {
        size_t bad = 0;
        for (size_t i = 0; i < outputs[o].count; i++)
            bad += !isfinite(outputs[o].data[i]) &&
                   !(task->layout == LAYOUT_GROUNDING && outputs[o].data[i] < 0); /* no token */
        if (bad > outputs[o].count / 2)
            return error_set(err, STATUS_NUMERIC,
                             "%zu of the %zu numbers of an output are NaN or infinite for this "
                             "image; it may hold values the model cannot handle, or the model "
                             "overflows in this precision",
                             bad, outputs[o].count);
    }
    return STATUS_OK;
}

static enum status find_boxes(const struct task_rows *outputs, const struct task_options *options,
                              struct candidates *candidates, struct error *err)
{
    const struct task *task = candidates->task;
    const struct task_geometry *geometry = candidates->geometry;
    if (!decoders[task->layout])
        return error_set(err, STATUS_INTERNAL, "the model is not a detector");
    TRY(decoders[task->layout](outputs, candidates, err));
    if (candidates->is_out_of_memory)
        return error_set(err, STATUS_NO_MEMORY, "no memory for the boxes of an image");
    if (candidates->found.count == 0)
        TRY(check_finite(task, outputs, err));
    /* Of all pairs of query and class, keep as many as there are queries. */
    struct task_options cut = *candidates->options;
    const bool has_pairs = (task->layout == LAYOUT_DETR_SIGMOID && !task->exceeds_queries) ||
                           task->layout == LAYOUT_RFDETR || task->layout == LAYOUT_MASKFORMER;
    if (task_layout_is_masks(task->layout)) { /* the masks decide */
        cut.max_detections = TASK_MAX_DETECTIONS;
        cut.iou = 1;
    }
    if (has_pairs && outputs[1].shape.dims[0] < cut.max_detections)
        cut.max_detections = (int)outputs[1].shape.dims[0];
    candidates_suppress(candidates, &cut);
    if (task_layout_is_masks(task->layout))
        return query_masks_add(task, outputs, options, geometry, &candidates->found, err);
    if (task->layout == LAYOUT_TEXT)
        return text_corners(outputs, geometry, &candidates->found, err);
    for (size_t i = 0; i < candidates->found.count; i++)
        place_in_photo(&candidates->found.items[i], geometry, candidates->is_oriented);
    if (task->kind == TASK_POSE)
        TRY(add_points(task, &outputs[0], geometry, &candidates->found, err));
    if (task->kind == TASK_INSTANCES)
        TRY(instances_add(task, outputs, geometry, &candidates->found, err));
    return STATUS_OK;
}

enum status detect_decode(const struct task *task, const struct task_rows *outputs,
                          const struct task_options *options, const struct task_geometry *geometry,
                          struct detections *ret, struct error *err)
{
    /* Masks of all classes compete for pixels, whichever the client requests. */
    struct task_options competing = *options;
    if (task_layout_is_masks(task->layout))
        competing.class_count = 0;
    struct task_geometry own = *geometry;
    if (task->layout == LAYOUT_SCRFD || task->layout == LAYOUT_SCRFD_FLAT)
        own.gain_x = own.gain_y; /* InsightFace has one scale for both sides */
    struct candidates candidates = {.task = task,
                                    .options = &competing,
                                    .geometry = &own,
                                    .is_oriented = task->kind == TASK_ORIENTED};
    const enum status status = find_boxes(outputs, options, &candidates, err);
    if (status != STATUS_OK) {
        detections_done(&candidates.found);
        return status;
    }
    *ret = candidates.found;
    return STATUS_OK;
}
