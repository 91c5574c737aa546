/* MaxPool, AveragePool, GlobalMaxPool and GlobalAveragePool of channels-last images, all but
 * GlobalMaxPool also in 8 bits. A result pixel is the maximum or sum of source pixels. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/geometry.h"

#include <string.h>

#define MOST_TAPS 256

struct pool_step {
    struct step step;
    const struct simd_kernels *simd;
    struct window window; /* unless `global` */
    bool is_max, count_include_pad, global;
    size_t images, pixels, channels; /* pixels: of a source image */
    size_t pitch;                    /* elements from one result pixel to the next */
    enum dtype dtype;
    struct scale_zero from, to; /* of 8-bit tensors; otherwise scale 1, zero 0 */
};

/* Writes to `taps` the addresses of the taps of result pixel (oy, ox) that are inside the image,
 * and returns their number. *ret_counted is the number of the window's positions inside the image
 * and its padding. */
static size_t pool_taps(const struct window *w, const unsigned char *image, size_t pixel_bytes,
                        int64_t oy, int64_t ox, const void **taps, int64_t *ret_counted)
{
    const int64_t y0 = oy * w->stride[0] - w->pad_begin[0];
    const int64_t x0 = ox * w->stride[1] - w->pad_begin[1];
    int64_t first_y, end_y, first_x, end_x;
    size_t count = 0;
    *ret_counted =
        window_taps(w, 0, y0, &first_y, &end_y) * window_taps(w, 1, x0, &first_x, &end_x);
    for (int64_t r = first_y; r < end_y; r++)
        for (int64_t c = first_x; c < end_x; c++) {
            const int64_t y = y0 + r * w->dilation[0], x = x0 + c * w->dilation[1];
            taps[count++] = image + (size_t)(y * w->in[1] + x) * pixel_bytes;
        }
    return count;
}

static void pool_pixel(const struct pool_step *s, size_t image, int64_t oy, int64_t ox)
{
    const struct window *w = &s->window;
    const void *taps[MOST_TAPS];
    const size_t pixel = s->channels * dtype_size(s->dtype);
    int64_t counted;
    const size_t count =
        pool_taps(w, s->step.x + image * s->pixels * pixel, pixel, oy, ox, taps, &counted);
    const size_t at = (image * (size_t)w->out[0] + (size_t)oy) * (size_t)w->out[1] + (size_t)ox;
    const int64_t divisor = s->count_include_pad ? counted : (int64_t)count;
    const float all = (float)(divisor > 0 ? divisor : 1);
    const float factor = s->is_max ? 1 : s->from.scale / (s->to.scale * all);
    const struct pool_rows rows = {
        .taps = taps,
        .count = count,
        .is_max = s->is_max,
        .factor = factor,
        .fixed = (float)s->to.zero - factor * (float)((int64_t)count * s->from.zero),
    };
    s->simd->pool(&rows, s->dtype, s->step.y + at * s->pitch * dtype_size(s->dtype), s->dtype,
                  s->channels);
}

static void pool_lines(void *context, size_t begin, size_t end)
{
    const struct pool_step *s = context;
    for (size_t row = begin; row < end; row++)
        for (int64_t ox = 0; ox < s->window.out[1]; ox++)
            pool_pixel(s, row / (size_t)s->window.out[0], (int64_t)(row % (size_t)s->window.out[0]),
                       ox);
}

/* Channels of a block. A global pool is divided among the threads by blocks of channels. */
#define BLOCK 64

/* Pools all pixels of an image. Sums of up to TOGETHER pixels are float32; their sum is double. */
static void pool_global(void *context, size_t begin, size_t end)
{
    enum { TOGETHER = 64 };
    const struct pool_step *s = context;
    const size_t pixels = s->pixels, size = dtype_size(s->dtype);
    const double zeros = (double)s->from.zero * (double)pixels;
    const float factor = s->from.scale / (s->to.scale * (float)pixels);
    const size_t blocks = (s->channels + BLOCK - 1) / BLOCK;
    const void *taps[TOGETHER];
    float part[BLOCK];
    for (size_t i = begin; i < end; i++) {
        const size_t image = i / blocks, c = i % blocks * BLOCK;
        const size_t n = s->channels - c < BLOCK ? s->channels - c : BLOCK;
        const unsigned char *x = s->step.x + (image * pixels * s->channels + c) * size;
        unsigned char *y = s->step.y + (image * s->channels + c) * size;
        double sum[BLOCK] = {0};
        for (size_t p = 0; p < pixels;) {
            struct pool_rows rows = {.taps = taps, .is_max = s->is_max, .factor = 1};
            if (s->is_max && p)
                taps[rows.count++] = y; /* maximum of the earlier pixels */
            for (; rows.count < TOGETHER && p < pixels; p++)
                taps[rows.count++] = x + p * s->channels * size;
            s->simd->pool(&rows, s->dtype, s->is_max ? y : (void *)part,
                          s->is_max ? s->dtype : DTYPE_F32, n);
            for (size_t k = 0; !s->is_max && k < n; k++)
                sum[k] += (double)part[k];
        }
        for (size_t k = 0; !s->is_max && k < n; k++)
            part[k] = dtype_is_8bit(s->dtype) ? (float)(sum[k] - zeros) * factor
                                              : (float)(sum[k] / (double)pixels);
        if (!s->is_max && s->dtype == DTYPE_F32)
            memcpy(y, part, n * size);
        else if (!s->is_max && s->dtype == DTYPE_BF16)
            s->simd->narrow_bf16(part, (uint16_t *)(void *)y, n);
        else if (!s->is_max)
            s->simd->quantize(part, 1, s->to.zero, s->dtype == DTYPE_I8, y, n);
    }
}

