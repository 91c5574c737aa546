/* Private to the reference kernels: rows of elementwise operators, and broadcasting. */
#pragma once

#include "engine/op/kernel.h"
#include "engine/op/strided.h"

/* dst[i] = a[i] op b[i] for n elements. If `a_moves` (`b_moves`) is false, the operand is a single
 * element. dst may be a or b. Returns STATUS_OK, or STATUS_INVALID after an integer division by
 * zero: that element is 0 and the rest of the row is computed. */
typedef enum status (*binary_row)(const void *a, bool a_moves, const void *b, bool b_moves,
                                  void *dst, size_t n);

/* Operators with row functions: ONNX's operators with two operands, and the two forms of Mod. */
enum binary_op {
    BINARY_ADD,
    BINARY_SUB,
    BINARY_MUL,
    BINARY_DIV,
    BINARY_MOD,  /* the result has the divisor's sign */
    BINARY_FMOD, /* the result has the dividend's sign */
    BINARY_MAX,  /* NaN wins, as in numpy */
    BINARY_MIN,
    BINARY_PRELU,
    BINARY_AND,
    BINARY_OR,
    BINARY_XOR,
    BINARY_EQUAL,
    BINARY_GREATER,
    BINARY_LESS,
    BINARY_GREATER_OR_EQUAL,
    BINARY_LESS_OR_EQUAL,
    BINARY_COUNT,
};

/* The row function for operands of `dtype`, or NULL. The result of BINARY_EQUAL and later ones and
 * of AND, OR, XOR is bool, otherwise it has the operands' dtype. float16 and bfloat16 are computed
 * in float32. bool supports AND, OR, XOR and EQUAL. */
binary_row binary_row_find(enum binary_op op, enum dtype dtype);

/* Broadcasts up to three operands to an output. Dimensions are merged where every operand allows
 * it. The innermost dimension is the row; the iterator runs over the other dimensions. */
#define BROADCAST_MAX STRIDED_MAX
struct broadcast {
    int operands;
    struct strided_iterator rows;
    size_t row;                /* elements of the innermost dimension; 0: the output is empty */
    bool moves[BROADCAST_MAX]; /* the operand has a full row, not a single element */
    size_t done;               /* output elements before the row */
};

/* Starts at the first row. The operands' shapes broadcast to `out` by numpy's rules, which
 * inference has checked. Returns false if there are no elements. */
bool broadcast_start(struct broadcast *broadcast, const struct shape *out,
                     const struct shape *const *shapes, int operands);

/* Moves to the next row. Returns false after the last. */
bool broadcast_next(struct broadcast *broadcast);
