/* Private to engine/cpu/kernels/: SIMD wrappers for products of 8-bit integers with 32-bit sums.
 * Numbers are multiplied either in pairs, widened to 16 bits (exact on every CPU), or in fours if
 * the CPU has a dot product. DOT is the attribute of functions that use the dot product. */
#pragma once

#include "engine/cpu/kernels/vec.h"
#include "engine/tensor/tensor.h"

typedef uint16_t vec_halves __attribute__((vector_size(sizeof(vec))));
typedef ints ints_anywhere __attribute__((aligned(1), may_alias));

#define ints_zero()      ((ints){0})
#define ints_set(x)      ((ints)((vec_integers){0} + (x)))
#define ints_load(p)     ((ints)(*(const ints_anywhere *)(const void *)(p)))
#define ints_store(p, v) (*(ints_anywhere *)(void *)(p) = (v))
#define ints_add(a, b)   ((ints)((vec_words)(a) + (vec_words)(b))) /* wraps */
#define ints_real(v)     __builtin_convertvector((vec_integers)(v), vec)
#define even_bytes(v)    ((ints)((vec_integers)(v)&0xff00ff))
#define odd_bytes(v)     ((ints)((vec_halves)(v) >> 8))

/* add_pairs() adds two products of 16-bit integers to each sum, add_dot() adds four products of
 * bytes. The bytes of w are signed; the bytes of x are signed if dot_is_signed is set. load_pairs()
 * widens bytes, load_words() loads 16-bit integers. even_bytes() and odd_bytes() widen every second
 * unsigned byte. store_bytes() saturates VEC numbers. */

#if defined __AVX512F__

typedef ints words;

ALWAYS_INLINE words load_pairs(const int8_t *w)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)w));
}

ALWAYS_INLINE ints add_pairs(ints sum, ints x, words w)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, w));
}

ALWAYS_INLINE void store_bytes(void *p, ints v, bool is_signed)
{
    _mm_storeu_si128(p, is_signed ? _mm512_cvtsepi32_epi8(v)
                                  : _mm512_cvtusepi32_epi8(_mm512_max_epi32(v, ints_zero())));
}

#define DOT         __attribute__((target("avx512vnni")))
#define load_dot(p) ints_load(p)

ALWAYS_INLINE DOT ints add_dot(ints sum, ints x, ints w)
{
    return _mm512_dpbusd_epi32(sum, x, w);
}

#elif defined __AVX2__

typedef ints words;

ALWAYS_INLINE words load_pairs(const int8_t *w)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w));
}

ALWAYS_INLINE ints add_pairs(ints sum, ints x, words w)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
}

ALWAYS_INLINE void store_bytes(void *p, ints v, bool is_signed)
{
    const __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);
    const __m128i half = _mm_packs_epi32(low, high);
    _mm_storel_epi64(p, is_signed ? _mm_packs_epi16(half, half) : _mm_packus_epi16(half, half));
}

#define DOT         __attribute__((target("avxvnni")))
#define load_dot(p) ints_load(p)

ALWAYS_INLINE DOT ints add_dot(ints sum, ints x, ints w)
{
    return _mm256_dpbusd_avx_epi32(sum, x, w);
}

#elif defined __aarch64__

typedef int16x8_t words;
#define load_pairs(w) vmovl_s8(vld1_s8(w))

ALWAYS_INLINE ints add_pairs(ints sum, ints pair, words w)
{
    const int16x8_t x = vreinterpretq_s16_s32(pair);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(w));
    return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(x, w)));
}

ALWAYS_INLINE void store_bytes(void *p, ints v, bool is_signed)
{
    const int16x8_t half = vcombine_s16(vqmovn_s32(v), vdup_n_s16(0));
    const uint8x8_t bytes = is_signed ? vreinterpret_u8_s8(vqmovn_s16(half)) : vqmovun_s16(half);
    const uint32_t bits = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    memcpy(p, &bits, sizeof bits);
}

#if defined __ARM_FEATURE_DOTPROD

#define DOT
#define load_dot(w) vld1q_s8(w)

ALWAYS_INLINE ints add_dot(ints sum, ints x, int8x16_t w)
{
#if defined __ARM_FEATURE_MATMUL_INT8
    return vusdotq_s32(sum, vreinterpretq_u8_s32(x), w);
#else
    return vdotq_s32(sum, vreinterpretq_s8_s32(x), w);
#endif
}

