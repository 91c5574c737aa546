/* Runs a session on synthetic inputs to measure how long each batch size and step takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/autotune.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/runtime/session_internal.h"

/* Rounds after the warm-up, and the time in milliseconds after which no further round starts. For a
 * slow model the warm-up is the only run: the scheduler learns from requests. */
#define ROUNDS    4
#define BUDGET_MS 50
#define ALONE_MS  5 /* instead of BUDGET_MS for a single size */

/* Streams are used if one image in each stream takes at most STREAMS_RATIO times as long as a batch
 * of as many images. On an idle machine, streams and batches take about equally long. While other
 * threads also need a core, streams answer up to twice as many requests
 * (docs/measurements/threads.md). A model with large weights and little arithmetic is faster in
 * batches. */
#define STREAMS_RATIO   1.25
#define STREAMS_TRIES   3   /* more runs while streams seem slow: the first run allocates pages */
#define STREAMS_MOST_MS 200 /* no streams if one image in a stream takes longer */

void session_feed_done(struct session_feed *feed)
{
    for (size_t i = 0; feed->buffers && i < feed->count; i++)
        free(feed->buffers[i]);
    free(feed->buffers);
}

/* Fills `data` with a fixed sequence: floats from -1 to 1 (float32 pixels: 0 to 255), any bytes for
 * uint8 and for int8 pixels. Other integers stay 0, because they may be indices. */
static void feed_numbers(void *data, enum dtype dtype, size_t count, bool pixels)
{
    uint32_t state = 12345;
    for (size_t e = 0; e < count; e++) {
        state = state * 1664525u + 1013904223u;
        float unit = (float)(state >> 8) * 0x1p-23f - 1.0f;
        if (dtype == DTYPE_F32)
            ((float *)data)[e] = pixels ? (float)(state >> 24) : unit;
        else if (dtype == DTYPE_F64)
            ((double *)data)[e] = (double)unit;
        else if (dtype == DTYPE_F16)
            ((uint16_t *)data)[e] = float_to_half(unit);
        else if (dtype == DTYPE_BF16)
            ((uint16_t *)data)[e] = float_to_bfloat16(unit);
        else if (dtype == DTYPE_U8 || (dtype == DTYPE_I8 && pixels))
            ((uint8_t *)data)[e] = (uint8_t)(state >> 24);
    }
}

enum status session_feed_make(const struct session *session, struct session_feed *feed,
                              struct error *err)
{
    const struct graph *largest = session->compiled[session->compiled_count - 1].graph;
    *feed = (struct session_feed){.count = session->info.input_count};
    feed->buffers = alloc_array(feed->count, sizeof *feed->buffers);
    TRY(check_memory(feed->buffers, "while creating a session", err));
    for (size_t i = 0; i < feed->count; i++) {
        const struct value *value = largest->inputs[i];
        size_t count = shape_count(&value->shape), bytes = count * dtype_size(value->dtype);
        feed->buffers[i] = aligned_alloc(TENSOR_ALIGN, size_align(bytes + 1, TENSOR_ALIGN));
        TRY(check_memory(feed->buffers[i], "while creating a session", err));
        memset(feed->buffers[i], 0, bytes);
        feed_numbers(feed->buffers[i], value->dtype, count,
                     session->image_is_integer && i == session->options.image_input);
    }
    return STATUS_OK;
}

double session_cpu_ms(const struct session *session)
{
    return session->ops->cpu_ms ? session->ops->cpu_ms(session->backend) : 0;
}

struct session_measurement {
    struct session *session;
    struct session_feed feed;
    const struct tensor **outputs;
    int runs, most;      /* runs so far; most runs in all rounds together */
    size_t sizes;        /* number of sizes that autotune_choose() measures */
    int streams;         /* number of streams; 0: none */
    double wall_per_cpu; /* wall-clock time divided by CPU time, the lowest of all runs */
};

