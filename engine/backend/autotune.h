/* The autotuner: measures candidates in turns and chooses the fastest, or reports the cost of each.
 *
 * Candidate 0 is the incumbent: the choice that a rule makes without measurements. The caller runs
 * and times candidates; the autotuner has no clock. It handles noise as follows:
 *
 * - A cost is CPU time on a CPU, which other programs hardly affect, and wall-clock time on a GPU.
 * - Candidates run in turns. Each round starts with the next candidate, so that a change in the
 *   machine's speed affects all candidates.
 * - A candidate's first run is a warm-up. Its cost counts only if there is no second run.
 * - From the second run on, a candidate's lowest cost counts: other work can only increase a cost.
 * - From the second round on, candidates that cost more than twice the lowest cost are skipped
 *   (unless autotune.all is set).
 * - The incumbent stays unless another candidate's cost is clearly lower (autotune.clear).
 * - When the budget is spent, no further round starts, and no further candidate warms up. A
 *   candidate that did not run is not chosen (with autotune.all each runs at least once).
 *
 * The same costs always give the same choice. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

#define AUTOTUNE_CANDIDATES 64

struct autotune_run {
    double cost;  /* in the caller's unit; INFINITY: the candidate cannot run */
    double spent; /* what the run used of autotune.budget; INFINITY: start no further round */
};

struct autotune {
    size_t count;  /* number of candidates, 1 … AUTOTUNE_CANDIDATES */
    int rounds;    /* number of rounds after the warm-up */
    double clear;  /* a candidate wins if its cost is below this fraction of the incumbent's cost */
    double budget; /* INFINITY: no limit */
    bool all;      /* the caller needs all costs: skip no candidate, run each at least once */
    enum status (*run)(void *context, size_t candidate, struct autotune_run *ret,
                       struct error *err);
    void *context;
};

/* *ret_chosen is the index of the chosen candidate. costs[i] is the cost of candidate i, INFINITY
 * if it cannot run or did not run. If no candidate can run, costs[*ret_chosen] is INFINITY. An
 * error of run() ends the measurement and is returned. */
enum status autotune_choose(const struct autotune *tune, double *costs, size_t *ret_chosen,
                            struct error *err) MUST_USE;
