/* A session is a list of compiled batch sizes over one backend.
 *
 *     graph ─ clone ─▶ base ─ optimize_weights ─▶ per batch size: clone ─ optimize_specialise
 *       ─ optimize_split ─▶ static part ─ optimize_kernels ─▶ program (backend)
 *                       └─▶ data-dependent tail, run by the interpreter
 *
 * Everything is made in session_create(), on the loader's thread; afterwards one lane's thread owns
 * the session. */
#include "engine/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/interpret.h"
#include "engine/optimize/edit.h"

/* One batch size. */
struct compiled {
    int size;
    struct graph *graph; /* static part; constants dropped once compiled */
    struct graph *tail;  /* NULL without data-dependent nodes */
    int *output_of;      /* see optimize_split */
    size_t crossing;     /* outputs of the static part that feed the tail: the last ones */
    struct program *program;
    const void **static_data;
    struct tensor **tensors; /* the session's outputs: wrappers of static data, or tail results */
    struct tensor **tail_inputs; /* wrappers */
    struct tensor **tail_outputs;
};

struct session {
    const struct backend_ops *ops;
    struct backend *backend;
    struct session_info info;
    struct graph *base; /* only while creating */
    size_t input_count, output_count;
    struct session_tensor *inputs, *outputs;
    struct compiled compiled[SESSION_MAX_BATCHES];
    size_t compiled_count;
    struct budget tail_budget; /* of the data-dependent parts of one run */
    struct compiled *last;     /* whose tail outputs are alive */
    struct session_options options;
    bool image_is_integer; /* the file wants integers where the caller feeds float32 */
};

const char *precision_name(enum precision precision)
{
    return precision == PRECISION_BF16 ? "bf16" : "fp32";
}

static enum status no_memory(struct error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory while creating a session");
}

/* ---- one batch size ---- */

static void drop_tail_outputs(struct session *session, struct compiled *c)
{
    for (size_t i = 0; c->tail && c->tail_outputs && i < c->tail->output_count; i++) {
        tensor_unref(c->tail_outputs[i]);
        c->tail_outputs[i] = NULL;
    }
    if (session->last == c)
        session->last = NULL;
}

static void compiled_done(struct session *session, struct compiled *c)
{
    drop_tail_outputs(session, c);
    if (c->program)
        session->ops->free_program(c->program);
    for (size_t i = 0; c->tensors && i < session->output_count; i++)
        if (!c->output_of || c->output_of[i] >= 0)
            tensor_unref(c->tensors[i]);
    for (size_t i = 0; c->tail_inputs && i < c->crossing; i++)
        tensor_unref(c->tail_inputs[i]);
    graph_free(c->tail);
    free(c->static_data);
    free(c->tensors);
    free(c->tail_inputs);
    free(c->tail_outputs);
    graph_free(c->graph); /* output_of lies in its arena */
    *c = (struct compiled){0};
}

/* Wrappers that point at the program's output memory; where that is, a run tells. */
static enum status wrap_outputs(struct session *session, struct compiled *c, struct error *err)
{
    struct graph *graph = c->graph;
    c->static_data = alloc_array(graph->output_count, sizeof *c->static_data);
    c->tensors = alloc_array(session->output_count, sizeof *c->tensors);
    c->tail_inputs = alloc_array(c->crossing, sizeof *c->tail_inputs);
    c->tail_outputs = alloc_array(c->tail ? c->tail->output_count : 0, sizeof *c->tail_outputs);
    if (!c->static_data || !c->tensors || !c->tail_inputs || !c->tail_outputs)
        return no_memory(err);
    for (size_t i = 0; i < session->output_count; i++) {
        if (c->output_of[i] < 0)
            continue;
        const struct value *value = graph->outputs[c->output_of[i]];
        TRY(tensor_wrap(value->dtype, &value->shape, DEVICE_HOST, NULL, NULL, NULL, &c->tensors[i],
                        err));
    }
    for (size_t i = 0; i < c->crossing; i++) {
        const struct value *value = graph->outputs[graph->output_count - c->crossing + i];
        TRY(tensor_wrap(value->dtype, &value->shape, DEVICE_HOST, NULL, NULL, NULL,
                        &c->tail_inputs[i], err));
    }
    return STATUS_OK;
}

