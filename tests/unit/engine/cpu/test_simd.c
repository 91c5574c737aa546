/* The row kernels against libm, in every variant this CPU runs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/float_bits.h"
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/kernels/vec_math.h"
#include "tests/unit/engine/cpu/simd_variants.h"

static double reference(enum activation activation, double x, double alpha, double beta)
{
    double gate;
    switch (activation) {
    case ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    case ACTIVATION_LEAKY_RELU:
        return x < 0 ? alpha * x : x;
    case ACTIVATION_CLIP:
        return fmin(fmax(x, alpha), beta);
    case ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-x));
    case ACTIVATION_HARD_SIGMOID:
        return fmin(1, fmax(0, alpha * x + beta));
    case ACTIVATION_HARD_SWISH:
        return x * fmin(1, fmax(0, x / 6 + 0.5));
    case ACTIVATION_SILU:
        return x / (1 + exp(-alpha * x));
    case ACTIVATION_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACTIVATION_GELU_TANH:
        gate = 0.7978845608028654 * (x + 0.044715 * x * x * x);
        return 0.5 * x * (1 + tanh(gate));
    case ACTIVATION_TANH:
        return tanh(x);
    case ACTIVATION_ELU:
        return x < 0 ? alpha * (exp(x) - 1) : x;
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

Test(simd, activations_follow_libm)
{
    enum { N = 4001, MIDDLE = 2000 };
    static float x[N], y[N];
    const struct simd_kernels *all[SIMD_VARIANTS];
    size_t count = simd_variants(all);
    for (size_t i = 0; i < N; i++)
        x[i] = ((float)i - MIDDLE) * 0.013f;
    for (size_t v = 0; v < count; v++) {
        for (int a = ACTIVATION_NONE; a <= ACTIVATION_ELU; a++) {
            all[v]->activate(x, y, N, (enum activation)a, 0.3f, 2.0f);
            for (size_t i = 0; i < N; i++) {
                double expected = reference((enum activation)a, (double)x[i], (double)0.3f, 2.0);
                double tolerance = 2e-6 * fmax(0.5, fabs(expected));
                cr_assert(fabs((double)y[i] - expected) <= tolerance,
                          "%s activation %d at %g: %.9g, expected %.9g", all[v]->name, a,
                          (double)x[i], (double)y[i], expected);
            }
        }
    }
}

Test(simd, activations_at_the_edges)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    size_t count = simd_variants(all);
    const float x[] = {NAN, INFINITY, -INFINITY, 200.0f, -200.0f, 0.0f, -0.0f, 88.5f};
    float y[COUNT_OF(x)];
    for (size_t v = 0; v < count; v++) {
        all[v]->activate(x, y, COUNT_OF(x), ACTIVATION_SIGMOID, 0, 0);
        cr_expect(isnan(y[0]));
        cr_expect_eq(y[1], 1.0f);
        cr_expect_eq(y[2], 0.0f);
        cr_expect_eq(y[3], 1.0f);
        cr_expect_eq(y[4], 0.0f);
        cr_expect_eq(y[5], 0.5f);
        all[v]->activate(x, y, COUNT_OF(x), ACTIVATION_TANH, 0, 0);
        cr_expect(isnan(y[0]));
        cr_expect_eq(y[1], 1.0f);
        cr_expect_eq(y[2], -1.0f);
        all[v]->activate(x, y, COUNT_OF(x), ACTIVATION_RELU, 0, 0);
        cr_expect(isnan(y[0]), "%s: ReLU must not hide NaN", all[v]->name);
        all[v]->activate(x, y, COUNT_OF(x), ACTIVATION_CLIP, 0, 6);
        cr_expect(isnan(y[0]), "%s: Clip must not hide NaN", all[v]->name);
        all[v]->activate(x, y, COUNT_OF(x), ACTIVATION_GELU, 0, 0);
        cr_expect(isnan(y[0]));
        cr_expect_eq(y[3], 200.0f);
    }
}

/* The low bits of a NaN reach the exponent of 2^n. */
Test(simd, activations_keep_every_nan)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    const size_t count = simd_variants(all);
    const uint32_t bits[] = {0x7fc00000, 0x7fc00001, 0x7fc0007f, 0xffc000ff, 0xffffffff};
    float x[COUNT_OF(bits)], y[COUNT_OF(bits)];
    memcpy(x, bits, sizeof x);
    for (size_t v = 0; v < count; v++)
        for (int a = ACTIVATION_NONE; a <= ACTIVATION_ELU; a++) {
            all[v]->activate(x, y, COUNT_OF(x), (enum activation)a, 1, 1);
            for (size_t i = 0; i < COUNT_OF(x); i++)
                cr_expect(isnan(y[i]), "%s activation %d of NaN %08x: %g", all[v]->name, a, bits[i],
                          (double)y[i]);
        }
}

