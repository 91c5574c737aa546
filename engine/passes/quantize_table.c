/* Activations of quantized models as tables: an expression of a single stored tensor has 256
 * results.
 *
 *     x → DQ ─┬─────────────▶ Mul → Q → y      ─▶    x → Lookup → y
 *             └▶ Sigmoid → Q → DQ ─┘
 *
 * The nodes from x to y are collected backwards from y's producer. Then the interpreter runs them
 * once on the 256 numbers. */
#include "engine/op/interpret.h"
#include "engine/op/ops.h"
#include "engine/passes/quantize.h"

enum { MOST_NODES = 32, NUMBERS = 256 };

struct expression {
    struct value *root;             /* the stored tensor x */
    enum dtype dtype;               /* of x's zero points; DTYPE_NONE: only Lookups read x */
    struct node *nodes[MOST_NODES]; /* in the order of computation */
    size_t node_count;
};

static bool set_root(struct expression *e, struct value *root, enum dtype dtype)
{
    if ((e->root && e->root != root) || (e->dtype && dtype && e->dtype != dtype))
        return false;
    e->root = root;
    e->dtype = dtype ? dtype : e->dtype;
    return true;
}

/* True for a constant scalar whose rank does not change a result's shape. */
static bool is_small_constant(const struct value *value)
{
    return quantize_is_one(value) && value->known->shape.rank <= 1;
}

static bool is_collected(const struct expression *e, const struct node *node)
{
    for (size_t i = 0; i < e->node_count; i++)
        if (e->nodes[i] == node)
            return true;
    return false;
}

static bool table_push(struct expression *e, struct node *node)
{
    if (is_collected(e, node))
        return true;
    if (e->node_count == MOST_NODES)
        return false;
    e->nodes[e->node_count++] = node;
    return true;
}

/* Collects a stored tensor with zero points of type `dtype`: the root, or the result of an
 * OP_LOOKUP of the root. `depth` limits the number of Identity nodes. */
static bool collect_stored(struct expression *e, struct value *stored, enum dtype dtype, int depth)
{
    struct node *node = stored->producer;
    if (stored->known || !depth)
        return false;
    if (node && node->op == OP_IDENTITY)
        return collect_stored(e, node->inputs[0], dtype, depth - 1) && table_push(e, node);
    if (node && node->op == OP_LOOKUP && node->inputs[1]->known)
        return node->inputs[1]->known->dtype == dtype && set_root(e, node->inputs[0], DTYPE_NONE) &&
               table_push(e, node);
    return set_root(e, stored, dtype);
}

/* True for an elementwise operator that the reference kernel can run on a table. */
static bool is_elementwise(const struct node *node)
{
    return op_has(node->op, OP_UNARY | OP_BROADCAST) && node->op != OP_LOOKUP &&
           node->op != OP_DYNAMIC_ROUND;
}

/* Collects the nodes that compute `value`; `depth` limits the search. */
static bool table_collect(struct expression *e, struct value *value, int depth)
{
    struct ends ends;
    struct node *node = value->producer;
    if (value->known)
        return is_small_constant(value);
    if (!node || !depth || node->output_count != 1 || node->outputs[0] != value)
        return false;
    if (is_collected(e, node))
        return true;
    if (node->op == OP_DEQUANTIZE_LINEAR) {
        if (!quantize_read_dequantize(value, &ends) || !is_small_constant(ends.scale) ||
            !is_small_constant(ends.zero))
            return false;
        return (ends.stored->known
                    ? is_small_constant(ends.stored)
                    : dtype_is_8bit(ends.zero->known->dtype) &&
                          collect_stored(e, ends.stored, ends.zero->known->dtype, depth)) &&
               table_push(e, node);
    }
    if (!is_elementwise(node))
        return false;
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !table_collect(e, node->inputs[i], depth - 1))
            return false;
    return table_push(e, node);
}

