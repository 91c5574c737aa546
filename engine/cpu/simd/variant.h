/* Private to engine/cpu/simd/: the functions of the variant that is being compiled, which its table
 * in kernels.c names. What they do stands in simd.h. */
#pragma once

#include "engine/cpu/simd/simd.h"

#define SIMD_JOIN_(a, b) a##_##b
#define SIMD_JOIN(a, b)  SIMD_JOIN_(a, b)
#define SIMD_NAMED(name) SIMD_JOIN(SIMD_JOIN(simd, SIMD_VARIANT), name) /* simd_avx2_name */
/* avx512_bf16 is avx512 but for the kernels that write bfloat16, which have an instruction for
 * that: whatever knows no bfloat16 is avx512's own. */
#if defined __AVX512BF16__
#define SIMD_COMMON(name) simd_avx512_##name
#else
#define SIMD_COMMON(name) SIMD_NAMED(name)
#endif
#define SIMD_TEXT_(name) #name
#define SIMD_TEXT(name)  SIMD_TEXT_(name)

/* gemm's block: 32 registers hold 14 x 2 sums, two of weights and a number; 16 hold 6 x 2.
 * A depthwise kernel's: 32 hold 2 x 7 results, 2 x 7 weights and a number; 16 hold 7, 7 and 1. */
#if defined __AVX512F__
#define GEMM_ROWS          14
#define GEMM_COLUMNS       32
#define DEPTHWISE_CHANNELS 16
#define DEPTHWISE_ROWS     2
#elif defined __AVX2__
#define GEMM_ROWS          6
#define GEMM_COLUMNS       16
#define DEPTHWISE_CHANNELS 8
#define DEPTHWISE_ROWS     1
#else
#define GEMM_ROWS          6
#define GEMM_COLUMNS       8
#define DEPTHWISE_CHANNELS 4
#define DEPTHWISE_ROWS     1
#endif

void SIMD_COMMON(gemm)(const struct gemm *g, size_t m);
void SIMD_COMMON(gemm_pack)(const float *w, size_t k_step, size_t n_step, size_t k, size_t n,
                            float *packed);
size_t SIMD_COMMON(gemm_packed)(size_t k, size_t n);

void SIMD_COMMON(pack_rows)(const float *const *rows, size_t n, size_t k, float *packed);
void SIMD_COMMON(pack_columns)(const float *const *rows, size_t k, size_t n, float *packed);
float SIMD_COMMON(score_row)(float *s, size_t n, const float *const *biases, size_t bias_count,
                             float *max);

void SIMD_NAMED(winograd_source)(const struct winograd_tile *tile, const void *x, bool bf16,
                                 size_t channels, float *v, size_t v_step);
void SIMD_NAMED(winograd_sink)(const struct winograd_tile *tile, const struct gemm *g,
                               const float *m, size_t m_step, void *y, bool bf16);

void SIMD_COMMON(activate)(const float *x, float *y, size_t n, enum activation activation,
                           float alpha, float beta);

void SIMD_NAMED(pool_max)(const float *const *taps, size_t count, float *y, size_t n);
void SIMD_NAMED(pool_sum)(const float *const *taps, size_t count, float factor, float *y, size_t n);
void SIMD_NAMED(pool_max_bf16)(const uint16_t *const *taps, size_t count, uint16_t *y, size_t n);
void SIMD_NAMED(pool_sum_bf16)(const uint16_t *const *taps, size_t count, float factor, uint16_t *y,
                               size_t n);
void SIMD_NAMED(accumulate_bf16)(const uint16_t *x, float *y, size_t n);
void SIMD_NAMED(blend)(const float *const *taps, const float *weights, size_t count, float *y,
                       size_t n);
void SIMD_NAMED(sum_rows)(const float *x, size_t rows, size_t step, bool add, float *y, size_t n);

void SIMD_COMMON(softmax)(const float *x, float *y, size_t n);
void SIMD_COMMON(layer_norm)(const float *x, const float *scale, const float *bias, float epsilon,
                             float *y, size_t n);
void SIMD_COMMON(rms_norm)(const float *x, const float *scale, float epsilon, float *y, size_t n);

void SIMD_COMMON(lrn)(const float *x, size_t n, size_t size, float factor, float bias, float beta,
                      float *squares, float *y);
void SIMD_COMMON(square_rows)(const float *x, const float *mean, size_t rows, size_t step,
                              float *sum, float *difference, size_t n);
void SIMD_COMMON(center_rows)(const float *x, const float *mean, const float *factor,
                              const float *shift, size_t rows, float *y, size_t n);

void SIMD_NAMED(depthwise)(const struct depthwise *d, const void *x, void *y, size_t first,
                           size_t rows, size_t first_block, size_t last_block, float *sums);

void SIMD_COMMON(depthwise_8bit)(const struct depthwise_8bit *d, const uint8_t *x, uint8_t *y,
                                 size_t first, size_t rows);

void SIMD_COMMON(quantize)(const float *x, float scale, int zero, bool is_signed, void *y,
                           size_t n);
void SIMD_COMMON(dequantize)(const void *x, bool is_signed, float scale, int zero, float *y,
                             size_t n);
void SIMD_COMMON(add_8bit)(const void *a, float a_ratio, const void *b, float b_ratio, float fixed,
                           bool is_signed, void *y, size_t n);
void SIMD_COMMON(range)(const float *x, size_t n, float *min, float *max);
void SIMD_COMMON(mul_8bit)(const void *a, int a_zero, const void *b, int b_zero, float ratio,
                           int zero, bool is_signed, void *y, size_t n);
void SIMD_COMMON(lookup)(const uint8_t *x, const uint8_t *table, uint8_t *y, size_t n);
void SIMD_COMMON(pool_mean_8bit)(const void *const *taps, size_t count, float factor, float fixed,
                                 bool is_signed, void *y, size_t n);
void SIMD_COMMON(pool_max_8bit)(const void *const *taps, size_t count, bool is_signed, void *y,
                                size_t n);
void SIMD_COMMON(sum_rows_8bit)(const void *x, size_t rows, bool is_signed, int32_t *y, size_t n);

#if defined __AVX512BF16__
void simd_avx512_depthwise(const struct depthwise *d, const void *x, void *y, size_t first,
                           size_t rows, size_t first_block, size_t last_block, float *sums);
#endif
