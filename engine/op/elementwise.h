/* Private to the reference kernels: rows of elementwise operators, and broadcasting. */
#pragma once

#include "engine/op/kernel.h"
#include "engine/op/strided.h"

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

/* Operators for binary_apply(). The result of MOD has the divisor's sign. POW takes float32,
 * float64 and int64. */
enum binary_op {
#define BINARY_ENUM(NAME, name) BINARY_##NAME,
    BINARY_NUMBERS(BINARY_ENUM) BINARY_FMOD, /* the result has the dividend's sign */
    BINARY_POW,
    BINARY_FLAGS(BINARY_ENUM) BINARY_COMPARISONS(BINARY_ENUM)
#undef BINARY_ENUM
        BINARY_COUNT,
};

/* Sets dst[i] = a[i] op b[i] for n elements of `dtype`. If `a_moves` (`b_moves`) is false, the
 * operand is a single element. dst may be `a` or `b`. The result of AND, OR, XOR and comparisons is
 * bool, other results have the operands' dtype. float16 and bfloat16 are computed in float32. bool
 * supports AND, OR, XOR and EQUAL. Returns STATUS_OK, or STATUS_INVALID after an integer division
 * by zero: that element is 0 and the rest of the row is computed. */
enum status binary_apply(enum binary_op op, enum dtype dtype, const void *a, bool a_moves,
                         const void *b, bool b_moves, void *dst, size_t n);
