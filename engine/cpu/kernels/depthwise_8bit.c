/* Depthwise convolutions of 8-bit integers, compiled once per instruction set; by VNNI
 * instructions, which add four products of bytes to each 32-bit sum.
 *
 * The four are taps of a column: bytes of four rows of the image ("a quad") are interleaved, so
 * that each 32 bits hold one channel of one column, and meet the filter's column moved to where a
 * result row has it:
 *
 *     image rows   0 1 2 3          result row 0:  w0 w1 w2 0
 *                  └─ a quad ─┘     result row 1:  0  w0 w1 w2
 *
 * One interleaving serves all columns of the filter and as many result rows as the quads reach.
 * A block is as many channels as a register holds sums. Interleaved columns of a segment of a row
 * stay in the first-level cache. Padding is the zero point, so that it adds nothing once the zero
 * point times the filter's sum is taken away, which `bias` does. The last block of a channel count
 * that is no multiple overlaps the one before and writes the same numbers again. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#if defined __AVX512F__

#define VNNI __attribute__((target("avx512vnni")))

#define LANES     16
#define MOST_SUMS 24
enum { SEGMENT = 28, MOST_QUADS = 2, MOST_COLUMNS = (SEGMENT + 7) * 2 + 7 };

/* Interleaved columns of a block: [quad][column][lane][row of four]. */
struct columns {
    uint8_t bytes[MOST_QUADS][MOST_COLUMNS][LANES * 4] __attribute__((aligned(64)));
};

/* One column of a quad: LANES bytes from each of four rows. */
ALWAYS_INLINE void interleave(const uint8_t *const rows[4], uint8_t flip, uint8_t *to)
{
    const __m128i turn = _mm_set1_epi8((char)flip);
    __m128i r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)rows[i]);
    }
    __m128i *out = (__m128i *)(void *)to;
    const __m128i a = _mm_xor_si128(_mm_unpacklo_epi8(r[0], r[1]), turn);
    const __m128i b = _mm_xor_si128(_mm_unpacklo_epi8(r[2], r[3]), turn);
    _mm_store_si128(out, _mm_unpacklo_epi16(a, b));
    _mm_store_si128(out + 1, _mm_unpackhi_epi16(a, b));
    const __m128i c = _mm_xor_si128(_mm_unpackhi_epi8(r[0], r[1]), turn);
    const __m128i d = _mm_xor_si128(_mm_unpackhi_epi8(r[2], r[3]), turn);
    _mm_store_si128(out + 2, _mm_unpacklo_epi16(c, d));
    _mm_store_si128(out + 3, _mm_unpackhi_epi16(c, d));
}

/* Columns from … from + count - 1 (they may lie outside) of the quads that begin at row `top`. */
static void fill_columns(const struct depthwise_8bit *d, const uint8_t *x, ptrdiff_t top,
                         size_t quads, ptrdiff_t from, size_t count, struct columns *to)
{
    uint8_t outside[LANES];
    memset(outside, d->src_zero, sizeof outside);
    const size_t left = from < 0 ? smaller((size_t)-from, count) : 0;
    const ptrdiff_t inside = (ptrdiff_t)d->width - from;
    const size_t right = inside < 0 ? left : smaller((size_t)inside, count);
    for (size_t q = 0; q < quads; q++) {
        const uint8_t *rows[4];
        size_t steps[4];
        for (size_t i = 0; i < 4; i++) {
            const ptrdiff_t row = top + (ptrdiff_t)(4 * q + i);
            const bool exists = row >= 0 && row < (ptrdiff_t)d->height && left < right;
            rows[i] = exists ? x + ((size_t)row * d->width + (size_t)(from + (ptrdiff_t)left)) *
                                       d->channels
                             : outside;
            steps[i] = exists ? d->channels : 0;
        }
        memset(to->bytes[q][0], d->src_zero ^ d->flip, left * sizeof to->bytes[q][0]);
        for (size_t c = left; c < right; c++) {
            interleave(rows, d->flip, to->bytes[q][c]);
            for (size_t i = 0; i < 4; i++)
                rows[i] += steps[i];
        }
        if (right < count)
            memset(to->bytes[q][right], d->src_zero ^ d->flip,
                   (count - right) * sizeof to->bytes[q][0]);
    }
}

/* Sums as stored bytes: times the scale, rounded half to even, plus the zero point, saturated. */
ALWAYS_INLINE void store_sums(const struct depthwise_8bit *d, __m512i sum, vec scale, uint8_t *y)
{
    const vec far = vec_set(1e6f); /* as an integer, with room for the zero point */
    const vec real = vec_max(vec_min(vec_mul(_mm512_cvtepi32_ps(sum), scale), far), vec_set(-1e6f));
    const __m512i whole =
        _mm512_add_epi32(_mm512_cvtps_epi32(real), _mm512_set1_epi32(d->dst_zero));
    const __m128i bytes =
        d->is_signed ? _mm512_cvtsepi32_epi8(whole)
                     : _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512()));
    _mm_storeu_si128((__m128i *)(void *)y, bytes);
}

