/* Maxima and sums over rows of channels, compiled once per instruction set. */
#include <math.h>

#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_8bit.h"

ALWAYS_INLINE void pool_row(const struct pool_rows *p, void *y, size_t n, const bool is_max,
                            const enum dtype from, const enum dtype to)
{
    const vec low = vec_set(to == DTYPE_I8 ? -128 : 0), high = vec_add(low, vec_set(255));
    FOR_REGISTERS(c, width, n) {
        vec result = is_max ? vec_set(-INFINITY) : vec_zero();
        for (size_t t = 0; t < p->count; t++) {
            const vec v = load_some(p->taps[t], c, width, from);
            result = is_max ? vec_max(v, result) : vec_add(v, result);
        }
        if (!is_max)
            result = vec_mul(result, vec_set(p->factor));
        if (to == DTYPE_U8 || to == DTYPE_I8)
            result = rounded(vec_add(result, vec_set(p->fixed)), low, high);
        store_some(y, c, result, width, to);
    }
}

#define POOL(max, type, other)                                                                     \
    if (p->is_max == (max) && from == (type) && to == (other)) {                                   \
        pool_row(p, y, n, max, type, other);                                                       \
        return;                                                                                    \
    }

/* Maxima of bytes, which need no conversion to float. */
#define MAXIMA(dtype, type, lowest)                                                                \
    if (p->is_max && from == (dtype)) {                                                            \
        type *most = p->count ? memcpy(y, p->taps[0], n) : memset(y, lowest, n);                   \
        for (size_t t = 1; t < p->count; t++) {                                                    \
            const type *tap = p->taps[t];                                                          \
            for (size_t i = 0; i < n; i++)                                                         \
                most[i] = tap[i] > most[i] ? tap[i] : most[i];                                     \
        }                                                                                          \
        return;                                                                                    \
    }

void SIMD_NAMED(pool)(const struct pool_rows *p, enum dtype from, void *y, enum dtype to, size_t n)
{
    POOL(true, DTYPE_F32, DTYPE_F32)
    POOL(true, DTYPE_BF16, DTYPE_BF16)
    MAXIMA(DTYPE_U8, uint8_t, 0)
    MAXIMA(DTYPE_I8, int8_t, 0x80)
    POOL(false, DTYPE_F32, DTYPE_F32)
    POOL(false, DTYPE_BF16, DTYPE_BF16)
    POOL(false, DTYPE_BF16, DTYPE_F32)
    POOL(false, DTYPE_U8, DTYPE_U8)
    POOL(false, DTYPE_I8, DTYPE_I8)
    POOL(false, DTYPE_U8, DTYPE_F32)
    POOL(false, DTYPE_I8, DTYPE_F32)
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
