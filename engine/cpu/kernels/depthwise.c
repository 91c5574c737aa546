/* Depthwise convolutions, compiled once per instruction set.
 *
 * A block is one register of channels. One or two rows of PIXELS results of a block stay in
 * registers: each source number is loaded once per row of taps, and multiplied for all results of
 * both rows that need it. The epilogue is applied before the only store. The innermost loop runs
 * over blocks, so that the image is read in memory order. If the channel count is not a multiple of
 * the block, the last block overlaps the one before and writes the same numbers again. Taps in the
 * padding are skipped. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

#define ROWS   DEPTHWISE_ROWS
#define PIXELS 7 /* image sides are often multiples of 7 */

#define ENDING_ENUM(name, ...) ENDING_##name,
enum ending { ENDING_CLAMP, VEC_PRODUCT_ACTIVATIONS(ENDING_ENUM, ) ENDING_OTHER, ENDING_ANY };

/* A tile of results: offsets in the image and in the result, in elements. */
struct depthwise_tile {
    const void *x; /* the image; `at` is the first tap of its first result, inside or not */
    void *y;
    ptrdiff_t x_at;
    size_t y_at;
    size_t rows, pixels;             /* results: <= ROWS, <= PIXELS */
    size_t top, bottom, left, right; /* existing source rows and columns, relative to x */
    size_t first, last;              /* blocks */
    float *sums;                     /* sums of each block's results; may be NULL */
};

/* Adds one source row to the sums of the `wanted` result rows (one or both). weights[r] are the
 * taps that multiply the source row for result row r. */
ALWAYS_INLINE void add_row(vec sum[ROWS][PIXELS], const void *x, ptrdiff_t at, size_t step,
                           size_t left, size_t right, const float *const weights[ROWS],
                           const int from, const int to, const int taps, const int stride,
                           const bool bf16)
{
    vec w[ROWS][7];
#pragma GCC unroll 2
    for (int r = from; r < to; r++)
#pragma GCC unroll 7
        for (int t = 0; t < taps; t++)
            w[r][t] = vec_load(weights[r] + t * VEC);
#pragma GCC unroll 19
    for (int c = 0; c < (PIXELS - 1) * stride + taps; c++, at += (ptrdiff_t)step) {
        if ((size_t)c < left || (size_t)c >= right)
            continue;
        const vec v = bf16 ? vec_widen((const uint16_t *)x + at) : vec_load((const float *)x + at);
#pragma GCC unroll 2
        for (int r = from; r < to; r++)
#pragma GCC unroll 7
            for (int p = 0; p < PIXELS; p++)
                if (c - p * stride >= 0 && c - p * stride < taps)
                    sum[r][p] = vec_fma(v, w[r][c - p * stride], sum[r][p]);
    }
}

/* Adds all source rows of one block. The second result row starts stride_y rows further down. */
ALWAYS_INLINE void add_rows(const struct depthwise *d, const struct depthwise_tile *t, ptrdiff_t at,
                            const float *w, vec sum[ROWS][PIXELS], const int rows, const int taps,
                            const int stride, const bool bf16)
{
    const size_t step = d->channels, height = d->kernel_height;
    const ptrdiff_t down = (ptrdiff_t)(d->width * d->channels);
    const size_t tap_row = (size_t)taps * VEC, ahead = rows > 1 ? d->stride_y : height;
    const size_t one = smaller(ahead, height);
    size_t i = t->top;
    for (; i < smaller(one, t->bottom); i++) {
        const float *const weights[2] = {w + i * tap_row, NULL};
        add_row(sum, t->x, at + (ptrdiff_t)i * down, step, t->left, t->right, weights, 0, 1, taps,
                stride, bf16);
    }
    if (rows == 1)
        return;
    for (; i < smaller(height, t->bottom); i++) {
        const float *const weights[2] = {w + i * tap_row, w + (i - ahead) * tap_row};
        add_row(sum, t->x, at + (ptrdiff_t)i * down, step, t->left, t->right, weights, 0, ROWS,
                taps, stride, bf16);
    }
    if (i < ahead)
        i = ahead;
    for (; i < smaller(ahead + height, t->bottom); i++) {
        const float *const weights[2] = {NULL, w + (i - ahead) * tap_row};
        add_row(sum, t->x, at + (ptrdiff_t)i * down, step, t->left, t->right, weights, ROWS - 1,
                ROWS, taps, stride, bf16);
    }
}

