/* Private to the reference kernels: iterates over an index space in row-major order and tracks the
 * current offset in several strided arrays. */
#pragma once

#include "engine/tensor/tensor.h"

#define STRIDED_MAX 3 /* maximum number of arrays */

struct strided_iterator {
    int rank;
    size_t extent[TENSOR_MAX_RANK];
    size_t step[STRIDED_MAX][TENSOR_MAX_RANK]; /* in elements; 0: repeats the element */
    size_t at[TENSOR_MAX_RANK];
    size_t offset[STRIDED_MAX]; /* of the current element in each array */
};

/* Moves the first `arrays` arrays to the next element. Returns false after the last. */
static inline bool strided_next(struct strided_iterator *it, int arrays)
{
    for (int d = it->rank - 1; d >= 0; d--) {
        for (int k = 0; k < arrays; k++)
            it->offset[k] += it->step[k][d];
        if (++it->at[d] < it->extent[d])
            return true;
        for (int k = 0; k < arrays; k++)
            it->offset[k] -= it->step[k][d] * it->at[d];
        it->at[d] = 0;
    }
    return false;
}
