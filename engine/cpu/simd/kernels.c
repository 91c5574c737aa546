/* Compiled three times (meson.build): SIMD_VARIANT names the variant, the compiler's -m flags
 * decide the width. The loops are written so that gcc and clang vectorise them: no branches, no
 * libm, selects instead. Reductions keep LANES partial sums, because float addition may not be
 * reordered by the compiler. */
#include "engine/cpu/simd/variant.h"

#include <math.h>
#include <string.h>

#define LANES 16

static inline float from_bits(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } both = {.u = bits};
    return both.f;
}

static inline uint32_t to_bits(float value)
{
    union {
        float f;
        uint32_t u;
    } both = {.f = value};
    return both.u;
}

/* e^x: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r (Cephes' expf), times 2^n put together in
 * the exponent. Greatest error about 2 ulp. 0 below -87.33 (no subnormal results), inf above 88.72.
 */
static inline float exp_of(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float clamped = x < -87.3365447505f ? -87.3365447505f : x;
    clamped = clamped > 88.3762626647f ? 88.3762626647f : clamped;
    float shifted = clamped * 1.44269504088896341f + magic;
    uint32_t n = to_bits(shifted) - to_bits(magic);
    float count = shifted - magic;
    float r = clamped - count * 0.693359375f + count * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float result = p * from_bits((n + 127) << 23);
    result = x < -87.3365447505f ? 0.0f : result;
    /* between the clamp and overflow the true value is within a factor of e of it */
    result = x > 88.3762626647f ? (float)INFINITY : result;
    return x != x ? x : result;
}

static inline float sigmoid_of(float x)
{
    return 1.0f / (1.0f + exp_of(-x));
}

/* tanh: odd polynomial near 0 (Cephes' tanhf), 1 - 2 / (e^2x + 1) beyond. */
static inline float tanh_of(float x)
{
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = p * z * x + x;
    float magnitude = x < 0 ? -x : x;
    float large = 1.0f - 2.0f / (exp_of(magnitude + magnitude) + 1.0f);
    large = x < 0 ? -large : large;
    return magnitude < 0.625f ? small : large;
}

/* erf on [-4, 4] as a rational function (coefficients as in Eigen's generic_fast_erf_float),
 * greatest error a few ulp; beyond 4 it is ±1 in float32. */
static inline float erf_of(float x)
{
    float c = x < -4.0f ? -4.0f : x;
    c = c > 4.0f ? 4.0f : c;
    float z = c * c;
    float p = -2.72614225801306e-10f;
    p = p * z + 2.77068142495902e-08f;
    p = p * z - 2.10102402082508e-06f;
    p = p * z - 5.69250639462346e-05f;
    p = p * z - 7.34990630326855e-04f;
    p = p * z - 2.95459980854025e-03f;
    p = p * z - 1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * z - 2.13374055278905e-04f;
    q = q * z - 1.68282697438203e-03f;
    q = q * z - 7.37332916720468e-03f;
    q = q * z - 1.42647390514189e-02f;
    return c * p / q;
}

#define EACH(expression)                                                                           \
    for (size_t i = 0; i < n; i++) {                                                               \
        float v = x[i];                                                                            \
        y[i] = (expression);                                                                       \
    }                                                                                              \
    break

static void activate(const float *x, float *y, size_t n, enum activation activation, float alpha,
                     float beta)
{
    switch (activation) {
    case ACTIVATION_NONE:
        if (x != y)
            memcpy(y, x, n * sizeof *y);
        break;
    case ACTIVATION_RELU:
        EACH(v < 0 ? 0 : v);
    case ACTIVATION_LEAKY_RELU:
        EACH(v < 0 ? v * alpha : v);
    case ACTIVATION_CLIP:
        for (size_t i = 0; i < n; i++) {
            float v = x[i];
            v = v < alpha ? alpha : v;
            y[i] = v > beta ? beta : v;
        }
        break;
    case ACTIVATION_SIGMOID:
        EACH(sigmoid_of(v));
    case ACTIVATION_HARD_SIGMOID:
        for (size_t i = 0; i < n; i++) {
            float v = x[i] * alpha + beta;
            v = v < 0 ? 0 : v;
            y[i] = v > 1 ? 1 : v;
        }
        break;
    case ACTIVATION_HARD_SWISH:
        for (size_t i = 0; i < n; i++) {
            float gate = x[i] * (1.0f / 6) + 0.5f;
            gate = gate < 0 ? 0 : gate;
            gate = gate > 1 ? 1 : gate;
            y[i] = x[i] * gate;
        }
        break;
    case ACTIVATION_SILU:
        EACH(v * sigmoid_of(alpha * v));
    case ACTIVATION_GELU:
        EACH(0.5f * v * (1.0f + erf_of(v * 0.70710678118654752f)));
    case ACTIVATION_GELU_TANH:
        EACH(0.5f * v * (1.0f + tanh_of(0.79788456080286536f * (v + 0.044715f * v * v * v))));
    case ACTIVATION_TANH:
        EACH(tanh_of(v));
    case ACTIVATION_ELU:
        EACH(v < 0 ? alpha * (exp_of(v) - 1.0f) : v);
    }
}

#define BINARY_LOOPS(expression)                                                                   \
    if (a_step && b_step) {                                                                        \
        for (size_t i = 0; i < n; i++) {                                                           \
            float p = a[i], q = b[i];                                                              \
            y[i] = (expression);                                                                   \
        }                                                                                          \
    } else if (a_step) {                                                                           \
        const float q = *b;                                                                        \
        for (size_t i = 0; i < n; i++) {                                                           \
            float p = a[i];                                                                        \
            y[i] = (expression);                                                                   \
        }                                                                                          \
    } else {                                                                                       \
        const float p = *a;                                                                        \
        for (size_t i = 0; i < n; i++) {                                                           \
            float q = b_step ? b[i] : *b;                                                          \
            y[i] = (expression);                                                                   \
        }                                                                                          \
    }                                                                                              \
    break

