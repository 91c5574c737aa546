/* Estimates the work of a node from the shapes of its operands. */
#include <math.h>

#include "engine/graph/graph.h"
#include "engine/op/families.h"
#include "engine/op/ops.h"

double elements_of(const struct value *value)
{
    return value && shape_is_known(&value->shape) ? (double)shape_count(&value->shape) : 0;
}

double work_elements(const struct node *node)
{
    (void)node;
    return 0;
}

/* The quantized forms have the scale and zero point of input 0 before the weights. */
static const struct value *weights_of(const struct node *node)
{
    const bool is_quantized =
        node->op == OP_QLINEAR_CONV || node->op == OP_QLINEAR_MATMUL || node->op == OP_QGEMM;
    return node_input(node, is_quantized ? 3 : 1);
}

/* The multiplications of [m, k] * [k, n] = [m, n]: m k n. The three tensors have m k, k n and m n
 * elements, whose product is (m k n)², so the number of multiplications is the square root of that
 * product. */
double work_product(const struct node *node)
{
    const struct value *x = node_input(node, 0), *w = weights_of(node);
    const struct value *y = node_output(node, 0);
    if (!x || !w || !y || w->shape.rank < 1 || y->shape.rank < 1)
        return 0;
    return sqrt(elements_of(x) * elements_of(w) * elements_of(y));
}

double work_matmul_nbits(const struct node *node)
{
    return elements_of(node_output(node, 0)) * (double)node_int(node, "K", 0);
}

double work_attention(const struct node *node)
{
    const struct value *k = node_input(node, 1);
    const double keys = k && k->shape.rank > 1 ? (double)k->shape.dims[k->shape.rank - 2] : 0;
    return (elements_of(node_input(node, 0)) + elements_of(node_output(node, 0))) * keys;
}

/* The filters slide over `image`, whose elements each take one multiplication per weight of a
 * filter. */
static double filter_work(const struct node *node, const struct value *image)
{
    const struct value *w = weights_of(node);
    if (!w || w->shape.rank < 1 || w->shape.dims[0] < 1)
        return 0;
    return elements_of(image) * elements_of(w) / (double)w->shape.dims[0];
}

double work_conv(const struct node *node)
{
    return filter_work(node, node_output(node, 0));
}

double work_conv_transpose(const struct node *node)
{
    return filter_work(node, node_input(node, 0));
}

double work_window(const struct node *node)
{
    size_t rank;
    const int64_t *kernel = node_ints(node, "kernel_shape", &rank);
    double taps = 1;
    for (size_t i = 0; i < rank; i++)
        taps *= (double)kernel[i];
    return rank ? elements_of(node_output(node, 0)) * taps : 0;
}
