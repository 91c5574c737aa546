/* Kernels along axes: reductions, softmax, sorting; see kernels.h. */
#pragma once

#include "engine/cuda/kernels/kernels_pointwise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[o] = the reduction of x over some dimensions. x is dense. The map `kept` has the other
 * dimensions, `reduced` those that are reduced. */
struct cuda_reduce_axes {
    enum op fold; /* a reduction */
    enum cuda_domain domain;
    int dtype;                            /* of x and y */
    struct cuda_access_map kept, reduced; /* dimensions and steps of x */
    size_t count, each;                   /* elements of y; elements of x per element of y */
};
void cuda_fold_axes(cudaStream_t stream, const void *x, void *y,
                    const struct cuda_reduce_axes *reduce);

/* An axis of a dense tensor: [outer, extent, inner]. */
struct cuda_axis {
    size_t outer, extent, inner;
    int dtype;
    enum cuda_domain domain;
};

/* y [outer, inner]: index of the first (is_last: last) maximum or minimum. NaN beats numbers. */
void cuda_find_extreme(cudaStream_t stream, const void *x, int64_t *y, const struct cuda_axis *axis,
                       int is_least, int is_last);

/* Softmax, or its logarithm. */
void cuda_softmax_axis(cudaStream_t stream, const void *x, void *y, const struct cuda_axis *axis,
                       int is_log);

/* The k largest or smallest elements of each line, sorted; equal elements keep their order. NaN
 * counts as larger than any number. values, [outer, k, inner] of x's dtype, and indices, int64, may
 * be NULL. workspace: cuda_top_k_workspace() bytes. */
size_t cuda_top_k_workspace(const struct cuda_axis *axis, size_t k);
void cuda_top_k(cudaStream_t stream, const void *x, void *values, int64_t *indices,
                const struct cuda_axis *axis, size_t k, int is_least, void *workspace);

#ifdef __cplusplus
}
#endif
