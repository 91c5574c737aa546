/* Resize of channels-last images: float32 and bfloat16 in every mode except tf_crop_and_resize and
 * tf_half_pixel_for_nn, 8-bit integers only in nearest mode. Blends rows of the image into one row,
 * then that row's pixels into the result's pixels. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/geometry.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

/* Taps of each position along an axis. Taps with weight 0 are omitted, because 0 times an infinity
 * would make the result NaN. */
struct axis_taps {
    size_t *first; /* [out + 1], indexes into the other arrays */
    size_t *index;
    float *weight;
    size_t most; /* largest number of taps of a position */
};

struct resize_step {
    struct step step;
    const struct simd_kernels *simd;
    enum dtype dtype;
    bool nearest;
    size_t height, width, out_height, out_width, channels, images;
    size_t pitch; /* elements from one result pixel to the next */
    struct axis_taps rows, columns;
    size_t thread_bytes;
};

static void copy_row(const struct resize_step *s, const unsigned char *from, unsigned char *to)
{
    const size_t pixel = s->channels * dtype_size(s->dtype), step = s->pitch * dtype_size(s->dtype);
    for (size_t i = 0; i < s->out_width; i++)
        memcpy(to + i * step, from + s->columns.index[i] * pixel, pixel);
}

/* A thread's scratch: the blended row, a row of the result, widened rows, pointers. */
struct resize_scratch {
    float *row, *result, *wide;
    const float **taps;
};

static size_t resize_lay_out(const struct resize_step *s, unsigned char *base,
                             struct resize_scratch *ret)
{
    const size_t row = size_align(s->width * s->channels * sizeof(float), TENSOR_ALIGN);
    const size_t result = size_align(s->out_width * s->channels * sizeof(float), TENSOR_ALIGN);
    const size_t most = s->rows.most > s->columns.most ? s->rows.most : s->columns.most;
    const size_t wide = s->dtype == DTYPE_BF16 ? s->rows.most * row : 0;
    if (base)
        *ret = (struct resize_scratch){(float *)(void *)base, (float *)(void *)(base + row),
                                       (float *)(void *)(base + row + result),
                                       (const float **)(void *)(base + row + result + wide)};
    return row + result + wide + size_align(most * sizeof(float *), TENSOR_ALIGN);
}

static void blend_row(const struct resize_step *s, const unsigned char *image, size_t y,
                      const struct resize_scratch *scratch, float *to, size_t to_step)
{
    const size_t length = s->width * s->channels;
    const size_t first = s->rows.first[y], count = s->rows.first[y + 1] - first;
    for (size_t t = 0; t < count; t++) {
        const unsigned char *from =
            image + s->rows.index[first + t] * length * dtype_size(s->dtype);
        scratch->taps[t] = (const float *)(const void *)from;
        if (s->dtype == DTYPE_BF16) {
            s->simd->widen_bf16((const uint16_t *)(const void *)from, scratch->wide + t * length,
                                length);
            scratch->taps[t] = scratch->wide + t * length;
        }
    }
    const float *row = scratch->row;
    if (count == 1 && s->rows.weight[first] == 1)
        row = scratch->taps[0];
    else
        s->simd->blend(scratch->taps, s->rows.weight + first, count, scratch->row, length);
    for (size_t i = 0; i < s->out_width; i++) {
        const size_t from = s->columns.first[i], taps = s->columns.first[i + 1] - from;
        for (size_t t = 0; t < taps; t++)
            scratch->taps[t] = row + s->columns.index[from + t] * s->channels;
        s->simd->blend(scratch->taps, s->columns.weight + from, taps, to + i * to_step,
                       s->channels);
    }
}

static void resize_rows(void *context, size_t begin, size_t end)
{
    const struct resize_step *s = context;
    const size_t size = dtype_size(s->dtype), length = s->out_width * s->pitch;
    struct resize_scratch scratch;
    resize_lay_out(s, s->step.memory + (size_t)forkjoin_member() * s->thread_bytes, &scratch);
    for (size_t i = begin; i < end; i++) {
        const size_t image = i / s->out_height, y = i % s->out_height;
        const unsigned char *from = s->step.x + image * s->height * s->width * s->channels * size;
        unsigned char *to = s->step.y + i * length * size;
        if (s->nearest && s->pitch == s->channels && i > begin && y &&
            s->rows.index[y] == s->rows.index[y - 1])
            memcpy(to, to - length * size, length * size);
        else if (s->nearest)
            copy_row(s, from + s->rows.index[y] * s->width * s->channels * size, to);
        else if (s->dtype == DTYPE_F32)
            blend_row(s, from, y, &scratch, (float *)(void *)to, s->pitch);
        else {
            blend_row(s, from, y, &scratch, scratch.result, s->channels);
            for (size_t x = 0; x < s->out_width; x++)
                s->simd->narrow_bf16(scratch.result + x * s->channels,
                                     (uint16_t *)(void *)to + x * s->pitch, s->channels);
        }
    }
}

