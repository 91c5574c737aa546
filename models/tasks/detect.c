/* Lists the layouts of detectors' outputs: names, decoders, thresholds of the frameworks. Calls a
 * layout's decoder, suppresses overlaps, and converts boxes to pixels of the photo. */
#include "models/tasks/detect.h"

#include <math.h>

#include "engine/base/size.h"
#include "models/tasks/decoders.h"

/* Sources: Ultralytics' predictor (confidence 0.25, IoU 0.7, 300 boxes), YOLOv5's detect.py (0.25,
 * 0.45, 1000), YOLOX's demo.py (0.3, 0.3), Hugging Face's object-detection pipeline (0.5),
 * TorchServe's object_detector and TensorFlow's visualisation (0.5), rfdetr's predict() (0.5),
 * post_process_instance_segmentation() of Hugging Face (0.5), OpenCV's FaceDetectorYN (0.9, 0.3),
 * PaddleOCR's box_thresh (0.6), InsightFace's SCRFD (0.5, 0.4), YOLO-NAS's predict() in
 * SuperGradients (0.25, 0.7), PaddleDetection's deploy/python/infer.py (0.5),
 * post_process_object_detection() of OWL (0.1) and post_process_grounded_object_detection() of
 * Grounding DINO (0.25). Layouts without suppression have an IoU of 1. */
const struct layout_entry task_layouts[] = {
    [LAYOUT_NONE] = {"", NULL, 0, 0, 1, 0, true},
    [LAYOUT_YOLOV8] = {"yolov8", decode_yolov8, 1, 0.25f, 0.7f, 300, true},
    [LAYOUT_YOLOV5] = {"yolov5", decode_yolo_grids, 1, 0.25f, 0.45f, 1000, true},
    [LAYOUT_YOLOX] = {"yolox", decode_yolo_grids, 1, 0.3f, 0.3f, 300, true},
    [LAYOUT_YOLOX_PIXELS] = {"yolox-pixels", decode_yolo_grids, 1, 0.3f, 0.3f, 300, true},
    [LAYOUT_YOLO_FINAL] = {"yolo-final", decode_final, 1, 0.25f, 1, 300, true},
    [LAYOUT_RTDETR] = {"rt-detr", decode_yolo_grids, 1, 0.25f, 1, 300, true},
    [LAYOUT_RTDETR_FINAL] = {"rt-detr-final", decode_final, 1, 0.25f, 1, 300, true},
    [LAYOUT_DETR] = {"detr", decode_detr, 2, 0.5f, 1, 300, true},
    [LAYOUT_DETR_SIGMOID] = {"detr-sigmoid", decode_detr, 2, 0.5f, 1, 300, true},
    [LAYOUT_TORCHVISION] = {"torchvision", decode_lists, 3, 0.5f, 1, 300, false},
    [LAYOUT_TENSORFLOW] = {"tensorflow", decode_lists, 3, 0.5f, 1, 300, true},
    [LAYOUT_RTDETR_LISTS] = {"rt-detr-lists", decode_lists, 3, 0.5f, 1, 300, true},
    [LAYOUT_RFDETR] = {"rf-detr", decode_detr, 2, 0.5f, 1, 300, true},
    [LAYOUT_PANOPTIC] = {"panoptic", decode_mask_queries, 2, 0.5f, 1, 300, true},
    [LAYOUT_MASKFORMER] = {"maskformer", decode_mask_queries, 2, 0.5f, 1, 300, true},
    [LAYOUT_YUNET] = {"yunet", decode_faces, 12, 0.9f, 0.3f, 300, true},
    [LAYOUT_TEXT] = {"text", decode_text_map, 1, 0.6f, 1, 1000, true},
    [LAYOUT_SCRFD] = {"scrfd", decode_faces, 9, 0.5f, 0.4f, 300, true},
    [LAYOUT_SCRFD_FLAT] = {"scrfd-flat", decode_faces, 9, 0.5f, 0.4f, 300, false},
    [LAYOUT_YOLO_NAS] = {"yolo-nas", decode_yolo_nas, 2, 0.25f, 0.7f, 300, true},
    [LAYOUT_YOLO_NAS_FLAT] = {"yolo-nas-flat", decode_final, 1, 0.25f, 1, 300, false},
    [LAYOUT_OWL] = {"owl", decode_words, 2, 0.1f, 1, 300, true},
    [LAYOUT_GROUNDING] = {"grounding-dino", decode_words, 2, 0.25f, 1, 300, true},
    [LAYOUT_HEATMAPS] = {"heatmaps", decode_heatmaps, 1, 0, 1, 1, true},
    [LAYOUT_PADDLE] = {"paddle", decode_final, 2, 0.5f, 1, 300, true},
    [LAYOUT_PADDLE_FLAT] = {"paddle-flat", decode_final, 2, 0.5f, 1, 300, false},
    [LAYOUT_SAM] = {"", decode_prompted, 2, 0, 1, 300, false},
};
const size_t task_layout_count = COUNT_OF(task_layouts);

