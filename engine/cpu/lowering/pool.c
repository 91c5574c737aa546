/* MaxPool, AveragePool and their global forms, channels-last: an output pixel is the maximum or sum
 * of a few contiguous channel rows. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"

#include <math.h>
#include <string.h>

#define MOST_TAPS 256

struct pool_step {
    struct step step;
    const struct simd_kernels *simd;
    struct window window; /* extended to two spatial dimensions */
    bool is_max, count_include_pad, global;
    size_t images, channels;
    size_t pitch;  /* elements from one result pixel to the next */
    size_t pieces; /* partial sums per image, for a global mean in float32; otherwise 0 */
    enum dtype dtype;
    float *partial;
};

/* Returns how many taps along an axis of the window at `start` are inside the image. *ret_first is
 * the first of them; *ret_counted is the number of taps inside the image and its padding. */
static size_t pool_clip(const struct window *w, int axis, int64_t start, int64_t *ret_first,
                        int64_t *ret_counted)
{
    const int64_t dilation = w->dilation[axis], in = w->in[axis], kernel = w->kernel[axis];
    const int64_t first = start < 0 ? (-start + dilation - 1) / dilation : 0;
    const int64_t beyond = start >= in ? 0 : (in - start + dilation - 1) / dilation;
    const int64_t last = beyond < kernel ? beyond : kernel;
    const int64_t padded = (in + w->pad_end[axis] - start + dilation - 1) / dilation;
    *ret_first = first;
    /* positions that ceil_mode adds never count */
    *ret_counted = padded < 0 ? 0 : padded < kernel ? padded : kernel;
    return last > first ? (size_t)(last - first) : 0;
}

size_t pool_taps(const struct window *w, const unsigned char *image, size_t pixel_bytes, int64_t oy,
                 int64_t ox, const void **taps, int64_t *ret_counted)
{
    const int64_t y0 = oy * w->stride[0] - w->pad_begin[0];
    const int64_t x0 = ox * w->stride[1] - w->pad_begin[1];
    int64_t first_y, first_x, counted_y, counted_x;
    const size_t rows = pool_clip(w, 0, y0, &first_y, &counted_y);
    const size_t columns = pool_clip(w, 1, x0, &first_x, &counted_x);
    size_t count = 0;
    for (size_t r = 0; r < rows; r++) {
        const int64_t y = y0 + (first_y + (int64_t)r) * w->dilation[0];
        for (size_t c = 0; c < columns; c++) {
            const int64_t x = x0 + (first_x + (int64_t)c) * w->dilation[1];
            taps[count++] = image + (size_t)(y * w->in[1] + x) * pixel_bytes;
        }
    }
    *ret_counted = counted_y * counted_x;
    return count;
}

static void reduce_taps(const struct pool_step *s, const void *const *taps, size_t count,
                        float factor, void *y, size_t n)
{
    bool wide = s->dtype == DTYPE_F32;
    if (s->is_max && !count) { /* a window entirely in the padding: its maximum is -inf */
        for (size_t c = 0; c < n; c++)
            if (wide)
                ((float *)y)[c] = -INFINITY;
            else
                ((uint16_t *)y)[c] = 0xff80;
    } else if (s->is_max && wide) {
        s->simd->pool_max((const float *const *)taps, count, y, n);
    } else if (s->is_max) {
        s->simd->pool_max_bf16((const uint16_t *const *)taps, count, y, n);
    } else if (wide) {
        s->simd->pool_sum((const float *const *)taps, count, factor, y, n);
    } else {
        s->simd->pool_sum_bf16((const uint16_t *const *)taps, count, factor, y, n);
    }
}

static void pool_pixel(const struct pool_step *s, size_t image, int64_t oy, int64_t ox)
{
    const struct window *w = &s->window;
    const void *taps[MOST_TAPS];
    const size_t pixel = s->channels * dtype_size(s->dtype);
    int64_t counted;
    const size_t count = pool_taps(w, s->step.x + image * (size_t)(w->in[0] * w->in[1]) * pixel,
                                   pixel, oy, ox, taps, &counted);
    const size_t at = (image * (size_t)w->out[0] + (size_t)oy) * (size_t)w->out[1] + (size_t)ox;
    const int64_t divisor = s->count_include_pad ? counted : (int64_t)count;
    const float factor = divisor > 0 ? 1.0f / (float)divisor : 0.0f;
    reduce_taps(s, taps, count, factor, s->step.y + at * s->pitch * dtype_size(s->dtype),
                s->channels);
}

