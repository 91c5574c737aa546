/* Kernels that pick elements of 1 to 8 bytes: padding, gathers, scatters; see kernels.h. */
#pragma once

#include "engine/cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[…, i, …] = x[…, first + i - before, …] in each dimension, `fill` outside of the `kept`
 * elements. */
struct cuda_pad {
    int rank;
    int64_t out[CUDA_MAX_RANK], kept[CUDA_MAX_RANK], first[CUDA_MAX_RANK], before[CUDA_MAX_RANK];
    int64_t steps[CUDA_MAX_RANK]; /* strides of x, in elements */
    uint64_t fill;                /* its first bytes in memory are the element */
};
void cuda_pad_any(cudaStream_t stream, int size, const void *x, void *y,
                  const struct cuda_pad *pad);

/* Maps each of `count` tuples of indices to a slice of a tensor. Index k is below extent[k], counts
 * from the end if negative, and adds index * step[k] elements. All indices must be in range. */
struct cuda_tuples {
    int depth, index_bytes; /* indices of a tuple; bytes of an index, 4 or 8 */
    int64_t extent[CUDA_MAX_RANK], step[CUDA_MAX_RANK];
    size_t count, slice; /* tuples; elements of a slice */
    size_t per_batch;    /* tuples of a batch */
    size_t listed;       /* number of tuples in memory; further batches use the same tuples */
    int64_t batch_step;  /* elements of the tensor between batches */
};
/* Copies slices of `from` to the rows of `to`, which is [count, slice]. With `scatters`, copies the
 * rows of `from`, [count, slice], to slices of `to`; then no two tuples may be equal. */
void cuda_index_tuples(cudaStream_t stream, int size, int scatters, const void *from,
                       const void *indices, void *to, const struct cuda_tuples *tuples);

/* Indices along an axis of `extent` elements. map.dims are the indices' dimensions, map.steps[0]
 * the tensor's strides, with 0 for the axis. An index adds index * axis_step elements. */
struct cuda_along {
    struct cuda_access_map map;
    int index_bytes; /* of an index: 4 or 8 */
    int64_t extent, axis_step;
};
/* to[…] = from[…, indices[…], …]; `scatters`: to[…, indices[…], …] = from[…], no element twice. */
void cuda_index_along(cudaStream_t stream, int size, int scatters, const void *from,
                      const void *indices, void *to, const struct cuda_along *along);

#ifdef __cplusplus
}
#endif
