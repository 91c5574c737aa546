/* See claims.h. */
#include "engine/backend/claims.h"

#include <math.h>

#include "engine/op/resolve.h"

bool claim_reads_image(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    return x && y && !x->known && x->shape.rank >= 3 &&
           (x->dtype == DTYPE_F32 ||
            (node->channels_last && (x->dtype == DTYPE_BF16 || x->dtype == DTYPE_F16))) &&
           shape_count(&x->shape) && shape_count(&y->shape);
}

int claim_residual(const struct node *node)
{
    const enum dtype dtype = node->outputs[0]->dtype;
    return node->epilogue.residual &&
                   (dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16)
               ? (int)node->input_count - 1
               : -1;
}

int claim_in_place(const struct node *node, size_t first, size_t second)
{
    const struct value *y = node->outputs[0];
    const size_t inputs[2] = {first, second};
    for (size_t i = 0; i < 2; i++) {
        const struct value *value = node_input(node, inputs[i]);
        if (value && !value->known && value->dtype == y->dtype &&
            shape_equal(&value->shape, &y->shape))
            return (int)inputs[i];
    }
    return -1;
}

bool claim_gemm_is_plain(const struct node *node)
{
    const struct value *bias = node_bias(node);
    return node_float(node, "alpha", 1) == 1 &&
           (!bias || (node_float(node, "beta", 1) == 1 &&
                      is_f32_vector(bias, node->outputs[0]->shape.dims[1])));
}

static int first_axis(const struct node *node)
{
    return (int)node_axis(node, -1, node->inputs[0]->shape.rank);
}

/* A Softmax's row is one dimension; a normalization's row is all dimensions from the axis on. */
size_t claim_row_length(const struct node *node)
{
    const struct shape *shape = &node->inputs[0]->shape;
    const int axis = first_axis(node);
    if (node->op == OP_SOFTMAX && axis != shape->rank - 1)
        return 0;
    return resolve_extent(shape, axis, shape->rank);
}

bool claim_is_row(const struct node *node, const struct value *value)
{
    return is_f32_constant(value) &&
           resolve_is_row(&value->known->shape, &node->inputs[0]->shape, first_axis(node));
}

bool claim_group_parameters(const struct node *node)
{
    const struct value *scale = node_input(node, 1), *bias = node_input(node, 2);
    return is_f32_constant(scale) &&
           is_f32_vector(bias, (int64_t)shape_count(&scale->known->shape));
}

bool scale_zero_of(const struct node *node, size_t at, enum dtype dtype, struct scale_zero *ret)
{
    const struct value *scale = node_input(node, at), *zero = node_input(node, at + 1);
    if (!is_f32_constant(scale) || shape_count(&scale->known->shape) != 1 ||
        !dtype_is_8bit(dtype) ||
        (zero &&
         (!zero->known || zero->known->dtype != dtype || shape_count(&zero->known->shape) != 1)))
        return false;
    ret->scale = (float)tensor_number(scale->known, 0);
    ret->zero = zero ? (int)tensor_int(zero->known, 0) : 0;
    return isnormal(ret->scale) && (zero || dtype == DTYPE_U8);
}

void quantized_sum_factors(const struct scale_zero *a, const struct scale_zero *b,
                           const struct scale_zero *y, float *ret_a_ratio, float *ret_b_ratio,
                           float *ret_fixed)
{
    const float a_ratio = a->scale / y->scale, b_ratio = b->scale / y->scale;
    const float a_part = a_ratio * (float)a->zero, b_part = b_ratio * (float)b->zero;
    *ret_a_ratio = a_ratio;
    *ret_b_ratio = b_ratio;
    *ret_fixed = (float)y->zero - (a_part + b_part);
}

/* Operands: y's scale and zero point, then tensor, scale and zero point of each part. */
bool claim_quantized_parts(const struct node *node)
{
    const struct value *y = node_output(node, 0);
    struct scale_zero ignored;
    if (!y || !shape_count(&y->shape) || node->input_count < 5 || node->input_count % 3 != 2 ||
        !scale_zero_of(node, 0, y->dtype, &ignored))
        return false;
    for (size_t k = 2; k < node->input_count; k += 3)
        if (!node->inputs[k] || !scale_zero_of(node, k + 1, node->inputs[k]->dtype, &ignored))
            return false;
    return true;
}

bool quantized_part_table(const struct node *node, size_t p, uint8_t ret[256])
{
    const enum dtype dtype = concat_part(node, p)->dtype, to_dtype = node->outputs[0]->dtype;
    const float low = to_dtype == DTYPE_I8 ? -128 : 0;
    struct scale_zero from = {0}, to = {0};
    (void)scale_zero_of(node, 0, to_dtype, &to);
    (void)scale_zero_of(node, 3 + 3 * p, dtype, &from);
    for (int byte = 0; byte < 256; byte++) {
        const int stored = dtype == DTYPE_I8 ? (int8_t)byte : byte;
        const float real = (float)(stored - from.zero) * from.scale;
        const float q = rintf(real / to.scale) + (float)to.zero;
        ret[byte] = (uint8_t)(int)fminf(fmaxf(q, low), low + 255);
    }
    return dtype != to_dtype || from.scale != to.scale || from.zero != to.zero;
}

const struct value *concat_part(const struct node *node, size_t p)
{
    return node->op == OP_SPLIT         ? node->outputs[p]
           : node->op == OP_CONCAT      ? node->inputs[p]
           : node->op == OP_SCALE_SHIFT ? node->inputs[p ? 2 + p : 0]
                                        : node->inputs[2 + 3 * p];
}

size_t concat_part_count(const struct node *node)
{
    return node->op == OP_SPLIT         ? node->output_count
           : node->op == OP_CONCAT      ? node->input_count
           : node->op == OP_SCALE_SHIFT ? node->input_count - 2
                                        : node->input_count / 3;
}
