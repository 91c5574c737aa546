/* Quantised models in integers: what exporters write as DequantizeLinear → operator →
 * QuantizeLinear ("QDQ") becomes the operator on 8-bit integers that it stands for.
 *
 *     x → DQ ─┐                                    x ─┐
 *     w → DQ ─┴▶ Conv → [Relu] → Q → y      ─▶     w ─┴▶ QLinearConv → y
 *
 * A Relu or Clip goes where the range of the result's type already ends at its limits. Operators
 * that only move or compare numbers (MaxPool, Reshape …) work on the stored integers when source
 * and result have the same scale. What does not match stays as the file has it. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/optimize/passes.h"

/* A DequantizeLinear of one scale (or one a channel of a constant), or a QuantizeLinear of one. */
struct ends {
    struct value *stored; /* the 8-bit side */
    struct value *scale, *zero;
};

static bool is_8bit(enum dtype dtype)
{
    return dtype == DTYPE_U8 || dtype == DTYPE_I8;
}

static bool is_f32_known(const struct value *value)
{
    return value && value->known && value->known->dtype == DTYPE_F32;
}

static bool is_one(const struct value *value)
{
    return value && value->known && shape_count(&value->known->shape) == 1;
}

static bool read_dequantize(const struct value *value, struct ends *ret)
{
    const struct node *node = value ? value->producer : NULL;
    if (!node || node->op != OP_DEQUANTIZE_LINEAR || !is_f32_known(node_input(node, 1)) ||
        !node_input(node, 2) || !node->inputs[2]->known || node_int(node, "block_size", 0))
        return false;
    *ret = (struct ends){node->inputs[0], node->inputs[1], node->inputs[2]};
    return true;
}

/* An activation: 8 bits, one scale, one zero point of the same type. */
static bool read_activation(const struct value *value, struct ends *ret)
{
    return read_dequantize(value, ret) && is_one(ret->scale) && is_one(ret->zero) &&
           is_8bit(ret->zero->known->dtype) && !ret->stored->known;
}

static bool read_quantize(const struct node *node, struct ends *ret)
{
    if (node->op != OP_QUANTIZE_LINEAR || !node->outputs[0] || !is_f32_known(node->inputs[1]) ||
        !is_one(node->inputs[1]) || !is_one(node_input(node, 2)) ||
        !is_8bit(node->inputs[2]->known->dtype))
        return false;
    *ret = (struct ends){node->outputs[0], node->inputs[1], node->inputs[2]};
    return true;
}

static int64_t lowest_of(const struct ends *ends)
{
    return ends->zero->known->dtype == DTYPE_I8 ? -128 : 0;
}

/* Does storing as `to` clamp to [low, high] anyway? */
static bool clamps(const struct ends *to, double low, double high)
{
    const double scale = tensor_number(to->scale->known, 0);
    const double zero = (double)tensor_int(to->zero->known, 0), lowest = (double)lowest_of(to);
    return (lowest - zero) * scale >= low && (lowest + 255 - zero) * scale <= high * (1 + 1e-6);
}

/* The node whose float result is stored as `to` says, looking through a Relu or Clip that storing
 * does anyway; NULL when somebody else reads a result on the way. */
static struct node *stored_maker(const struct edit *edit, const struct node *quantize,
                                 const struct ends *to)
{
    const struct value *value = quantize->inputs[0];
    struct node *node = value->producer;
    if (!node || !edit_single_reader(edit, value))
        return NULL;
    float low = 0, high = INFINITY;
    if (node->op == OP_CLIP) {
        low = -INFINITY;
        if (node->opset < 11) {
            low = node_float(node, "min", low);
            high = node_float(node, "max", high);
        } else if ((node_input(node, 1) && !edit_scalar(node->inputs[1], &low)) ||
                   (node_input(node, 2) && !edit_scalar(node->inputs[2], &high))) {
            return NULL;
        }
    } else if (node->op != OP_RELU) {
        return node;
    }
    value = node->inputs[0];
    return clamps(to, (double)low, (double)high) && edit_single_reader(edit, value)
               ? value->producer
               : NULL;
}

static bool set_inputs(struct edit *edit, struct node *node, struct value *const *inputs,
                       size_t count)
{
    node->inputs = arena_alloc(edit->graph->arena, count, sizeof *node->inputs);
    if (!node->inputs)
        return false;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node->input_count = count;
    return true;
}

/* `quantize` now computes what `maker` and itself did. */
static bool become(struct edit *edit, struct node *quantize, const struct node *maker, enum op op,
                   int opset, struct value *const *inputs, size_t count)
{
    quantize->op = op;
    quantize->opset = opset;
    quantize->name = maker->name;
    quantize->attrs = maker->attrs;
    quantize->attr_count = maker->attr_count;
    return set_inputs(edit, quantize, inputs, count);
}

/* ---- Conv ---- */

/* Stored symmetric weights as signed integers with one scale, or one an output channel, which are
 * counted by dimension `channel_axis`. */
