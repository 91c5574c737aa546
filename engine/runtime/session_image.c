/* Chooses the data type of the image input. If the first operators only round the image to
 * bfloat16, the input becomes bfloat16, and the caller writes rounded numbers
 * (session_info.image_dtype):
 *
 *     image float32 → Cast → bfloat16 → Conv …            ─▶     image bfloat16 → Conv … */
#include "engine/passes/edit.h"
#include "engine/runtime/session_internal.h"

/* True if `node` only rounds the image to bfloat16. */
static bool only_rounds(const struct node *node, const struct value *image)
{
    return node->op == OP_CAST && node->inputs[0] == image && node->outputs[0] &&
           node->outputs[0]->dtype == DTYPE_BF16 && node->epilogue.activation == ACTIVATION_NONE;
}

/* Follows the image through Reshapes (the layout pass leaves some behind), each the only reader of
 * its input. Returns the last Reshape's result. */
static struct value *follow_views(const struct edit *edit, struct value *image)
{
    const struct graph *graph = edit->graph;
    struct value *value = image;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (node->op == OP_RESHAPE && node->inputs[0] == value && node->outputs[0] &&
            edit->readers[value->index] == 1 && !edit_is_output(graph, node->outputs[0]))
            value = node->outputs[0];
    }
    return value;
}

/* True if all readers of `image` only round the image. */
static bool all_readers_round(const struct edit *edit, const struct value *image)
{
    const struct graph *graph = edit->graph;
    size_t found = 0;
    for (size_t n = 0; n < graph->node_count; n++)
        found += only_rounds(graph->nodes[n], image) &&
                 !edit_is_output(graph, graph->nodes[n]->outputs[0]);
    return found > 0 && found == edit->readers[image->index];
}

/* Makes the image input bfloat16 and removes the Casts of `last`, which is the image or the result
 * of its last Reshape. */
static void remove_casts(struct edit *edit, struct value *last)
{
    struct graph *graph = edit->graph;
    /* Backwards, because the readers of a removed Cast then read `last` and must not be removed. */
    for (size_t n = graph->node_count; n-- > 0;) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_NONE || node->input_count < 1 || node->inputs[0] != last)
            continue;
        edit_replace(graph, node->outputs[0], last);
        node->op = OP_NONE;
    }
    for (struct value *value = last; value;
         value = value->producer ? value->producer->inputs[0] : NULL)
        value->dtype = DTYPE_BF16;
    edit_sweep(edit);
}

/* Makes the input bfloat16, as in other batch sizes. The graph then converts the image to
 * float32. */
static void widen_image(struct edit *edit, size_t input)
{
    struct graph *graph = edit->graph;
    struct value *image = graph->inputs[input];
    struct value *fed = graph_add_value(graph, image->name, DTYPE_BF16, &image->shape);
    struct node *cast = edit_insert_node(edit, 0, OP_CAST, 13, "image", &fed, 1);
    if (!fed || !cast || !node_set_int(graph, cast, "to", DTYPE_F32)) {
        edit_no_memory(edit);
        return;
    }
    node_set_output(cast, 0, image);
    graph->inputs[input] = fed;
}

enum status session_take_image(struct session *session, struct graph *graph, bool is_first,
                               struct error *err)
{
    const size_t input = session->options.image_input;
    enum dtype *image_dtype = &session->info.image_dtype;
    if (session->options.image_layout != IMAGE_NHWC_ANY || input >= graph->input_count ||
        (!is_first && *image_dtype == DTYPE_F32))
        return STATUS_OK;
    struct edit edit = {.graph = graph, .err = err};
    if (!edit_count_readers(&edit))
        return edit_end(&edit);
    struct value *last = follow_views(&edit, graph->inputs[input]);
    if (all_readers_round(&edit, last)) {
        *image_dtype = DTYPE_BF16;
        remove_casts(&edit, last);
    } else if (!is_first) {
        widen_image(&edit, input);
    }
    return edit_end(&edit);
}
