/* Conv and com.microsoft FusedConv: a matrix product of the weights with a panel of input patches.
 * The panel holds at most PANEL_ROWS x PANEL_COLUMNS elements at a time (a part of a level-2
 * cache), so nothing of the size of a whole im2col is ever made.
 *
 *     dst[m, t] += weights[m, k] * panel[k, t]     k: (channel, tap), t: output position
 */
#include <string.h>

#include "engine/op/copy.h"
#include "engine/op/nn.h"

#define PANEL_ROWS    ((size_t)128)
#define PANEL_COLUMNS ((size_t)256)

/* One group of one image. */
struct patches {
    struct window window; /* in 3-D */
    size_t size;          /* bytes of an element */
    const char *src;      /* channels of [D, H, W] */
    size_t plane;         /* elements of a channel */
};

/* n elements, src_step apart. */
static void gather(char *dst, const char *src, size_t src_step, size_t n, size_t size)
{
    if (src_step == 1) {
        copy_bytes(dst, src, n * size);
    } else if (size == 4) {
        for (size_t i = 0; i < n; i++)
            memcpy(dst + i * 4, src + i * src_step * 4, 4);
    } else {
        for (size_t i = 0; i < n; i++)
            memcpy(dst + i * 8, src + i * src_step * 8, 8);
    }
}

/* Part of one output row, positions first … first+n-1 along the last axis, for one tap; row: where
 * the input row begins, NULL in the padding. */
static void fill_row_part(const struct patches *p, char *dst, const char *row, int64_t tap,
                          int64_t first, int64_t n)
{
    const struct window *w = &p->window;
    int64_t stride = w->stride[2], offset = tap * w->dilation[2] - w->pad_begin[2];
    /* positions x with 0 <= x * stride + offset < in */
    int64_t low = offset >= 0 ? 0 : ceil_div(-offset, stride);
    int64_t high = w->in[2] - offset <= 0 ? 0 : (w->in[2] - offset - 1) / stride + 1;
    if (low < first)
        low = first;
    if (high > first + n)
        high = first + n;
    if (!row || high <= low) {
        zero_bytes(dst, (size_t)n * p->size);
        return;
    }
    size_t before = (size_t)(low - first), count = (size_t)(high - low);
    zero_bytes(dst, before * p->size);
    gather(dst + before * p->size, row + (size_t)(low * stride + offset) * p->size, (size_t)stride,
           count, p->size);
    zero_bytes(dst + (before + count) * p->size, ((size_t)n - before - count) * p->size);
}

/* One panel row: channel and tap k for output positions t … t+count-1. */
static void fill_panel_row(const struct patches *p, char *dst, size_t k, size_t t, size_t count)
{
    const struct window *w = &p->window;
    int64_t taps[3];
    taps[2] = (int64_t)k % w->kernel[2];
    taps[1] = (int64_t)k / w->kernel[2] % w->kernel[1];
    int64_t volume = w->kernel[0] * w->kernel[1] * w->kernel[2];
    taps[0] = (int64_t)k % volume / (w->kernel[1] * w->kernel[2]);
    size_t channel = (size_t)((int64_t)k / volume) * p->plane;
    int64_t x = (int64_t)t % w->out[2], y = (int64_t)t / w->out[2] % w->out[1];
    int64_t z = (int64_t)t / w->out[2] / w->out[1];
    while (count) {
        int64_t n = w->out[2] - x < (int64_t)count ? w->out[2] - x : (int64_t)count;
        int64_t iz = z * w->stride[0] - w->pad_begin[0] + taps[0] * w->dilation[0];
        int64_t iy = y * w->stride[1] - w->pad_begin[1] + taps[1] * w->dilation[1];
        bool inside = iz >= 0 && iz < w->in[0] && iy >= 0 && iy < w->in[1];
        size_t at = inside ? channel + (size_t)((iz * w->in[1] + iy) * w->in[2]) : 0;
        const char *row = inside && w->in[2] ? p->src + at * p->size : NULL;
        fill_row_part(p, dst, row, taps[2], x, n);
        dst += (size_t)n * p->size;
        count -= (size_t)n;
        x = 0;
        if (++y == w->out[1]) {
            y = 0;
            z++;
        }
    }
}

void conv_start_rows(void *dst, const void *bias, size_t rows, size_t positions, size_t size)
{
    static const char zero[8];
    for (size_t m = 0; m < rows; m++)
        fill_row((char *)dst + m * positions * size, bias ? (const char *)bias + m * size : zero,
                 size, positions);
}

enum status conv_forward(const struct kernel_args *args, const struct conv_shape *conv,
                         enum arithmetic arithmetic, const void *src, const void *weights,
                         const void *bias, void *dst, struct error *err)
{
    struct patches p = {.window = window_in_3d(&conv->window), .size = arithmetic_size(arithmetic)};
    const struct window *w = &p.window;
    size_t channels = conv->in_channels / conv->group, rows = conv->out_channels / conv->group;
    size_t depth = channels * window_size(w), positions = window_outputs(w), size = p.size;
    p.plane = window_inputs(w);
    char *panel = kernel_scratch(args, PANEL_ROWS * PANEL_COLUMNS, size, err);
    if (!panel)
        return STATUS_NO_MEMORY;
    for (size_t ng = 0; ng < conv->batch * conv->group && positions; ng++) {
        size_t g = ng % conv->group;
        const char *matrix = (const char *)weights + g * rows * depth * size;
        char *out = (char *)dst + ng * rows * positions * size;
        p.src = p.plane ? (const char *)src + ng * channels * p.plane * size : NULL;
        conv_start_rows(out, bias ? (const char *)bias + g * rows * size : NULL, rows, positions,
                        size);
        for (size_t t = 0; t < positions; t += PANEL_COLUMNS) {
            size_t count = positions - t < PANEL_COLUMNS ? positions - t : PANEL_COLUMNS;
            for (size_t k = 0; k < depth; k += PANEL_ROWS) {
                size_t part = depth - k < PANEL_ROWS ? depth - k : PANEL_ROWS;
                TRY(kernel_goes_on(args, (rows + 1) * count * part, err));
                for (size_t i = 0; i < part; i++)
                    fill_panel_row(&p, panel + i * count * size, k + i, t, count);
                gemm_nn(arithmetic, rows, count, part, matrix + k * size, depth, 1, panel, count,
                        out + t * size, positions);
            }
        }
    }
    return STATUS_OK;
}

/* The convolution, then the epilogue. */
KERNEL(kernel_conv)
{
    const size_t residual = epilogue_residual(args), bias = residual == 2 ? SIZE_MAX : 2;
    const struct tensor *x = args->in[0];
    enum arithmetic arithmetic = arithmetic_for(x->dtype);
    struct conv_shape conv;
    const void *src, *weights, *shift, *extra;
    void *dst;
    TRY(conv_shape_init(args->node, &x->shape, &args->in[1]->shape, &conv, err));
    TRY(operand_open(args, 0, arithmetic, &src, err));
    TRY(operand_open(args, 1, arithmetic, &weights, err));
    TRY(operand_open(args, bias, arithmetic, &shift, err));
    TRY(operand_open(args, residual, arithmetic, &extra, err));
    TRY(result_open(args, 0, arithmetic, &dst, err));
    TRY(conv_forward(args, &conv, arithmetic, src, weights, shift, dst, err));
    epilogue_apply(&args->node->epilogue, arithmetic, dst, extra,
                   shape_count(&(*args->out[0])->shape));
    result_store(args, 0, arithmetic, dst);
    return STATUS_OK;
}
