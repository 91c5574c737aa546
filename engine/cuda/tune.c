/* Which of several ways to run a step is the fastest is found by running them, once for each shape
 * on a kind of device: networks repeat their layers, sessions their models, and what was found is
 * kept (tuned.c). */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/cuda/tuned.h"

enum {
    ROUNDS = 3,         /* the quickest counts */
    MOST_LAUNCHES = 24, /* of a round, of short kernels */
};
#define ROUND  (INT64_C(2) * 1000 * 1000)   /* ns: as many launches as fit, at least one */
#define BUDGET (INT64_C(150) * 1000 * 1000) /* ns of rounds, for all ways of a step */

struct trial {
    struct step *step;
    struct program *program;
    int launches; /* of a round */
    cudaGraphExec_t recorded;
    int64_t spent; /* ns, on rounds of all ways; not on what is loaded the first time */
};

static enum status launch_all(void *context, struct error *err)
{
    const struct trial *t = context;
    for (int i = 0; i < t->launches; i++)
        TRY(t->step->run(t->step, t->program, err));
    return STATUS_OK;
}

static enum status time_round(struct trial *t, int64_t *ret, struct error *err)
{
    const struct backend *backend = t->program->backend;
    const int64_t start = clock_now();
    if (t->recorded)
        TRY(cuda_check(cudaGraphLaunch(t->recorded, backend->stream), backend->device,
                       t->step->name, err));
    else
        TRY(launch_all(t, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, t->step->name, err));
    *ret = clock_now() - start;
    return STATUS_OK;
}

/* Of one run, in the quickest round. */
static enum status time_rounds(struct trial *t, int64_t *ret, struct error *err)
{
    int64_t best = INT64_MAX, took;
    for (int round = 0; round < ROUNDS; round++) {
        TRY(time_round(t, &took, err));
        t->spent += took;
        best = took < best ? took : best;
    }
    *ret = best / t->launches;
    return STATUS_OK;
}

/* Short kernels are recorded, as they will be: where the host takes longer to launch one than the
 * device to run it, it is the host that would be timed. */
static enum status time_way(struct trial *t, int64_t *ret, struct error *err)
{
    int64_t took;
    t->launches = 1;
    TRY(time_round(t, &took, err)); /* loads what it needs, which a recording does not allow */
    TRY(time_round(t, &took, err));
    if (took < ROUND / MOST_LAUNCHES)
        t->launches = MOST_LAUNCHES;
    else if (took < ROUND)
        t->launches = (int)(ROUND / took);
    if (t->launches > 1 && runs_records())
        TRY(runs_record(t->program->backend, launch_all, t, &t->recorded, err));
    enum status status = time_rounds(t, ret, err);
    if (t->recorded)
        cuda_ignore(cudaGraphExecDestroy(t->recorded));
    t->recorded = NULL;
    return status;
}

/* LENSD_CUDA_TUNING: "off" is way 0, the best guess; N is way N, counted round: so that tests run
 * each of them. */
static bool is_ordered(int count, int *ret_way)
{
    const char *wish = getenv("LENSD_CUDA_TUNING");
    char *end;
    if (!wish || !*wish || !strcmp(wish, "on"))
        return false;
    const long way = strcmp(wish, "off") ? strtol(wish, &end, 10) : 0;
    *ret_way = way > 0 ? (int)(way % count) : 0;
    return true;
}

/* A way that the device does not take, though it was proposed, is slower than all others. */
static bool is_refusal(enum status status, const struct program *program)
{
    return status == STATUS_DEVICE && !device_is_broken(program->backend->device);
}

enum status tune_step(struct step *step, struct program *program, int *way, int count,
                      const void *key, size_t size, struct error *err)
{
    struct trial trial = {.step = step, .program = program};
    int64_t best = INT64_MAX;
    struct graph_hash hash = program->backend->tuned_for;
    int fastest = 0;
    *way = 0;
    if (count < 2 || is_ordered(count, way))
        return STATUS_OK;
    graph_hash_bytes(&hash, key, size);
    if (tuned_find(&hash, count, way))
        return STATUS_OK;
    for (int i = 0; i < count && (best == INT64_MAX || trial.spent < BUDGET); i++) {
        int64_t took;
        *way = i;
        enum status status = time_way(&trial, &took, err);
        if (is_refusal(status, program) && (best < INT64_MAX || i + 1 < count))
            continue;
        TRY(status);
        if (took < best) {
            best = took;
            fastest = i;
        }
    }
    *way = fastest;
    tuned_keep(&hash, fastest, count);
    return STATUS_OK;
}
