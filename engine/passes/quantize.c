/* Runs quantized models in integers: replaces exporters' DequantizeLinear → operator →
 * QuantizeLinear ("QDQ") by the operator on 8-bit integers.
 *
 *     x → DQ ─┐                                    x ─┐
 *     w → DQ ─┴▶ Conv → [Relu] → Q → y      ─▶     w ─┴▶ QLinearConv → y
 *
 * A Relu or Clip is removed if the range of the stored result ends at the limits of the Relu or
 * Clip anyway; otherwise it becomes a table after the operator. Operators that only move or compare
 * numbers (MaxPool, Reshape …) run on the stored integers, followed by their DequantizeLinear.
 * Activations become tables (quantize_table.c). Other nodes do not change. */
#include "engine/passes/quantize.h"
#include "engine/op/ops.h"

#include <math.h>
#include <string.h>

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

static bool match_pool(struct edit *edit, struct node *quantize, const struct node *pool,
                       const struct ends *to)
{
    struct ends from;
    const bool is_mean = pool->op == OP_REDUCE_MEAN;
    if ((is_mean && !(pool->inputs[0]->shape.rank == 4 && edit_is_mean(pool, SPATIAL_AXES))) ||
        node_int(pool, "ceil_mode", 0) || !quantize_read_activation(pool->inputs[0], &from) ||
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
    case OP_GEMM:
    case OP_MATMUL:
        return quantize_product(edit, quantize, producer, to);
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

/* ---- preparing the graph ---- */

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
    struct value *inputs[3] = {node->inputs[0], node->inputs[1], zero};
    if (zero)
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

/* ---- optimize_quantized() ---- */

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

/* True for a Relu, or a Clip to a range that is not empty. */
static bool is_clamp(const struct node *node)
{
    float low, high;
    return node && (node->op == OP_RELU ||
                    (node->op == OP_CLIP && edit_clip_limits(node, &low, &high) && low <= high));
}

/* For the sequence of an operator, a clamp (Relu or Clip) and the QuantizeLinear at *n: quantizes
 * before the clamp, too. The clamp then becomes a table, or is removed if the stored range ends at
 * the clamp's limits. */
static bool split_clamp(struct edit *edit, size_t *n, struct node *clamp, const struct ends *to)
{
    struct node *quantize = edit->graph->nodes[*n];
    struct value *x = clamp->inputs[0];
    const size_t at = edit_position(edit->graph, clamp);
    struct value *inputs[3] = {x, to->scale, to->zero};
    if (!x->producer || !edit_single_reader(edit, x))
        return false;
    struct value *stored =
        edit_insert_value(edit, at, OP_QUANTIZE_LINEAR, quantize->opset, quantize->name, inputs, 3,
                          to->zero->known->dtype, &x->shape);
    ++*n;
    if (!stored || !match(edit, stored->producer, x->producer, to)) {
        if (stored)
            stored->producer->op = OP_NONE;
        return false;
    }
    inputs[0] = stored;
    clamp->inputs[0] = edit_insert_value(edit, at + 1, OP_DEQUANTIZE_LINEAR, quantize->opset,
                                         quantize->name, inputs, 3, DTYPE_F32, &x->shape);
    ++*n;
    if (clamp->inputs[0])
        (void)quantize_table(edit, quantize);
    return true;
}

static bool quantize_visit(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    struct ends to;
    if (quantize_table(edit, node))
        return true;
    if (edit->status != STATUS_OK || !quantize_read_quantize(node, &to) ||
        !edit_single_reader(edit, node->inputs[0]))
        return false;
    struct node *producer = node->inputs[0]->producer;
    return is_clamp(producer) ? split_clamp(edit, n, producer, &to)
                              : producer && match(edit, node, producer, &to);
}

/* Leaves grouped convolutions in float32, because their float32 kernels are faster. */
static bool product_visit(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    return ((node->op == OP_CONV && node_int(node, "group", 1) == 1) || node->op == OP_GEMM ||
            node->op == OP_MATMUL) &&
           quantize_product(edit, node, node, NULL);
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
