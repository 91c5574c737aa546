/* Private to engine/cpu/kernels/: a register of floats, with the width of the variant that is being
 * compiled. Code that uses these functions compiles for AVX-512, AVX2 with FMA, SSE2 and NEON.
 *
 * A count n <= VEC is the number of lanes in use; other lanes are read as 0 and not written. */
#pragma once

#if defined __x86_64__
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/float_bits.h"

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* gcc and clang have these operators for registers of every width. */
#define vec_add(a, b)            ((vec)((a) + (b)))
#define vec_sub(a, b)            ((vec)((a) - (b)))
#define vec_mul(a, b)            ((vec)((a) * (b)))
#define vec_div(a, b)            ((vec)((a) / (b)))
#define vec_zero()               ((vec){0})
#define vec_bits(v)              ((vec_integers)(v)) /* the same register as signed integers */
#define vec_magnitude(v)         ((vec)(vec_bits(v) & INT32_MAX))
#define vec_with_sign(v, sign)   ((vec)(vec_bits(v) | (vec_bits(sign) & INT32_MIN))) /* v >= 0 */
#define vec_scale_by(p, shifted) ((vec)((vec_words)(p) + ((vec_words)(shifted) << 23)))

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A loop over n numbers. Each iteration has the next `width` numbers, at most a register, from
 * number i on. */
#define FOR_REGISTERS(i, width, n)                                                                 \
    for (size_t i = 0, width; i < (n) && (width = smaller((n) - (i), VEC)); i += VEC)

#if defined __AVX512F__

#define VEC 16
typedef __m512 vec;
typedef __m512i ints;
#define vec_set(x)       _mm512_set1_ps(x)
#define vec_max(a, b)    _mm512_max_ps(a, b)
#define vec_min(a, b)    _mm512_min_ps(a, b)
#define vec_fma(a, b, c) _mm512_fmadd_ps(a, b, c) /* a * b + c */
#define ints_round(v)    _mm512_cvtps_epi32(v)
/* Returns `less` in lanes where a < b, and `otherwise` in the other lanes. */
#define vec_select_less(a, b, less, otherwise)                                                     \
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, less)
#define vec_sum(v)      _mm512_reduce_add_ps(v)
#define vec_greatest(v) _mm512_reduce_max_ps(v)
#define vec_widen(p)    vec_widen_n(p, VEC)

#elif defined __AVX2__

#define VEC              8
typedef __m256 vec;
typedef __m256i ints;
#define vec_set(x)       _mm256_set1_ps(x)
#define vec_max(a, b)    _mm256_max_ps(a, b)
#define vec_min(a, b)    _mm256_min_ps(a, b)
#define vec_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ints_round(v)    _mm256_cvtps_epi32(v)
#define vec_widen(p)                                                                               \
    ((vec)_mm256_slli_epi32(                                                                       \
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))), 16))
#define vec_select_less(a, b, less, otherwise)                                                     \
    _mm256_blendv_ps(otherwise, less, _mm256_cmp_ps(a, b, _CMP_LT_OQ))

#elif defined __aarch64__

#define VEC                                    4
typedef float32x4_t vec;
typedef int32x4_t ints;
#define vec_set(x)                             vdupq_n_f32(x)
#define vec_fma(a, b, c)                       vfmaq_f32(c, a, b)
#define ints_round(v)                          vcvtnq_s32_f32(v)
#define vec_widen(p)                           ((vec)vshll_n_u16(vld1_u16(p), 16))
#define vec_select_less(a, b, less, otherwise) vbslq_f32(vcltq_f32(a, b), less, otherwise)
/* Return the second operand if one operand is NaN, as on x86-64. */
#define vec_max(a, b)                          vec_select_less(b, a, a, b)
#define vec_min(a, b)                          vec_select_less(a, b, a, b)

#else

