/* Products of matrices of 8-bit integers with sums of 32 bits, compiled once per instruction set.
 *
 * Weights lie in panels of COLUMNS columns, a few neighbours of a column together: two that are
 * widened to 16 bits (every instruction set multiplies and adds pairs of those, exactly), or four
 * for the instructions that add four products of bytes (VNNI, NEON's dot product), or eight for
 * those that multiply 2 x 8 by 8 x 2 bytes (i8mm). A block of ROWS x 2 registers of sums stays in
 * registers while k goes by. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_8bit.h"

#define COLUMNS GEMM_COLUMNS
#if GEMM_ROWS > 6
#define ROWS 8
#else
#define ROWS 6
#endif

/* One kernel. rows is a constant where its block is inlined, so that sums are registers. */
#define GEMM_8BIT(kind, attribute, neighbours)                                                     \
    ALWAYS_INLINE attribute void kind##_block(const struct gemm_8bit *g, const unsigned char *a,   \
                                              const int8_t *b, int32_t *c, const int rows)         \
    {                                                                                              \
        ints sum[ROWS][2];                                                                         \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] =             \
            ints_zero();                                                                           \
        for (size_t p = 0; p < g->k; p += (neighbours), a += 4) {                                  \
            const __typeof__(load_##kind(b)) w0 = load_##kind(b);                                  \
            const __typeof__(w0) w1 = load_##kind(b + VEC * (neighbours));                         \
            b += COLUMNS * (neighbours);                                                           \
            _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                 \
            {                                                                                      \
                const ints x = ints_repeat(a + (size_t)r * g->lda);                                \
                sum[r][0] = add_##kind(sum[r][0], x, w0);                                          \
                sum[r][1] = add_##kind(sum[r][1], x, w1);                                          \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                     \
        {                                                                                          \
            ints_store(c + (size_t)r * g->ldc, sum[r][0]);                                         \
            ints_store(c + (size_t)r * g->ldc + VEC, sum[r][1]);                                   \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    attribute void SIMD_NAMED(gemm_##kind)(const struct gemm_8bit *g, size_t m)                    \
    {                                                                                              \
        const unsigned char *a = g->a;                                                             \
        int32_t *c = g->c;                                                                         \
        for (size_t rows; m; m -= rows, a += rows * g->lda, c += rows * g->ldc) {                  \
            rows = m >= ROWS ? ROWS : m >= 4 ? 4 : m >= 2 ? 2 : 1;                                 \
            for (size_t j = 0; j < g->n; j += COLUMNS) {                                           \
                const int8_t *b = g->b + j * g->k;                                                 \
                if (rows == ROWS)                                                                  \
                    kind##_block(g, a, b, c + j, ROWS);                                            \
                else if (rows == 4)                                                                \
                    kind##_block(g, a, b, c + j, 4);                                               \
                else if (rows == 2)                                                                \
                    kind##_block(g, a, b, c + j, 2);                                               \
                else                                                                               \
                    kind##_block(g, a, b, c + j, 1);                                               \
            }                                                                                      \
        }                                                                                          \
    }

GEMM_8BIT(pairs, , 2)
#if defined DOT && !defined __ARM_FEATURE_MATMUL_INT8
GEMM_8BIT(dot, DOT, 4)
#endif

#if defined __ARM_FEATURE_MATMUL_INT8

/* Two rows at a time, `down` bytes apart: a register holds the sums of both in two columns. */
ALWAYS_INLINE void pairs_of_rows(const struct gemm_8bit *g, const uint8_t *a, const int8_t *b,
                                 size_t down, int32x4_t sum[4][COLUMNS / 2], const int pairs)
{
#pragma GCC unroll 4
    for (int r = 0; r < pairs; r++)
#pragma GCC unroll 4
        for (int q = 0; q < COLUMNS / 2; q++)
            sum[r][q] = vdupq_n_s32(0);
    for (size_t p = 0; p < g->k; p += 8, b += COLUMNS * 8)
#pragma GCC unroll 4
        for (int r = 0; r < pairs; r++) {
            const uint8_t *row = a + (size_t)(2 * r) * g->lda + p;
            const uint8x16_t x = vcombine_u8(vld1_u8(row), vld1_u8(row + down));
#pragma GCC unroll 4
            for (int q = 0; q < COLUMNS / 2; q++)
                sum[r][q] = vusmmlaq_s32(sum[r][q], x, vld1q_s8(b + q * 16));
        }
}

ALWAYS_INLINE void store_pair(const int32x4_t sum[COLUMNS / 2], int32_t *c, int32_t *second)
{
#pragma GCC unroll 4
    for (int q = 0; q < COLUMNS / 2; q++) {
        vst1_s32(c + 2 * q, vget_low_s32(sum[q]));
        if (second)
            vst1_s32(second + 2 * q, vget_high_s32(sum[q]));
    }
}

void SIMD_NAMED(gemm_dot)(const struct gemm_8bit *g, size_t m)
{
    const uint8_t *a = g->a;
    int32_t *c = g->c;
    for (size_t rows; m; m -= rows, a += rows * g->lda, c += rows * g->ldc) {
        rows = m >= ROWS ? ROWS : m >= 2 ? 2 : 1;
        for (size_t j = 0; j < g->n; j += COLUMNS) {
            int32x4_t sum[4][COLUMNS / 2];
            const int8_t *b = g->b + j * g->k;
            if (rows == ROWS)
                pairs_of_rows(g, a, b, g->lda, sum, ROWS / 2);
            else
                pairs_of_rows(g, a, b, rows == 2 ? g->lda : 0, sum, 1);
            for (size_t r = 0; r < rows; r += 2)
                store_pair(sum[r / 2], c + r * g->ldc + j,
                           r + 1 < rows ? c + (r + 1) * g->ldc + j : NULL);
        }
    }
}

#endif

/* Sums become stored bytes: times the scale, rounded half to even, plus the zero point, saturated.
 */
void SIMD_NAMED(finish_8bit)(const int32_t *sums, const int32_t *bias, const float *scales,
                             size_t n, int zero, bool is_signed, void *y)
{
    const float low = (float)((is_signed ? -128 : 0) - zero), high = low + 255;
    const float magic = 12582912.0f; /* 1.5 * 2^23: float32 arithmetic then rounds at the unit */
    uint8_t *to = y;
    for (size_t i = 0; i < n; i++) {
        float q = (float)(int32_t)((uint32_t)sums[i] + (uint32_t)bias[i]) * scales[i];
        q = q > low ? q : low; /* also NaN */
        q = q < high ? q : high;
        to[i] = (uint8_t)((int)((q + magic) - magic) + zero);
    }
}

void SIMD_NAMED(scale_8bit)(const int32_t *sums, const int32_t *bias, const float *scales, size_t n,
                            float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(int32_t)((uint32_t)sums[i] + (uint32_t)bias[i]) * scales[i];
}
