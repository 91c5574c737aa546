/* The convolution kernels on floats, in each variant that this CPU runs, beside plain loops: every
 * size of a filter and of a block, each way to end, edges of the image. Sums are exact, so only
 * activations and rounding to bfloat16 make a difference. And loops split over many threads. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/float_bits.h"
#include "engine/base/size.h"
#include "engine/cpu/program/packed_layout.h"
#include "engine/cpu/program/parallel.h"
#include "tests/unit/engine/cpu/simd_variants.h"

static unsigned next(unsigned *state)
{
    return (*state = *state * 69069 + 12345) >> 16;
}

/* Small multiples of 1/4, which bfloat16 has, too. */
static void fill(float *to, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)((int)(next(&seed) % 17) - 8) / 4;
}

/* A way to end: limits without an activation, an activation without limits. */
struct ending_case {
    enum activation activation;
    float alpha, beta;
};

static const struct ending_case endings[] = {
    {ACTIVATION_NONE, 1, 0}, {ACTIVATION_CLIP, 0, 6}, {ACTIVATION_HARD_SWISH, 1, 0},
    {ACTIVATION_SILU, 1, 0}, {ACTIVATION_GELU, 1, 0}, {ACTIVATION_ELU, 1, 0},
};

static double ended(const struct ending_case *e, double x)
{
    switch (e->activation) {
    case ACTIVATION_HARD_SWISH:
        return x * fmin(1, fmax(0, x / 6 + 0.5));
    case ACTIVATION_SILU:
        return x / (1 + exp(-x));
    case ACTIVATION_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACTIVATION_ELU:
        return x < 0 ? exp(x) - 1 : x;
    case ACTIVATION_CLIP:
        return fmin(fmax(x, (double)e->alpha), (double)e->beta);
    default:
        return x;
    }
}

static bool is_near(double is, double wanted, double relative)
{
    return fabs(is - wanted) <= relative * (1 + fabs(wanted));
}

/* ---- depthwise convolutions ---- */

enum { CHANNELS = 19, MOST_RESULTS = 20 * 20 * CHANNELS, MOST_PIXELS = 20 * 20 * CHANNELS };

/* Sides of the image and of the result; what is left of the padding lies below and on the right. */
struct image_case {
    size_t height, width, out_height, out_width, kernel_height, stride_y, pad_top, pad_left;
};

static const struct image_case images[] = {
    {9, 19, 9, 19, 3, 1, 1, 1}, /* the middle of three tiles meets no edge */
    {9, 19, 5, 19, 5, 2, 2, 2},
    {5, 3, 4, 15, 1, 3, 0, 2}, /* rows without a tap, and columns beyond the image */
    {3, 16, 7, 7, 7, 1, 5, 3}, /* a filter taller than the image */
};

struct depthwise_case {
    struct depthwise d;
    float x[MOST_PIXELS], weights[CHANNELS * 7 * 7], packed[2 * 5 * 4 * 7 * 7 * 4], bias[CHANNELS];
    uint16_t narrow_x[MOST_PIXELS], narrow_y[MOST_RESULTS];
    float y[MOST_RESULTS];
    double expected[MOST_RESULTS]; /* sums, with the bias */
};

static double plain_sum(const struct depthwise_case *t, size_t oy, size_t ox, size_t c)
{
    const struct depthwise *d = &t->d;
    double sum = d->bias ? (double)t->bias[c] : 0;
    for (size_t ky = 0; ky < d->kernel_height; ky++)
        for (size_t kx = 0; kx < d->kernel_width; kx++) {
            /* beyond all where it is negative */
            const size_t y = oy * d->stride_y + ky - d->pad_top;
            const size_t x = ox * d->stride_x + kx - d->pad_left;
            if (y < d->height && x < d->width)
                sum += (double)t->x[(y * d->width + x) * CHANNELS + c] *
                       (double)t->weights[(c * d->kernel_height + ky) * d->kernel_width + kx];
        }
    return sum;
}

static void pack_depthwise(struct depthwise_case *t, size_t lanes)
{
    const size_t taps = t->d.kernel_height * t->d.kernel_width;
    const size_t blocks = (CHANNELS + lanes - 1) / lanes;
    cr_assert_leq(blocks * taps * lanes, COUNT_OF(t->packed));
    for (size_t i = 0; i < blocks * taps * lanes; i++) {
        const size_t block = i / lanes / taps;
        const size_t c = depthwise_first_channel(CHANNELS, block, lanes) + i % lanes;
        t->packed[i] = t->weights[c * taps + i / lanes % taps];
    }
}