static void pool_rows(void *context, size_t begin, size_t end)
{
    const struct pool_step *s = context;
    for (size_t row = begin; row < end; row++)
        for (int64_t ox = 0; ox < s->window.out[1]; ox++)
            pool_pixel(s, row / (size_t)s->window.out[0], (int64_t)(row % (size_t)s->window.out[0]),
                       ox);
}

/* Maximum numbers of pixels and of partial sums added in float32; more are added in double. */
#define LONGEST_SUM 512
#define FEW_PIECES  16

/* Channels per block of a global pool: threads share the images' blocks. */
#define BLOCK 64

/* Reduces all pixels of up to BLOCK channels to their maximum. */
static void global_max(const struct pool_step *s, const unsigned char *x, size_t pixels, size_t n,
                       void *result)
{
    const size_t pixel = s->channels * dtype_size(s->dtype);
    const void *taps[MOST_TAPS];
    for (size_t p = 0; p < pixels;) {
        size_t count = 0;
        if (p)
            taps[count++] = result; /* maximum of the earlier pixels */
        while (count < MOST_TAPS && p < pixels)
            taps[count++] = x + p++ * pixel;
        reduce_taps(s, taps, count, 1, result, n);
    }
}

static void global_mean_bf16(const struct pool_step *s, const uint16_t *pixel, size_t pixels,
                             size_t n, float *result)
{
    double sum[BLOCK] = {0};
    for (size_t first = 0; first < pixels; first += LONGEST_SUM) {
        memset(result, 0, n * sizeof *result);
        for (size_t p = first; p < pixels && p < first + LONGEST_SUM; p++)
            s->simd->accumulate_bf16(pixel + p * s->channels, result, n);
        for (size_t c = 0; c < n; c++)
            sum[c] += (double)result[c];
    }
    for (size_t c = 0; c < n; c++)
        result[c] = (float)(sum[c] / (double)pixels);
}

/* Computes global maxima, and global means of bfloat16. */
static void pool_global(void *context, size_t begin, size_t end)
{
    const struct pool_step *s = context;
    const size_t pixels = (size_t)(s->window.in[0] * s->window.in[1]), size = dtype_size(s->dtype);
    const size_t blocks = (s->channels + BLOCK - 1) / BLOCK;
    for (size_t i = begin; i < end; i++) {
        const size_t image = i / blocks, c = i % blocks * BLOCK;
        const size_t n = s->channels - c < BLOCK ? s->channels - c : BLOCK;
        const unsigned char *x = s->step.x + (image * pixels * s->channels + c) * size;
        unsigned char *y = s->step.y + (image * s->channels + c) * size;
        float mean[BLOCK];
        if (s->is_max) {
            global_max(s, x, pixels, n, y);
            continue;
        }
        global_mean_bf16(s, (const uint16_t *)(const void *)x, pixels, n, mean);
        s->simd->narrow_bf16(mean, (uint16_t *)(void *)y, n);
    }
}

/* Sums the pixels of images in float32, as s->pieces partial sums per image. */
static void sum_pieces(void *context, size_t begin, size_t end)
{
    const struct pool_step *s = context;
    const size_t pixels = (size_t)s->window.in[1];
    for (size_t i = begin; i < end; i++) {
        const size_t image = i / s->pieces, piece = i % s->pieces;
        const size_t first = pixels * piece / s->pieces, last = pixels * (piece + 1) / s->pieces;
        const float *x = (const float *)(const void *)s->step.x;
        s->simd->sum_rows(x + (image * pixels + first) * s->channels, last - first,
                          s->partial + i * s->channels, s->channels);
    }
}

/* A large image has thousands of partial sums; they are added up in double. */
static void join_pieces(void *context, size_t begin, size_t end)
{
    const struct pool_step *s = context;
    const double pixels = (double)s->window.in[1];
    float *y = (float *)(void *)s->step.y;
    for (size_t i = begin; i < end; i++) {
        const float *from = s->partial + i / s->channels * s->pieces * s->channels;
        double sum = 0;
        for (size_t p = 0; p < s->pieces; p++)
            sum += (double)from[p * s->channels + i % s->channels];
        y[i] = (float)(sum / pixels);
    }
}

static void pool_mean(struct pool_step *s, struct program *program)
{
    const size_t pixels = (size_t)s->window.in[1];
    const int threads = program->threads;
    float *y = (float *)(void *)s->step.y;
    s->partial = s->pieces == 1 ? y : (float *)(void *)program->scratch;
    parallel_for(threads, s->images * s->pieces, pixels * s->channels / s->pieces / 4, sum_pieces,
                 s);
    if (s->pieces > FEW_PIECES) {
        parallel_for(threads, s->images * s->channels, s->pieces, join_pieces, s);
        return;
    }
    for (size_t i = 0; i < s->images && s->pieces > 1; i++)
        s->simd->sum_rows(s->partial + i * s->pieces * s->channels, s->pieces, y + i * s->channels,
                          s->channels);
    const float factor = 1.0f / (float)pixels;
    s->simd->binary(BINARY_MUL, y, 1, &factor, 0, y, s->images * s->channels);
}