/* A block of `rows` result rows and `count` <= pixels result columns from interleaved column `from`
 * on. weights: [quad][row][tap][lane][4]. */
ALWAYS_INLINE VNNI void depthwise_8bit_run_tile(const struct depthwise_8bit *d,
                                                const struct columns *columns, size_t from,
                                                size_t block, uint8_t *y, size_t count,
                                                size_t some_rows, const int taps, const int stride,
                                                const int quads, const int rows, const int pixels)
{
    const int8_t *weights = d->weights + block * (size_t)(quads * rows * taps * LANES * 4);
    const __m512i bias = _mm512_loadu_si512(d->bias + block * LANES);
    __m512i sum[MOST_SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * pixels; i++)
        sum[i] = bias;
#pragma GCC unroll 2
    for (int q = 0; q < quads; q++)
#pragma GCC unroll 19
        for (int c = 0; c < (pixels - 1) * stride + taps; c++) {
            const __m512i v = _mm512_loadu_si512(columns->bytes[q][from + (size_t)c]);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
                for (int p = 0; p < pixels; p++)
                    if (c - p * stride >= 0 && c - p * stride < taps)
                        sum[r * pixels + p] = _mm512_dpbusd_epi32(
                            sum[r * pixels + p], v,
                            _mm512_loadu_si512(weights + ((q * rows + r) * taps + c - p * stride) *
                                                             LANES * 4));
        }
    const vec scale = vec_load(d->scales + block * LANES);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
        for (int p = 0; p < pixels; p++)
            if ((size_t)r < some_rows && (size_t)p < count)
                store_sums(d, sum[r * pixels + p], scale,
                           y + ((size_t)r * d->out_width + (size_t)p) * d->channels);
}

/* Result rows first … first + some_rows - 1, which are no more than `rows`. */
ALWAYS_INLINE VNNI void run_band(const struct depthwise_8bit *d, const uint8_t *x, uint8_t *y,
                                 size_t first, size_t some_rows, const int taps, const int stride,
                                 const int quads, const int rows, const int pixels)
{
    struct columns columns;
    const size_t blocks = (d->channels + LANES - 1) / LANES;
    const ptrdiff_t top = (ptrdiff_t)(first * (size_t)stride) - (ptrdiff_t)d->pad_top;
    for (size_t column = 0; column < d->out_width; column += SEGMENT) {
        const size_t some = smaller(SEGMENT, d->out_width - column);
        const ptrdiff_t from = (ptrdiff_t)(column * (size_t)stride) - (ptrdiff_t)d->pad_left;
        const size_t whole = (some + (size_t)pixels - 1) / (size_t)pixels * (size_t)pixels;
        const size_t count = (whole - 1) * (size_t)stride + (size_t)taps;
        for (size_t b = 0; b < blocks; b++) {
            const size_t channel = smaller(b * LANES, d->channels - LANES);
            fill_columns(d, x + channel, top, (size_t)quads, from, count, &columns);
            for (size_t p = 0; p < some; p += (size_t)pixels)
                depthwise_8bit_run_tile(d, &columns, p * (size_t)stride, b,
                                        y + (first * d->out_width + column + p) * d->channels +
                                            channel,
                                        smaller((size_t)pixels, some - p), some_rows, taps, stride,
                                        quads, rows, pixels);
        }
    }
}

typedef void (*band_fn)(const struct depthwise_8bit *d, const uint8_t *x, uint8_t *y, size_t first,
                        size_t some_rows);

/* pixels x rows sums stay in registers. */
#define BAND(taps, stride, quads, rows, pixels)                                                    \
    VNNI static void band_##taps##_##stride(const struct depthwise_8bit *d, const uint8_t *x,      \
                                            uint8_t *y, size_t first, size_t some_rows)            \
    {                                                                                              \
        run_band(d, x, y, first, some_rows, taps, stride, quads, rows, pixels);                    \
    }

BAND(3, 1, 1, 2, 7)
BAND(3, 2, 1, 1, 7)
BAND(5, 1, 2, 4, 4)
BAND(5, 2, 2, 2, 7)
BAND(7, 1, 2, 2, 7)
BAND(7, 2, 2, 1, 7)

void SIMD_NAMED(depthwise_8bit)(const struct depthwise_8bit *d, const uint8_t *x, uint8_t *y,
                                size_t first, size_t rows)
{
    static const band_fn bands[3][2] = {
        {band_3_1, band_3_2}, {band_5_1, band_5_2}, {band_7_1, band_7_2}};
    const band_fn run = bands[d->taps / 2 - 1][d->stride - 1];
    for (size_t row = first; row < first + rows; row += d->rows)
        run(d, x, y, row, smaller(d->rows, first + rows - row));
}

#endif