static void binary(enum binary_kind kind, const float *a, int a_step, const float *b, int b_step,
                   float *y, size_t n)
{
    switch (kind) {
    case BINARY_ADD:
        BINARY_LOOPS(p + q);
    case BINARY_SUB:
        BINARY_LOOPS(p - q);
    case BINARY_MUL:
        BINARY_LOOPS(p * q);
    case BINARY_DIV:
        BINARY_LOOPS(p / q);
    case BINARY_MAX: /* numpy: NaN wins */
        BINARY_LOOPS(p > q || p != p ? p : q);
    case BINARY_MIN:
        BINARY_LOOPS(p < q || p != p ? p : q);
    }
}

static void scale_shift(const float *x, const float *scale, const float *shift, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale[i] + shift[i];
}

static inline float widen(uint16_t x)
{
    return from_bits((uint32_t)x << 16);
}

static inline uint16_t narrow(float x)
{
    uint32_t bits = to_bits(x);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

#define BLOCK 64 /* channels summed up at a time */

static void pool_max_bf16(const uint16_t *const *taps, size_t count, uint16_t *y, size_t n)
{
    for (size_t c = 0; c < n; c += BLOCK) {
        size_t width = n - c < BLOCK ? n - c : BLOCK;
        float best[BLOCK];
        for (size_t i = 0; i < width; i++)
            best[i] = widen(taps[0][c + i]);
        for (size_t t = 1; t < count; t++) {
            const uint16_t *tap = taps[t] + c;
            for (size_t i = 0; i < width; i++)
                best[i] = widen(tap[i]) > best[i] ? widen(tap[i]) : best[i];
        }
        for (size_t i = 0; i < width; i++)
            y[c + i] = narrow(best[i]);
    }
}

static void pool_sum_bf16(const uint16_t *const *taps, size_t count, float factor, uint16_t *y,
                          size_t n)
{
    for (size_t c = 0; c < n; c += BLOCK) {
        size_t width = n - c < BLOCK ? n - c : BLOCK;
        float sum[BLOCK] = {0};
        for (size_t t = 0; t < count; t++) {
            const uint16_t *tap = taps[t] + c;
            for (size_t i = 0; i < width; i++)
                sum[i] += widen(tap[i]);
        }
        for (size_t i = 0; i < width; i++)
            y[c + i] = narrow(sum[i] * factor);
    }
}

static void accumulate(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static float row_max(const float *x, size_t n)
{
    float best[LANES], result = -INFINITY;
    for (size_t k = 0; k < LANES; k++)
        best[k] = -INFINITY;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            best[k] = x[i + k] > best[k] ? x[i + k] : best[k];
    for (size_t k = 0; k < LANES; k++)
        result = best[k] > result ? best[k] : result;
    for (; i < n; i++)
        result = x[i] > result ? x[i] : result;
    return result;
}

static float row_sum(const float *x, size_t n)
{
    float partial[LANES] = {0}, result = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            partial[k] += x[i + k];
    for (size_t k = 0; k < LANES; k++)
        result += partial[k];
    for (; i < n; i++)
        result += x[i];
    return result;
}

static float row_square_sum(const float *x, float mean, size_t n)
{
    float partial[LANES] = {0}, result = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            partial[k] += (x[i + k] - mean) * (x[i + k] - mean);
    for (size_t k = 0; k < LANES; k++)
        result += partial[k];
    for (; i < n; i++)
        result += (x[i] - mean) * (x[i] - mean);
    return result;
}

static void softmax(const float *x, float *y, size_t n)
{
    float max = row_max(x, n);
    for (size_t i = 0; i < n; i++)
        y[i] = exp_of(x[i] - max);
    float factor = 1.0f / row_sum(y, n);
    for (size_t i = 0; i < n; i++)
        y[i] *= factor;
}

static void layer_norm(const float *x, const float *scale, const float *bias, float epsilon,
                       float *y, size_t n)
{
    float mean = row_sum(x, n) / (float)n;
    float factor = 1.0f / sqrtf(row_square_sum(x, mean, n) / (float)n + epsilon);
    if (scale && bias)
        for (size_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * factor * scale[i] + bias[i];
    else
        for (size_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * factor * (scale ? scale[i] : 1.0f) + (bias ? bias[i] : 0.0f);
}

static void widen_bf16(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = widen(x[i]);
}

static void narrow_bf16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = narrow(x[i]);
}

const struct simd_kernels SIMD_JOIN(simd, SIMD_VARIANT) = {
    .name = SIMD_TEXT(SIMD_VARIANT),
    .activate = activate,
    .binary = binary,
    .scale_shift = scale_shift,
    .gemm = SIMD_NAMED(gemm),
    .gemm_pack = SIMD_NAMED(gemm_pack),
    .gemm_packed = SIMD_NAMED(gemm_packed),
    .gemm_rows = GEMM_ROWS,
    .gemm_columns = GEMM_COLUMNS,
    .winograd_source = SIMD_NAMED(winograd_source),
    .winograd_sink = SIMD_NAMED(winograd_sink),
    .sum_rows = SIMD_NAMED(sum_rows),
    .pool_max = SIMD_NAMED(pool_max),
    .pool_sum = SIMD_NAMED(pool_sum),
    .pool_max_bf16 = pool_max_bf16,
    .pool_sum_bf16 = pool_sum_bf16,
    .accumulate = accumulate,
    .softmax = softmax,
    .layer_norm = layer_norm,
    .widen_bf16 = widen_bf16,
    .narrow_bf16 = narrow_bf16,
};