/* Programs keep references to the constants they read; the graph need not hold them too. */
static void drop_constants(struct graph *graph)
{
    for (size_t v = 0; v < graph->value_count; v++) {
        tensor_unref(graph->values[v]->known);
        graph->values[v]->known = NULL;
    }
}

static enum status input_shape(const struct session *session, size_t i, int batch,
                               struct shape *ret, struct error *err)
{
    const struct value *value = session->base->inputs[i];
    const struct session_options *options = &session->options;
    struct shape shape = value->shape;
    char text[SHAPE_TEXT];
    if (shape.rank < 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "input '%s' declares no shape; re-export the "
                         "model with one",
                         value->name);
    bool image = i == options->image_input;
    if (shape.rank > 0 && (shape.dims[0] == DIM_UNKNOWN || (image && shape.dims[0] == 1)))
        shape.dims[0] = batch;
    if (image && shape.rank == 4) {
        bool last = options->image_channels_last || options->image_layout == IMAGE_NHWC_F32;
        int h = last ? 1 : 2, w = last ? 2 : 3, c = last ? 3 : 1;
        if (shape.dims[h] == DIM_UNKNOWN && options->image_height)
            shape.dims[h] = options->image_height;
        if (shape.dims[w] == DIM_UNKNOWN && options->image_width)
            shape.dims[w] = options->image_width;
        if (shape.dims[c] == DIM_UNKNOWN)
            shape.dims[c] = 3;
    }
    if (!shape_is_known(&shape))
        return error_set(err, STATUS_UNSUPPORTED,
                         "input '%s' has the shape %s with dimensions that are not known; "
                         "re-export the model with fixed ones",
                         value->name, shape_text(&shape, text));
    *ret = shape;
    return STATUS_OK;
}

static enum status specialise(struct session *session, struct compiled *c, struct error *err)
{
    struct shape *shapes = alloc_array(session->input_count, sizeof *shapes);
    enum status status = shapes ? graph_clone(session->base, &c->graph, err) : no_memory(err);
    for (size_t i = 0; status == STATUS_OK && i < session->input_count; i++)
        status = input_shape(session, i, c->size, &shapes[i], err);
    if (status == STATUS_OK)
        status = optimize_specialise(c->graph, shapes, err);
    free(shapes);
    return status;
}

/* The shape of output i of the session, SHAPE_NONE when it depends on data. */
static const struct value *compiled_output(const struct compiled *c, size_t i)
{
    return c->output_of[i] >= 0 ? c->graph->outputs[c->output_of[i]]
                                : c->tail->outputs[-1 - c->output_of[i]];
}

/* Does every output grow with the batch? Its first dimension is the batch, and was 1 for one image:
 * a dimension that happens to be as large does not count. */
static bool outputs_follow_batch(const struct session *session, const struct graph *graph, int size)
{
    const struct compiled *one = &session->compiled[0];
    for (size_t i = 0; i < graph->output_count; i++) {
        struct shape shape = graph->outputs[i]->shape;
        if (shape.rank < 1 || shape.dims[0] != size)
            return false;
        shape.dims[0] = 1;
        if (one->size == 1 && !shape_equal(&shape, &compiled_output(one, i)->shape))
            return false;
    }
    return true;
}

static enum status compile_size(struct session *session, int size, struct compiled *c,
                                struct error *err)
{
    *c = (struct compiled){.size = size};
    TRY(specialise(session, c, err));
    if (size > 1 && !outputs_follow_batch(session, c->graph, size))
        return error_set(err, STATUS_SHAPE, "the outputs do not follow a batch of %d", size);
    TRY(optimize_split(c->graph, &c->tail, &c->output_of, err));
    if (c->tail)
        c->crossing = c->tail->input_count;
    struct optimize_options optimize = {
        .fuse = true,
        .channels_last = true,
        .takes_channels_last = session->ops->takes_channels_last,
        .bf16 = session->options.precision == PRECISION_BF16 ? session->ops->bf16 : NULL,
    };
    TRY(optimize_kernels(c->graph, &optimize, err));
    TRY(session->ops->compile(session->backend, c->graph, &c->program, err));
    TRY(wrap_outputs(session, c, err));
    drop_constants(c->graph);
    return STATUS_OK;
}