STEP_RUN(pool_run)
{
    struct pool_step *s = (struct pool_step *)base;
    int threads = program->threads;
    const struct window *w = &s->window;
    if (s->global && s->pieces)
        pool_mean(s, program);
    else if (s->global)
        parallel_for(threads, s->images * ((s->channels + BLOCK - 1) / BLOCK),
                     (size_t)(w->in[0] * w->in[1]) * BLOCK / 8, pool_global, s);
    else
        parallel_for(threads, s->images * (size_t)w->out[0],
                     (size_t)(w->out[1] * w->kernel[0] * w->kernel[1]) * s->channels / 8, pool_rows,
                     s);
    return STATUS_OK;
}

static bool is_global(const struct node *node)
{
    return node->op == OP_GLOBAL_AVERAGE_POOL || node->op == OP_GLOBAL_MAX_POOL;
}

KERNEL_CLAIM(pool_claim)
{
    size_t count = 0, taps = 1;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    ret->can = KERNEL_CHANNELS_LAST | (is_global(node) ? 0 : KERNEL_PITCH);
    ret->narrow = NARROW_SAME;
    for (size_t i = 0; i < count; i++)
        taps *= kernel[i] > 0 && kernel[i] <= MOST_TAPS ? (size_t)kernel[i] : MOST_TAPS + 1;
    return claim_reads_image(node) &&
           (is_global(node) ||
            (node->inputs[0]->shape.rank <= 4 && taps <= MOST_TAPS && !node_output(node, 1)));
}

STEP_CREATE(lower_pool)
{
    const struct node *node = lowering->node;
    const bool global = is_global(node);
    const bool is_max = node->op == OP_MAX_POOL || node->op == OP_GLOBAL_MAX_POOL;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    int spatial = x->shape.rank - 2;
    struct pool_step *step = step_create(lowering, sizeof *step, pool_run, ret, err);
    TRY(allocated(step));
    struct window *w = &step->window;
    *w = (struct window){.spatial = 2,
                         .kernel = {1, 1},
                         .stride = {1, 1},
                         .dilation = {1, 1},
                         .in = {1, 1},
                         .out = {1, 1}};
    if (global) {
        for (int a = 0; a < spatial; a++)
            w->in[1] *= x->shape.dims[1 + a];
    } else {
        size_t count;
        const int64_t *kernel = node_ints(node, "kernel_shape", &count);
        struct window own;
        TRY(window_init(node, spatial, x->shape.dims + 1, kernel, &own, err));
        for (int a = 0; a < spatial; a++) {
            int to = 2 - spatial + a;
            w->kernel[to] = own.kernel[a];
            w->stride[to] = own.stride[a];
            w->dilation[to] = own.dilation[a];
            w->pad_begin[to] = own.pad_begin[a];
            w->pad_end[to] = own.pad_end[a];
            w->in[to] = own.in[a];
            w->out[to] = own.out[a];
        }
    }
    step->simd = simd();
    step->step.kernel = step->simd->name;
    step->global = global;
    step->is_max = is_max;
    step->count_include_pad = node_int(node, "count_include_pad", 0);
    step->images = (size_t)x->shape.dims[0];
    step->channels = (size_t)x->shape.dims[x->shape.rank - 1];
    step->pitch = pixel_pitch(lowering, y);
    step->dtype = x->dtype;
    if (global && !is_max && x->dtype == DTYPE_F32) {
        const size_t threads = (size_t)lowering->program->threads;
        step->pieces = step->images >= threads ? 1 : (threads + step->images - 1) / step->images;
        if (step->pieces < (size_t)w->in[1] / LONGEST_SUM)
            step->pieces = (size_t)w->in[1] / LONGEST_SUM;
        step->step.scratch = step->images * step->pieces * step->channels * sizeof(float);
    }
    step->step.bytes = value_bytes(x) + value_bytes(y);
    step->step.flops =
        (double)(global ? shape_count(&x->shape)
                        : shape_count(&y->shape) * (size_t)(w->kernel[0] * w->kernel[1]));
    return STATUS_OK;
}

const struct cpu_kernel cpu_pool = {
    {"pool",
     {OP_MAX_POOL, OP_AVERAGE_POOL, OP_GLOBAL_AVERAGE_POOL, OP_GLOBAL_MAX_POOL},
     pool_claim},
    lower_pool};
