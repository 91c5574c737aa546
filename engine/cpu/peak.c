/* Measures the kernels of products in the best case. The same row serves as all rows, and the panel
 * of weights is so long that only the multiply-adds matter. All numbers are 0; other numbers take
 * as long. Nothing writes the zeros, so they are one page of memory, which stays in the first-level
 * cache. On a Zen 4 the result is 99 % of the rate of multiply-adds whose operands are in
 * registers. */
#include "engine/backend/peak.h"

#include "engine/base/clock.h"
#include "engine/base/forkjoin.h"
#include "engine/cpu/kernels/simd.h"

enum { STRETCHES = 60, PANEL = 256 * 1024 };

struct stretch_of {
    void (*multiply)(const struct tile *tile, size_t rows); /* NULL: gemm() */
    size_t depth; /* of gemm(): numbers of a row; of `multiply`: bytes */
    long count;
};

static void run_stretch(void *context)
{
    static unsigned char zeros[PANEL] __attribute__((aligned(64)));
    int32_t sums[TILE_MOST_ROWS * TILE_MOST_COLUMNS];
    const unsigned char *rows[TILE_MOST_ROWS];
    const struct stretch_of *of = context;
    const struct simd_kernels *k = simd();
    const struct gemm gemm = {.a = (const void *)zeros,
                              .b = (const void *)zeros,
                              .c = (void *)sums,
                              .k = of->depth,
                              .n = k->gemm_columns,
                              .run = of->depth};
    const struct tile tile = {.rows = rows,
                              .taps = 1,
                              .run = of->depth,
                              .b = zeros,
                              .c = sums,
                              .ldc = k->tile_columns,
                              .n = k->tile_columns,
                              .group = k->tile_rows_are_even ? k->tile_rows / 2 : 1,
                              .chunk = k->tile_bytes};
    for (size_t r = 0; r < TILE_MOST_ROWS; r++)
        rows[r] = zeros;
    for (long i = 0; i < of->count; i++)
        if (of->multiply)
            of->multiply(&tile, k->tile_rows);
        else
            k->gemm(&gemm, k->gemm_rows);
    if (k->tile_end)
        k->tile_end();
}

/* Returns the seconds from the first start to the last end of `count` products on all threads. */
static double stretch(struct stretch_of of, int threads)
{
    const int64_t start = clock_now();
    forkjoin_run(threads, run_stretch, &of);
    return (double)(clock_now() - start) * 1e-9;
}

struct peak peak_measure(struct device_id device, enum precision precision, int threads)
{
    const struct simd_kernels *k = simd();
    if (device.kind != DEVICE_CPU)
        return (struct peak){0, ""};
    struct stretch_of of = {.depth = PANEL / sizeof(float) / k->gemm_columns, .count = 10};
    size_t products = k->gemm_rows * k->gemm_columns * of.depth;
    if (precision == PRECISION_INT8 || (precision == PRECISION_BF16 && k->tile_bf16)) {
        const bool has_dot = precision == PRECISION_INT8 && simd_has_dot(k);
        of.multiply = has_dot                       ? k->tile_dot
                      : precision == PRECISION_INT8 ? k->tile_pairs
                                                    : k->tile_bf16;
        of.depth = PANEL / k->tile_columns / k->tile_bytes * k->tile_bytes;
        products = k->tile_rows * k->tile_columns * of.depth / (has_dot ? 1 : 2);
    }
    if (threads < 1)
        threads = device_cpu_threads();
    double best = stretch(of, threads);
    while (best < 5e-4 && of.count < 1L << 30) { /* until the overhead hardly counts */
        of.count *= 2;
        best = stretch(of, threads);
    }
    for (int i = 0; i < STRETCHES; i++) {
        const double seconds = stretch(of, threads);
        best = seconds < best ? seconds : best;
    }
    return (struct peak){2 * (double)products * (double)of.count * threads / best * 1e-9, k->name};
}