/* Runs compiled size `i` once; with i == m->sizes, runs one image in each stream once. */
static enum status measure_run(void *context, size_t i, struct autotune_run *ret, struct error *err)
{
    struct session_measurement *m = context;
    struct session *session = m->session;
    const struct session_options *options = &session->options;
    if (session_is_stopped(session))
        return error_set(err, STATUS_CANCELLED, "loading was cancelled");
    const double before = session_cpu_ms(session);
    const int64_t start = clock_now();
    /* Send images as the server does: as bytes if the session accepts them. */
    const int size = i == m->sizes ? m->streams : session->compiled[i].size;
    session->info.streams = i == m->sizes ? m->streams : 0;
    const struct session_request run = {.batch = size,
                                        .inputs = (const void *const *)m->feed.buffers,
                                        .are_pixels = session->all_pixels,
                                        .valid_rows = size,
                                        .in_streams = session->info.streams > 0};
    enum status status = session_submit(session, &run, err);
    IF_OK(status, session_collect(session, m->outputs, err));
    const double ms = clock_ms(clock_now() - start), cpu = session_cpu_ms(session) - before;
    if (options->on_progress)
        options->on_progress(options->progress_context, PHASE_MEASURE,
                             PROGRESS_ROWS + (1 - PROGRESS_ROWS) * ++m->runs / m->most);
    /* Synthetic contents may be wrong for an input that holds axes, indices or sizes. An error then
     * means that this size cannot be measured, not that the model is wrong. */
    const bool is_only_image = session->info.input_count == 1 && options->image_input == 0;
    if (!is_only_image &&
        (status == STATUS_SHAPE || status == STATUS_MODEL || status == STATUS_INVALID))
        return STATUS_OK;
    TRY(status);
    ret->spent = ms;
    ret->cost = cpu > 0 ? cpu : ms;
    m->wall_per_cpu = fmin(m->wall_per_cpu, ms / ret->cost);
    return STATUS_OK;
}

/* Returns the number of sizes to measure if the smallest takes `first_ms`. On a CPU a batch of a
 * slow model takes about as long as its images one by one. The scheduler estimates the other sizes
 * and learns from requests. */
static size_t count_to_measure(const struct session *session, double first_ms)
{
    const int smallest = session->compiled[0].size;
    size_t count = 1;
    while (count < session->compiled_count &&
           (session->info.device.kind != DEVICE_CPU ||
            first_ms * session->compiled[count].size / smallest <= BUDGET_MS))
        count++;
    return count;
}

/* Fills in L(b) from options.known. Returns false if the session must be measured. */
static bool recall_times(struct session *session)
{
    size_t found = 0;
    for (size_t i = 0; i < SESSION_MAX_BATCHES && found < session->compiled_count; i++) {
        const struct session_batch *known = &session->options.known[i];
        struct session_batch *batch = &session->info.batches[found];
        if (known->size != batch->size)
            continue;
        batch->milliseconds = known->milliseconds;
        batch->in_streams = known->in_streams;
        if (known->in_streams)
            session->info.streams = session->ops->stream_count(session->backend);
        found++;
    }
    /* a tail must run now, because it packs its weights in its first run */
    return found == session->compiled_count && session->info.device.kind == DEVICE_CPU &&
           !session->tail_backend;
}

/* Decides whether streams are used. `cost` is the cost of a run of one image in each stream. */
static enum status choose_streams(struct session_measurement *m, double cost, struct error *err)
{
    struct session *session = m->session;
    struct session_batch *batches = session->info.batches;
    const size_t first = (size_t)(compiled_for(session, m->streams) - session->compiled);
    const double factor = fmax(m->wall_per_cpu, 1);
    /* A batch size that was not measured takes about as long as its images one by one. */
    const struct session_batch *batch = &batches[first < m->sizes ? first : 0];
    const double most = STREAMS_RATIO * batch->milliseconds * m->streams / batch->size;
    struct autotune_run run = {.cost = cost};
    for (int i = 0; i < STREAMS_TRIES && run.cost * factor > most; i++)
        TRY(measure_run(m, m->sizes, &run, err));
    session->info.streams = run.cost * factor <= most ? m->streams : 0;
    for (size_t i = first; session->info.streams && i < session->compiled_count; i++) {
        batches[i].milliseconds = run.cost * factor * batches[i].size / m->streams;
        batches[i].in_streams = true;
    }
    return STATUS_OK;
}

