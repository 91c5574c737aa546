/* Quantised models in integers: what exporters write as DequantizeLinear → operator →
 * QuantizeLinear ("QDQ") becomes the operator on 8-bit integers that it stands for.
 *
 *     x → DQ ─┐                                    x ─┐
 *     w → DQ ─┴▶ Conv → [Relu] → Q → y      ─▶     w ─┴▶ QLinearConv → y
 *
 * A Relu or Clip goes where the range of the result's type already ends at its limits, and is a
 * table behind the operator elsewhere. Operators that only move or compare numbers (MaxPool,
 * Reshape …) work on the stored integers, their DequantizeLinear behind them; activations become
 * tables (quantise_table.c). What does not match stays as the file has it. */
#include "engine/passes/quantise.h"

#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/passes/passes.h"
#include "engine/tensor/quantised_number.h"

/* ---- what storing clamps ---- */

/* What stands between an operator and the QuantizeLinear that stores its result. */
struct stored {
    struct node *producer; /* NULL: it cannot be told, or another node reads a value in between */
    bool clamp;            /* to [low, high], which storing does not do by itself */
    float low, high;
};

static int lowest_of(const struct ends *ends)
{
    return ends->zero->known->dtype == DTYPE_I8 ? -128 : 0;
}

/* Does storing as `to` clamp to [low, high] anyway? */
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
        stored.low = -INFINITY;
        if (node->opset < 11) {
            stored.low = node_float(node, "min", stored.low);
            stored.high = node_float(node, "max", stored.high);
        } else if ((node_input(node, 1) && !edit_scalar(node->inputs[1], &stored.low)) ||
                   (node_input(node, 2) && !edit_scalar(node->inputs[2], &stored.high))) {
            return stored;
        }
        if (!(stored.low <= stored.high))
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

/* The number that `real` is stored as. */
static int store(const struct ends *to, float real)
{
    return (int)quantised_number(real, (float)tensor_number(to->scale->known, 0),
                                 (int)tensor_int(to->zero->known, 0),
                                 to->zero->known->dtype == DTYPE_I8);
}

/* Stored numbers keep their order, so that clamping them is clamping what they stand for. Node n
 * gets a table behind it. */
static enum status add_clamp(struct edit *edit, size_t n, const struct ends *to,
                             const struct stored *stored, struct error *err)
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
    struct value *output = producer->outputs[0], *between;
    struct node *lookup = edit_insert_node(edit->graph, n + 1, OP_LOOKUP, producer->name, 2, 1);
    if (!lookup || !(between = graph_add_value(edit->graph, "", dtype, &output->shape)))
        return edit_no_memory(err);
    lookup->opset = 1;
    lookup->inputs[0] = between;
    node_set_output(producer, 0, between);
    node_set_output(lookup, 0, output);
    return quantise_add_table(edit->graph, dtype, table, &lookup->inputs[1], err);
}

/* ---- operators on stored numbers ---- */

static bool match_binary(struct edit *edit, struct node *quantize, const struct node *binary,
                         const struct ends *to)
{
    struct ends a, b;
    if (!quantise_read_activation(binary->inputs[0], &a) ||
        !quantise_read_activation(binary->inputs[1], &b) ||
        a.zero->known->dtype != to->zero->known->dtype ||
        b.zero->known->dtype != to->zero->known->dtype)
        return false;
    struct value *inputs[8] = {a.stored, a.scale, a.zero,    b.stored,
                               b.scale,  b.zero,  to->scale, to->zero};
    return quantise_become(edit, quantize, binary,
                           binary->op == OP_ADD ? OP_QLINEAR_ADD : OP_QLINEAR_MUL, 1, inputs, 8);
}

static bool match_pool(struct edit *edit, struct node *quantize, const struct node *pool,
                       const struct ends *to)
{
    struct ends from;
    const bool global = pool->op == OP_GLOBAL_AVERAGE_POOL;
    if (!quantise_read_activation(pool->inputs[0], &from) ||
        from.zero->known->dtype != to->zero->known->dtype || node_int(pool, "ceil_mode", 0))
        return false;
    struct value *inputs[5] = {from.stored, from.scale, from.zero, to->scale, to->zero};
    return quantise_become(edit, quantize, pool,
                           global ? OP_QLINEAR_GLOBAL_AVERAGE_POOL : OP_QLINEAR_AVERAGE_POOL, 1,
                           inputs, 5);
}

