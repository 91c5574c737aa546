/* Building blocks of passes: count readers, replace values, insert nodes and constants, remove what
 * nobody reads. */
#include "engine/passes/edit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/resolve.h"

void edit_nodes(struct edit *edit, bool (*visit)(struct edit *edit, size_t *n))
{
    bool ok = edit->status == STATUS_OK && edit_count_readers(edit);
    for (size_t n = 0; ok && n < edit->graph->node_count; n++) {
        bool changed = edit->graph->nodes[n]->op != OP_NONE && visit(edit, &n);
        ok = edit->status == STATUS_OK && (!changed || edit_count_readers(edit));
    }
    if (ok)
        edit_sweep(edit);
}

enum status edit_end(struct edit *edit)
{
    free(edit->readers);
    edit->readers = NULL;
    return edit->status;
}

bool edit_no_memory(struct edit *edit)
{
    if (edit->status == STATUS_OK)
        edit->status = error_no_memory(edit->err, "while optimising the graph");
    return false;
}

bool edit_count_readers(struct edit *edit)
{
    struct graph *graph = edit->graph;
    free(edit->readers);
    /* There is room for values that the pass adds before it counts again. */
    edit->readers = alloc_array(graph->value_count * 2 + 64, sizeof *edit->readers);
    if (!edit->readers)
        return edit_no_memory(edit);
    graph_count_readers(graph, edit->readers);
    return true;
}

bool edit_is_output(const struct graph *graph, const struct value *value)
{
    for (size_t i = 0; i < graph->output_count; i++)
        if (graph->outputs[i] == value)
            return true;
    return false;
}

bool edit_single_reader(const struct edit *edit, const struct value *value)
{
    return edit->readers[value->index] == 1 && !edit_is_output(edit->graph, value);
}

struct node *edit_only_reader(const struct edit *edit, const struct value *value)
{
    if (!edit_single_reader(edit, value))
        return NULL;
    for (size_t n = 0; n < edit->graph->node_count; n++) {
        struct node *node = edit->graph->nodes[n];
        for (size_t i = 0; i < node->input_count && node->op != OP_NONE; i++)
            if (node->inputs[i] == value)
                return node;
    }
    return NULL;
}

/* Replaces `from` also in bodies, which refer to outer values through value->outer. */
static void replace_in_bodies(const struct node *node, struct value *from, struct value *to)
{
    for (size_t a = 0; a < node->attr_count; a++) {
        if (node->attrs[a].kind != ATTR_GRAPH)
            continue;
        struct graph *body = node->attrs[a].g;
        for (size_t v = 0; v < body->value_count; v++)
            if (body->values[v]->outer == from)
                body->values[v]->outer = to;
    }
}

void edit_replace(struct graph *graph, struct value *from, struct value *to)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        for (size_t i = 0; i < node->input_count; i++)
            if (node->inputs[i] == from)
                node->inputs[i] = to;
        if (node->epilogue.residual == from)
            node->epilogue.residual = to;
        if (node->gate == from)
            node->gate = to;
        for (size_t i = 0; i < node->capture_count; i++) {
            if (node->captures[i] == from) {
                node->captures[i] = to;
                replace_in_bodies(node, from, to);
            }
        }
    }
    for (size_t i = 0; i < graph->output_count; i++)
        if (graph->outputs[i] == from)
            graph->outputs[i] = to;
}

bool edit_kernel_can(const struct edit *edit, const struct node *node, enum kernel_ability ability)
{
    struct kernel_caps caps;
    return edit->options->claim && edit->options->claim(node, &caps) && caps.can & ability;
}

void edit_take_over(struct node *producer, struct node *node)
{
    struct value *output = node->outputs[0];
    node->outputs[0] = NULL;
    node->op = OP_NONE;
    node_set_output(producer, 0, output);
}

bool edit_has_body(const struct node *node)
{
    for (size_t i = 0; i < node->attr_count; i++)
        if (node->attrs[i].kind == ATTR_GRAPH)
            return true;
    return false;
}

/* Visits nodes in reverse topological order: a node is live if one of its outputs has a reader. */
void edit_sweep(struct edit *edit)
{
    struct graph *graph = edit->graph;
    bool *wanted = alloc_array(graph->value_count, sizeof *wanted);
    if (!wanted) {
        edit_no_memory(edit);
        return;
    }
    for (size_t i = 0; i < graph->output_count; i++)
        wanted[graph->outputs[i]->index] = true;
    for (size_t n = graph->node_count; n-- > 0;) {
        struct node *node = graph->nodes[n];
        bool live = false;
        for (size_t o = 0; o < node->output_count; o++)
            live = live || (node->outputs[o] && wanted[node->outputs[o]->index]);
        if (!live)
            node->op = OP_NONE;
        for (size_t i = 0; i < node->input_count && node->op != OP_NONE; i++)
            if (node->inputs[i])
                wanted[node->inputs[i]->index] = true;
        for (size_t i = 0; i < node->capture_count && node->op != OP_NONE; i++)
            wanted[node->captures[i]->index] = true;
    }
    size_t kept = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        if (node->op != OP_NONE) {
            graph->nodes[kept++] = node;
            continue;
        }
        for (size_t a = 0; a < node->attr_count; a++)
            attr_done(&node->attrs[a]);
        node->attr_count = 0;
        for (size_t o = 0; o < node->output_count; o++)
            if (node->outputs[o] && node->outputs[o]->producer == node)
                node->outputs[o]->producer = NULL;
    }
    graph->node_count = kept;
    /* Free the memory of unused constants. */
    for (size_t v = 0; v < graph->value_count; v++) {
        struct value *value = graph->values[v];
        if (value->known && !wanted[v]) {
            tensor_unref(value->known);
            value->known = NULL;
        }
    }
    free(wanted);
}

