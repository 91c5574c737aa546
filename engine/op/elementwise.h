/* Private to the reference kernels: rows of elementwise operators, and broadcasting. */
#pragma once

#include "engine/op/kernel.h"
#include "engine/op/strided.h"

/* dst[i] = a[i] op b[i] for n elements; where `a_moves` (`b_moves`) is false the operand is one
 * element that is used for all. dst may be a or b itself. STATUS_OK, or STATUS_INVALID when an
 * integer is divided by zero (the rest of the row is still computed, the element is 0). */
typedef enum status (*binary_row)(const void *a, bool a_moves, const void *b, bool b_moves,
                                  void *dst, size_t n);

/* Operators that rows exist for: the ONNX ones with two operands, and the two forms of Mod. */
enum binary_op {
    BINARY_ADD,
    BINARY_SUB,
    BINARY_MUL,
    BINARY_DIV,
    BINARY_MOD,  /* the sign of the divisor */
    BINARY_FMOD, /* the sign of the dividend */
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

/* The row for operands of `dtype`, NULL where there is none. From BINARY_EQUAL on (and for AND, OR,
 * XOR) the result is bool, else of the operands' dtype. float16 and bfloat16 are computed in
 * float32; bool takes AND, OR, XOR, EQUAL. */
binary_row binary_row_find(enum binary_op op, enum dtype dtype);

/* How up to three operands broadcast to an output: dimensions merged where every operand allows it,
 * innermost one apart. The iterator is over the outer ones, its offsets are those of the row. */
#define BROADCAST_MAX STRIDED_MAX
struct broadcast {
    int operands;
    struct strided_iterator rows;
    size_t row;                /* elements of the innermost dimension; 0: nothing */
    bool moves[BROADCAST_MAX]; /* the operand has a whole row, not one element */
    size_t done;               /* output elements before the row */
};

/* shapes[operands] broadcast to `out` by numpy's rules (inference has checked that). Starts at the
 * first row; false when there are no elements. */
bool broadcast_start(struct broadcast *broadcast, const struct shape *out,
                     const struct shape *const *shapes, int operands);

/* Moves to the next row; false after the last. */
bool broadcast_next(struct broadcast *broadcast);

/* The activation of an epilogue, in place. */
void activation_apply(const struct epilogue *epilogue, double *values, size_t n);
