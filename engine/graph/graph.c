/* Graphs: creating, copying and sorting them; attributes and operands of nodes. */
#include "engine/graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/size.h"

struct graph *graph_create(struct memory_budget *budget)
{
    struct arena *arena = arena_create(0);
    struct graph *graph = arena ? arena_alloc(arena, 1, sizeof *graph) : NULL;
    if (!graph) {
        arena_free(arena);
        return NULL;
    }
    graph->arena = arena;
    graph->name = graph->producer = "";
    graph->budget = budget;
    return graph;
}

void attr_done(const struct attr *attr)
{
    if (attr->kind == ATTR_TENSOR)
        tensor_unref(attr->t);
    else if (attr->kind == ATTR_GRAPH)
        graph_free(attr->g); /* the importer bounds the depth of nested bodies */
}

void graph_free(struct graph *graph)
{
    if (!graph)
        return;
    for (size_t i = 0; i < graph->value_count; i++)
        tensor_unref(graph->values[i]->known);
    for (size_t n = 0; n < graph->node_count; n++)
        for (size_t a = 0; a < graph->nodes[n]->attr_count; a++)
            attr_done(&graph->nodes[n]->attrs[a]);
    free(graph->values);
    free(graph->nodes);
    arena_free(graph->arena); /* contains the graph itself */
}

struct value *graph_add_value(struct graph *graph, const char *name, enum dtype dtype,
                              const struct shape *shape)
{
    struct value *value = arena_alloc(graph->arena, 1, sizeof *value);
    if (!value || !array_reserve(&graph->values, &graph->value_capacity, graph->value_count + 1,
                                 sizeof(struct value *)))
        return NULL;
    value->name = *name ? arena_copy_text(graph->arena, name, strlen(name)) : "";
    if (!value->name)
        return NULL;
    value->dtype = dtype;
    value->shape = shape ? *shape : SHAPE_NONE;
    value->index = (uint32_t)graph->value_count;
    graph->values[graph->value_count++] = value;
    return value;
}

struct value *graph_add_constant(struct graph *graph, const char *name, struct tensor *tensor)
{
    struct value *value = graph_add_value(graph, name, tensor->dtype, &tensor->shape);
    if (value)
        value->known = tensor_ref(tensor);
    return value;
}

struct node *graph_add_node(struct graph *graph, enum op op, const char *name, size_t inputs,
                            size_t outputs)
{
    struct node *node = arena_alloc(graph->arena, 1, sizeof *node);
    if (!node || !array_reserve(&graph->nodes, &graph->node_capacity, graph->node_count + 1,
                                sizeof(struct node *)))
        return NULL;
    node->op = op;
    node->opset = graph->opset;
    node->inputs = arena_alloc(graph->arena, inputs, sizeof *node->inputs);
    node->outputs = arena_alloc(graph->arena, outputs, sizeof *node->outputs);
    node->input_count = inputs;
    node->output_count = outputs;
    node->name = arena_copy_text(graph->arena, name, strlen(name));
    if (!node->inputs || !node->outputs || !node->name)
        return NULL;
    graph->nodes[graph->node_count++] = node;
    return node;
}

void node_set_output(struct node *node, size_t i, struct value *value)
{
    node->outputs[i] = value;
    if (value)
        value->producer = node;
}

/* ---- clone ---- */

static enum status clone_into(const struct graph *from, struct graph *to, struct graph *outer,
                              struct error *err);

static enum status clone_attr(const struct attr *from, struct attr *to, struct graph *graph,
                              struct error *err)
{
    struct arena *arena = graph->arena;
    const void *copy = to; /* NULL when out of memory */
    *to = *from;
    switch (from->kind) {
    case ATTR_STRING:
        copy = to->s = arena_copy_text(arena, from->s, from->count);
        break;
    case ATTR_INTS:
        copy = to->ints = arena_copy(arena, from->ints, from->count, sizeof *from->ints);
        break;
    case ATTR_FLOATS:
        copy = to->floats = arena_copy(arena, from->floats, from->count, sizeof *from->floats);
        break;
    case ATTR_STRINGS: {
        const char **strings = arena_alloc(arena, from->count, sizeof *strings);
        copy = to->strings = strings;
        for (size_t i = 0; copy && i < from->count; i++)
            copy = strings[i] = arena_copy_text(arena, from->strings[i], strlen(from->strings[i]));
        break;
    }
    case ATTR_TENSOR:
        tensor_ref(to->t);
        break;
    case ATTR_GRAPH:
        copy = to->g = graph_create(graph->budget);
        if (copy)
            TRY(clone_into(from->g, to->g, graph, err));
        break;
    case ATTR_INT:
    case ATTR_FLOAT:
        break;
    }
    to->name = arena_copy_text(arena, from->name, strlen(from->name));
    return check_memory(copy && to->name, "while copying a graph", err);
}

