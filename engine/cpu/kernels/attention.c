/* The operations of attention except products, compiled once per instruction set. */
#include <math.h>
#include <string.h>

#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

/* ---- packing rows as columns of a panel ---- */

#if defined __AVX512F__

/* to[c * step + r] = rows[r][at + c] for 16 rows and columns */
ALWAYS_INLINE void turn_block(const float *const *rows, size_t at, float *to, size_t step)
{
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++)
        a[r] = _mm512_loadu_ps(rows[r] + at);
#pragma GCC unroll 8
    for (int r = 0; r < 16; r += 2) {
        b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
    }
    /* a[q + c]: column c of each 128-bit lane, from rows q … q + 3 */
#pragma GCC unroll 4
    for (int q = 0; q < 16; q += 4) {
        const __m512d low = _mm512_castps_pd(b[q]), high = _mm512_castps_pd(b[q + 1]);
        const __m512d low2 = _mm512_castps_pd(b[q + 2]), high2 = _mm512_castps_pd(b[q + 3]);
        a[q] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low2));
        a[q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low2));
        a[q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high2));
        a[q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high2));
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512 even = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
        const __m512 odd = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
        const __m512 even2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
        const __m512 odd2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
        const size_t column = (size_t)c;
        _mm512_storeu_ps(to + column * step, _mm512_shuffle_f32x4(even, even2, 0x88));
        _mm512_storeu_ps(to + (column + 4) * step, _mm512_shuffle_f32x4(odd, odd2, 0x88));
        _mm512_storeu_ps(to + (column + 8) * step, _mm512_shuffle_f32x4(even, even2, 0xdd));
        _mm512_storeu_ps(to + (column + 12) * step, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
    }
}

#elif defined __aarch64__

ALWAYS_INLINE void turn_block(const float *const *rows, size_t at, float *to, size_t step)
{
    const float32x4x2_t a = vtrnq_f32(vec_load(rows[0] + at), vec_load(rows[1] + at));
    const float32x4x2_t b = vtrnq_f32(vec_load(rows[2] + at), vec_load(rows[3] + at));
    for (size_t c = 0; c < 2; c++) {
        vec_store(to + c * step, vcombine_f32(vget_low_f32(a.val[c]), vget_low_f32(b.val[c])));
        vec_store(to + (c + 2) * step,
                  vcombine_f32(vget_high_f32(a.val[c]), vget_high_f32(b.val[c])));
    }
}

#else

/* VEC is 4 or 8 here. Transposes 4 x 4 numbers at a time. */
ALWAYS_INLINE void turn_block(const float *const *rows, size_t at, float *to, size_t step)
{
    for (size_t r = 0; r < VEC; r += 4)
        for (size_t c = 0; c < VEC; c += 4) {
            __m128 a = _mm_loadu_ps(rows[r] + at + c), b = _mm_loadu_ps(rows[r + 1] + at + c);
            __m128 d = _mm_loadu_ps(rows[r + 2] + at + c), e = _mm_loadu_ps(rows[r + 3] + at + c);
            _MM_TRANSPOSE4_PS(a, b, d, e);
            _mm_storeu_ps(to + c * step + r, a);
            _mm_storeu_ps(to + (c + 1) * step + r, b);
            _mm_storeu_ps(to + (c + 2) * step + r, d);
            _mm_storeu_ps(to + (c + 3) * step + r, e);
        }
}

#endif

void SIMD_NAMED(pack_rows)(const float *const *rows, size_t n, size_t k, size_t columns,
                           float *packed)
{
    for (size_t first = 0; first < columns; first += VEC) {
        const size_t there = n > first ? (n - first < VEC ? n - first : VEC) : 0;
        size_t p = 0;
        for (; there == VEC && p + VEC <= k; p += VEC)
            turn_block(rows + first, p, packed + p * columns + first, columns);
        for (; p < k; p++)
            for (size_t r = 0; r < VEC; r++)
                packed[p * columns + first + r] = r < there ? rows[first + r][p] : 0;
    }
}

