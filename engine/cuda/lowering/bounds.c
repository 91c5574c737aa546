/* Finds the range of a value's integers in all possible runs, so that indices from TopK, ArgMax or
 * constants, and values computed from them, need no check on the device. The range of every
 * intermediate value must fit its dtype; a value that may wrap has no known range. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/op/ops.h"

enum { MOST_VALUES = 256 }; /* values that a search may visit */

static bool bounds_of(int *visited, const struct value *value, struct bounds *ret);

static bool of_constant(const struct tensor *tensor, struct bounds *ret)
{
    const size_t count = shape_count(&tensor->shape);
    for (size_t i = 0; i < count; i++) {
        const int64_t x = tensor_int(tensor, i);
        if (i == 0 || x < ret->low)
            ret->low = x;
        if (i == 0 || x > ret->high)
            ret->high = x;
    }
    return count > 0;
}

static bool of_input(int *visited, const struct node *node, size_t i, struct bounds *ret)
{
    const struct value *value = node_input(node, i);
    return value && bounds_of(visited, value, ret);
}

static void join(struct bounds *to, const struct bounds *more)
{
    to->low = more->low < to->low ? more->low : to->low;
    to->high = more->high > to->high ? more->high : to->high;
}

static bool of_union(int *visited, const struct node *node, size_t first, struct bounds *ret)
{
    struct bounds more;
    for (size_t i = first; i < node->input_count; i++) {
        if (!of_input(visited, node, i, &more))
            return false;
        if (i == first)
            *ret = more;
        else
            join(ret, &more);
    }
    return node->input_count > first;
}

static bool computed(enum op op, int64_t a, int64_t b, int64_t *ret)
{
    switch (op) {
    case OP_ADD:
        return !__builtin_add_overflow(a, b, ret);
    case OP_SUB:
        return !__builtin_sub_overflow(a, b, ret);
    case OP_MUL:
        return !__builtin_mul_overflow(a, b, ret);
    default: /* Div; toward 0 */
        *ret = b > 0 ? a / b : 0;
        return b > 0;
    }
}

/* Bounds a result that is greatest and least where both operands are greatest or least. */
static bool of_extremes(enum op op, const struct bounds *a, const struct bounds *b,
                        struct bounds *ret)
{
    for (int i = 0; i < 4; i++) {
        int64_t x;
        if (!computed(op, i / 2 ? a->high : a->low, i % 2 ? b->high : b->low, &x))
            return false;
        if (i == 0)
            *ret = (struct bounds){x, x};
        join(ret, &(struct bounds){x, x});
    }
    return true;
}

/* Bounds a remainder: it has the sign of divisor or dividend, and is smaller than the divisor. */
static bool of_remainder(const struct node *node, const struct bounds *a, const struct bounds *b,
                         struct bounds *ret)
{
    if (b->low <= 0)
        return false;
    const bool has_sign_of_dividend = node_int(node, "fmod", 0) != 0;
    *ret = (struct bounds){has_sign_of_dividend && a->low < 0 ? 1 - b->high : 0, b->high - 1};
    return true;
}

/* Rules for the range of an operator's result. */
enum bounds_rule {
    OF_NOTHING,
    OF_INPUT,
    OF_CHOICE,
    OF_UNION,
    OF_EXTENT,
    OF_TOP,
    OF_EXTREMES,
    OF_REMAINDER
};
static const enum bounds_rule rules[OP_COUNT] = {
    [OP_TOP_K] = OF_TOP,          [OP_ARG_MAX] = OF_EXTENT, [OP_ARG_MIN] = OF_EXTENT,
    [OP_STRIDED_COPY] = OF_INPUT, [OP_TILE] = OF_INPUT,     [OP_GATHER_ELEMENTS] = OF_INPUT,
    [OP_GATHER_ND] = OF_INPUT,    [OP_CAST] = OF_INPUT,     [OP_WHERE] = OF_CHOICE,
    [OP_CONCAT] = OF_UNION,       [OP_MAX] = OF_UNION,      [OP_MIN] = OF_UNION,
    [OP_ADD] = OF_EXTREMES,       [OP_SUB] = OF_EXTREMES,   [OP_MUL] = OF_EXTREMES,
    [OP_DIV] = OF_EXTREMES,       [OP_MOD] = OF_REMAINDER};

static bool of_arithmetic(int *visited, const struct node *node, struct bounds *ret)
{
    struct bounds a, b;
    if (node->input_count != 2 || !of_input(visited, node, 0, &a) ||
        !of_input(visited, node, 1, &b))
        return false;
    return rules[node->op] == OF_EXTREMES ? of_extremes(node->op, &a, &b, ret)
                                          : of_remainder(node, &a, &b, ret);
}

static bool of_extent(const struct node *node, int64_t otherwise, struct bounds *ret)
{
    const struct shape *x = &node->inputs[0]->shape;
    *ret = (struct bounds){0, x->dims[node_axis(node, otherwise, x->rank)] - 1};
    return ret->high >= 0;
}

/* True if all values fit the dtype, which has up to 64 bits with a sign; others would wrap. */
static bool fits(const struct bounds *bounds, enum dtype dtype)
{
    const bool has_sign = dtype != DTYPE_U8 && dtype != DTYPE_U16 && dtype != DTYPE_U32;
    const int64_t high = (int64_t)(UINT64_MAX >> (64 - 8 * dtype_size(dtype) + has_sign));
    return bounds->low >= (has_sign ? -high - 1 : 0) && bounds->high <= high;
}

static bool of_node(int *visited, const struct value *value, struct bounds *ret)
{
    const struct node *node = value->producer;
    if (node->epilogue.activation || node->epilogue.residual)
        return false;
    switch (op_has(node->op, OP_MOVES) ? OF_INPUT : rules[node->op]) {
    case OF_TOP:
        return value == node_output(node, 1) && of_extent(node, -1, ret);
    case OF_EXTENT:
        return of_extent(node, 0, ret);
    case OF_INPUT:
        return of_input(visited, node, 0, ret);
    case OF_CHOICE:
        return of_union(visited, node, 1, ret);
    case OF_UNION:
        return of_union(visited, node, 0, ret);
    case OF_NOTHING:
        return false;
    default:
        return of_arithmetic(visited, node, ret);
    }
}

static bool bounds_of(int *visited, const struct value *value, struct bounds *ret)
{
    if (value->dtype == DTYPE_BOOL) {
        *ret = (struct bounds){0, 1};
        return true;
    }
    if (dtype_is_float(value->dtype) || value->dtype == DTYPE_U64 || ++*visited > MOST_VALUES)
        return false;
    if (value->known)
        return of_constant(value->known, ret);
    return value->producer && of_node(visited, value, ret) && fits(ret, value->dtype);
}

bool value_bounds(const struct value *value, struct bounds *ret)
{
    int visited = 0;
    return bounds_of(&visited, value, ret);
}

bool indices_stay_within(const struct value *indices, int64_t extent)
{
    struct bounds bounds;
    return (indices->dtype == DTYPE_I64 || indices->dtype == DTYPE_I32) &&
           value_bounds(indices, &bounds) && bounds.low >= -extent && bounds.high < extent;
}
