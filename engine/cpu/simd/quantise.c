/* Rows of 8-bit integers, compiled once per instruction set. Numbers are rounded half to even by
 * adding 1.5 * 2^23, which float32 arithmetic then rounds at the unit. */
#include "engine/cpu/simd/variant.h"
#include "engine/cpu/simd/vec.h"

/* VEC integers as floats, and floats that are whole numbers of the type's range as integers. */
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
#else
    float lanes[VEC];
    for (size_t i = 0; i < VEC; i++)
        lanes[i] = is_signed ? ((const int8_t *)p)[i] : ((const uint8_t *)p)[i];
    return vec_load(lanes);
#endif
}

ALWAYS_INLINE void store_8bit(void *p, vec v)
{
#if defined __AVX512F__
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
#else
    float lanes[VEC];
    uint8_t *bytes = p;
    vec_store(lanes, v);
    for (size_t i = 0; i < VEC; i++)
        bytes[i] = (uint8_t)(int32_t)lanes[i];
#endif
}

/* Rounded half to even and clamped; NaN gives the lowest. */
ALWAYS_INLINE vec rounded(vec x, vec low, vec high)
{
    const vec magic = vec_set(12582912.0f);
    return vec_sub(vec_add(vec_min(vec_max(x, low), high), magic), magic);
}

void SIMD_NAMED(quantize)(const float *x, float scale, int zero, bool is_signed, void *y, size_t n)
{
    const float first = (float)((is_signed ? -128 : 0) - zero);
    const vec low = vec_set(first), high = vec_set(first + 255), offset = vec_set((float)zero);
    uint8_t *to = y;
    for (size_t i = 0; i < n; i += VEC) {
        const size_t rest = n - i < VEC ? n - i : VEC;
        /* a division, as the operator is defined: a reciprocal would move numbers at ties */
        float real[VEC], whole[VEC];
        vec_store(real, vec_load_n(x + i, rest));
        for (size_t k = 0; k < VEC; k++)
            whole[k] = real[k] / scale;
        uint8_t bytes[VEC];
        store_8bit(bytes, vec_add(rounded(vec_load(whole), low, high), offset));
        memcpy(to + i, bytes, rest);
    }
}

ALWAYS_INLINE void dequantize_row(const uint8_t *x, bool is_signed, vec scale, vec zero, float *y,
                                  size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(y + i, vec_mul(vec_sub(load_8bit(x + i, is_signed), zero), scale));
    if (i < n) {
        uint8_t bytes[VEC] = {0};
        memcpy(bytes, x + i, n - i);
        vec_store_n(y + i, vec_mul(vec_sub(load_8bit(bytes, is_signed), zero), scale), n - i);
    }
}

void SIMD_NAMED(dequantize)(const void *x, bool is_signed, float scale, int zero, float *y,
                            size_t n)
{
    if (is_signed)
        dequantize_row(x, true, vec_set(scale), vec_set((float)zero), y, n);
    else
        dequantize_row(x, false, vec_set(scale), vec_set((float)zero), y, n);
}

struct sum {
    vec a_ratio, b_ratio, fixed, low, high;
};

ALWAYS_INLINE vec add_some(const struct sum *s, const uint8_t *a, const uint8_t *b, bool is_signed)
{
    const vec second = vec_add(s->fixed, vec_mul(load_8bit(b, is_signed), s->b_ratio));
    return rounded(vec_add(second, vec_mul(load_8bit(a, is_signed), s->a_ratio)), s->low, s->high);
}

ALWAYS_INLINE void add_row(const struct sum *s, const uint8_t *a, const uint8_t *b, bool is_signed,
                           uint8_t *y, size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        store_8bit(y + i, add_some(s, a + i, b + i, is_signed));
    if (i < n) {
        uint8_t p[VEC] = {0}, q[VEC] = {0}, bytes[VEC];
        memcpy(p, a + i, n - i);
        memcpy(q, b + i, n - i);
        store_8bit(bytes, add_some(s, p, q, is_signed));
        memcpy(y + i, bytes, n - i);
    }
}

void SIMD_NAMED(add_8bit)(const void *a, float a_ratio, const void *b, float b_ratio, float fixed,
                          bool is_signed, void *y, size_t n)
{
    const float low = is_signed ? -128 : 0;
    const struct sum sum = {vec_set(a_ratio), vec_set(b_ratio), vec_set(fixed), vec_set(low),
                            vec_set(low + 255)};
    if (is_signed)
        add_row(&sum, a, b, true, y, n);
    else
        add_row(&sum, a, b, false, y, n);
}

#define POOL(type)                                                                                 \
    do {                                                                                           \
        type *to = y;                                                                              \
        memcpy(to, taps[0], n);                                                                    \
        for (size_t t = 1; t < count; t++) {                                                       \
            const type *tap = taps[t];                                                             \
            for (size_t i = 0; i < n; i++)                                                         \
                to[i] = tap[i] > to[i] ? tap[i] : to[i];                                           \
        }                                                                                          \
    } while (0)

void SIMD_NAMED(pool_max_8bit)(const void *const *taps, size_t count, bool is_signed, void *y,
                               size_t n)
{
    if (is_signed)
        POOL(int8_t);
    else
        POOL(uint8_t);
}

#define SUM(type)                                                                                  \
    do {                                                                                           \
        const type *row = x;                                                                       \
        for (size_t r = 0; r < rows; r++, row += n)                                                \
            for (size_t i = 0; i < n; i++)                                                         \
                y[i] += row[i];                                                                    \
    } while (0)

void SIMD_NAMED(sum_rows_8bit)(const void *x, size_t rows, bool is_signed, int32_t *y, size_t n)
{
    memset(y, 0, n * sizeof *y);
    if (is_signed)
        SUM(int8_t);
    else
        SUM(uint8_t);
}
