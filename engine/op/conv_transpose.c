/* ConvTranspose: the product of the transposed weights with a stretch of input positions gives, for
 * each tap, what every input position adds to the output; those rows are then scattered.
 *
 *     column[(m, tap), t] = weights[c, (m, tap)] * src[c, t]
 *     dst[m, position(t) * stride + tap * dilation - pad] += column[(m, tap), t]
 */
#include "engine/base/size.h"
#include "engine/op/copy.h"
#include "engine/op/nn.h"

#define COLUMN_ROWS    ((size_t)128)
#define COLUMN_COLUMNS ((size_t)256)

/* dst[i * step] += src[i] */
static void add_row(enum arithmetic arithmetic, void *dst, size_t step, const void *src, size_t n)
{
    if (arithmetic == ARITHMETIC_F64) {
        for (size_t i = 0; i < n; i++)
            ((double *)dst)[i * step] += ((const double *)src)[i];
    } else {
        for (size_t i = 0; i < n; i++)
            ((float *)dst)[i * step] += ((const float *)src)[i];
    }
}

/* One row of the column matrix: tap `k` of one output channel for input positions t … t+count-1. */
static void scatter_row(const struct window *w, enum arithmetic arithmetic, char *plane, size_t k,
                        const char *row, size_t t, size_t count)
{
    size_t size = arithmetic_size(arithmetic);
    int64_t tap[3] = {(int64_t)k / w->kernel[2] / w->kernel[1],
                      (int64_t)k / w->kernel[2] % w->kernel[1], (int64_t)k % w->kernel[2]};
    int64_t x = (int64_t)t % w->in[2], y = (int64_t)t / w->in[2] % w->in[1];
    int64_t z = (int64_t)t / w->in[2] / w->in[1], stride = w->stride[2];
    int64_t offset = tap[2] * w->dilation[2] - w->pad_begin[2];
    /* input positions that land inside: 0 <= x * stride + offset < out */
    int64_t low = offset >= 0 ? 0 : ceil_div(-offset, stride);
    int64_t high = w->out[2] - offset <= 0 ? 0 : (w->out[2] - offset - 1) / stride + 1;
    while (count) {
        int64_t n = w->in[2] - x < (int64_t)count ? w->in[2] - x : (int64_t)count;
        int64_t oz = z * w->stride[0] + tap[0] * w->dilation[0] - w->pad_begin[0];
        int64_t oy = y * w->stride[1] + tap[1] * w->dilation[1] - w->pad_begin[1];
        int64_t from = low > x ? low : x, to = high < x + n ? high : x + n;
        if (oz >= 0 && oz < w->out[0] && oy >= 0 && oy < w->out[1] && from < to) {
            int64_t at = (oz * w->out[1] + oy) * w->out[2] + from * stride + offset;
            add_row(arithmetic, plane + (size_t)at * size, (size_t)stride,
                    row + (size_t)(from - x) * size, (size_t)(to - from));
        }
        row += (size_t)n * size;
        count -= (size_t)n;
        x = 0;
        if (++y == w->in[1]) {
            y = 0;
            z++;
        }
    }
}

/* One group of one image: src [channels, in …], weights [channels, outputs, taps], dst
 * [outputs, out …] which starts as the bias. */
static enum status transpose_group(const struct kernel_args *args, const struct window *w,
                                   enum arithmetic arithmetic, size_t channels, size_t outputs,
                                   const char *src, const char *weights, char *dst, char *column,
                                   struct error *err)
{
    size_t size = arithmetic_size(arithmetic);
    size_t taps = window_size(w), rows = outputs * taps;
    size_t positions = window_inputs(w), plane = window_outputs(w);
    for (size_t t = 0; t < positions; t += COLUMN_COLUMNS) {
        size_t count = positions - t < COLUMN_COLUMNS ? positions - t : COLUMN_COLUMNS;
        for (size_t r = 0; r < rows; r += COLUMN_ROWS) {
            size_t part = rows - r < COLUMN_ROWS ? rows - r : COLUMN_ROWS;
            TRY(kernel_goes_on(args, (channels + 1) * count * part, err));
            zero_bytes(column, part * count * size);
            gemm_nn(arithmetic, part, count, channels, weights + r * size, 1, rows, src + t * size,
                    positions, column, count);
            for (size_t i = 0; i < part; i++)
                scatter_row(w, arithmetic, dst + (r + i) / taps * plane * size, (r + i) % taps,
                            column + i * count * size, t, count);
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_conv_transpose)
{
    const struct tensor *x = args->in[0], *w = args->in[1];
    enum arithmetic arithmetic = arithmetic_for(x->dtype);
    size_t size = arithmetic_size(arithmetic);
    struct conv_shape conv;
    const void *src, *weights, *bias;
    void *dst;
    TRY(conv_transpose_shape_init(args->node, &x->shape, &w->shape, &conv, err));
    char *column = kernel_scratch(args, COLUMN_ROWS * COLUMN_COLUMNS, size, err);
    if (!column)
        return STATUS_NO_MEMORY;
    TRY(operand_open(args, 0, arithmetic, &src, err));
    TRY(operand_open(args, 1, arithmetic, &weights, err));
    TRY(operand_open(args, 2, arithmetic, &bias, err));
    TRY(result_open(args, 0, arithmetic, &dst, err));
    struct window window = window_in_3d(&conv.window);
    size_t channels = conv.in_channels / conv.group, outputs = conv.out_channels / conv.group;
    size_t in = window_inputs(&window), out = window_outputs(&window);
    size_t matrix = channels * outputs * window_size(&window);
    for (size_t n = 0; n < conv.batch; n++)
        conv_start_rows((char *)dst + n * conv.out_channels * out * size, bias, conv.out_channels,
                        out, size);
    for (size_t ng = 0; ng < conv.batch * conv.group; ng++)
        TRY(transpose_group(args, &window, arithmetic, channels, outputs,
                            (const char *)src + ng * channels * in * size,
                            (const char *)weights + ng % conv.group * matrix * size,
                            (char *)dst + ng * outputs * out * size, column, err));
    result_store(args, 0, arithmetic, dst);
    return STATUS_OK;
}
