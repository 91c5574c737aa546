/* Converts a detector's outputs to boxes in pixels of the photo. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

/* The pixels of a class, or of the object in a box. */
struct segment {
    uint32_t index; /* class */
    uint64_t area;  /* pixels of the photo */
    char *counts;   /* COCO's compressed run lengths, column by column, terminated */
};

struct detection {
    float x1, y1, x2, y2; /* corners in pixels of the photo, before the rotation by `angle` */
    float angle;       /* TASK_ORIENTED: radians from x towards y, around the centre; otherwise 0 */
    float score;       /* 0 … 1 */
    uint32_t index;    /* class */
    uint32_t place;    /* index of the candidate in the outputs; breaks ties between scores */
    uint32_t track_id; /* number of the tracked object (tracker.h); 0: none */
    struct segment mask; /* TASK_INSTANCES, TASK_MASKS; without a mask `counts` is NULL */
};

/* A key point. */
struct task_point {
    float x, y;  /* pixels of the photo, clipped to the photo. Points of faces and of heatmaps may
                    lie outside, by at most the photo's side */
    float score; /* 0 … 1; negative: the model gives no score */
};

/* Zeroed: empty. Free with detections_done(). */
struct detections {
    struct detection *items; /* best first */
    size_t count;
    size_t capacity;           /* private */
    struct task_point *points; /* TASK_POSE, TASK_TEXT_BOXES: `point_count` per item */
    size_t point_count;
};

void detections_done(struct detections *detections);

/* Removes the boxes with negative scores, with their points and masks. */
void detections_drop(struct detections *detections);

/* Returns the intersection over union of boxes without an angle; 0 if both are empty. */
double detection_overlap(const struct detection *a, const struct detection *b);

/* Computes the corners of a rotated box, in Ultralytics' order: bottom right, top right, top left,
 * bottom left if the angle is 0. */
void detection_corners(const struct detection *box, float ret[static 4][2]);

/* The photo's position in the model's input: pixel (x, y) of the upright photo is at
 * (x * gain_x + left, y * gain_y + top) of the input. */
struct task_geometry {
    float gain_x, gain_y, left, top;
    float photo_width, photo_height, input_width, input_height;
};

/* Only the best candidates are tested for overlaps, to bound the time per photo. The limit of
 * oriented boxes is lower, because each is compared with all better boxes, not only kept ones. */
#define DETECT_MAX_CANDIDATES 2560
#define DETECT_MAX_ORIENTED   1024

/* Decodes the boxes of one image from its `outputs`: task->output_count of them in the layout's
 * order. `options` must be complete. *ret has the boxes that the options allow, best first, clipped
 * to the photo (except oriented ones), without boxes that are not finite; the caller frees it, also
 * after an error. STATUS_INVALID: an output does not have the layout's shape;
 * STATUS_NUMERIC: there is no box, and an output is mostly NaN or infinite; STATUS_NO_MEMORY;
 * STATUS_TOO_LARGE: too many mask pixels. */
enum status detect_decode(const struct task *task, const struct task_rows *outputs,
                          const struct task_options *options, const struct task_geometry *geometry,
                          struct detections *ret, struct error *err) MUST_USE;