/* In the variant that this test is compiled for. The largest number whose e^x is finite is
 * 88.72283. */
Test(simd, exponential_at_the_edges)
{
    const float x[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 88.7228317f, 88.7228394f, -87.34f};
    const float expected[] = {NAN, INFINITY, 0, 1, 1, 3.4027985e38f, INFINITY, 0};
    for (size_t i = 0; i < COUNT_OF(x); i++) {
        const float y = vec_exp(vec_set(x[i]))[0];
        cr_expect(i ? y == expected[i] || fabsf(y / expected[i] - 1) < 1e-6f : isnan(y),
                  "e^%.9g: %.9g", (double)x[i], (double)y);
    }
}

Test(simd, softmax_and_layer_norm_rows)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    size_t count = simd_variants(all);
    for (size_t n = 1; n < 70; n += 3) {
        float x[70], y[70], scale[70], bias[70];
        double sum = 0, mean = 0, variance = 0, squares = 0;
        for (size_t i = 0; i < n; i++) {
            x[i] = (float)((i * 7919) % 23) - 11.0f + (n == 4 ? 1000.0f : 0);
            scale[i] = 0.5f + (float)i * 0.01f;
            bias[i] = (float)i * 0.1f;
        }
        double largest = -INFINITY;
        for (size_t i = 0; i < n; i++)
            largest = fmax(largest, (double)x[i]);
        for (size_t i = 0; i < n; i++) {
            sum += exp((double)x[i] - largest);
            mean += (double)x[i] / (double)n;
            squares += (double)x[i] * (double)x[i] / (double)n;
        }
        for (size_t i = 0; i < n; i++)
            variance += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
        for (size_t v = 0; v < count; v++) {
            all[v]->softmax(x, y, n);
            for (size_t i = 0; i < n; i++)
                cr_assert(fabs((double)y[i] - exp((double)x[i] - largest) / sum) <= 1e-6);
            all[v]->norm_row(x, scale, bias, 1e-5f, false, y, n);
            for (size_t i = 0; i < n; i++) {
                double expected =
                    ((double)x[i] - mean) / sqrt(variance + (double)1e-5f) * (double)scale[i] +
                    (double)bias[i];
                cr_assert(fabs((double)y[i] - expected) <= 2e-5 * (1 + fabs(expected)),
                          "%s n=%zu: %g, expected %g", all[v]->name, n, (double)y[i], expected);
            }
            all[v]->norm_row(x, scale, NULL, 1e-5f, true, y, n);
            for (size_t i = 0; i < n; i++) {
                double expected = (double)x[i] / sqrt(squares + (double)1e-5f) * (double)scale[i];
                cr_assert(fabs((double)y[i] - expected) <= 2e-6 * (1 + fabs(expected)),
                          "%s n=%zu: %g, expected %g", all[v]->name, n, (double)y[i], expected);
            }
        }
    }
}

Test(simd, sums_of_long_rows_keep_their_digits)
{
    enum { MOST = 1 << 20 };
    static const size_t lengths[] = {1, 3136, 4097, 50176, MOST};
    const struct simd_kernels *all[SIMD_VARIANTS];
    const size_t count = simd_variants(all);
    float *x = malloc(MOST * sizeof *x);
    cr_assert(x);
    for (size_t i = 0; i < MOST; i++)
        x[i] = 0.1f;
    for (size_t v = 0; v < count; v++)
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            const double expected = (double)0.1f * (double)lengths[i];
            const double error = (double)all[v]->sum_row(x, lengths[i]) / expected - 1;
            cr_expect(fabs(error) < 1.5e-5, "%s: %zu numbers: %g", all[v]->name, lengths[i], error);
        }
    free(x);
}

