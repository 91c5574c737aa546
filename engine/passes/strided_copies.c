/* Before a node that computes, one strided copy (OP_STRIDED_COPY) replaces a chain of Transposes,
 * Reshapes, Slices, Gathers of one index, Expands …, such as a window partition, channel shuffle or
 * patch merging. If the order of elements does not change, one Reshape replaces the chain. */
#include "engine/op/ops.h"
#include "engine/passes/passes.h"
#include "engine/passes/view.h"

/* Makes `value` depend directly on the start of its chain. */
static void shorten(struct edit *edit, struct value *value)
{
    struct graph *graph = edit->graph;
    struct node *last = value->producer;
    struct view view;
    if (!last || !op_has(last->op, OP_MOVES) || value->known || value->shape.rank < 1 ||
        !shape_count(&value->shape))
        return;
    view_of(value, false, &view);
    const bool slow = last->op != OP_TRANSPOSE && last->op != OP_SPLIT;
    if (view.base == value || view.base->known || !view.moves)
        return;
    const bool plain = view_is_plain(&view); /* also if a Transpose moves only extents of 1 */
    if (view.moves == 1 && !slow && !plain)
        return;
    struct access_map map = {.offset = view.offset, .groups = 1};
    if (!plain && !view_group(&view, 0, view.rank, &map.group[0]))
        return;
    struct node *node =
        edit_insert_node(edit, edit_position(graph, last), plain ? OP_RESHAPE : OP_STRIDED_COPY,
                         plain ? 13 : 1, last->name, &view.base, 1);
    if (!node)
        return;
    if (!plain && !access_map_store(graph, node, "map", &map))
        edit_no_memory(edit);
    for (size_t o = 0; o < last->output_count; o++)
        if (last->outputs[o] == value)
            last->outputs[o] = NULL;
    node_set_output(node, 0, value);
}

static bool strided_copies_visit(struct edit *edit, size_t *n)
{
    struct graph *graph = edit->graph;
    const struct node *node = graph->nodes[*n];
    const size_t before = graph->node_count;
    for (size_t i = 0; i < node->input_count && !op_has(node->op, OP_MOVES); i++)
        if (node->inputs[i])
            shorten(edit, node->inputs[i]);
    *n += graph->node_count - before; /* nodes were inserted before this one */
    return false;
}

void pass_strided_copies(struct edit *edit)
{
    edit_nodes(edit, strided_copies_visit);
    for (size_t i = 0; i < edit->graph->output_count && edit->status == STATUS_OK; i++)
        shorten(edit, edit->graph->outputs[i]);
    if (edit->status == STATUS_OK)
        edit_sweep(edit);
}
