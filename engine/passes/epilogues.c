/* Bias, residual and activation move into the node in front of them, so that its kernel applies
 * them while the result is still in registers. */
#include <string.h>

#include "engine/passes/passes.h"

bool optimize_activation(const struct node *node, struct epilogue *ret)
{
    struct epilogue e = {0};
    switch (node->op) {
    case OP_RELU:
        e.activation = ACTIVATION_RELU;
        break;
    case OP_LEAKY_RELU:
        e.activation = ACTIVATION_LEAKY_RELU;
        e.alpha = node_float(node, "alpha", 0.01f);
        break;
    case OP_CLIP:
        e.activation = ACTIVATION_CLIP;
        /* an empty or NaN interval keeps its own kernel */
        if (!edit_clip_limits(node, &e.alpha, &e.beta) || !(e.alpha <= e.beta))
            return false;
        break;
    case OP_SIGMOID:
        e.activation = ACTIVATION_SIGMOID;
        break;
    case OP_HARD_SIGMOID:
        e.activation = ACTIVATION_HARD_SIGMOID;
        e.alpha = node_float(node, "alpha", 0.2f);
        e.beta = node_float(node, "beta", 0.5f);
        break;
    case OP_HARD_SWISH:
        e.activation = ACTIVATION_HARD_SWISH;
        e.alpha = 1.0f / 6;
        e.beta = 0.5f;
        break;
    case OP_SILU:
        e.activation = ACTIVATION_SILU;
        e.alpha = 1;
        break;
    case OP_GELU:
    case OP_MS_GELU:
        e.activation = strcmp(node_string(node, "approximate", "none"), "tanh") != 0
                           ? ACTIVATION_GELU
                           : ACTIVATION_GELU_TANH;
        break;
    case OP_TANH:
        e.activation = ACTIVATION_TANH;
        break;
    case OP_ELU:
        e.activation = ACTIVATION_ELU;
        e.alpha = node_float(node, "alpha", 1);
        break;
    default:
        return false;
    }
    *ret = e;
    return true;
}

static bool is_product(const struct node *node)
{
    return node->op == OP_CONV || node->op == OP_CONV_TRANSPOSE || node->op == OP_GEMM ||
           node->op == OP_MATMUL;
}

static bool takes_activation(const struct node *node)
{
    return node && node->epilogue.activation == ACTIVATION_NONE &&
           (is_product(node) || node->op == OP_ADD || node->op == OP_SCALE_SHIFT);
}

static bool fuse_activation(struct edit *edit, struct node *node)
{
    struct epilogue epilogue;
    struct value *x = node_input(node, 0);
    if (!x || !x->producer || !optimize_activation(node, &epilogue) ||
        !takes_activation(x->producer) || !edit_single_reader(edit, x) ||
        x->producer->outputs[0] != x)
        return false;
    struct node *producer = x->producer;
    epilogue.residual = producer->epilogue.residual;
    producer->epilogue = epilogue;
    edit_take_over(producer, node);
    return true;
}

/* MatMul + constant vector over the last axis: the bias, kept as a third input. */
static bool fuse_bias(struct edit *edit, struct node *add)
{
    for (size_t i = 0; i < 2; i++) {
        struct value *x = add->inputs[i], *bias = add->inputs[1 - i];
        struct node *matmul = x->producer;
        if (!matmul || matmul->op != OP_MATMUL || matmul->input_count != 2 ||
            matmul->epilogue.activation || matmul->epilogue.residual ||
            !edit_single_reader(edit, x) || !bias->known || bias->known->dtype != DTYPE_F32 ||
            bias->known->shape.rank < 1 || x->shape.rank < 2 ||
            !shape_equal(&x->shape, &add->outputs[0]->shape))
            continue;
        int64_t last = x->shape.dims[x->shape.rank - 1];
        if (shape_count(&bias->known->shape) != (size_t)last ||
            bias->known->shape.dims[bias->known->shape.rank - 1] != last)
            continue;
        if (!edit_append_input(edit, matmul, bias))
            return false;
        edit_take_over(matmul, add);
        return true;
    }
    return false;
}

/* product + residual of the same shape. The product moves down to the Add's place, where the
 * residual surely exists. */
static bool fuse_residual(struct edit *edit, struct node *add, size_t at)
{
    struct graph *graph = edit->graph;
    struct node *best = NULL;
    size_t best_at = 0, side = 0;
    for (size_t i = 0; i < 2; i++) {
        struct value *x = add->inputs[i], *residual = add->inputs[1 - i];
        struct node *product = x->producer;
        if (!product || !is_product(product) || product->op == OP_CONV_TRANSPOSE ||
            product->epilogue.activation || product->epilogue.residual ||
            !edit_single_reader(edit, x) || residual->known || residual == x ||
            residual->dtype != DTYPE_F32 || !shape_equal(&x->shape, &residual->shape))
            continue;
        size_t p = edit_position(graph, product);
        if (!best || p > best_at) { /* the later one: its operands are freshest in the cache */
            best = product;
            best_at = p;
            side = i;
        }
    }
    if (!best)
        return false;
    struct value *residual = add->inputs[1 - side];
    if (!edit_append_input(edit, best, residual))
        return false;
    best->epilogue.residual = residual;
    edit_take_over(best, add);
    memmove(graph->nodes + best_at, graph->nodes + best_at + 1,
            (at - best_at) * sizeof *graph->nodes);
    graph->nodes[at] = best;
    return true;
}

bool pass_epilogues(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    if (!node->output_count || !node->outputs[0] || node->outputs[0]->dtype != DTYPE_F32)
        return false;
    return fuse_activation(edit, node) ||
           (node->op == OP_ADD && (fuse_bias(edit, node) || fuse_residual(edit, node, *n)));
}