static enum status clone_node(const struct node *from, struct graph *to, struct error *err)
{
    struct node *node =
        graph_add_node(to, from->op, from->name, from->input_count, from->output_count);
    struct attr *attrs = arena_alloc(to->arena, from->attr_count, sizeof *attrs);
    TRY(check_memory(node && attrs, "while copying a graph", err));
    node->opset = from->opset;
    node->epilogue = from->epilogue;
    node->channels_last = from->channels_last;
    for (size_t i = 0; i < from->input_count; i++)
        node->inputs[i] = from->inputs[i] ? to->values[from->inputs[i]->index] : NULL;
    for (size_t i = 0; i < from->output_count; i++)
        node_set_output(node, i, from->outputs[i] ? to->values[from->outputs[i]->index] : NULL);
    if (from->epilogue.residual)
        node->epilogue.residual = to->values[from->epilogue.residual->index];
    if (from->gate)
        node->gate = to->values[from->gate->index];
    if (from->capture_count) {
        node->captures = arena_alloc(to->arena, from->capture_count, sizeof *node->captures);
        TRY(check_memory(node->captures, "while copying a graph", err));
        for (size_t i = 0; i < from->capture_count; i++)
            node->captures[i] = to->values[from->captures[i]->index];
        node->capture_count = from->capture_count;
    }
    node->attrs = attrs;
    for (size_t i = 0; i < from->attr_count; i++) {
        node->attr_count = i + 1; /* graph_free() then releases the attribute */
        TRY(clone_attr(&from->attrs[i], &attrs[i], to, err));
    }
    return STATUS_OK;
}

/* Clones values first, which keep their indexes, then nodes. Recursion follows the nesting of
 * bodies, which the importer bounds. */
static enum status clone_into(const struct graph *from, struct graph *to, struct graph *outer,
                              struct error *err)
{
    to->name = arena_copy_text(to->arena, from->name, strlen(from->name));
    to->producer = arena_copy_text(to->arena, from->producer, strlen(from->producer));
    to->ir_version = from->ir_version;
    to->opset = from->opset;
    to->parent = outer;
    to->inputs = arena_alloc(to->arena, from->input_count, sizeof *to->inputs);
    to->outputs = arena_alloc(to->arena, from->output_count, sizeof *to->outputs);
    TRY(check_memory(to->name && to->producer && to->inputs && to->outputs, "while copying a graph",
                     err));
    for (size_t i = 0; i < from->value_count; i++) {
        const struct value *value = from->values[i];
        struct value *copy = graph_add_value(to, value->name, value->dtype, &value->shape);
        TRY(check_memory(copy, "while copying a graph", err));
        copy->known = tensor_ref(value->known);
        if (value->outer)
            copy->outer = outer ? outer->values[value->outer->index] : value->outer;
        for (int d = 0; d < TENSOR_MAX_RANK; d++) {
            const char *dim = value->dim_names[d];
            if (dim && !(copy->dim_names[d] = arena_copy_text(to->arena, dim, strlen(dim))))
                return error_no_memory(err, "while copying a graph");
        }
    }
    for (size_t i = 0; i < from->node_count; i++)
        TRY(clone_node(from->nodes[i], to, err));
    for (size_t i = 0; i < from->input_count; i++)
        to->inputs[i] = to->values[from->inputs[i]->index];
    for (size_t i = 0; i < from->output_count; i++)
        to->outputs[i] = to->values[from->outputs[i]->index];
    to->input_count = from->input_count;
    to->output_count = from->output_count;
    return STATUS_OK;
}

