/* Depthwise convolutions of 8-bit integers, compiled once per instruction set. If the CPU has a dot
 * product (DOT), an instruction adds four products of bytes to each 32-bit sum; otherwise it adds
 * two products of 16-bit integers.
 *
 * The four bytes are the taps of a column: bytes from four rows of the image ("a quad") are
 * interleaved, so that each 32 bits hold one channel of one column. They are multiplied by the
 * filter's column, which is shifted to the position of a result row:
 *
 *     image rows   0 1 2 3          result row 0:  w0 w1 w2 0
 *                  └─ a quad ─┘     result row 1:  0  w0 w1 w2
 *
 * One interleaving serves all columns of the filter and as many result rows as the quads cover.
 * Without DOT the rows' order is 0 2 1 3: the even bytes are the first two rows, the odd bytes the
 * last two. A block has as many channels as a register has sums. Interleaved columns of a segment
 * of a row stay in the first-level cache. Padding is the zero point; `bias` subtracts the zero
 * point times the filter's sum, so padding adds nothing. If the channel count is not a multiple of
 * the block, the last block overlaps the one before and writes the same numbers again. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_8bit.h"

#define LANES VEC
enum {
    SEGMENT = 28,
    MOST_QUADS = 2,
    MOST_SUMS = 16,
    MOST_COLUMNS = (SEGMENT + 6) * 2 + 7,
    COLUMN = LANES * 4 /* bytes */
};

/* Interleaved columns of a block: [quad][column][channel][row of the quad]. */
struct columns {
    uint8_t bytes[MOST_QUADS][MOST_COLUMNS][COLUMN] __attribute__((aligned(64)));
};

/* Writes a column of a quad: LANES bytes from each of four rows, interleaved, XORed with flip. */
#if defined __aarch64__

ALWAYS_INLINE void interleave(const uint8_t *const rows[4], uint8_t flip, uint8_t *to)
{
    uint16x4_t two[2];
    for (int i = 0; i < 2; i++) {
        uint32_t a, b;
        memcpy(&a, rows[2 * i], sizeof a);
        memcpy(&b, rows[2 * i + 1], sizeof b);
        two[i] = vreinterpret_u16_u8(
            vzip1_u8(vreinterpret_u8_u32(vdup_n_u32(a)), vreinterpret_u8_u32(vdup_n_u32(b))));
    }
    const uint16x4x2_t four = vzip_u16(two[0], two[1]);
    const uint8x16_t bytes = vreinterpretq_u8_u16(vcombine_u16(four.val[0], four.val[1]));
    vst1q_u8(to, veorq_u8(bytes, vdupq_n_u8(flip)));
}

#else

ALWAYS_INLINE void interleave(const uint8_t *const rows[4], uint8_t flip, uint8_t *to)
{
    const __m128i turn = _mm_set1_epi8((char)flip);
    __m128i r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = LANES == 16  ? _mm_loadu_si128((const __m128i *)(const void *)rows[i])
               : LANES == 8 ? _mm_loadl_epi64((const __m128i *)(const void *)rows[i])
                            : _mm_loadu_si32(rows[i]);
    }
    __m128i *out = (__m128i *)(void *)to;
    const __m128i a = _mm_xor_si128(_mm_unpacklo_epi8(r[0], r[1]), turn);
    const __m128i b = _mm_xor_si128(_mm_unpacklo_epi8(r[2], r[3]), turn);
    _mm_store_si128(out, _mm_unpacklo_epi16(a, b));
    if (LANES > 4)
        _mm_store_si128(out + 1, _mm_unpackhi_epi16(a, b));
    if (LANES > 8) {
        const __m128i c = _mm_xor_si128(_mm_unpackhi_epi8(r[0], r[1]), turn);
        const __m128i d = _mm_xor_si128(_mm_unpackhi_epi8(r[2], r[3]), turn);
        _mm_store_si128(out + 2, _mm_unpacklo_epi16(c, d));
        _mm_store_si128(out + 3, _mm_unpackhi_epi16(c, d));
    }
}

#endif

