/* The product of matrices that own convolutions are made of, compiled once per instruction set.
 *
 * A block of ROWS x 2 registers of the result stays in registers while k goes by: each step loads
 * two registers of packed weights and broadcasts one number of each row. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

#define ROWS    GEMM_ROWS
#define COLUMNS GEMM_COLUMNS

/* Floats of packed weights that are fetched ahead: 2 KB. The hardware's own prefetching comes too
 * late on Intel where weights are read once a run: 25 rows of [1152, 320], weights in memory, take
 * 0.21 instead of 0.32 ms; with 0.5, 1 and 4 KB 0.25, 0.23 and 0.22. */
#define AHEAD 512

ALWAYS_INLINE void finish(const struct gemm *g, vec sum, float *c, const float *bias, size_t width)
{
    vec v = bias ? vec_add(sum, vec_load_n(bias, width)) : sum;
    if (g->accumulate)
        v = vec_add(v, vec_load_n(c, width));
    if (g->clamp) /* in this order NaN stays NaN */
        v = vec_min(vec_set(g->high), vec_max(vec_set(g->low), v));
    vec_store_n(c, v, width);
}

/* rows and registers are constants where this is inlined, so that sums are registers. */
ALWAYS_INLINE void block(const struct gemm *g, const float *a, const float *b, float *c,
                         const float *bias, size_t width, const int rows, const int registers)
{
    vec sum[ROWS][2];
    const size_t lda = g->lda, run = g->run ? g->run : g->k;
    const float *const end = b + g->k * COLUMNS;
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int i = 0; i < registers; i++)
            sum[r][i] = vec_zero();
    for (; b < end; a += g->run_step)
        for (size_t p = 0; p < run; p++, b += COLUMNS) {
            vec w[2];
#pragma GCC unroll 2
            for (int i = 0; i < registers; i++) {
                w[i] = vec_load(b + (size_t)i * VEC);
                __builtin_prefetch(b + AHEAD + (size_t)i * VEC);
            }
#pragma GCC unroll 14
            for (int r = 0; r < rows; r++) {
                const vec x = vec_set(a[(size_t)r * lda + p]);
#pragma GCC unroll 2
                for (int i = 0; i < registers; i++)
                    sum[r][i] = vec_fma(x, w[i], sum[r][i]);
            }
        }
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int i = 0; i < registers; i++) {
            const size_t from = (size_t)i * VEC;
            const size_t n = width - from < VEC ? width - from : VEC;
            finish(g, sum[r][i], c + (size_t)r * g->ldc + from, bias ? bias + from : NULL, n);
        }
}

#define CASE(n)                                                                                    \
    case n:                                                                                        \
        if (width > VEC)                                                                           \
            block(g, a, b, c, bias, width, n, 2);                                                  \
        else                                                                                       \
            block(g, a, b, c, bias, width, n, 1);                                                  \
        break

/* The loop over a block for one activation: `v` is the register at hand. */
#define EACH(expression)                                                                           \
    for (size_t r = 0; r < rows; r++, c += g->ldc) {                                               \
        if (width == COLUMNS)                                                                      \
            for (size_t i = 0; i < COLUMNS; i += VEC) {                                            \
                const vec v = vec_load(c + i);                                                     \
                vec_store(c + i, expression);                                                      \
            }                                                                                      \
        else                                                                                       \
            for (size_t i = 0; i < width; i += VEC) {                                              \
                const size_t n = width - i < VEC ? width - i : VEC;                                \
                const vec v = vec_load_n(c + i, n);                                                \
                vec_store_n(c + i, expression, n);                                                 \
            }                                                                                      \
    }                                                                                              \
    break

/* The activation that is no clamp, while the block is in the first-level cache. */
static void activate_block(const struct gemm *g, float *c, size_t rows, size_t width)
{
    const vec slope = vec_set(g->row.alpha * MINUS_LOG2E);
    switch (g->row.activation) {
    case ACTIVATION_HARD_SWISH:
        EACH(vec_hard_swish(v));
    case ACTIVATION_SILU:
        EACH(vec_silu(v, slope));
    default:
        for (size_t r = 0; r < rows; r++, c += g->ldc)
            SIMD_NAMED(activate)
        (c, c, width, g->row.activation, g->row.alpha, g->row.beta);
    }
}

/* rows <= ROWS of the result, width <= COLUMNS columns. */
static void run_block(const struct gemm *g, const float *a, const float *b, float *c,
                      const float *bias, size_t rows, size_t width)
{
    switch (rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
#if ROWS > 6
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
        CASE(12);
        CASE(13);
        CASE(14);
#endif
    default:
        break;
    }
    if (g->row.activation)
        activate_block(g, c, rows, width);
}

/* Rows that share a panel of weights: so many that the panel, once fetched, is used often, and so
 * few that they stay in the second-level cache. */
static size_t rows_at_once(const struct gemm *g, size_t blocks)
{
    enum { NEAR = 128 * 1024, ROWS_NEAR = 192 * 1024 };
    if (g->k * g->n * sizeof(float) <= NEAR)
        return 1;
    size_t fit = ROWS_NEAR / (g->k * ROWS * sizeof(float) + 1);
    fit = fit < 1 ? 1 : fit;
    return fit < blocks ? fit : blocks;
}

void SIMD_NAMED(gemm)(const struct gemm *g, size_t m)
{
    /* blocks of nearly equal height: 49 rows are 13 + 12 + 12 + 12 and not 14 + 14 + 14 + 7 */
    const size_t blocks = (m + ROWS - 1) / ROWS, at_once = rows_at_once(g, blocks);
    for (size_t first = 0; first < blocks; first += at_once) {
        const size_t last = first + at_once < blocks ? first + at_once : blocks;
        for (size_t j = 0; j < g->n; j += COLUMNS) {
            const size_t width = g->n - j < COLUMNS ? g->n - j : COLUMNS;
            for (size_t i = first; i < last; i++) {
                const size_t begin = m * i / blocks, end = m * (i + 1) / blocks;
                run_block(g, g->a + begin * g->lda, g->b + j * g->k, g->c + begin * g->ldc + j,
                          g->bias ? g->bias + j : NULL, end - begin, width);
            }
        }
    }
}

void SIMD_NAMED(gemm_pack)(const float *w, size_t k_step, size_t n_step, size_t k, size_t n,
                           float *packed)
{
    for (size_t j = 0; j < n; j += COLUMNS)
        for (size_t p = 0; p < k; p++)
            for (size_t i = 0; i < COLUMNS; i++)
                *packed++ = j + i < n ? w[p * k_step + (j + i) * n_step] : 0;
}

size_t SIMD_NAMED(gemm_packed)(size_t k, size_t n)
{
    return (n + COLUMNS - 1) / COLUMNS * COLUMNS * k;
}
