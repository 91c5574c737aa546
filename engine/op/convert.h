/* Element types, and conversions of rows of elements.
 *
 * Integers wrap when they become narrower integers. Floats become integers by truncation toward
 * zero and saturation; NaN becomes 0. bool means "not equal to zero", also for NaN. Floats that
 * become narrower floats are rounded to nearest even. All functions are thread-safe; rows must not
 * overlap. */
#pragma once

#include "engine/tensor/tensor.h"

/* X(DTYPE, C type, unsigned type for arithmetic: wide enough to avoid promotion to int). */
#define SIGNED_TYPES(X)                                                                            \
    X(I8, int8_t, uint32_t)                                                                        \
    X(I16, int16_t, uint32_t) X(I32, int32_t, uint32_t) X(I64, int64_t, uint64_t)
#define UNSIGNED_TYPES(X)                                                                          \
    X(U8, uint8_t, uint32_t)                                                                       \
    X(U16, uint16_t, uint32_t) X(U32, uint32_t, uint32_t) X(U64, uint64_t, uint64_t)
#define INTEGER_TYPES(X) SIGNED_TYPES(X) UNSIGNED_TYPES(X)

/* Tells gcc that no iteration of the loop depends on another iteration, so that gcc vectorises the
 * loop. An output may be the same array as an input. Clang needs no pragma, and warns about this
 * one. */
#ifdef __clang__
#define VECTOR_LOOP
#else
#define VECTOR_LOOP _Pragma("GCC ivdep")
#endif

/* Number of elements that kernels convert at a time through stack buffers. */
#define BLOCK 256

/* Loops over `count` elements in blocks; each block has `n` elements from `at` on. */
#define FOR_BLOCKS(at, n, count)                                                                   \
    for (size_t at = 0, n;                                                                         \
         at < (count) && (n = ((count) < at + BLOCK ? (count) : at + BLOCK) - at); at += BLOCK)

/* dst[i] = (to) src[i]. */
void convert_row(const void *src, enum dtype from, void *dst, enum dtype to, size_t n);

/* Convert elements of any dtype to float, double or int64, or from float, double or int64 to any
 * dtype. */
void load_floats(const void *src, enum dtype dtype, float *dst, size_t n);
void store_floats(const float *src, enum dtype dtype, void *dst, size_t n);
void load_doubles(const void *src, enum dtype dtype, double *dst, size_t n);
void store_doubles(const double *src, enum dtype dtype, void *dst, size_t n);
void load_integers(const void *src, enum dtype dtype, int64_t *dst, size_t n);
void store_integers(const int64_t *src, enum dtype dtype, void *dst, size_t n);

/* Address of element i of an array of `dtype`. For an array without elements, i is 0. */
static inline const void *element(const void *data, enum dtype dtype, size_t i)
{
    return i ? (const char *)data + i * dtype_size(dtype) : data;
}

static inline void *element_at(void *data, enum dtype dtype, size_t i)
{
    return i ? (char *)data + i * dtype_size(dtype) : data;
}

/* Truncates toward zero and saturates; 0 for NaN. */
static inline int64_t double_to_int64(double x)
{
    if (!(x == x))
        return 0;
    if (x >= 0x1p63)
        return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}