/* ---- running ---- */

static enum status run_tail(struct session *session, struct compiled *c, struct error *err)
{
    size_t first = c->graph->output_count - c->crossing;
    for (size_t i = 0; i < c->crossing; i++)
        c->tail_inputs[i]->data = (void *)(uintptr_t)c->static_data[first + i];
    TRY(interpret(c->tail, c->tail_inputs, c->tail_outputs, &session->tail_budget, NULL, err));
    session->last = c;
    for (size_t i = 0; i < session->output_count; i++)
        if (c->output_of[i] < 0)
            c->tensors[i] = c->tail_outputs[-1 - c->output_of[i]];
    return STATUS_OK;
}

static enum status run_compiled(struct session *session, struct compiled *c, int batch,
                                const void *const *inputs, const struct tensor **outputs,
                                struct error *err)
{
    if (session->last)
        drop_tail_outputs(session, session->last);
    TRY(session->ops->run(c->program, inputs, c->static_data, err));
    if (c->tail)
        TRY(run_tail(session, c, err));
    for (size_t i = 0; i < session->output_count; i++) {
        struct tensor *tensor = c->tensors[i];
        if (c->output_of[i] >= 0) {
            tensor->data = (void *)(uintptr_t)c->static_data[c->output_of[i]];
            /* A batch of one is whole: its first dimension may be anything, also 0. */
            if (session->info.batched && c->size > 1 && tensor->shape.rank > 0) {
                size_t each = tensor->bytes / (size_t)tensor->shape.dims[0];
                tensor->shape.dims[0] = batch;
                tensor->bytes = each * (size_t)batch;
            }
        }
        outputs[i] = tensor;
    }
    return STATUS_OK;
}

static struct compiled *compiled_for(struct session *session, int n)
{
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].size >= n)
            return &session->compiled[i];
    return NULL;
}

enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err)
{
    struct compiled *c = batch > 0 ? compiled_for(session, batch) : NULL;
    if (!c)
        return error_set(err, STATUS_INTERNAL, "a batch of %d; the largest compiled is %d", batch,
                         session->compiled[session->compiled_count - 1].size);
    return run_compiled(session, c, batch, inputs, outputs, err);
}

int session_batch_for(const struct session *session, int n)
{
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].size >= n)
            return session->compiled[i].size;
    return 0;
}

/* ---- warm-up ---- */

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

/* Small numbers that differ from element to element (a fixed sequence); where the image is float32
 * only for the caller and integers inside, numbers of a pixel's range. Other integers stay 0: they
 * may be indices. */
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
        else if (dtype == DTYPE_U8)
            ((uint8_t *)data)[e] = (uint8_t)(state >> 24);
    }
}

/* Input buffers for a batch with ordinary values, so that warm-up runs the paths that requests run
 * and images differ. */
