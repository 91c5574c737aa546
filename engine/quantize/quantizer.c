/* Prepares a graph, observes it in float32, and makes quantized graphs from it. */
#include "engine/quantize/quantizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/op/resolve.h"
#include "engine/passes/edit.h"
#include "engine/quantize/quantize_rewrite.h"
#include "engine/quantize/quantize_smooth.h"

struct quantizer {
    struct graph *graph;         /* float32; nodes and values do not change */
    struct shape *shapes;        /* by value index: the shape for one image, which may be unknown */
    bool *is_float;              /* by value index: an activation in float32 of known shape */
    struct number_range *ranges; /* by value index: of tensors that a plan stores */
    struct quantizer_layer *layers;
    size_t layer_count;
    int weight_max;
};

bool quantizer_is_quantized(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const char *name = op_name(graph->nodes[n]->op);
        if (strstr(name, "QuantizeLinear") || strstr(name, "DequantizeLinear") ||
            strstr(name, "QLinear") || strstr(name, "Integer") || strstr(name, "NBits"))
            return true;
    }
    return false;
}

/* ---- preparing the graph ---- */

/* Restores outputs' names, dtypes and shapes: passes may replace an output by another value. */
static enum status keep_outputs(const struct graph *from, struct graph *graph, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    for (size_t i = 0; i < graph->output_count && edit.status == STATUS_OK; i++) {
        const struct value *declared = from->outputs[i];
        struct value *value = graph->outputs[i];
        /* Passes rely on constants' shapes, so a constant has the shape of its tensor. */
        const struct tensor *constant = value->known;
        bool is_shared = constant || !value->producer;
        for (size_t k = 0; k < i; k++)
            is_shared = is_shared || graph->outputs[k] == value;
        if (is_shared && strcmp(value->name, declared->name) != 0) {
            value = edit_insert_value(&edit, graph->node_count, OP_IDENTITY, graph->opset,
                                      declared->name, &value, 1, declared->dtype, NULL);
            if (!value)
                break;
            graph->outputs[i] = value;
        }
        value->name = arena_copy_text(graph->arena, declared->name, strlen(declared->name));
        value->dtype = declared->dtype;
        value->shape = constant ? constant->shape : declared->shape;
        for (int d = 0; d < TENSOR_MAX_RANK; d++)
            if (!constant && declared->dim_names[d] &&
                !(value->dim_names[d] = arena_copy_text(graph->arena, declared->dim_names[d],
                                                        strlen(declared->dim_names[d]))))
                return error_no_memory(err, "while quantizing");
        TRY(check_memory(value->name, "while quantizing", err));
    }
    return edit_end(&edit);
}

static enum status allocate(struct quantizer *q, struct error *err)
{
    const size_t nodes = q->graph->node_count, values = q->graph->value_count;
    struct arena *arena = q->graph->arena;
    q->shapes = arena_alloc(arena, values, sizeof *q->shapes);
    q->is_float = arena_alloc(arena, values, sizeof *q->is_float);
    q->ranges = arena_alloc(arena, values, sizeof *q->ranges);
    q->layers = arena_alloc(arena, nodes, sizeof *q->layers);
    TRY(check_memory(q->shapes && q->is_float && q->ranges && q->layers, "while quantizing", err));
    for (size_t n = 0; n < nodes; n++)
        if (quantize_kind_of(q->graph->nodes[n]) == QUANTIZE_LAYER)
            q->layers[q->layer_count++].node = q->graph->nodes[n];
    return q->layer_count ? STATUS_OK
                          : error_set(err, STATUS_UNSUPPORTED,
                                      "the model has no Conv, Gemm or MatMul with constant float32 "
                                      "weights, so there is nothing to quantize");
}

enum status quantizer_create(const struct graph *graph, int weight_max, struct quantizer **ret,
                             struct error *err)
{
    if (quantizer_is_quantized(graph))
        return error_set(err, STATUS_UNSUPPORTED,
                         "the model is quantized already; name the float32 model that it was made "
                         "from");
    struct quantizer *q = calloc(1, sizeof *q);
    TRY(check_memory(q, "while quantizing", err));
    q->weight_max = weight_max;
    enum status status = graph_clone(graph, &q->graph, err);
    IF_OK(status, optimize_weights(q->graph, err));
    IF_OK(status, keep_outputs(graph, q->graph, err));
    IF_OK(status, graph_sort(q->graph, err));
    IF_OK(status, allocate(q, err));
    if (status != STATUS_OK) {
        quantizer_free(q);
        return status;
    }
    *ret = q;
    return STATUS_OK;
}