STEP_RUN(resize_run)
{
    struct resize_step *s = (struct resize_step *)base;
    parallel_for(program->threads, s->images * s->out_height, s->out_width * s->channels / 4 + 1,
                 resize_rows, s);
    return STATUS_OK;
}

/* ---- compile ---- */

static void resize_free(struct step *base)
{
    struct resize_step *s = (struct resize_step *)base;
    FREE_ALL(s->rows.first, s->rows.index, s->rows.weight, s->columns.first, s->columns.index,
             s->columns.weight);
}

static enum status taps_init(struct axis_taps *taps, const struct resize_plan *plan,
                             const struct resize_axis *axis, struct error *err)
{
    const size_t most = axis->resized ? resize_tap_count(plan, axis) : 1;
    const size_t out = (size_t)axis->out;
    size_t capacity, kept = 0;
    double *weight = alloc_array(most, sizeof *weight);
    size_t *index = alloc_array(most, sizeof *index);
    const bool fits = size_mul(out, most, &capacity);
    taps->most = most;
    taps->first = alloc_array(out + 1, sizeof *taps->first);
    taps->index = fits ? alloc_array(capacity, sizeof *taps->index) : NULL;
    taps->weight = fits ? alloc_array(capacity, sizeof *taps->weight) : NULL;
    const bool ok = weight && index && taps->first && taps->index && taps->weight;
    for (size_t i = 0; ok && i < out; i++) {
        index[0] = i;
        weight[0] = 1;
        if (axis->resized)
            (void)resize_taps(plan, axis, (int64_t)i, index, weight);
        taps->first[i] = kept;
        for (size_t t = 0; t < most; t++) {
            if (weight[t] == 0 && (t + 1 < most || kept > taps->first[i]))
                continue;
            taps->index[kept] = index[t];
            taps->weight[kept++] = (float)weight[t];
        }
        taps->first[i + 1] = kept;
    }
    FREE_ALL(weight, index);
    return ok ? STATUS_OK : error_no_memory(err, "while compiling");
}

/* True for an 8-bit image that is resized in nearest mode. */
static bool is_stored_image(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    return node->op == OP_RESIZE && x && y && !x->known && dtype_size(x->dtype) == 1 &&
           shape_count(&x->shape) && shape_count(&y->shape) &&
           strcmp(node_string(node, "mode", "nearest"), "nearest") == 0;
}

KERNEL_CLAIM(resize_claim)
{
    struct resize_plan plan;
    ret->can = KERNEL_CHANNELS_LAST | KERNEL_PITCH;
    ret->narrow = NARROW_SAME;
    if (!is_stored_image(node) && !claim_reads_image(node))
        return false;
    /* the layout pass calls this before it changes the shapes */
    return node->channels_last ||
           (resize_is_spatial(node, &plan) && plan.coordinate != RESIZE_TF_HALF_PIXEL_FOR_NN);
}

STEP_CREATE(lower_resize)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const int64_t *in = x->shape.dims, *out = y->shape.dims;
    const struct shape plain = SHAPE(in[0], in[3], in[1], in[2]);
    struct resize_plan plan;
    struct resize_scratch scratch;
    bool is_known;
    TRY(resize_plan_init(node, &plain, &plan, &is_known, err));
    assert(is_known && plan.axis[2].out == out[1] && plan.axis[3].out == out[2]);
    struct resize_step *s = step_create(lowering, sizeof *s, resize_run, ret, err);
    TRY(allocated(s));
    s->step.free = resize_free;
    s->step.kernel = "resize";
    s->step.packs_constants = true;
    s->simd = simd();
    s->dtype = x->dtype;
    s->nearest = plan.mode == RESIZE_NEAREST;
    s->images = (size_t)in[0];
    s->height = (size_t)in[1];
    s->width = (size_t)in[2];
    s->channels = (size_t)in[3];
    s->pitch = pixel_pitch(lowering, y);
    s->out_height = (size_t)out[1];
    s->out_width = (size_t)out[2];
    TRY(taps_init(&s->rows, &plan, &plan.axis[2], err));
    TRY(taps_init(&s->columns, &plan, &plan.axis[3], err));
    if (!s->nearest) {
        s->thread_bytes = resize_lay_out(s, NULL, &scratch);
        s->step.scratch = s->thread_bytes * (size_t)lowering->program->threads;
    }
    return STATUS_OK;
}

const struct cpu_kernel cpu_resize = {{"resize", {OP_RESIZE}, resize_claim}, lower_resize};