/* Does it reduce axes 2 and 3 of four, and keeps them as ones? */
static bool is_image_mean(const struct node *mean)
{
    size_t count;
    const int64_t *attr = node_ints(mean, "axes", &count);
    const struct value *input = node_input(mean, 1);
    const int rank = mean->inputs[0]->shape.rank;
    int64_t axes[2];
    if (rank != 4 || !node_int(mean, "keepdims", 1))
        return false;
    if (!attr && (!input || !input->known))
        return false;
    if (!attr)
        count = shape_count(&input->known->shape);
    if (count != 2)
        return false;
    for (size_t i = 0; i < 2; i++) {
        axes[i] = attr ? attr[i] : tensor_int(input->known, i);
        axes[i] += axes[i] < 0 ? rank : 0;
    }
    return axes[0] + axes[1] == 5 && axes[0] >= 2 && axes[0] <= 3;
}

static bool match_mean(struct edit *edit, struct node *quantize, const struct node *mean,
                       const struct ends *to)
{
    struct ends from;
    if (!is_image_mean(mean) || !quantise_read_activation(mean->inputs[0], &from) ||
        from.zero->known->dtype != to->zero->known->dtype)
        return false;
    struct value *inputs[5] = {from.stored, from.scale, from.zero, to->scale, to->zero};
    const bool ok =
        quantise_become(edit, quantize, mean, OP_QLINEAR_GLOBAL_AVERAGE_POOL, 1, inputs, 5);
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
        if (!quantise_read_activation(concat->inputs[i], &part) ||
            part.zero->known->dtype != to->zero->known->dtype)
            return false;
        inputs[2 + 3 * i] = part.stored;
        inputs[3 + 3 * i] = part.scale;
        inputs[4 + 3 * i] = part.zero;
    }
    return quantise_become(edit, quantize, concat, OP_QLINEAR_CONCAT, 1, inputs, count);
}

