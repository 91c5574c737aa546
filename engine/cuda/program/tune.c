/* Chooses among the candidates of a step (tiles, cuBLASLt's algorithms). The autotuner measures
 * each shape once for a kind of device. The tuning store keeps the fastest: "3 9" means
 * candidate 3 of 9. A step with another number of candidates is measured again. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/backend/autotune.h"
#include "engine/backend/tuning_store.h"
#include "engine/base/clock.h"
#include "engine/cuda/program/program.h"
#include "lensd_version.h"

enum {
    ROUNDS = 3,
    MOST_LAUNCHES = 24, /* launches of a short kernel in a round */
};
#define ROUND_MS  2.0   /* a round has as many launches as fit into this time, at least one */
#define BUDGET_MS 150.0 /* time for measuring a step, except first launches, which load code */

/* A candidate replaces the best guess if it takes less than this share of the guess's time. Smaller
 * differences may be noise. */
#define SWITCH_RATIO 0.98

struct tune_measurement {
    struct cuda_step *step;
    struct cuda_program *program;
    int *chosen;         /* the candidate that the step runs */
    enum status refusal; /* status of the last refused candidate; STATUS_OK: none */
    struct tune_timing {
        int launches; /* launches of a round; 0: the candidate has not run yet */
        cudaGraphExec_t recorded;
    } timings[AUTOTUNE_CANDIDATES];
};

static enum status launch_all(void *context, struct error *err)
{
    const struct tune_measurement *m = context;
    for (int i = 0; i < m->timings[*m->chosen].launches; i++)
        TRY(m->step->run(m->step, m->program, err));
    return STATUS_OK;
}

static enum status time_round(struct tune_measurement *m, double *ret_ms, struct error *err)
{
    const struct cuda_backend *backend = m->program->backend;
    const cudaGraphExec_t recorded = m->timings[*m->chosen].recorded;
    const int64_t start = clock_now();
    if (recorded)
        TRY(cuda_check(cudaGraphLaunch(recorded, backend->stream), backend->device, m->step->name,
                       err));
    else
        TRY(launch_all(m, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, m->step->name, err));
    *ret_ms = clock_ms(clock_now() - start);
    return STATUS_OK;
}

/* Records launches of a short kernel, because launching may take longer than the kernel. */
static enum status time_first(struct tune_measurement *m, double *ret_ms, struct error *err)
{
    struct tune_timing *timing = &m->timings[*m->chosen];
    timing->launches = 1;
    TRY(time_round(m, ret_ms, err)); /* loads code, which a recording does not allow */
    TRY(time_round(m, ret_ms, err));
    if (*ret_ms * MOST_LAUNCHES < ROUND_MS)
        timing->launches = MOST_LAUNCHES;
    else if (*ret_ms < ROUND_MS)
        timing->launches = (int)(ROUND_MS / *ret_ms);
    if (timing->launches > 1 && runs_records())
        TRY(runs_record(m->program->backend, launch_all, m, &timing->recorded, err));
    return STATUS_OK;
}

/* Runs a candidate. Its cost is the time of one launch. */
static enum status run_candidate(void *context, size_t candidate, struct autotune_run *ret,
                                 struct error *err)
{
    struct tune_measurement *m = context;
    const bool is_first = m->timings[candidate].launches == 0;
    double ms;
    *m->chosen = (int)candidate;
    const enum status status = is_first ? time_first(m, &ms, err) : time_round(m, &ms, err);
    if (status == STATUS_DEVICE && !device_failure(m->program->backend->device)) {
        m->refusal = status; /* the device refuses what the library proposed */
        return STATUS_OK;
    }
    TRY(status);
    ret->cost = is_first ? ms : ms / m->timings[candidate].launches;
    ret->spent = ms;
    return STATUS_OK;
}

/* LENSD_CUDA_TUNING: "off" chooses candidate 0, the best guess. N chooses candidate N modulo the
 * number of candidates, so that tests can run each. */
