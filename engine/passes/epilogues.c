/* Fuses a bias, a residual and an activation into the node before, whose kernel then applies all
 * three while the result is still in registers. */
#include <string.h>

#include "engine/op/ops.h"
#include "engine/passes/passes.h"
#include "engine/passes/quantize.h"

bool optimize_activation(const struct node *node, struct epilogue *ret)
{
    struct epilogue clip = {.activation = ACTIVATION_CLIP};
    if (node->op != OP_CLIP)
        return op_activation(node, ret);
    /* a Clip with an empty or NaN interval is not merged */
    if (!edit_clip_limits(node, &clip.alpha, &clip.beta) || !(clip.alpha <= clip.beta))
        return false;
    *ret = clip;
    return true;
}

/* True for a product of 8-bit integers with a float32 result whose kernel supports an epilogue. */
static bool is_integer_product(const struct edit *edit, const struct node *node)
{
    return quantize_makes_float(node) && edit_kernel_can(edit, node, KERNEL_FLOAT_EPILOGUE);
}

static bool is_product(const struct edit *edit, const struct node *node)
{
    return op_has(node->op, OP_PRODUCT) || is_integer_product(edit, node);
}

static bool takes_activation(const struct edit *edit, const struct node *node)
{
    return node && node->epilogue.activation == ACTIVATION_NONE &&
           (is_product(edit, node) || node->op == OP_ADD || node->op == OP_SCALE_SHIFT);
}

static bool fuse_activation(struct edit *edit, struct node *node)
{
    struct epilogue epilogue;
    struct value *x = node_input(node, 0);
    if (!x || !x->producer || !optimize_activation(node, &epilogue) ||
        !takes_activation(edit, x->producer) || !edit_single_reader(edit, x) ||
        x->producer->outputs[0] != x)
        return false;
    struct node *producer = x->producer;
    epilogue.residual = producer->epilogue.residual;
    producer->epilogue = epilogue;
    edit_take_over(producer, node);
    return true;
}

/* Appends NULL for omitted operands of a product of 8-bit integers, up to `count` operands. */
static bool complete_operands(struct edit *edit, struct node *product, size_t count)
{
    while (product->input_count < count)
        if (!edit_append_input(edit, product, NULL))
            return false;
    return true;
}

/* Sets the bias of `matmul`, which has none. */
static bool set_bias(struct edit *edit, struct node *matmul, struct value *bias)
{
    if (matmul->op == OP_MATMUL)
        return edit_append_input(edit, matmul, bias);
    struct value *sums = quantize_bias(edit, matmul, bias);
    if (!sums || !complete_operands(edit, matmul, QUANTIZED_BIAS + 1))
        return false;
    matmul->inputs[QUANTIZED_BIAS] = sums;
    return true;
}

static bool takes_bias(const struct edit *edit, const struct node *node)
{
    if (node->epilogue.activation || node->epilogue.residual)
        return false;
    return node->op == OP_MATMUL
               ? node->input_count == 2
               : node->op == OP_QLINEAR_MATMUL && is_integer_product(edit, node) &&
                     !node_input(node, QUANTIZED_BIAS);
}

/* Fuses the Add of a constant vector over the last axis into the MatMul or QLinearMatMul before it.
 * The vector becomes input 2, or operand QUANTIZED_BIAS. */
static bool fuse_bias(struct edit *edit, struct node *add)
{
    for (size_t i = 0; i < 2; i++) {
        struct value *x = add->inputs[i], *bias = add->inputs[1 - i];
        struct node *matmul = x->producer;
        if (!matmul || !takes_bias(edit, matmul) || !edit_single_reader(edit, x) ||
            x->shape.rank < 2 || !shape_equal(&x->shape, &add->outputs[0]->shape) ||
            !is_f32_vector(bias, x->shape.dims[x->shape.rank - 1]))
            continue;
        if (!set_bias(edit, matmul, bias))
            return false;
        edit_take_over(matmul, add);
        return true;
    }
    return false;
}

/* Fuses an Add of a residual into the product that computes the other operand. With `viewed`,
 * Reshapes follow the product, and the residual is reshaped to the product's shape. The product
 * moves to the Add's position, because the residual may be computed after the product. */
