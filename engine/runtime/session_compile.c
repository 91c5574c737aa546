/* Compiles one batch size of a session: from the session's graph to a program of its backend. */
#include <stdio.h>

#include "engine/base/size.h"
#include "engine/op/ops.h"
#include "engine/passes/batch_independence.h"
#include "engine/passes/edit.h"
#include "engine/runtime/session_internal.h"

void compiled_done(struct session *session, struct compiled_size *c)
{
    compiled_drop_tail_outputs(session, c);
    if (c->program)
        session->ops->free_program(c->program);
    for (size_t i = 0; c->results && i < c->graph->output_count; i++)
        tensor_unref(c->results[i]);
    graph_free(c->tail);
    FREE_ALL(c->static_data, c->results, c->tail_outputs);
    graph_free(c->graph); /* also frees output_of */
    *c = (struct compiled_size){0};
}

/* Creates the tensors for the program's outputs. Each run sets their addresses. */
static enum status wrap_outputs(struct compiled_size *c, struct error *err)
{
    const size_t count = c->graph->output_count;
    c->static_data = alloc_array(count, sizeof *c->static_data);
    c->results = alloc_array(count, sizeof *c->results);
    c->tail_outputs = alloc_array(c->tail ? c->tail->output_count : 0, sizeof *c->tail_outputs);
    TRY(check_memory(c->static_data && c->results && c->tail_outputs, "while creating a session",
                     err));
    for (size_t i = 0; i < count; i++) {
        const struct value *value = c->graph->outputs[i];
        TRY(tensor_wrap(value->dtype, &value->shape, NULL, NULL, NULL, &c->results[i], err));
    }
    return STATUS_OK;
}

/* Drops the graph's references to constants: programs have their own references. */
static void drop_constants(struct graph *graph)
{
    for (size_t v = 0; v < graph->value_count; v++) {
        tensor_unref(graph->values[v]->known);
        graph->values[v]->known = NULL;
    }
}

/* True if the first dimension of input i is the batch size. */
static bool follows_batch(const struct graph *graph, const struct session_options *options,
                          size_t i)
{
    const struct shape *shape = &graph->inputs[i]->shape;
    return shape->rank > 0 &&
           (shape->dims[0] == DIM_UNKNOWN || (i == options->image_input && shape->dims[0] == 1));
}

static enum status input_shape(const struct graph *graph, const struct session_options *options,
                               size_t i, int batch, struct shape *ret, struct error *err)
{
    const struct value *value = graph->inputs[i];
    struct shape shape = value->shape;
    if (shape.rank < 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "input '%s' declares no shape; re-export the model with one", value->name);
    const bool image = i == options->image_input;
    if (follows_batch(graph, options, i))
        shape.dims[0] = batch;
    if (image && shape.rank == 4) {
        bool last = options->image_channels_last || options->image_layout != IMAGE_AS_DECLARED;
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
                         value->name, SHAPE_STRING(&shape));
    *ret = shape;
    return STATUS_OK;
}