/* Runs the whole image in four calls, by rows and by blocks, and compares results and sums. */
static void expect_depthwise(const struct simd_kernels *kernels, struct depthwise_case *t,
                             const struct ending_case *e, size_t out_height)
{
    struct depthwise *d = &t->d;
    const size_t lanes = kernels->depthwise_channels, blocks = (CHANNELS + lanes - 1) / lanes;
    const size_t count = out_height * d->out_width * CHANNELS;
    const double relative = d->bf16 && d->narrow_result ? 8e-3 : 4e-6;
    float sums[64] = {0};
    pack_depthwise(t, lanes);
    d->row = (struct epilogue){.activation = e->activation, .alpha = e->alpha, .beta = e->beta};
    for (size_t part = 0; part < 4; part++) {
        const size_t first = part / 2 ? 3 : 0, rows = part / 2 ? out_height - 3 : 3;
        kernels->depthwise(d, d->bf16 ? (const void *)t->narrow_x : t->x,
                           d->narrow_result ? (void *)t->narrow_y : t->y, first, rows, part % 2,
                           part % 2 ? blocks : 1, d->bias ? sums : NULL);
    }
    for (size_t i = 0; i < count; i++) {
        const double wanted = ended(e, t->expected[i]);
        const double is = (double)(d->narrow_result ? bfloat16_to_float(t->narrow_y[i]) : t->y[i]);
        cr_assert(is_near(is, wanted, relative),
                  "%s %zu x %zu by %zu, activation %d: %zu is %g, not %g", kernels->name,
                  d->kernel_height, d->kernel_width, d->stride_x, e->activation, i, is, wanted);
    }
    for (size_t i = 0; d->bias && i < blocks * lanes; i++) {
        const size_t c = depthwise_first_channel(CHANNELS, i / lanes, lanes) + i % lanes;
        double sum = 0;
        for (size_t p = c; p < count; p += CHANNELS)
            sum += ended(e, t->expected[p]);
        cr_assert(is_near((double)sums[i], sum, 1e-4), "%s: sum %zu is %g, not %g", kernels->name,
                  i, (double)sums[i], sum);
    }
}

static void expect_in_all_forms(struct depthwise_case *t, size_t out_height)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    const size_t variants = simd_variants(all);
    for (size_t v = 0; v < variants; v++)
        for (size_t e = 0; e < COUNT_OF(endings); e++)
            for (int form = 0; form < 3; form++) {
                t->d.bf16 = form > 0;
                t->d.narrow_result = form > 1;
                expect_depthwise(all[v], t, &endings[e], out_height);
            }
}

Test(kernels, depthwise_of_floats_agrees_with_plain_loops)
{
    static struct depthwise_case t;
    fill(t.x, COUNT_OF(t.x), 1);
    fill(t.weights, COUNT_OF(t.weights), 2);
    fill(t.bias, COUNT_OF(t.bias), 3);
    for (size_t i = 0; i < COUNT_OF(t.x); i++)
        t.narrow_x[i] = float_to_bfloat16(t.x[i]);
    for (size_t n = 0; n < 3 * 2 * COUNT_OF(images); n++) {
        const struct image_case *image = &images[n / 6];
        t.d = (struct depthwise){.channels = CHANNELS,
                                 .height = image->height,
                                 .width = image->width,
                                 .out_width = image->out_width,
                                 .kernel_height = image->kernel_height,
                                 .kernel_width = 3 + 2 * (n % 3),
                                 .stride_y = image->stride_y,
                                 .stride_x = 1 + n / 3 % 2,
                                 .pad_top = image->pad_top,
                                 .pad_left = image->pad_left,
                                 .weights = t.packed,
                                 .bias = n / 6 % 2 ? NULL : t.bias,
                                 .row = {.alpha = 1}};
        for (size_t i = 0; i < image->out_height * image->out_width * CHANNELS; i++)
            t.expected[i] = plain_sum(&t, i / CHANNELS / image->out_width,
                                      i / CHANNELS % image->out_width, i % CHANNELS);
        expect_in_all_forms(&t, image->out_height);
    }
}

/* ---- the matrix product ---- */

enum { MOST_ROWS = 33, MOST_COLUMNS = 70, MOST_K = 1600 };

struct product_case {
    float a[MOST_ROWS * MOST_K], b[MOST_K * MOST_COLUMNS], bias[MOST_COLUMNS];
    float before[MOST_ROWS * MOST_COLUMNS], y[MOST_ROWS * MOST_COLUMNS], packed[MOST_K * 96];
    double sums[MOST_ROWS * MOST_COLUMNS];
};

/* How the numbers of a product lie: `run` as in struct gemm, with runs of a row 3 numbers apart. */
struct product_size {
    size_t m, k, n, run;
};