Test(simd, bfloat16_rows_round_to_nearest_even)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    size_t count = simd_variants(all);
    float x[100], back[100];
    uint16_t bits[100];
    for (size_t i = 0; i < 100; i++)
        x[i] = (float)(i * i) * 0.3721f - 500.0f;
    x[50] = NAN;
    x[51] = INFINITY;
    for (size_t v = 0; v < count; v++) {
        all[v]->narrow_bf16(x, bits, 100);
        all[v]->widen_bf16(bits, back, 100);
        for (size_t i = 0; i < 100; i++) {
            cr_assert_eq(bits[i], float_to_bfloat16(x[i]), "%s", all[v]->name);
            cr_assert(i == 50 ? isnan(back[i]) : back[i] == bfloat16_to_float(bits[i]));
        }
    }
}

/* Every float16, and what lies at and beside the middle between it and the next one; in the mode in
 * which forward passes run. */
Test(simd, float16_is_that_of_tensors)
{
    enum { HALVES = 65536, BESIDE = 5 };
    const struct simd_kernels *all[SIMD_VARIANTS];
    const size_t count = simd_variants(all);
    uint16_t *halves = malloc(HALVES * BESIDE * sizeof *halves);
    float *x = malloc(HALVES * BESIDE * sizeof *x);
    cr_assert(halves && x);
    const uint64_t mode = cpu_flush_subnormals();
    for (size_t v = 0; v < count; v++) {
        for (size_t i = 0; i < HALVES; i++)
            halves[i] = (uint16_t)i;
        all[v]->widen_f16(halves, x, HALVES);
        for (size_t i = 0; i < HALVES; i++) {
            const float expected = half_to_float((uint16_t)i);
            cr_assert(isnan(expected) ? isnan(x[i]) : float_bits(x[i]) == float_bits(expected),
                      "%s: %zx is %g", all[v]->name, i, (double)x[i]);
        }
        for (size_t i = 0; i < HALVES; i++) {
            const float first = half_to_float((uint16_t)i), next = half_to_float((uint16_t)(i + 1));
            const float middle = first + (next - first) / 2;
            const float beside[BESIDE] = {first, middle, nextafterf(middle, first),
                                          nextafterf(middle, next), middle * 3};
            memcpy(x + i * BESIDE, beside, sizeof beside);
        }
        all[v]->narrow_f16(x, halves, HALVES * BESIDE);
        for (size_t i = 0; i < HALVES * BESIDE; i++)
            cr_assert(isnan(x[i]) ? isnan(half_to_float(halves[i]))
                                  : halves[i] == float_to_half(x[i]),
                      "%s: %a is %x", all[v]->name, (double)x[i], halves[i]);
    }
    cpu_set_float_mode(mode);
    free(halves);
    free(x);
}

/* ---- depthwise convolutions of 8-bit integers ---- */

enum {
    DW_CHANNELS = 19,
    DW_HEIGHT = 11,
    DW_WIDTH = 37,
    DW_MOST = 2 * DW_CHANNELS * DW_HEIGHT * DW_WIDTH
};

struct depthwise_case {
    struct depthwise_8bit d;
    bool x_is_signed;
    uint8_t x[DW_HEIGHT * DW_WIDTH * DW_CHANNELS], y[DW_MOST], expected[DW_MOST];
    int8_t weights[DW_CHANNELS * 7 * 7], packed[1 << 15];
    int32_t bias[64];
    float scales[64];
};

static int dw_source(const struct depthwise_case *t, uint8_t stored)
{
    return t->x_is_signed ? (int8_t)stored : stored;
}

/* A result as the operator is defined; a channel's bias is 1000 times its number. */
static int dw_result(const struct depthwise_case *t, size_t oy, size_t ox, size_t c)
{
    const struct depthwise_8bit *d = &t->d;
    int sum = 1000 * (int)c;
    for (size_t i = 0; i < d->taps * d->taps; i++) {
        const size_t row = oy * d->stride + i / d->taps - d->pad_top;
        const size_t column = ox * d->stride + i % d->taps - d->pad_left;
        if (row < d->height && column < d->width)
            sum += t->weights[c * d->taps * d->taps + i] *
                   (dw_source(t, t->x[(row * d->width + column) * d->channels + c]) -
                    dw_source(t, d->src_zero));
    }
    const int low = d->is_signed ? -128 : 0;
    const float whole = rintf((float)sum * (0.001f + 0.0001f * (float)c)) + (float)d->dst_zero;
    return (int)fminf(fmaxf(whole, (float)low), (float)low + 255);
}

