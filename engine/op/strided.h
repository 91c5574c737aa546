/* Iterates over an index space in row-major order and tracks the current offset in several strided
 * arrays. Private to the reference kernels, except struct broadcast. */
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

/* Broadcasts up to three operands to an output. Dimensions are merged where every operand allows
 * it. The innermost dimension is the row; the iterator runs over the other dimensions. */
#define BROADCAST_MAX STRIDED_MAX
struct broadcast {
    int operands;
    struct strided_iterator rows; /* extent[rank] and step[…][rank] are those of the row */
    size_t row;                   /* elements of the innermost dimension */
    bool moves[BROADCAST_MAX];    /* the operand has a full row, not a single element */
    size_t done;                  /* output elements before the row */
};

/* Starts at the first row. The operands' shapes broadcast to `out` by numpy's rules, which
 * inference has checked; `out` is not empty. */
void broadcast_start(struct broadcast *broadcast, const struct shape *out,
                     const struct shape *const *shapes, int operands);

/* Sets the steps of an operand along the dimensions of `out`, in elements. A step is 0 along a
 * dimension where the operand is repeated. */
void broadcast_steps(const struct shape *out, const struct shape *shape, size_t *steps);

/* Moves to the next row. Returns false after the last. */
bool broadcast_next(struct broadcast *broadcast);
