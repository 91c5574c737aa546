/* Products after DequantizeLinear: Conv, Gemm, MatMul with constant weights, with or without a
 * QuantizeLinear after them. */
#include <math.h>

#include "engine/passes/quantize.h"

/* Converts unsigned weights with zero point 128 to signed ones with zero point 0. */
static bool make_signed(struct edit *edit, struct ends *weights)
{
    const struct tensor *from = weights->stored->known;
    const int8_t zero = 0;
    weights->stored = edit_constant(edit, DTYPE_I8, &from->shape, NULL);
    weights->zero = edit_constant(edit, DTYPE_I8, &SHAPE_SCALAR, &zero);
    if (!weights->stored || !weights->zero)
        return false;
    for (size_t i = 0; i < from->bytes; i++)
        ((uint8_t *)weights->stored->known->data)[i] = ((const uint8_t *)from->data)[i] ^ 0x80;
    return true;
}

static bool all_are(const struct tensor *tensor, int64_t number)
{
    for (size_t i = 0; i < shape_count(&tensor->shape); i++)
        if (tensor_int(tensor, i) != number)
            return false;
    return true;
}

/* Reads stored symmetric weights as signed integers with one scale, or with one scale per output
 * channel in dimension `channel_axis`. Returns false for other weights. */
static bool read_weights(struct edit *edit, const struct node *product, int64_t channel_axis,
                         struct ends *ret)
{
    if (!quantize_read_dequantize(node_input(product, 1), ret) || !ret->stored->known ||
        !dtype_is_8bit(ret->stored->known->dtype) ||
        ret->zero->known->dtype != ret->stored->known->dtype)
        return false;
    const int64_t middle = ret->zero->known->dtype == DTYPE_U8 ? 128 : 0;
    if (!all_are(ret->zero->known, middle))
        return false;
    const size_t scales = shape_count(&ret->scale->known->shape);
    const struct shape *shape = &ret->stored->known->shape;
    const int64_t axis = node_axis(product->inputs[1]->producer, 1, shape->rank);
    if (scales != 1 &&
        (axis != channel_axis || axis >= shape->rank || (int64_t)scales != shape->dims[axis]))
        return false;
    return !middle || make_signed(edit, ret);
}

/* A constant bias: float32 numbers, or integers with one scale for all or one scale each. */
struct bias {
    const struct tensor *number;
    const struct tensor *scale; /* NULL: `number` is float32 */
};

/* True if `shape` is [1 …, channels]: one number per column, the same in all rows. */
static bool is_by_column(const struct shape *shape, int64_t channels)
{
    return shape_count(shape) == (size_t)channels &&
           (channels == 1 || shape->dims[shape->rank - 1] == channels);
}

static bool read_bias(const struct value *value, int64_t channels, struct bias *ret)
{
    const struct node *node = value ? value->producer : NULL;
    *ret = (struct bias){NULL, NULL};
    if (is_f32_constant(value)) {
        ret->number = value->known;
    } else if (node && node->op == OP_DEQUANTIZE_LINEAR) {
        const struct value *zero = node_input(node, 2);
        if (!node->inputs[0]->known || !is_f32_constant(node->inputs[1]) ||
            (zero && (!zero->known || !all_are(zero->known, 0))) || node_int(node, "block_size", 0))
            return false;
        ret->number = node->inputs[0]->known;
        ret->scale = node->inputs[1]->known;
    }
    /* one scale, or one for each number */
    return ret->number && is_by_column(&ret->number->shape, channels) &&
           (!ret->scale || shape_count(&ret->scale->shape) == 1 ||
            shape_count(&ret->scale->shape) == (size_t)channels);
}

/* Returns the bias in QLinearConv's form, int32. Returns NULL if the bias is not a constant or does
 * not fit, or memory is short. */
static struct value *integer_bias(struct edit *edit, const struct value *from,
                                  const struct value *source, const struct value *weights,
                                  int64_t channels)
{
    struct bias bias;
    const size_t scales = shape_count(&weights->known->shape);
    const double source_scale = tensor_number(source->known, 0);
    if (!read_bias(from, channels, &bias))
        return NULL;
    struct value *value = edit_constant(edit, DTYPE_I32, &SHAPE(channels), NULL);
    for (int64_t m = 0; value && m < channels; m++) {
        const size_t at = (size_t)m;
        const double unit = source_scale * tensor_number(weights->known, at % scales);
        double real = tensor_number(bias.number, at);
        if (bias.scale)
            real *= tensor_number(bias.scale, at % shape_count(&bias.scale->shape));
        const double units = rint(real / unit);
        if (!(fabs(units) <= INT32_MAX / 2)) /* leaves no room for the sums, or is NaN */
            return NULL;
        ((int32_t *)value->known->data)[m] = (int32_t)units;
    }
    return value;
}