static size_t dw_results(const struct depthwise_8bit *d)
{
    return d->out_height * d->out_width * DW_CHANNELS;
}

static void expect_depthwise(const struct simd_kernels *kernels, struct depthwise_case *t)
{
    struct depthwise_8bit *d = &t->d;
    const size_t lanes = kernels->depthwise_channels, area = d->taps * d->taps;
    const bool wants_signed = d->dot && kernels->dot_is_signed;
    d->flip = t->x_is_signed == wants_signed ? 0 : 0x80;
    d->quads = (d->taps + 3) / 4;
    d->rows = (4 * d->quads - d->taps) / d->stride + 1;
    cr_assert_leq(kernels->depthwise_8bit_pack(d, t->weights, NULL), sizeof t->packed);
    kernels->depthwise_8bit_pack(d, t->weights, t->packed);
    for (size_t i = 0; i < (DW_CHANNELS + lanes - 1) / lanes * lanes; i++) {
        const size_t c = depthwise_first_channel(DW_CHANNELS, i / lanes, lanes) + i % lanes;
        const uint8_t zero = d->src_zero ^ d->flip;
        t->bias[i] = 1000 * (int)c;
        for (size_t w = 0; w < area; w++)
            t->bias[i] -= t->weights[c * area + w] * (wants_signed ? (int8_t)zero : zero);
        t->scales[i] = 0.001f + 0.0001f * (float)c;
    }
    kernels->depthwise_8bit(d, t->x, t->y, 0, d->out_height);
    for (size_t i = 0; i < dw_results(d); i++)
        cr_assert_eq(t->y[i], t->expected[i],
                     "%s %s, %zu taps by %zu, pads %zu %zu: byte %zu is %d, not %d", kernels->name,
                     d->dot ? "dot" : "pairs", d->taps, d->stride, d->pad_top, d->pad_left, i,
                     t->y[i], t->expected[i]);
}

/* By both kernels, so by pairs on a CPU with the instructions for dot, too. */
Test(simd, depthwise_of_8_bits_is_exact)
{
    static struct depthwise_case t;
    unsigned state = 7;
    for (size_t i = 0; i < COUNT_OF(t.x); i++)
        t.x[i] = i % 5 ? (uint8_t)((state = state * 69069 + 1) >> 24) : 255;
    for (size_t i = 0; i < COUNT_OF(t.weights); i++)
        t.weights[i] = (int8_t)(i % 4 ? (int)((state = state * 69069 + 1) >> 24) - 128 : -128);
    t.d = (struct depthwise_8bit){.channels = DW_CHANNELS,
                                  .height = DW_HEIGHT,
                                  .width = DW_WIDTH,
                                  .weights = t.packed,
                                  .bias = t.bias,
                                  .scales = t.scales};
    for (size_t n = 0; n < 3 * 2 * 4 * 4; n++) {
        struct depthwise_8bit *d = &t.d;
        d->taps = 3 + 2 * (n % 3);
        d->stride = 1 + n / 3 % 2;
        d->pad_top = n / 6 % 4 * (d->taps - 1) / 3;
        d->pad_left = (d->taps - 1) - d->pad_top;
        /* what is left at the bottom and on the right differs, too */
        d->out_height = (DW_HEIGHT + d->pad_top + 1 - d->taps) / d->stride + 1;
        d->out_width = (DW_WIDTH + d->pad_left - d->taps) / d->stride + 1;
        t.x_is_signed = n / 24 % 2;
        d->is_signed = n / 48 % 2;
        d->src_zero = t.x_is_signed ? (uint8_t)-11 : 117;
        d->dst_zero = d->is_signed ? 5 : 130;
        for (size_t i = 0; i < dw_results(d); i++)
            t.expected[i] = (uint8_t)dw_result(&t, i / DW_CHANNELS / d->out_width,
                                               i / DW_CHANNELS % d->out_width, i % DW_CHANNELS);
        for (size_t v = 0; simd_at(v); v++)
            for (int dot = 0; dot <= simd_has_dot(simd_at(v)); dot++) {
                d->dot = dot;
                expect_depthwise(simd_at(v), &t);
            }
    }
}