#define VEC              4
typedef __m128 vec;
typedef __m128i ints;
#define vec_set(x)       _mm_set1_ps(x)
#define vec_max(a, b)    _mm_max_ps(a, b)
#define vec_min(a, b)    _mm_min_ps(a, b)
#define vec_fma(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define ints_round(v)    _mm_cvtps_epi32(v)
#define vec_widen(p)     ((vec)_mm_unpacklo_epi16((ints){0}, _mm_loadu_si64(p)))

ALWAYS_INLINE vec vec_select_less(vec a, vec b, vec less, vec otherwise)
{
    const vec mask = _mm_cmplt_ps(a, b);
    return _mm_or_ps(_mm_and_ps(mask, less), _mm_andnot_ps(mask, otherwise));
}

#endif

typedef vec vec_anywhere __attribute__((aligned(1), may_alias));
typedef int32_t vec_integers __attribute__((vector_size(sizeof(vec))));
typedef uint32_t vec_words __attribute__((vector_size(sizeof(vec))));
#define vec_load(p)     ((vec)(*(const vec_anywhere *)(p)))
#define vec_store(p, v) (*(vec_anywhere *)(p) = (v))

/* vec_widen_n() widens n numbers of bfloat16, vec_widen() widens VEC numbers. */
#if defined __AVX512F__

ALWAYS_INLINE __mmask16 vec_mask(size_t n)
{
    return (__mmask16)(n >= VEC ? 0xffff : (1u << n) - 1);
}

ALWAYS_INLINE vec vec_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(vec_mask(n), p);
}

ALWAYS_INLINE void vec_store_n(float *p, vec v, size_t n)
{
    _mm512_mask_storeu_ps(p, vec_mask(n), v);
}

ALWAYS_INLINE vec vec_widen_n(const uint16_t *p, size_t n)
{
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vec_mask(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

#else

ALWAYS_INLINE float vec_sum(vec v)
{
    for (size_t i = 1; i < VEC; i++)
        v[0] += v[i];
    return v[0];
}

ALWAYS_INLINE float vec_greatest(vec v)
{
    for (size_t i = 1; i < VEC; i++)
        v[0] = v[i] > v[0] ? v[i] : v[0];
    return v[0];
}

ALWAYS_INLINE vec vec_load_n(const float *p, size_t n)
{
    if (n >= VEC)
        return vec_load(p);
    float lanes[VEC] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vec_load(lanes);
}

ALWAYS_INLINE void vec_store_n(float *p, vec v, size_t n)
{
    if (n >= VEC) {
        vec_store(p, v);
        return;
    }
    float lanes[VEC];
    vec_store(lanes, v);
    memcpy(p, lanes, n * sizeof *p);
}

ALWAYS_INLINE vec vec_widen_n(const uint16_t *p, size_t n)
{
    uint16_t lanes[VEC] = {0};
    if (n < VEC)
        memcpy(lanes, p, n * sizeof *p);
    return vec_widen(n < VEC ? lanes : p);
}

#endif

/* Rounds n floats to bfloat16, half to even; NaN stays NaN. The instruction of AVX512-BF16 treats
 * numbers below the smallest normal float32 (1.2e-38) as 0. */
ALWAYS_INLINE void vec_narrow_n(uint16_t *p, vec v, size_t n)
{
#if defined __AVX512BF16__
    _mm256_mask_storeu_epi16(p, vec_mask(n), (__m256i)_mm512_cvtneps_pbh(v));
#elif defined __AVX512F__
    const ints bits = (ints)v;
    const ints even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const ints half = _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
    const ints quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const ints near = _mm512_mask_mov_epi32(_mm512_add_epi32(bits, half), nan, quiet);
    _mm256_mask_storeu_epi16(p, vec_mask(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16)));
#else
    float lanes[VEC];
    vec_store(lanes, v);
    for (size_t i = 0; i < VEC && i < n; i++)
        p[i] = float_to_bfloat16(lanes[i]);
#endif
}

/* In this order of the operands NaN stays NaN. */
ALWAYS_INLINE vec vec_clamp(vec v, vec low, vec high)
{
    return vec_min(high, vec_max(low, v));
}
