/* Conv through oneDNN: channels-last activations, weights packed as the primitive likes. */
#include "engine/cpu/lowering/product.h"
#include "engine/ops/families.h"
#include "engine/ops/geometry.h"

#include <stdlib.h>
#include <string.h>

/* Strides of a channels-last tensor in the order oneDNN names dims: N, C, spatial…. */
static enum status image_desc(const struct value *value, dnnl_memory_desc_t *ret, struct error *err)
{
    const struct shape *shape = &value->shape;
    dnnl_dims_t dims, strides;
    int rank = shape->rank;
    int64_t stride = 1;
    dims[0] = shape->dims[0];
    dims[1] = shape->dims[rank - 1];
    strides[1] = stride;
    stride *= dims[1];
    for (int a = rank - 1; a >= 2; a--) {
        dims[a] = shape->dims[a - 1];
        strides[a] = stride;
        stride *= dims[a];
    }
    strides[0] = stride;
    return dnnl_check(
        dnnl_memory_desc_init_by_strides(ret, rank, dims, dnnl_type(value->dtype), strides),
        "image layout", err);
}

/* ONNX's [M, C / group, K…] (row-major) as oneDNN's weights, grouped where group > 1. */
static enum status weights_desc(const struct tensor *weights, int64_t group,
                                dnnl_data_type_t wanted_type, dnnl_memory_desc_t *ret_given,
                                dnnl_memory_desc_t *ret_any, struct error *err)
{
    dnnl_dims_t dims, strides;
    int rank = 0;
    if (group > 1)
        dims[rank++] = group;
    dims[rank++] = weights->shape.dims[0] / group;
    for (int a = 1; a < weights->shape.rank; a++)
        dims[rank++] = weights->shape.dims[a];
    int64_t stride = 1;
    for (int a = rank - 1; a >= 0; a--) {
        strides[a] = stride;
        stride *= dims[a];
    }
    TRY(dnnl_check(
        dnnl_memory_desc_init_by_strides(ret_given, rank, dims, dnnl_type(weights->dtype), strides),
        "weight layout", err));
    return dnnl_check(
        dnnl_memory_desc_init_by_tag(ret_any, rank, dims, wanted_type, dnnl_format_tag_any),
        "weight layout", err);
}

/* Does a window along axis `a` have no tap inside the image? */
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

enum status conv_product(const struct compile *compile, struct product_desc *desc,
                         struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct tensor *weights = desc->weights_constant, *bias = desc->bias_constant;
    int spatial = x->shape.rank - 2;
    int64_t group = node_int(node, "group", 1);
    struct window window;
    TRY(window_init(node, spatial, x->shape.dims + 1, weights->shape.dims + 2, &window, err));

    dnnl_memory_desc_t any;
    TRY(image_desc(x, &desc->src, err));
    TRY(image_desc(y, &desc->dst, err));
    TRY(weights_desc(weights, group, desc->scales ? dnnl_s8 : dnnl_type(x->dtype), &desc->weights,
                     &any, err));
    if (bias) {
        dnnl_dims_t channels = {weights->shape.dims[0]};
        TRY(dnnl_check(
            dnnl_memory_desc_init_by_tag(&desc->bias, 1, channels, dnnl_type(bias->dtype), dnnl_a),
            "bias", err));
    }
    dnnl_dims_t strides, dilates, pad_begin, pad_end;
    double taps = 1;
    for (int a = 0; a < spatial; a++) {
        strides[a] = window.stride[a];
        dilates[a] = window.dilation[a] - 1;
        pad_begin[a] = window.pad_begin[a];
        pad_end[a] = window.pad_end[a];
        taps *= (double)window.kernel[a];
        desc->beyond |= reaches_beyond(&window, a);
    }
    dnnl_convolution_desc_t conv;
    TRY(dnnl_check(dnnl_dilated_convolution_forward_desc_init(
                       &conv, dnnl_forward_inference, dnnl_convolution_direct, &desc->src, &any,
                       bias ? &desc->bias : NULL, &desc->dst, strides, dilates, pad_begin, pad_end),
                   node->name, err));
    struct product_desc whole = *desc; /* what it points to lives as long as this call */
    whole.op_desc = &conv;
    TRY(product_create(compile, &whole, ret, err));
    if (*ret)
        (*ret)->flops = 2 * (double)shape_count(&y->shape) * (double)weights->shape.dims[1] * taps;
    return STATUS_OK;
}

enum status lower_conv(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (node->op != OP_CONV || !node->channels_last || node->gate || node_output(node, 1))
        return STATUS_OK;
    const struct value *bias = node_bias(node);
    struct product_desc desc = {.weights_constant = node->inputs[1]->known,
                                .weights_input = 1,
                                .bias_constant = bias ? bias->known : NULL};
    return conv_product(compile, &desc, ret, err);
}

