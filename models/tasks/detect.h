/* A detector's outputs to boxes in pixels of the photo. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

struct detection {
    float x1, y1, x2, y2; /* pixels, corners */
    float score;          /* 0 … 1 */
    uint32_t index;       /* class */
    uint32_t place;       /* which candidate of the model it was; breaks ties of scores */
};

/* Zeroed: none. Free with detections_done. */
struct detections {
    struct detection *items; /* best first */
    size_t count;
    size_t capacity; /* private */
};

void detections_done(struct detections *detections);

/* How the photo lies in the model's input: a pixel (x, y) of the upright photo is at
 * (x * gain_x + left, y * gain_y + top) of the input. */
struct task_geometry {
    float gain_x, gain_y, left, top;
    float photo_width, photo_height, input_width, input_height;
};

/* Candidates that are looked at for overlaps, at most: the best ones. It bounds the time of one
 * photo, whatever a model puts out. */
#define DETECT_MAX_CANDIDATES 4096

/* The boxes of one image: of its `outputs`, task->output_count of them in the layout's order, those
 * above the thresholds of `options` (complete), best first, cut to the photo. Numbers that are not
 * finite are no boxes. On success the caller frees *ret. STATUS_SHAPE when an output has not the
 * layout's shape; STATUS_NO_MEMORY. */
enum status detect_decode(const struct task *task, const struct task_rows *outputs,
                          const struct task_options *options, const struct task_geometry *geometry,
                          struct detections *ret, struct error *err) MUST_USE;
