/* Converts a detector's outputs to boxes in pixels of the photo. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

struct detection {
    float x1, y1, x2, y2; /* pixels, corners */
    float score;          /* 0 … 1 */
    uint32_t index;       /* class */
    uint32_t place;       /* number of the candidate in the outputs; breaks ties of scores */
};

/* Zeroed: none. Free with detections_done. */
struct detections {
    struct detection *items; /* best first */
    size_t count;
    size_t capacity; /* private */
};

void detections_done(struct detections *detections);

/* The photo's position in the model's input: pixel (x, y) of the upright photo is at
 * (x * gain_x + left, y * gain_y + top) of the input. */
struct task_geometry {
    float gain_x, gain_y, left, top;
    float photo_width, photo_height, input_width, input_height;
};

/* Overlaps are searched among this many candidates, the best ones. This bounds the time per photo
 * for any output. */
#define DETECT_MAX_CANDIDATES 2560

/* Decodes the boxes of one image from its `outputs`: task->output_count of them in the layout's
 * order. `options` must be complete. *ret: the boxes that the options keep, best first, clipped to
 * the photo, without boxes that are not finite; the caller frees it. STATUS_INVALID if an output
 * has not the layout's shape; STATUS_NO_MEMORY. */
enum status detect_decode(const struct task *task, const struct task_rows *outputs,
                          const struct task_options *options, const struct task_geometry *geometry,
                          struct detections *ret, struct error *err) MUST_USE;