/* Fills `count` columns of the quads from image row `top` and column `from` on, maybe padding. */
static void fill_columns(const struct depthwise_8bit *d, const uint8_t *x, ptrdiff_t top,
                         ptrdiff_t from, size_t count, struct columns *to)
{
    static const uint8_t order[2][4] = {{0, 2, 1, 3}, {0, 1, 2, 3}};
    uint8_t outside[LANES];
    memset(outside, d->src_zero, sizeof outside);
    const size_t left = from < 0 ? smaller((size_t)-from, count) : 0;
    const ptrdiff_t inside = (ptrdiff_t)d->width - from;
    const size_t right = inside < 0 ? left : smaller((size_t)inside, count);
    for (size_t q = 0; q < d->quads; q++) {
        const uint8_t *rows[4];
        size_t steps[4];
        for (size_t i = 0; i < 4; i++) {
            const ptrdiff_t row = top + (ptrdiff_t)(4 * q + order[d->dot][i]);
            const bool exists = row >= 0 && row < (ptrdiff_t)d->height && left < right;
            rows[i] = exists ? x + ((size_t)row * d->width + (size_t)(from + (ptrdiff_t)left)) *
                                       d->channels
                             : outside;
            steps[i] = exists ? d->channels : 0;
        }
        memset(to->bytes[q][0], d->src_zero ^ d->flip, left * COLUMN);
        for (size_t c = left; c < right; c++) {
            interleave(rows, d->flip, to->bytes[q][c]);
            for (size_t i = 0; i < 4; i++)
                rows[i] += steps[i];
        }
        if (right < count)
            memset(to->bytes[q][right], d->src_zero ^ d->flip, (count - right) * COLUMN);
    }
}

/* Converts sums to stored bytes: times the scale, rounded half to even, plus the zero point,
 * saturated. */
ALWAYS_INLINE void store_sums(const struct depthwise_8bit *d, const ints *sum, size_t block,
                              uint8_t *y, size_t some_rows, size_t count, const int rows,
                              const int pixels)
{
    const vec far = vec_set(1e6f); /* representable as an integer, with room for the zero point */
    const vec scale = vec_load(d->scales + block * LANES);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 7
        for (int p = 0; p < pixels; p++) {
            if ((size_t)r >= some_rows || (size_t)p >= count)
                continue;
            const vec real = vec_mul(ints_real(sum[r * pixels + p]), scale);
            const ints whole = ints_round(vec_max(vec_min(real, far), vec_set(-1e6f)));
            store_bytes(y + ((size_t)r * d->out_width + (size_t)p) * d->channels,
                        ints_add(whole, ints_set(d->dst_zero)), d->is_signed);
        }
}

/* run() computes `count` <= pixels result columns in `rows` rows from the interleaved columns. */
struct tile_kind {
    void (*run)(const struct depthwise_8bit *d, const uint8_t *columns, size_t block, uint8_t *y,
                size_t rows, size_t count);
    size_t pixels;
};

#define part_of_dot(v, part)   (v)
#define part_of_pairs(v, part) ((part) ? odd_bytes(v) : even_bytes(v))
#define load_of_dot            load_dot
#define load_of_pairs          load_words

/* rows x pixels sums stay in registers. A part is 4 / parts rows of a quad; an instruction adds a
 * part's products to a sum. weights: [quad][part][row][column of taps][lane][rows of a part]. */