static bool fuse_residual(struct edit *edit, struct node *add, size_t at, bool viewed)
{
    struct graph *graph = edit->graph;
    struct value *y = NULL, *residual = NULL; /* y: the product's result */
    size_t from = 0;
    for (size_t i = 0; i < 2; i++) {
        struct value *x = add->inputs[i], *other = add->inputs[1 - i], *made = x;
        while (viewed && made->producer && made->producer->op == OP_RESHAPE &&
               edit_single_reader(edit, made))
            made = made->producer->inputs[0];
        const struct node *product = made->producer;
        if (viewed == (made == x) || !product || !is_product(edit, product) ||
            product->op == OP_CONV_TRANSPOSE || product->gate || node_output(product, 1) ||
            product->epilogue.activation || product->epilogue.residual ||
            !edit_single_reader(edit, made) || other->known || other == x ||
            other->dtype != DTYPE_F32 || made->dtype != DTYPE_F32 ||
            !shape_equal(&x->shape, &other->shape))
            continue;
        const size_t position = edit_position(graph, product);
        if (y && (viewed || position < from))
            continue; /* take the later product: its operands are still in the cache */
        y = made;
        residual = other;
        from = position;
    }
    if (!y)
        return false;
    struct node *product = y->producer;
    if (viewed)
        residual = edit_insert_value(edit, at, OP_RESHAPE, 13, add->name, &residual, 1, DTYPE_F32,
                                     &y->shape);
    if (!residual ||
        (is_integer_product(edit, product) &&
         !complete_operands(edit, product, QUANTIZED_RESIDUAL)) ||
        !edit_append_input(edit, product, residual))
        return false;
    product->epilogue = add->epilogue;
    product->epilogue.residual = residual;
    add->epilogue = (struct epilogue){0};
    memmove(graph->nodes + from, graph->nodes + from + 1, (at - from) * sizeof *graph->nodes);
    graph->nodes[at] = product; /* after the new Reshape, which the memmove has moved down */
    if (viewed)
        return edit_become(edit, add, OP_RESHAPE, 13, &y, 1);
    edit_take_over(product, add);
    return true;
}

/* Folds a Mul by one factor per column (ConvNeXt's layer scale) into the scales of the weights of a
 * product of 8-bit integers. A Transpose may lie between the product and the Mul. */
static bool fuse_factor(struct edit *edit, struct node *mul)
{
    for (size_t i = 0; i < 2; i++) {
        struct value *x = mul->inputs[i], *made = x; /* made: the product's result */
        const struct value *factor = mul->inputs[1 - i];
        const int rank = x->shape.rank;
        int axis = rank - 1; /* of x; counts the product's columns */
        if (x->producer && x->producer->op == OP_TRANSPOSE) {
            size_t count;
            const int64_t *perm = node_ints(x->producer, "perm", &count);
            made = x->producer->inputs[0];
            while (axis >= 0 && (perm ? perm[axis] : rank - 1 - axis) != rank - 1)
                axis--;
        }
        struct node *product = made->producer;
        if (axis < 0 || !product || product->op == OP_QLINEAR_CONV ||
            !is_integer_product(edit, product) || product->epilogue.activation ||
            product->epilogue.residual || !edit_single_reader(edit, x) ||
            !edit_single_reader(edit, made) || !is_f32_constant(factor) ||
            !shape_equal(&x->shape, &mul->outputs[0]->shape) ||
            edit_is_output(edit->graph, mul->outputs[0]))
            continue;
        const size_t columns = (size_t)x->shape.dims[axis];
        const struct shape *of = &factor->known->shape;
        const int at = axis - rank + of->rank;
        if (shape_count(of) != columns || at < 0 || of->dims[at] != x->shape.dims[axis])
            continue;
        const struct tensor *before = product->inputs[4]->known;
        const size_t count = shape_count(&before->shape);
        if (count != 1 && count != columns)
            continue;
        struct value *scales = edit_constant(edit, DTYPE_F32, &SHAPE((int64_t)columns), NULL);
        if (!scales)
            return false;
        for (size_t c = 0; c < columns; c++)
            ((float *)scales->known->data)[c] =
                (float)(tensor_number(before, c % count) * tensor_number(factor->known, c));
        product->inputs[4] = scales;
        edit_replace(edit->graph, mul->outputs[0], x);
        mul->op = OP_NONE;
        return true;
    }
    return false;
}

bool pass_viewed_residuals(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    return node->op == OP_ADD && node->outputs[0]->dtype == DTYPE_F32 && node->input_count == 2 &&
           !node->epilogue.residual && fuse_residual(edit, node, *n, true);
}

bool pass_epilogues(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    if (!node->output_count || !node->outputs[0] || node->outputs[0]->dtype != DTYPE_F32)
        return false;
    return fuse_activation(edit, node) || (node->op == OP_MUL && fuse_factor(edit, node)) ||
           (node->op == OP_ADD && (fuse_bias(edit, node) || fuse_residual(edit, node, *n, false)));
}
