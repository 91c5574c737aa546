/* Size arithmetic with overflow checks, for every size that comes from a file or a client, and
 * memory of such sizes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Sets *ret to a * b. Returns false on overflow, without changing *ret. */
static inline bool size_mul(size_t a, size_t b, size_t *ret)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

/* Sets *ret to a + b. Returns false on overflow, without changing *ret. */
static inline bool size_add(size_t a, size_t b, size_t *ret)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret = sum;
    return true;
}

/* Sums and products of estimates; SIZE_MAX on overflow. */
static inline size_t size_sum(size_t a, size_t b)
{
    return size_add(a, b, &a) ? a : SIZE_MAX;
}

static inline size_t size_product(size_t a, size_t b)
{
    return size_mul(a, b, &a) ? a : SIZE_MAX;
}

/* Rounds n up to a multiple of `align`, a power of two. n must be far from SIZE_MAX. */
static inline size_t size_align(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* Like calloc: allocates `count` zeroed elements of `size` bytes, at least one byte. Returns NULL
 * when the product overflows or memory runs out. Free it with free(). */
static inline void *alloc_array(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1);
}

/* FREE_ALL(a, b, c) calls free() for each pointer. */
#define FREE_ALL(...)                                                                              \
    free_all((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))

static inline void free_all(void **pointers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(pointers[i]);
}

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
