/* The operations of attention except products, compiled once per instruction set. */
#include <math.h>
#include <string.h>

#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

/* ---- packing rows as columns of a panel ---- */

void SIMD_NAMED(pack_rows)(const float *const *rows, size_t n, size_t k, size_t columns,
                           float *packed)
{
    memset(packed, 0, k * columns * sizeof *packed);
    for (size_t r = 0; r < n; r++)
        for (size_t p = 0; p < k; p++)
            packed[p * columns + r] = rows[r][p];
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

/* Ignores NaN, because vec_max() returns its second operand if one operand is NaN. */
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
