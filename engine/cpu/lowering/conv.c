/* Conv and ConvTranspose as compiled products on channels-last activations. */
#include "engine/cpu/lowering/product_step.h"
#include "engine/op/families.h"
#include "engine/op/geometry.h"

#include <string.h>

/* Describes a channels-last tensor with dims in the order N, C, spatial…. */
static struct strided_layout image_layout(const struct lowering *lowering,
                                          const struct value *value)
{
    const struct shape *shape = &value->shape;
    const int rank = shape->rank;
    struct strided_layout layout = {.dtype = value->dtype, .rank = rank};
    layout.dims[0] = shape->dims[0];
    layout.dims[1] = shape->dims[rank - 1];
    layout.strides[1] = 1;
    int64_t stride = (int64_t)pixel_pitch(lowering, value);
    for (int a = rank - 1; a >= 2; a--) {
        layout.dims[a] = shape->dims[a - 1];
        layout.strides[a] = stride;
        stride *= layout.dims[a];
    }
    layout.strides[0] = stride;
    return layout;
}

enum status conv_product(const struct lowering *lowering, struct product_desc *desc,
                         struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct tensor *weights = desc->weights_constant;
    int spatial = x->shape.rank - 2;
    int64_t group = node_int(node, "group", 1);
    struct window window;
    TRY(window_init(node, spatial, x->shape.dims + 1, weights->shape.dims + 2, &window, err));

    desc->op = PRODUCT_CONV;
    desc->src = image_layout(lowering, x);
    desc->dst = image_layout(lowering, y);
    desc->weights = conv_weights(weights, group);
    for (int a = 0; a < spatial; a++) {
        desc->stride[a] = window.stride[a];
        desc->dilation[a] = window.dilation[a];
        desc->pad_begin[a] = window.pad_begin[a];
    }
    return product_step_create(lowering, desc, ret, err);
}

/* True if the step of this node can multiply its image by a gate. */
static bool multiplies_gate(const struct node *node)
{
    const struct value *x = node->inputs[0];
    struct window w;
    bool can = node->channels_last && x->shape.rank == 4 && x->dtype == DTYPE_F32 &&
               node->outputs[0]->dtype == DTYPE_F32 && node_int(node, "group", 1) == 1 &&
               window_init(node, 2, x->shape.dims + 1, node->inputs[1]->known->shape.dims + 2, &w,
                           NULL) == STATUS_OK;
    for (int a = 0; can && a < 2; a++)
        can = w.kernel[a] == 1 && w.stride[a] == 1 && !w.pad_begin[a] && !w.pad_end[a];
    return can;
}

/* A node has the abilities of all kernels that may run the node, but KERNEL_PITCH only if each of
 * these kernels has that ability. */
KERNEL_CLAIM(conv_claim)
{
    const struct value *bias = node_bias(node);
    if (!claim_reads_image(node) || node->inputs[0]->shape.rank > 5 ||
        !is_f32_constant(node_input(node, 1)) || (bias && !is_f32_constant(bias)))
        return false;
    struct window ignored;
    const bool is_depthwise = depthwise_fits(node, &ignored);
    ret->can = KERNEL_CHANNELS_LAST | (is_depthwise ? KERNEL_MEAN : 0) |
               (multiplies_gate(node) ? KERNEL_GATE : 0) |
               (is_depthwise || node->epilogue.residual ? 0 : KERNEL_PITCH);
    ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    return is_depthwise || !node_output(node, 1);
}

/* Winograd's kernel creates a step only where it is faster than a product. */
STEP_CREATE(lower_conv)
{
    const struct node *node = lowering->node;
    struct product_desc desc = {
        .weights_constant = node->inputs[1]->known, .bias = node_bias(node), .gated = node->gate};
    TRY(lower_winograd(lowering, ret, err));
    if (!*ret)
        TRY(lower_depthwise(lowering, ret, err));
    return *ret ? STATUS_OK : conv_product(lowering, &desc, ret, err);
}

const struct cpu_kernel cpu_conv = {{"conv", {OP_CONV}, conv_claim}, lower_conv};

/* Claims only explicit pads, and an output_padding of at most one stride. */
KERNEL_CLAIM(deconv_claim)
{
    const struct value *bias = node_bias(node);
    size_t count, strides;
    ret->can = KERNEL_CHANNELS_LAST | KERNEL_PITCH;
    const int64_t *extra = node_ints(node, "output_padding", &count);
    const int64_t *stride = node_ints(node, "strides", &strides);
    if (!claim_reads_image(node) || node->inputs[0]->shape.rank != 4 ||
        !is_f32_constant(node->inputs[1]) || (bias && !is_f32_constant(bias)) ||
        node->epilogue.residual || node_attr(node, "output_shape") ||
        strcmp(node_string(node, "auto_pad", "NOTSET"), "NOTSET") != 0)
        return false;
    for (size_t a = 0; a < count; a++)
        if (extra[a] > (a < strides ? stride[a] : 1))
            return false;
    return true;
}

STEP_CREATE(lower_deconv)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct tensor *weights = node->inputs[1]->known;
    const int64_t *in = x->shape.dims;
    const struct shape plain = SHAPE(in[0], in[3], in[1], in[2]);
    struct product_desc desc = {.weights_constant = node->inputs[1]->known,
                                .bias = node_bias(node)};
    struct conv_shape conv;
    TRY(conv_shape_init(node, &plain, &weights->shape, &conv, err));
    desc.op = PRODUCT_DECONV;
    desc.src = image_layout(lowering, x);
    desc.dst = image_layout(lowering, y);
    /* [C, M / group, K…] becomes [group,] M / group, C / group, K… */
    desc.weights = conv_weights(weights, (int64_t)conv.group);
    strided_layout_swap(&desc.weights, conv.group > 1, 1 + (conv.group > 1));
    const struct window *w = &conv.window;
    for (int a = 0; a < 2; a++) {
        desc.stride[a] = w->stride[a];
        desc.dilation[a] = w->dilation[a];
        desc.pad_begin[a] = w->pad_begin[a];
    }
    return product_step_create(lowering, &desc, ret, err);
}

const struct cpu_kernel cpu_deconv = {{"deconv", {OP_CONV_TRANSPOSE}, deconv_claim}, lower_deconv};
