/* This file is compiled once per variant (meson.build): SIMD_VARIANT names the variant, the
 * compiler's -m flags decide the width. The loops are written so that gcc and clang vectorise them:
 * no libm, and selects instead of branches. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#include <math.h>
#include <string.h>

#include "engine/base/float_bits.h"

#define BINARY_LOOPS(expression)                                                                   \
    for (; rows > 0; rows--, a += r->a_row, b += r->b_row, y += n)                                 \
        if (a_step && b_step) {                                                                    \
            for (size_t i = 0; i < n; i++) {                                                       \
                float p = a[i], q = b[i];                                                          \
                y[i] = (expression);                                                               \
            }                                                                                      \
        } else if (a_step) {                                                                       \
            const float q = *b;                                                                    \
            for (size_t i = 0; i < n; i++) {                                                       \
                float p = a[i];                                                                    \
                y[i] = (expression);                                                               \
            }                                                                                      \
        } else {                                                                                   \
            const float p = *a;                                                                    \
            for (size_t i = 0; i < n; i++) {                                                       \
                float q = b_step ? b[i] : *b;                                                      \
                y[i] = (expression);                                                               \
            }                                                                                      \
        }                                                                                          \
    break

static void binary_rows(const struct binary_rows *r, const float *a, const float *b, float *y,
                        size_t rows, size_t n)
{
    const int a_step = r->a_step, b_step = r->b_step;
    switch (r->kind) {
    case BINARY_ADD:
        BINARY_LOOPS(p + q);
    case BINARY_SUB:
        BINARY_LOOPS(p - q);
    case BINARY_MUL:
        BINARY_LOOPS(p * q);
    case BINARY_DIV:
        BINARY_LOOPS(p / q);
    case BINARY_MAX: /* as in numpy, NaN wins */
        BINARY_LOOPS(p > q || p != p ? p : q);
    case BINARY_MIN:
        BINARY_LOOPS(p < q || p != p ? p : q);
    case BINARY_PRELU:
        BINARY_LOOPS(p < 0 ? p * q : p);
    }
}

static void binary(enum binary_kind kind, const float *a, int a_step, const float *b, int b_step,
                   float *y, size_t n)
{
    binary_rows(&(struct binary_rows){kind, a_step, b_step, 0, 0}, a, b, y, 1, n);
}

static void widen_bf16(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = bfloat16_to_float(x[i]);
}

static void narrow_bf16(const float *x, uint16_t *y, size_t n)
{
#if defined __AVX512BF16__
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_narrow_n(y + i, vec_load(x + i), VEC);
    vec_narrow_n(y + i, vec_load_n(x + i, n - i), n - i);
#else
    for (size_t i = 0; i < n; i++)
        y[i] = float_to_bfloat16(x[i]);
#endif
}

static void widen_8bit(const uint8_t *x, uint8_t flip, int zero, int16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (int16_t)((x[i] ^ flip) - zero);
}

static void widen_f16(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = half_to_float(x[i]);
}

static void narrow_f16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = float_to_half(x[i]);
}

#if defined __ARM_FEATURE_MATMUL_INT8
#define DOT_NEIGHBOURS 8
#define TILE_BYTES     8
#else
#define TILE_BYTES     4
#define DOT_NEIGHBOURS 4
#endif

#define ENTER_NAMED(name)  .name = SIMD_NAMED(name),
#define ENTER_COMMON(name) .name = SIMD_COMMON(name),

const struct simd_kernels SIMD_JOIN(simd, SIMD_VARIANT) = {
    .name = SIMD_TEXT(SIMD_VARIANT),
    .gemm_rows = GEMM_ROWS,
    .gemm_columns = GEMM_COLUMNS,
    .tile_rows = TILE_ROWS,
    .tile_columns = (size_t)TILE_REGISTERS * VEC,
    .tile_bytes = TILE_BYTES,
    .depthwise_channels = DEPTHWISE_CHANNELS,
    .depthwise_rows = DEPTHWISE_ROWS,
    .binary = binary,
    .binary_rows = binary_rows,
    .widen_bf16 = widen_bf16,
    .narrow_bf16 = narrow_bf16,
    .widen_8bit = widen_8bit,
    .widen_f16 = widen_f16,
    .narrow_f16 = narrow_f16,
    /* clang-format off */
    SIMD_NAMED_KERNELS(ENTER_NAMED)
    SIMD_COMMON_KERNELS(ENTER_COMMON)
/* clang-format on */
#if defined __AVX2__ || defined __ARM_FEATURE_DOTPROD
        .tile_dot = SIMD_COMMON(tile_dot),
    .dot_neighbours = DOT_NEIGHBOURS,
#endif
#if defined __ARM_FEATURE_DOTPROD && !defined __ARM_FEATURE_MATMUL_INT8
    .dot_is_signed = true,
#endif
#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    .tile_bf16 = SIMD_NAMED(tile_bf16),
#endif
};
