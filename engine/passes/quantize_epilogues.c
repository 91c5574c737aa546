/* Fuses operators into the product of 8-bit integers before them, for backends that support this:
 *
 *     QLinearConv → [QLinearAdd with another value] → [Lookup]
 *
 * Each of the three operators still rounds to stored numbers, so results do not change. Operands of
 * QLinearAdd and Lookup follow the product's operands (enum quantized_operand). */
#include "engine/passes/passes.h"
#include "engine/passes/quantize.h"

/* Returns the product of 8-bit integers that makes `value`. Returns NULL if there is no such
 * product, if `value` has several readers, or if the product already has a table. */
static const struct node *product_of(const struct edit *edit, const struct value *value)
{
    const struct node *node = value->producer;
    if (!node ||
        (node->op != OP_QLINEAR_CONV && node->op != OP_QLINEAR_MATMUL && node->op != OP_QGEMM) ||
        node_input(node, QUANTIZED_TABLE) || !edit_single_reader(edit, value) ||
        !edit_kernel_can(edit, node, KERNEL_STORED_EPILOGUE))
        return NULL;
    return node;
}

/* True if `a` and `b` are constants of one element with the same type and number. */
static bool is_same(const struct value *a, const struct value *b)
{
    return quantize_is_one(a) && quantize_is_one(b) && a->known->dtype == b->known->dtype &&
           tensor_number(a->known, 0) == tensor_number(b->known, 0);
}

/* Makes `node` compute what `product` does; `further` are operands QUANTIZED_RESIDUAL and up. */
static bool take_product(struct edit *edit, struct node *node, const struct node *product,
                         struct value *const further[QUANTIZED_OPERANDS - QUANTIZED_RESIDUAL])
{
    struct value *inputs[QUANTIZED_OPERANDS];
    for (size_t i = 0; i < QUANTIZED_OPERANDS; i++)
        inputs[i] = node_input(product, i);
    for (size_t i = QUANTIZED_RESIDUAL; i < QUANTIZED_OPERANDS; i++)
        if (further[i - QUANTIZED_RESIDUAL])
            inputs[i] = further[i - QUANTIZED_RESIDUAL];
    node->channels_last = product->channels_last;
    return quantize_become(edit, node, product, product->op, product->opset, inputs,
                           QUANTIZED_OPERANDS);
}

/* Fuses a QLinearAdd into the product that makes one of its operands, if both operands have the
 * shape and type of the sum, and the Add uses the scale and zero point of the product's result. */
static bool match_sum(struct edit *edit, struct node *add)
{
    const struct value *y = add->outputs[0];
    for (size_t side = 0; side <= 3; side += 3) {
        struct value *own = node_input(add, side), *other = node_input(add, 3 - side);
        if (!own || !other || other->known || own->dtype != y->dtype || other->dtype != y->dtype ||
            !shape_equal(&own->shape, &y->shape) || !shape_equal(&other->shape, &y->shape))
            continue;
        const struct node *product = product_of(edit, own);
        const size_t terms = product && product->op == OP_QGEMM ? 7 : 6;
        if (!product || node_input(product, QUANTIZED_RESIDUAL) ||
            !is_same(node_input(product, terms), node_input(add, side + 1)) ||
            !is_same(node_input(product, terms + 1), node_input(add, side + 2)))
            continue;
        struct value *const further[QUANTIZED_OPERANDS - QUANTIZED_RESIDUAL] = {
            other, node_input(add, 4 - side), node_input(add, 5 - side), node_input(add, 6),
            node_input(add, 7)};
        return take_product(edit, add, product, further);
    }
    return false;
}

static bool match_table(struct edit *edit, struct node *lookup)
{
    const struct node *product = product_of(edit, lookup->inputs[0]);
    struct value *const further[QUANTIZED_OPERANDS - QUANTIZED_RESIDUAL] = {
        [QUANTIZED_TABLE - QUANTIZED_RESIDUAL] = lookup->inputs[1]};
    return product && lookup->inputs[1]->known && take_product(edit, lookup, product, further);
}

bool pass_quantized_epilogues(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    return node->op == OP_QLINEAR_ADD ? match_sum(edit, node)
           : node->op == OP_LOOKUP    ? match_table(edit, node)
                                      : false;
}
