/* Splits a graph into a static part, which a backend compiles, and a data-dependent tail, which the
 * interpreter runs.
 *
 *     inputs ─▶ backbone, heads (static) ─▶ NonMaxSuppression, NonZero, … (tail) ─▶ outputs
 *
 * A node is data-dependent if a result or an operand has no known shape or data type, or if the
 * node has a body (If, Loop, Scan). Readers of its results are data-dependent, too, so one cut
 * through the graph is enough. */
#include "engine/passes/edit.h"

static bool is_dynamic_value(const struct value *value)
{
    return value && !value->known && (!shape_is_known(&value->shape) || value->dtype == DTYPE_NONE);
}

struct tail_split {
    struct graph *graph, *tail; /* tail: a clone of graph, with equal indexes of values and nodes */
    bool *in_tail;              /* by position: the node belongs to the tail */
    bool *made;                 /* by value->index: a node of the tail makes the value */
    bool *crosses;              /* by value->index: the value is an input of the tail */
};

/* Finds the tail's nodes and the values that these nodes make. Nodes are sorted, so one sweep is
 * enough. Returns false if the tail has no nodes. */
static bool mark(const struct tail_split *split)
{
    bool any = false;
    for (size_t n = 0; n < split->graph->node_count; n++) {
        const struct node *node = split->graph->nodes[n];
        bool in_tail = edit_has_body(node);
        for (size_t i = 0; i < node->output_count; i++)
            in_tail = in_tail || is_dynamic_value(node->outputs[i]);
        for (size_t i = 0; i < node->input_count; i++)
            in_tail = in_tail || is_dynamic_value(node->inputs[i]) ||
                      (node->inputs[i] && split->made[node->inputs[i]->index]);
        for (size_t i = 0; i < node->output_count; i++)
            if (node->outputs[i])
                split->made[node->outputs[i]->index] = in_tail;
        split->in_tail[n] = in_tail;
        any = any || in_tail;
    }
    return any;
}

/* Adds `value`, which the tail reads, to the tail's inputs if the static part computes `value`. */
static void cross(const struct tail_split *split, const struct value *value)
{
    struct graph *tail = split->tail;
    if (!value || value->known || split->made[value->index] || split->crosses[value->index])
        return;
    split->crosses[value->index] = true;
    tail->inputs[tail->input_count++] = tail->values[value->index];
}

/* Divides nodes and outputs between the graph and its clone. `outputs` gets the graph's new
 * outputs: first the old outputs that stay in the graph, then the values that the tail reads. */
static void divide(const struct tail_split *split, struct value **outputs, int *output_of)
{
    struct graph *graph = split->graph, *tail = split->tail;
    size_t kept = 0;
    tail->input_count = tail->output_count = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        for (size_t i = 0; split->in_tail[n] && i < node->input_count; i++)
            cross(split, node->inputs[i]);
        for (size_t i = 0; split->in_tail[n] && i < node->capture_count; i++)
            cross(split, node->captures[i]);
        (split->in_tail[n] ? node : tail->nodes[n])->op = OP_NONE;
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        struct value *value = graph->outputs[i];
        const bool is_made = split->made[value->index];
        output_of[i] = is_made ? -1 - (int)tail->output_count : (int)kept;
        if (is_made)
            tail->outputs[tail->output_count++] = tail->values[value->index];
        else
            outputs[kept++] = value;
    }
    for (size_t i = 0; i < tail->input_count; i++)
        outputs[kept++] = graph->values[tail->inputs[i]->index];
    graph->outputs = outputs;
    graph->output_count = kept;
}

enum status optimize_split(struct graph *graph, struct graph **ret_tail, int **ret_output_of,
                           struct error *err)
{
    const size_t values = graph->value_count, count = graph->output_count;
    struct tail_split split = {
        .graph = graph,
        .in_tail = arena_alloc(graph->arena, graph->node_count, sizeof *split.in_tail),
        .made = arena_alloc(graph->arena, values, sizeof *split.made),
        .crosses = arena_alloc(graph->arena, values, sizeof *split.crosses)};
    struct value **outputs = arena_alloc(graph->arena, count + values, sizeof *outputs);
    int *output_of = arena_alloc(graph->arena, count, sizeof *output_of);
    TRY(check_memory(split.in_tail && split.made && split.crosses && outputs && output_of,
                     "while optimising the graph", err));
    *ret_tail = NULL;
    *ret_output_of = output_of;
    for (size_t i = 0; i < count; i++)
        output_of[i] = (int)i;
    if (!mark(&split))
        return STATUS_OK;
    TRY(graph_clone(graph, &split.tail, err));
    struct edit edit = {.graph = graph, .err = err}, tail = {.graph = split.tail, .err = err};
    split.tail->inputs = arena_alloc(split.tail->arena, values, sizeof *split.tail->inputs);
    if (split.tail->inputs) {
        divide(&split, outputs, output_of);
        edit_sweep(&edit);
        edit_sweep(&tail);
    } else {
        edit_no_memory(&edit);
    }
    const enum status status = edit.status != STATUS_OK ? edit.status : tail.status;
    if (status == STATUS_OK)
        *ret_tail = split.tail;
    else
        graph_free(split.tail);
    return status;
}