enum status graph_clone(const struct graph *graph, struct graph **ret, struct error *err)
{
    struct graph *copy = graph_create(graph->budget);
    TRY(check_memory(copy, "while copying a graph", err));
    enum status status = clone_into(graph, copy, NULL, err);
    if (status != STATUS_OK) {
        graph_free(copy);
        return status;
    }
    *ret = copy;
    return STATUS_OK;
}

/* ---- topological order ---- */

/* Number of values that a node depends on: inputs, and captures of bodies in its attributes. */
static size_t operand_count(const struct node *node)
{
    return node->input_count + node->capture_count;
}

static struct value *operand(const struct node *node, size_t i)
{
    return i < node->input_count ? node->inputs[i] : node->captures[i - node->input_count];
}

void graph_count_readers(const struct graph *graph, uint32_t *readers)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t i = 0; i < operand_count(node) && node->op != OP_NONE; i++)
            if (operand(node, i))
                readers[operand(node, i)->index]++;
    }
    for (size_t i = 0; i < graph->output_count; i++)
        readers[graph->outputs[i]->index]++;
}

/* Writes the nodes to order[], each after the nodes that make its operands, by a depth-first
 * search. maker[v] is 1 + the position of the node that makes value v, or 0. `next` and `stack`
 * have room for all nodes. */
static enum status sort_nodes(const struct graph *graph, const size_t *maker, size_t *next,
                              size_t *stack, struct node **order, struct error *err)
{
    const size_t done = SIZE_MAX; /* next[n] is `done`, or the next operand of n to look at */
    size_t placed = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        size_t depth = next[n] != done;
        stack[0] = n;
        while (depth) {
            const size_t top = stack[depth - 1];
            struct node *node = graph->nodes[top];
            if (next[top] == operand_count(node)) {
                order[placed++] = node;
                next[top] = done;
                depth--;
                continue;
            }
            const struct value *value = operand(node, next[top]++);
            const size_t from = value ? maker[value->index] : 0;
            if (!from || next[from - 1] == done)
                continue;
            if (next[from - 1]) /* that node is on the stack */
                return error_set(err, STATUS_MODEL, "the graph has a cycle: %s is part of it",
                                 NODE_STRING(graph->nodes[from - 1]));
            stack[depth++] = from - 1;
        }
    }
    return STATUS_OK;
}

enum status graph_sort(struct graph *graph, struct error *err)
{
    const size_t count = graph->node_count;
    size_t *maker = alloc_array(graph->value_count, sizeof *maker);
    size_t *next = alloc_array(count, sizeof *next), *stack = alloc_array(count, sizeof *stack);
    struct node **order = alloc_array(count, sizeof(struct node *));
    enum status status =
        check_memory(maker && next && stack && order, "while sorting a graph", err);
    for (size_t n = 0; n < count && status == STATUS_OK; n++)
        for (size_t o = 0; o < graph->nodes[n]->output_count; o++) {
            const struct value *value = graph->nodes[n]->outputs[o];
            if (value && value->producer == graph->nodes[n])
                maker[value->index] = n + 1;
        }
    IF_OK(status, sort_nodes(graph, maker, next, stack, order, err));
    if (status == STATUS_OK && count)
        memcpy(graph->nodes, order, count * sizeof(struct node *));
    FREE_ALL(maker, next, stack, order);
    return status;
}

/* ---- attributes and operands ---- */

const struct attr *node_attr(const struct node *node, const char *name)
{
    for (size_t i = 0; i < node->attr_count; i++)
        if (!strcmp(node->attrs[i].name, name))
            return &node->attrs[i];
    return NULL;
}

int64_t node_int(const struct node *node, const char *name, int64_t otherwise)
{
    const struct attr *attr = node_attr(node, name);
    return attr && attr->kind == ATTR_INT ? attr->i : otherwise;
}

float node_float(const struct node *node, const char *name, float otherwise)
{
    const struct attr *attr = node_attr(node, name);
    return attr && attr->kind == ATTR_FLOAT ? attr->f : otherwise;
}

const char *node_string(const struct node *node, const char *name, const char *otherwise)
{
    const struct attr *attr = node_attr(node, name);
    return attr && attr->kind == ATTR_STRING ? attr->s : otherwise;
}

