/* The CPU as a backend: opening and closing it, and its table of functions. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "engine/base/forkjoin.h"
#include "engine/base/thread.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/program/parallel.h"

static bool prefer_winograd;

void cpu_prefer_winograd(bool prefer)
{
    prefer_winograd = prefer;
}

/* Starts the calling thread's team of `threads` threads, so that runs do not start threads. */
static enum status start_threads(int threads, struct error *err)
{
    errno = 0;
    const int there = forkjoin_prepare(threads);
    if (there >= threads || forkjoin_members() > 1)
        return STATUS_OK;
    return error_set(
        err, STATUS_NO_MEMORY,
        "the system started only %d of the %d threads of a forward pass (%s); lower "
        "--threads, or raise the limit of threads (ulimit -u, a container's pids limit)",
        there, threads, strerror(errno ? errno : EAGAIN));
}

static double cpu_time_ms(const struct backend *backend)
{
    int64_t times[PARALLEL_SHARES], sum = 0;
    const int there = forkjoin_cpu_times(times, PARALLEL_SHARES);
    const int counted = there < backend->options.threads ? there : backend->options.threads;
    for (int i = 0; i < counted; i++)
        sum += times[i];
    return clock_ms(sum) / counted + streams_cpu_ms(backend);
}

static enum status cpu_enter(struct backend *backend, struct error *err)
{
    return start_threads(backend->options.threads, err);
}

static void cpu_close(struct backend *backend)
{
    if (!backend)
        return;
    node_programs_free(backend);
    streams_free(backend);
    weights_free_since(backend, NULL);
    arena_leave(backend);
    shared_arena_done(&backend->own_arena);
    (void)pages_resize(&backend->outputs, backend->output_room, 0);
    free(backend);
}

static enum status cpu_open(const struct backend_options *options, struct backend **ret,
                            struct error *err)
{
    struct backend *backend = calloc(1, sizeof *backend);
    TRY(check_memory(backend, NULL, err));
    backend->options = *options;
    shared_arena_init(&backend->own_arena);
    (void)arena_join(backend, &backend->own_arena); /* cannot fail: own_arena has 0 bytes */
    backend->prefers_winograd = prefer_winograd;
    if (backend->options.threads < 1)
        backend->options.threads = device_cpu_threads();
    const enum status status = start_threads(backend->options.threads, err);
    if (status != STATUS_OK) {
        cpu_close(backend);
        return status;
    }
    *ret = backend;
    return STATUS_OK;
}

static enum status cpu_reserve(struct backend *backend, struct error *err)
{
    TRY(programs_place(backend, streams_free, err));
    weights_seal(backend);
    return STATUS_OK;
}

/* Between runs this session needs nothing in the arena, and the caller has read the outputs. Keeps
 * the arena's pages if another session uses the arena or used it last, and may run again soon. Does
 * not wait for the lock, which another session's streams may hold for minutes. */
static void cpu_release_pages(struct backend *backend)
{
    struct shared_arena *arena = backend->arena;
    streams_stop(backend);
    if (backend->outputs)
        madvise(backend->outputs, backend->output_room, MADV_DONTNEED);
    if (pthread_mutex_trylock(&arena->lock) != 0)
        return;
    if (arena->base && arena->last == backend)
        madvise(arena->base, arena->bytes, MADV_DONTNEED);
    pthread_mutex_unlock(&arena->lock);
}

static size_t cpu_share_arena(struct backend *backend, struct shared_arena *arena)
{
    return arena_join(backend, arena) ? backend->arena_bytes : 0;
}

static enum status cpu_submit(struct program *program, const struct run_request *request,
                              struct error *err)
{
    struct backend *backend = program->backend;
    (void)err;
    assert(!backend->submitted);
    if (request->in_streams && streams_submit(program, request->inputs, request->rows))
        return STATUS_OK;
    assert(!streams_are_running(backend));
    backend->submitted = program;
    backend->submitted_inputs = request->inputs;
    return STATUS_OK;
}

static enum status cpu_collect(struct backend *backend, const void **outputs, struct error *err)
{
    struct program *program = backend->submitted;
    if (!program)
        return streams_collect(backend, outputs, err);
    backend->submitted = NULL;
    return program_run(program, backend->submitted_inputs, outputs, err);
}

static bool cpu_may_submit(struct backend *backend)
{
    return !backend->submitted && !atomic_load(&backend->arena->waiting);
}

static int cpu_stream_count(const struct backend *backend)
{
    return backend->stream_count;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .enter = cpu_enter,
    .cpu_ms = cpu_time_ms,
    .close = cpu_close,
    .claim = cpu_claim,
    .multiplies_to_float = true,
    .rounds_dynamically = true,
    .compile = cpu_compile,
    .compile_streams = cpu_compile_streams,
    .stream_count = cpu_stream_count,
    .free_program = program_free,
    .reserve = cpu_reserve,
    .release_pages = cpu_release_pages,
    .share_arena = cpu_share_arena,
    .depth = 1,
    .may_submit = cpu_may_submit,
    .run_has_ended = streams_run_has_ended,
    .submit = cpu_submit,
    .collect = cpu_collect,
    .run_node = cpu_run_node,
    .activation_bytes = program_activation_bytes,
    .weight_bytes = programs_weight_bytes,
    .profile = program_profile,
};
