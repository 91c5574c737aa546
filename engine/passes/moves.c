/* Moves: a chain of Transposes, Reshapes, Slices, Gathers of one index, Expands … whose last value
 * something reads that computes becomes one copy from where the chain begins (OP_MOVE), or nothing
 * where the elements stay in their order: window partitions, channel shuffles, patch merging. */
#include "engine/passes/passes.h"
#include "engine/passes/view.h"

/* `value` from now on comes straight from the beginning of its chain. */
static enum status shorten(struct graph *graph, struct value *value, struct error *err)
{
    struct node *last = value->producer;
    struct view view;
    if (!last || !view_only_moves(last->op) || value->known || value->shape.rank < 1 ||
        !shape_count(&value->shape))
        return STATUS_OK;
    view_of(value, false, &view);
    const bool slow = last->op != OP_TRANSPOSE && last->op != OP_SPLIT;
    if (view.base == value || view.base->known || !view.moves || (view.moves == 1 && !slow))
        return STATUS_OK;
    const bool plain = view_is_plain(&view);
    struct access_map map = {.offset = view.offset, .groups = 1};
    if (!plain && !view_group(&view, 0, view.rank, &map.group[0]))
        return STATUS_OK;
    struct node *node = edit_insert_node(graph, edit_position(graph, last),
                                         plain ? OP_RESHAPE : OP_MOVE, last->name, 1, 1);
    if (!node || (!plain && (!access_map_store(graph, node, "map", &map) ||
                             !node_set_ints(graph, node, "shape", value->shape.dims,
                                            (size_t)value->shape.rank))))
        return edit_no_memory(err);
    node->opset = plain ? 13 : 1;
    node->inputs[0] = view.base;
    for (size_t o = 0; o < last->output_count; o++)
        if (last->outputs[o] == value)
            last->outputs[o] = NULL;
    node_set_output(node, 0, value);
    return STATUS_OK;
}

enum status pass_moves(struct edit *edit, struct error *err)
{
    struct graph *graph = edit->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        const size_t before = graph->node_count;
        for (size_t i = 0; i < node->input_count && !view_only_moves(node->op); i++)
            if (node->inputs[i])
                TRY(shorten(graph, node->inputs[i], err));
        n += graph->node_count - before; /* nodes went in in front of this one */
    }
    for (size_t i = 0; i < graph->output_count; i++)
        TRY(shorten(graph, graph->outputs[i], err));
    TRY(edit_sweep(graph, err));
    return edit_count_readers(edit, err);
}
