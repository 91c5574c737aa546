/* Runs quantized models in integers: replaces exporters' DequantizeLinear → operator →
 * QuantizeLinear ("QDQ") by the operator on 8-bit integers.
 *
 *     x → DQ ─┐                                    x ─┐
 *     w → DQ ─┴▶ Conv → [Relu] → Q → y      ─▶     w ─┴▶ QLinearConv → y
 *
 * A Relu or Clip is removed if the result's range ends at its limits anyway; otherwise it becomes a
 * table after the operator. Operators that only move or compare numbers (MaxPool, Reshape …) run on
 * the stored integers, followed by their DequantizeLinear. Activations become tables
 * (quantize_table.c). Other nodes do not change. */
#include "engine/passes/quantize.h"
#include "engine/op/ops.h"

#include <math.h>
#include <string.h>

#include "engine/tensor/quantized_number.h"

/* ---- clamping by storing ---- */

/* The node whose result a QuantizeLinear stores, and the clamp by a Relu or Clip between the
 * two. */
struct stored {
    struct node *producer; /* NULL: none, or the producer's or clamp's result has another reader */
    bool clamp;            /* clamp to [low, high], because storing does not do so */
    float low, high;
};

static int lowest_of(const struct ends *ends)
{
    return ends->zero->known->dtype == DTYPE_I8 ? -128 : 0;
}

/* True if storing as `to` clamps to [low, high] anyway. */
static bool clamps(const struct ends *to, double low, double high)
{
    const double scale = tensor_number(to->scale->known, 0);
    const double zero = (double)tensor_int(to->zero->known, 0), lowest = lowest_of(to);
    return (lowest - zero) * scale >= low && (lowest + 255 - zero) * scale <= high * (1 + 1e-6);
}

static struct stored stored_maker(const struct edit *edit, const struct node *quantize,
                                  const struct ends *to)
{
    struct stored stored = {.low = 0, .high = INFINITY};
    const struct value *value = quantize->inputs[0];
    struct node *node = value->producer;
    if (!node || !edit_single_reader(edit, value))
        return stored;
    if (node->op == OP_CLIP) {
        if (!edit_clip_limits(node, &stored.low, &stored.high) || !(stored.low <= stored.high))
            return stored;
    } else if (node->op != OP_RELU) {
        stored.producer = node;
        return stored;
    }
    value = node->inputs[0];
    stored.clamp = !clamps(to, (double)stored.low, (double)stored.high);
    if (edit_single_reader(edit, value))
        stored.producer = value->producer;
    return stored;
}

/* Returns `real` as a stored number. */
static int store(const struct ends *to, float real)
{
    return (int)quantized_number(real, (float)tensor_number(to->scale->known, 0),
                                 (int)tensor_int(to->zero->known, 0),
                                 to->zero->known->dtype == DTYPE_I8);
}

/* Adds an OP_LOOKUP after node n that clamps its stored numbers. Stored numbers have the same order
 * as the real numbers. */
static void add_clamp(struct edit *edit, size_t n, const struct ends *to,
                      const struct stored *stored)
{
    uint8_t table[256];
    const int low = store(to, stored->low), high = store(to, stored->high);
    const enum dtype dtype = to->zero->known->dtype;
    for (int byte = 0; byte < 256; byte++) {
        const int number = dtype == DTYPE_I8 ? (int8_t)byte : byte;
        const int above = number > low ? number : low;
        table[byte] = (uint8_t)(above < high ? above : high);
    }
    struct node *producer = edit->graph->nodes[n];
    struct value *output = producer->outputs[0];
    struct value *between = graph_add_value(edit->graph, "", dtype, &output->shape);
    struct value *inputs[2] = {between, edit_constant(edit, dtype, &SHAPE(256), table)};
    struct node *lookup = edit_insert_node(edit, n + 1, OP_LOOKUP, 1, producer->name, inputs, 2);
    if (!between || !lookup) {
        edit_no_memory(edit);
        return;
    }
    node_set_output(producer, 0, between);
    node_set_output(lookup, 0, output);
}

/* ---- operators on stored numbers ---- */

