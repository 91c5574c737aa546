/* Depthwise convolutions, compiled once per instruction set.
 *
 * A strip - some rows of the result, a block of channels - is computed at a time. The source rows
 * it reads are first copied into scratch, with zeros where there is padding: there they lie
 * densely, whatever the image's channels, and the kernel has no edges. Then a run of PIXELS results
 * stays in registers; each source pixel is loaded once a row of taps and used by all taps it meets.
 */
#include "engine/cpu/simd/variant.h"
#include "engine/cpu/simd/vec.h"

#define PIXELS 7 /* 14 + 14 + 2 of 32 registers, or 7 + 7 + 1 of 16; images are multiples of 7 */

#define LANES  DEPTHWISE_CHANNELS
#define BLOCKS (DEPTHWISE_CHANNELS / VEC)

/* Columns a strip holds of a source row: what whole runs of PIXELS read. */
static size_t strip_columns(const struct depthwise *d)
{
    const size_t runs = (d->out_width + PIXELS - 1) / PIXELS;
    return (runs * PIXELS - 1) * d->stride_x + d->kernel_width;
}

static size_t strip_rows(const struct depthwise *d, size_t rows)
{
    return (rows - 1) * d->stride_y + d->kernel_height;
}

size_t SIMD_NAMED(depthwise_scratch)(const struct depthwise *d, size_t rows)
{
    return (strip_rows(d, rows) * strip_columns(d) + rows * d->out_width) * LANES;
}

/* Copies the source rows of a strip: `width` channels from x on. */
static void copy_source(const struct depthwise *d, const float *x, ptrdiff_t first, size_t rows,
                        size_t width, float *to)
{
    const size_t columns = strip_columns(d), before = d->pad_left;
    const size_t inside = columns > before ? columns - before : 0;
    const size_t copied = inside < d->width ? inside : d->width;
    for (size_t r = 0; r < rows; r++, to += columns * LANES) {
        const ptrdiff_t row = first + (ptrdiff_t)r;
        if (row < 0 || row >= (ptrdiff_t)d->height) {
            memset(to, 0, columns * LANES * sizeof *to);
            continue;
        }
        const float *from = x + (size_t)row * d->width * d->channels;
        float *pixel = to + before * LANES;
        memset(to, 0, before * LANES * sizeof *to);
        if (width == LANES)
            for (size_t c = 0; c < copied; c++, pixel += LANES)
                for (size_t i = 0; i < BLOCKS; i++)
                    vec_store(pixel + i * VEC, vec_load(from + c * d->channels + i * VEC));
        else
            for (size_t c = 0; c < copied; c++, pixel += LANES)
                for (size_t i = 0; i < BLOCKS; i++)
                    vec_store(pixel + i * VEC,
                              i * VEC < width
                                  ? vec_load_n(from + c * d->channels + i * VEC, width - i * VEC)
                                  : vec_zero());
        memset(pixel, 0, (columns - before - copied) * LANES * sizeof *to);
    }
}

/* A block's channels are a short piece of every pixel, which no hardware prefetcher follows well.
 * So before the first block whole rows are fetched into the second-level cache, in order. */
static void fetch_source(const struct depthwise *d, const float *x, ptrdiff_t first, size_t rows)
{
    const size_t last = first + (ptrdiff_t)rows < 0 ? 0 : (size_t)(first + (ptrdiff_t)rows);
    const size_t from = first < 0 ? 0 : (size_t)first, to = last < d->height ? last : d->height;
    const size_t row = d->width * d->channels;
    for (size_t i = from * row; i < to * row; i += 64 / sizeof *x)
        _mm_prefetch((const char *)(x + i), _MM_HINT_T1);
}

/* PIXELS results of one row; x: their first source pixel in the strip. taps and stride are
 * constants where this is inlined. */
