/* What a session finds out about itself by running on made-up numbers: how long a batch takes,
 * whether images of a batch are independent, where the time goes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/session_internal.h"

/* A run that takes so much longer than its CPU time lets expect was not alone on its cores. */
#define DISTURBED 1.2

/* Rounds of measurements of all sizes; none is begun behind the first round after so long. */
#define ROUNDS  3
#define MOST_MS 900

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

/* Small numbers that differ from element to element (a fixed sequence); in an image of integers,
 * inside or for the caller, too, numbers of a pixel's range. Other integers stay 0: they may be
 * indices. */
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

/* Input buffers for a batch with ordinary values, so that warm-up runs the paths that requests run
 * and images differ. */
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

/* The quickest of up to three runs, fewer when one takes long: what else the machine does only adds
 * to a time. The first one ever is a warm-up, unless it is the only one that is affordable. */
static enum status measure(struct session *session, struct compiled *c, bool is_warm,
                           double *ret_ms, double *ret_cpu, struct error *err)
{
    enum { RUNS = 4, ENOUGH_MS = 30 };
    double times[RUNS], cpu[RUNS], total = 0;
    struct feed feed;
    const struct tensor **outputs = alloc_array(session->output_count, sizeof *outputs);
    enum status status = outputs ? feed_init(session, c, &feed, err) : session_no_memory(err);
    int runs = 0;
    while (status == STATUS_OK && runs < RUNS && (runs == 0 || total < ENOUGH_MS)) {
        const double before = session_cpu_ms(session);
        int64_t start = clock_now();
        /* Images as the server sends them: bytes, where the session takes those. */
        status = compiled_run(session, c, (const void *const *)feed.buffers, session->all_pixels,
                              outputs, err);
        times[runs] = clock_ms(clock_now() - start);
        cpu[runs] = session_cpu_ms(session) - before;
        total += times[runs++];
    }
    /* Made-up contents may be wrong for an input that holds axes, indices or sizes: that says
     * nothing about the model, and nothing could be measured. */
    if (session->input_count > 1 &&
        (status == STATUS_SHAPE || status == STATUS_MODEL || status == STATUS_INVALID)) {
        *ret_ms = 0;
        status = STATUS_OK;
        runs = 0;
    }
    if (status == STATUS_OK && runs > 0) {
        const int first = runs > 1 && !is_warm;
        *ret_ms = times[first];
        *ret_cpu = cpu[first];
        for (int i = first + 1; i < runs; i++) {
            *ret_ms = fmin(*ret_ms, times[i]);
            *ret_cpu = fmin(*ret_cpu, cpu[i]);
        }
    }
    if (outputs)
        feed_done(&feed);
    free(outputs);
    return status;
}

/* Takes over what options.known says of this session's sizes; true when it says something of all.
 */
static bool recall_times(struct session *session)
{
    const struct session_facts *known = session->options.known;
    size_t found = 0;
    for (size_t i = 0; known && i < session->compiled_count; i++)
        for (size_t k = 0; k < known->count; k++)
            if (known->times[k].size == session->compiled[i].size &&
                known->times[k].milliseconds > 0) {
                session->info.batches[i].milliseconds = known->times[k].milliseconds;
                found++;
                break;
            }
    return found == session->compiled_count;
}

double session_believed_time(double known, double ms, double cpu)
{
    const double least = cpu > 0 ? fmin(cpu, ms) : ms;
    if (ms <= 0 || (known > 0 && known < ms && known >= SESSION_BELIEVED * least))
        return known;
    return ms;
}

/* One more measurement of compiled size number i. */
static enum status measure_size(struct session *session, size_t i, struct error *err)
{
    struct session_time *time = &session->facts.times[i];
    double ms, cpu = 0, *best = &session->info.batches[i].milliseconds;
    const bool is_warm = time->size != 0;
    TRY(measure(session, &session->compiled[i], is_warm, &ms, &cpu, err));
    if (!is_warm)
        *best = session_believed_time(*best, ms, cpu);
    else if (*best <= 0 || (ms > 0 && ms < *best))
        *best = ms;
    session->times[i].wall = is_warm ? fmin(session->times[i].wall, ms) : ms;
    session->times[i].cpu = is_warm ? fmin(session->times[i].cpu, cpu) : cpu;
    *time = (struct session_time){session->compiled[i].size, *best};
    return STATUS_OK;
}

void session_leave_out_disturbances(struct session *session)
{
    double clean = INFINITY; /* wall : CPU of the size that was disturbed least */
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->times[i].cpu > 0)
            clean = fmin(clean, session->times[i].wall / session->times[i].cpu);
    clean = fmax(clean, 1);
    for (size_t i = 0; isfinite(clean) && i < session->compiled_count; i++) {
        double *ms = &session->info.batches[i].milliseconds;
        const double alone = session->times[i].cpu * clean;
        if (alone > 0 && *ms > DISTURBED * alone)
            *ms = alone;
        session->facts.times[i].milliseconds = *ms;
    }
}

enum status session_measure(struct session *session, struct error *err)
{
    const int rounds = recall_times(session) ? 1 : ROUNDS;
    const size_t sizes = session->compiled_count;
    const int64_t start = clock_now();
    for (size_t k = 0; k < sizes * (size_t)rounds; k++) {
        if (session->options.cancel && *session->options.cancel)
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        if (k >= sizes && clock_ms(clock_now() - start) > MOST_MS)
            break;
        TRY(measure_size(session, k % sizes, err));
        const double share = (double)(k + 1) / (double)(sizes * (size_t)rounds);
        if (session->options.on_progress)
            session->options.on_progress(session->options.progress_context,
                                         PROGRESS_ROWS + (1 - PROGRESS_ROWS) * share);
    }
    session->facts.count = sizes;
    session_leave_out_disturbances(session);
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
    const struct session_facts *known = session->options.known;
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
    /* Made-up contents may not run (axes, indices): that says nothing about the model. */
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
