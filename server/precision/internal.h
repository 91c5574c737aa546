/* Private to server/precision/. */
#pragma once

#include "engine/graph/graph.h"
#include "models/quantize/outputs.h"
#include "server/precision/precision.h"
#include "server/precision/probes.h"

/* ---- trial.c ---- */

enum { REFERENCE, CANDIDATE, SIDES };

/* On a CPU no further round is needed if costs differ by more than this factor, because a cost is
 * CPU time, and other work on the machine changes it less. Runs on a GPU are timed by the clock,
 * and other work can change these times more. */
#define SPEED_CLEAR 2.0

/* The costs of fp32 and a candidate, which run in turns. Zeroed before the first round, which is a
 * warm-up; afterwards the lowest cost of each counts. */
struct speed {
    int rounds;
    double least[SIDES];
    double spent_ms; /* time of all runs so far; set by the caller */
};

void speed_add(struct speed *speed, double fp32_cost, double candidate_cost);
double speed_gain(const struct speed *speed); /* the candidate's speed divided by fp32's */
bool speed_is_known(const struct speed *speed, bool is_cpu); /* no further round is needed */

struct trial_input {
    const struct model *model;
    struct session_options options; /* of precision_try()'s caller */
    struct probes *probes;
    struct session *reference; /* fp32 */
    const struct graph *int8;  /* the model's 8-bit form; NULL: the model's own graph */
    const struct precision_gate *gate;
    double cpu_deadline_ms; /* CPU time of this thread at which the trials must end */
};

/* Runs the candidate against input->reference. The outcome is TRIAL_FAILED if the candidate does
 * not compile or run, and TRIAL_COSTLY if the time ends before the verdict. The call succeeds in
 * both cases. STATUS_CANCELLED; STATUS_NO_MEMORY, STATUS_DEVICE_MEMORY. */
enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err) MUST_USE;

/* ---- choice_store.c ---- */

/* Reads the measurements of earlier processes, or writes the new ones of this process. Both log a
 * failure. With a NULL folder they do nothing. */
void cache_read(const char *folder);
void cache_write(const char *folder);

/* A hash of everything that a choice depends on, except the CPU and the build: graph,
 * preprocessing, calibration images, device, threads. It does not include the batch size, so that
 * all commands share one choice. */
struct graph_hash choice_key_of(const struct model *model, const struct session_options *options);

/* Looks up a choice. False, with *ret unchanged, if there is none or its text is invalid. */
bool choice_find(const struct graph_hash *key, struct precision_choice *ret);
void choice_keep(const struct graph_hash *key, const struct precision_choice *choice);