static enum status feed_init(const struct session *session, const struct compiled *c,
                             struct feed *feed, struct error *err)
{
    *feed = (struct feed){.count = session->input_count};
    feed->buffers = alloc_array(feed->count, sizeof *feed->buffers);
    if (!feed->buffers)
        return no_memory(err);
    for (size_t i = 0; i < feed->count; i++) {
        const struct value *value = c->graph->inputs[i];
        size_t count = shape_count(&value->shape), bytes = count * dtype_size(value->dtype);
        feed->buffers[i] = aligned_alloc(TENSOR_ALIGN, size_align(bytes + 1, TENSOR_ALIGN));
        if (!feed->buffers[i])
            return no_memory(err);
        memset(feed->buffers[i], 0, bytes);
        feed_numbers(feed->buffers[i], value->dtype, count,
                     i == session->options.image_input && session->image_is_integer);
    }
    return STATUS_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Up to five runs, fewer when one takes long: the first one of a size is a warm-up, unless it is
 * the only one that is affordable. */
static enum status measure(struct session *session, struct compiled *c, double *ret_ms,
                           struct error *err)
{
    enum { RUNS = 6 };
    double times[RUNS], total = 0;
    struct feed feed;
    const struct tensor **outputs = alloc_array(session->output_count, sizeof *outputs);
    enum status status = outputs ? feed_init(session, c, &feed, err) : no_memory(err);
    int runs = 0;
    while (status == STATUS_OK && runs < RUNS && (runs == 0 || total < 60)) {
        int64_t start = clock_now();
        status = run_compiled(session, c, c->size, (const void *const *)feed.buffers, outputs, err);
        times[runs] = clock_ms(clock_now() - start);
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
        double *first = runs > 1 ? times + 1 : times;
        size_t count = (size_t)(runs > 1 ? runs - 1 : 1);
        qsort(first, count, sizeof *first, compare_doubles);
        *ret_ms = first[count / 2];
    }
    if (outputs)
        feed_done(&feed);
    free(outputs);
    return status;
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
    double tolerance = session->options.precision == PRECISION_BF16 ? 0.05 : 1e-3;
    return difference <= (dtype_is_float(alone->dtype) ? tolerance * largest : 0);
}

/* A file that fixes its batch to 1 may still mean what it says for each image of a larger one, or
 * it may mix images (a Reshape to a constant). Runs two different images together and alone. */
static enum status rows_are_independent(struct session *session, bool *ret, struct error *err)
{
    struct compiled *one = &session->compiled[0], *two = &session->compiled[1];
    struct feed feed;
    const struct tensor **outputs = alloc_array(session->output_count, sizeof *outputs);
    struct tensor **together = alloc_array(session->output_count, sizeof *together);
    const void **inputs = alloc_array(session->input_count, sizeof *inputs);
    enum status status = STATUS_OK;
    *ret = true;
    if (!outputs || !together || !inputs)
        status = no_memory(err);
    bool fed = status == STATUS_OK;
    if (fed)
        status = feed_init(session, two, &feed, err);
    if (status == STATUS_OK)
        status = run_compiled(session, two, 2, (const void *const *)feed.buffers, outputs, err);
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
        status = run_compiled(session, one, 1, inputs, outputs, err);
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

/* ---- create ---- */

/* Makes the image input [N, H, W, C] float32 whatever the file declares: a Transpose (which the
 * layout pass takes out again) and a Cast behind a new input. */
static enum status feed_channels_last(struct session *session, struct error *err)
{
    struct graph *graph = session->base;
    const struct session_options *options = &session->options;
    if (options->image_layout != IMAGE_NHWC_F32 || options->image_input >= graph->input_count)
        return STATUS_OK;
    struct value *declared = graph->inputs[options->image_input];
    if (declared->shape.rank != 4)
        return error_set(err, STATUS_UNSUPPORTED,
                         "input '%s' is not an image: it has %d dimensions, "
                         "an image has 4",
                         declared->name, declared->shape.rank);
    static const int64_t to_nchw[4] = {0, 3, 1, 2};
    struct shape shape = declared->shape;
    if (!options->image_channels_last)
        shape = (struct shape){4, {shape.dims[0], shape.dims[2], shape.dims[3], shape.dims[1]}};
    struct value *fed = graph_add_value(graph, declared->name, DTYPE_F32, &shape);
    if (!fed)
        return no_memory(err);
    graph->inputs[options->image_input] = fed;
    struct value *current = fed;
    enum dtype dtype = declared->dtype;
    size_t at = 0;
    if (!options->image_channels_last) {
        struct node *node = edit_insert_node(graph, at++, OP_TRANSPOSE, "input layout", 1, 1);
        struct value *value = graph_add_value(graph, "", DTYPE_F32, &declared->shape);
        if (!node || !value || !node_set_ints(graph, node, "perm", to_nchw, 4))
            return no_memory(err);
        node->opset = 13;
        node->inputs[0] = current;
        node_set_output(node, 0, value);
        current = value;
    }
    session->image_is_integer = !dtype_is_float(dtype);
    /* float16 is computed in float32 where that can be: the Cast is then dropped */
    if (dtype != DTYPE_F32) {
        struct node *node = edit_insert_node(graph, at++, OP_CAST, "input type", 1, 1);
        struct value *value = graph_add_value(graph, "", dtype, &declared->shape);
        if (!node || !value || !node_set_int(graph, node, "to", dtype))
            return no_memory(err);
        node->opset = 13;
        node->inputs[0] = current;
        node_set_output(node, 0, value);
        current = value;
    }
    edit_replace(graph, declared, current);
    return STATUS_OK;
}

/* As for one image, also where the file fixes a larger batch. */
static struct session_tensor described(const struct compiled *c, const char *name,
                                       const struct value *value)
{
    struct shape shape = value->shape;
    if (c->size > 1 && shape.rank > 0 && shape.dims[0] == c->size)
        shape.dims[0] = 1;
    return (struct session_tensor){name, value->dtype, shape};
}

/* `graph` has the names: passes replace values. */
static enum status describe(struct session *session, const struct graph *graph, struct error *err)
{
    const struct compiled *c = &session->compiled[0];
    session->inputs = alloc_array(session->input_count, sizeof *session->inputs);
    session->outputs = alloc_array(session->output_count, sizeof *session->outputs);
    if (!session->inputs || !session->outputs)
        return no_memory(err);
    for (size_t i = 0; i < session->input_count; i++) {
        const struct value *value = c->graph->inputs[i];
        session->inputs[i] = described(c, value->name, value);
    }
    for (size_t i = 0; i < session->output_count; i++) {
        const char *name = graph->outputs[i]->name;
        char *copy = arena_copy_text(c->graph->arena, name, strlen(name));
        if (!copy)
            return no_memory(err);
        session->outputs[i] = described(c, copy, compiled_output(c, i));
    }
    return STATUS_OK;
}

static bool cancelled(const struct session *session)
{
    return session->options.cancel && *session->options.cancel;
}

static void progress(const struct session *session, double fraction)
{
    if (session->options.on_progress)
        session->options.on_progress(session->options.progress_context, fraction);
}

static bool file_fixes_batch(const struct session *session)
{
    const struct session_options *options = &session->options;
    return options->image_input < session->input_count &&
           session->base->inputs[options->image_input]->shape.rank > 0 &&
           session->base->inputs[options->image_input]->shape.dims[0] >= 1;
}

/* Multiply-adds of one image, times two; what a backend does besides is small beside it. */
static double graph_flops(const struct graph *graph)
{
    double flops = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        bool conv = node->op == OP_CONV || node->op == OP_QLINEAR_CONV;
        const struct value *y = node_output(node, 0);
        const struct value *b = node_input(node, node->op == OP_QLINEAR_CONV ? 3 : 1);
        if ((!conv && node->op != OP_GEMM && node->op != OP_MATMUL) || !y || !b ||
            !shape_is_known(&y->shape) || !shape_is_known(&b->shape) || b->shape.rank < 1 ||
            y->shape.rank < 1) /* the product of two vectors is a scalar */
            continue;
        const struct shape *w = &b->shape;
        double columns = conv ? (double)w->dims[0] : (double)y->shape.dims[y->shape.rank - 1];
        if (columns > 0)
            flops += 2 * (double)shape_count(&y->shape) * (double)shape_count(w) / columns;
    }
    return flops;
}

/* Splitting a loop over threads costs some ten microseconds each time; a model that one core runs
 * in a fraction of a millisecond is faster on one, and leaves the others to the decode workers. */
static enum status choose_threads(struct session *session, struct error *err)
{
    static const double small = 16e6;
    if (session->options.threads > 0)
        return STATUS_OK;
    struct compiled probe = {.size = 1};
    enum status status = specialise(session, &probe, err);
    session->options.threads =
        status == STATUS_OK && graph_flops(probe.graph) < small ? 1 : device_cpu_threads();
    session->info.threads = session->options.threads;
    graph_free(probe.graph);
    return status;
}

/* Compiles 1, 2, 4 … max; a size that the graph does not allow ends the list. */
static enum status compile_all(struct session *session, struct error *err)
{
    enum { MOST_IMAGES = 4096 };
    int sizes[SESSION_MAX_BATCHES], count = 0;
    int max = session->options.max_batch > 0 ? session->options.max_batch : 1;
    int fixed = 0;
    if (file_fixes_batch(session)) {
        int64_t batch = session->base->inputs[session->options.image_input]->shape.dims[0];
        if (batch > MOST_IMAGES)
            return error_set(err, STATUS_UNSUPPORTED,
                             "the file fixes its batch to %lld images, at most %d run together; "
                             "re-export the model with a smaller batch",
                             (long long)batch, MOST_IMAGES);
        fixed = (int)batch;
    }
    if (fixed > 1) {
        sizes[count++] = fixed; /* the file runs this size and no other */
    } else {
        for (int b = 1; b < max && count < SESSION_MAX_BATCHES - 1; b *= 2)
            sizes[count++] = b;
        sizes[count++] = max;
    }
    session->info.batched = true;
    for (int i = 0; i < count; i++) {
        if (cancelled(session))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        struct compiled *c = &session->compiled[i];
        enum status status = compile_size(session, sizes[i], c, err);
        session->compiled_count = (size_t)i + 1;
        if (status != STATUS_OK && i > 0 && status != STATUS_NO_MEMORY) {
            compiled_done(session, c);
            session->compiled_count--;
            session->info.batched = i > 1;
            if (i > 1)
                snprintf(session->info.note, sizeof session->info.note,
                         "batches above %d do not compile: %.100s", sizes[i - 1], err->message);
            else
                snprintf(session->info.note, sizeof session->info.note,
                         "images are run one by one: %.120s", err->message);
            break;
        }
        TRY(status);
        progress(session, 0.6 * (i + 1) / count);
    }
    return STATUS_OK;
}

static enum status check_fixed_batch(struct session *session, struct error *err)
{
    if (!file_fixes_batch(session) || session->compiled_count < 2)
        return STATUS_OK;
    bool independent;
    TRY(rows_are_independent(session, &independent, err));
    if (independent) {
        snprintf(session->info.note, sizeof session->info.note,
                 "the file fixes its batch to 1; its graph allows batches, checked");
        return STATUS_OK;
    }
    while (session->compiled_count > 1)
        compiled_done(session, &session->compiled[--session->compiled_count]);
    session->info.batched = false;
    snprintf(session->info.note, sizeof session->info.note,
             "images are run one by one: the file fixes its batch to 1 and mixes images otherwise");
    return STATUS_OK;
}

static enum status measure_all(struct session *session, struct error *err)
{
    for (size_t i = 0; i < session->compiled_count; i++) {
        if (cancelled(session))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        struct compiled *c = &session->compiled[i];
        struct session_batch *batch = &session->info.batches[i];
        batch->size = c->size;
        batch->activation_bytes = session->ops->activation_bytes(c->program);
        if (batch->activation_bytes > session->info.activation_bytes)
            session->info.activation_bytes = batch->activation_bytes;
        TRY(measure(session, c, &batch->milliseconds, err));
        progress(session, 0.6 + 0.4 * (double)(i + 1) / (double)session->compiled_count);
    }
    session->info.batch_count = session->compiled_count;
    return STATUS_OK;
}

static enum status build(struct session *session, const struct graph *graph, struct error *err)
{
    TRY(graph_clone(graph, &session->base, err));
    session->input_count = graph->input_count;
    session->output_count = graph->output_count;
    TRY(feed_channels_last(session, err));
    TRY(optimize_weights(session->base, err));
    TRY(choose_threads(session, err));
    struct backend_options options = {session->options.device, session->options.precision,
                                      session->options.threads};
    TRY(session->ops->open(&options, &session->backend, err));
    TRY(compile_all(session, err));
    size_t limit = session->options.memory_limit, largest = 0;
    for (size_t i = 0; i < session->compiled_count; i++) {
        size_t bytes = session->ops->activation_bytes(session->compiled[i].program);
        largest = bytes > largest ? bytes : largest;
    }
    size_t weights = session->ops->weight_bytes(session->backend);
    if (limit && (weights > limit || largest > limit - weights))
        return error_set(
            err, STATUS_NO_MEMORY,
            "the model needs %zu bytes of weights and %zu of activations, the limit is "
            "%zu; lower --max-batch or raise the limit",
            weights, largest, limit);
    TRY(session->ops->reserve(session->backend, err));
    TRY(describe(session, graph, err));
    TRY(check_fixed_batch(session, err));
    graph_free(session->base);
    session->base = NULL;
    TRY(measure_all(session, err));
    session->info.parameter_bytes = weights;
    session->info.node_count = session->compiled[0].graph->node_count;
    return STATUS_OK;
}

/* Where a further backend is entered. */
static const struct backend_ops *backend_find(enum device_kind kind)
{
    switch (kind) {
    case DEVICE_CPU:
        return &backend_cpu;
    case DEVICE_CUDA:
        break;
    }
    return NULL;
}

enum status session_create(const struct graph *graph, const struct session_options *options,
                           struct session **ret, struct error *err)
{
    const struct backend_ops *ops = backend_find(options->device.kind);
    if (!ops)
        return error_set(err, STATUS_DEVICE, "this version of lensd has no CUDA backend");
    if (options->precision == PRECISION_BF16 && !device_cpu_has_bf16())
        return error_set(err, STATUS_DEVICE,
                         "--precision bf16 needs a CPU with AVX512-BF16 or AMX, which this one is "
                         "not; use --precision fp32");
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        return no_memory(err);
    session->ops = ops;
    /* A Loop whose results grow must not take the machine's memory. */
    uint64_t total, available;
    cpu_memory(&total, &available);
    session->tail_budget.limit = options->memory_limit ? options->memory_limit : total / 2;
    session->options = *options;
    session->info.device = options->device;
    session->info.precision = options->precision;
    session->info.threads = session->options.threads;
    struct error own;
    enum status status = build(session, graph, err ? err : &own);
    if (status != STATUS_OK) {
        session_free(session);
        return status;
    }
    *ret = session;
    return STATUS_OK;
}

void session_free(struct session *session)
{
    if (!session)
        return;
    for (size_t i = 0; i < SESSION_MAX_BATCHES; i++)
        compiled_done(session, &session->compiled[i]);
    if (session->backend)
        session->ops->close(session->backend);
    graph_free(session->base);
    free(session->inputs);
    free(session->outputs);
    free(session);
}

const struct session_info *session_info(const struct session *session)
{
    return &session->info;
}

size_t session_input_count(const struct session *session)
{
    return session->input_count;
}

size_t session_output_count(const struct session *session)
{
    return session->output_count;
}

const struct session_tensor *session_input(const struct session *session, size_t i)
{
    return &session->inputs[i];
}

const struct session_tensor *session_output(const struct session *session, size_t i)
{
    return &session->outputs[i];
}

enum status session_profile(struct session *session, int batch, int runs, struct session_step **ret,
                            size_t *ret_count, struct error *err)
{
    enum { MOST_STEPS = 16384 };
    struct compiled *c = compiled_for(session, batch);
    if (!c)
        return error_set(err, STATUS_INVALID, "no batch size %d", batch);
    struct session_step *best = alloc_array(MOST_STEPS, sizeof *best);
    struct session_step *once = alloc_array(MOST_STEPS, sizeof *once);
    struct feed feed = {0};
    size_t count = 0;
    enum status status = best && once ? feed_init(session, c, &feed, err) : no_memory(err);
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
