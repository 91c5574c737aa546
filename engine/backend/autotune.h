/* The autotuner: runs candidates in turns and chooses the quickest, or tells what each costs.
 *
 * Candidate 0 is the incumbent: what a rule would take without a measurement. The caller says how a
 * candidate is run and timed; the autotuner has no clock. This is its one rule for noise:
 *
 * - A cost is CPU time wherever the work takes CPU time: other work on the machine hardly adds to
 *   it. Only on a GPU it is the time by the clock.
 * - Candidates run in turns, and each round begins with another one, so that a machine that changes
 *   its pace changes it for all of them.
 * - A candidate's first run warms up. Its cost counts only as long as there is no other.
 * - After that the least cost counts: whatever else the machine does only adds to a cost.
 * - From the second round on, a candidate whose cost is more than twice the least is left out
 *   (unless autotune.all).
 * - The incumbent stays unless another candidate's cost is clearly less (autotune.clear).
 * - When the budget is spent no further round begins. In the warm-up, which may be the longest
 *   part, no further candidate begins; those that did not run are not chosen (unless
 *   autotune.all: then each runs once).
 *
 * The same costs always give the same choice. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

#define AUTOTUNE_CANDIDATES 64

struct autotune_run {
    double cost;  /* of the candidate, in the caller's unit; INFINITY: the candidate cannot run */
    double spent; /* what the run took of the budget, in the budget's unit; INFINITY: no
                     further round begins */
};

struct autotune {
    size_t count;  /* of candidates: 1 … AUTOTUNE_CANDIDATES */
    int rounds;    /* after the warm-up */
    double clear;  /* another candidate costs less than this share of the incumbent's cost */
    double budget; /* in the unit of autotune_run.spent; INFINITY: none */
    bool all;      /* the costs of all candidates are wanted, not only the choice: none is left
                      out, and each runs at least once */
    enum status (*run)(void *context, size_t candidate, struct autotune_run *ret,
                       struct error *err);
    void *context;
};

/* *ret_chosen: index of the candidate to take; costs[i]: what counts for candidate i, INFINITY
 * where it cannot run or did not. Where no candidate can run, costs[*ret_chosen] is INFINITY.
 * Errors: those of run(), which end the measurement. */
enum status autotune_choose(const struct autotune *tune, double *costs, size_t *ret_chosen,
                            struct error *err) MUST_USE;