enum status session_specialise(const struct graph *graph, const struct session_options *options,
                               int batch, struct graph **ret, struct error *err)
{
    struct graph *copy;
    TRY(graph_clone(graph, &copy, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < graph->input_count; i++)
        status = input_shape(graph, options, i, batch, &copy->inputs[i]->shape, err);
    IF_OK(status, optimize_specialise(copy, err));
    if (status == STATUS_OK)
        *ret = copy;
    else
        graph_free(copy);
    return status;
}

const struct value *compiled_output(const struct compiled_size *c, size_t i)
{
    return c->output_of[i] >= 0 ? c->graph->outputs[c->output_of[i]]
                                : c->tail->outputs[-1 - c->output_of[i]];
}

/* Checks that the first dimension of every output is the batch size, and is 1 for one image: a
 * fixed dimension may equal the batch size by chance. */
static enum status outputs_follow_batch(const struct session *session, const struct graph *graph,
                                        int size, struct error *err)
{
    const struct compiled_size *one = &session->compiled[0];
    for (size_t i = 0; i < graph->output_count; i++) {
        struct shape shape = graph->outputs[i]->shape;
        const bool has_rows = shape.rank >= 1 && shape.dims[0] == size;
        shape.dims[0] = has_rows ? 1 : shape.dims[0];
        if (!has_rows || (one->size == 1 && !shape_equal(&shape, &compiled_output(one, i)->shape)))
            return error_set(err, STATUS_SHAPE,
                             "output '%.40s' for %d images has the shape %s, whose first dimension "
                             "is not the number of images",
                             graph->outputs[i]->name, size,
                             SHAPE_STRING(&graph->outputs[i]->shape));
    }
    return STATUS_OK;
}

/* The tail always computes in float32, because box coordinates need this precision. */
static enum status open_tail_backend(struct session *session, struct error *err)
{
    struct backend_options options = {.device = session->options.device,
                                      .precision = PRECISION_FP32,
                                      .threads = session->options.threads,
                                      .poison = session->options.poison,
                                      .is_stopped = session_is_stopped,
                                      .context = session};
    if (session->tail_backend || !session->ops->run_node)
        return STATUS_OK;
    return session->ops->open(&options, &session->tail_backend, err);
}

/* Images run together only if it is proven that this does not change answers. Fixed shapes in a
 * file can make a graph mix images at some batch sizes only, so each size is checked. */
static enum status check_rows(struct session *session, const struct graph *graph, int size,
                              struct error *err)
{
    uint64_t hash;
    bool *follows = arena_alloc(session->base->arena, session->info.input_count, sizeof *follows);
    for (size_t i = 0; follows && i < session->info.input_count; i++)
        follows[i] = follows_batch(session->base, &session->options, i);
    const struct node *where = NULL;
    const bool is_proven =
        follows && batch_is_independent(graph, session->base, size, follows, &hash, &where);
    if (session->compiled_count == 0)
        session->rows_hash = is_proven ? hash : 0;
    if (session->compiled_count == 0 || (is_proven && hash == session->rows_hash))
        return STATUS_OK;
    session->rows_are_refused = true;
    return error_set(err, STATUS_SHAPE,
                     "the images of a batch of %d are not proven independent (%s)", size,
                     where                  ? NODE_STRING(where)
                     : session->fixes_batch ? "the file fixes the batch size to 1"
                                            : "the model's constants depend on the batch size");
}

static enum status check_batch(struct session *session, const struct graph *graph, int size,
                               struct error *err)
{
    if (size > 1)
        TRY(outputs_follow_batch(session, graph, size, err));
    return check_rows(session, graph, size, err);
}

void compiled_look_at_two(struct session *session)
{
    struct graph *two = NULL;
    struct error err;
    enum status status = session_specialise(session->base, &session->options, 2, &two, &err);
    IF_OK(status, check_batch(session, two, 2, &err));
    session->info.batched = status == STATUS_OK;
    session->info.rows_mix = session->rows_are_refused;
    if (status != STATUS_OK && !session->fixes_batch)
        snprintf(session->info.note, sizeof session->info.note, "images are run one by one: %.120s",
                 err.message);
    graph_free(two);
}

enum status compiled_create(struct session *session, int size, struct compiled_size *c,
                            struct error *err)
{
    *c = (struct compiled_size){.size = size};
    TRY(session_specialise(session->base, &session->options, size, &c->graph, err));
    TRY(check_batch(session, c->graph, size, err));
    TRY(optimize_split(c->graph, &c->tail, &c->output_of, err));
    if (c->tail) {
        c->crossing = c->tail->input_count;
        TRY(open_tail_backend(session, err));
    }
    const struct optimize_options optimize = {
        .fuse = true,
        .claim = session->ops->claim,
        .narrow = session->options.precision == PRECISION_FP16   ? DTYPE_F16
                  : session->options.precision == PRECISION_BF16 ? DTYPE_BF16
                                                                 : DTYPE_NONE,
        .is_int8 = session->options.precision == PRECISION_INT8,
    };
    TRY(optimize_for_backend(c->graph, &optimize, err));
    TRY(session->ops->compile(session->backend, c->graph, &c->program, err));
    if (size == 1 && !c->tail && !session->options.trial && session->ops->compile_streams)
        TRY(session->ops->compile_streams(session->backend, err));
    TRY(wrap_outputs(c, err));
    drop_constants(c->graph);
    return STATUS_OK;
}

/* Adds a new image input, [N, H, W, C] float32, whatever the file declares. A Transpose and a Cast
 * follow the new input if the file declares another layout or type. The layout pass removes the
 * Transpose. */
enum status session_feed_channels_last(struct session *session, struct error *err)
{
    struct graph *graph = session->base;
    const struct session_options *options = &session->options;
    if (options->image_layout == IMAGE_AS_DECLARED || options->image_input >= graph->input_count)
        return STATUS_OK;
    struct value *declared = graph->inputs[options->image_input];
    if (declared->shape.rank != 4)
        return error_set(err, STATUS_UNSUPPORTED,
                         "input '%s' is not an image: it has %d dimensions, an image has 4",
                         declared->name, declared->shape.rank);
    static const int64_t to_nchw[4] = {0, 3, 1, 2};
    struct edit edit = {.graph = graph, .err = err};
    struct shape shape = declared->shape;
    if (!options->image_channels_last)
        shape = (struct shape){4, {shape.dims[0], shape.dims[2], shape.dims[3], shape.dims[1]}};
    struct value *fed = graph_add_value(graph, declared->name, DTYPE_F32, &shape);
    TRY(check_memory(fed, "while creating a session", err));
    graph->inputs[options->image_input] = fed;
    struct value *current = fed;
    enum dtype dtype = declared->dtype;
    size_t at = 0;
    if (!options->image_channels_last) {
        current = edit_insert_value(&edit, at++, OP_TRANSPOSE, 13, "input layout", &fed, 1,
                                    DTYPE_F32, &declared->shape);
        TRY(check_memory(current && node_set_ints(graph, current->producer, "perm", to_nchw, 4),
                         "while creating a session", err));
    }
    session->image_is_integer = !dtype_is_float(dtype);
    /* sessions compute float16 in float32 if possible, and then drop the Cast */
    if (dtype != DTYPE_F32) {
        current = edit_insert_cast(&edit, at, "input type", current, dtype);
        TRY(check_memory(current, "while creating a session", err));
    }
    edit_replace(graph, declared, current);
    return STATUS_OK;
}

/* Splitting a loop over threads costs about ten microseconds. A model that one core runs in a
 * fraction of a millisecond is faster on one thread, and the decoders can use the other cores. */
enum status session_choose_threads(struct session *session, struct error *err)
{
    static const double small = 8e6; /* in units of node_work() */
    double work = 0;
    if (session->options.threads > 0)
        return STATUS_OK;
    struct graph *one;
    TRY(session_specialise(session->base, &session->options, 1, &one, err));
    for (size_t n = 0; n < one->node_count; n++)
        work += node_work(one->nodes[n]);
    graph_free(one);
    session->options.threads = work < small ? 1 : device_cpu_threads();
    session->info.threads = session->options.threads;
    return STATUS_OK;
}
