/* Private to models/tasks: the decoders of detectors' outputs, one for each layout.
 *
 * Each adds the candidates of one image. Boxes are in pixels of the model's input. STATUS_INVALID
 * if an output has not the layout's shape. */
#pragma once

#include "models/tasks/candidates.h"

enum status decode_yolov8(const struct task_rows *outputs, struct candidates *candidates,
                          struct error *err) MUST_USE;

/* YOLOv5, and YOLOX exported with --decode_in_inference. */
enum status decode_yolov5(const struct task_rows *outputs, struct candidates *candidates,
                          struct error *err) MUST_USE;
enum status decode_yolox(const struct task_rows *outputs, const struct task_geometry *geometry,
                         struct candidates *candidates, struct error *err) MUST_USE;
enum status decode_yolo_final(const struct task_rows *outputs, struct candidates *candidates,
                              struct error *err) MUST_USE;
enum status decode_rtdetr(const struct task_rows *outputs, const struct task_geometry *geometry,
                          struct candidates *candidates, struct error *err) MUST_USE;
enum status decode_rtdetr_final(const struct task_rows *outputs,
                                const struct task_geometry *geometry, struct candidates *candidates,
                                struct error *err) MUST_USE;
enum status decode_detr(const struct task_rows *outputs, const struct task_geometry *geometry,
                        bool is_sigmoid, struct candidates *candidates, struct error *err) MUST_USE;

/* LAYOUT_PANOPTIC and LAYOUT_MASKFORMER. Candidates have no box yet: query_masks_add() makes them.
 */
enum status decode_mask_queries(const struct task_rows *outputs, bool is_panoptic,
                                struct candidates *candidates, struct error *err) MUST_USE;

/* Boxes are in points of the map, with an angle, until text_corners() sets the corners of those
 * that are kept, and the boxes around these. STATUS_NO_MEMORY, too. */
enum status decode_text_map(const struct task *task, const struct task_rows *outputs,
                            struct candidates *candidates, struct error *err) MUST_USE;
enum status text_corners(const struct task_rows *outputs, const struct task_geometry *geometry,
                         struct detections *found, struct error *err) MUST_USE;
enum status decode_yunet(const struct task_rows *outputs, const struct task_geometry *geometry,
                         struct candidates *candidates, struct error *err) MUST_USE;
enum status decode_torchvision(const struct task_rows *outputs, struct candidates *candidates,
                               struct error *err) MUST_USE;
enum status decode_tensorflow(const struct task_rows *outputs, size_t output_count,
                              const struct task_geometry *geometry, struct candidates *candidates,
                              struct error *err) MUST_USE;

/* The numbers behind the box, scores and class of a candidate: first[i * step]. */
struct extra_numbers {
    const float *first;
    size_t step;
};
struct extra_numbers detect_extras(const struct task *task, const struct task_rows *rows,
                                   uint32_t place);

/* The key points of a candidate, x, y in pixels of the input. */
void yunet_points(const struct task_rows *outputs, const struct task_geometry *geometry,
                  uint32_t place, float ret[static 2 * YUNET_POINTS]);

/* Adds the masks of the boxes, which are in pixels of the photo. YOLO's boxes whose mask is empty
 * are dropped. STATUS_INVALID; STATUS_NO_MEMORY; STATUS_TOO_LARGE: too many pixels in all masks. */
enum status instances_add(const struct task *task, const struct task_rows *outputs,
                          const struct task_geometry *geometry, struct detections *found,
                          struct error *err) MUST_USE;

/* Pixels of all masks of a photo: about three seconds of work on one core, and 20 masks of 50
 * megapixels. A client who lowers the thresholds gets as many boxes as max_detections allows. */
#define MAX_MASK_PIXELS 1e9

/* STATUS_TOO_LARGE if `pixels` is more than that. */
enum status instances_check_work(size_t count, double pixels, struct error *err) MUST_USE;

/* The same for layouts with masks of queries: finds the masks of the candidates, drops those that
 * the framework drops or the options exclude, sets their boxes, and sorts them, best first. */
enum status query_masks_add(const struct task *task, const struct task_rows *outputs,
                            const struct task_options *options,
                            const struct task_geometry *geometry, struct detections *found,
                            struct error *err) MUST_USE;

/* The box with this centre and size. */
static inline struct detection decode_centred(float x, float y, float width, float height)
{
    return (struct detection){
        .x1 = x - width / 2, .y1 = y - height / 2, .x2 = x + width / 2, .y2 = y + height / 2};
}

/* Reads a class number from a float; false if it is not a valid class number. */
static inline bool decode_class(float number, uint32_t *ret)
{
    if (!(number >= 0) || number > 1e9f)
        return false;
    *ret = (uint32_t)number;
    return true;
}