const int64_t *node_ints(const struct node *node, const char *name, size_t *ret_count)
{
    const struct attr *attr = node_attr(node, name);
    bool present = attr && attr->kind == ATTR_INTS;
    *ret_count = present ? attr->count : 0;
    return present ? attr->ints : NULL;
}

const float *node_floats(const struct node *node, const char *name, size_t *ret_count)
{
    const struct attr *attr = node_attr(node, name);
    bool present = attr && attr->kind == ATTR_FLOATS;
    *ret_count = present ? attr->count : 0;
    return present ? attr->floats : NULL;
}

/* Copies the node's list of attributes, and overwrites or appends `name` in the copy. */
static bool set_attr(struct graph *graph, struct node *node, const char *name, struct attr attr)
{
    struct attr *attrs = arena_alloc(graph->arena, node->attr_count + 1, sizeof *attrs);
    attr.name = arena_copy_text(graph->arena, name, strlen(name));
    if (!attrs || !attr.name)
        return false;
    if (node->attr_count)
        memcpy(attrs, node->attrs, node->attr_count * sizeof *attrs);
    size_t i = 0;
    while (i < node->attr_count && strcmp(attrs[i].name, name))
        i++;
    if (i < node->attr_count && attrs[i].kind == ATTR_TENSOR)
        tensor_unref(attrs[i].t);
    if (i == node->attr_count)
        node->attr_count++;
    node->attrs = attrs;
    attrs[i] = attr;
    return true;
}

bool node_set_int(struct graph *graph, struct node *node, const char *name, int64_t value)
{
    return set_attr(graph, node, name, (struct attr){.kind = ATTR_INT, .i = value});
}

bool node_set_float(struct graph *graph, struct node *node, const char *name, float value)
{
    return set_attr(graph, node, name, (struct attr){.kind = ATTR_FLOAT, .f = value});
}

bool node_set_string(struct graph *graph, struct node *node, const char *name, const char *text)
{
    const struct attr attr = {.kind = ATTR_STRING, .count = strlen(text), .s = text};
    return set_attr(graph, node, name, attr);
}

bool node_set_ints(struct graph *graph, struct node *node, const char *name, const int64_t *values,
                   size_t count)
{
    const int64_t *copy = arena_copy(graph->arena, values, count, sizeof *copy);
    const struct attr attr = {.kind = ATTR_INTS, .count = count, .ints = copy};
    return copy && set_attr(graph, node, name, attr);
}

bool is_f32_constant(const struct value *value)
{
    return value && value->known && value->known->dtype == DTYPE_F32;
}

bool is_f32_vector(const struct value *value, int64_t count)
{
    if (!is_f32_constant(value) || value->known->shape.rank < 1)
        return false;
    const struct shape *shape = &value->known->shape;
    return shape->dims[shape->rank - 1] == count && shape_count(shape) == (size_t)count;
}

size_t value_bytes(const struct value *value)
{
    return shape_count(&value->shape) * dtype_size(value->dtype);
}

struct value *node_input(const struct node *node, size_t i)
{
    return i < node->input_count ? node->inputs[i] : NULL;
}

struct value *node_output(const struct node *node, size_t i)
{
    return i < node->output_count ? node->outputs[i] : NULL;
}

struct value *node_bias(const struct node *node)
{
    bool only_residual = node->epilogue.residual && node->input_count == 3;
    return only_residual ? NULL : node_input(node, 2);
}

bool epilogue_range(const struct epilogue *e, float *ret_low, float *ret_high)
{
    *ret_low = -INFINITY;
    *ret_high = INFINITY;
    if (e->activation == ACTIVATION_RELU)
        *ret_low = 0;
    if (e->activation == ACTIVATION_CLIP) {
        *ret_low = e->alpha;
        *ret_high = e->beta;
    }
    return e->activation == ACTIVATION_NONE || e->activation == ACTIVATION_RELU ||
           e->activation == ACTIVATION_CLIP;
}

const char *node_text(const struct node *node, char text[static NODE_TEXT])
{
    const char *domain = op_domain(node->op);
    snprintf(text, NODE_TEXT, "%s%s%s '%.100s' (%s%sopset %d)", domain, *domain ? "." : "",
             op_name(node->op), node->name, domain, *domain ? " " : "", node->opset);
    return text;
}
