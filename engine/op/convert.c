/* Converts rows of elements from one type to another.
 *
 * Conversions go through one of three wide types (double, int64, uint64), a block at a time: 13
 * types need 3 x 13 small loops instead of 13 x 13, and the block stays in the first-level cache.
 * Every value of every dtype is exact in one of these three types. Frequent conversions of real
 * models (float32 to and from 16-bit floats) have their own code. */
#include "engine/op/convert.h"

#include <math.h>
#include <string.h>

#include "engine/base/float_bits.h"

/* Rounds x toward zero to a float, and sets the float's last bit if the float is not exact ("round
 * to odd"). Rounding that float to 16 bits gives the same result as rounding x to 16 bits. */
static float round_to_odd(double x)
{
    float nearest = (float)x;
    if ((double)nearest == x || isnan(nearest) || isinf(x))
        return nearest;
    uint32_t bits = float_bits(nearest);
    if (fabs((double)nearest) > fabs(x))
        bits--; /* also from infinity to the largest float */
    return float_from_bits(bits | 1);
}

/* ---- wide types ---- */

#define BOTH_WAYS(X)                                                                               \
    INTEGER_TYPES(X)                                                                               \
    X(F32, float, float) X(F64, double, double)

#define LOAD_CASE(name, type, wide)                                                                \
    case DTYPE_##name: {                                                                           \
        const type *from = src;                                                                    \
        VECTOR_LOOP for (size_t i = 0; i < n; i++) dst[i] = (LOADED)from[i];                       \
        break;                                                                                     \
    }

#define LOAD_REAL                                                                                  \
    const uint16_t *half = src;                                                                    \
    const uint8_t *flag = src;                                                                     \
    switch (dtype) {                                                                               \
        BOTH_WAYS(LOAD_CASE)                                                                       \
    case DTYPE_F16:                                                                                \
        VECTOR_LOOP for (size_t i = 0; i < n; i++) dst[i] = half_to_float(half[i]);                \
        break;                                                                                     \
    case DTYPE_BF16:                                                                               \
        VECTOR_LOOP for (size_t i = 0; i < n; i++) dst[i] =                                        \
            float_from_bits((uint32_t)half[i] << 16);                                              \
        break;                                                                                     \
    case DTYPE_BOOL:                                                                               \
        VECTOR_LOOP for (size_t i = 0; i < n; i++) dst[i] = flag[i] != 0;                          \
        break;                                                                                     \
    case DTYPE_NONE:                                                                               \
        break;                                                                                     \
    }

#define LOADED float
void load_floats(const void *src, enum dtype dtype, float *dst, size_t n)
{
    LOAD_REAL
}
#undef LOADED

#define LOADED double
void load_doubles(const void *src, enum dtype dtype, double *dst, size_t n)
{
    LOAD_REAL
}
#undef LOADED

#define LOADED int64_t
void load_integers(const void *src, enum dtype dtype, int64_t *dst, size_t n)
{
    switch (dtype) {
        INTEGER_TYPES(LOAD_CASE)
    case DTYPE_BOOL: {
        const uint8_t *flag = src;
        VECTOR_LOOP for (size_t i = 0; i < n; i++) dst[i] = flag[i] != 0;
        break;
    }
    default:
        FOR_BLOCKS(done, count, n) {
            double wide[BLOCK];
            load_doubles(element(src, dtype, done), dtype, wide, count);
            for (size_t i = 0; i < count; i++)
                dst[done + i] = double_to_int64(wide[i]);
        }
    }
}
#undef LOADED

#define MINIMUM(type) ((type)(((type)-1 < (type)1) ? (uint64_t)1 << (8 * sizeof(type) - 1) : 0))
#define MAXIMUM(type) ((type)~MINIMUM(type))
/* Truncates and saturates; NaN becomes 0. */
#define SATURATE(type, x)                                                                          \
    ((x) != (x)                     ? (type)0                                                      \
     : (x) <= (double)MINIMUM(type) ? MINIMUM(type)                                                \
     : (x) >= (double)MAXIMUM(type) ? MAXIMUM(type)                                                \
                                    : (type)(x))

#define STORE_FLOAT_CASE(name, type, wide)                                                         \
    case DTYPE_##name: {                                                                           \
        type *to = dst;                                                                            \
        for (size_t i = 0; i < n; i++)                                                             \
            to[i] = SATURATE(type, src[i]);                                                        \
        break;                                                                                     \
    }