STEP_RUN(pool_run)
{
    struct pool_step *s = (struct pool_step *)base;
    int threads = program->threads;
    const struct window *w = &s->window;
    if (s->global)
        parallel_for(threads, s->images * ((s->channels + BLOCK - 1) / BLOCK),
                     s->pixels * BLOCK / 8, pool_global, s);
    else
        parallel_for(threads, s->images * (size_t)w->out[0],
                     (size_t)(w->out[1] * w->kernel[0] * w->kernel[1]) * s->channels / 8,
                     pool_lines, s);
    return STATUS_OK;
}

static bool is_global(const struct node *node)
{
    return node->op == OP_GLOBAL_AVERAGE_POOL || node->op == OP_GLOBAL_MAX_POOL ||
           node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL;
}

/* True for an 8-bit MaxPool, or an average pool whose quantizations are constants. */
static bool fits_8bit(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    struct scale_zero ignored;
    return x && y && dtype_is_8bit(x->dtype) && x->dtype == y->dtype && x->shape.rank >= 3 &&
           shape_count(&x->shape) && shape_count(&y->shape) &&
           (node->op == OP_MAX_POOL ||
            (node->op != OP_GLOBAL_MAX_POOL && !node_int(node, "channels_last", 0) &&
             scale_zero_of(node, 1, x->dtype, &ignored) &&
             scale_zero_of(node, 3, y->dtype, &ignored)));
}

KERNEL_CLAIM(pool_claim)
{
    size_t count = 0, taps = 1;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    const bool is_8bit = fits_8bit(node);
    ret->can = KERNEL_CHANNELS_LAST | (is_global(node) ? 0 : KERNEL_PITCH);
    ret->narrow = is_8bit ? NARROW_NO : NARROW_SAME;
    for (size_t i = 0; i < count; i++)
        taps *= kernel[i] > 0 && kernel[i] <= MOST_TAPS ? (size_t)kernel[i] : MOST_TAPS + 1;
    return (is_8bit || claim_reads_image(node)) &&
           (is_global(node) ||
            (node->inputs[0]->shape.rank <= 4 && taps <= MOST_TAPS && !node_output(node, 1)));
}

STEP_CREATE(lower_pool)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    struct pool_step *step = step_create(lowering, sizeof *step, pool_run, ret, err);
    TRY(allocated(step));
    step->simd = simd();
    step->step.kernel = step->simd->name;
    step->global = is_global(node);
    step->is_max = node->op == OP_MAX_POOL || node->op == OP_GLOBAL_MAX_POOL;
    step->count_include_pad = node_int(node, "count_include_pad", 0);
    step->images = (size_t)x->shape.dims[0];
    step->channels = (size_t)x->shape.dims[x->shape.rank - 1];
    step->pixels = shape_count(&x->shape) / step->images / step->channels;
    step->pitch = pixel_pitch(lowering, y);
    step->dtype = x->dtype;
    step->from.scale = step->to.scale = 1;
    if (dtype_is_8bit(x->dtype) && !step->is_max) {
        (void)scale_zero_of(node, 1, x->dtype, &step->from);
        (void)scale_zero_of(node, 3, y->dtype, &step->to);
    }
    step->step.flops = (double)shape_count(&x->shape);
    struct window *w = &step->window;
    if (step->global)
        return STATUS_OK;
    TRY(pool_window_init(node, &x->shape, true, w, err));
    if (w->spatial == 1) /* a line is an image of height 1 */
        *w = (struct window){.spatial = 2,
                             .kernel = {1, w->kernel[0]},
                             .stride = {1, w->stride[0]},
                             .dilation = {1, w->dilation[0]},
                             .pad_begin = {0, w->pad_begin[0]},
                             .pad_end = {0, w->pad_end[0]},
                             .in = {1, w->in[0]},
                             .out = {1, w->out[0]}};
    step->step.flops = (double)(shape_count(&y->shape) * (size_t)(w->kernel[0] * w->kernel[1]));
    return STATUS_OK;
}

const struct cpu_kernel cpu_pool = {
    {"pool",
     {OP_MAX_POOL, OP_AVERAGE_POOL, OP_GLOBAL_AVERAGE_POOL, OP_GLOBAL_MAX_POOL,
      OP_QLINEAR_AVERAGE_POOL, OP_QLINEAR_GLOBAL_AVERAGE_POOL},
     pool_claim},
    lower_pool};