void quantizer_free(struct quantizer *q)
{
    if (!q)
        return;
    graph_free(q->graph);
    free(q);
}

struct quantizer_layer *quantizer_layers(struct quantizer *q, size_t *ret_count)
{
    *ret_count = q->layer_count;
    return q->layers;
}

/* ---- shapes ---- */

/* Infers shapes for one image, on a clone: some values are constant only for this batch size. */
static enum status infer_shapes(struct quantizer *q, const struct session_options *options,
                                struct error *err)
{
    struct graph *copy;
    struct session_options declared = *options;
    declared.image_layout = IMAGE_AS_DECLARED;
    TRY(session_specialise(q->graph, &declared, 1, &copy, err));
    for (size_t v = 0; v < q->graph->value_count; v++) {
        const struct value *value = copy->values[v];
        q->shapes[v] = value->shape;
        q->is_float[v] = value->dtype == DTYPE_F32 && !q->graph->values[v]->known &&
                         shape_is_known(&value->shape) && shape_count(&value->shape) > 0;
    }
    graph_free(copy);
    return STATUS_OK;
}

/* Sets the layers' work: each weight of a channel is multiplied once for each number of the
 * output's channel. */
static void count_work(struct quantizer *q)
{
    for (size_t i = 0; i < q->layer_count; i++) {
        const struct node *node = q->layers[i].node;
        const struct shape *y = &q->shapes[node->outputs[0]->index];
        if (shape_is_known(y) && shape_count(y))
            q->layers[i].work = (double)shape_count(y) /
                                (double)y->dims[node->op == OP_CONV ? 1 : y->rank - 1] *
                                (double)shape_count(&node->inputs[1]->known->shape);
    }
}

/* ---- observing activations ---- */

/* A group of tensors that one session returns as outputs, to be observed. */
struct observed_part {
    const struct quantizer *q;
    size_t *indices;
    const struct tensor **outputs;
    size_t count;
    struct session *session;
    double begin, share; /* of all progress, 0 … 1: where this part begins, and its share */
};

static enum status run_images(const struct observed_part *part,
                              const struct quantizer_images *images, bool is_counting,
                              struct error *err)
{
    for (size_t i = 0; i < images->count; i++) {
        const void *input;
        TRY(images->read(images->context, i, &input, err));
        TRY(session_run(part->session, 1, &input, part->outputs, err));
        for (size_t k = 0; k < part->count; k++) {
            const struct tensor *tensor = part->outputs[k];
            struct number_range *range = &part->q->ranges[part->indices[k]];
            const size_t count = shape_count(&tensor->shape);
            if (!is_counting)
                range_extend(range, tensor->data, count);
            else if (range->bins)
                range_count(range, tensor->data, count);
        }
        const double done = ((double)(i + 1) / (double)images->count + is_counting) / 2;
        if (images->on_progress)
            images->on_progress(images->context, part->begin + part->share * done);
    }
    return STATUS_OK;
}

/* Returns the channel dimension of value v: 1 for images, the last one for inputs of products. */
static int channel_axis(const struct quantizer *q, size_t v)
{
    const int rank = q->shapes[v].rank;
    for (size_t i = 0; i < q->layer_count; i++) {
        const struct node *layer = q->layers[i].node;
        if (layer->inputs[0]->index == v)
            return layer->op == OP_CONV ? 1 : rank - 1;
    }
    return rank == 4 ? 1 : rank ? rank - 1 : 0;
}

static enum status allocate_ranges(const struct quantizer *q, const bool *is_stored,
                                   struct error *err)
{
    for (size_t v = 0; v < q->graph->value_count; v++) {
        const struct shape *shape = &q->shapes[v];
        if (!is_stored[v])
            continue;
        const int axis = channel_axis(q, v);
        TRY(range_init(&q->ranges[v], q->graph->arena, shape->rank ? (size_t)shape->dims[axis] : 1,
                       resolve_extent(shape, axis + 1, shape->rank), err));
    }
    return STATUS_OK;
}

