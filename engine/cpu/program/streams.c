/* A stream computes one image at a time, on its own threads, with its own program for one image.
 * So streams compute several images at the same time, and never wait for each other.
 *
 *     session's thread: streams_submit() ─▶ runs[] ◀─ a stream takes the next image: of the oldest
 *                                                     run that still has one
 *                       streams_collect() ◀─ the oldest run, when its last image has ended
 *
 * streams_submit() starts the threads, streams_stop() ends them. Between these calls `lock` guards
 * all members that change, but the session's thread alone changes `submitted` and `collected`, and
 * reads them unlocked. The session's thread holds the arena's lock while runs are in flight. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "engine/cpu/program/program.h"

#define STOP_CHECK_NS 20000000 /* streams_collect() checks this often whether to stop */

struct stream_run {
    struct program *whole; /* of the batch: streams write its outputs, and do not run its steps */
    const void *const *inputs;
    int rows, next, left;   /* images of the run; next image to take; images not ended */
    atomic_bool is_stopped; /* streams also abandon images that have begun */
    enum status status;
    struct error error;
};

struct cpu_stream {
    pthread_t thread;
    struct cpu_streams *streams;
    struct program *program;
};

struct cpu_streams {
    struct backend *backend;
    pthread_mutex_t lock;
    pthread_cond_t work, ended; /* work: an image waits, or threads must end; ended: a run has */
    struct stream_run runs[STREAMS_MOST + 1]; /* in flight, at most count + 1 */
    unsigned long submitted, collected;
    struct cpu_stream stream[STREAMS_MOST];
    int count, started;
    bool stops;
};

enum status streams_create(struct backend *backend, const struct program *single, int count,
                           stream_compile compile, struct error *err)
{
    struct cpu_streams *streams = calloc(1, sizeof *streams);
    TRY(check_memory(streams, "while compiling", err));
    backend->streams = streams;
    streams->backend = backend;
    pthread_mutex_init(&streams->lock, NULL);
    condition_init(&streams->work);
    condition_init(&streams->ended);
    for (; streams->count < count; streams->count++) {
        struct cpu_stream *stream = &streams->stream[streams->count];
        stream->streams = streams;
        TRY(compile(backend, single->graph, single->threads / count, true, &stream->program, err));
    }
    backend->stream_count = count;
    return STATUS_OK;
}

void streams_free(struct backend *backend)
{
    struct cpu_streams *streams = backend->streams;
    if (!streams)
        return;
    streams_stop(backend);
    for (int i = 0; i < streams->count; i++)
        program_free(streams->stream[i].program);
    pthread_mutex_destroy(&streams->lock);
    pthread_cond_destroy(&streams->work);
    pthread_cond_destroy(&streams->ended);
    free(streams);
    backend->streams = NULL;
    backend->stream_count = 0;
}

static struct stream_run *run_at(struct cpu_streams *streams, unsigned long number)
{
    return &streams->runs[number % (unsigned long)(streams->count + 1)];
}

/* Returns the address of output i of a run. Each run in flight has its own memory for outputs. */
static unsigned char *output_of(struct cpu_streams *streams, unsigned long number, size_t i)
{
    const struct program *whole = run_at(streams, number)->whole;
    const struct plan *plan = &whole->plan;
    return streams->backend->outputs +
           (unsigned long)(run_at(streams, number) - streams->runs) *
               streams->backend->output_bytes +
           (plan->places[whole->graph->outputs[i]->index].offset - plan->outputs_at);
}

static enum status run_image(struct cpu_stream *stream, unsigned long number, int image,
                             struct error *err)
{
    struct stream_run *run = run_at(stream->streams, number);
    struct program *program = stream->program;
    program_bind(program, run->inputs, image);
    for (size_t i = 0; i < program->step_count; i++) {
        if (atomic_load_explicit(&run->is_stopped, memory_order_relaxed))
            return STATUS_OK;
        TRY(program_step(program, program->steps[i], err));
    }
    for (size_t i = 0; i < program->graph->output_count; i++) {
        const size_t bytes = value_bytes(program->graph->outputs[i]);
        memcpy(output_of(stream->streams, number, i) + (size_t)image * bytes,
               program->data[program->graph->outputs[i]->index], bytes);
    }
    return STATUS_OK;
}

/* Ends a run early: no stream takes another of its images. */
static void stop_locked(struct stream_run *run, enum status status, const struct error *error)
{
    if (run->status == STATUS_OK) {
        run->status = status;
        run->error = *error;
    }
    atomic_store(&run->is_stopped, true);
    run->left -= run->rows - run->next;
    run->next = run->rows;
}

