/* Overflow-checked size arithmetic. Every size that comes from a file or a client is added and
 * multiplied through these before it is used or allocated. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* *ret = a * b; false (and *ret untouched) when it does not fit. */
static inline bool size_mul(size_t a, size_t b, size_t *ret)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

/* *ret = a + b; false (and *ret untouched) when it does not fit. */
static inline bool size_add(size_t a, size_t b, size_t *ret)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret = sum;
    return true;
}

/* n rounded up to a multiple of `align`, a power of two. The caller has checked n is far from
 * SIZE_MAX. */
static inline size_t size_align(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* calloc with the product checked by the callee: count elements of `size` bytes, zeroed; NULL when
 * it overflows or memory is short. At least one byte is allocated. Free with free(). */
static inline void *alloc_array(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1);
}

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
