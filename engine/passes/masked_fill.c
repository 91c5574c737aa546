/* Rewrites x[mask] = constant (masked_fill). Exporters write this assignment as a scatter to the
 * positions where the mask is true. The rewrite is a Where, which selects each element:
 *
 *     mask → NonZero → Transpose ─ (columns → Concat) ─▶ ScatterND(x, places, Expand(c))
 *     mask → Reshape → Where(mask, c, x)
 *
 * The number of positions depends on the data, so later shapes are unknown, and images cannot be
 * proven independent. A Where has x's shape and needs no list of positions. */
#include "engine/passes/functions.h"

#include <string.h>

#include "engine/base/size.h"

/* True if operand i is one constant integer: `wanted`, or `wanted` - `rank` (from the end). */
static bool masked_is_number(const struct node *node, size_t i, int64_t wanted, int64_t rank)
{
    int64_t number;
    size_t count;
    return edit_integers(node, i, &number, 1, &count) && count == 1 &&
           (number == wanted || number == wanted - rank);
}

/* Returns the NonZero whose transpose is `places`, [count, rank of the mask], or NULL. */
static const struct node *masked_places(const struct value *places)
{
    const struct node *node = places->producer;
    size_t count;
    const int64_t *perm = node && node->op == OP_TRANSPOSE ? node_ints(node, "perm", &count) : NULL;
    const bool is_swap = perm && count == 2 && perm[0] == 1 && perm[1] == 0;
    const struct node *from = is_swap ? node->inputs[0]->producer : NULL;
    return from && from->op == OP_NON_ZERO ? from : NULL;
}

/* If `column` has coordinate `at` of all positions that a NonZero returns, returns the NonZero;
 * otherwise NULL. `rank` is the rank of `column`: 1 for [count], 2 for [count, 1]. */
static const struct node *masked_column(const struct value *column, int64_t at, int rank)
{
    const struct node *node = column->producer;
    while (node && node->op == (rank == 1 ? OP_SQUEEZE : OP_UNSQUEEZE) &&
           masked_is_number(node, 1, 1, 2)) {
        rank = 3 - rank;
        column = node->inputs[0];
        node = column->producer;
    }
    const bool is_slice = node && node->op == OP_SLICE && masked_is_number(node, 1, at, 0) &&
                          masked_is_number(node, 2, at + 1, 0) && masked_is_number(node, 3, 1, 2) &&
                          (!node_input(node, 4) || masked_is_number(node, 4, 1, 0));
    const bool is_part = node && node->op == OP_SPLIT && node_int(node, "axis", 0) == 1 &&
                         (size_t)at < node->output_count && node->outputs[at] == column;
    return rank == 2 && (is_slice || is_part) ? masked_places(node->inputs[0]) : NULL;
}

static bool masked_is_one(const struct value *value)
{
    const struct node *node = value->producer;
    const struct attr *one =
        node && node->op == OP_CONSTANT_OF_SHAPE ? node_attr(node, "value") : NULL;
    return one && one->kind == ATTR_TENSOR && tensor_number(one->t, 0) == 1;
}

/* True if `shape` is Shape(c0 + c1 + …), where c0, c1, … are the columns of coordinates of the
 * NonZero `from`. torch.onnx expands each column to this shape. A Where may have replaced
 * lengths by 1, for which Expand keeps the column's own length. */
static bool masked_is_extent(const struct value *shape, const struct node *from)
{
    const struct node *node = shape->producer;
    if (node && node->op == OP_WHERE && masked_is_one(node->inputs[1]))
        node = node->inputs[2]->producer;
    if (!node || node->op != OP_SHAPE)
        return false;
    const struct value *sum = node->inputs[0];
    for (int64_t at = from->inputs[0]->shape.rank - 1; at > 0; at--) {
        const struct node *add = sum->producer;
        if (!add || add->op != OP_ADD || masked_column(add->inputs[1], at, 1) != from)
            return false;
        sum = add->inputs[0];
    }
    return masked_column(sum, 0, 1) == from;
}

