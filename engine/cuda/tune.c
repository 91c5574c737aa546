/* Which of several ways to run a step is the fastest is found by running them, once for each shape
 * on a kind of device: networks repeat their layers, sessions their models, and what was found is
 * kept (tuned.c). */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/cuda/tuned.h"

enum {
    ROUNDS = 3,   /* the quickest counts */
    LAUNCHES = 6, /* of a round: launches of short kernels overlap, as they will in a CUDA graph */
};
#define LONG_RUN (INT64_C(2) * 1000 * 1000)   /* ns: one run is a round */
#define BUDGET   (INT64_C(150) * 1000 * 1000) /* ns for all ways of a step */

static enum status time_round(struct step *step, struct program *program, int runs, int64_t *ret,
                              struct error *err)
{
    struct backend *backend = program->backend;
    int64_t start = clock_now();
    for (int i = 0; i < runs; i++)
        TRY(step->run(step, program, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, step->name, err));
    *ret = (clock_now() - start) / runs;
    return STATUS_OK;
}

static enum status time_way(struct step *step, struct program *program, int64_t *ret,
                            struct error *err)
{
    int64_t best = INT64_MAX, took;
    TRY(time_round(step, program, 1, &took, err)); /* warms up */
    int runs = took > LONG_RUN ? 1 : LAUNCHES;
    for (int round = 0; round < ROUNDS; round++) {
        TRY(time_round(step, program, runs, &took, err));
        if (took < best)
            best = took;
    }
    *ret = best;
    return STATUS_OK;
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
    int64_t best = INT64_MAX, start = clock_now();
    struct graph_hash hash = program->backend->tuned_for;
    int fastest = 0;
    *way = 0;
    if (count < 2 || is_ordered(count, way))
        return STATUS_OK;
    graph_hash_bytes(&hash, key, size);
    if (tuned_find(&hash, count, way))
        return STATUS_OK;
    for (int i = 0; i < count && (best == INT64_MAX || clock_now() - start < BUDGET); i++) {
        int64_t took;
        *way = i;
        enum status status = time_way(step, program, &took, err);
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
