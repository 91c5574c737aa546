/* Splits a graph into a static part, which a backend compiles, and a data-dependent tail, which the
 * interpreter runs.
 *
 *     inputs ─▶ backbone, heads (static) ─▶ NonMaxSuppression, NonZero, … (tail) ─▶ outputs
 *
 * A node is data-dependent if a result or an operand has no known shape. Readers of such a value
 * are data-dependent, too, so one cut is enough. */
#include "engine/passes/edit.h"

static bool is_dynamic_value(const struct value *value)
{
    return value && !value->known && (!shape_is_known(&value->shape) || value->dtype == DTYPE_NONE);
}

/* Finds nodes of the tail and values that they make. Nodes are sorted, so one sweep is enough. */
static void mark(const struct graph *graph, bool *in_tail, bool *made)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        in_tail[n] = edit_has_body(node);
        for (size_t i = 0; i < node->output_count; i++)
            in_tail[n] = in_tail[n] || is_dynamic_value(node->outputs[i]);
        for (size_t i = 0; i < node->input_count; i++)
            in_tail[n] = in_tail[n] || is_dynamic_value(node->inputs[i]) ||
                         (node->inputs[i] && made[node->inputs[i]->index]);
        for (size_t i = 0; i < node->output_count; i++)
            if (node->outputs[i])
                made[node->outputs[i]->index] = in_tail[n];
    }
}

struct tail_split {
    struct graph *graph, *tail;
    struct value **in_tail;  /* by value->index of graph: the corresponding value of the tail */
    struct value **crossing; /* values of graph that become the tail's inputs, in their order */
    size_t crossing_count;
};

/* Returns the tail's counterpart of a value of the graph, and makes it if there is none. The
 * counterpart becomes an input of the tail if the static part computes the value. */
static struct value *carry(struct tail_split *split, struct value *value, bool made_in_tail)
{
    struct value *copy = split->in_tail[value->index];
    if (copy)
        return copy;
    if (value->known) {
        copy = graph_add_constant(split->tail, value->name, value->known);
    } else {
        copy = graph_add_value(split->tail, value->name, value->dtype, &value->shape);
        if (copy && !made_in_tail) {
            split->crossing[split->crossing_count] = value;
            split->tail->inputs[split->crossing_count++] = copy;
        }
    }
    split->in_tail[value->index] = copy;
    return copy;
}

static bool move_node(struct tail_split *split, struct node *node)
{
    struct node *moved =
        graph_add_node(split->tail, node->op, node->name, node->input_count, node->output_count);
    struct value **captures =
        arena_alloc(split->tail->arena, node->capture_count, sizeof *captures);
    struct attr *attrs =
        arena_copy(split->tail->arena, node->attrs, node->attr_count, sizeof *attrs);
    if (!moved || !captures || !attrs)
        return false;
    moved->opset = node->opset;
    moved->attrs = attrs; /* tensors and bodies move; their texts lie in graph's arena, which the
                             caller keeps as long as the tail */
    moved->attr_count = node->attr_count;
    node->attr_count = 0;
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !(moved->inputs[i] = carry(split, node->inputs[i], false)))
            return false;
    moved->captures = captures;
    moved->capture_count = node->capture_count;
    for (size_t i = 0; i < node->capture_count; i++) {
        struct value *from = node->captures[i];
        if (!(captures[i] = carry(split, from, false)))
            return false;
        for (size_t a = 0; a < moved->attr_count; a++) {
            if (attrs[a].kind != ATTR_GRAPH)
                continue;
            attrs[a].g->parent = split->tail;
            for (size_t v = 0; v < attrs[a].g->value_count; v++)
                if (attrs[a].g->values[v]->outer == from)
                    attrs[a].g->values[v]->outer = captures[i];
        }
    }
    for (size_t i = 0; i < node->output_count; i++) {
        struct value *value = node->outputs[i] ? carry(split, node->outputs[i], true) : NULL;
        if (node->outputs[i] && !value)
            return false;
        node_set_output(moved, i, value);
    }
    edit_kill(node);
    return true;
}

/* Sets the graphs' outputs. `graph` keeps those it computes; values that the tail reads follow. */
static bool set_outputs(struct tail_split *split, int *output_of)
{
    struct graph *graph = split->graph, *tail = split->tail;
    struct value **outputs =
        arena_alloc(graph->arena, graph->output_count + split->crossing_count, sizeof *outputs);
    tail->outputs = arena_alloc(tail->arena, graph->output_count, sizeof *tail->outputs);
    if (!outputs || !tail->outputs)
        return false;
    size_t kept = 0;
    for (size_t i = 0; i < graph->output_count; i++) {
        struct value *copy = split->in_tail[graph->outputs[i]->index];
        if (copy && copy->producer) {
            output_of[i] = -1 - (int)tail->output_count;
            tail->outputs[tail->output_count++] = copy;
        } else {
            output_of[i] = (int)kept;
            outputs[kept++] = graph->outputs[i];
        }
    }
    for (size_t i = 0; i < split->crossing_count; i++)
        outputs[kept++] = split->crossing[i];
    graph->outputs = outputs;
    graph->output_count = kept;
    tail->input_count = split->crossing_count;
    return true;
}

enum status optimize_split(struct graph *graph, struct graph **ret_tail, int **ret_output_of,
                           struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    bool *in_tail = arena_alloc(graph->arena, graph->node_count, sizeof *in_tail);
    int *output_of = arena_alloc(graph->arena, graph->output_count, sizeof *output_of);
    bool *made = arena_alloc(graph->arena, graph->value_count, sizeof *made);
    if (!in_tail || !output_of || !made) {
        edit_no_memory(&edit);
        return edit.status;
    }
    *ret_tail = NULL;
    *ret_output_of = output_of;
    for (size_t i = 0; i < graph->output_count; i++)
        output_of[i] = (int)i;
    mark(graph, in_tail, made);
    bool any = false;
    for (size_t n = 0; n < graph->node_count; n++)
        any = any || in_tail[n];
    if (!any)
        return STATUS_OK;
    struct tail_split split = {.graph = graph, .tail = graph_create(graph->budget)};
    bool ok = split.tail != NULL;
    if (ok) {
        split.tail->opset = graph->opset;
        split.in_tail = arena_alloc(graph->arena, graph->value_count, sizeof(struct value *));
        split.crossing = arena_alloc(graph->arena, graph->value_count, sizeof(struct value *));
        split.tail->inputs =
            arena_alloc(split.tail->arena, graph->value_count, sizeof(struct value *));
        ok = split.in_tail && split.crossing && split.tail->inputs;
    }
    for (size_t n = 0; ok && n < graph->node_count; n++)
        if (in_tail[n])
            ok = move_node(&split, graph->nodes[n]);
    if (ok && set_outputs(&split, output_of))
        edit_sweep(&edit);
    else
        edit_no_memory(&edit);
    if (edit.status == STATUS_OK)
        *ret_tail = split.tail;
    else
        graph_free(split.tail);
    return edit.status;
}