/* Runs all images twice: for the ranges, then for histograms within the ranges. */
static enum status observe_twice(const struct observed_part *part,
                                 const struct quantizer_images *images, struct error *err)
{
    TRY(run_images(part, images, false, err));
    for (size_t k = 0; k < part->count; k++) {
        struct number_range *range = &part->q->ranges[part->indices[k]];
        float low, high;
        if (!range_limits(range, &low, &high) || low == high)
            continue;
        range->bins = arena_alloc(part->q->graph->arena, RANGE_BINS, sizeof *range->bins);
        TRY(check_memory(range->bins, "while quantizing", err));
    }
    return run_images(part, images, true, err);
}

static enum status observe_part(struct observed_part *part, const struct session_options *options,
                                const struct quantizer_images *images, struct error *err)
{
    struct graph *graph;
    struct session_options own = *options;
    own.precision = PRECISION_FP32;
    own.max_batch = 1;
    own.trial = true;
    TRY(graph_clone(part->q->graph, &graph, err));
    graph->output_count = part->count;
    graph->outputs = arena_alloc(graph->arena, part->count, sizeof *graph->outputs);
    for (size_t k = 0; graph->outputs && k < part->count; k++)
        graph->outputs[k] = graph->values[part->indices[k]];
    enum status status = check_memory(graph->outputs, "while quantizing", err);
    IF_OK(status, session_create(graph, &own, &part->session, err));
    graph_free(graph);
    IF_OK(status, session_enter(part->session, err));
    IF_OK(status, observe_twice(part, images, err));
    session_free(part->session);
    return status;
}

static size_t observed_bytes(const struct quantizer *q, size_t v)
{
    return shape_count(&q->shapes[v]) * sizeof(float);
}

static enum status observe_all(struct quantizer *q, const struct session_options *options,
                               const struct quantizer_images *images, const bool *is_stored,
                               size_t memory, struct error *err)
{
    const size_t values = q->graph->value_count;
    size_t *indices = arena_alloc(q->graph->arena, values, sizeof *indices);
    const struct tensor **outputs = arena_alloc(q->graph->arena, values, sizeof *outputs);
    size_t total = 0, done = 0;
    TRY(check_memory(indices && outputs, "while quantizing", err));
    for (size_t v = 0; v < values; v++)
        total += is_stored[v] ? observed_bytes(q, v) : 0;
    for (size_t v = 0; v < values;) {
        struct observed_part part = {.q = q, .indices = indices, .outputs = outputs};
        size_t bytes = 0;
        for (;
             v < values && (!is_stored[v] || !part.count || bytes + observed_bytes(q, v) <= memory);
             v++) {
            if (!is_stored[v])
                continue;
            indices[part.count++] = v;
            bytes += observed_bytes(q, v);
        }
        if (!part.count)
            break;
        part.begin = (double)done / (double)total;
        part.share = (double)bytes / (double)total;
        done += bytes;
        TRY(observe_part(&part, options, images, err));
    }
    return STATUS_OK;
}

static enum status make_plan(const struct quantizer *q, const bool *is_float, bool keeps,
                             struct arena *arena, struct quantize_plan *ret, struct error *err)
{
    bool *is_kept = arena_alloc(arena, q->graph->node_count, sizeof *is_kept);
    TRY(check_memory(is_kept, "while quantizing", err));
    for (size_t i = 0; keeps && i < q->layer_count; i++)
        is_kept[edit_position(q->graph, q->layers[i].node)] = q->layers[i].is_kept;
    return quantize_plan_make(q->graph, is_kept, is_float, arena, ret, err);
}

/* Sets the declared opset to that of the newest node, but at least to 13, for a scale per channel.
 * The importer leaves only nodes that mean the same in newer opsets (models/onnx/onnx_forms.h). */
