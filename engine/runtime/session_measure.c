/* Runs a session on made-up inputs to learn how long each batch size takes, whether images of a
 * batch are independent, and where the time goes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/autotune.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/runtime/session_internal.h"

/* Rounds after the warm-up, and the milliseconds after which no further round begins. */
#define ROUNDS    4
#define BUDGET_MS 300
/* The same where the times of an earlier session only need to be confirmed. */
#define CONFIRM_ROUNDS    1
#define CONFIRM_BUDGET_MS 50

struct feed {
    void **buffers;
    size_t count;
};

static void feed_done(struct feed *feed)
{
    for (size_t i = 0; feed->buffers && i < feed->count; i++)
        free(feed->buffers[i]);
    free(feed->buffers);
}

/* Fills `data` with a fixed sequence of small numbers; `pixels`: with numbers from 0 to 255.
 * Integers that are no pixels stay 0, since they may be indices. */
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

static bool is_image_of_integers(const struct session *session, size_t i)
{
    return i == session->options.image_input &&
           (session->image_is_integer || !dtype_is_float(session->info.image.dtype));
}

/* Allocates and fills inputs for compiled size `c`. The images differ, and their values are
 * ordinary, so that a pass takes the same paths as with a request. Free with feed_done(), also on
 * failure. */
static enum status feed_init(const struct session *session, const struct compiled *c,
                             struct feed *feed, struct error *err)
{
    *feed = (struct feed){.count = session->input_count};
    feed->buffers = alloc_array(feed->count, sizeof *feed->buffers);
    if (!feed->buffers)
        return session_no_memory(err);
    for (size_t i = 0; i < feed->count; i++) {
        const struct value *value = c->graph->inputs[i];
        size_t count = shape_count(&value->shape), bytes = count * dtype_size(value->dtype);
        feed->buffers[i] = aligned_alloc(TENSOR_ALIGN, size_align(bytes + 1, TENSOR_ALIGN));
        if (!feed->buffers[i])
            return session_no_memory(err);
        memset(feed->buffers[i], 0, bytes);
        feed_numbers(feed->buffers[i], value->dtype, count, is_image_of_integers(session, i));
    }
    return STATUS_OK;
}

double session_cpu_ms(const struct session *session)
{
    return session->ops->cpu_ms ? session->ops->cpu_ms(session->backend) : 0;
}

struct session_measurement {
    struct session *session;
    struct feed feed;
    const struct tensor **outputs;
    int runs, most;      /* so far; of all rounds */
    double wall_per_cpu; /* the least time by the clock of any run, as a multiple of its CPU time */
};

/* Runs compiled size `i` once. */
static enum status measure_run(void *context, size_t i, struct autotune_run *ret, struct error *err)
{
    struct session_measurement *m = context;
    struct session *session = m->session;
    const struct session_options *options = &session->options;
    if (session->stop && session->stop(session->stop_context))
        return error_set(err, STATUS_CANCELLED, "loading was cancelled");
    const double before = session_cpu_ms(session);
    const int64_t start = clock_now();
    /* Send images as the server does: as bytes where the session accepts them. */
    const enum status status =
        compiled_run(session, &session->compiled[i], (const void *const *)m->feed.buffers,
                     session->all_pixels, m->outputs, err);
    const double ms = clock_ms(clock_now() - start), cpu = session_cpu_ms(session) - before;
    if (options->on_progress)
        options->on_progress(options->progress_context,
                             PROGRESS_ROWS + (1 - PROGRESS_ROWS) * ++m->runs / m->most);
    /* Made-up contents may be wrong for an input that holds axes, indices or sizes. That says
     * nothing about the model: this size cannot be measured. */
    const bool is_only_image = session->input_count == 1 && options->image_input == 0;
    if (!is_only_image &&
        (status == STATUS_SHAPE || status == STATUS_MODEL || status == STATUS_INVALID))
        return STATUS_OK;
    TRY(status);
    ret->spent = ms;
    ret->cost = cpu > 0 ? cpu : ms;
    m->wall_per_cpu = fmin(m->wall_per_cpu, ms / ret->cost);
    return STATUS_OK;
}

/* Milliseconds of a pass of `size` images in an earlier session; 0: not known. */
static double known_time(const struct session *session, int size)
{
    const struct timing_profile *known = session->options.known_times;
    for (size_t k = 0; known && k < known->count; k++)
        if (known->times[k].size == size)
            return known->times[k].milliseconds;
    return 0;
}

double session_believed_time(double known, double ms)
{
    return ms <= 0 || (known > 0 && known < ms && known >= SESSION_BELIEVED * ms) ? known : ms;
}

