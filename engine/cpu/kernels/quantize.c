/* Rows of 8-bit integers, and scaled rows of any type, compiled once per instruction set.
 * Adding 1.5 * 2^23 rounds a float32 half to even, because numbers of that size have no fraction.
 */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_8bit.h"

#include "engine/base/cpu.h"

void SIMD_NAMED(quantize)(const float *x, float scale, int zero, bool is_signed, void *y, size_t n)
{
    const float first = (float)((is_signed ? -128 : 0) - zero);
    const vec low = vec_set(first), high = vec_set(first + 255), offset = vec_set((float)zero);
    uint8_t *to = y;
    FOR_REGISTERS(i, rest, n) {
        /* divides, as the operator requires: a reciprocal would change ties */
        const vec whole = rounded(vec_div(vec_load_n(x + i, rest), vec_set(scale)), low, high);
        store_8bit_n(to + i, vec_add(whole, offset), rest, is_signed);
    }
}

void SIMD_NAMED(dequantize)(const void *x, bool is_signed, float scale, int zero, float *y,
                            size_t n)
{
    const vec offset = vec_set((float)zero), factor = vec_set(scale);
    FOR_REGISTERS(i, rest, n) {
        const vec stored = load_8bit_n((const uint8_t *)x + i, rest, is_signed);
        vec_store_n(y + i, vec_mul(vec_sub(stored, offset), factor), rest);
    }
}

struct sum {
    vec a_ratio, b_ratio, fixed, low, high;
};

ALWAYS_INLINE void add_row(const struct sum *s, const uint8_t *a, const uint8_t *b, bool is_signed,
                           uint8_t *y, size_t n)
{
    FOR_REGISTERS(i, rest, n) {
        const vec first = vec_mul(load_8bit_n(a + i, rest, is_signed), s->a_ratio);
        const vec second = vec_mul(load_8bit_n(b + i, rest, is_signed), s->b_ratio);
        const vec sum = vec_add(vec_add(s->fixed, second), first);
        store_8bit_n(y + i, rounded(sum, s->low, s->high), rest, is_signed);
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

/* Processes one register of each row: n <= VEC numbers from i on. The scales stay in registers. */
ALWAYS_INLINE void scale_column(const struct scale_rows *s, size_t i, size_t n, const void *x,
                                enum dtype from, void *y, enum dtype to, size_t rows)
{
    const vec a = vec_load_n(s->scale + i, n), b = vec_load_n(s->shift + i, n);
    const vec least = vec_set(s->low), most = vec_set(s->high);
    for (size_t r = 0; r < rows; r++) {
        const size_t at = r * s->y_step + i;
        const vec v = vec_fma(load_some(x, r * s->x_step + i, n, from), a, b);
        const bool keeps_nan = to == DTYPE_F32 || to == DTYPE_BF16; /* 8 bits: NaN is `least` */
        store_some(y, at, keeps_nan ? vec_clamp(v, least, most) : vec_min(vec_max(v, least), most),
                   n, to);
    }
}

ALWAYS_INLINE void scale_any(const struct scale_rows *s, const void *x, enum dtype from, void *y,
                             enum dtype to, size_t rows, size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        scale_column(s, i, VEC, x, from, y, to, rows);
    if (i < n)
        scale_column(s, i, n - i, x, from, y, to, rows);
}

#define SCALE(type, other)                                                                         \
    if (from == (type) && to == (other)) {                                                         \
        scale_any(s, x, type, y, other, rows, n);                                                  \
        return;                                                                                    \
    }

void SIMD_NAMED(scale_rows)(const struct scale_rows *s, const void *x, enum dtype from, void *y,
                            enum dtype to, size_t rows, size_t n)
{
    SCALE(DTYPE_F32, DTYPE_F32)
    SCALE(DTYPE_BF16, DTYPE_BF16)
    SCALE(DTYPE_BF16, DTYPE_F32)
    SCALE(DTYPE_U8, DTYPE_U8)
    SCALE(DTYPE_I8, DTYPE_I8)
    SCALE(DTYPE_U8, DTYPE_I8)
    SCALE(DTYPE_I8, DTYPE_U8)
    SCALE(DTYPE_U8, DTYPE_F32)
    SCALE(DTYPE_I8, DTYPE_F32)
    SCALE(DTYPE_F32, DTYPE_U8)
    SCALE(DTYPE_F32, DTYPE_I8)
}

void SIMD_NAMED(range)(const float *x, size_t n, float *min, float *max)
{
    vec least = vec_set(*min), most = vec_set(*max);
    FOR_REGISTERS(i, rest, n) {
        const vec v = vec_load_n(x + i, rest);
        least = vec_min(v, least); /* vec_min() and vec_max() ignore NaN in v */
        most = vec_max(v, most);
    }
    *min = -vec_greatest(vec_sub(vec_zero(), least));
    *max = vec_greatest(most);
}

/* Products of two differences of 8 bits are exact in float32. */
void SIMD_NAMED(mul_8bit)(const void *a, int a_zero, const void *b, int b_zero, float ratio,
                          int zero, bool is_signed, void *y, size_t n)
{
    const float lowest = is_signed ? -128 : 0;
    const vec low = vec_set(lowest), high = vec_set(lowest + 255), factor = vec_set(ratio);
    const vec a_offset = vec_set((float)a_zero), b_offset = vec_set((float)b_zero);
    const vec offset = vec_set((float)zero);
    FOR_REGISTERS(i, rest, n) {
        const vec first = vec_sub(load_8bit_n((const uint8_t *)a + i, rest, is_signed), a_offset);
        const vec second = vec_sub(load_8bit_n((const uint8_t *)b + i, rest, is_signed), b_offset);
        const vec scaled = vec_add(vec_mul(vec_mul(first, second), factor), offset);
        store_8bit_n((uint8_t *)y + i, rounded(scaled, low, high), rest, is_signed);
    }
}

#if defined __AVX512BW__

/* Looks up in two tables of 128 bytes, each in two registers. */
__attribute__((target("avx512vbmi"))) static void
lookup_wide(const struct lookup_rows *l, const uint8_t *x, uint8_t *y, size_t rows, size_t n)
{
    const uint8_t *table = l->table;
    const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
    const __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
    for (size_t i = 0; i < n; i += 64) {
        const size_t rest = n - i;
        const __mmask64 some = rest < 64 ? (UINT64_C(1) << rest) - 1 : ~UINT64_C(0);
        for (size_t r = 0; r < rows; r++) {
            const __m512i v = _mm512_maskz_loadu_epi8(some, x + r * l->x_step + i);
            const __m512i low = _mm512_permutex2var_epi8(t0, v, t1);
            const __m512i high = _mm512_permutex2var_epi8(t2, v, t3);
            _mm512_mask_storeu_epi8(y + r * l->y_step + i, some,
                                    _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high));
        }
    }
}

#endif

#if defined __AVX2__

/* Looks up in sixteen tables of 16 bytes. An index outside a table gets its highest bit set, so
 * that the shuffle returns 0. */
static void lookup_narrow(const uint8_t *x, const uint8_t *table, uint8_t *y, size_t n)
{
    const __m256i above = _mm256_set1_epi8(0x70);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i found = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int t = 0; t < 16; t++) {
            const __m128i part = _mm_loadu_si128((const __m128i *)(const void *)(table + 16 * t));
            const __m256i index = _mm256_xor_si256(v, _mm256_set1_epi8((char)(16 * t)));
            found = _mm256_or_si256(found, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(part),
                                                               _mm256_adds_epu8(index, above)));
        }
        _mm256_storeu_si256((__m256i *)(void *)(y + i), found);
    }
    for (; i < n; i++)
        y[i] = table[x[i]];
}