void SIMD_NAMED(pack_columns)(const float *const *rows, size_t k, size_t n, float *packed)
{
    for (size_t j = 0; j < n; j += GEMM_COLUMNS)
        for (size_t p = 0; p < k; p++, packed += GEMM_COLUMNS)
            for (size_t i = 0; i < GEMM_COLUMNS; i += VEC) {
                const size_t at = j + i, width = at < n ? n - at : 0;
                vec_store(packed + i, width >= VEC ? vec_load(rows[p] + at)
                                                   : vec_load_n(rows[p] + (width ? at : 0), width));
            }
}

void SIMD_NAMED(pack_pairs)(const uint16_t *const *rows, size_t k, size_t whole_k, size_t n,
                            size_t columns, uint32_t *packed)
{
    static const uint16_t zeros[TILE_MOST_COLUMNS];
    for (size_t j = 0; j < n; j += columns)
        for (size_t p = 0; p < whole_k; p += 2, packed += columns) {
            const uint16_t *even = p < k ? rows[p] + j : zeros;
            const uint16_t *odd = p + 1 < k ? rows[p + 1] + j : zeros;
            const size_t there = n - j < columns ? n - j : columns;
            for (size_t c = 0; c < there; c++)
                packed[c] = even[c] | (uint32_t)odd[c] << 16;
            memset(packed + there, 0, (columns - there) * sizeof *packed);
        }
}

/* ---- a row of scores ---- */

static void add_biases(float *s, size_t n, const float *const *biases, size_t count)
{
    FOR_REGISTERS(i, width, n) {
        vec v = vec_load_n(s + i, width);
        for (size_t b = 0; b < count; b++)
            v = vec_add(v, vec_load_n(biases[b] + i, width));
        vec_store_n(s + i, v, width);
    }
}

/* Ignores NaN: if either operand of vec_max() is NaN, it returns the second one. */
static float greatest(const float *s, size_t n, float start)
{
    if (n < VEC) {
        for (size_t i = 0; i < n; i++)
            start = s[i] > start ? s[i] : start;
        return start;
    }
    vec best = vec_set(start), second = best;
    size_t i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        best = vec_max(vec_load(s + i), best);
        second = vec_max(vec_load(s + i + VEC), second);
    }
    if (i + VEC <= n)
        best = vec_max(vec_load(s + i), best);
    second = vec_max(vec_load(s + n - VEC), second); /* this load overlaps earlier ones */
    return vec_greatest(vec_max(best, second));
}

float SIMD_NAMED(score_row)(float *s, size_t n, const float *const *biases, size_t bias_count,
                            float *max)
{
    if (bias_count)
        add_biases(s, n, biases, bias_count);
    *max = greatest(s, n, *max);
    if (*max == -INFINITY) {
        float sum = 0;
        for (size_t i = 0; i < n; i++) { /* NaN stays */
            s[i] = s[i] == s[i] ? 0 : s[i];
            sum += s[i];
        }
        return sum;
    }
    const vec m = vec_set(*max);
    vec sum = vec_zero(), second = sum;
    size_t i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        const vec a = vec_exp(vec_sub(vec_load(s + i), m));
        const vec b = vec_exp(vec_sub(vec_load(s + i + VEC), m));
        vec_store(s + i, a);
        vec_store(s + i + VEC, b);
        sum = vec_add(sum, a);
        second = vec_add(second, b);
    }
    for (; i < n; i += VEC) {
        const size_t width = n - i < VEC ? n - i : VEC;
        vec_store_n(s + i, vec_exp(vec_sub(vec_load_n(s + i, width), m)), width);
        sum = vec_add(sum, vec_load_n(s + i, width)); /* lanes after the last number are 0 */
    }
    return vec_sum(vec_add(sum, second));
}
