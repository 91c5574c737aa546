/* Depthwise convolutions (one filter per channel) of 3, 5 or 7 columns and column stride 1 or 2. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"

struct depthwise_step {
    struct step step;
    const struct simd_kernels *simd;
    void **mean; /* address in program->data; NULL: the step makes no mean */
    struct depthwise kernel;
    size_t images, out_height, blocks;
    /* The work is divided by image, by group of blocks (their weights fit in the cache), and by
     * band of rows. */
    size_t groups, bands;
    enum dtype x_dtype, y_dtype, mean_dtype;
    float *sums; /* [image][band][block][channel]: sums of the band's results, for the mean */
};

/* Number of sums per band. */
static size_t sums_of(const struct depthwise_step *s)
{
    return s->blocks * s->simd->depthwise_channels;
}

/* Calls the kernel for bands of rows of one image and group; for one band if there is a mean. */
static void depthwise_band(const struct depthwise_step *s, size_t image, size_t group, size_t band,
                           size_t bands)
{
    const struct depthwise *d = &s->kernel;
    const size_t lanes = s->simd->depthwise_channels, high = s->simd->depthwise_rows;
    const size_t block = s->blocks * group / s->groups, end = s->blocks * (group + 1) / s->groups;
    const size_t first = band * high, beyond = (band + bands) * high;
    const size_t last = beyond < s->out_height ? beyond : s->out_height;
    float *sums = s->mean ? s->sums + (image * s->bands + band) * sums_of(s) : NULL;
    if (sums)
        memset(sums + block * lanes, 0, (end - block) * lanes * sizeof *sums);
    const size_t from = image * d->height * d->width * d->channels;
    const size_t to = image * s->out_height * d->out_width * d->channels;
    s->simd->depthwise(d, s->step.x + from * dtype_size(s->x_dtype),
                       s->step.y + to * dtype_size(s->y_dtype), first, last - first, block, end,
                       sums);
}

static void depthwise_bands(void *context, size_t begin, size_t end)
{
    const struct depthwise_step *s = context;
    while (begin < end) {
        const size_t band = begin % s->bands, group = begin / s->bands % s->groups;
        const size_t left = end - begin < s->bands - band ? end - begin : s->bands - band;
        const size_t bands = s->mean ? 1 : left;
        depthwise_band(s, begin / s->bands / s->groups, group, band, bands);
        begin += bands;
    }
}

/* Divides the bands' sums by the number of pixels. The last block of channels may overlap the
 * block before it. */
static void finish_mean(const struct depthwise_step *s, size_t pixels, void *mean)
{
    const size_t lanes = s->simd->depthwise_channels, channels = s->kernel.channels;
    const size_t before = (s->blocks - 1) * lanes;
    for (size_t i = 0; i < s->images; i++) {
        const float *sums = s->sums + i * s->bands * sums_of(s);
        for (size_t c = 0; c < channels; c++) {
            const size_t at = c < before ? c : c + sums_of(s) - channels;
            double sum = 0;
            for (size_t b = 0; b < s->bands; b++)
                sum += (double)sums[b * sums_of(s) + at];
            const float value = (float)(sum / (double)pixels);
            if (s->mean_dtype == DTYPE_F32)
                ((float *)mean)[i * channels + c] = value;
            else
                s->simd->narrow_bf16(&value, (uint16_t *)mean + i * channels + c, 1);
        }
    }
}

STEP_RUN(depthwise_run)
{
    struct depthwise_step *s = (struct depthwise_step *)base;
    const struct depthwise *d = &s->kernel;
    s->sums = (float *)(void *)program->scratch;
    parallel_for(program->threads, s->images * s->groups * s->bands,
                 s->simd->depthwise_rows * d->out_width * d->kernel_height * d->kernel_width *
                     (s->blocks / s->groups),
                 depthwise_bands, s);
    if (s->mean)
        finish_mean(s, s->out_height * d->out_width, *s->mean);
    return STATUS_OK;
}