static enum status measure_sizes(struct session_measurement *m, double *costs, struct error *err)
{
    struct session *session = m->session;
    size_t known = 0, ignored;
    for (size_t i = 0; i < session->compiled_count; i++)
        known += known_time(session, session->compiled[i].size) > 0;
    const bool all_known = known == session->compiled_count;
    const struct autotune tune = {.count = session->compiled_count,
                                  .rounds = all_known ? CONFIRM_ROUNDS : ROUNDS,
                                  .budget = all_known ? CONFIRM_BUDGET_MS : BUDGET_MS,
                                  .all = true,
                                  .run = measure_run,
                                  .context = m};
    m->most = (int)tune.count * (1 + tune.rounds);
    return autotune_choose(&tune, costs, &ignored, err);
}

enum status session_measure(struct session *session, struct error *err)
{
    const size_t count = session->compiled_count;
    double costs[SESSION_MAX_BATCHES];
    struct session_measurement m = {.session = session, .wall_per_cpu = INFINITY};
    m.outputs = alloc_array(session->output_count, sizeof *m.outputs);
    enum status status = m.outputs ? feed_init(session, &session->compiled[count - 1], &m.feed, err)
                                   : session_no_memory(err);
    if (status == STATUS_OK)
        status = measure_sizes(&m, costs, err);
    feed_done(&m.feed);
    free(m.outputs);
    TRY(status);
    for (size_t i = 0; i < count; i++) {
        const int size = session->compiled[i].size;
        const double ms = isfinite(costs[i]) ? costs[i] * fmax(m.wall_per_cpu, 1) : 0;
        const double believed = session_believed_time(known_time(session, size), ms);
        session->info.batches[i].milliseconds = believed;
        session->timing.times[i] = (struct session_time){size, believed};
    }
    session->timing.count = count;
    return STATUS_OK;
}

/* Is `alone` row `image` of `together`, but for rounding? Integers (classes) must be equal. */
static bool same_row(const struct session *session, const struct tensor *alone,
                     const struct tensor *together, size_t image)
{
    size_t count = shape_count(&alone->shape);
    double largest = 0, difference = 0;
    for (size_t e = 0; e < count; e++) {
        double a = tensor_number(alone, e), b = tensor_number(together, image * count + e);
        if (isfinite(a))
            largest = fmax(largest, fabs(a));
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        if (!isfinite(a - b))
            return false;
        difference = fmax(difference, fabs(a - b));
    }
    double tolerance = session->options.precision == PRECISION_FP32 ? 1e-3 : 0.05;
    return difference <= (dtype_is_float(alone->dtype) ? tolerance * largest : 0);
}

/* A file that fixes its batch to 1 may still mean what it says for each image of a larger one, or
 * it may mix images (a Reshape to a constant). Runs two different images together and alone. */
enum status session_rows_are_independent(struct session *session, bool *ret, struct error *err)
{
    struct compiled *one = &session->compiled[0], *two = &session->compiled[1];
    struct feed feed;
    const struct tensor **outputs = alloc_array(session->output_count, sizeof *outputs);
    struct tensor **together = alloc_array(session->output_count, sizeof *together);
    const void **inputs = alloc_array(session->input_count, sizeof *inputs);
    enum status status = STATUS_OK;
    *ret = true;
    if (!outputs || !together || !inputs)
        status = session_no_memory(err);
    bool fed = status == STATUS_OK;
    if (fed)
        status = feed_init(session, two, &feed, err);
    if (status == STATUS_OK)
        status = compiled_run(session, two, (const void *const *)feed.buffers, NULL, outputs, err);
    for (size_t i = 0; status == STATUS_OK && i < session->output_count; i++) {
        status = tensor_create(NULL, outputs[i]->dtype, &outputs[i]->shape, &together[i], err);
        if (status == STATUS_OK && outputs[i]->bytes)
            memcpy(together[i]->data, outputs[i]->data, outputs[i]->bytes);
    }
    for (size_t image = 0; status == STATUS_OK && image < 2; image++) {
        for (size_t i = 0; i < session->input_count; i++) {
            const struct shape *shape = &one->graph->inputs[i]->shape;
            size_t bytes = shape_count(shape) * dtype_size(one->graph->inputs[i]->dtype);
            bool follows = !shape_equal(shape, &two->graph->inputs[i]->shape);
            inputs[i] = (const char *)feed.buffers[i] + (follows ? bytes * image : 0);
        }
        status = compiled_run(session, one, inputs, NULL, outputs, err);
        for (size_t i = 0; status == STATUS_OK && *ret && i < session->output_count; i++)
            *ret = same_row(session, outputs[i], together[i], image);
    }
    if (fed)
        feed_done(&feed);
    for (size_t i = 0; together && i < session->output_count; i++)
        tensor_unref(together[i]);
    free(outputs);
    free(together);
    free(inputs);
    return status;
}

static void change_number(void *data, enum dtype dtype, size_t e, bool pixels)
{
    float *floats = data;
    uint16_t *halves = data;
    uint8_t *bytes = data;
    if (dtype == DTYPE_F32)
        floats[e] = pixels ? 255.0f - floats[e] : 3.0f - 2.0f * floats[e];
    else if (dtype == DTYPE_BF16)
        halves[e] = float_to_bfloat16(3.0f - 2.0f * bfloat16_to_float(halves[e]));
    else if (pixels) /* 8 bits wide */
        bytes[e] = (uint8_t)(bytes[e] ^ 0xffu);
}