static bool is_ordered(int count, int *ret_candidate)
{
    const char *wish = getenv("LENSD_CUDA_TUNING");
    char *end;
    if (!wish || !*wish || !strcmp(wish, "on"))
        return false;
    const long candidate = strcmp(wish, "off") ? strtol(wish, &end, 10) : 0;
    *ret_candidate = candidate > 0 ? (int)(candidate % count) : 0;
    return true;
}

static bool recall(const struct graph_hash *key, int count, int *ret_candidate)
{
    char text[TUNING_TEXT];
    int candidate, of, end = 0;
    if (!tuning_find(TUNING_CUDA, key, text) ||
        /* NOLINTNEXTLINE(cert-err34-c): three digits always fit */
        sscanf(text, "%3d %3d%n", &candidate, &of, &end) != 2 || text[end] || of != count ||
        candidate < 0 || candidate >= count)
        return false;
    *ret_candidate = candidate;
    return true;
}

static enum status measure_all(struct tune_measurement *m, int count, int *ret_chosen,
                               struct error *err)
{
    double costs[AUTOTUNE_CANDIDATES];
    size_t chosen = 0;
    const struct autotune tune = {.count = (size_t)count,
                                  .rounds = ROUNDS,
                                  .clear = SWITCH_RATIO,
                                  .budget = BUDGET_MS,
                                  .run = run_candidate,
                                  .context = m};
    enum status status = autotune_choose(&tune, costs, &chosen, err);
    for (int i = 0; i < count; i++)
        if (m->timings[i].recorded)
            cuda_ignore(cudaGraphExecDestroy(m->timings[i].recorded));
    if (status == STATUS_OK && !isfinite(costs[chosen]))
        status = m->refusal;
    *ret_chosen = (int)chosen;
    return status;
}

enum status tune_step(struct cuda_step *step, struct cuda_program *program, int *chosen, int count,
                      const void *key, size_t size, struct error *err)
{
    struct tune_measurement m = {.step = step, .program = program, .chosen = chosen};
    struct graph_hash hash = program->backend->kind;
    char text[32];
    int quickest;
    *chosen = 0;
    if (count < 2 || is_ordered(count, chosen))
        return STATUS_OK;
    graph_hash_bytes(&hash, key, size);
    if (recall(&hash, count, chosen))
        return STATUS_OK;
    const unsigned long ended = device_note_batches(program->backend->device, 0, 0).ended;
    TRY(measure_all(&m, count, &quickest, err));
    *chosen = quickest;
    /* The result is not stored if a batch ran during the measurement. No batch ran if as many
     * batches have begun by now as had ended before the measurement. */
    if (device_note_batches(program->backend->device, 0, 0).begun != ended)
        return STATUS_OK;
    snprintf(text, sizeof text, "%d %d", quickest, count);
    tuning_keep(TUNING_CUDA, &hash, text);
    return STATUS_OK;
}

/* ---- the kind of device and software ---- */

/* Hashes lensd's version, and size and time of the module's file, because two builds of a version
 * may differ. */
static void hash_module(struct graph_hash *hash)
{
    static const char here;
    Dl_info self;
    struct stat info;
    graph_hash_bytes(hash, LENSD_VERSION, strlen(LENSD_VERSION));
    if (!dladdr(&here, &self) || !self.dli_fname || stat(self.dli_fname, &info) != 0)
        return;
    const int64_t numbers[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec};
    graph_hash_bytes(hash, numbers, sizeof numbers);
}

struct graph_hash tune_kind(const struct cudaDeviceProp *device)
{
    struct graph_hash hash = {{0, 0}};
    int driver = 0;
    hash_module(&hash);
    cuda_ignore(cudaDriverGetVersion(&driver));
    const int64_t numbers[] = {device->major,
                               device->minor,
                               device->multiProcessorCount,
                               (int64_t)device->totalGlobalMem,
                               driver,
                               CUDART_VERSION,
                               (int64_t)cublasLtGetVersion()};
    graph_hash_bytes(&hash, device->name, strlen(device->name));
    graph_hash_bytes(&hash, numbers, sizeof numbers);
    return hash;
}
