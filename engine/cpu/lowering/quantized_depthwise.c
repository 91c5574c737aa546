/* Depthwise QLinearConv of 3x3, 5x5 or 7x7 taps and stride 1 or 2. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/product_step.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"

struct qdepthwise_step {
    struct step step;
    const struct simd_kernels *simd;
    struct depthwise_8bit kernel;
    size_t images, bands; /* a band has kernel.rows rows of an image's result */
    int32_t *bias;        /* kernel.bias and kernel.scales, which the step owns */
    float *scales;
};

static void qdepthwise_bands(void *context, size_t begin, size_t end)
{
    const struct qdepthwise_step *s = context;
    const struct depthwise_8bit *d = &s->kernel;
    while (begin < end) {
        const size_t image = begin / s->bands, band = begin % s->bands;
        const size_t left = s->bands - band, bands = end - begin < left ? end - begin : left;
        const size_t first = band * d->rows, beyond = (band + bands) * d->rows;
        const size_t last = beyond < d->out_height ? beyond : d->out_height;
        s->simd->depthwise_8bit(d, s->step.x + image * d->height * d->width * d->channels,
                                s->step.y + image * d->out_height * d->out_width * d->channels,
                                first, last - first);
        begin += bands;
    }
}

STEP_RUN(qdepthwise_run)
{
    struct qdepthwise_step *s = (struct qdepthwise_step *)base;
    const struct depthwise_8bit *d = &s->kernel;
    parallel_for(program->threads, s->images * s->bands,
                 d->rows * d->out_width * d->channels * d->taps * d->taps / 64, qdepthwise_bands,
                 s);
    return STATUS_OK;
}

static void qdepthwise_free(struct step *base)
{
    struct qdepthwise_step *s = (struct qdepthwise_step *)base;
    FREE_ALL(s->bias, s->scales);
}

static void qdepthwise_pack(const void *context, const struct tensor *constant, float *packed)
{
    const struct qdepthwise_step *s = context;
    s->simd->depthwise_8bit_pack(&s->kernel, constant->data, packed);
}

/* Computes each channel's scale, and its bias minus the zero point times the sum of its weights. */
static enum status fill_channels(struct qdepthwise_step *s, const struct product_desc *desc,
                                 struct error *err)
{
    struct depthwise_8bit *d = &s->kernel;
    const size_t lanes = s->simd->depthwise_channels, blocks = (d->channels + lanes - 1) / lanes;
    const size_t area = d->taps * d->taps;
    const uint8_t flipped = d->src_zero ^ d->flip;
    const int zero = d->dot && s->simd->dot_is_signed ? (int8_t)flipped : flipped;
    const int8_t *weights = desc->weights_constant->data;
    const int32_t *bias = desc->bias ? desc->bias->known->data : NULL;
    s->bias = alloc_array(blocks * lanes, sizeof *s->bias);
    s->scales = alloc_array(blocks * lanes, sizeof *s->scales);
    TRY(check_memory(s->bias && s->scales, "while compiling", err));
    for (size_t i = 0; i < blocks * lanes; i++) {
        const size_t c = depthwise_first_channel(d->channels, i / lanes, lanes) + i % lanes;
        const size_t at = shape_count(&desc->scales->shape) == 1 ? 0 : c;
        int32_t sum = 0;
        for (size_t t = 0; t < area; t++)
            sum += weights[c * area + t];
        s->scales[i] = desc->src_scale * (float)tensor_number(desc->scales, at) / desc->sum_divisor;
        s->bias[i] = (int32_t)((bias ? (uint32_t)bias[c] : 0) - (uint32_t)(sum * zero));
    }
    d->bias = s->bias;
    d->scales = s->scales;
    return STATUS_OK;
}

static bool qdepthwise_fits(const struct node *node, const struct window *w)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const int64_t channels = x->shape.dims[3];
    return node_int(node, "group", 1) == channels && y->shape.dims[3] == channels &&
           channels >= (int64_t)simd()->depthwise_channels && w->kernel[0] == w->kernel[1] &&
           (w->kernel[0] == 3 || w->kernel[0] == 5 || w->kernel[0] == 7) &&
           w->stride[0] == w->stride[1] && w->stride[0] >= 1 && w->stride[0] <= 2 &&
           w->dilation[0] == 1 && w->dilation[1] == 1 && w->pad_begin[0] >= 0 &&
           w->pad_begin[1] >= 0 && w->pad_begin[0] < w->kernel[0] && w->pad_begin[1] < w->kernel[1];
}

enum status lower_qdepthwise(const struct lowering *lowering, const struct product_desc *desc,
                             struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    struct window w;
    if (!dtype_is_8bit(node->outputs[0]->dtype) || node->epilogue.activation ||
        node->inputs[0]->shape.rank != 4)
        return STATUS_OK;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    struct tensor *weights = desc->weights_constant;
    TRY(window_init(node, 2, x->shape.dims + 1, weights->shape.dims + 2, &w, err));
    if (!qdepthwise_fits(node, &w))
        return STATUS_OK;
    struct qdepthwise_step *step = step_create(lowering, sizeof *step, qdepthwise_run, ret, err);
    TRY(allocated(step));
    step->step.free = qdepthwise_free;
    step->step.kernel = "int8:depthwise";
    step->step.packs_constants = true;
    step->simd = simd();
    step->images = (size_t)x->shape.dims[0];
    const bool dot = simd_has_dot(step->simd);
    struct depthwise_8bit *d = &step->kernel;
    *d = (struct depthwise_8bit){
        .channels = (size_t)x->shape.dims[3],
        .height = (size_t)x->shape.dims[1],
        .width = (size_t)x->shape.dims[2],
        .out_height = (size_t)y->shape.dims[1],
        .out_width = (size_t)y->shape.dims[2],
        .taps = (size_t)w.kernel[0],
        .stride = (size_t)w.stride[0],
        .pad_top = (size_t)w.pad_begin[0],
        .pad_left = (size_t)w.pad_begin[1],
        .quads = (size_t)(w.kernel[0] + 3) / 4,
        .src_zero = (uint8_t)desc->src_zero,
        .dot = dot,
        .flip = (x->dtype == DTYPE_I8) == (dot && simd()->dot_is_signed) ? 0 : 0x80,
        .dst_zero = desc->dst_zero,
        .is_signed = y->dtype == DTYPE_I8,
    };
    d->rows = (4 * d->quads - d->taps) / d->stride + 1;
    step->bands = (d->out_height + d->rows - 1) / d->rows;
    TRY(fill_channels(step, desc, err));
    const float *packed;
    const size_t bytes = step->simd->depthwise_8bit_pack(d, NULL, NULL);
    TRY(weights_pack_own(lowering->backend, weights,
                         d->stride == 1 ? "int8:depthwise" : "int8:depthwise:2", bytes,
                         qdepthwise_pack, step, &packed, err));
    d->weights = (const int8_t *)packed;
    step->step.bytes += bytes;
    return STATUS_OK;
}