ALWAYS_INLINE void run_of_pixels(const struct depthwise *d, const float *x, size_t row_step,
                                 const float *w, vec sum[PIXELS][BLOCKS], const int taps,
                                 const int stride)
{
    for (size_t ky = 0; ky < d->kernel_height; ky++, x += row_step, w += (size_t)taps * LANES) {
        vec weights[7][BLOCKS];
#pragma GCC unroll 7
        for (int t = 0; t < taps; t++)
#pragma GCC unroll 2
            for (int i = 0; i < BLOCKS; i++)
                weights[t][i] = vec_load(w + t * LANES + i * VEC);
#pragma GCC unroll 19
        for (int c = 0; c < (PIXELS - 1) * stride + taps; c++) {
#pragma GCC unroll 2
            for (int i = 0; i < BLOCKS; i++) {
                const vec v = vec_load(x + c * LANES + i * VEC);
#pragma GCC unroll 7
                for (int p = 0; p < PIXELS; p++)
                    if (c - p * stride >= 0 && c - p * stride < taps)
                        sum[p][i] = vec_fma(v, weights[c - p * stride][i], sum[p][i]);
            }
        }
    }
}

ALWAYS_INLINE void row_of_pixels(const struct depthwise *d, const float *x, size_t row_step,
                                 const float *w, const float *bias, float *y, size_t y_step,
                                 size_t width, const int taps, const int stride)
{
    const vec low = vec_set(d->low), high = vec_set(d->high);
    for (size_t first = 0; first < d->out_width; first += PIXELS) {
        const size_t count = d->out_width - first < PIXELS ? d->out_width - first : PIXELS;
        vec sum[PIXELS][BLOCKS];
#pragma GCC unroll 7
        for (int p = 0; p < PIXELS; p++)
#pragma GCC unroll 2
            for (int i = 0; i < BLOCKS; i++)
                sum[p][i] = vec_load(bias + i * VEC);
        run_of_pixels(d, x + first * (size_t)stride * LANES, row_step, w, sum, taps, stride);
#pragma GCC unroll 7
        for (int p = 0; p < PIXELS; p++)
#pragma GCC unroll 2
            for (int i = 0; i < BLOCKS; i++) {
                const size_t from = (size_t)i * VEC;
                if ((size_t)p < count && from < width)
                    vec_store_n(y + (first + (size_t)p) * y_step + from,
                                vec_min(high, vec_max(low, sum[p][i])),
                                width - from < VEC ? width - from : VEC);
            }
    }
}

#define CASE(taps, stride)                                                                         \
    if (d->kernel_width == (taps) && d->stride_x == (stride)) {                                    \
        row_of_pixels(d, x, row_step, w, bias, y, y_step, width, taps, stride);                    \
        return;                                                                                    \
    }

static void run_row(const struct depthwise *d, const float *x, size_t row_step, const float *w,
                    const float *bias, float *y, size_t y_step, size_t width)
{
    CASE(3, 1)
    CASE(3, 2)
    CASE(5, 1)
    CASE(5, 2)
    CASE(7, 1)
    CASE(7, 2)
}

void SIMD_NAMED(depthwise)(const struct depthwise *d, const float *x, float *y, size_t first,
                           size_t rows, size_t block, float *scratch)
{
    const size_t channel = block * LANES;
    const size_t width = d->channels - channel < LANES ? d->channels - channel : LANES;
    const size_t row_step = strip_columns(d) * LANES;
    const size_t source_rows = strip_rows(d, rows);
    const ptrdiff_t top = (ptrdiff_t)(first * d->stride_y) - (ptrdiff_t)d->pad_top;
    if (block == 0)
        fetch_source(d, x, top, source_rows);
    copy_source(d, x + channel, top, source_rows, width, scratch);
    const float *w = d->weights + channel * d->kernel_height * d->kernel_width;
    float bias[LANES] = {0};
    if (d->bias)
        memcpy(bias, d->bias + channel, width * sizeof *bias);
    float *dense = scratch + source_rows * row_step; /* results that an activation follows */
    y += first * d->out_width * d->channels + channel;
    for (size_t r = 0; r < rows; r++) {
        const float *from = scratch + r * d->stride_y * row_step;
        if (d->row.activation)
            run_row(d, from, row_step, w, bias, dense + r * d->out_width * LANES, LANES, LANES);
        else
            run_row(d, from, row_step, w, bias, y + r * d->out_width * d->channels, d->channels,
                    width);
    }
    if (!d->row.activation)
        return;
    const size_t pixels = rows * d->out_width;
    SIMD_NAMED(activate)
    (dense, dense, pixels * LANES, d->row.activation, d->row.alpha, d->row.beta);
    for (size_t p = 0; p < pixels; p++)
        for (size_t i = 0; i < width; i += VEC)
            vec_store_n(y + p * d->channels + i, vec_load(dense + p * LANES + i),
                        width - i < VEC ? width - i : VEC);
}