static enum status match(struct edit *edit, struct node *quantize, const struct node *producer,
                         const struct ends *to, bool *ret, struct error *err)
{
    switch (producer->op) {
    case OP_CONV:
        return quantise_conv(edit, quantize, producer, to, ret, err);
    case OP_GEMM:
    case OP_MATMUL:
        return quantise_gemm(edit, quantize, producer, to, ret, err);
    case OP_ADD:
    case OP_MUL:
        *ret = match_binary(edit, quantize, producer, to);
        return STATUS_OK;
    case OP_AVERAGE_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
        *ret = match_pool(edit, quantize, producer, to);
        return STATUS_OK;
    case OP_REDUCE_MEAN:
        *ret = match_mean(edit, quantize, producer, to);
        return STATUS_OK;
    case OP_CONCAT:
        *ret = match_concat(edit, quantize, producer, to);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

/* ---- before ---- */

/* A zero point that is left out is 0, of the stored type. */
static enum status add_zero(struct edit *edit, struct node *node, struct error *err)
{
    enum dtype dtype = (enum dtype)node_int(node, "output_dtype", DTYPE_U8);
    if (!quantise_is_f32(node_input(node, 1)) || node_input(node, 2) ||
        node_int(node, "block_size", 0))
        return STATUS_OK;
    if (node->op == OP_DEQUANTIZE_LINEAR) {
        const struct value *stored = node->inputs[0];
        const struct node *producer = stored->producer;
        dtype = stored->known ? stored->known->dtype : stored->dtype;
        if (producer && producer->op == OP_QUANTIZE_LINEAR && node_input(producer, 2) &&
            producer->inputs[2]->known)
            dtype = producer->inputs[2]->known->dtype;
    }
    if (!quantise_is_8bit(dtype))
        return STATUS_OK;
    struct tensor *zero;
    TRY(tensor_create(edit->graph->budget, dtype, &node->inputs[1]->known->shape, &zero, err));
    memset(zero->data, 0, zero->bytes);
    struct value *value = graph_add_constant(edit->graph, "", zero);
    tensor_unref(zero);
    struct value *inputs[3] = {node->inputs[0], node->inputs[1], value};
    return value && quantise_set_inputs(edit, node, inputs, 3) ? STATUS_OK : edit_no_memory(err);
}

/* Numbers are moved or compared, not changed: the operator may as well run on the stored ones. */
static bool keeps_numbers(const struct node *node)
{
    switch (node->op) {
    case OP_MAX_POOL:
        return node->opset >= 12 && !node_output(node, 1);
    case OP_RESIZE:
        return node->opset >= 11 && strcmp(node_string(node, "mode", "nearest"), "nearest") == 0 &&
               strcmp(node_string(node, "coordinate_transformation_mode", "half_pixel"),
                      "tf_crop_and_resize") != 0;
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_TRANSPOSE:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
    case OP_IDENTITY:
    case OP_SLICE:
    case OP_SPLIT:
    case OP_EXPAND:
    case OP_DEPTH_TO_SPACE:
    case OP_SPACE_TO_DEPTH:
        return true;
    default:
        return false;
    }
}

/* DequantizeLinear → move becomes move → DequantizeLinear, one behind each result. */
static enum status sink_dequantize(struct edit *edit, size_t n, struct error *err)
{
    struct graph *graph = edit->graph;
    struct node *move = graph->nodes[n];
    struct ends from;
    if (!keeps_numbers(move) || !quantise_read_activation(node_input(move, 0), &from))
        return STATUS_OK;
    const struct node *before = move->inputs[0]->producer;
    struct value *inputs[3] = {NULL, from.scale, from.zero};
    if (shape_count(&from.scale->known->shape) != 1 || from.scale->known->shape.rank > 1)
        return STATUS_OK;
    move->inputs[0] = from.stored;
    for (size_t o = 0; o < move->output_count; o++) {
        struct value *output = move->outputs[o];
        if (!output)
            continue;
        struct node *node =
            edit_insert_node(graph, n + 1, OP_DEQUANTIZE_LINEAR, before->name, 0, 1);
        inputs[0] = graph_add_value(graph, "", from.zero->known->dtype, &output->shape);
        if (!node || !inputs[0] || !quantise_set_inputs(edit, node, inputs, 3))
            return edit_no_memory(err);
        node->opset = before->opset;
        node->attrs = before->attrs;
        node->attr_count = before->attr_count;
        node_set_output(move, o, inputs[0]);
        node_set_output(node, 0, output);
    }
    return STATUS_OK;
}

/* ---- the pass ---- */

bool optimize_is_quantised(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const enum op op = graph->nodes[n]->op;
        if (op == OP_QUANTIZE_LINEAR || op == OP_QLINEAR_CONV || op == OP_QLINEAR_MATMUL)
            return true;
    }
    return false;
}

static enum status prepare(struct edit *edit, struct error *err)
{
    struct graph *graph = edit->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_QUANTIZE_LINEAR || node->op == OP_DEQUANTIZE_LINEAR)
            TRY(add_zero(edit, node, err));
        else
            TRY(sink_dequantize(edit, n, err));
    }
    return edit_count_readers(edit, err);
}

static enum status visit(struct edit *edit, size_t n, struct error *err)
{
    struct node *node = edit->graph->nodes[n];
    struct ends to;
    bool changed = false;
    TRY(quantise_table(edit, node, &changed, err));
    if (!changed && quantise_read_quantize(node, &to)) {
        const struct stored stored = stored_maker(edit, node, &to);
        if (stored.producer)
            TRY(match(edit, node, stored.producer, &to, &changed, err));
        if (changed && stored.clamp)
            TRY(add_clamp(edit, n, &to, &stored, err));
    }
    return changed ? edit_count_readers(edit, err) : STATUS_OK;
}

enum status optimize_quantised(struct graph *graph, struct error *err)
{
    struct edit edit;
    TRY(graph_sort(graph, err));
    enum status status = edit_init(&edit, graph, err);
    if (status == STATUS_OK)
        status = prepare(&edit, err);
    for (size_t n = 0; n < graph->node_count && status == STATUS_OK; n++)
        status = visit(&edit, n, err);
    if (status == STATUS_OK)
        status = edit_sweep(graph, err);
    edit_done(&edit);
    return status;
}