static void expect_product(const struct simd_kernels *kernels, struct product_case *t,
                           const struct product_size *s, const struct ending_case *e, bool adds)
{
    const size_t step = s->run ? s->run + 3 : 0, count = s->m * s->n;
    struct gemm g = {.a = t->a,
                     .b = t->packed,
                     .bias = adds ? NULL : t->bias,
                     .c = t->y,
                     .lda = s->run ? s->k / s->run * step : s->k,
                     .ldc = s->n,
                     .k = s->k,
                     .n = s->n,
                     .run = s->run,
                     .run_step = step,
                     .accumulate = adds,
                     .row = {.activation = e->activation, .alpha = e->alpha, .beta = e->beta}};
    const size_t panel = kernels->gemm_columns;
    cr_assert_leq((s->n + panel - 1) / panel * panel * s->k, COUNT_OF(t->packed));
    const int64_t k = (int64_t)s->k, n = (int64_t)s->n;
    const struct strided_layout given = {DTYPE_F32, 2, {k, n}, {n, 1}};
    const struct packed_layout packed = {.simd = kernels,
                                         .parts = 1,
                                         .k = s->k,
                                         .n = s->n,
                                         .run = s->k,
                                         .whole_run = s->k,
                                         .matrix = true};
    pack_weights(&given, t->b, &packed, t->packed);
    memcpy(t->y, t->before, sizeof t->y);
    const size_t copies = kernels->gemm_copies(&g, s->m);
    g.copies = copies ? malloc(copies * sizeof *g.copies) : NULL;
    kernels->gemm(&g, s->m);
    free(g.copies);
    for (size_t i = 0; i < count; i++) {
        const double other = (double)(adds ? t->before[i] : t->bias[i % s->n]);
        const double wanted = ended(e, t->sums[i] + other);
        cr_assert(is_near((double)t->y[i], wanted, 4e-6),
                  "%s %zu x %zu x %zu, activation %d: %zu is %g, not %g", kernels->name, s->m, s->k,
                  s->n, e->activation, i, (double)t->y[i], wanted);
    }
}

static void expect_size(struct product_case *t, const struct product_size *s)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    const size_t variants = simd_variants(all);
    const size_t run = s->run ? s->run : s->k, apart = s->run ? run + 3 : run;
    for (size_t i = 0; i < s->m * s->n; i++) {
        t->sums[i] = 0;
        for (size_t p = 0; p < s->k; p++)
            t->sums[i] +=
                (double)t->a[i / s->n * (s->k / run * apart) + p / run * apart + p % run] *
                (double)t->b[p * s->n + i % s->n];
    }
    for (size_t v = 0; v < variants; v++)
        for (size_t e = 0; e < COUNT_OF(endings); e++)
            expect_product(all[v], t, s, &endings[e], (e + s->m) % 2);
}

Test(kernels, rows_that_share_a_set_of_the_cache_are_copied)
{
    for (size_t v = 0; simd_at(v); v++) {
        const bool tall = simd_at(v)->gemm_rows > 8; /* the ways of the first-level cache */
        cr_expect_eq(simd_at(v)->gemm_copies(&(struct gemm){.lda = 2048, .k = 2048}, 100) > 0,
                     tall);
        cr_expect_eq(simd_at(v)->gemm_copies(&(struct gemm){.lda = 2048, .k = 2048}, 8), 0);
        cr_expect_eq(simd_at(v)->gemm_copies(&(struct gemm){.lda = 2000, .k = 2000}, 100), 0);
    }
}

Test(kernels, matrix_products_of_every_height_and_width)
{
    static struct product_case t;
    /* many weights, which are fetched ahead; rows of several runs; rows that are copied */
    static const struct product_size sizes[] = {
        {33, 1600, 70, 0}, {9, 24, 17, 8}, {3, 1600, 64, 0}, {33, 1024, 70, 0}, {10, 1024, 3, 0}};
    fill(t.a, COUNT_OF(t.a), 4);
    fill(t.b, COUNT_OF(t.b), 5);
    fill(t.bias, COUNT_OF(t.bias), 6);
    fill(t.before, COUNT_OF(t.before), 7);
    for (size_t m = 1; m <= MOST_ROWS; m++)
        for (size_t n = 1 + m % 3; n <= MOST_COLUMNS; n += 9)
            expect_size(&t, &(struct product_size){m, 5, n, 0});
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        expect_size(&t, &sizes[i]);
}

/* ---- rows of 8-bit integers ---- */

enum { ROW_NUMBERS = 70, ROWS = 3, ROW_STEP = ROW_NUMBERS + 5 };

static double stored(const void *row, enum dtype dtype, size_t i)
{
    return dtype == DTYPE_F32  ? (double)((const float *)row)[i]
           : dtype == DTYPE_I8 ? ((const int8_t *)row)[i]
                               : ((const uint8_t *)row)[i];
}