/* Other numbers in every row but the first, of float inputs and images that have rows. */
static void change_neighbours(const struct session *session, const struct compiled *c,
                              struct feed *feed)
{
    for (size_t i = 0; i < session->input_count; i++) {
        const struct value *value = c->graph->inputs[i];
        if (value->shape.rank < 1 || value->shape.dims[0] != c->size)
            continue;
        size_t count = shape_count(&value->shape), row = count / (size_t)c->size;
        bool pixels = is_image_of_integers(session, i);
        for (size_t e = row; e < count; e++)
            change_number(feed->buffers[i], value->dtype, e, pixels);
    }
}

/* Is the first row of every output that has rows the same, to the bit? */
static bool first_rows_equal(const struct session *session, const struct compiled *c,
                             const struct tensor *const *outputs, void *const *kept)
{
    for (size_t i = 0; i < session->output_count; i++) {
        const struct shape *shape = &outputs[i]->shape;
        if (kept[i] && shape->rank >= 1 && shape->dims[0] == c->size &&
            memcmp(outputs[i]->data, kept[i], outputs[i]->bytes / (size_t)c->size) != 0)
            return false;
    }
    return true;
}

enum status session_rows_ignore_neighbours(struct session *session, bool *ret, struct error *err)
{
    const struct timing_profile *known = session->options.known_times;
    const bool briefly = known && known->rows_checked;
    struct compiled *c = &session->compiled[briefly ? 1 : session->compiled_count - 1];
    struct feed feed = {0};
    const struct tensor **outputs = alloc_array(session->output_count, sizeof *outputs);
    void **kept = alloc_array(session->output_count, sizeof *kept);
    enum status status = STATUS_OK;
    *ret = true;
    if (!outputs || !kept)
        status = session_no_memory(err);
    if (status == STATUS_OK)
        status = feed_init(session, c, &feed, err);
    if (status == STATUS_OK)
        status = compiled_run(session, c, (const void *const *)feed.buffers, NULL, outputs, err);
    for (size_t i = 0; status == STATUS_OK && i < session->output_count; i++) {
        if (outputs[i]->shape.rank < 1 || outputs[i]->shape.dims[0] != c->size)
            continue;
        size_t bytes = outputs[i]->bytes / (size_t)c->size;
        kept[i] = malloc(bytes + 1);
        if (kept[i])
            memcpy(kept[i], outputs[i]->data, bytes);
        else
            status = session_no_memory(err);
    }
    if (status == STATUS_OK) {
        change_neighbours(session, c, &feed);
        status = compiled_run(session, c, (const void *const *)feed.buffers, NULL, outputs, err);
    }
    if (status == STATUS_OK)
        *ret = first_rows_equal(session, c, outputs, kept);
    /* Made-up axes or indices may be invalid, which says nothing about the model. */
    if (status == STATUS_SHAPE || status == STATUS_MODEL || status == STATUS_INVALID)
        status = STATUS_OK;
    feed_done(&feed);
    for (size_t i = 0; kept && i < session->output_count; i++)
        free(kept[i]);
    free(kept);
    free(outputs);
    return status;
}

enum status session_profile(struct session *session, int batch, int runs, struct session_step **ret,
                            size_t *ret_count, struct error *err)
{
    enum { MOST_STEPS = 16384 };
    const struct compiled *c = compiled_for(session, batch);
    if (!c)
        return error_set(err, STATUS_INVALID, "no batch size %d", batch);
    struct session_step *best = alloc_array(MOST_STEPS, sizeof *best);
    struct session_step *once = alloc_array(MOST_STEPS, sizeof *once);
    struct feed feed = {0};
    size_t count = 0;
    enum status status = best && once ? feed_init(session, c, &feed, err) : session_no_memory(err);
    for (int run = 0; status == STATUS_OK && run < runs; run++) {
        status = session->ops->profile(c->program, (const void *const *)feed.buffers, once,
                                       MOST_STEPS, &count, err);
        for (size_t i = 0; status == STATUS_OK && i < count; i++)
            if (run == 0 || once[i].milliseconds < best[i].milliseconds)
                best[i] = once[i];
    }
    feed_done(&feed);
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
    const struct compiled *c = compiled_for(session, batch);
    char device[DEVICE_TEXT];
    if (!c || runs < 1)
        return error_set(err, STATUS_INVALID, "no %d passes of batch size %d", runs, batch);
    if (!session->ops->time)
        return error_set(err, STATUS_UNSUPPORTED, "%s computes in the host's memory",
                         device_text(session->info.device, device));
    if (c->tail)
        return error_set(err, STATUS_UNSUPPORTED, "a part of the graph depends on data");
    struct feed feed;
    enum status status = feed_init(session, c, &feed, err);
    if (status == STATUS_OK)
        status =
            session->ops->time(c->program, (const void *const *)feed.buffers, runs, ret_ms, err);
    feed_done(&feed);
    return status;
}
