/* The autotuner's rounds and its choice (autotune.h). */
#include "engine/backend/autotune.h"

#include <assert.h>
#include <math.h>

/* A candidate that is this many times slower than the best one gets no further rounds. */
#define FAR_BEHIND 2.0

static double least_of(const double *costs, size_t count)
{
    double least = INFINITY;
    for (size_t i = 0; i < count; i++)
        least = fmin(least, costs[i]);
    return least;
}

static enum status warm_up(const struct autotune *tune, double *costs, double *spent,
                           struct error *err)
{
    for (size_t i = 0; i < tune->count; i++)
        costs[i] = INFINITY;
    for (size_t i = 0; i < tune->count && (i == 0 || tune->all || *spent < tune->budget); i++) {
        struct autotune_run run = {.cost = INFINITY};
        TRY(tune->run(tune->context, i, &run, err));
        costs[i] = run.cost;
        *spent += run.spent;
    }
    return STATUS_OK;
}

static enum status run_round(const struct autotune *tune, int round, double *costs, double *spent,
                             struct error *err)
{
    const double most =
        round == 0 || tune->all ? INFINITY : FAR_BEHIND * least_of(costs, tune->count);
    for (size_t turn = 0; turn < tune->count; turn++) {
        const size_t i = ((size_t)round + turn) % tune->count;
        struct autotune_run run = {.cost = INFINITY};
        if (!isfinite(costs[i]) || costs[i] > most)
            continue;
        TRY(tune->run(tune->context, i, &run, err));
        *spent += run.spent;
        if (round == 0 || !isfinite(run.cost) || run.cost < costs[i])
            costs[i] = run.cost;
    }
    return STATUS_OK;
}

enum status autotune_choose(const struct autotune *tune, double *costs, size_t *ret_chosen,
                            struct error *err)
{
    double spent = 0;
    size_t best = 0;
    assert(tune->count > 0 && tune->count <= AUTOTUNE_CANDIDATES);
    TRY(warm_up(tune, costs, &spent, err));
    for (int round = 0; round < tune->rounds && spent < tune->budget; round++)
        TRY(run_round(tune, round, costs, &spent, err));
    for (size_t i = 1; i < tune->count; i++)
        if (costs[i] < costs[0] * tune->clear && costs[i] < costs[best])
            best = i;
    *ret_chosen = best;
    return STATUS_OK;
}