/* Applies the activation and stores. */
ALWAYS_INLINE void end_as(const struct depthwise *d, const struct depthwise_tile *t, size_t at,
                          vec sum[ROWS][PIXELS], float *sums, const int rows,
                          const enum ending ending, const bool bf16)
{
    const vec low = vec_set(d->low), high = vec_set(d->high);
    const vec slope = vec_set(d->row.alpha * MINUS_LOG2E);
    const size_t row = d->out_width * d->channels;
    vec total = vec_zero();
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
        size_t to = at + (size_t)r * row;
#pragma GCC unroll 7
        for (int p = 0; p < PIXELS; p++, to += d->channels) {
            if ((size_t)p >= t->pixels)
                continue;
            vec v = sum[r][p];
            if (ending == ENDING_CLAMP)
                v = vec_clamp(v, low, high);
#define END(name, ...)                                                                             \
    if (ending == ENDING_##name)                                                                   \
        v = vec_activate(v, ACTIVATION_##name, low, high, slope);
            VEC_PRODUCT_ACTIVATIONS(END, )
#undef END
            if (ending == ENDING_OTHER) {
                float lanes[VEC];
                vec_store(lanes, v);
                SIMD_COMMON(activate)
                (lanes, lanes, VEC, d->row.activation, d->row.alpha, d->row.beta);
                v = vec_load(lanes);
            }
            if (bf16 && d->narrow_result)
                vec_narrow_n((uint16_t *)t->y + to, v, VEC);
            else
                vec_store((float *)t->y + to, v);
            total = vec_add(total, v);
        }
    }
    if (sums)
        vec_store(sums, vec_add(vec_load(sums), total));
}

static enum ending ending_of(const struct depthwise *d)
{
    switch (d->row.activation) {
    case ACTIVATION_NONE:
        return ENDING_CLAMP;
#define CASE(name, ...)                                                                            \
    case ACTIVATION_##name:                                                                        \
        return ENDING_##name;
        VEC_PRODUCT_ACTIVATIONS(CASE, )
#undef CASE
    default:
        return ENDING_OTHER;
    }
}

/* ENDING_ANY branches once per block. It takes a twentieth more time than a function for each
 * ending, but only a quarter of the code. */
ALWAYS_INLINE void end_block(const struct depthwise *d, const struct depthwise_tile *t, size_t at,
                             vec sum[ROWS][PIXELS], float *sums, const int rows,
                             const enum ending ending, const bool bf16)
{
    if (ending != ENDING_ANY) {
        end_as(d, t, at, sum, sums, rows, ending, bf16);
        return;
    }
    switch (ending_of(d)) {
#define CASE(name, ...)                                                                            \
    case ENDING_##name:                                                                            \
        end_as(d, t, at, sum, sums, rows, ENDING_##name, bf16);                                    \
        break;
        CASE(CLAMP)
        VEC_PRODUCT_ACTIVATIONS(CASE, )
#undef CASE
    default:
        end_as(d, t, at, sum, sums, rows, ENDING_OTHER, bf16);
        break;
    }
}

ALWAYS_INLINE void depthwise_run_tile(const struct depthwise *d, const struct depthwise_tile *t,
                                      const enum ending ending, const int rows, const int taps,
                                      const int stride, const bool bf16)
{
    for (size_t b = t->first; b < t->last; b++) {
        const size_t channel = smaller(b * VEC, d->channels - VEC);
        const float *w = d->weights + b * d->kernel_height * (size_t)taps * VEC;
        const vec bias = d->bias ? vec_load(d->bias + channel) : vec_zero();
        vec sum[ROWS][PIXELS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 7
            for (int p = 0; p < PIXELS; p++)
                sum[r][p] = bias;
        add_rows(d, t, t->x_at + (ptrdiff_t)channel, w, sum, rows, taps, stride, bf16);
        end_block(d, t, t->y_at + channel, sum, t->sums ? t->sums + b * VEC : NULL, rows, ending,
                  bf16);
    }
}

typedef void (*tile_fn)(const struct depthwise *d, const struct depthwise_tile *t);

#define TILE_JOIN(taps, stride, ending, bf16, rows)                                                \
    tile_##taps##_##stride##_##ending##_##bf16##_##rows
#define TILE_NAME(taps, stride, ending, bf16, rows) TILE_JOIN(taps, stride, ending, bf16, rows)
#define TILE(taps, stride, ending, bf16, rows)                                                     \
    static void TILE_NAME(taps, stride, ending, bf16, rows)(const struct depthwise *d,             \
                                                            const struct depthwise_tile *t)        \
    {                                                                                              \
        depthwise_run_tile(d, t, ending, rows, taps, stride, bf16);                                \
    }
#define TILE_KINDS (ENDING_ANY + 3) /* float32 by its ending; bfloat16; remaining rows of both */
#if defined __AVX512BF16__
#define TILES(taps, stride)                                                                        \
    TILE(taps, stride, ENDING_ANY, 1, ROWS)                                                        \
    TILE(taps, stride, ENDING_ANY, 1, 1)
#define ENTRIES(taps, stride)                                                                      \
    {                                                                                              \
        [ENDING_ANY] = TILE_NAME(taps, stride, ENDING_ANY, 1, ROWS),                               \
        [ENDING_ANY + 2] = TILE_NAME(taps, stride, ENDING_ANY, 1, 1),                              \
    }
#else
/* For each size: float32 by its ending, whole tiles of bfloat16, and the last rows of both. */
#define TILE_OF(name, taps, stride) TILE(taps, stride, ENDING_##name, 0, ROWS)
#define TILES(taps, stride)                                                                        \
    TILE_OF(CLAMP, taps, stride)                                                                   \
    VEC_PRODUCT_ACTIVATIONS(TILE_OF, taps, stride)                                                 \
    TILE_OF(OTHER, taps, stride)                                                                   \
    TILE(taps, stride, ENDING_ANY, 1, ROWS)                                                        \
    LAST_TILES(taps, stride)
#if ROWS == 2
#define LAST_TILES(taps, stride)                                                                   \
    TILE(taps, stride, ENDING_ANY, 0, 1)                                                           \
    TILE(taps, stride, ENDING_ANY, 1, 1)
#define LAST_ENTRIES(taps, stride)                                                                 \
    TILE_NAME(taps, stride, ENDING_ANY, 0, 1), TILE_NAME(taps, stride, ENDING_ANY, 1, 1)
#else
#define LAST_TILES(taps, stride)
#define LAST_ENTRIES(taps, stride) NULL, NULL
#endif
#define ENTRY_OF(name, taps, stride) TILE_NAME(taps, stride, ENDING_##name, 0, ROWS),
#define ENTRIES(taps, stride)                                                                      \
    {                                                                                              \
        ENTRY_OF(CLAMP, taps, stride)                                                              \
        VEC_PRODUCT_ACTIVATIONS(ENTRY_OF, taps, stride)                                            \
        ENTRY_OF(OTHER, taps, stride)                                                              \
        TILE_NAME(taps, stride, ENDING_ANY, 1, ROWS), LAST_ENTRIES(taps, stride)                   \
    }
#endif
TILES(3, 1)
TILES(3, 2)
TILES(5, 1)
TILES(5, 2)
TILES(7, 1)
TILES(7, 2)

static tile_fn choose(const struct depthwise *d, bool whole)
{
    static const tile_fn all[3][2][TILE_KINDS] = {{ENTRIES(3, 1), ENTRIES(3, 2)},
                                                  {ENTRIES(5, 1), ENTRIES(5, 2)},
                                                  {ENTRIES(7, 1), ENTRIES(7, 2)}};
    size_t kind = d->bf16 ? ENDING_ANY : ending_of(d);
    if (!whole)
        kind = ENDING_ANY + 1 + d->bf16;
    return all[d->kernel_width / 2 - 1][d->stride_x - 1][kind];
}

/* Finds the taps inside [0, size) among `count` taps from position `at` on (negative: padding). */
static void clip(ptrdiff_t at, size_t count, size_t size, size_t *ret_first, size_t *ret_end)
{
    const ptrdiff_t inside = (ptrdiff_t)size - at;
    *ret_first = at < 0 ? (size_t)-at : 0;
    *ret_end = inside < 0 ? 0 : smaller(count, (size_t)inside);
}

void SIMD_NAMED(depthwise)(const struct depthwise *d, const void *x, void *y, size_t first,
                           size_t rows, size_t first_block, size_t last_block, float *sums)
{
#if defined __AVX512BF16__
    if (!d->bf16) {
        simd_avx512_depthwise(d, x, y, first, rows, first_block, last_block, sums);
        return;
    }
#endif
    const tile_fn whole = choose(d, true), last = choose(d, false);
    struct depthwise_tile t = {
        .x = x, .y = y, .first = first_block, .last = last_block, .sums = sums};
    for (size_t row = first; row < first + rows; row += ROWS) {
        const ptrdiff_t source = (ptrdiff_t)(row * d->stride_y) - (ptrdiff_t)d->pad_top;
        t.rows = smaller(first + rows - row, ROWS);
        clip(source, (t.rows - 1) * d->stride_y + d->kernel_height, d->height, &t.top, &t.bottom);
        for (size_t column = 0; column < d->out_width; column += PIXELS) {
            const ptrdiff_t from = (ptrdiff_t)(column * d->stride_x) - (ptrdiff_t)d->pad_left;
            t.pixels = smaller(d->out_width - column, PIXELS);
            clip(from, (t.pixels - 1) * d->stride_x + d->kernel_width, d->width, &t.left, &t.right);
            t.x_at = (source * (ptrdiff_t)d->width + from) * (ptrdiff_t)d->channels;
            t.y_at = (row * d->out_width + column) * d->channels;
            (t.rows == ROWS ? whole : last)(d, &t);
        }
    }
}
