/* Products of matrices of bfloat16 with sums of float32, compiled for the instruction sets that add
 * two products of bfloat16 to a float32. Two neighbours of a column lie together, in panels of
 * COLUMNS columns; a block of ROWS x 2 registers of sums stays in registers while k goes by. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC

#define COLUMNS GEMM_COLUMNS
#define ROWS    8

#if defined __AVX512BF16__

ALWAYS_INLINE vec add_two(vec sum, uint32_t two, const uint16_t *w)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)two),
                            (__m512bh)_mm512_loadu_si512(w));
}

#else

ALWAYS_INLINE vec add_two(vec sum, uint32_t two, const uint16_t *w)
{
    return vbfdotq_f32(sum, vreinterpretq_bf16_u32(vdupq_n_u32(two)),
                       vreinterpretq_bf16_u16(vld1q_u16(w)));
}

#endif

/* rows is a constant where this is inlined, so that sums are registers. */
ALWAYS_INLINE void gemm_bf16_block(const struct gemm_bf16 *g, const uint16_t *a, const uint16_t *b,
                                   float *c, const int rows)
{
    vec sum[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        sum[r][0] = vec_load(c + (size_t)r * g->ldc);
        sum[r][1] = vec_load(c + (size_t)r * g->ldc + VEC);
    }
    for (size_t p = 0; p < g->k; p += 2, b += COLUMNS * 2) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            uint32_t two;
            memcpy(&two, a + (size_t)r * g->lda + p, sizeof two);
            sum[r][0] = add_two(sum[r][0], two, b);
            sum[r][1] = add_two(sum[r][1], two, b + VEC * 2);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vec_store(c + (size_t)r * g->ldc, sum[r][0]);
        vec_store(c + (size_t)r * g->ldc + VEC, sum[r][1]);
    }
}

void SIMD_NAMED(gemm_bf16)(const struct gemm_bf16 *g, size_t m)
{
    const uint16_t *a = g->a;
    float *c = g->c;
    for (size_t rows; m; m -= rows, a += rows * g->lda, c += rows * g->ldc) {
        rows = m >= ROWS ? ROWS : m >= 4 ? 4 : m >= 2 ? 2 : 1;
        for (size_t j = 0; j < g->n; j += COLUMNS) {
            const uint16_t *b = g->b + j * g->k;
            if (rows == ROWS)
                gemm_bf16_block(g, a, b, c + j, ROWS);
            else if (rows == 4)
                gemm_bf16_block(g, a, b, c + j, 4);
            else if (rows == 2)
                gemm_bf16_block(g, a, b, c + j, 2);
            else
                gemm_bf16_block(g, a, b, c + j, 1);
        }
    }
}

#endif