/* Packs the weights as [block][tap][channel]. */
static void depthwise_pack(const void *context, const struct tensor *constant, float *packed)
{
    const struct depthwise_step *s = context;
    const size_t taps = s->kernel.kernel_height * s->kernel.kernel_width;
    const size_t lanes = s->simd->depthwise_channels;
    const float *weights = constant->data;
    for (size_t block = 0; block < s->blocks; block++)
        for (size_t t = 0; t < taps; t++)
            for (size_t i = 0; i < lanes; i++)
                *packed++ =
                    weights[(depthwise_first_channel(s->kernel.channels, block, lanes) + i) * taps +
                            t];
}

/* Chooses groups whose weights take at most half of the first-level cache, and at least one group
 * per thread if there are few rows. */
static void depthwise_divide(struct depthwise_step *s, size_t threads)
{
    enum { NEAR = 16 * 1024 / sizeof(float) };
    const size_t taps = s->kernel.kernel_height * s->kernel.kernel_width;
    const size_t each = taps * s->simd->depthwise_channels;
    s->bands = (s->out_height + s->simd->depthwise_rows - 1) / s->simd->depthwise_rows;
    s->groups = (s->blocks * each + NEAR - 1) / NEAR;
    if (s->images * s->bands < 8 * threads && s->groups < threads)
        s->groups = threads;
    if (s->groups > s->blocks)
        s->groups = s->blocks;
}

bool depthwise_fits(const struct node *node, struct window *w)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    return node->channels_last && x->shape.rank == 4 &&
           window_init(node, 2, x->shape.dims + 1, node->inputs[1]->known->shape.dims + 2, w,
                       NULL) == STATUS_OK &&
           (x->dtype == DTYPE_F32 || x->dtype == DTYPE_BF16) &&
           (y->dtype == DTYPE_F32 || (y->dtype == DTYPE_BF16 && x->dtype == DTYPE_BF16)) &&
           node_int(node, "group", 1) == x->shape.dims[3] && x->shape.dims[3] == y->shape.dims[3] &&
           !node->epilogue.residual && x->shape.dims[3] >= (int64_t)simd()->depthwise_channels &&
           w->kernel[0] <= 7 && (w->kernel[1] == 3 || w->kernel[1] == 5 || w->kernel[1] == 7) &&
           w->dilation[0] == 1 && w->dilation[1] == 1 && (w->stride[1] == 1 || w->stride[1] == 2) &&
           w->stride[0] <= 4 && w->pad_begin[0] >= 0 && w->pad_begin[1] >= 0 &&
           w->pad_begin[1] < w->kernel[1] && w->pad_begin[0] < w->kernel[0];
}

enum status lower_depthwise(const struct lowering *lowering, struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0], *bias = node_bias(node);
    struct tensor *weights = node->inputs[1]->known;
    struct window w;
    if (!depthwise_fits(node, &w))
        return STATUS_OK;
    struct depthwise_step *step = step_create(lowering, sizeof *step, depthwise_run, ret, err);
    TRY(allocated(step));
    step->step.kernel = "depthwise";
    step->step.packs_constants = true;
    step->simd = simd();
    step->x_dtype = x->dtype;
    step->y_dtype = y->dtype;
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
        .bf16 = x->dtype == DTYPE_BF16,
        .narrow_result = y->dtype == DTYPE_BF16,
    };
    const size_t lanes = step->simd->depthwise_channels;
    const size_t taps = step->kernel.kernel_height * step->kernel.kernel_width;
    step->blocks = (step->kernel.channels + lanes - 1) / lanes;
    depthwise_divide(step, (size_t)lowering->program->threads);
    if (node_output(node, 1)) {
        step->step.kernel = "depthwise:mean";
        step->mean = &lowering->program->data[node->outputs[1]->index];
        step->mean_dtype = node->outputs[1]->dtype;
        step->step.scratch = step->images * step->bands * sums_of(step) * sizeof(float);
    }
    if (bias)
        TRY(program_keep_constant(lowering->program, bias, err));
    step->kernel.bias = bias ? bias->known->data : NULL;
    step->kernel.row = epilogue_with_clip(&node->epilogue);
    const size_t bytes = step->blocks * lanes * taps * sizeof(float);
    TRY(weights_pack_own(lowering->backend, weights, "depthwise", bytes, depthwise_pack, step,
                         &step->kernel.weights, err));
    step->step.bytes += bytes;
    return STATUS_OK;
}
