/* Private to the reference kernels: rows of elementwise operators, and broadcasting. */
#pragma once

#include "engine/op/kernel.h"
#include "engine/op/strided.h"

/* dst[i] = a[i] op b[i] for n elements. If `a_moves` (`b_moves`) is false, the operand is a single
 * element. dst may be `a` or `b`. Returns STATUS_OK, or STATUS_INVALID after an integer division by
 * zero: that element is 0 and the rest of the row is computed. */
typedef enum status (*binary_row)(const void *a, bool a_moves, const void *b, bool b_moves,
                                  void *dst, size_t n);

/* ONNX's operators with two operands, X(NAME, name). In MAX and MIN NaN wins, as in numpy. */
/* clang-format off */
#define BINARY_NUMBERS(X)                                                                          \
    X(ADD, add) X(SUB, sub) X(MUL, mul) X(DIV, div) X(MOD, mod) X(MAX, max) X(MIN, min)            \
    X(PRELU, prelu)
#define BINARY_FLAGS(X) X(AND, and) X(OR, or) X(XOR, xor)
#define BINARY_COMPARISONS(X)                                                                      \
    X(EQUAL, equal) X(GREATER, greater) X(LESS, less) X(GREATER_OR_EQUAL, greater_or_equal)        \
    X(LESS_OR_EQUAL, less_or_equal)
/* clang-format on */

/* Operators with row functions. The result of MOD has the divisor's sign. */
enum binary_op {
#define BINARY_ENUM(NAME, name) BINARY_##NAME,
    BINARY_NUMBERS(BINARY_ENUM) BINARY_FMOD, /* the result has the dividend's sign */
    BINARY_FLAGS(BINARY_ENUM) BINARY_COMPARISONS(BINARY_ENUM)
#undef BINARY_ENUM
        BINARY_COUNT,
};

/* The row function for operands of `dtype`, or NULL. The result of AND, OR, XOR and comparisons is
 * bool, other results have the operands' dtype. float16 and bfloat16 are computed in float32. bool
 * supports AND, OR, XOR and EQUAL. */
binary_row binary_row_find(enum binary_op op, enum dtype dtype);

/* Broadcasts up to three operands to an output. Dimensions are merged where every operand allows
 * it. The innermost dimension is the row; the iterator runs over the other dimensions. */
#define BROADCAST_MAX STRIDED_MAX
struct broadcast {
    int operands;
    struct strided_iterator rows;
    size_t row;                /* elements of the innermost dimension */
    bool moves[BROADCAST_MAX]; /* the operand has a full row, not a single element */
    size_t done;               /* output elements before the row */
};

/* Starts at the first row. The operands' shapes broadcast to `out` by numpy's rules, which
 * inference has checked; `out` is not empty. */
void broadcast_start(struct broadcast *broadcast, const struct shape *out,
                     const struct shape *const *shapes, int operands);

/* Moves to the next row. Returns false after the last. */
bool broadcast_next(struct broadcast *broadcast);
