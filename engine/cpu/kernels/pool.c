/* Maxima and sums over rows of channels, compiled once per instruction set. pool_max() and
 * pool_sum() keep four registers of results while they read the rows. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#define WIDE 4

void SIMD_NAMED(pool_max)(const float *const *taps, size_t count, float *y, size_t n)
{
    size_t c = 0;
    for (; c + WIDE * VEC <= n; c += WIDE * VEC) {
        vec best[WIDE];
        for (size_t i = 0; i < WIDE; i++)
            best[i] = vec_load(taps[0] + c + i * VEC);
        for (size_t t = 1; t < count; t++)
            for (size_t i = 0; i < WIDE; i++)
                best[i] = vec_max(vec_load(taps[t] + c + i * VEC), best[i]);
        for (size_t i = 0; i < WIDE; i++)
            vec_store(y + c + i * VEC, best[i]);
    }
    for (; c < n; c += VEC) {
        const size_t width = n - c < VEC ? n - c : VEC;
        vec best = vec_load_n(taps[0] + c, width);
        for (size_t t = 1; t < count; t++)
            best = vec_max(vec_load_n(taps[t] + c, width), best);
        vec_store_n(y + c, best, width);
    }
}

void SIMD_NAMED(pool_sum)(const float *const *taps, size_t count, float factor, float *y, size_t n)
{
    const vec f = vec_set(factor);
    size_t c = 0;
    for (; c + WIDE * VEC <= n; c += WIDE * VEC) {
        vec sum[WIDE];
        for (size_t i = 0; i < WIDE; i++)
            sum[i] = vec_zero();
        for (size_t t = 0; t < count; t++)
            for (size_t i = 0; i < WIDE; i++)
                sum[i] = vec_add(vec_load(taps[t] + c + i * VEC), sum[i]);
        for (size_t i = 0; i < WIDE; i++)
            vec_store(y + c + i * VEC, vec_mul(sum[i], f));
    }
    for (; c < n; c += VEC) {
        const size_t width = n - c < VEC ? n - c : VEC;
        vec sum = vec_zero();
        for (size_t t = 0; t < count; t++)
            sum = vec_add(vec_load_n(taps[t] + c, width), sum);
        vec_store_n(y + c, vec_mul(sum, f), width);
    }
}

void SIMD_NAMED(pool_max_bf16)(const uint16_t *const *taps, size_t count, uint16_t *y, size_t n)
{
    FOR_REGISTERS(c, width, n) {
        vec best = vec_widen_n(taps[0] + c, width);
        for (size_t t = 1; t < count; t++)
            best = vec_max(vec_widen_n(taps[t] + c, width), best);
        vec_narrow_n(y + c, best, width);
    }
}

void SIMD_NAMED(pool_sum_bf16)(const uint16_t *const *taps, size_t count, float factor, uint16_t *y,
                               size_t n)
{
    FOR_REGISTERS(c, width, n) {
        vec sum = vec_zero();
        for (size_t t = 0; t < count; t++)
            sum = vec_add(vec_widen_n(taps[t] + c, width), sum);
        vec_narrow_n(y + c, vec_mul(sum, vec_set(factor)), width);
    }
}

void SIMD_NAMED(accumulate_bf16)(const uint16_t *x, float *y, size_t n)
{
    FOR_REGISTERS(c, width, n) {
        vec_store_n(y + c, vec_add(vec_load_n(y + c, width), vec_widen_n(x + c, width)), width);
    }
}

/* Sums rows in groups, so that a group stays in the first-level cache for any row length. Separate
 * sums per group also reduce rounding errors. */
void SIMD_NAMED(sum_rows)(const float *x, size_t rows, float *y, size_t n)
{
    enum { GROUP = 8 };
    memset(y, 0, n * sizeof *y);
    for (size_t first = 0; first < rows; first += GROUP) {
        const size_t count = rows - first < GROUP ? rows - first : GROUP;
        const float *row = x + first * n;
        FOR_REGISTERS(c, width, n) {
            vec sum = vec_load_n(row + c, width);
            for (size_t r = 1; r < count; r++)
                sum = vec_add(vec_load_n(row + r * n + c, width), sum);
            vec_store_n(y + c, vec_add(vec_load_n(y + c, width), sum), width);
        }
    }
}

void SIMD_NAMED(blend)(const float *const *taps, const float *weights, size_t count, float *y,
                       size_t n)
{
    FOR_REGISTERS(i, width, n) {
        vec sum = vec_mul(vec_set(weights[0]), vec_load_n(taps[0] + i, width));
        for (size_t t = 1; t < count; t++)
            sum = vec_fma(vec_set(weights[t]), vec_load_n(taps[t] + i, width), sum);
        vec_store_n(y + i, sum, width);
    }
}
