/* GroupNormalization and InstanceNormalization of channels-last images, and LRN; float32.
 *
 * Each image is read three times: for the groups' means, for their variances, and for the results,
 * (x - mean) * factor + shift per channel. Threads divide the pixels. The mean is rounded. Its
 * error matters if the mean is much larger than the deviation, so the mean of the differences from
 * the rounded mean is subtracted, too. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

#include <math.h>
#include <string.h>

#include "engine/base/size.h"

#define LONGEST_SUM 512 /* pixels */

struct groups_step {
    struct step step;
    const struct simd_kernels *simd;
    size_t images, pixels, channels, groups, pieces;
    size_t per; /* channels in a group */
    const float *scale, *bias;
    float epsilon;
    /* set for each run and image */
    const float *x_data;
    float *y_data, *partial, *wrong; /* partial, wrong: [pieces, channels] */
    float *mean, *factor, *shift;    /* [channels] */
};

static void sum_pieces(void *context, size_t begin, size_t end)
{
    const struct groups_step *s = context;
    for (size_t p = begin; p < end; p++) {
        const size_t first = s->pixels * p / s->pieces, last = s->pixels * (p + 1) / s->pieces;
        s->simd->square_rows(s->x_data + first * s->channels, s->mean, last - first,
                             s->partial + p * s->channels, s->wrong + p * s->channels, s->channels);
    }
}

static void write_piece(void *context, size_t begin, size_t end)
{
    const struct groups_step *s = context;
    const size_t first = s->pixels * begin / s->pieces, last = s->pixels * end / s->pieces;
    s->simd->center_rows(s->x_data + first * s->channels, s->mean, s->factor, s->shift,
                         last - first, s->y_data + first * s->channels, s->channels);
}

/* Averages a group's partial sums; to[c] is the result for each of its channels. */
static void join(const struct groups_step *s, const float *partial, float *to)
{
    const size_t per = s->per;
    for (size_t g = 0; g < s->groups; g++) {
        double sum = 0;
        for (size_t p = 0; p < s->pieces; p++)
            for (size_t c = g * per; c < (g + 1) * per; c++)
                sum += (double)partial[p * s->channels + c];
        for (size_t c = g * per; c < (g + 1) * per; c++)
            to[c] = (float)(sum / (double)(per * s->pixels));
    }
}

STEP_RUN(groups_run)
{
    struct groups_step *s = (struct groups_step *)base;
    const int threads = program->threads;
    const size_t cost = s->pixels / s->pieces * s->channels / 8 + 1;
    s->partial = (float *)(void *)program->scratch;
    s->wrong = s->partial + s->pieces * s->channels;
    s->mean = s->wrong + s->pieces * s->channels;
    s->factor = s->mean + s->channels;
    s->shift = s->factor + s->channels;
    for (size_t n = 0; n < s->images; n++) {
        s->x_data = (const float *)(const void *)base->x + n * s->pixels * s->channels;
        s->y_data = (float *)(void *)base->y + n * s->pixels * s->channels;
        memset(s->mean, 0, s->channels * sizeof *s->mean); /* differences from 0 give the mean */
        parallel_for(threads, s->pieces, cost, sum_pieces, s);
        join(s, s->wrong, s->mean);
        parallel_for(threads, s->pieces, cost, sum_pieces, s);
        join(s, s->partial, s->factor);
        join(s, s->wrong, s->shift);
        for (size_t c = 0; c < s->channels; c++) {
            const float variance = s->factor[c] - s->shift[c] * s->shift[c];
            s->factor[c] = s->scale[c] / sqrtf((variance > 0 ? variance : 0) + s->epsilon);
            s->shift[c] = s->bias[c] - s->shift[c] * s->factor[c];
        }
        parallel_for(threads, s->pieces, cost, write_piece, s);
    }
    return STATUS_OK;
}

/* ---- LRN ---- */