#endif

#else

typedef ints words;

ALWAYS_INLINE words load_pairs(const int8_t *w)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)w);
    return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
}

ALWAYS_INLINE ints add_pairs(ints sum, ints x, words w)
{
    return _mm_add_epi32(sum, _mm_madd_epi16(x, w));
}

ALWAYS_INLINE void store_bytes(void *p, ints v, bool is_signed)
{
    const __m128i half = _mm_packs_epi32(v, v);
    const int32_t bits =
        _mm_cvtsi128_si32(is_signed ? _mm_packs_epi16(half, half) : _mm_packus_epi16(half, half));
    memcpy(p, &bits, sizeof bits);
}

#endif

typedef words words_anywhere __attribute__((aligned(1), may_alias));
#define load_words(p) ((words)(*(const words_anywhere *)(const void *)(p)))

/* Loads the same four bytes into all lanes. */
ALWAYS_INLINE ints ints_repeat(const void *four_bytes)
{
    int32_t bits;
    memcpy(&bits, four_bytes, sizeof bits);
    return ints_set(bits);
}

/* load_8bit() loads VEC integers as floats, load_8bit_n() loads n <= VEC integers. store_8bit_n()
 * rounds and stores n <= VEC floats, which must be in the type's range. */
ALWAYS_INLINE vec load_8bit(const void *p, bool is_signed)
{
#if defined __AVX512F__
    const __m128i bytes = _mm_loadu_si128(p);
    return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes)
                                        : _mm512_cvtepu8_epi32(bytes));
#elif defined __AVX2__
    const __m128i bytes = _mm_loadl_epi64(p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes)
                                        : _mm256_cvtepu8_epi32(bytes));
#elif defined __aarch64__
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(bits));
    const int16x8_t wide =
        is_signed ? vmovl_s8(vreinterpret_s8_u8(bytes)) : vreinterpretq_s16_u16(vmovl_u8(bytes));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
#else
    const __m128i zero = _mm_setzero_si128(), bytes = ints_repeat(p);
    const __m128i twice = _mm_unpacklo_epi8(zero, bytes);
    const __m128i highest = _mm_unpacklo_epi16(zero, twice);
    return _mm_cvtepi32_ps(is_signed ? _mm_srai_epi32(highest, 24) : _mm_srli_epi32(highest, 24));
#endif
}

ALWAYS_INLINE vec load_8bit_n(const uint8_t *p, size_t n, bool is_signed)
{
    uint8_t bytes[VEC] = {0};
    if (n < VEC)
        memcpy(bytes, p, n);
    return load_8bit(n < VEC ? bytes : p, is_signed);
}

ALWAYS_INLINE void store_8bit_n(uint8_t *p, vec v, size_t n, bool is_signed)
{
    uint8_t bytes[VEC];
    store_bytes(n < VEC ? bytes : p, ints_round(v), is_signed);
    if (n < VEC)
        memcpy(p, bytes, n);
}

/* Rounds half to even and clamps; NaN gives `low`. */
ALWAYS_INLINE vec rounded(vec x, vec low, vec high)
{
    const vec magic = vec_set(12582912.0f);
    return vec_sub(vec_add(vec_min(vec_max(x, low), high), magic), magic);
}

/* Loads n <= VEC numbers as floats. */
ALWAYS_INLINE vec load_some(const void *x, size_t at, size_t n, enum dtype dtype)
{
    return dtype == DTYPE_F32    ? vec_load_n((const float *)x + at, n)
           : dtype == DTYPE_BF16 ? vec_widen_n((const uint16_t *)x + at, n)
                                 : load_8bit_n((const uint8_t *)x + at, n, dtype == DTYPE_I8);
}

/* Stores n <= VEC floats. Rounds floats that become 8-bit integers, which must be in range. */
ALWAYS_INLINE void store_some(void *y, size_t at, vec v, size_t n, enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        vec_store_n((float *)y + at, v, n);
    else if (dtype == DTYPE_BF16)
        vec_narrow_n((uint16_t *)y + at, v, n);
    else
        store_8bit_n((uint8_t *)y + at, v, n, dtype == DTYPE_I8);
}
