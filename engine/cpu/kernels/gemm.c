/* The matrix product of float32 convolutions and layers, compiled once per instruction set.
 *
 * A block of ROWS x 2 registers of the result stays in registers for all k: each step loads two
 * registers of packed weights and broadcasts one number of each row. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#define ROWS    GEMM_ROWS
#define COLUMNS GEMM_COLUMNS

/* A run reads the weights from memory once, and the hardware prefetches them too late. So every
 * STEPS steps of k this file fetches a few cache lines into the second-level cache: part of the
 * next panel if several blocks share a panel, otherwise the lines AHEAD floats further on. 197 rows
 * of [768, 1536] take 2.9 ms with these fetches and 3.4 ms without. Fetches every 4 or 8 steps cost
 * more time than they save. */
enum { STEPS = 16, AHEAD = 512, LINE = 64 / sizeof(float) };

struct fetch {
    const float *from;
    size_t
        lines; /* cache lines to fetch in STEPS steps of k, which read COLUMNS lines of weights */
};

ALWAYS_INLINE void finish(const struct gemm *g, vec v, float *c, size_t width)
{
    if (g->accumulate)
        v = vec_add(v, vec_load_n(c, width));
    if (g->row.activation == ACTIVATION_CLIP)
        v = vec_clamp(v, vec_set(g->row.alpha), vec_set(g->row.beta));
    vec_store_n(c, v, width);
}

/* Callers pass constants for rows and registers, so that sums are registers. */
ALWAYS_INLINE void block(const struct gemm *g, const float *a, const float *b, float *c,
                         const float *bias, size_t width, struct fetch fetch, const int rows,
                         const int registers)
{
    vec sum[ROWS][2];
    const size_t lda = g->lda, run = g->run ? g->run : g->k;
    const float *const end = b + g->k * COLUMNS;
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int i = 0; i < registers; i++)
            sum[r][i] = vec_zero();
    for (; b < end; a += g->run_step) {
        /* Each row is at most four times lda after one of these addresses. That saves registers. */
        const float *base[3] = {a, a + 5 * lda, a + 10 * lda};
        for (size_t left = run, some; left > 0; left -= some) {
            some = fetch.lines ? smaller(left, STEPS) : left;
            for (size_t l = 0; l < fetch.lines; l++, fetch.from += LINE)
                __builtin_prefetch(fetch.from, 0, 2);
/* Unrolled twice, 197 rows of [768, 3072] take 2.8 ms instead of 3.0. */
#pragma GCC unroll 2
            for (const float *stop = b + some * COLUMNS; b < stop; b += COLUMNS) {
                vec w[2];
#pragma GCC unroll 2
                for (int i = 0; i < registers; i++)
                    w[i] = vec_load(b + (size_t)i * VEC);
#pragma GCC unroll 14
                for (int r = 0; r < rows; r++) {
                    const vec x = vec_set(base[r / 5][(size_t)(r % 5) * lda]);
#pragma GCC unroll 2
                    for (int i = 0; i < registers; i++)
                        sum[r][i] = vec_fma(x, w[i], sum[r][i]);
                }
                base[0]++;
                base[1]++;
                base[2]++;
            }
        }
    }
    const struct gemm own = *g; /* the compiler must assume that a store to c changes *g */
#pragma GCC unroll 2
    for (int i = 0; i < registers; i++) {
        const size_t from = (size_t)i * VEC, n = smaller(width - from, VEC);
        const vec add = bias ? vec_load_n(bias + from, n) : vec_zero();
#pragma GCC unroll 14
        for (int r = 0; r < rows; r++)
            finish(&own, vec_add(sum[r][i], add), c + (size_t)r * own.ldc + from, n);
    }
}

#define CASE(n)                                                                                    \
    case n:                                                                                        \
        if (width == COLUMNS)                                                                      \
            block(g, a, b, c, bias, COLUMNS, fetch, n, 2);                                         \
        else if (width > VEC)                                                                      \
            block(g, a, b, c, bias, width, fetch, n, 2);                                           \
        else                                                                                       \
            block(g, a, b, c, bias, width, fetch, n, 1);                                           \
        break

/* Computes rows <= ROWS of the result and width <= COLUMNS columns. */
static void run_block(const struct gemm *g, const float *a, const float *b, float *c,
                      const float *bias, size_t rows, size_t width, struct fetch fetch)
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
    if (is_row_activation(g->row.activation)) { /* while the block is in the first-level cache */
        SIMD_NAMED(activate_rows)
        (c, c, rows, g->ldc, width, g->row.activation, g->row.alpha, g->row.beta);
    }
}

/* True if there are so few weights that they stay in the cache after the first block. */
static bool is_near(const struct gemm *g)
{
    return g->k * g->n * sizeof(float) <= 128 * 1024;
}

/* With few weights, fetching rows takes most of the time: rows begin far apart, so the hardware
 * does not prefetch them well. While a panel is multiplied, a share of the next block's rows is
 * fetched: source rows if they are longer than result rows and are neither windows nor copies,
 * which are mostly in the cache; otherwise result rows. 25,088 rows of [24, 144] take 2.2 ms
 * instead of 3.4. The hardware prefetches rows of fewer than LEAST numbers. */
