/* Depthwise convolutions, compiled once per instruction set.
 *
 * A block is one register of channels. One or two rows of PIXELS results of a block stay in
 * registers. A source number is loaded once per row of taps, and added to every result of these
 * rows that needs it. The epilogue is applied before the only store. The innermost loop runs
 * over blocks, so that the image is read in memory order. If the channel count is not a multiple of
 * the block, the last block overlaps the one before and writes the same numbers again. Taps in the
 * padding are skipped. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

#define ROWS   DEPTHWISE_ROWS
#define PIXELS 7 /* image sides are often multiples of 7 */

/* A tile of results. x_at and y_at are offsets in elements from x and y. */
struct depthwise_tile {
    const void *x; /* the image; x_at: the first tap of the first result, maybe outside the image */
    void *y;
    ptrdiff_t x_at;
    size_t y_at;
    size_t rows, pixels;             /* size of the result tile, at most ROWS x PIXELS */
    size_t top, bottom, left, right; /* source rows and columns inside the image, from x_at on */
    size_t first, last;              /* blocks first … last - 1 */
    float *sums;                     /* sums of each block's results; may be NULL */
};

/* Adds one source row to the sums of result rows `from` … `to` - 1 (one or both). weights[r] are
 * the taps that multiply the source row for result row r. */
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

/* Adds up all source rows of a block. The second result row's window starts stride_y rows lower. */
ALWAYS_INLINE void add_rows(const struct depthwise *d, const struct depthwise_tile *t, ptrdiff_t at,
                            const float *w, vec sum[ROWS][PIXELS], const int taps, const int stride,
                            const bool bf16)
{
    const size_t step = d->channels, height = d->kernel_height;
    const ptrdiff_t down = (ptrdiff_t)(d->width * d->channels);
    const size_t tap_row = (size_t)taps * VEC, ahead = t->rows > 1 ? d->stride_y : height;
    const size_t one = smaller(ahead, height);
    size_t i = t->top;
    for (; i < smaller(one, t->bottom); i++) {
        const float *const weights[2] = {w + i * tap_row, NULL};
        add_row(sum, t->x, at + (ptrdiff_t)i * down, step, t->left, t->right, weights, 0, 1, taps,
                stride, bf16);
    }
    if (ROWS == 1 || t->rows == 1)
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

#define FOR_RESULTS(r, p)                                                                          \
    _Pragma("GCC unroll 2") for (int r = 0; r < ROWS; r++)                                         \
        _Pragma("GCC unroll 7") for (int p = 0; p < PIXELS; p++)

ALWAYS_INLINE void activate_block(const struct depthwise *d, vec sum[ROWS][PIXELS])
{
    const vec alpha = vec_set(d->row.alpha), beta = vec_set(d->row.beta);
    const vec slope = vec_set(d->row.alpha * MINUS_LOG2E);
    float lanes[ROWS * PIXELS * VEC];
    switch (d->row.activation) {
    case ACTIVATION_NONE:
        break;
#define CASE(name)                                                                                 \
    case ACTIVATION_##name:                                                                        \
        FOR_RESULTS(r, p)                                                                          \
        {                                                                                          \
            sum[r][p] = vec_activate(sum[r][p], ACTIVATION_##name, alpha, beta, slope);            \
        }                                                                                          \
        break;
        CASE(CLIP)
        CASE(HARD_SWISH)
        CASE(SILU)
#undef CASE
    default:
        FOR_RESULTS(r, p)
        {
            vec_store(lanes + (r * PIXELS + p) * VEC, sum[r][p]);
        }
        SIMD_COMMON(activate)
        (lanes, lanes, (size_t)ROWS * PIXELS * VEC, d->row.activation, d->row.alpha, d->row.beta);
        FOR_RESULTS(r, p)
        {
            sum[r][p] = vec_load(lanes + (r * PIXELS + p) * VEC);
        }
    }
}

/* Stores the results that are inside the tile, and adds them to `sums` unless `sums` is NULL. */
ALWAYS_INLINE void store_block(const struct depthwise *d, const struct depthwise_tile *t, size_t at,
                               const vec sum[ROWS][PIXELS], float *sums, const bool bf16)
{
    const size_t row = d->out_width * d->channels;
    vec total = vec_zero();
    FOR_RESULTS(r, p)
    {
        const size_t to = at + (size_t)r * row + (size_t)p * d->channels;
        if ((size_t)r >= t->rows || (size_t)p >= t->pixels)
            continue;
        if (bf16 && d->narrow_result)
            vec_narrow_n((uint16_t *)t->y + to, sum[r][p], VEC);
        else
            vec_store((float *)t->y + to, sum[r][p]);
        total = vec_add(total, sum[r][p]);
    }
    if (sums)
        vec_store(sums, vec_add(vec_load(sums), total));
}

ALWAYS_INLINE void depthwise_run_tile(const struct depthwise *d, const struct depthwise_tile *t,
                                      const int taps, const int stride, const bool bf16)
{
    for (size_t b = t->first; b < t->last; b++) {
        const size_t channel = smaller(b * VEC, d->channels - VEC);
        const float *w = d->weights + b * d->kernel_height * (size_t)taps * VEC;
        const vec bias = d->bias ? vec_load(d->bias + channel) : vec_zero();
        vec sum[ROWS][PIXELS];
        FOR_RESULTS(r, p)
        {
            sum[r][p] = bias;
        }
        add_rows(d, t, t->x_at + (ptrdiff_t)channel, w, sum, taps, stride, bf16);
        activate_block(d, sum);
        store_block(d, t, t->y_at + channel, sum, t->sums ? t->sums + b * VEC : NULL, bf16);
    }
}

/* The structs are copied, because the compiler must assume that a store to the result changes the
 * originals. */
#define TILE(taps, stride, kind, bf16)                                                             \
    static void tile_##taps##_##stride##_##kind(const struct depthwise *d,                         \
                                                const struct depthwise_tile *t)                    \
    {                                                                                              \
        const struct depthwise own = *d;                                                           \
        const struct depthwise_tile tile = *t;                                                     \
        depthwise_run_tile(&own, &tile, taps, stride, bf16);                                       \
    }
#define TILES(taps, stride) TILE(taps, stride, f32, false) TILE(taps, stride, bf16, true)
#define ENTRIES(taps, stride)                                                                      \
    {                                                                                              \
        tile_##taps##_##stride##_f32, tile_##taps##_##stride##_bf16                                \
    }
TILES(3, 1)
TILES(3, 2)
TILES(5, 1)
TILES(5, 2)
TILES(7, 1)
TILES(7, 2)

static void (*const tiles[3][2][2])(const struct depthwise *, const struct depthwise_tile *) = {
    {ENTRIES(3, 1), ENTRIES(3, 2)}, {ENTRIES(5, 1), ENTRIES(5, 2)}, {ENTRIES(7, 1), ENTRIES(7, 2)}};

/* Finds the taps inside [0, size) of `count` taps from position `at` on, which may be negative. */
static void clip(ptrdiff_t at, size_t count, size_t size, size_t *ret_first, size_t *ret_end)
{
    const ptrdiff_t inside = (ptrdiff_t)size - at;
    *ret_first = at < 0 ? (size_t)-at : 0;
    *ret_end = inside < 0 ? 0 : smaller(count, (size_t)inside);
}

void SIMD_NAMED(depthwise)(const struct depthwise *d, const void *x, void *y, size_t first,
                           size_t rows, size_t first_block, size_t last_block, float *sums)
{
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
            tiles[d->kernel_width / 2 - 1][d->stride_x - 1][d->bf16](d, &t);
        }
    }
}