static bool read_weights(const struct node *product, int64_t channel_axis, struct ends *ret)
{
    if (!read_dequantize(node_input(product, 1), ret) || !ret->stored->known ||
        ret->stored->known->dtype != DTYPE_I8 || ret->zero->known->dtype != DTYPE_I8)
        return false;
    const struct tensor *zero = ret->zero->known;
    for (size_t i = 0; i < shape_count(&zero->shape); i++)
        if (tensor_int(zero, i))
            return false;
    const size_t scales = shape_count(&ret->scale->known->shape);
    const struct shape *shape = &ret->stored->known->shape;
    int64_t axis = node_int(product->inputs[1]->producer, "axis", 1);
    axis += axis < 0 ? shape->rank : 0;
    return scales == 1 ||
           (axis == channel_axis && axis < shape->rank && (int64_t)scales == shape->dims[axis]);
}

/* The bias in units of source scale x weight scale, as int32: QLinearConv's. */
static enum status integer_bias(struct edit *edit, const struct node *product,
                                const struct ends *source, const struct ends *weights,
                                int64_t channels, struct value **ret, struct error *err)
{
    struct value *bias = node_input(product, 2);
    struct ends stored;
    *ret = NULL;
    const size_t scales = shape_count(&weights->scale->known->shape);
    const double source_scale = tensor_number(source->scale->known, 0);
    const struct tensor *from = NULL;
    const struct tensor *from_scale = NULL;
    if (read_dequantize(bias, &stored) ||
        (bias && bias->producer && bias->producer->op == OP_DEQUANTIZE_LINEAR)) {
        const struct node *node = bias->producer;
        const struct value *zero = node_input(node, 2);
        if (!node->inputs[0]->known || !is_f32_known(node->inputs[1]) ||
            (zero && (!zero->known || tensor_int(zero->known, 0))))
            return STATUS_OK;
        from = node->inputs[0]->known;
        from_scale = node->inputs[1]->known;
    } else if (is_f32_known(bias)) {
        from = bias->known;
    }
    if (!from || shape_count(&from->shape) != (size_t)channels)
        return STATUS_OK;
    struct tensor *tensor;
    struct shape shape = SHAPE(channels);
    TRY(tensor_create(edit->graph->budget, DTYPE_I32, &shape, &tensor, err));
    int32_t *to = tensor->data;
    for (int64_t m = 0; m < channels; m++) {
        const size_t at = (size_t)m;
        const double unit =
            source_scale * tensor_number(weights->scale->known, scales == 1 ? 0 : at);
        double real = tensor_number(from, at);
        if (from_scale)
            real *= tensor_number(from_scale, shape_count(&from_scale->shape) == 1 ? 0 : at);
        const double units = rint(real / unit);
        if (!(fabs(units) <= INT32_MAX / 2)) { /* does not fit beside the sums, or no number */
            tensor_unref(tensor);
            return STATUS_OK;
        }
        to[m] = (int32_t)units;
    }
    *ret = graph_add_constant(edit->graph, "", tensor);
    tensor_unref(tensor);
    return *ret ? STATUS_OK : edit_no_memory(err);
}

static enum status match_conv(struct edit *edit, struct node *quantize, const struct node *conv,
                              const struct ends *to, bool *ret, struct error *err)
{
    struct ends from, weights;
    struct value *bias = NULL;
    if (!read_activation(node_input(conv, 0), &from) || !read_weights(conv, 0, &weights))
        return STATUS_OK;
    if (node_input(conv, 2)) {
        TRY(integer_bias(edit, conv, &from, &weights, weights.stored->known->shape.dims[0], &bias,
                         err));
        if (!bias)
            return STATUS_OK;
    }
    struct value *inputs[9] = {from.stored,    from.scale,    from.zero,
                               weights.stored, weights.scale, weights.zero,
                               to->scale,      to->zero,      bias};
    *ret = true;
    return become(edit, quantize, conv, OP_QLINEAR_CONV, 10, inputs, bias ? 9 : 8)
               ? STATUS_OK
               : edit_no_memory(err);
}

/* ---- Gemm, MatMul ---- */

/* A Gemm without factors is com.microsoft's QGemm, whose bias is int32; a MatMul with constant
 * weights QLinearMatMul. */