/* Reads an activation, or a stored constant in which all dimensions but the last are 1. */
static bool read_operand(const struct value *value, struct ends *ret)
{
    if (quantize_read_activation(value, ret))
        return true;
    if (!quantize_read_dequantize(value, ret) || !quantize_is_one(ret->scale) ||
        !quantize_is_one(ret->zero) || !dtype_is_8bit(ret->zero->known->dtype) ||
        !ret->stored->known || ret->stored->known->dtype != ret->zero->known->dtype)
        return false;
    const struct shape *shape = &ret->stored->known->shape;
    return shape->rank && shape_count(shape) == (size_t)shape->dims[shape->rank - 1];
}

static bool match_binary(struct edit *edit, struct node *quantize, const struct node *binary,
                         const struct ends *to)
{
    struct ends a, b;
    if (!read_operand(binary->inputs[0], &a) || !read_operand(binary->inputs[1], &b) ||
        (a.stored->known && b.stored->known) || a.zero->known->dtype != to->zero->known->dtype ||
        b.zero->known->dtype != to->zero->known->dtype)
        return false;
    struct value *inputs[8] = {a.stored, a.scale, a.zero,    b.stored,
                               b.scale,  b.zero,  to->scale, to->zero};
    return quantize_become(edit, quantize, binary,
                           binary->op == OP_ADD ? OP_QLINEAR_ADD : OP_QLINEAR_MUL, 1, inputs, 8);
}

/* True if a ReduceMean reduces axes 2 and 3 of four and keeps them as ones. */
static bool is_image_mean(const struct node *mean)
{
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    return mean->inputs[0]->shape.rank == 4 && node_int(mean, "keepdims", 1) &&
           edit_axes(mean, 1, axes, &count) && count == 2 && axes[0] + axes[1] == 5 &&
           axes[0] >= 2 && axes[0] <= 3;
}

static bool match_pool(struct edit *edit, struct node *quantize, const struct node *pool,
                       const struct ends *to)
{
    struct ends from;
    const bool is_mean = pool->op == OP_REDUCE_MEAN;
    if ((is_mean && !is_image_mean(pool)) || node_int(pool, "ceil_mode", 0) ||
        !quantize_read_activation(pool->inputs[0], &from) ||
        from.zero->known->dtype != to->zero->known->dtype)
        return false;
    struct value *inputs[5] = {from.stored, from.scale, from.zero, to->scale, to->zero};
    const bool ok = quantize_become(edit, quantize, pool,
                                    pool->op == OP_AVERAGE_POOL ? OP_QLINEAR_AVERAGE_POOL
                                                                : OP_QLINEAR_GLOBAL_AVERAGE_POOL,
                                    1, inputs, 5);
    if (is_mean)
        quantize->attr_count = 0; /* axes, keepdims */
    return ok;
}

static bool match_concat(struct edit *edit, struct node *quantize, const struct node *concat,
                         const struct ends *to)
{
    struct ends part;
    const size_t count = 2 + 3 * concat->input_count;
    struct value **inputs = arena_alloc(edit->graph->arena, count, sizeof *inputs);
    if (!inputs || !node_attr(concat, "axis"))
        return false;
    inputs[0] = to->scale;
    inputs[1] = to->zero;
    for (size_t i = 0; i < concat->input_count; i++) {
        if (!quantize_read_activation(concat->inputs[i], &part) ||
            part.zero->known->dtype != to->zero->known->dtype)
            return false;
        inputs[2 + 3 * i] = part.stored;
        inputs[3 + 3 * i] = part.scale;
        inputs[4 + 3 * i] = part.zero;
    }
    return quantize_become(edit, quantize, concat, OP_QLINEAR_CONCAT, 1, inputs, count);
}

static bool match(struct edit *edit, struct node *quantize, const struct node *producer,
                  const struct ends *to)
{
    switch (producer->op) {
    case OP_CONV:
        return quantize_conv(edit, quantize, producer, to);
    case OP_GEMM:
    case OP_MATMUL:
        return quantize_gemm(edit, quantize, producer, to);
    case OP_ADD:
    case OP_MUL:
        return match_binary(edit, quantize, producer, to);
    case OP_AVERAGE_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_REDUCE_MEAN:
        return match_pool(edit, quantize, producer, to);
    case OP_CONCAT:
        return match_concat(edit, quantize, producer, to);
    default:
        return false;
    }
}

/* ---- before the pass ---- */