enum status session_measure(struct session *session, struct error *err)
{
    if (recall_times(session))
        return STATUS_OK;
    const size_t count = session->compiled_count;
    size_t ignored;
    double costs[SESSION_MAX_BATCHES + 1];
    struct autotune_run first = {0};
    struct session_measurement m = {.session = session,
                                    .most = 1 + (int)(count + 1) * (1 + ROUNDS),
                                    .sizes = SIZE_MAX,
                                    .wall_per_cpu = INFINITY};
    const double budget = count > 1 ? BUDGET_MS : ALONE_MS;
    struct autotune tune = {
        .rounds = ROUNDS, .budget = budget, .all = true, .run = measure_run, .context = &m};
    m.outputs = alloc_array(session->info.output_count, sizeof *m.outputs);
    enum status status = m.outputs ? session_feed_make(session, &m.feed, err)
                                   : error_no_memory(err, "while creating a session");
    IF_OK(status, measure_run(&m, 0, &first, err));
    m.sizes = tune.count = count_to_measure(session, first.spent);
    if (session->ops->stream_count)
        m.streams = session->ops->stream_count(session->backend);
    tune.count += m.streams > 0 && session->compiled[count - 1].size >= m.streams &&
                  first.spent * m.streams <= STREAMS_MOST_MS;
    if (status == STATUS_OK && tune.count > 1)
        status = autotune_choose(&tune, costs, &ignored, err);
    else if (status == STATUS_OK && first.spent < budget)
        status = measure_run(&m, 0, &first, err);
    if (tune.count == 1)
        costs[0] = first.cost; /* the cost of the second run, if there was a second run */
    for (size_t i = 0; status == STATUS_OK && i < m.sizes; i++)
        session->info.batches[i].milliseconds =
            isfinite(costs[i]) ? costs[i] * fmax(m.wall_per_cpu, 1) : 0;
    session->info.streams = 0;
    if (tune.count > m.sizes)
        IF_OK(status, choose_streams(&m, costs[m.sizes], err));
    session_feed_done(&m.feed);
    free(m.outputs);
    return status;
}

enum status session_profile(struct session *session, int batch, int runs, struct session_step **ret,
                            size_t *ret_count, struct error *err)
{
    enum { MOST_STEPS = 16384 };
    const struct compiled_size *c = compiled_for(session, batch);
    if (!c)
        return error_set(err, STATUS_INVALID, "no batch size %d", batch);
    struct session_step *best = alloc_array(MOST_STEPS, sizeof *best);
    struct session_step *once = alloc_array(MOST_STEPS, sizeof *once);
    struct session_feed feed = {0};
    size_t count = 0;
    double least_ms = 0;
    enum status status = best && once ? session_feed_make(session, &feed, err)
                                      : error_no_memory(err, "while creating a session");
    for (int run = 0; status == STATUS_OK && run < runs; run++) {
        status = session->ops->profile(c->program, (const void *const *)feed.buffers, once,
                                       MOST_STEPS, &count, err);
        double ms = 0;
        for (size_t i = 0; status == STATUS_OK && i < count; i++)
            ms += once[i].milliseconds;
        if (run > 0 && ms >= least_ms)
            continue;
        struct session_step *slower = best;
        best = once;
        once = slower;
        least_ms = ms;
    }
    session_feed_done(&feed);
    free(once);
    if (status != STATUS_OK) {
        free(best);
        return status;
    }
    *ret = best;
    *ret_count = count;
    return STATUS_OK;
}

enum status session_time(struct session *session, int batch, int runs, double *ret_ms,
                         struct error *err)
{
    const struct compiled_size *c = compiled_for(session, batch);
    if (!c || runs < 1)
        return error_set(err, STATUS_INVALID, "no %d passes of batch size %d", runs, batch);
    if (!session->ops->time)
        return error_set(err, STATUS_UNSUPPORTED, "%s computes in the host's memory",
                         DEVICE_STRING(session->info.device));
    if (c->tail)
        return error_set(err, STATUS_UNSUPPORTED, "a part of the graph depends on data");
    struct session_feed feed;
    enum status status = session_feed_make(session, &feed, err);
    IF_OK(status,
          session->ops->time(c->program, (const void *const *)feed.buffers, runs, ret_ms, err));
    session_feed_done(&feed);
    return status;
}