#define TILES(kind, attribute, parts)                                                              \
    ALWAYS_INLINE attribute void kind##_tile(                                                      \
        const struct depthwise_8bit *d, const uint8_t *columns, size_t block, uint8_t *y,          \
        size_t some_rows, size_t count, const int taps, const int stride, const int pixels)        \
    {                                                                                              \
        const int all = (taps + 3) / 4 * (parts), reach = 4 / (parts);                             \
        const int rows = (all * reach - taps) / stride + 1;                                        \
        const int8_t *weights = d->weights + block * (size_t)(all * rows * taps * COLUMN);         \
        ints sum[MOST_SUMS];                                                                       \
        _Pragma("GCC unroll 16") for (int i = 0; i < rows * pixels; i++) sum[i] =                  \
            ints_load(d->bias + block * LANES);                                                    \
        _Pragma("GCC unroll 4") for (int i = 0; i < all; i++)                                      \
            _Pragma("GCC unroll 19") for (int c = 0; c < (pixels - 1) * stride + taps; c++)        \
        {                                                                                          \
            const uint8_t *column = columns + (i / (parts) * (int)MOST_COLUMNS + c) * COLUMN;      \
            const ints v = part_of_##kind(ints_load(column), i % (parts));                         \
            _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)                                 \
                _Pragma("GCC unroll 7") for (int p = 0; p < pixels; p++)                           \
            {                                                                                      \
                const int tap = c - p * stride, down = i * reach - r * stride;                     \
                if (tap >= 0 && tap < taps && down < taps && down + reach > 0)                     \
                    sum[r * pixels + p] = add_##kind(                                              \
                        sum[r * pixels + p], v,                                                    \
                        load_of_##kind(weights + ((i * rows + r) * taps + tap) * COLUMN));         \
            }                                                                                      \
        }                                                                                          \
        store_sums(d, sum, block, y, some_rows, count, rows, pixels);                              \
    }                                                                                              \
    TILE(kind, attribute, 3, 1, 7)                                                                 \
    TILE(kind, attribute, 3, 2, 7)                                                                 \
    TILE(kind, attribute, 5, 1, 4)                                                                 \
    TILE(kind, attribute, 5, 2, 7)                                                                 \
    TILE(kind, attribute, 7, 1, 7)                                                                 \
    TILE(kind, attribute, 7, 2, 7)                                                                 \
    static const struct tile_kind kind##_tiles[3][2] = {                                           \
        {{kind##_tile_3_1, 7}, {kind##_tile_3_2, 7}},                                              \
        {{kind##_tile_5_1, 4}, {kind##_tile_5_2, 7}},                                              \
        {{kind##_tile_7_1, 7}, {kind##_tile_7_2, 7}}};

#define TILE(kind, attribute, taps, stride, pixels)                                                \
    attribute static void kind##_tile_##taps##_##stride(const struct depthwise_8bit *d,            \
                                                        const uint8_t *columns, size_t block,      \
                                                        uint8_t *y, size_t rows, size_t count)     \
    {                                                                                              \
        kind##_tile(d, columns, block, y, rows, count, taps, stride, pixels);                      \
    }

TILES(pairs, , 2)
#if defined DOT
TILES(dot, DOT, 1)
#endif

/* Computes result rows first … first + some_rows - 1, at most d->rows. */
static void depthwise_8bit_run_band(const struct depthwise_8bit *d, const struct tile_kind *tile,
                                    const uint8_t *x, uint8_t *y, size_t first, size_t some_rows)
{
    struct columns columns;
    const size_t blocks = (d->channels + LANES - 1) / LANES, pixels = tile->pixels;
    const ptrdiff_t top = (ptrdiff_t)(first * d->stride) - (ptrdiff_t)d->pad_top;
    for (size_t column = 0; column < d->out_width; column += SEGMENT) {
        const size_t some = smaller(SEGMENT, d->out_width - column);
        const ptrdiff_t from = (ptrdiff_t)(column * d->stride) - (ptrdiff_t)d->pad_left;
        const size_t whole = (some + pixels - 1) / pixels * pixels;
        const size_t count = (whole - 1) * d->stride + d->taps;
        for (size_t b = 0; b < blocks; b++) {
            const size_t channel = smaller(b * LANES, d->channels - LANES);
            fill_columns(d, x + channel, top, from, count, &columns);
            for (size_t p = 0; p < some; p += pixels)
                tile->run(d, columns.bytes[0][p * d->stride], b,
                          y + (first * d->out_width + column + p) * d->channels + channel,
                          some_rows, smaller(pixels, some - p));
        }
    }
}

void SIMD_NAMED(depthwise_8bit)(const struct depthwise_8bit *d, const uint8_t *x, uint8_t *y,
                                size_t first, size_t rows)
{
    const struct tile_kind *tile = &pairs_tiles[d->taps / 2 - 1][d->stride - 1];
#if defined DOT
    if (d->dot)
        tile = &dot_tiles[d->taps / 2 - 1][d->stride - 1];
#endif
    for (size_t row = first; row < first + rows; row += d->rows)
        depthwise_8bit_run_band(d, tile, x, y, row, smaller(d->rows, first + rows - row));
}

size_t SIMD_NAMED(depthwise_8bit_pack)(const struct depthwise_8bit *d, const int8_t *w,
                                       void *packed)
{
    int8_t *bytes = packed;
    const size_t taps = d->taps, parts = d->dot ? 1 : 2, reach = 4 / parts;
    const size_t blocks = (d->channels + LANES - 1) / LANES;
    const size_t count = blocks * d->quads * parts * d->rows * taps * LANES * reach;
    for (size_t i = 0; packed && i < count; i++) {
        const size_t lane = i / reach % LANES, column = i / reach / LANES % taps;
        const size_t row = i / reach / LANES / taps % d->rows;
        const size_t part = i / reach / LANES / taps / d->rows % (d->quads * parts);
        const size_t block = i / reach / LANES / taps / d->rows / (d->quads * parts);
        const size_t tap = part * reach + i % reach - row * d->stride; /* a negative tap wraps */
        const size_t channel = depthwise_first_channel(d->channels, block, LANES) + lane;
        const int16_t weight = tap < taps ? w[(channel * taps + tap) * taps + column] : 0;
        if (d->dot)
            bytes[i] = (int8_t)weight;
        else
            memcpy(bytes + i * sizeof weight, &weight, sizeof weight);
    }
    return count * parts;
}