/* Adds the zero point that a QuantizeLinear or DequantizeLinear omits: 0, of the stored type. */
static void add_zero(struct edit *edit, struct node *node)
{
    enum dtype dtype = (enum dtype)node_int(node, "output_dtype", DTYPE_U8);
    if (!is_f32_constant(node_input(node, 1)) || node_input(node, 2) ||
        node_int(node, "block_size", 0))
        return;
    if (node->op == OP_DEQUANTIZE_LINEAR) {
        const struct value *stored = node->inputs[0];
        const struct node *producer = stored->producer;
        dtype = stored->known ? stored->known->dtype : stored->dtype;
        if (producer && producer->op == OP_QUANTIZE_LINEAR && node_input(producer, 2) &&
            producer->inputs[2]->known)
            dtype = producer->inputs[2]->known->dtype;
    }
    if (!dtype_is_8bit(dtype))
        return;
    struct value *zero = edit_constant(edit, dtype, &node->inputs[1]->known->shape, NULL);
    if (!zero)
        return;
    memset(zero->known->data, 0, zero->known->bytes);
    struct value *inputs[3] = {node->inputs[0], node->inputs[1], zero};
    edit_set_inputs(edit, node, inputs, 3);
}

bool optimize_keeps_numbers(const struct node *node)
{
    if (node->op == OP_MAX_POOL)
        return node->opset >= 12 && !node_output(node, 1);
    if (node->op == OP_RESIZE)
        return strcmp(node_string(node, "mode", "nearest"), "nearest") == 0 &&
               strcmp(node_string(node, "coordinate_transformation_mode", "half_pixel"),
                      "tf_crop_and_resize") != 0;
    return op_has(node->op, OP_KEEPS_NUMBERS);
}

/* Turns DequantizeLinear → move into move → DequantizeLinear, with a DequantizeLinear for each
 * result of the move. */
static void sink_dequantize(struct edit *edit, size_t n)
{
    struct graph *graph = edit->graph;
    struct node *move = graph->nodes[n];
    struct ends from;
    if (!optimize_keeps_numbers(move) || !quantize_read_activation(node_input(move, 0), &from))
        return;
    const struct node *before = move->inputs[0]->producer;
    if (shape_count(&from.scale->known->shape) != 1 || from.scale->known->shape.rank > 1)
        return;
    move->inputs[0] = from.stored;
    for (size_t o = 0; o < move->output_count; o++) {
        struct value *output = move->outputs[o];
        if (!output)
            continue;
        struct value *inputs[3] = {
            graph_add_value(graph, "", from.zero->known->dtype, &output->shape), from.scale,
            from.zero};
        struct node *node = edit_insert_node(edit, n + 1, OP_DEQUANTIZE_LINEAR, before->opset,
                                             before->name, inputs, 3);
        if (!node || !inputs[0]) {
            edit_no_memory(edit);
            return;
        }
        node->attrs = before->attrs;
        node->attr_count = before->attr_count;
        node_set_output(move, o, inputs[0]);
        node_set_output(node, 0, output);
    }
}

/* ---- the pass ---- */

bool optimize_is_quantized(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const enum op op = graph->nodes[n]->op;
        if (op == OP_QUANTIZE_LINEAR || op == OP_QLINEAR_CONV || op == OP_QLINEAR_MATMUL)
            return true;
    }
    return false;
}

static void prepare(struct edit *edit)
{
    const struct graph *graph = edit->graph;
    for (size_t n = 0; n < graph->node_count && edit->status == STATUS_OK; n++) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_QUANTIZE_LINEAR || node->op == OP_DEQUANTIZE_LINEAR)
            add_zero(edit, node);
        else
            sink_dequantize(edit, n);
    }
}

static bool quantize_visit(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    struct ends to;
    if (quantize_table(edit, node))
        return true;
    if (edit->status != STATUS_OK || !quantize_read_quantize(node, &to))
        return false;
    const struct stored stored = stored_maker(edit, node, &to);
    const bool changed = stored.producer && match(edit, node, stored.producer, &to);
    if (changed && stored.clamp)
        add_clamp(edit, *n, &to, &stored);
    return changed;
}

static bool product_visit(struct edit *edit, size_t *n)
{
    return quantize_product(edit, edit->graph->nodes[*n]);
}

enum status optimize_quantized(struct graph *graph, bool multiplies_to_float, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    TRY(graph_sort(graph, err));
    prepare(&edit);
    edit_nodes(&edit, quantize_visit);
    if (multiplies_to_float)
        edit_nodes(&edit, product_visit);
    return edit_end(&edit);
}
