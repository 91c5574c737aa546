/* Batch rules that operators of several families share. */
#include "engine/op/batch.h"

#include "engine/graph/graph.h"

int batch_of_first(const struct node *node, const int *axes)
{
    for (size_t i = 1; i < node->input_count; i++)
        if (axes[i] != BATCH_FREE)
            return BATCH_MIXES;
    return axes[0];
}

int batch_of_samples(const struct node *node, const int *axes, size_t count)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (axes[i] != BATCH_FREE &&
            (axes[i] != 0 || i >= count ||
             node->inputs[i]->shape.dims[0] != node->outputs[0]->shape.dims[0]))
            return BATCH_MIXES;
    return 0;
}

/* Returns the axis of input i that numpy's broadcasting aligns with the output's `axis`; negative
 * if input i has no such axis. */
static int aligned_axis(const struct node *node, size_t i, int axis)
{
    return axis - node->outputs[0]->shape.rank + node->inputs[i]->shape.rank;
}

/* Batch rule of operands that broadcast: all images must be on one axis of the result. */
static int elementwise_axis(const struct node *node, const int *axes)
{
    const struct shape *out = &node->outputs[0]->shape;
    int axis = BATCH_FREE;
    for (size_t i = 0; i < node->input_count; i++) {
        if (axes[i] == BATCH_FREE)
            continue;
        const struct shape *in = &node->inputs[i]->shape;
        const int to = axes[i] + out->rank - in->rank;
        if (to < 0 || in->dims[axes[i]] != out->dims[to] || (axis != BATCH_FREE && axis != to))
            return BATCH_MIXES;
        axis = to;
    }
    return axis;
}

int batch_of_sample(const struct node *node, const int *axes)
{
    return batch_of_samples(node, axes, 1);
}

static int two_samples_axis(const struct node *node, const int *axes)
{
    return batch_of_samples(node, axes, 2);
}

static int unless(int axis, int64_t whole)
{
    return axis != whole ? axis : BATCH_MIXES;
}

static int beside_last_axis(const struct node *node, const int *axes)
{
    return unless(batch_of_first(node, axes), node_axis(node, -1, node->inputs[0]->shape.rank));
}

static int beside_first_axis(const struct node *node, const int *axes)
{
    return unless(batch_of_first(node, axes), node_axis(node, 0, node->inputs[0]->shape.rank));
}

static int before_last_axis(const struct node *node, const int *axes)
{
    const int axis = batch_of_first(node, axes);
    return axis < node_axis(node, -1, node->inputs[0]->shape.rank) ? axis : BATCH_MIXES;
}

/* The images may be on a batch axis, or be the rows of `a` or the columns of `b`. */
static int matmul_axis(const struct node *node, const int *axes)
{
    const size_t second = node->op == OP_QLINEAR_MATMUL ? 3 : 1;
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[second]->shape;
    const int of_a = axes[0], of_b = axes[second], rank = node->outputs[0]->shape.rank;
    for (size_t i = 1; i < node->input_count; i++)
        if (i != second && axes[i] != BATCH_FREE)
            return BATCH_MIXES;
    if (a->rank >= 2 && b->rank == 1 && of_b == BATCH_FREE) /* a vector that all rows use */
        return unless(of_a, a->rank - 1);
    if (a->rank < 2 || b->rank < 2 || of_a == a->rank - 1 || of_b == b->rank - 2)
        return BATCH_MIXES;
    const int to_a = of_a + rank - a->rank, to_b = of_b + rank - b->rank;
    if (of_a == BATCH_FREE || of_b == BATCH_FREE)
        return of_a == BATCH_FREE ? to_b : to_a;
    return to_a == to_b && to_a < rank - 2 && a->dims[of_a] == b->dims[of_b] ? to_a : BATCH_MIXES;
}

int batch_of_concat(const struct node *node, const int *axes)
{
    int axis = BATCH_FREE;
    for (size_t i = 0; i < node->input_count; i++) {
        if (axes[i] != BATCH_FREE && axis != BATCH_FREE && axes[i] != axis)
            return BATCH_MIXES;
        axis = axes[i] != BATCH_FREE ? axes[i] : axis;
    }
    return unless(axis, node_axis(node, 1, node->outputs[0]->shape.rank));
}

static int beside_matmul(const struct node *node, size_t i, int axis)
{
    const int rank = node->inputs[i]->shape.rank, aligned = aligned_axis(node, i, axis);
    return rank < 3 ? BATCH_OTHER : aligned < rank - 2 ? aligned : BATCH_WHOLE;
}

static int gemm_axis(const struct node *node, const int *axes)
{
    return batch_of_first(node, axes) == (node_int(node, "transA", 0) ? 1 : 0) ? 0 : BATCH_MIXES;
}

static int beside_gemm(const struct node *node, size_t i, int axis)
{
    return i == (node->op == OP_QGEMM ? 6 : 2) ? aligned_axis(node, i, axis) : BATCH_OTHER;
}

int batch_same(const struct node *node, size_t i, int axis)
{
    (void)node, (void)i;
    return axis;
}

int batch_beside_shape(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 1 ? BATCH_EXTENTS : BATCH_OTHER;
}

const struct batch_rule batch_mixes = {NULL, NULL};
const struct batch_rule batch_elementwise = {elementwise_axis, aligned_axis};
const struct batch_rule batch_unary = {batch_of_first, NULL};
const struct batch_rule batch_reshape = {batch_of_first, NULL};
const struct batch_rule batch_by_sample = {batch_of_sample, NULL};
const struct batch_rule batch_by_sample_of_two = {two_samples_axis, batch_same};
const struct batch_rule batch_beside_last = {beside_last_axis, NULL};
const struct batch_rule batch_beside_first = {beside_first_axis, NULL};
const struct batch_rule batch_before_last = {before_last_axis, aligned_axis};
const struct batch_rule batch_matmul = {matmul_axis, beside_matmul};
const struct batch_rule batch_gemm = {gemm_axis, beside_gemm};