static enum status match_gemm(struct edit *edit, struct node *quantize, const struct node *gemm,
                              const struct ends *to, bool *ret, struct error *err)
{
    struct ends from, weights;
    struct value *bias = NULL;
    const bool is_gemm = gemm->op == OP_GEMM;
    const int64_t axis = is_gemm && node_int(gemm, "transB", 0) ? 0 : 1;
    if (!read_activation(node_input(gemm, 0), &from) || !read_weights(gemm, axis, &weights) ||
        weights.stored->known->shape.rank != 2)
        return STATUS_OK;
    if (!is_gemm) {
        struct value *inputs[8] = {from.stored,   from.scale,   from.zero, weights.stored,
                                   weights.scale, weights.zero, to->scale, to->zero};
        *ret = true;
        return become(edit, quantize, gemm, OP_QLINEAR_MATMUL, 10, inputs, 8) ? STATUS_OK
                                                                              : edit_no_memory(err);
    }
    if (node_float(gemm, "alpha", 1) != 1 || node_int(gemm, "transA", 0))
        return STATUS_OK;
    if (node_input(gemm, 2)) {
        if (node_float(gemm, "beta", 1) != 1)
            return STATUS_OK;
        TRY(integer_bias(edit, gemm, &from, &weights, weights.stored->known->shape.dims[axis],
                         &bias, err));
        if (!bias)
            return STATUS_OK;
    }
    struct value *inputs[9] = {from.stored,  from.scale, from.zero, weights.stored, weights.scale,
                               weights.zero, bias,       to->scale, to->zero};
    *ret = true;
    return become(edit, quantize, gemm, OP_QGEMM, 1, inputs, 9) ? STATUS_OK : edit_no_memory(err);
}

/* ---- the others ---- */

static bool match_add(struct edit *edit, struct node *quantize, const struct node *add,
                      const struct ends *to)
{
    struct ends a, b;
    if (!read_activation(add->inputs[0], &a) || !read_activation(add->inputs[1], &b) ||
        a.zero->known->dtype != to->zero->known->dtype ||
        b.zero->known->dtype != to->zero->known->dtype)
        return false;
    struct value *inputs[8] = {a.stored, a.scale, a.zero,    b.stored,
                               b.scale,  b.zero,  to->scale, to->zero};
    return become(edit, quantize, add, OP_QLINEAR_ADD, 1, inputs, 8);
}

static bool match_mean(struct edit *edit, struct node *quantize, const struct node *pool,
                       const struct ends *to)
{
    struct ends from;
    if (!read_activation(pool->inputs[0], &from) ||
        from.zero->known->dtype != to->zero->known->dtype)
        return false;
    struct value *inputs[5] = {from.stored, from.scale, from.zero, to->scale, to->zero};
    return become(edit, quantize, pool, OP_QLINEAR_GLOBAL_AVERAGE_POOL, 1, inputs, 5);
}

/* Numbers are moved or compared, not changed. */
static bool keeps_numbers(const struct node *node)
{
    switch (node->op) {
    case OP_MAX_POOL:
        return node->opset >= 12 && !node_output(node, 1);
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_TRANSPOSE:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
    case OP_IDENTITY:
        return true;
    default:
        return false;
    }
}

static bool same_number(const struct value *a, const struct value *b)
{
    return a->known->dtype == b->known->dtype &&
           tensor_number(a->known, 0) == tensor_number(b->known, 0);
}

static bool match_move(struct edit *edit, struct node *quantize, const struct node *move,
                       const struct ends *to)
{
    struct ends from;
    if (!read_activation(node_input(move, 0), &from) || !same_number(from.scale, to->scale) ||
        !same_number(from.zero, to->zero))
        return false;
    struct value *inputs[4] = {from.stored};
    if (move->input_count > COUNT_OF(inputs))
        return false;
    for (size_t i = 1; i < move->input_count; i++)
        inputs[i] = move->inputs[i];
    return become(edit, quantize, move, move->op, move->opset, inputs, move->input_count);
}

bool optimize_is_quantised(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const enum op op = graph->nodes[n]->op;
        if (op == OP_QUANTIZE_LINEAR || op == OP_QLINEAR_CONV || op == OP_QLINEAR_MATMUL)
            return true;
    }
    return false;
}

enum status optimize_quantised(struct graph *graph, struct error *err)
{
    struct edit edit;
    TRY(graph_sort(graph, err));
    enum status status = edit_init(&edit, graph, err);
    for (size_t n = 0; n < graph->node_count && status == STATUS_OK; n++) {
        struct node *node = graph->nodes[n];
        struct ends to;
        const struct node *maker = read_quantize(node, &to) ? stored_maker(&edit, node, &to) : NULL;
        bool changed = false;
        if (!maker)
            continue;
        if (maker->op == OP_CONV)
            status = match_conv(&edit, node, maker, &to, &changed, err);
        else if (maker->op == OP_GEMM || maker->op == OP_MATMUL)
            status = match_gemm(&edit, node, maker, &to, &changed, err);
        else if (maker->op == OP_ADD)
            changed = match_add(&edit, node, maker, &to);
        else if (maker->op == OP_GLOBAL_AVERAGE_POOL)
            changed = match_mean(&edit, node, maker, &to);
        else if (keeps_numbers(maker))
            changed = match_move(&edit, node, maker, &to);
        if (changed && status == STATUS_OK)
            status = edit_count_readers(&edit, err);
    }
    if (status == STATUS_OK)
        status = edit_sweep(graph, err);
    edit_done(&edit);
    return status;
}
