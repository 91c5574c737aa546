/* Products of 8-bit integers: QLinearConv, and parts of QLinearMatMul and QGemm for matmul.c.
 * Each tensor has one scale and zero point (weights: one scale per output channel, zero point 0).
 * The reference kernels run everything else. */
#include "engine/cpu/lowering/product_step.h"

/* True if the result is float32, or has 8 bits and a scale as input `result` or in the epilogue. */
static bool makes_result(const struct node *node, size_t result)
{
    const struct value *y = node->outputs[0];
    struct scale_zero ignored;
    if (node_input(node, result))
        return scale_zero_of(node, result, y->dtype, &ignored);
    return y->dtype == DTYPE_F32 || (node->epilogue.step != 0 && dtype_is_8bit(y->dtype));
}

/* Reads constants, zero points and scales of a product. The result's scale and zero point are
 * inputs `result` and `result + 1`. Each channel's factor is x_scale * w_scale / y_scale, rounded
 * as in the reference kernel, so that ties agree. The factor omits y_scale if the result is
 * float32, or if an activation precedes the rounding. */
static struct product_desc describe_sums(const struct node *node, size_t result,
                                         const struct value *bias)
{
    const bool activates = node->epilogue.activation != ACTIVATION_NONE;
    struct scale_zero from = {0}, to = {node->epilogue.step, node->epilogue.zero};
    (void)scale_zero_of(node, 1, node->inputs[0]->dtype, &from);
    if (node_input(node, result))
        (void)scale_zero_of(node, result, node->outputs[0]->dtype, &to);
    return (struct product_desc){.weights_constant = node->inputs[3]->known,
                                 .bias = bias,
                                 .scales = node->inputs[4]->known,
                                 .src_scale = from.scale,
                                 .sum_divisor = activates || to.scale == 0 ? 1 : to.scale,
                                 .dst_scale = activates ? to.scale : 0,
                                 .src_zero = from.zero,
                                 .dst_zero = to.zero};
}

/* ---- QLinearConv ---- */

/* Adds the abilities of a product of 8-bit integers with a float32 epilogue. */
static void add_caps(const struct node *node, struct kernel_caps *ret)
{
    ret->can |= KERNEL_FLOAT_EPILOGUE;
    ret->in_place = claim_residual(node);
    if (node->outputs[0]->dtype == DTYPE_F32 && !node->epilogue.residual)
        ret->can |= KERNEL_STORED_RESULT;
}

/* True if the operands fit: 8-bit activations, constant int8 weights with zero points of 0, and one
 * scale, or one for each of `channels` output channels. */
static bool operands_fit(const struct node *node, size_t result, const struct value *bias,
                         size_t channels)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    const struct value *w = node_input(node, 3), *scale = node_input(node, 4);
    const struct value *zero = node_input(node, 5);
    struct scale_zero ignored;
    if (!x || !y || x->known || !dtype_is_8bit(x->dtype) || !makes_result(node, result) ||
        !shape_count(&x->shape) || !shape_count(&y->shape) ||
        !scale_zero_of(node, 1, x->dtype, &ignored) || !w->known || w->known->dtype != DTYPE_I8 ||
        !is_f32_constant(scale) || (bias && (!bias->known || bias->known->dtype != DTYPE_I32)))
        return false;
    for (size_t i = 0; zero && i < (zero->known ? shape_count(&zero->shape) : 1); i++)
        if (!zero->known || tensor_int(zero->known, i))
            return false;
    const size_t scales = shape_count(&scale->known->shape);
    return scales == 1 || scales == channels;
}

KERNEL_CLAIM(qconv_claim)
{
    const size_t channels = (size_t)node->inputs[3]->shape.dims[0];
    if (!operands_fit(node, 6, node_input(node, 8), channels))
        return false;
    ret->can = KERNEL_CHANNELS_LAST;
    add_caps(node, ret);
    return node->inputs[0]->shape.rank >= 3 && node->inputs[0]->shape.rank <= 5;
}

STEP_CREATE(lower_qconv)
{
    const struct node *node = lowering->node;
    struct product_desc desc = describe_sums(node, 6, node_input(node, 8));
    TRY(lower_qdepthwise(lowering, &desc, ret, err));
    return *ret ? STATUS_OK : conv_product(lowering, &desc, ret, err);
}

const struct cpu_kernel cpu_quantized_conv = {{"int8 conv", {OP_QLINEAR_CONV}, qconv_claim},
                                              lower_qconv};

/* ---- QLinearMatMul, QGemm ---- */

/* Returns the index of the input with the result's scale. The next input is the zero point. */
static size_t result_at(const struct node *node)
{
    return node->op == OP_QGEMM ? 7 : 6;
}

static struct value *sums_bias(const struct node *node)
{
    return node_input(node, node->op == OP_QGEMM ? 6 : QUANTIZED_BIAS);
}

bool qmatmul_claim(const struct node *node, struct kernel_caps *ret)
{
    const struct value *a = node_input(node, 0), *y = node_output(node, 0);
    const struct value *bias = sums_bias(node);
    const size_t columns = y && y->shape.rank ? (size_t)y->shape.dims[y->shape.rank - 1] : 1;
    if (!operands_fit(node, result_at(node), bias, columns))
        return false;
    add_caps(node, ret);
    const struct shape *scale = &node->inputs[4]->known->shape;
    return a->shape.rank >= 2 && y->shape.rank == a->shape.rank &&
           node->inputs[3]->known->shape.rank == 2 &&
           (shape_count(scale) == 1 || scale->rank == 1) &&
           (!bias || (bias->known->shape.rank == 1 && shape_count(&bias->shape) == columns)) &&
           (node->op != OP_QGEMM ||
            (node_float(node, "alpha", 1) == 1 && !node_int(node, "transA", 0)));
}

struct product_desc qmatmul_describe(const struct node *node)
{
    return describe_sums(node, result_at(node), sums_bias(node));
}