struct lrn_step {
    struct step step;
    const struct simd_kernels *simd;
    size_t pixels, channels, size, thread_bytes;
    float factor, bias, beta;
};

static void lrn_pixels(void *context, size_t begin, size_t end)
{
    const struct lrn_step *s = context;
    float *squares =
        (float *)(void *)(s->step.memory + (size_t)forkjoin_member() * s->thread_bytes);
    for (size_t i = begin; i < end; i++)
        s->simd->lrn((const float *)(const void *)s->step.x + i * s->channels, s->channels, s->size,
                     s->factor, s->bias, s->beta, squares,
                     (float *)(void *)s->step.y + i * s->channels);
}

STEP_RUN(lrn_run)
{
    struct lrn_step *s = (struct lrn_step *)base;
    parallel_for(program->threads, s->pixels, s->channels, lrn_pixels, s);
    return STATUS_OK;
}

/* ---- compile ---- */

/* Called before and after the layout pass, so the shape of x does not show which dimension has the
 * channels: only the parameters are checked. */
KERNEL_CLAIM(groups_claim)
{
    enum { WIDEST = 1024 };
    ret->can = KERNEL_CHANNELS_LAST;
    if (!claim_reads_image(node))
        return false;
    if (node->op == OP_LRN)
        return node_int(node, "size", 1) >= 1 && node_int(node, "size", 1) <= WIDEST;
    return claim_group_parameters(node);
}

STEP_CREATE(lower_lrn)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0];
    struct lrn_step *s = step_create(lowering, sizeof *s, lrn_run, ret, err);
    TRY(allocated(s));
    s->simd = simd();
    s->step.kernel = "lrn";
    s->channels = (size_t)x->shape.dims[x->shape.rank - 1];
    s->pixels = shape_count(&x->shape) / s->channels;
    s->size = (size_t)node_int(node, "size", 1);
    s->factor = node_float(node, "alpha", 1e-4f) / (float)s->size;
    s->bias = node_float(node, "bias", 1);
    s->beta = node_float(node, "beta", 0.75f);
    s->thread_bytes = size_align((s->channels + s->size) * sizeof(float), TENSOR_ALIGN);
    s->step.scratch = s->thread_bytes * (size_t)lowering->program->threads;
    return STATUS_OK;
}

STEP_CREATE(lower_groups)
{
    const struct node *node = lowering->node;
    if (node->op == OP_LRN)
        return lower_lrn(lowering, ret, err);
    const bool instance = node->op == OP_INSTANCE_NORMALIZATION;
    const struct value *x = node->inputs[0];
    struct groups_step *s = step_create(lowering, sizeof *s, groups_run, ret, err);
    TRY(allocated(s));
    s->simd = simd();
    s->step.kernel = "groups";
    s->images = (size_t)x->shape.dims[0];
    s->channels = (size_t)x->shape.dims[x->shape.rank - 1];
    s->pixels = shape_count(&x->shape) / s->images / s->channels;
    s->groups = instance ? s->channels : (size_t)node_int(node, "num_groups", 1);
    s->per = s->channels / s->groups;
    s->epsilon = node_float(node, "epsilon", 1e-5f);
    s->scale = node->inputs[1]->known->data;
    s->bias = node->inputs[2]->known->data;
    /* A piece is short enough for float32 sums. There are as many pieces as threads, or more. */
    s->pieces = (s->pixels + LONGEST_SUM - 1) / LONGEST_SUM;
    if (s->pieces < (size_t)lowering->program->threads)
        s->pieces = (size_t)lowering->program->threads;
    s->pieces = s->pieces < s->pixels ? s->pieces : s->pixels;
    s->step.scratch = (2 * s->pieces + 3) * s->channels * sizeof(float);
    return STATUS_OK;
}

const struct cpu_kernel cpu_groups = {
    {"groups", {OP_GROUP_NORMALIZATION, OP_INSTANCE_NORMALIZATION, OP_LRN}, groups_claim},
    lower_groups};