/* Scales and shifts are multiples of 1/4, so that halves are exact, and rounded to even. */
static void expect_scaled(const struct simd_kernels *kernels, enum dtype from, enum dtype to,
                          size_t n)
{
    _Alignas(16) unsigned char x[ROWS * ROW_STEP * 4], y[ROWS * ROW_STEP * 4];
    float scale[ROW_NUMBERS], shift[ROW_NUMBERS];
    unsigned state = (unsigned)n;
    const struct scale_rows s = {.scale = scale,
                                 .shift = shift,
                                 .low = to == DTYPE_U8 ? 3 : -100,
                                 .high = to == DTYPE_U8 ? 250 : 90,
                                 .x_step = ROW_STEP,
                                 .y_step = ROW_STEP};
    fill(scale, n, 8);
    fill(shift, n, 9);
    if (from == DTYPE_F32)
        fill((float *)(void *)x, ROWS * ROW_STEP, 10);
    for (size_t i = 0; from != DTYPE_F32 && i < ROWS * ROW_STEP; i++)
        x[i] = (unsigned char)next(&state);
    memset(y, 0xa5, sizeof y);
    kernels->scale_rows(&s, x, from, y, to, ROWS, n);
    for (size_t i = 0; i < ROWS * ROW_STEP; i++) {
        const size_t c = i % ROW_STEP;
        if (c >= n) {
            cr_assert(to == DTYPE_F32 || y[i] == 0xa5, "%s: byte %zu behind a row", kernels->name,
                      i);
            continue;
        }
        const double v = stored(x, from, i) * (double)scale[c] + (double)shift[c];
        const double clamped = fmin(fmax(v, (double)s.low), (double)s.high);
        const double wanted = to == DTYPE_F32 ? clamped : rint(clamped);
        cr_assert_eq(stored(y, to, i), wanted, "%s, %s to %s, %zu of %zu: %g, not %g",
                     kernels->name, dtype_name(from), dtype_name(to), i, n, stored(y, to, i),
                     wanted);
    }
}

Test(kernels, rows_of_8_bits_are_scaled)
{
    static const enum dtype pairs[][2] = {
        {DTYPE_U8, DTYPE_U8},  {DTYPE_I8, DTYPE_I8},  {DTYPE_U8, DTYPE_I8},  {DTYPE_I8, DTYPE_U8},
        {DTYPE_U8, DTYPE_F32}, {DTYPE_I8, DTYPE_F32}, {DTYPE_F32, DTYPE_U8}, {DTYPE_F32, DTYPE_I8},
    };
    for (size_t v = 0; simd_at(v); v++)
        for (size_t p = 0; p < COUNT_OF(pairs); p++)
            for (size_t n = 1; n <= ROW_NUMBERS; n += 1 + n / 9)
                expect_scaled(simd_at(v), pairs[p][0], pairs[p][1], n);
}

/* The limits that are given count, too; NaN does not. */
Test(kernels, ranges_of_rows)
{
    float x[ROW_NUMBERS];
    fill(x, ROW_NUMBERS, 11);
    x[3] = NAN;
    for (size_t v = 0; simd_at(v); v++)
        for (size_t n = 1; n <= ROW_NUMBERS; n++)
            for (int given = 0; given < 2; given++) {
                const float most_given = given ? 1000.0f : 0;
                float least = -most_given, most = most_given, low = least, high = most;
                for (size_t i = 0; i < n; i++) {
                    least = fminf(least, x[i]);
                    most = fmaxf(most, x[i]);
                }
                simd_at(v)->range(x, n, &low, &high);
                cr_assert(low == least && high == most, "%s, %zu: %g to %g", simd_at(v)->name, n,
                          (double)low, (double)high);
            }
}

enum { ITEMS = 5000 };

static void count_items(void *context, size_t begin, size_t end)
{
    cr_expect(begin < end && end <= ITEMS);
    cr_expect_lt(forkjoin_member(), forkjoin_members());
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add((atomic_int *)context + i, 1);
}

Test(parallel, more_threads_than_shares)
{
    static atomic_int times[ITEMS];
    const int threads[] = {PARALLEL_SHARES - 1, PARALLEL_SHARES, PARALLEL_SHARES + 1, 100};
    const size_t items[] = {2, PARALLEL_SHARES + 1, 99, ITEMS};
    for (size_t t = 0; t < COUNT_OF(threads); t++)
        for (size_t n = 0; n < COUNT_OF(items); n++) {
            memset(times, 0, sizeof times);
            parallel_for(threads[t], items[n], 10000, count_items, times);
            for (size_t i = 0; i < ITEMS; i++)
                cr_assert_eq(times[i], i < items[n], "%d threads, item %zu of %zu: %d times",
                             threads[t], i, items[n], times[i]);
        }
}
