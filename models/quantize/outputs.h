/* The outputs of a session that are compared with another session's: class scores of a classifier,
 * otherwise all outputs. */
#pragma once

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/quantize/agreement.h"

/* Wall-clock time of a run, and its cost in milliseconds (engine/backend/autotune.h). On a GPU the
 * cost is the wall-clock time; on a CPU it is the average CPU time of the threads, because other
 * work on the machine changes the wall-clock time. CPU time underestimates the serial parts of a
 * run for both precisions: it can exaggerate a gain, but never turns a loss into a gain. */
struct run_time {
    double ms, cost;
};

/* Outputs first … end - 1 are compared. `tensors`, `layouts` and `each` describe the last run. */
struct outputs {
    bool is_vector; /* one output with class scores, as labels or a Softmax show */
    size_t first, end, count;
    const struct tensor **tensors;
    struct agreement_tensor *layouts;
    size_t each; /* how many numbers of an image are compared */
};

enum status outputs_init(struct outputs *outputs, const struct model *model,
                         const struct session *session, struct error *err) MUST_USE;
void outputs_done(struct outputs *outputs);

/* Runs the session on the `images` images in `values`. */
enum status outputs_run(struct outputs *outputs, struct session *session, const void *values,
                        int images, struct run_time *ret, struct error *err) MUST_USE;

/* Copies the compared numbers of the last run, which had `images` images, to `dst`, image after
 * image. */
void outputs_read(const struct outputs *outputs, int images, float *dst);

/* Returns the layout of one image's numbers in an output of `images` images. With 3 or 4 dimensions
 * the channel axis is the last one if it is the shortest, otherwise the second: [N, H, W, C] or [N,
 * C, H, W]; [N, boxes, numbers] or [N, numbers, boxes], because there are many boxes. Otherwise
 * there is one channel. */
struct agreement_tensor outputs_layout(const struct tensor *tensor, int images);

/* Adds an image's numbers to a comparison, in the layout of the last run. */
void outputs_compare(const struct outputs *outputs, const float *reference, const float *candidate,
                     bool is_probabilities, struct agreement *ret);