static struct fetch fetch_rows(const struct gemm *g, const float *next, size_t rows, size_t length,
                               size_t depth, size_t column)
{
    enum { LEAST = 64 };
    const size_t panels = (g->n + COLUMNS - 1) / COLUMNS, turns = (depth + STEPS - 1) / STEPS;
    const size_t share = rows * length / LINE / panels + 1;
    return (struct fetch){next + column / COLUMNS * share * LINE,
                          length < LEAST ? 0 : (share + turns - 1) / turns};
}

/* How a product is divided: k into `parts`, the rows into `blocks`. at_once blocks share a panel of
 * weights. The more blocks share a panel, the less often it is fetched, but only the rows of `most`
 * blocks fit in the second-level cache, which is 1 MB or more on servers. */
struct gemm_division {
    size_t parts, blocks, most, at_once;
};

static struct gemm_division divide(const struct gemm *g, size_t m)
{
    enum { DEPTH = 768, ROWS_NEAR = 704 * 1024 };
    struct gemm_division d = {.parts = 1, .blocks = (m + ROWS - 1) / ROWS, .at_once = 1};
    if (!g->run && g->k > DEPTH)
        d.parts = (g->k + DEPTH - 1) / DEPTH;
    d.most = ROWS_NEAR / (g->k / d.parts * ROWS * sizeof(float) + 1) + 1;
    const size_t groups = (d.blocks + d.most - 1) / d.most;
    if (!is_near(g))
        d.at_once = (d.blocks + groups - 1) / groups;
    return d;
}

/* Multiplies `depth` numbers of k, starting at k = `from`, for all columns of blocks first … first
 * + count - 1. `a` points to number `from` of the first block's first row; rows are lda apart. */
static void run_blocks(const struct gemm *g, const float *a, size_t m, size_t first, size_t count,
                       size_t from, size_t depth)
{
    /* blocks of similar height: 49 rows are 13 + 12 + 12 + 12, not 14 + 14 + 14 + 7 */
    const size_t blocks = (m + ROWS - 1) / ROWS, lines = (COLUMNS + count - 1) / count;
    const bool begins = from == 0, ends = from + depth == g->k;
    struct gemm part = *g;
    part.k = depth;
    part.accumulate = g->accumulate || !begins;
    part.row.activation = ends ? g->row.activation : ACTIVATION_NONE;
    for (size_t j = 0; j < g->n; j += COLUMNS)
        for (size_t i = 0; i < count; i++) {
            const size_t begin = m * (first + i) / blocks, end = m * (first + i + 1) / blocks;
            const float *b = g->b + j * g->k + from * COLUMNS;
            struct fetch fetch = {b + AHEAD, COLUMNS};
            if (is_near(g)) {
                const bool reads = !g->run && !g->copies && depth > g->n;
                fetch = fetch_rows(
                    g, reads ? a + (end - m * first / blocks) * g->lda : g->c + end * g->ldc,
                    end - begin, reads ? depth : g->n, depth, j);
            } else if (count > 1 && j + i > 0) {
                fetch.lines = lines;
                fetch.from = b + g->k * COLUMNS + i * lines * LINE * (depth / STEPS);
            }
            run_block(&part, a + (begin - m * first / blocks) * g->lda, b,
                      g->c + begin * g->ldc + j, g->bias && begins ? g->bias + j : NULL,
                      end - begin, smaller(g->n - j, COLUMNS), fetch);
        }
}

/* Elements between the starts of copied rows of `depth` numbers: whole cache lines, and an odd
 * number of them, so that the rows use all cache sets. */
static size_t copied_step(size_t depth)
{
    return ((depth + LINE - 1) / LINE | 1) * LINE;
}

size_t SIMD_NAMED(gemm_copies)(const struct gemm *g, size_t m)
{
    enum { PAGE = 4096 / sizeof(float), WAYS = 8 };
    const struct gemm_division d = divide(g, m);
    if (g->run || g->lda % PAGE || smaller(m, ROWS) <= WAYS)
        return 0;
    return smaller(d.most, d.blocks) * ROWS * copied_step(g->k / d.parts + 1);
}

void SIMD_NAMED(gemm)(const struct gemm *g, size_t m)
{
    const struct gemm_division d = divide(g, m);
    for (size_t first = 0; first < d.blocks; first += d.at_once)
        for (size_t p = 0; p < d.parts; p++) {
            const size_t from = g->k * p / d.parts, depth = g->k * (p + 1) / d.parts - from;
            const size_t count = smaller(d.at_once, d.blocks - first);
            const size_t begin = m * first / d.blocks, end = m * (first + count) / d.blocks;
            const float *a = g->a + begin * g->lda + from;
            struct gemm part = *g;
            if (g->copies) {
                part.lda = copied_step(depth);
                for (size_t r = 0; r < end - begin; r++)
                    memcpy(g->copies + r * part.lda, a + r * g->lda, depth * sizeof *a);
                a = g->copies;
            }
            run_blocks(&part, a, m, first, count, from, depth);
        }
}