bool edit_scalar(const struct value *value, float *ret)
{
    if (!value || !value->known || shape_count(&value->known->shape) != 1)
        return false;
    *ret = (float)tensor_number(value->known, 0);
    return true;
}

bool edit_is_all(const struct value *value, float expected)
{
    if (!is_f32_constant(value))
        return false;
    const float *data = value->known->data;
    for (size_t i = 0; i < shape_count(&value->known->shape); i++)
        if (data[i] != expected)
            return false;
    return true;
}

bool edit_clip_limits(const struct node *clip, float *ret_low, float *ret_high)
{
    *ret_low = -INFINITY;
    *ret_high = INFINITY;
    return (!node_input(clip, 1) || edit_scalar(clip->inputs[1], ret_low)) &&
           (!node_input(clip, 2) || edit_scalar(clip->inputs[2], ret_high));
}

bool edit_integers(const struct node *node, size_t i, int64_t *ret, size_t most, size_t *ret_count)
{
    const struct value *value = node_input(node, i);
    *ret_count = value && value->known ? shape_count(&value->known->shape) : SIZE_MAX;
    for (size_t k = 0; *ret_count <= most && k < *ret_count; k++)
        ret[k] = tensor_int(value->known, k);
    return *ret_count <= most;
}

bool edit_is_mean(const struct node *node, unsigned axes)
{
    struct reduction reduction;
    return node->op == OP_REDUCE_MEAN && node->inputs[0]->shape.rank > 0 &&
           node_int(node, "keepdims", 1) && resolve_is_known(node) &&
           resolve_reduction(node, &reduction, NULL) == STATUS_OK && reduction.axes == axes;
}

struct value *edit_constant(struct edit *edit, enum dtype dtype, const struct shape *shape,
                            const void *data)
{
    struct tensor *tensor;
    if (edit->status == STATUS_OK)
        edit->status = tensor_create(edit->graph->budget, dtype, shape, &tensor, edit->err);
    if (edit->status != STATUS_OK)
        return NULL;
    if (data && tensor->bytes)
        memcpy(tensor->data, data, tensor->bytes);
    else if (tensor->bytes)
        memset(tensor->data, 0, tensor->bytes);
    struct value *value = graph_add_constant(edit->graph, "", tensor);
    tensor_unref(tensor);
    if (!value)
        edit_no_memory(edit);
    return value;
}

bool edit_set_inputs(struct edit *edit, struct node *node, struct value *const *inputs,
                     size_t count)
{
    struct value **copy = arena_copy(edit->graph->arena, inputs, count, sizeof *copy);
    if (!copy)
        return edit_no_memory(edit);
    node->inputs = copy;
    node->input_count = count;
    return true;
}

bool edit_append_input(struct edit *edit, struct node *node, struct value *value)
{
    struct value **inputs = arena_alloc(edit->graph->arena, node->input_count + 1, sizeof *inputs);
    if (!inputs)
        return edit_no_memory(edit);
    if (node->input_count)
        memcpy(inputs, node->inputs, node->input_count * sizeof *inputs);
    inputs[node->input_count++] = value;
    node->inputs = inputs;
    return true;
}

bool edit_become(struct edit *edit, struct node *node, enum op op, int opset,
                 struct value *const *inputs, size_t count)
{
    if (!edit_set_inputs(edit, node, inputs, count))
        return false;
    node->op = op;
    node->opset = opset;
    node->attr_count = 0;
    return true;
}

struct node *edit_insert_node(struct edit *edit, size_t before, enum op op, int opset,
                              const char *name, struct value *const *inputs, size_t count)
{
    struct graph *graph = edit->graph;
    struct node *node =
        edit->status == STATUS_OK ? graph_add_node(graph, op, name, count, 1) : NULL;
    if (!node) {
        edit_no_memory(edit);
        return NULL;
    }
    node->opset = opset;
    if (count)
        memcpy(node->inputs, inputs, count * sizeof *inputs);
    memmove(graph->nodes + before + 1, graph->nodes + before,
            (graph->node_count - 1 - before) * sizeof *graph->nodes);
    graph->nodes[before] = node;
    return node;
}

struct value *edit_insert_value(struct edit *edit, size_t before, enum op op, int opset,
                                const char *name, struct value *const *inputs, size_t count,
                                enum dtype dtype, const struct shape *shape)
{
    struct node *node = edit_insert_node(edit, before, op, opset, name, inputs, count);
    struct value *value = node ? graph_add_value(edit->graph, "", dtype, shape) : NULL;
    if (value)
        node_set_output(node, 0, value);
    else
        edit_no_memory(edit);
    return value;
}

struct value *edit_insert_cast(struct edit *edit, size_t before, const char *name,
                               struct value *from, enum dtype to)
{
    struct value *value =
        edit_insert_value(edit, before, OP_CAST, 13, name, &from, 1, to, &from->shape);
    if (value && !node_set_int(edit->graph, value->producer, "to", to))
        edit_no_memory(edit);
    return edit->status == STATUS_OK ? value : NULL;
}

size_t edit_position(const struct graph *graph, const struct node *node)
{
    size_t n = 0;
    while (n < graph->node_count && graph->nodes[n] != node)
        n++;
    return n;
}