void store_doubles(const double *src, enum dtype dtype, void *dst, size_t n)
{
    uint16_t *half = dst;
    uint8_t *flag = dst;
    float *single = dst;
    switch (dtype) {
        INTEGER_TYPES(STORE_FLOAT_CASE)
    case DTYPE_F32:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) single[i] = (float)src[i];
        break;
    case DTYPE_F64:
        if (n)
            memcpy(dst, src, n * sizeof *src);
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            half[i] = float_to_half(round_to_odd(src[i]));
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            half[i] = float_to_bfloat16(round_to_odd(src[i]));
        break;
    case DTYPE_BOOL:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) flag[i] = src[i] != 0;
        break;
    case DTYPE_NONE:
        break;
    }
}

void store_floats(const float *src, enum dtype dtype, void *dst, size_t n)
{
    uint16_t *half = dst;
    switch (dtype) {
    case DTYPE_F32:
        if (n)
            memcpy(dst, src, n * sizeof *src);
        break;
    case DTYPE_F16:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) half[i] = float_to_half(src[i]);
        break;
    case DTYPE_BF16:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) half[i] = float_to_bfloat16(src[i]);
        break;
    default:
        FOR_BLOCKS(done, count, n) {
            double wide[BLOCK];
            load_doubles(src + done, DTYPE_F32, wide, count);
            store_doubles(wide, dtype, element_at(dst, dtype, done), count);
        }
    }
}

/* Converts int64 or uint64 to every dtype. Only conversions to floats depend on the sign. */
#define STORE_WHOLE_CASE(name, type, wide)                                                         \
    case DTYPE_##name: {                                                                           \
        type *to = dst;                                                                            \
        VECTOR_LOOP for (size_t i = 0; i < n; i++) to[i] = (type)src[i];                           \
        break;                                                                                     \
    }
#define STORE_WHOLE_BODY                                                                           \
    uint8_t *flag = dst;                                                                           \
    switch (dtype) {                                                                               \
        BOTH_WAYS(STORE_WHOLE_CASE)                                                                \
    case DTYPE_BOOL:                                                                               \
        VECTOR_LOOP for (size_t i = 0; i < n; i++) flag[i] = src[i] != 0;                          \
        break;                                                                                     \
    default:                                                                                       \
        FOR_BLOCKS(done, count, n) {                                                               \
            double block[BLOCK];                                                                   \
            for (size_t i = 0; i < count; i++)                                                     \
                block[i] = (double)src[done + i];                                                  \
            store_doubles(block, dtype, element_at(dst, dtype, done), count);                      \
        }                                                                                          \
    }

void store_integers(const int64_t *src, enum dtype dtype, void *dst, size_t n)
{
    STORE_WHOLE_BODY
}

static void store_unsigned(const uint64_t *src, enum dtype dtype, void *dst, size_t n)
{
    STORE_WHOLE_BODY
}

/* ---- any to any ---- */

/* Converts between types that need an intermediate block of a wide type. */
static void convert_blocks(const void *src, enum dtype from, void *dst, enum dtype to, size_t n)
{
    FOR_BLOCKS(done, count, n) {
        union {
            double wide[BLOCK];
            int64_t whole[BLOCK];
        } block;
        const void *in = element(src, from, done);
        void *out = element_at(dst, to, done);
        if (dtype_is_float(from)) {
            load_doubles(in, from, block.wide, count);
            store_doubles(block.wide, to, out, count);
        } else {
            load_integers(in, from, block.whole, count);
            store_integers(block.whole, to, out, count);
        }
    }
}

void convert_row(const void *src, enum dtype from, void *dst, enum dtype to, size_t n)
{
    if (n == 0)
        return;
    if (from == to && from != DTYPE_BOOL)
        memcpy(dst, src, n * dtype_size(from));
    else if (from == DTYPE_U64)
        store_unsigned(src, to, dst, n);
    else if (to == DTYPE_F32) /* a wide type needs no intermediate block */
        load_floats(src, from, dst, n);
    else if (to == DTYPE_F64)
        load_doubles(src, from, dst, n);
    else if (to == DTYPE_I64)
        load_integers(src, from, dst, n);
    else if (from == DTYPE_F32)
        store_floats(src, to, dst, n);
    else if (from == DTYPE_F64)
        store_doubles(src, to, dst, n);
    else if (from == DTYPE_I64)
        store_integers(src, to, dst, n);
    else
        convert_blocks(src, from, dst, to, n);
}
