/* Private to server/precision/. */
#pragma once

#include "engine/backend/autotune.h"
#include "engine/backend/tuning_store.h"
#include "engine/graph/graph.h"
#include "server/precision/agreement.h"
#include "server/precision/precision.h"
#include "server/precision/probes.h"

/* ---- candidates.c ---- */

/* Finds the precisions besides fp32 that may be faster on this device for this graph. On a GPU they
 * are ordered fastest first, so that no trial is needed after the first that passes. */
size_t candidates_find(struct device_id device, const struct graph *graph, bool can_calibrate,
                       enum precision ret[PRECISION_COUNT]);

/* ---- calibrated.c ---- */

/* Whether trials may make an 8-bit form of the model: its folder has calibration/, and the cache a
 * place to keep the form. */
bool calibrated_is_possible(const struct model *model, const struct session_options *session,
                            const char *cache);

/* Makes it and keeps it under the key of the choice. *ret: the caller's; *ret_photos: how many
 * photos it was calibrated with. Errors: those of quantize_model() and onnx_write_file(). */
enum status calibrated_make(const struct model *model, const struct precision_options *options,
                            const struct session_options *session, const struct graph_hash *key,
                            struct graph **ret, int *ret_photos, struct error *err) MUST_USE;

bool calibrated_exists(const struct graph_hash *key, const char *cache);
/* *ret: the caller's. Errors: those of onnx_load_file(). */
enum status calibrated_read(const struct graph_hash *key, const char *cache, struct graph **ret,
                            struct error *err) MUST_USE;

/* ---- choice.c ---- */

/* Writes choice->why from the trials, beginning with the trial of the chosen precision. */
void choice_explain(struct precision_choice *choice);

/* ---- trial.c ---- */

struct trial_input {
    const struct model *model;
    struct session_options options; /* of the caller of precision_try() */
    struct probes *probes;
    struct session *reference; /* fp32 */
    const struct graph *int8;  /* the model's 8-bit form; NULL: the model's own graph */
    const struct precision_gate *gate;
    double cpu_deadline_ms; /* CPU time of this thread when the trials' time is over */
};

/* Wall-clock time of a run, and its cost (engine/backend/autotune.h). On a GPU the cost is the
 * wall-clock time. On a CPU it is the CPU time of all threads divided by their number, because the
 * wall-clock time depends on other work on the machine. CPU time counts serial parts of a pass too
 * little while the other threads sleep, but equally for both sides of a trial: it can make a gain
 * look greater, but never make a loss look like a gain. */
struct run_time {
    double ms, cost;
};

/* Compares the speed of a baseline (side 0) and a candidate (side 1), which run alternately. */
struct speed_comparison {
    enum status (*run)(void *context, size_t side, struct autotune_run *ret, struct error *err);
    void *context;
    double budget_ms;  /* no round begins once the runs have cost this; the first always runs */
    double clear_gain; /* a gain of at least this, or at most its reciprocal, ends the comparison
                          after a few rounds; INFINITY: run all rounds */
    double least[2];   /* private, zeroed: least cost of each side, and runs so far */
    int runs;
};

/* *ret: the candidate's speed divided by the baseline's. Errors: those of `run`. */
enum status trial_compare_speed(struct speed_comparison *comparison, double *ret,
                                struct error *err) MUST_USE;

/* Runs the candidate against input->reference. If it does not compile or run, the outcome is
 * TRIAL_FAILED, and if the time is over before the verdict, TRIAL_COSTLY; the call succeeds.
 * STATUS_CANCELLED; STATUS_NO_MEMORY, STATUS_DEVICE_MEMORY. */
enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err) MUST_USE;

/* ---- outputs.c ---- */

/* The outputs of a session that are compared: [first, end). */
struct outputs {
    bool is_vector; /* one output: class scores, which the model's labels or a Softmax tell */
    size_t first, end, count;
    const struct tensor **tensors;    /* of the last run */
    struct agreement_tensor *layouts; /* by outputs_each() */
};

enum status outputs_init(struct outputs *outputs, const struct model *model,
                         const struct session *session, struct error *err) MUST_USE;
void outputs_done(struct outputs *outputs);

/* Runs the session on the `images` images in `values`. */
enum status outputs_run(struct outputs *outputs, struct session *session, const void *values,
                        int images, struct run_time *ret, struct error *err) MUST_USE;
/* For the last run, which had `images` images: returns how many numbers of each image are compared,
 * and copies these numbers to `dst`, image after image. */
size_t outputs_each(struct outputs *outputs, int images);
void outputs_read(struct outputs *outputs, int images, float *dst);

/* The layout of one image's numbers in an output of `images` images. The channel axis is the last
 * one if it is the shortest, else the second: [N, H, W, C] or [N, C, H, W]; [N, boxes, numbers] or
 * [N, numbers, boxes], because there are many boxes. */
struct agreement_tensor outputs_layout(const struct tensor *tensor, int images);

/* Adds an image's numbers to a comparison; their layout is that of the last run. */
void outputs_compare(const struct outputs *outputs, const float *reference, const float *candidate,
                     bool is_probabilities, struct agreement *ret);

/* ---- choice_store.c ---- */

/* Reads what earlier processes measured; writes what this one has measured since. `option` as in
 * tuning_folder(). */
void cache_read(const char *option);
void cache_write(const char *option);

/* A hash of everything that a choice depends on, except the CPU and the build: graph,
 * preprocessing, calibration images, device, threads. The batch size is left out, so that all
 * commands share one choice. */
struct graph_hash choice_key_of(const struct model *model, const struct session_options *options);

/* Looks up a choice; returns false, and leaves *ret alone, if there is none or its text is invalid.
 */
bool choice_find(const struct graph_hash *key, struct precision_choice *ret);
void choice_keep(const struct graph_hash *key, const struct precision_choice *choice);