bool task_layout_has_rows(enum task_layout layout)
{
    return task_layouts[layout].has_rows;
}

static void place_in_photo(struct detection *box, const struct task_geometry *g, bool is_oriented)
{
    const float x1 = (box->x1 - g->left) / g->gain_x, x2 = (box->x2 - g->left) / g->gain_x;
    const float y1 = (box->y1 - g->top) / g->gain_y, y2 = (box->y2 - g->top) / g->gain_y;
    box->x1 = is_oriented ? x1 : decode_limit(x1, g->photo_width);
    box->x2 = is_oriented ? x2 : decode_limit(x2, g->photo_width);
    box->y1 = is_oriented ? y1 : decode_limit(y1, g->photo_height);
    box->y2 = is_oriented ? y2 : decode_limit(y2, g->photo_height);
}

/* Converts a coordinate of a point to pixels of the photo, and clips it to the photo or, with
 * `may_be_outside`, to at most the photo's side beyond each edge. */
static float place_point(float at, float begin, float gain, float side, bool may_be_outside)
{
    const float moved = (at - begin) / gain;
    return may_be_outside && isfinite(moved) ? fminf(fmaxf(moved, -side), 2 * side)
                                             : decode_limit(moved, side);
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

/* Refuses outputs if most numbers of one output are NaN or infinite. Another output, such as the
 * indexes of a TopK, may be finite even then. */
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
                             "image; the image may contain values that the model cannot handle, or "
                             "the model overflows in this precision",
                             bad, outputs[o].count);
    }
    return STATUS_OK;
}

static enum status find_boxes(const struct task_rows *outputs, const struct task_options *options,
                              struct candidates *candidates, struct error *err)
{
    const struct task *task = candidates->task;
    const struct task_geometry *geometry = candidates->geometry;
    if (!task_layouts[task->layout].decode)
        return error_set(err, STATUS_INTERNAL, "the model is not a detector");
    TRY(task_layouts[task->layout].decode(outputs, candidates, err));
    TRY(check_memory(!candidates->is_out_of_memory, "for the boxes of an image", err));
    if (candidates->found.count == 0)
        TRY(check_finite(task, outputs, err));
    /* Some frameworks keep the best pairs of query and class, as many as there are queries. */
    struct task_options cut = *candidates->options;
    const bool has_pairs = (task->layout == LAYOUT_DETR_SIGMOID && !task->exceeds_queries) ||
                           task->layout == LAYOUT_RFDETR || task->layout == LAYOUT_MASKFORMER;
    if (task_layout_is_masks(task->layout)) { /* query_masks_add() applies the limit */
        cut.max_detections = TASK_MAX_DETECTIONS;
        cut.iou = 1;
    }
    if (has_pairs && outputs[1].shape.dims[0] < cut.max_detections)
        cut.max_detections = (int)outputs[1].shape.dims[0];
    candidates_suppress(candidates, &cut);
    if (task_layout_is_masks(task->layout) || task->layout == LAYOUT_SAM)
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
    /* Masks of all classes compete for pixels, whichever classes the client requests. */
    struct task_options competing = *options;
    if (task_layout_is_masks(task->layout) || task->layout == LAYOUT_SAM)
        competing.class_count = 0;
    /* Without a threshold keep all of SAM's masks, even if their scores are negative. */
    if (task->layout == LAYOUT_SAM && !(options->confidence > 0))
        competing.confidence = -INFINITY;
    struct task_geometry own = *geometry;
    if (task->layout == LAYOUT_SCRFD || task->layout == LAYOUT_SCRFD_FLAT)
        own.gain_x = own.gain_y; /* InsightFace has one scale for both sides */
    struct candidates candidates = {.task = task,
                                    .options = &competing,
                                    .geometry = &own,
                                    .least.score = -INFINITY,
                                    .is_oriented = task->kind == TASK_ORIENTED};
    const enum status status = find_boxes(outputs, options, &candidates, err);
    *ret = candidates.found;
    return status;
}