static void raise_opset(struct graph *graph)
{
    graph->opset = graph->opset < 13 ? 13 : graph->opset;
    for (size_t n = 0; n < graph->node_count; n++)
        if (!*op_domain(graph->nodes[n]->op) && graph->nodes[n]->opset > graph->opset)
            graph->opset = graph->nodes[n]->opset;
}

enum status quantizer_observe(struct quantizer *q, const struct session_options *options,
                              const struct quantizer_images *images, size_t memory,
                              struct error *err)
{
    struct quantize_plan plan;
    TRY(infer_shapes(q, options, err));
    raise_opset(q->graph);
    count_work(q);
    TRY(make_plan(q, q->is_float, false, q->graph->arena, &plan, err));
    TRY(allocate_ranges(q, plan.is_stored, err));
    return observe_all(q, options, images, plan.is_stored, memory, err);
}

/* ---- smoothing ---- */

enum status quantizer_smooth(const struct quantizer *from, struct quantizer **ret,
                             struct error *err)
{
    struct quantizer *q = calloc(1, sizeof *q);
    size_t norms = 0;
    *ret = NULL;
    TRY(check_memory(q, "while quantizing", err));
    q->weight_max = from->weight_max;
    enum status status = graph_clone(from->graph, &q->graph, err);
    IF_OK(status, quantize_smooth(q->graph, from->ranges, &norms, err));
    if (status == STATUS_OK && norms)
        status = allocate(q, err);
    if (status == STATUS_OK && norms)
        *ret = q;
    else
        quantizer_free(q);
    return status;
}

/* ---- making the quantized graph ---- */

/* Gives a move's result the scale of its input. If only a Concat reads a layer's result, gives that
 * result the scale of the Concat's result. The move and the Concat then copy numbers. */
static void share_numbers(const struct quantize_plan *plan, struct number_scale *numbers)
{
    const struct graph *graph = plan->edit.graph;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        if (plan->kinds[n] != QUANTIZE_CONCAT || !plan->is_stored[node->outputs[0]->index])
            continue;
        for (size_t i = 0; i < node->input_count; i++) {
            const struct value *input = node->inputs[i];
            const struct node *maker = quantize_before_clamp(plan, input)->producer;
            if (plan->is_stored[input->index] && edit_single_reader(&plan->edit, input) && maker &&
                plan->kinds[edit_position(graph, maker)] == QUANTIZE_LAYER)
                numbers[input->index] = numbers[node->outputs[0]->index];
        }
    }
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (plan->kinds[n] != QUANTIZE_MOVE || !plan->is_stored[node->inputs[0]->index])
            continue;
        for (size_t o = 0; o < node->output_count; o++)
            if (node->outputs[o])
                numbers[node->outputs[o]->index] = numbers[node->inputs[0]->index];
    }
}

/* Carries out a plan on `graph`, a clone of q->graph whose arena also has the plan. */
static enum status make_in(const struct quantizer *q, bool keeps, bool corrects_biases,
                           struct graph *graph, struct error *err)
{
    const size_t values = q->graph->value_count;
    const struct quantize_weights weights = {q->ranges, q->weight_max, corrects_biases};
    float low, high;
    struct quantize_plan plan;
    struct number_scale *numbers = arena_alloc(graph->arena, values, sizeof *numbers);
    bool *is_known = arena_alloc(graph->arena, values, sizeof *is_known);
    TRY(check_memory(numbers && is_known, "while quantizing", err));
    for (size_t v = 0; v < values; v++)
        is_known[v] = q->is_float[v] && range_limits(&q->ranges[v], &low, &high);
    TRY(make_plan(q, is_known, keeps, graph->arena, &plan, err));
    for (size_t v = 0; v < values; v++)
        if (plan.is_stored[v])
            numbers[v] = range_scale(&q->ranges[v], false);
    share_numbers(&plan, numbers);
    return quantize_rewrite(graph, &plan, numbers, &weights, err);
}

enum status quantizer_make(const struct quantizer *q, bool keeps, bool corrects_biases,
                           struct graph **ret, struct error *err)
{
    struct graph *graph;
    TRY(graph_clone(q->graph, &graph, err));
    const enum status status = make_in(q, keeps, corrects_biases, graph, err);
    if (status == STATUS_OK)
        *ret = graph;
    else
        graph_free(graph);
    return status;
}