#elif defined __aarch64__

/* y[i] = table[x[i]], by four lookups in tables of 64 bytes. An instruction leaves the byte of an
 * index outside its table unchanged. */
static void lookup_narrow(const uint8_t *x, const uint8_t *table, uint8_t *y, size_t n)
{
    const uint8x16x4_t t0 = vld1q_u8_x4(table), t1 = vld1q_u8_x4(table + 64);
    const uint8x16x4_t t2 = vld1q_u8_x4(table + 128), t3 = vld1q_u8_x4(table + 192);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16_t v = vld1q_u8(x + i);
        uint8x16_t found = vqtbl4q_u8(t0, v);
        found = vqtbx4q_u8(found, t1, vsubq_u8(v, vdupq_n_u8(64)));
        found = vqtbx4q_u8(found, t2, vsubq_u8(v, vdupq_n_u8(128)));
        vst1q_u8(y + i, vqtbx4q_u8(found, t3, vsubq_u8(v, vdupq_n_u8(192))));
    }
    for (; i < n; i++)
        y[i] = table[x[i]];
}

#endif

void SIMD_NAMED(lookup)(const struct lookup_rows *l, const uint8_t *x, uint8_t *y, size_t rows,
                        size_t n)
{
#if defined __AVX512BW__
    if (cpu_features()->avx512_vbmi) {
        lookup_wide(l, x, y, rows, n);
        return;
    }
#endif
    for (size_t r = 0; r < rows; r++, x += l->x_step, y += l->y_step) {
#if defined __AVX2__ || defined __aarch64__
        lookup_narrow(x, l->table, y, n);
#else
        for (size_t i = 0; i < n; i++)
            y[i] = l->table[x[i]];
#endif
    }
}
