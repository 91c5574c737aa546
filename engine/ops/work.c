/* Estimates the work of a node from the shapes of its operands. */
#include <math.h>

#include "engine/graph/graph.h"
#include "engine/ops/ops.h"

static double elements_of(const struct value *value)
{
    return value && shape_is_known(&value->shape) ? (double)shape_count(&value->shape) : 0;
}

/* Multiply-adds of a product x * w: each element of y sums a row of x. */
static double product_work(const struct value *x, const struct value *w, const struct value *y)
{
    if (!x || !w || !y || w->shape.rank < 1 || y->shape.rank < 1)
        return 0;
    const double all = elements_of(x) * elements_of(w) * elements_of(y);
    return sqrt(all); /* [m, k] * [k, n] = [m, n]: the root of (m k n) squared */
}

/* Multiply-adds of a window that slides over y, or over x if it is transposed. */
static double window_work(const struct node *node, const struct value *w)
{
    const bool is_transposed = node->op == OP_CONV_TRANSPOSE;
    const struct value *moved = is_transposed ? node_input(node, 0) : node_output(node, 0);
    size_t rank;
    const int64_t *kernel = node_ints(node, "kernel_shape", &rank);
    double taps = 1;
    if (w && w->shape.rank > 0 && w->shape.dims[0] > 0)
        return elements_of(moved) * elements_of(w) / (double)w->shape.dims[0];
    for (size_t i = 0; i < rank; i++)
        taps *= (double)kernel[i];
    return rank ? elements_of(moved) * taps : 0;
}

double node_work(const struct node *node)
{
    double work = 0;
    for (size_t i = 0; i < node->input_count; i++)
        work += elements_of(node_input(node, i));
    for (size_t i = 0; i < node->output_count; i++)
        work += elements_of(node_output(node, i));
    switch (node->op) {
    case OP_CONV:
    case OP_CONV_TRANSPOSE:
    case OP_CONV_INTEGER:
        return work + window_work(node, node_input(node, 1));
    case OP_QLINEAR_CONV:
        return work + window_work(node, node_input(node, 3));
    case OP_MATMUL:
    case OP_MATMUL_INTEGER:
    case OP_GEMM:
    case OP_EINSUM:
        return work + product_work(node_input(node, 0), node_input(node, 1), node_output(node, 0));
    case OP_QLINEAR_MATMUL:
        return work + product_work(node_input(node, 0), node_input(node, 3), node_output(node, 0));
    default:
        return work + window_work(node, NULL);
    }
}
