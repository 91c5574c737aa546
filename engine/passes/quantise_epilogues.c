/* What follows a product of 8-bit integers becomes part of it, for backends that say so:
 *
 *     QLinearConv → [QLinearAdd with another value] → [Lookup]
 *
 * Results are rounded to stored numbers between the three as before, so that they are the same. The
 * further operands stand behind the product's own (enum quantised_operand). */
#include <string.h>

#include "engine/passes/passes.h"

/* The product that makes `value` for one reader alone, and has no table behind it yet; or NULL. */
static const struct node *product_of(const struct edit *edit,
                                     const struct optimize_options *options,
                                     const struct value *value)
{
    const struct node *node = value->producer;
    if (!node ||
        (node->op != OP_QLINEAR_CONV && node->op != OP_QLINEAR_MATMUL && node->op != OP_QGEMM) ||
        node_input(node, QUANTISED_TABLE) || !edit_single_reader(edit, value) ||
        !options->takes_quantised_epilogue(node))
        return NULL;
    return node;
}

/* Do both say the same number? */
static bool is_same(const struct value *a, const struct value *b)
{
    return a && b && a->known && b->known && a->known->dtype == b->known->dtype &&
           shape_count(&a->known->shape) == 1 && shape_count(&b->known->shape) == 1 &&
           tensor_number(a->known, 0) == tensor_number(b->known, 0);
}

/* `node` now computes what `product` did, and what is in `further`: operands from
 * QUANTISED_RESIDUAL on. */
static enum status become(struct graph *graph, struct node *node, const struct node *product,
                          struct value *const further[QUANTISED_OPERANDS - QUANTISED_RESIDUAL],
                          struct error *err)
{
    struct value **inputs = arena_alloc(graph->arena, QUANTISED_OPERANDS, sizeof *inputs);
    if (!inputs)
        return edit_no_memory(err);
    for (size_t i = 0; i < QUANTISED_OPERANDS; i++)
        inputs[i] = node_input(product, i);
    for (size_t i = QUANTISED_RESIDUAL; i < QUANTISED_OPERANDS; i++)
        if (further[i - QUANTISED_RESIDUAL])
            inputs[i] = further[i - QUANTISED_RESIDUAL];
    node->op = product->op;
    node->opset = product->opset;
    node->name = product->name;
    node->attrs = product->attrs;
    node->attr_count = product->attr_count;
    node->channels_last = product->channels_last;
    node->inputs = inputs;
    node->input_count = QUANTISED_OPERANDS;
    return STATUS_OK;
}

/* Two values of one shape and type, one of which a product makes on the terms that are read. */
static enum status match_sum(const struct edit *edit, const struct optimize_options *options,
                             struct node *add, struct error *err)
{
    const struct value *y = add->outputs[0];
    for (size_t side = 0; side <= 3; side += 3) {
        struct value *own = node_input(add, side), *other = node_input(add, 3 - side);
        if (!own || !other || other->known || own->dtype != y->dtype || other->dtype != y->dtype ||
            !shape_equal(&own->shape, &y->shape) || !shape_equal(&other->shape, &y->shape))
            continue;
        const struct node *product = product_of(edit, options, own);
        const size_t terms = product && product->op == OP_QGEMM ? 7 : 6;
        if (!product || node_input(product, QUANTISED_RESIDUAL) ||
            !is_same(node_input(product, terms), node_input(add, side + 1)) ||
            !is_same(node_input(product, terms + 1), node_input(add, side + 2)))
            continue;
        struct value *const further[QUANTISED_OPERANDS - QUANTISED_RESIDUAL] = {
            other, node_input(add, 4 - side), node_input(add, 5 - side), node_input(add, 6),
            node_input(add, 7)};
        return become(edit->graph, add, product, further, err);
    }
    return STATUS_OK;
}

static enum status match_table(const struct edit *edit, const struct optimize_options *options,
                               struct node *lookup, struct error *err)
{
    const struct node *product = product_of(edit, options, lookup->inputs[0]);
    if (!product || !lookup->inputs[1]->known)
        return STATUS_OK;
    struct value *const further[QUANTISED_OPERANDS - QUANTISED_RESIDUAL] = {
        [QUANTISED_TABLE - QUANTISED_RESIDUAL] = lookup->inputs[1]};
    return become(edit->graph, lookup, product, further, err);
}

enum status pass_quantised_epilogues(struct graph *graph, const struct optimize_options *options,
                                     struct error *err)
{
    struct edit edit;
    enum status status = edit_init(&edit, graph, err);
    for (size_t n = 0; n < graph->node_count && status == STATUS_OK; n++) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_QLINEAR_ADD)
            status = match_sum(&edit, options, node, err);
        else if (node->op == OP_LOOKUP)
            status = match_table(&edit, options, node, err);
    }
    if (status == STATUS_OK)
        status = edit_sweep(graph, err);
    edit_done(&edit);
    return status;
}
