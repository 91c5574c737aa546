/* Private to the reference kernels: copies between strided arrays of any element type. */
#pragma once

#include "engine/op/kernel.h"

/* The greatest rank of a strided copy. Tile and the block operators split each dimension in two. */
#define COPY_MAX_RANK (2 * TENSOR_MAX_RANK)

/* One dimension; steps are in bytes. A source step of 0 repeats the element, and a negative step
 * goes back. */
struct copy_dim {
    size_t extent;
    ptrdiff_t dst, src;
};

/* Copies product(extents) elements of `item` bytes (1, 2, 4 or 8), outermost dimension first.
 * Modifies `dims`. dst and src must not overlap; either may be NULL when an extent is 0. */
void copy_strided(void *dst, const void *src, size_t item, struct copy_dim *dims, int rank);

/* Copies an array of shape `from` to an array of shape `to`. `from` broadcasts to `to` by numpy's
 * rules. */
void copy_broadcast(void *dst, const struct shape *to, const void *src, const struct shape *from,
                    size_t item);

/* Writes n copies of the element *value of `item` bytes. */
void fill_row(void *dst, const void *value, size_t item, size_t n);

/* X(unsigned type) for every element size. */
#define EACH_ITEM_TYPE(X) X(uint8_t) X(uint16_t) X(uint32_t) X(uint64_t)

/* Calls one of the functions function_uint8_t() … function_uint64_t(): the function whose type has
 * `item` bytes. */
#define BY_ITEM_SIZE(item, function, ...)                                                          \
    ((item) == 1   ? function##_uint8_t(__VA_ARGS__)                                               \
     : (item) == 2 ? function##_uint16_t(__VA_ARGS__)                                              \
     : (item) == 4 ? function##_uint32_t(__VA_ARGS__)                                              \
                   : function##_uint64_t(__VA_ARGS__))

/* memcpy() and memset() that accept NULL when the length is 0. */
void copy_bytes(void *dst, const void *src, size_t bytes);
void zero_bytes(void *dst, size_t bytes);

/* Sets ret[d] to the step in bytes along dimension d of a contiguous array. */
void contiguous_steps(const struct shape *shape, size_t item, ptrdiff_t *ret);