/* Collects a stored operand, followed by its scale and zero point. */
static bool collect_triple(struct expression *e, const struct node *node, size_t at)
{
    const struct value *scale = node_input(node, at + 1), *zero = node_input(node, at + 2);
    return node_input(node, at) && is_small_constant(scale) && zero && is_small_constant(zero) &&
           dtype_is_8bit(zero->known->dtype) &&
           collect_stored(e, node->inputs[at], zero->known->dtype, MOST_NODES);
}

static bool collect_all(struct expression *e, struct node *node)
{
    struct ends to;
    bool fits = false;
    switch (node->op) {
    case OP_QUANTIZE_LINEAR:
        fits = quantize_read_quantize(node, &to) && is_small_constant(to.scale) &&
               is_small_constant(to.zero) && table_collect(e, node->inputs[0], MOST_NODES);
        break;
    case OP_QLINEAR_ADD:
    case OP_QLINEAR_MUL:
        fits = collect_triple(e, node, 0) && collect_triple(e, node, 3) &&
               is_small_constant(node_input(node, 6)) && node_input(node, 7) &&
               is_small_constant(node->inputs[7]);
        break;
    default:
        break;
    }
    return fits && e->root && table_push(e, node);
}

/* Runs the expression on all 256 numbers. Returns the last node's results, which the caller owns;
 * NULL if a node fails, or the results are not 256 numbers of 8 bits. */
static struct tensor *evaluate(struct edit *edit, struct expression *e)
{
    struct graph part = *edit->graph;
    struct tensor *numbers = NULL, *results = NULL;
    const enum dtype dtype = e->root->dtype;
    const struct shape shape = e->root->shape;
    part.nodes = e->nodes;
    part.node_count = e->node_count;
    part.inputs = &e->root;
    part.outputs = e->nodes[e->node_count - 1]->outputs;
    part.input_count = part.output_count = 1;
    enum status status = tensor_create(part.budget, e->dtype ? e->dtype : DTYPE_U8, &SHAPE(NUMBERS),
                                       &numbers, edit->err);
    for (int i = 0; numbers && i < NUMBERS; i++)
        ((uint8_t *)numbers->data)[i] = (uint8_t)i;
    e->root->dtype = DTYPE_NONE; /* interpret() compares inputs with declarations */
    e->root->shape = SHAPE_NONE;
    IF_OK(status, interpret(&part, &numbers, &results, part.budget, NULL, edit->err));
    e->root->dtype = dtype;
    e->root->shape = shape;
    tensor_unref(numbers);
    if (status == STATUS_NO_MEMORY)
        edit->status = status; /* other failures leave the file's nodes unchanged */
    if (results && dtype_is_8bit(results->dtype) && shape_count(&results->shape) == NUMBERS)
        return results;
    tensor_unref(results);
    return NULL;
}

/* True if the table maps every byte to itself, and has the root's type. */
static bool is_nothing(const struct expression *e, const struct tensor *table)
{
    for (int i = 0; i < NUMBERS; i++)
        if (((const uint8_t *)table->data)[i] != i)
            return false;
    return table->dtype == (e->dtype ? e->dtype : e->root->dtype);
}

bool quantize_table(struct edit *edit, struct node *node)
{
    struct expression e = {0};
    if (node->output_count != 1 || !node->outputs[0] || !collect_all(&e, node))
        return false;
    struct tensor *table = evaluate(edit, &e);
    if (!table)
        return false;
    struct value *inputs[2] = {e.root};
    bool ok = is_nothing(&e, table);
    if (ok) {
        ok = edit_become(edit, node, OP_IDENTITY, 13, inputs, 1);
    } else {
        inputs[1] = edit_constant(edit, table->dtype, &table->shape, table->data);
        ok = inputs[1] && edit_become(edit, node, OP_LOOKUP, 1, inputs, 2);
    }
    tensor_unref(table);
    return ok;
}
