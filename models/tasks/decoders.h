/* Private to models/tasks: candidate boxes, the table of layouts, and the decoders. */
#pragma once

#include "models/tasks/detect.h"

/* The candidates of one image. */
struct candidates {
    struct detections found;
    const struct task *task;
    const struct task_options *options; /* not task->options, because a request may change them */
    const struct task_geometry *geometry;
    bool is_oriented;       /* TASK_ORIENTED */
    struct detection least; /* candidates after this one are dropped; its first score: -INFINITY */
    bool is_out_of_memory;
};

/* Adds a candidate, the `place`th of the outputs, if its score is above options->confidence, the
 * options allow its class, and its box is finite. Reads only the sides and the angle of `box`. */
void candidates_add(struct candidates *candidates, struct detection box, float score, size_t index,
                    size_t place);

/* Sorts the candidates, best first, and drops all after the first DETECT_MAX_CANDIDATES (oriented:
 * DETECT_MAX_ORIENTED). With options->iou below 1, then drops each candidate that overlaps a better
 * one of its class (with `agnostic`, of any class) by more than options->iou. Oriented boxes are
 * compared by probabilistic IoU, also with better boxes that were dropped. Keeps the best
 * max_detections. */
void candidates_suppress(struct candidates *candidates, const struct task_options *options);

/* Decodes a detector's outputs and adds the candidates of one image. Boxes are in pixels of the
 * model's input. STATUS_INVALID if an output does not have the layout's shape; STATUS_NO_MEMORY. */
typedef enum status layout_decoder(const struct task_rows *outputs, struct candidates *candidates,
                                   struct error *err);

struct layout_entry {
    const char *name;       /* in lensd.json; "": lensd.json cannot choose the layout */
    layout_decoder *decode; /* NULL: the layout is not that of a detector */
    size_t outputs;         /* least number of the model's outputs */
    float confidence, iou;
    int max_detections;
    bool has_rows;
};

extern const struct layout_entry task_layouts[];
extern const size_t task_layout_count;

layout_decoder decode_yolov8;
layout_decoder decode_yolo_grids; /* LAYOUT_YOLOV5, _YOLOX, _YOLOX_PIXELS and _RTDETR */
layout_decoder decode_final; /* LAYOUT_YOLO_FINAL, _RTDETR_FINAL, _PADDLE(_FLAT), _YOLO_NAS_FLAT */
layout_decoder decode_detr;  /* LAYOUT_DETR, LAYOUT_DETR_SIGMOID and LAYOUT_RFDETR */
layout_decoder decode_faces; /* LAYOUT_YUNET, LAYOUT_SCRFD and LAYOUT_SCRFD_FLAT */
layout_decoder decode_heatmaps; /* LAYOUT_HEATMAPS */
layout_decoder decode_yolo_nas; /* LAYOUT_YOLO_NAS */
layout_decoder decode_words;    /* LAYOUT_OWL and LAYOUT_GROUNDING */
layout_decoder decode_lists;    /* LAYOUT_TORCHVISION, _TENSORFLOW, _RTDETR_LISTS */

/* query_masks_add() sets the boxes of these candidates later. */
layout_decoder decode_mask_queries; /* LAYOUT_PANOPTIC and LAYOUT_MASKFORMER */
layout_decoder decode_prompted;     /* LAYOUT_SAM */

/* LAYOUT_TEXT. Boxes are in points of the map, with an angle. text_corners() later sets the corners
 * of the remaining boxes, and the upright boxes around these corners. */
layout_decoder decode_text_map;
enum status text_corners(const struct task_rows *outputs, const struct task_geometry *geometry,
                         struct detections *found, struct error *err) MUST_USE;

/* The numbers of candidate `place` after its box, scores and class: first[i * step]. */
struct extra_numbers {
    const float *first;
    size_t step;
};
struct extra_numbers detect_extras(const struct task *task, const struct task_rows *rows,
                                   uint32_t place);

/* Finds the points of candidate `place` of decode_faces(): x, y in pixels of the input. */
void face_points(const struct task *task, const struct task_rows *outputs,
                 const struct task_geometry *geometry, uint32_t place,
                 float ret[static 2 * FACE_POINTS]);

/* Finds point `p` of LAYOUT_HEATMAPS: x and y in pixels of the input (0: the centre of the first
 * pixel), and the maximum of its map. */
void heatmap_point(const struct task_rows *rows, const struct task_geometry *geometry, size_t p,
                   float ret[static 3]);

/* Adds the masks of the found boxes, in pixels of the photo. Drops boxes with empty masks, except
 * torchvision's. STATUS_INVALID; STATUS_NO_MEMORY; STATUS_TOO_LARGE: too many pixels. */
enum status instances_add(const struct task *task, const struct task_rows *outputs,
                          const struct task_geometry *geometry, struct detections *found,
                          struct error *err) MUST_USE;

/* Adds masks for layouts with masks of queries. Drops candidates that the framework drops or the
 * options exclude. Sets the boxes of the remaining candidates, and sorts these, best first. */
enum status query_masks_add(const struct task *task, const struct task_rows *outputs,
                            const struct task_options *options,
                            const struct task_geometry *geometry, struct detections *found,
                            struct error *err) MUST_USE;

/* Makes a box from its corners. */
static inline struct detection decode_corners(float x1, float y1, float x2, float y2)
{
    return (struct detection){.x1 = x1, .y1 = y1, .x2 = x2, .y2 = y2};
}

/* Makes a box from its centre and size. */
static inline struct detection decode_centred(float x, float y, float width, float height)
{
    return decode_corners(x - width / 2, y - height / 2, x + width / 2, y + height / 2);
}

/* Makes a box from centre and size, given as shares of the input's sides. */
static inline struct detection decode_shares(const float *box, const struct task_geometry *geometry)
{
    return decode_centred(box[0] * geometry->input_width, box[1] * geometry->input_height,
                          box[2] * geometry->input_width, box[3] * geometry->input_height);
}

/* Returns the index of the greatest number, the first one on a tie. */
static inline size_t decode_greatest(const float *numbers, size_t count)
{
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (numbers[i] > numbers[best])
            best = i;
    return best;
}

/* Limits a number to 0 … most; NaN becomes 0. */
static inline float decode_limit(float number, float most)
{
    return number > 0 ? (number < most ? number : most) : 0;
}

static inline float detection_area(const struct detection *box)
{
    return (box->x2 - box->x1) * (box->y2 - box->y1);
}

/* Reads a class number from a float. Returns false if it is negative, NaN or above 10^9. */
static inline bool decode_class(float number, uint32_t *ret)
{
    if (!(number >= 0) || number > 1e9f)
        return false;
    *ret = (uint32_t)number;
    return true;
}