/* ONNX's [C, M / group, K…] as oneDNN's weights of a deconvolution, [group,] M / group, C / group,
 * K…. */
static enum status transposed_weights(const struct tensor *weights, int64_t group,
                                      dnnl_memory_desc_t *ret_given, dnnl_memory_desc_t *ret_any,
                                      struct error *err)
{
    dnnl_dims_t dims, strides;
    int rank = 0;
    int64_t taps = 1;
    for (int a = 2; a < weights->shape.rank; a++)
        taps *= weights->shape.dims[a];
    const int64_t in = weights->shape.dims[0] / group, out = weights->shape.dims[1];
    if (group > 1) {
        dims[rank] = group;
        strides[rank++] = in * out * taps;
    }
    dims[rank] = out;
    strides[rank++] = taps;
    dims[rank] = in;
    strides[rank++] = out * taps;
    for (int a = 2; a < weights->shape.rank; a++) {
        taps /= weights->shape.dims[a];
        dims[rank] = weights->shape.dims[a];
        strides[rank++] = taps;
    }
    TRY(dnnl_check(dnnl_memory_desc_init_by_strides(ret_given, rank, dims, dnnl_f32, strides),
                   "weight layout", err));
    return dnnl_check(
        dnnl_memory_desc_init_by_tag(ret_any, rank, dims, dnnl_f32, dnnl_format_tag_any),
        "weight layout", err);
}

/* oneDNN takes at most one stride of output_padding, and explicit pads only. */
bool deconv_takes(const struct node *node)
{
    const struct value *bias = node_bias(node);
    size_t count, strides;
    const int64_t *extra = node_ints(node, "output_padding", &count);
    const int64_t *stride = node_ints(node, "strides", &strides);
    if (node->inputs[0]->shape.rank != 4 || !is_f32_constant(node->inputs[1]) ||
        (bias && !is_f32_constant(bias)) || node->epilogue.residual ||
        node_attr(node, "output_shape") ||
        strcmp(node_string(node, "auto_pad", "NOTSET"), "NOTSET") != 0)
        return false;
    for (size_t a = 0; a < count; a++)
        if (extra[a] > (a < strides ? stride[a] : 1))
            return false;
    return true;
}

/* ConvTranspose, float32. */
enum status lower_deconv(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (node->op != OP_CONV_TRANSPOSE || !node->channels_last)
        return STATUS_OK;
    const struct value *x = node->inputs[0], *y = node->outputs[0], *bias = node_bias(node);
    const struct tensor *weights = node->inputs[1]->known;
    const int64_t *in = x->shape.dims;
    const struct shape plain = SHAPE(in[0], in[3], in[1], in[2]);
    struct product_desc desc = {.weights_constant = node->inputs[1]->known,
                                .weights_input = 1,
                                .bias_constant = bias ? bias->known : NULL};
    struct conv_shape conv;
    dnnl_memory_desc_t any;
    dnnl_deconvolution_desc_t deconv;
    TRY(conv_transpose_shape_init(node, &plain, &weights->shape, &conv, err));
    TRY(image_desc(x, &desc.src, err));
    TRY(image_desc(y, &desc.dst, err));
    TRY(transposed_weights(weights, (int64_t)conv.group, &desc.weights, &any, err));
    if (bias) {
        dnnl_dims_t channels = {(int64_t)conv.out_channels};
        TRY(dnnl_check(dnnl_memory_desc_init_by_tag(&desc.bias, 1, channels, dnnl_f32, dnnl_a),
                       "bias", err));
    }
    const struct window *w = &conv.window;
    dnnl_dims_t strides, dilates, pad_begin, pad_end;
    for (int a = 0; a < 2; a++) {
        strides[a] = w->stride[a];
        dilates[a] = w->dilation[a] - 1;
        pad_begin[a] = w->pad_begin[a];
        /* what output_padding adds is less padding at the end; it may go below 0 */
        pad_end[a] = (w->in[a] - 1) * w->stride[a] + (w->kernel[a] - 1) * w->dilation[a] + 1 -
                     w->pad_begin[a] - w->out[a];
    }
    TRY(dnnl_check(dnnl_dilated_deconvolution_forward_desc_init(
                       &deconv, dnnl_forward_inference, dnnl_deconvolution_direct, &desc.src, &any,
                       bias ? &desc.bias : NULL, &desc.dst, strides, dilates, pad_begin, pad_end),
                   node->name, err));
    desc.op_desc = &deconv;
    TRY(product_create(compile, &desc, ret, err));
    if (*ret)
        (*ret)->flops = 2 * (double)shape_count(&x->shape) * (double)shape_count(&weights->shape) /
                        (double)conv.in_channels;
    return STATUS_OK;
}
