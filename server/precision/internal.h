/* Private to server/precision/. */
#pragma once

#include "engine/backend/autotune.h"
#include "engine/backend/tuning_store.h"
#include "engine/graph/graph.h"
#include "server/precision/agreement.h"
#include "server/precision/precision.h"
#include "server/precision/probes.h"

/* ---- candidates.c ---- */

/* Precisions beside fp32 that the device is good at and the graph has a use for. On a GPU the first
 * that passes is the fastest: the others need no trial then. */
size_t candidates_find(struct device_id device, const struct graph *graph,
                       enum precision ret[PRECISION_COUNT]);

/* ---- choice.c ---- */

/* Writes choice->why from its trials: the one that was chosen first. */
void choice_explain(struct precision_choice *choice);

/* ---- trial.c ---- */

struct trial_input {
    const struct model *model;
    struct session_options options; /* that the caller of precision_open() gave */
    struct probes *probes;
    struct session *reference; /* fp32 */
    double progress, share;    /* of the whole choice when the trial begins; that it is of it */
};

/* How long a run took by the clock, and what it cost (engine/backend/autotune.h): CPU time, and on
 * a GPU the time by the clock. CPU time is that of all threads over their number. A part of a pass
 * that only one thread runs counts too little where the others sleep meanwhile, but as much for
 * both sides of a trial: it makes a gain look greater, never a loss look like a gain. Time by the
 * clock would count it right, and would depend on what else the machine does. */
struct run_time {
    double ms, cost;
};

/* A baseline (0) and a candidate (1) that take turns. */
struct speed_comparison {
    enum status (*run)(void *context, size_t side, struct autotune_run *ret, struct error *err);
    void *context;
    double budget_ms;  /* no turn begins once the runs have cost that, but for the first of each */
    double clear_gain; /* a gain of this or more, or of its reciprocal or less, after a few turns
                          ends them; INFINITY: none does */
    double least[2];   /* private, from 0: costs of the sides, and runs so far */
    int runs;
};

/* *ret: how many times as fast as the baseline the candidate is. Errors: those of `run`. */
enum status trial_compare_speed(struct speed_comparison *comparison, double *ret,
                                struct error *err) MUST_USE;

/* Runs the candidate beside input->reference. One that does not compile or run is an outcome, not
 * an error. *ret_session is set for one that has passed: it is the caller's to session_finish().
 * STATUS_CANCELLED; STATUS_NO_MEMORY, STATUS_DEVICE_MEMORY. */
enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct session **ret_session,
                      struct error *err) MUST_USE;

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

/* A run of `images` images that lie in `values`. */
enum status outputs_run(struct outputs *outputs, struct session *session, const void *values,
                        int images, struct run_time *ret, struct error *err) MUST_USE;
/* Of the last run, which was of `images` images: how many numbers of each are compared, and these,
 * image after image. */
size_t outputs_each(struct outputs *outputs, int images);
void outputs_read(struct outputs *outputs, int images, float *dst);

/* How the numbers of one of `images` images lie. Channels are the second axis of [N, C, H, W] and
 * the last of [N, H, W, C], told by being shorter than the others; of [N, boxes, numbers] and [N,
 * numbers, boxes] they are the shorter one, since boxes are many. */
struct agreement_tensor outputs_layout(const struct tensor *tensor, int images);

/* Adds an image's numbers to a comparison; their layout is that of the last run. */
void outputs_compare(const struct outputs *outputs, const float *reference, const float *candidate,
                     bool is_probabilities, struct agreement *ret);

/* ---- cache.c ---- */

/* Makes the process know what earlier ones found; keeps what it found since. `option` as in
 * tuning_folder(). */
void cache_read(const char *option);
void cache_write(const char *option);

/* Everything a choice rests on beside the CPU and this build of lensd: graph, preparation,
 * calibration images, device, threads. Whatever batch is served or profiled: all commands share
 * one outcome. */
struct graph_hash choice_key_of(const struct model *model, const struct session_options *options);

/* Whether a believable choice is known under that key; *ret is set only then. */
bool choice_find(const struct graph_hash *key, struct precision_choice *ret);
void choice_keep(const struct graph_hash *key, const struct precision_choice *choice);
