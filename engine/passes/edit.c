/* Small steps of graph rewriting: counts readers, replaces values, inserts nodes and casts, and
 * removes what nobody reads. */
#include "engine/passes/edit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

enum status edit_init(struct edit *edit, struct graph *graph, struct error *err)
{
    *edit = (struct edit){.graph = graph};
    return edit_count_readers(edit, err);
}

void edit_done(struct edit *edit)
{
    free(edit->readers);
    edit->readers = NULL;
}

enum status edit_count_readers(struct edit *edit, struct error *err)
{
    struct graph *graph = edit->graph;
    if (graph->value_count > edit->reader_capacity || !edit->readers) {
        free(edit->readers);
        edit->reader_capacity = graph->value_count * 2 + 64;
        edit->readers = alloc_array(edit->reader_capacity, sizeof *edit->readers);
        if (!edit->readers)
            return edit_no_memory(err);
    }
    memset(edit->readers, 0, edit->reader_capacity * sizeof *edit->readers);
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (node->op == OP_NONE)
            continue;
        for (size_t i = 0; i < node->input_count; i++)
            if (node->inputs[i])
                edit->readers[node->inputs[i]->index]++;
        for (size_t i = 0; i < node->capture_count; i++)
            edit->readers[node->captures[i]->index]++;
    }
    for (size_t i = 0; i < graph->output_count; i++)
        edit->readers[graph->outputs[i]->index]++;
    return STATUS_OK;
}

bool edit_single_reader(const struct edit *edit, const struct value *value)
{
    if (edit->readers[value->index] != 1)
        return false;
    for (size_t i = 0; i < edit->graph->output_count; i++)
        if (edit->graph->outputs[i] == value)
            return false;
    return true;
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

/* Bodies name outer values through value->outer. */
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

void edit_kill(struct node *node)
{
    node->op = OP_NONE;
}

/* Backwards over the topological order: a node lives when somebody reads one of its outputs. */
enum status edit_sweep(struct graph *graph, struct error *err)
{
    bool *wanted = alloc_array(graph->value_count, sizeof *wanted);
    bool *alive = alloc_array(graph->node_count, sizeof *alive);
    if (!wanted || !alive) {
        free(wanted);
        free(alive);
        return edit_no_memory(err);
    }
    for (size_t i = 0; i < graph->output_count; i++)
        wanted[graph->outputs[i]->index] = true;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        bool live = false;
        for (size_t o = 0; o < node->output_count; o++)
            live = live || (node->outputs[o] && wanted[node->outputs[o]->index]);
        alive[n] = live && node->op != OP_NONE;
        if (!alive[n])
            continue;
        for (size_t i = 0; i < node->input_count; i++)
            if (node->inputs[i])
                wanted[node->inputs[i]->index] = true;
        for (size_t i = 0; i < node->capture_count; i++)
            wanted[node->captures[i]->index] = true;
    }
    size_t kept = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        if (alive[n]) {
            graph->nodes[kept++] = node;
            continue;
        }
        for (size_t a = 0; a < node->attr_count; a++) {
            if (node->attrs[a].kind == ATTR_TENSOR)
                tensor_unref(node->attrs[a].t);
            else if (node->attrs[a].kind == ATTR_GRAPH)
                graph_free(node->attrs[a].g);
        }
        node->attr_count = 0;
        for (size_t o = 0; o < node->output_count; o++)
            if (node->outputs[o] && node->outputs[o]->producer == node)
                node->outputs[o]->producer = NULL;
    }
    graph->node_count = kept;
    /* Constants nobody reads any more give their memory back. */
    for (size_t v = 0; v < graph->value_count; v++) {
        struct value *value = graph->values[v];
        if (value->known && !wanted[v]) {
            tensor_unref(value->known);
            value->known = NULL;
        }
    }
    free(wanted);
    free(alive);
    return STATUS_OK;
}

bool edit_scalar(const struct value *value, float *ret)
{
    if (!value || !value->known || shape_count(&value->known->shape) != 1)
        return false;
    *ret = (float)tensor_number(value->known, 0);
    return true;
}

enum status edit_constant_f32(struct graph *graph, const char *name, const struct shape *shape,
                              const float *data, struct value **ret, struct error *err)
{
    struct tensor *tensor;
    TRY(tensor_create(graph->budget, DTYPE_F32, shape, &tensor, err));
    if (tensor->bytes)
        memcpy(tensor->data, data, tensor->bytes);
    *ret = graph_add_constant(graph, name, tensor);
    tensor_unref(tensor);
    return *ret ? STATUS_OK : edit_no_memory(err);
}

bool edit_append_input(struct graph *graph, struct node *node, struct value *value)
{
    struct value **inputs = arena_alloc(graph->arena, node->input_count + 1, sizeof *inputs);
    if (!inputs)
        return false;
    if (node->input_count)
        memcpy(inputs, node->inputs, node->input_count * sizeof *inputs);
    inputs[node->input_count++] = value;
    node->inputs = inputs;
    return true;
}

struct node *edit_insert_node(struct graph *graph, size_t before, enum op op, const char *name,
                              size_t inputs, size_t outputs)
{
    struct node *node = graph_add_node(graph, op, name, inputs, outputs);
    if (!node)
        return NULL;
    memmove(graph->nodes + before + 1, graph->nodes + before,
            (graph->node_count - 1 - before) * sizeof *graph->nodes);
    graph->nodes[before] = node;
    return node;
}

struct value *edit_insert_cast(struct graph *graph, size_t before, const char *name,
                               struct value *from, enum dtype to)
{
    struct node *cast = edit_insert_node(graph, before, OP_CAST, name, 1, 1);
    struct value *value = graph_add_value(graph, "", to, &from->shape);
    if (!cast || !value || !node_set_int(graph, cast, "to", to))
        return NULL;
    cast->opset = 13;
    cast->inputs[0] = from;
    node_set_output(cast, 0, value);
    return value;
}

size_t edit_position(const struct graph *graph, const struct node *node)
{
    size_t n = 0;
    while (n < graph->node_count && graph->nodes[n] != node)
        n++;
    return n;
}
