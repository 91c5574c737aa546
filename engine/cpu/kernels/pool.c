/* Maxima and sums over rows of channels, compiled once per instruction set. pool() keeps four
 * registers of results while it reads the rows. */
#include <math.h>

#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#define WIDE 4

/* Computes `registers` registers of results, each of `width` numbers, from column c on. */
ALWAYS_INLINE void pool_columns(const struct pool_rows *p, size_t c, size_t width, void *y,
                                const bool is_max, const bool reads_bf16, const bool writes_bf16,
                                const int registers)
{
    vec result[WIDE];
    for (int i = 0; i < registers; i++)
        result[i] = is_max ? vec_set(-INFINITY) : vec_zero();
    for (size_t t = 0; t < p->count; t++)
        for (int i = 0; i < registers; i++) {
            const size_t at = c + (size_t)i * VEC;
            const vec v = reads_bf16 ? vec_widen_n((const uint16_t *)p->taps[t] + at, width)
                                     : vec_load_n((const float *)p->taps[t] + at, width);
            result[i] = is_max ? vec_max(v, result[i]) : vec_add(v, result[i]);
        }
    for (int i = 0; i < registers; i++) {
        const size_t at = c + (size_t)i * VEC;
        const vec v = is_max ? result[i] : vec_mul(result[i], vec_set(p->factor));
        if (writes_bf16)
            vec_narrow_n((uint16_t *)y + at, v, width);
        else
            vec_store_n((float *)y + at, v, width);
    }
}

ALWAYS_INLINE void pool_row(const struct pool_rows *p, void *y, size_t n, const bool is_max,
                            const bool reads_bf16, const bool writes_bf16)
{
    size_t c = 0;
    for (; c + WIDE * VEC <= n; c += WIDE * VEC)
        pool_columns(p, c, VEC, y, is_max, reads_bf16, writes_bf16, WIDE);
    for (; c < n; c += VEC)
        pool_columns(p, c, smaller(n - c, VEC), y, is_max, reads_bf16, writes_bf16, 1);
}

void SIMD_NAMED(pool)(const struct pool_rows *p, enum dtype from, void *y, enum dtype to, size_t n)
{
    const bool wide = from == DTYPE_F32;
    if (p->is_max && wide)
        pool_row(p, y, n, true, false, false);
    else if (p->is_max)
        pool_row(p, y, n, true, true, true);
    else if (wide)
        pool_row(p, y, n, false, false, false);
    else if (to == DTYPE_BF16)
        pool_row(p, y, n, false, true, true);
    else
        pool_row(p, y, n, false, true, false);
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
