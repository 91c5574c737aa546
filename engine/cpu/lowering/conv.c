/* Conv through oneDNN: channels-last activations, weights in the primitive's preferred layout. */
#include "engine/cpu/lowering/product.h"
#include "engine/op/families.h"
#include "engine/op/geometry.h"

#include <string.h>

/* Describes a channels-last tensor with dims in oneDNN's order: N, C, spatial…. */
static struct strided_layout image_layout(const struct value *value)
{
    const struct shape *shape = &value->shape;
    const int rank = shape->rank;
    struct strided_layout layout = {.dtype = value->dtype, .rank = rank};
    layout.dims[0] = shape->dims[0];
    layout.dims[1] = shape->dims[rank - 1];
    layout.strides[1] = 1;
    int64_t stride = layout.dims[1];
    for (int a = rank - 1; a >= 2; a--) {
        layout.dims[a] = shape->dims[a - 1];
        layout.strides[a] = stride;
        stride *= layout.dims[a];
    }
    layout.strides[0] = stride;
    return layout;
}

/* Describes ONNX's [M, C / group, K…] (row-major) as oneDNN's weights, grouped if group > 1. */
static struct strided_layout weights_layout(const struct tensor *weights, int64_t group)
{
    struct strided_layout layout = {.dtype = weights->dtype};
    if (group > 1)
        layout.dims[layout.rank++] = group;
    layout.dims[layout.rank++] = weights->shape.dims[0] / group;
    for (int a = 1; a < weights->shape.rank; a++)
        layout.dims[layout.rank++] = weights->shape.dims[a];
    strided_layout_row_major(&layout);
    return layout;
}

static struct strided_layout vector_layout(const struct tensor *vector, int64_t count)
{
    return (struct strided_layout){
        .dtype = vector->dtype, .rank = 1, .dims = {count}, .strides = {1}};
}

/* True if a window along axis `a` has no tap inside the image. */
static bool reaches_beyond(const struct window *w, int a)
{
    for (int64_t o = 0; o < w->out[a]; o++) {
        const int64_t start = o * w->stride[a] - w->pad_begin[a];
        const int64_t skipped = start < 0 ? (-start + w->dilation[a] - 1) / w->dilation[a] : 0;
        if (skipped >= w->kernel[a] || start + skipped * w->dilation[a] >= w->in[a])
            return true;
    }
    return false;
}

enum status conv_product(const struct lowering *lowering, struct product_desc *desc,
                         struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct tensor *weights = desc->weights_constant, *bias = desc->bias_constant;
    int spatial = x->shape.rank - 2;
    int64_t group = node_int(node, "group", 1);
    struct window window;
    TRY(window_init(node, spatial, x->shape.dims + 1, weights->shape.dims + 2, &window, err));

    desc->op = PRODUCT_CONV;
    desc->own = lowering->own;
    desc->src = image_layout(x);
    desc->dst = image_layout(y);
    desc->weights = weights_layout(weights, group);
    desc->packed = desc->scales ? DTYPE_I8 : x->dtype;
    if (bias)
        desc->bias = vector_layout(bias, weights->shape.dims[0]);
    double taps = 1;
    for (int a = 0; a < spatial; a++) {
        desc->stride[a] = window.stride[a];
        desc->dilation[a] = window.dilation[a];
        desc->pad_begin[a] = window.pad_begin[a];
        desc->pad_end[a] = window.pad_end[a];
        taps *= (double)window.kernel[a];
        desc->beyond |= reaches_beyond(&window, a);
    }
    TRY(product_create(lowering, desc, ret, err));
    if (*ret)
        (*ret)->flops = 2 * (double)shape_count(&y->shape) * (double)weights->shape.dims[1] * taps;
    return STATUS_OK;
}

KERNEL_CLAIM(onednn_conv_claim)
{
    return !node->gate && !node_output(node, 1);
}

STEP_CREATE(lower_onednn_conv)
{
    const struct node *node = lowering->node;
    const struct value *bias = node_bias(node);
    struct product_desc desc = {.weights_constant = node->inputs[1]->known,
                                .weights_input = 1,
                                .bias_constant = bias ? bias->known : NULL};
    return conv_product(lowering, &desc, ret, err);
}

const struct cpu_kernel cpu_onednn_conv = {{"dnnl_conv", {OP_CONV}, onednn_conv_claim},
                                           lower_onednn_conv};

/* Describes ONNX's [C, M / group, K…] as a deconvolution's [group,] M / group, C / group, K…. */
static struct strided_layout transposed_weights(const struct tensor *weights, int64_t group)
{
    struct strided_layout layout = {.dtype = weights->dtype};
    int64_t taps = 1;
    for (int a = 2; a < weights->shape.rank; a++)
        taps *= weights->shape.dims[a];
    const int64_t in = weights->shape.dims[0] / group, out = weights->shape.dims[1];
    if (group > 1) {
        layout.dims[layout.rank] = group;
        layout.strides[layout.rank++] = in * out * taps;
    }
    layout.dims[layout.rank] = out;
    layout.strides[layout.rank++] = taps;
    layout.dims[layout.rank] = in;
    layout.strides[layout.rank++] = out * taps;
    for (int a = 2; a < weights->shape.rank; a++) {
        taps /= weights->shape.dims[a];
        layout.dims[layout.rank] = weights->shape.dims[a];
        layout.strides[layout.rank++] = taps;
    }
    return layout;
}

/* oneDNN supports output_padding below one stride, and explicit pads only. */
KERNEL_CLAIM(deconv_claim)
{
    const struct value *bias = node_bias(node);
    size_t count, strides;
    ret->can = KERNEL_CHANNELS_LAST;
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

/* ConvTranspose, float32. */
STEP_CREATE(lower_deconv)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0], *bias = node_bias(node);
    const struct tensor *weights = node->inputs[1]->known;
    const int64_t *in = x->shape.dims;
    const struct shape plain = SHAPE(in[0], in[3], in[1], in[2]);
    struct product_desc desc = {.weights_constant = node->inputs[1]->known,
                                .weights_input = 1,
                                .bias_constant = bias ? bias->known : NULL};
    struct conv_shape conv;
    TRY(conv_transpose_shape_init(node, &plain, &weights->shape, &conv, err));
    desc.op = PRODUCT_DECONV;
    desc.src = image_layout(x);
    desc.dst = image_layout(y);
    desc.weights = transposed_weights(weights, (int64_t)conv.group);
    desc.packed = DTYPE_F32;
    if (bias)
        desc.bias = vector_layout(bias->known, (int64_t)conv.out_channels);
    const struct window *w = &conv.window;
    for (int a = 0; a < 2; a++) {
        desc.stride[a] = w->stride[a];
        desc.dilation[a] = w->dilation[a];
        desc.pad_begin[a] = w->pad_begin[a];
        /* output_padding reduces the padding at the end, which may become negative */
        desc.pad_end[a] = (w->in[a] - 1) * w->stride[a] + (w->kernel[a] - 1) * w->dilation[a] + 1 -
                          w->pad_begin[a] - w->out[a];
    }
    TRY(product_create(lowering, &desc, ret, err));
    if (*ret)
        (*ret)->flops = 2 * (double)shape_count(&x->shape) * (double)shape_count(&weights->shape) /
                        (double)conv.in_channels;
    return STATUS_OK;
}

const struct cpu_kernel cpu_deconv = {{"deconv", {OP_CONV_TRANSPOSE}, deconv_claim}, lower_deconv};