/* If `part`, [count, 1], has coordinate `at` of all positions that a NonZero returns, returns the
 * NonZero; otherwise NULL. An Expand of the column to its own length may lie between. */
static const struct node *masked_tuple_part(const struct value *part, int64_t at)
{
    const struct node *last = part->producer;
    const struct node *expand = last && last->op == OP_UNSQUEEZE && masked_is_number(last, 1, 1, 2)
                                    ? last->inputs[0]->producer
                                    : NULL;
    if (!expand || expand->op != OP_EXPAND)
        return masked_column(part, at, 2);
    const struct node *from = masked_column(expand->inputs[0], at, 1);
    return from && masked_is_extent(expand->inputs[1], from) ? from : NULL;
}

/* Returns the NonZero whose positions a ScatterND writes, or NULL. */
static const struct node *masked_source(const struct value *tuples)
{
    const struct node *concat = tuples->producer, *from = masked_places(tuples);
    if (from || !concat)
        return from;
    const int64_t axis = concat->op == OP_CONCAT ? node_int(concat, "axis", 0) : 0;
    if (axis != 1 && axis != -1) { /* the tuples are one column */
        from = masked_tuple_part(tuples, 0);
        return from && from->inputs[0]->shape.rank == 1 ? from : NULL;
    }
    for (size_t i = 0; i < concat->input_count; i++) {
        const struct node *own = masked_tuple_part(concat->inputs[i], (int64_t)i);
        if (!own || (from && own != from))
            return NULL;
        from = own;
    }
    return from && from->inputs[0]->shape.rank == (int)concat->input_count ? from : NULL;
}

/* Returns the scalar constant that all updates repeat, or NULL. */
static const struct tensor *masked_number(const struct value *updates)
{
    for (const struct node *node = updates->producer;
         node && (node->op == OP_EXPAND || node->op == OP_RESHAPE); node = updates->producer)
        updates = node->inputs[0];
    return updates->known && shape_count(&updates->known->shape) == 1 ? updates->known : NULL;
}

bool masked_fill_as_where(struct edit *edit, size_t at)
{
    struct node *node = edit->graph->nodes[at];
    if (node->op != OP_SCATTER_ND || strcmp(node_string(node, "reduction", "none"), "none") != 0)
        return false;
    struct value *x = node->inputs[0];
    const struct node *from = masked_source(node->inputs[1]);
    struct value *mask = from ? from->inputs[0] : NULL;
    const struct tensor *number = mask ? masked_number(node->inputs[2]) : NULL;
    if (!number || number->dtype != x->dtype || mask->dtype != DTYPE_BOOL ||
        !shape_is_known(&x->shape) || !shape_is_known(&mask->shape) || mask->shape.rank < 1 ||
        mask->shape.rank > x->shape.rank ||
        memcmp(mask->shape.dims, x->shape.dims, (size_t)mask->shape.rank * sizeof(int64_t)) != 0)
        return false;
    struct shape mask_shape = x->shape; /* [dimensions of the mask, 1 …] */
    for (int d = mask->shape.rank; d < mask_shape.rank; d++)
        mask_shape.dims[d] = 1;
    struct value *scalar = edit_constant(edit, x->dtype, &SHAPE_SCALAR, number->data);
    struct value *dims = edit_constant(edit, DTYPE_I64, &SHAPE(mask_shape.rank), mask_shape.dims);
    if (!scalar || !dims)
        return false;
    struct value *wide =
        edit_insert_value(edit, at, OP_RESHAPE, 13, node->name, (struct value *const[]){mask, dims},
                          2, DTYPE_BOOL, &mask_shape);
    return wide &&
           edit_become(edit, node, OP_WHERE, 16, (struct value *const[]){wide, scalar, x}, 3);
}
