/* Depthwise convolutions (a filter of its own for each channel) of 3, 5 or 7 columns and stride 1
 * or 2, by lensd's own kernel: strips of some rows and a block of channels are shared out. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/simd/simd.h"
#include "engine/ops/families.h"

struct depthwise_step {
    struct step step;
    const struct simd_kernels *simd;
    uint32_t x, y;
    struct depthwise kernel;
    size_t images, out_height, blocks;
    size_t strip;        /* rows of the result */
    size_t strips;       /* of an image */
    size_t thread_bytes; /* scratch of a thread */
    const float *x_data;
    float *y_data;
    unsigned char *scratch;
};

static void run_strips(void *context, size_t begin, size_t end)
{
    const struct depthwise_step *s = context;
    const struct depthwise *d = &s->kernel;
    float *scratch = (float *)(void *)(s->scratch + (size_t)omp_get_thread_num() * s->thread_bytes);
    for (size_t i = begin; i < end; i++) {
        const size_t block = i % s->blocks, strip = i / s->blocks % s->strips;
        const size_t image = i / s->blocks / s->strips, first = strip * s->strip;
        const size_t rows = s->out_height - first < s->strip ? s->out_height - first : s->strip;
        s->simd->depthwise(d, s->x_data + image * d->height * d->width * d->channels,
                           s->y_data + image * s->out_height * d->out_width * d->channels, first,
                           rows, block, scratch);
    }
}

static enum status run(struct step *base, struct program *program, struct error *err)
{
    struct depthwise_step *s = (struct depthwise_step *)base;
    const struct depthwise *d = &s->kernel;
    (void)err;
    s->x_data = program->data[s->x];
    s->y_data = program->data[s->y];
    s->scratch = program->scratch;
    parallel_for(program->backend->options.threads, s->images * s->strips * s->blocks,
                 s->strip * d->out_width * d->kernel_height * d->kernel_width, run_strips, s);
    return STATUS_OK;
}

/* [block][tap][channel], 0 beyond the last channel. */
static bool pack(const void *context, const struct tensor *constant, float *packed)
{
    const struct depthwise_step *s = context;
    const size_t taps = s->kernel.kernel_height * s->kernel.kernel_width;
    const size_t lanes = s->simd->depthwise_channels;
    const float *weights = constant->data;
    for (size_t first = 0; first < s->kernel.channels; first += lanes)
        for (size_t t = 0; t < taps; t++)
            for (size_t c = first; c < first + lanes; c++)
                *packed++ = c < s->kernel.channels ? weights[c * taps + t] : 0;
    return true;
}

/* Strips that fit into the cache, at least a few for each thread. */
static void divide(struct depthwise_step *s, size_t threads)
{
    enum { NEAR = 48 * 1024 / sizeof(float) };
    const size_t pieces = s->images * s->blocks;
    size_t rows = s->out_height;
    while (rows > 1 &&
           (s->simd->depthwise_scratch(&s->kernel, rows) > NEAR ||
            pieces * ((s->out_height + rows - 1) / rows) < 4 * threads) &&
           rows > s->kernel.kernel_height)
        rows = (rows + 1) / 2;
    s->strip = rows;
    s->strips = (s->out_height + rows - 1) / rows;
    s->thread_bytes =
        size_align(s->simd->depthwise_scratch(&s->kernel, rows) * sizeof(float), TENSOR_ALIGN);
    s->step.scratch = s->thread_bytes * threads;
}

/* oneDNN's kernel is as quick or quicker for small filters, whose time goes into moving the image;
 * measured on Zen 4. */
static bool pays(const struct window *w)
{
    return w->kernel[0] * w->kernel[1] >= 49;
}

static bool fits(const struct node *node, const struct window *w)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    return x->dtype == DTYPE_F32 && y->dtype == DTYPE_F32 &&
           node_int(node, "group", 1) == x->shape.dims[3] && x->shape.dims[3] == y->shape.dims[3] &&
           !node->epilogue.residual && x->shape.dims[3] >= 8 && w->kernel[0] <= 7 &&
           (w->kernel[1] == 3 || w->kernel[1] == 5 || w->kernel[1] == 7) && w->dilation[0] == 1 &&
           w->dilation[1] == 1 && (w->stride[1] == 1 || w->stride[1] == 2) && w->stride[0] <= 4 &&
           w->pad_begin[0] >= 0 && w->pad_begin[1] >= 0 && w->pad_begin[1] < w->kernel[1] &&
           w->pad_begin[0] < w->kernel[0];
}

enum status make_depthwise(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (node->op != OP_CONV || !node->channels_last || node->inputs[0]->shape.rank != 4)
        return STATUS_OK;
    const struct value *x = node->inputs[0], *y = node->outputs[0], *bias = node_bias(node);
    struct tensor *weights = node->inputs[1]->known;
    struct window w;
    TRY(window_init(node, 2, x->shape.dims + 1, weights->shape.dims + 2, &w, err));
    if (!fits(node, &w) || !(pays(&w) || compile->backend->own_kernels))
        return STATUS_OK;
    struct depthwise_step *step = step_create(compile, sizeof *step, run);
    if (!step)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    *ret = &step->step;
    step->step.kernel = "depthwise";
    step->step.packs_constants = true;
    step->simd = simd();
    step->x = x->index;
    step->y = y->index;
    step->images = (size_t)x->shape.dims[0];
    step->out_height = (size_t)y->shape.dims[1];
    step->kernel = (struct depthwise){
        .channels = (size_t)x->shape.dims[3],
        .height = (size_t)x->shape.dims[1],
        .width = (size_t)x->shape.dims[2],
        .out_width = (size_t)y->shape.dims[2],
        .kernel_height = (size_t)w.kernel[0],
        .kernel_width = (size_t)w.kernel[1],
        .stride_y = (size_t)w.stride[0],
        .stride_x = (size_t)w.stride[1],
        .pad_top = (size_t)w.pad_begin[0],
        .pad_left = (size_t)w.pad_begin[1],
    };
    const size_t lanes = step->simd->depthwise_channels;
    const size_t taps = step->kernel.kernel_height * step->kernel.kernel_width;
    step->blocks = (step->kernel.channels + lanes - 1) / lanes;
    divide(step, (size_t)compile->backend->options.threads);
    struct finish finish;
    TRY(finish_init(compile, bias, &finish, err));
    step->kernel.bias = finish.bias;
    step->kernel.low = finish.clamp ? finish.low : -INFINITY;
    step->kernel.high = finish.clamp ? finish.high : INFINITY;
    step->kernel.row = finish.row;
    float *packed;
    const size_t bytes = step->blocks * lanes * taps * sizeof(float);
    TRY(weights_pack_own(compile->backend, weights, "depthwise", bytes, pack, step, &packed, err));
    step->kernel.weights = packed;
    const double count = (double)shape_count(&y->shape);
    step->step.flops = 2 * count * (double)taps;
    step->step.bytes = sizeof(float) * (shape_count(&x->shape) + shape_count(&y->shape)) + bytes;
    return STATUS_OK;
}
