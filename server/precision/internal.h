/* Private to server/precision/. */
#pragma once

#include "engine/graph/graph.h"
#include "models/quantize/outputs.h"
#include "server/precision/precision.h"
#include "server/precision/probes.h"

/* ---- trial.c ---- */

enum { REFERENCE, CANDIDATE, SIDES };

/* On a CPU, where a cost is CPU time, other work on the machine changes it by less than this
 * factor: a greater difference needs no further round. Runs on a GPU are timed by the clock, which
 * other work can change by more. */
#define SPEED_CLEAR 2.0

/* The costs of fp32 and a candidate, which run in turns. Zeroed before the first round. After the
 * first round, which warms up, the least cost of each counts. */
struct speed {
    int rounds;
    double least[SIDES];
    double spent_ms; /* on all runs so far; set by the caller */
};

void speed_add(struct speed *speed, double fp32_cost, double candidate_cost);
double speed_gain(const struct speed *speed); /* how many times as fast the candidate is */
bool speed_is_known(const struct speed *speed, bool is_cpu); /* no further round is needed */

struct trial_input {
    const struct model *model;
    struct session_options options; /* of the caller of precision_try() */
    struct probes *probes;
    struct session *reference; /* fp32 */
    const struct graph *int8;  /* the model's 8-bit form; NULL: the model's own graph */
    const struct precision_gate *gate;
    double cpu_deadline_ms; /* CPU time of this thread when the trials' time is over */
};

/* Runs the candidate against input->reference. If it does not compile or run, the outcome is
 * TRIAL_FAILED, and if the time is over before the verdict, TRIAL_COSTLY; the call succeeds.
 * STATUS_CANCELLED; STATUS_NO_MEMORY, STATUS_DEVICE_MEMORY. */
enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err) MUST_USE;

/* ---- choice_store.c ---- */

/* Reads what earlier processes measured; writes what this one has measured since. Both log a
 * failure. Nothing for NULL. */
void cache_read(const char *folder);
void cache_write(const char *folder);

/* A hash of everything that a choice depends on, except the CPU and the build: graph,
 * preprocessing, calibration images, device, threads. The batch size is left out, so that all
 * commands share one choice. */
struct graph_hash choice_key_of(const struct model *model, const struct session_options *options);

/* Looks up a choice; false, with *ret unchanged, if there is none or its text is invalid. */
bool choice_find(const struct graph_hash *key, struct precision_choice *ret);
void choice_keep(const struct graph_hash *key, const struct precision_choice *choice);
