/* Activations of quantized models as tables: an expression of a single stored tensor has 256
 * results.
 *
 *     x → DQ ─┬─────────────▶ Mul → Q → y      ─▶    x → Lookup → y
 *             └▶ Sigmoid → Q → DQ ─┘
 *
 * The nodes from x to y are collected backwards from y's producer. Then the reference kernels run
 * them once on the 256 numbers, with the inputs' `known` set temporarily. */
#include <string.h>

#include "engine/op/interpret.h"
#include "engine/op/ops.h"
#include "engine/passes/quantize.h"

enum { MOST_NODES = 32, MOST_LEAVES = 8, NUMBERS = 256 };

/* A stored tensor that an expression reads: its root, or the result of an OP_LOOKUP of the root. */
struct leaf {
    struct value *stored;
    enum dtype dtype;
    struct tensor *table; /* the OP_LOOKUP's table; NULL: the leaf is the root */
};

/* A value that now contains a result for each of 256 bytes, and its earlier dtype and shape. */
struct tabulated {
    struct value *value;
    enum dtype dtype;
    struct shape shape;
};

struct expression {
    struct value *root;
    struct node *nodes[MOST_NODES]; /* in the order of computation */
    size_t node_count;
    struct leaf leaves[MOST_LEAVES];
    size_t leaf_count;
    struct tabulated tabulated[MOST_NODES + MOST_LEAVES];
    size_t tabulated_count;
};

static bool add_leaf(struct expression *e, struct value *stored, enum dtype dtype)
{
    struct leaf leaf = {.stored = stored, .dtype = dtype};
    struct value *root = stored;
    if (stored->known)
        return false;
    while (root->producer && root->producer->op == OP_IDENTITY)
        root = root->producer->inputs[0];
    const struct node *producer = root->producer;
    if (producer && producer->op == OP_LOOKUP && producer->inputs[1]->known) {
        leaf.table = producer->inputs[1]->known;
        root = producer->inputs[0];
    }
    if (e->root && e->root != root)
        return false;
    e->root = root;
    for (size_t i = 0; i < e->leaf_count; i++)
        if (e->leaves[i].stored == stored)
            return e->leaves[i].dtype == dtype;
    if (e->leaf_count == MOST_LEAVES)
        return false;
    e->leaves[e->leaf_count++] = leaf;
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
    if (e->node_count == MOST_NODES)
        return false;
    e->nodes[e->node_count++] = node;
    return true;
}

/* True for an elementwise operator that the reference kernel can run on a table. */
static bool is_elementwise(const struct node *node)
{
    return op_has(node->op, OP_UNARY | OP_BROADCAST) && node->op != OP_LOOKUP &&
           node->op != OP_DYNAMIC_ROUND;
}

/* Collects `value` and its sources; `depth` limits the search. */
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
        return (ends.stored->known ? is_small_constant(ends.stored)
                                   : dtype_is_8bit(ends.zero->known->dtype) &&
                                         add_leaf(e, ends.stored, ends.zero->known->dtype)) &&
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
           dtype_is_8bit(zero->known->dtype) && add_leaf(e, node->inputs[at], zero->known->dtype);
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

static enum status all_numbers(struct graph *graph, enum dtype dtype, struct tensor **ret,
                               struct error *err)
{
    const struct shape shape = SHAPE(NUMBERS);
    TRY(tensor_create(graph->budget, dtype, &shape, ret, err));
    for (int i = 0; i < NUMBERS; i++)
        ((uint8_t *)(*ret)->data)[i] = (uint8_t)i;
    return STATUS_OK;
}

/* Makes a tensor the contents of `value` until the end of evaluate(). Takes ownership of the
 * reference. NULL: forgets dtype and shape, which a node then infers. */
static void table_put(struct expression *e, struct value *value, struct tensor *tensor)
{
    e->tabulated[e->tabulated_count++] = (struct tabulated){value, value->dtype, value->shape};
    value->known = tensor;
    value->dtype = tensor ? tensor->dtype : DTYPE_NONE;
    value->shape = tensor ? tensor->shape : SHAPE_NONE;
}

static enum status put_leaves(struct graph *graph, struct expression *e, struct error *err)
{
    for (size_t i = 0; i < e->leaf_count; i++) {
        const struct leaf *leaf = &e->leaves[i];
        struct tensor *numbers = NULL;
        if (leaf->table && leaf->table->dtype != leaf->dtype)
            return error_set(err, STATUS_MODEL, "a zero point is not of its tensor's type");
        if (leaf->table)
            numbers = tensor_ref(leaf->table);
        else
            TRY(all_numbers(graph, leaf->dtype, &numbers, err));
        table_put(e, leaf->stored, numbers);
    }
    return STATUS_OK;
}

static enum status run_nodes(struct graph *graph, struct expression *e, struct error *err)
{
    for (size_t i = 0; i < e->node_count; i++) {
        struct value *output = e->nodes[i]->outputs[0];
        table_put(e, output, NULL);
        TRY(interpret_node(e->nodes[i], graph->budget, &output->known, err));
    }
    return STATUS_OK;
}

/* Runs the expression on all 256 numbers; ret gets the last node's results. Returns false if a node
 * fails, or the results are not 256 numbers of 8 bits. */
static bool evaluate(struct edit *edit, struct expression *e, uint8_t ret[NUMBERS],
                     enum dtype *ret_dtype)
{
    struct graph *graph = edit->graph;
    enum status status = put_leaves(graph, e, edit->err);
    IF_OK(status, run_nodes(graph, e, edit->err));
    const struct tensor *last = e->nodes[e->node_count - 1]->outputs[0]->known;
    const bool ok = status == STATUS_OK && last && dtype_is_8bit(last->dtype) &&
                    shape_count(&last->shape) == NUMBERS;
    if (ok) {
        memcpy(ret, last->data, NUMBERS);
        *ret_dtype = last->dtype;
    }
    for (size_t i = 0; i < e->tabulated_count; i++) {
        const struct tabulated *before = &e->tabulated[i];
        tensor_unref(before->value->known);
        before->value->known = NULL;
        before->value->dtype = before->dtype;
        before->value->shape = before->shape;
    }
    if (status == STATUS_NO_MEMORY)
        edit->status = status; /* other failures leave the file's nodes unchanged */
    return ok;
}

/* True if the table maps every byte to itself, and has the root's type. */
static bool is_nothing(const struct expression *e, const uint8_t table[NUMBERS], enum dtype dtype)
{
    for (int i = 0; i < NUMBERS; i++)
        if (table[i] != i)
            return false;
    for (size_t i = 0; i < e->leaf_count; i++)
        if (!e->leaves[i].table)
            return e->leaves[i].dtype == dtype;
    return e->root->dtype == dtype;
}

bool quantize_table(struct edit *edit, struct node *node)
{
    struct expression e = {0};
    uint8_t table[NUMBERS];
    enum dtype dtype = DTYPE_NONE;
    if (node->output_count != 1 || !node->outputs[0] || !collect_all(&e, node) ||
        !evaluate(edit, &e, table, &dtype))
        return false;
    if (is_nothing(&e, table, dtype))
        return edit_become(edit, node, OP_IDENTITY, 13, &e.root, 1);
    struct value *inputs[2] = {e.root, edit_constant(edit, dtype, &SHAPE(NUMBERS), table)};
    return inputs[1] && edit_become(edit, node, OP_LOOKUP, 1, inputs, 2);
}
