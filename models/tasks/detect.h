/* Converts a detector's outputs to boxes in pixels of the photo. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

struct detection {
    float x1, y1, x2, y2; /* pixels, corners; with an angle: before the rotation */
    float angle;          /* TASK_ORIENTED: radians from x to y, around the centre; else 0 */
    float score;          /* 0 … 1 */
    uint32_t index;       /* class */
    uint32_t place;       /* number of the candidate in the outputs; breaks ties of scores */
    uint32_t track_id;    /* of the object that it belongs to (tracker.h); 0: none */
};

/* The area of a class, or of the object in a box. */
struct segment {
    uint32_t index; /* class */
    uint64_t area;  /* pixels of the photo */
    char *counts;   /* COCO's compressed run lengths, column by column, terminated */
};

/* A key point. */
struct task_point {
    float x, y;  /* pixels of the photo, clipped to it; of a face not, so that it can be aligned:
                    outside by its side at most */
    float score; /* 0 … 1; negative: the model gives none */
};

/* Zeroed: none. Free with detections_done. */
struct detections {
    struct detection *items; /* best first */
    size_t count;
    size_t capacity;           /* private */
    struct task_point *points; /* TASK_POSE, TASK_TEXT_BOXES: `point_count` for each item, in its
                                  order */
    size_t point_count;
    struct segment *masks; /* TASK_INSTANCES: one for each item, in its order */
};

void detections_done(struct detections *detections);

/* Removes the boxes with negative scores, with their points and masks. */
void detections_drop(struct detections *detections);

/* Intersection over union of boxes without an angle; 0 if both are empty. */
double detection_overlap(const struct detection *a, const struct detection *b);

/* The corners of a box with its angle: bottom right, top right, top left, bottom left where the
 * angle is 0, as Ultralytics orders them. */
void detection_corners(const struct detection *box, float ret[static 4][2]);

/* The photo's position in the model's input: pixel (x, y) of the upright photo is at
 * (x * gain_x + left, y * gain_y + top) of the input. */
struct task_geometry {
    float gain_x, gain_y, left, top;
    float photo_width, photo_height, input_width, input_height;
};

/* Overlaps are searched among this many candidates, the best ones. This bounds the time per photo
 * for any output. An oriented box is compared with all better ones, not only with those that are
 * kept. */
#define DETECT_MAX_CANDIDATES 2560
#define DETECT_MAX_ORIENTED   1024

/* Decodes the boxes of one image from its `outputs`: task->output_count of them in the layout's
 * order. `options` must be complete. *ret: the boxes that the options keep, best first, clipped to
 * the photo (oriented ones are not), without boxes that are not finite; the caller frees it.
 * STATUS_INVALID if an output has not the layout's shape; STATUS_NUMERIC if there is no box and
 * most numbers of an output are NaN or infinite; STATUS_NO_MEMORY. */
enum status detect_decode(const struct task *task, const struct task_rows *outputs,
                          const struct task_options *options, const struct task_geometry *geometry,
                          struct detections *ret, struct error *err) MUST_USE;