bool quantize_product(struct edit *edit, struct node *quantize, const struct node *product,
                      const struct ends *to)
{
    const bool is_conv = product->op == OP_CONV, is_gemm = product->op == OP_GEMM;
    const int64_t axis = is_conv || (is_gemm && node_int(product, "transB", 0)) ? 0 : 1;
    const struct value *from_bias = is_conv || is_gemm ? node_input(product, 2) : NULL;
    struct ends from, weights;
    struct value *bias = NULL;
    if (is_gemm && (node_float(product, "alpha", 1) != 1 || node_int(product, "transA", 0) ||
                    (from_bias && node_float(product, "beta", 1) != 1)))
        return false;
    if (!quantize_read_activation(node_input(product, 0), &from) ||
        !read_weights(edit, product, axis, &weights) ||
        (!is_conv && weights.stored->known->shape.rank != 2))
        return false;
    if (from_bias && !(bias = integer_bias(edit, from_bias, from.scale, weights.scale,
                                           weights.stored->known->shape.dims[axis])))
        return false;
    struct value *const scale = to ? to->scale : NULL, *const zero = to ? to->zero : NULL;
    struct value *inputs[9] = {from.stored,    from.scale,    from.zero,
                               weights.stored, weights.scale, weights.zero,
                               scale,          zero,          bias};
    if (is_gemm) {
        inputs[6] = bias;
        inputs[7] = scale;
        inputs[8] = zero;
    }
    return quantize_become(edit, quantize, product,
                           is_conv   ? OP_QLINEAR_CONV
                           : is_gemm ? OP_QGEMM
                                     : OP_QLINEAR_MATMUL,
                           is_gemm ? 1 : 10, inputs, is_gemm || bias ? 9 : 8);
}

/* ---- results in float32 ---- */

#define LOST_BIAS 1e-3 /* largest harmless relative error of a rounded bias */

bool quantize_makes_float(const struct node *node)
{
    if (node->op != OP_QLINEAR_CONV && node->op != OP_QLINEAR_MATMUL && node->op != OP_QGEMM)
        return false;
    /* The file's own QLinear operator may have scales that are not constant. */
    const struct value *y = node_output(node, 0), *scales = node_input(node, 4);
    return y && y->dtype == DTYPE_F32 && is_f32_constant(node_input(node, 1)) &&
           quantize_is_one(node->inputs[1]) && is_f32_constant(scales) && scales->shape.rank <= 1 &&
           node_input(node, 3) && node->inputs[3]->known;
}

/* True if rounding would change the bias of a column whose weights are all 0. Tools give such a
 * column a scale of 1, so rounding is coarse. */
static bool loses_bias(const struct node *matmul, const struct value *bias, int64_t columns)
{
    const struct tensor *weights = matmul->inputs[3]->known, *scales = matmul->inputs[4]->known;
    const size_t rows = shape_count(&weights->shape) / (size_t)columns;
    const double source_scale = tensor_number(matmul->inputs[1]->known, 0);
    for (int64_t c = 0; c < columns; c++) {
        const size_t at = (size_t)c;
        const double real = tensor_number(bias->known, at);
        const double unit = source_scale * tensor_number(scales, at % shape_count(&scales->shape));
        bool is_zero = fabs(rint(real / unit) * unit - real) > LOST_BIAS * fabs(real);
        for (size_t r = 0; is_zero && r < rows; r++)
            is_zero = tensor_int(weights, r * (size_t)columns + at) == 0;
        if (is_zero)
            return true;
    }
    return false;
}

struct value *quantize_bias(struct edit *edit, const struct node *matmul, const struct value *bias)
{
    const struct shape *y = &matmul->outputs[0]->shape;
    const int64_t columns = y->dims[y->rank - 1];
    const size_t scales = shape_count(&matmul->inputs[4]->known->shape);
    if (matmul->inputs[3]->known->shape.rank != 2 ||
        matmul->inputs[3]->known->shape.dims[1] != columns ||
        (scales != 1 && scales != (size_t)columns) || loses_bias(matmul, bias, columns))
        return NULL;
    return integer_bias(edit, bias, matmul->inputs[1], matmul->inputs[4], columns);
}
