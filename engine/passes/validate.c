/* Checks a graph at load: infers its nodes, computes small constants, and refuses sizes beyond the
 * limits. */
#include "engine/passes/validate.h"

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/op/ops.h"
#include "engine/passes/passes.h"

/* VALUE_ELEMENTS limits one value, FOLD_ELEMENTS what all computed nodes together read and make.
 * Beyond FOLD_ELEMENTS, only shapes are inferred. */
#define VALUE_ELEMENTS ((size_t)1 << 29)
#define FOLD_ELEMENTS  ((size_t)1 << 26)

/* NODE_ELEMENTS limits what one computed node reads and makes, because shape arithmetic is tiny.
 * HEAVY_ELEMENTS applies instead if the work grows faster than the elements. */
#define NODE_ELEMENTS  ((size_t)1 << 16)
#define HEAVY_ELEMENTS ((size_t)1 << 10)
#define FOLD_BYTES     ((size_t)64 << 20)

struct validation {
    size_t fold_left;             /* elements that may still be computed */
    struct memory_budget *budget; /* in the graph's arena, because constants are charged to it */
    struct error *err;
};

/* Returns the elements that a node reads and makes; SIZE_MAX if an input's contents are unknown. */
static size_t node_elements(const struct node *node)
{
    size_t elements = 0;
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        if (value && !value->known)
            return SIZE_MAX;
        elements += value ? shape_count(&value->known->shape) : 0;
    }
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *value = node->outputs[i];
        if (value && shape_is_known(&value->shape))
            elements += shape_count(&value->shape); /* check_sizes() has bounded each */
    }
    return elements;
}

static bool may_compute(struct validation *v, const struct node *node)
{
    if (op_has(node->op, OP_NO_FOLD) || !kernel_find(node->op) || edit_has_body(node))
        return false;
    size_t elements = node_elements(node);
    if (elements > (op_has(node->op, OP_HEAVY) ? HEAVY_ELEMENTS : NODE_ELEMENTS) ||
        elements + 1 > v->fold_left)
        return false;
    v->fold_left -= elements + 1;
    return true;
}

/* Computes one node with FOLD_BYTES of memory at most, apart from the constants made so far. */
static enum status compute(struct validation *v, struct node *node)
{
    v->budget->limit = v->budget->used + FOLD_BYTES;
    const enum status status = fold_node(node, v->budget, v->err);
    /* These two statuses do not prove a fault of the model. */
    return status == STATUS_NO_MEMORY || status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

static enum status check_sizes(const struct validation *v, const struct node *node)
{
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *value = node->outputs[i];
        size_t count = 0;
        if (!value || !shape_is_known(&value->shape))
            continue;
        enum dtype dtype = value->dtype == DTYPE_NONE ? DTYPE_U8 : value->dtype;
        if (shape_check(&value->shape, dtype, &count, NULL, v->err) != STATUS_OK)
            return error_prefix(v->err, "%s", NODE_STRING(node));
        if (count > VALUE_ELEMENTS) {
            (void)error_set(v->err, STATUS_NO_MEMORY,
                            "%s makes a tensor of shape %s; lensd allows at most %zu elements in a "
                            "tensor",
                            NODE_STRING(node), SHAPE_STRING(&value->shape), VALUE_ELEMENTS);
            return error_advise(v->err, "export the model with smaller sizes");
        }
    }
    return STATUS_OK;
}

static enum status validate_nodes(struct validation *v, struct graph *graph);

/* Recursion follows the nesting of bodies, which the importer bounds. */
static enum status validate_bodies(struct validation *v, struct node *node)
{
    for (size_t i = 0; i < node->attr_count; i++) {
        if (node->attrs[i].kind != ATTR_GRAPH)
            continue;
        struct graph *body = node->attrs[i].g;
        for (size_t k = 0; k < body->input_count; k++)
            body->inputs[k]->shape = SHAPE_NONE;
        for (size_t k = 0; k < body->value_count; k++)
            if (body->values[k]->outer)
                body->values[k]->shape = SHAPE_NONE;
        TRY(validate_nodes(v, body));
    }
    return STATUS_OK;
}

static enum status validate_nodes(struct validation *v, struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        TRY(graph_infer_node(node, v->err));
        TRY(check_sizes(v, node));
        TRY(validate_bodies(v, node));
        if (fold_needs_shape_only(node) || may_compute(v, node))
            TRY(compute(v, node));
    }
    return STATUS_OK;
}

/* Compares the declared outputs with the computed ones, because clients rely on them. */
static enum status check_outputs(const struct graph *graph, const enum dtype *declared,
                                 struct error *err)
{
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *value = graph->outputs[i];
        if (declared[i] == DTYPE_NONE || value->dtype == DTYPE_NONE || declared[i] == value->dtype)
            continue;
        (void)error_set(err, STATUS_MODEL, "output '%.100s' is declared %s, but the graph makes %s",
                        value->name, dtype_name(declared[i]), dtype_name(value->dtype));
        return error_advise(err, "correct the type that the file declares, or export it again");
    }
    return STATUS_OK;
}

enum status graph_validate(struct graph *graph, struct error *err)
{
    struct error ignored;
    struct validation v = {.fold_left = FOLD_ELEMENTS,
                           .budget = arena_alloc(graph->arena, 1, sizeof *v.budget),
                           .err = err ? err : &ignored};
    enum dtype *declared = arena_alloc(graph->arena, graph->output_count, sizeof *declared);
    TRY(check_memory(v.budget && declared, "while checking the graph", v.err));
    for (size_t i = 0; i < graph->output_count; i++)
        declared[i] = graph->outputs[i]->dtype;
    TRY(validate_nodes(&v, graph));
    return check_outputs(graph, declared, v.err);
}
