/* Converts dynamically quantized products ("quantize_dynamic") to products of real numbers:
 *
 *     x → DynamicQuantizeLinear ─ q, z ─▶ ConvInteger(w, w_z) → Cast → Mul(s · w_s) → y
 *     x → DynamicRound → Conv((w - w_z) · w_s) → y
 *
 * so that all optimizations of float32 products apply. A sum of integers becomes a float32 sum of
 * the real numbers that the integers stand for, with the usual rounding. */
#include "engine/op/ops.h"
#include "engine/passes/edit.h"

/* One operand of an integer product: stored numbers, their zero point and their scale. */
struct side {
    const struct node *dynamic; /* DynamicQuantizeLinear of the operand; NULL: it is constant */
    const struct tensor *weights, *zero, *scale;
};

struct dynamic_product {
    const struct node *integer; /* ConvInteger or MatMulInteger */
    struct side left, right;
};

/* Reads operand i with its zero point; the scale is set later. */
static bool read_side(const struct node *integer, size_t i, struct side *ret)
{
    const struct value *x = node_input(integer, i), *zero = node_input(integer, i + 2);
    *ret = (struct side){0};
    if (!x)
        return false;
    if (x->known) {
        ret->weights = x->known;
        ret->zero = zero ? zero->known : NULL;
        return !zero || zero->known;
    }
    ret->dynamic = x->producer;
    return x->producer && x->producer->op == OP_DYNAMIC_QUANTIZE_LINEAR &&
           x->producer->outputs[0] == x && zero && zero == node_output(x->producer, 2);
}

static bool is_scale_of(const struct side *side, const struct value *value)
{
    if (side->dynamic)
        return value == node_output(side->dynamic, 1);
    return is_f32_constant(value);
}

/* True if a constant has one number, or one per result channel of a matrix product. */
static bool fits_columns(const struct tensor *constant, const struct dynamic_product *product)
{
    const struct shape *weights = &product->right.weights->shape;
    const size_t count = shape_count(&constant->shape);
    return count == 1 || (product->integer->op == OP_MATMUL_INTEGER && weights->rank == 2 &&
                          constant->shape.rank == 1 && count == (size_t)weights->dims[1]);
}

/* Reads the integer product that `mul` scales. Returns false if there is none. */
static bool read_product(const struct edit *edit, const struct node *mul,
                         struct dynamic_product *ret)
{
    for (size_t i = 0; mul->op == OP_MUL && i < 2; i++) {
        const struct node *cast = mul->inputs[i]->producer, *scales = mul->inputs[1 - i]->producer;
        if (!cast || cast->op != OP_CAST || op_cast_target(cast) != DTYPE_F32 || !scales ||
            scales->op != OP_MUL || edit_only_reader(edit, cast->outputs[0]) != mul)
            continue;
        ret->integer = cast->inputs[0]->producer;
        if (!ret->integer ||
            (ret->integer->op != OP_CONV_INTEGER && ret->integer->op != OP_MATMUL_INTEGER) ||
            edit_only_reader(edit, cast->inputs[0]) != cast ||
            !read_side(ret->integer, 0, &ret->left) || !read_side(ret->integer, 1, &ret->right) ||
            !ret->left.dynamic)
            continue;
        for (size_t k = 0; k < 2; k++) {
            const struct value *left = scales->inputs[k], *right = scales->inputs[1 - k];
            if (!is_scale_of(&ret->left, left) || !is_scale_of(&ret->right, right))
                continue;
            ret->right.scale = right->known;
            return ret->right.dynamic
                       ? ret->integer->op == OP_MATMUL_INTEGER
                       : fits_columns(right->known, ret) &&
                             (!ret->right.zero || fits_columns(ret->right.zero, ret));
        }
    }
    return false;
}

/* Returns constant weights in float32: (w - zero) * scale. */
static struct value *real_weights(struct edit *edit, const struct side *side)
{
    const struct tensor *w = side->weights;
    const size_t zeros = side->zero ? shape_count(&side->zero->shape) : 1;
    const size_t scales = shape_count(&side->scale->shape), count = shape_count(&w->shape);
    struct value *real = edit_constant(edit, DTYPE_F32, &w->shape, NULL);
    for (size_t i = 0; real && i < count; i++) {
        const int64_t zero = side->zero ? tensor_int(side->zero, i % zeros) : 0;
        ((float *)real->known->data)[i] =
            (float)(tensor_int(w, i) - zero) * (float)tensor_number(side->scale, i % scales);
    }
    return real;
}

/* Returns the result of a DynamicRound that reads the input of `dynamic`. If there is no such
 * DynamicRound yet, inserts it before node *n and increments *n. */
static struct value *rounded(struct edit *edit, const struct node *dynamic, size_t *n)
{
    for (size_t i = 0; i < *n; i++) {
        const struct node *node = edit->graph->nodes[i];
        if (node->op == OP_DYNAMIC_ROUND && node->inputs[0] == dynamic->inputs[0])
            return node->outputs[0];
    }
    return edit_insert_value(edit, (*n)++, OP_DYNAMIC_ROUND, 1, dynamic->name, dynamic->inputs, 1,
                             DTYPE_F32, &dynamic->inputs[0]->shape);
}

static bool dynamic_visit(struct edit *edit, size_t *n)
{
    struct dynamic_product product;
    struct node *mul = edit->graph->nodes[*n];
    if (!read_product(edit, mul, &product))
        return false;
    struct value *left = rounded(edit, product.left.dynamic, n);
    struct value *right = product.right.dynamic ? rounded(edit, product.right.dynamic, n)
                                                : real_weights(edit, &product.right);
    if (!left || !right)
        return false;
    const bool conv = product.integer->op == OP_CONV_INTEGER;
    mul->op = conv ? OP_CONV : OP_MATMUL;
    mul->opset = conv ? 11 : 13;
    mul->name = product.integer->name;
    mul->attrs = product.integer->attrs;
    mul->attr_count = product.integer->attr_count;
    mul->inputs[0] = left;
    mul->inputs[1] = right;
    return true;
}

enum status optimize_dynamic(struct graph *graph, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    TRY(graph_sort(graph, err));
    edit_nodes(&edit, dynamic_visit);
    return edit_end(&edit);
}