/* Takes an image of the oldest run that has one. */
static bool take_locked(struct cpu_streams *streams, unsigned long *ret_run, int *ret_image)
{
    for (unsigned long i = streams->collected; i != streams->submitted; i++) {
        struct stream_run *run = run_at(streams, i);
        if (run->next < run->rows) {
            *ret_run = i;
            *ret_image = run->next++;
            return true;
        }
    }
    return false;
}

static void *stream_main(void *argument)
{
    struct cpu_stream *stream = argument;
    struct cpu_streams *streams = stream->streams;
    const struct backend_options *options = &streams->backend->options;
    (void)cpu_flush_subnormals();
    pthread_mutex_lock(&streams->lock);
    while (!streams->stops) {
        unsigned long number;
        int image;
        if (!take_locked(streams, &number, &image)) {
            pthread_cond_wait(&streams->work, &streams->lock);
            continue;
        }
        pthread_mutex_unlock(&streams->lock);
        struct error error;
        const enum status status = run_image(stream, number, image, &error);
        pthread_mutex_lock(&streams->lock);
        struct stream_run *run = run_at(streams, number);
        if (status != STATUS_OK)
            stop_locked(run, status, &error);
        if (--run->left > 0)
            continue;
        pthread_cond_signal(&streams->ended);
        pthread_mutex_unlock(&streams->lock);
        if (options->on_run_ended)
            options->on_run_ended(options->context);
        pthread_mutex_lock(&streams->lock);
    }
    pthread_mutex_unlock(&streams->lock);
    return NULL;
}

void streams_stop(struct backend *backend)
{
    struct cpu_streams *streams = backend->streams;
    if (!streams)
        return;
    pthread_mutex_lock(&streams->lock);
    streams->stops = true;
    pthread_cond_broadcast(&streams->work);
    pthread_mutex_unlock(&streams->lock);
    while (streams->started > 0)
        pthread_join(streams->stream[--streams->started].thread, NULL);
    streams->stops = false;
}

bool streams_submit(struct program *program, const void *const *inputs, int rows)
{
    struct backend *backend = program->backend;
    struct cpu_streams *streams = backend->streams;
    for (; streams->started < streams->count; streams->started++) {
        struct cpu_stream *stream = &streams->stream[streams->started];
        if (!thread_start(&stream->thread, "stream", stream_main, stream))
            break;
    }
    if (streams->started == 0)
        return false;
    if (!streams_are_running(backend))
        pthread_mutex_lock(&backend->arena->lock);
    LOCK(&streams->lock);
    struct stream_run *run = run_at(streams, streams->submitted);
    run->whole = program;
    run->inputs = inputs;
    run->rows = run->left = rows;
    run->next = 0;
    run->status = STATUS_OK;
    atomic_init(&run->is_stopped, false);
    streams->submitted++;
    pthread_cond_broadcast(&streams->work);
    return true;
}

double streams_cpu_ms(const struct backend *backend)
{
    const struct cpu_streams *streams = backend->streams;
    int64_t sum = 0;
    for (int i = 0; streams && i < streams->started; i++)
        sum += thread_cpu_time(streams->stream[i].thread);
    return streams ? clock_ms(sum) / streams->count : 0;
}

bool streams_are_running(const struct backend *backend)
{
    const struct cpu_streams *streams = backend->streams;
    return streams && streams->submitted != streams->collected;
}

bool streams_run_has_ended(struct backend *backend)
{
    struct cpu_streams *streams = backend->streams;
    LOCK(&streams->lock);
    return run_at(streams, streams->collected)->left == 0;
}

enum status streams_collect(struct backend *backend, const void **outputs, struct error *err)
{
    struct cpu_streams *streams = backend->streams;
    const unsigned long number = streams->collected;
    struct stream_run *run = run_at(streams, number);
    for (;;) {
        struct error stop;
        const enum status status = backend_check_stop(backend, &stop);
        pthread_mutex_lock(&streams->lock);
        if (status != STATUS_OK)
            stop_locked(run, status, &stop);
        if (run->left == 0)
            break;
        condition_wait(&streams->ended, &streams->lock, clock_now() + STOP_CHECK_NS);
        pthread_mutex_unlock(&streams->lock);
    }
    streams->collected++;
    pthread_mutex_unlock(&streams->lock);
    if (!streams_are_running(backend)) {
        backend->arena->last = backend;
        pthread_mutex_unlock(&backend->arena->lock);
    }
    if (run->status != STATUS_OK)
        return error_set(err, run->status, "%s", run->error.message);
    for (size_t i = 0; i < run->whole->graph->output_count; i++)
        outputs[i] = output_of(streams, number, i);
    return STATUS_OK;
}
