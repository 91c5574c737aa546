/* Chooses the data type of the image input. Where the first operators only round or quantize the
 * image, the input takes rounded or quantized numbers, and the caller writes them so
 * (session_info.image):
 *
 *     image float32 → Cast → bfloat16 → Conv …            ─▶     image bfloat16 → Conv …
 *     image float32 → QuantizeLinear → uint8 → QLinearConv ─▶    image uint8 → QLinearConv …
 */
#include <math.h>

#include "engine/passes/edit.h"
#include "engine/runtime/session_internal.h"

/* A QuantizeLinear with one scale and one zero point of the result's type. */
static bool quantizes(const struct node *node, struct image_numbers *ret)
{
    const struct value *scale = node_input(node, 1), *zero = node_input(node, 2);
    const enum dtype dtype = node->outputs[0]->dtype;
    float number;
    if (node->op != OP_QUANTIZE_LINEAR || (dtype != DTYPE_U8 && dtype != DTYPE_I8) ||
        node_int(node, "precision", 0) || !edit_scalar(scale, &number) || !isfinite(number) ||
        !(number > 0) ||
        (zero &&
         (!zero->known || zero->known->dtype != dtype || shape_count(&zero->known->shape) != 1)))
        return false;
    *ret = (struct image_numbers){dtype, number, zero ? (int)tensor_int(zero->known, 0) : 0};
    return true;
}

/* True when `node` only converts the image to another data type. */
static bool converts(const struct node *node, const struct value *image, struct image_numbers *ret)
{
    if (node->op == OP_NONE || node->input_count < 1 || node->inputs[0] != image ||
        !node->outputs[0] || node->epilogue.activation != ACTIVATION_NONE)
        return false;
    if (node->op == OP_CAST && node->outputs[0]->dtype == DTYPE_BF16) {
        *ret = (struct image_numbers){.dtype = DTYPE_BF16};
        return true;
    }
    return quantizes(node, ret);
}

/* Follows the image through Reshapes that are its only readers (the layout pass leaves them) and
 * returns the last result. */
static struct value *behind_views(const struct edit *edit, struct value *image)
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

/* True when all readers of `image` convert it to the same data type, which is then *ret. */
static bool all_convert(const struct edit *edit, const struct value *image,
                        struct image_numbers *ret)
{
    const struct graph *graph = edit->graph;
    size_t found = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct image_numbers numbers;
        if (!converts(graph->nodes[n], image, &numbers))
            continue;
        if (edit_is_output(graph, graph->nodes[n]->outputs[0]) ||
            (found > 0 && !image_numbers_equal(&numbers, ret)))
            return false;
        *ret = numbers;
        found++;
    }
    return found > 0 && found == edit->readers[image->index];
}

/* Makes the image input take converted numbers and removes the conversions behind `last`, which is
 * the image or its last Reshape. */
static void become_converted(struct edit *edit, struct value *last, enum dtype dtype)
{
    struct graph *graph = edit->graph;
    /* backwards: readers of what is replaced have been passed */
    for (size_t n = graph->node_count; n-- > 0;) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_NONE || node->input_count < 1 || node->inputs[0] != last)
            continue;
        edit_replace(graph, node->outputs[0], last);
        edit_kill(node);
    }
    for (struct value *value = last; value;
         value = value->producer ? value->producer->inputs[0] : NULL)
        value->dtype = dtype;
    edit_sweep(edit);
}

/* Makes the input bfloat16, as in other batch sizes, and converts it to float32 in the graph. */
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
    struct image_numbers *settled = &session->info.image, numbers;
    if (session->options.image_layout != IMAGE_NHWC_ANY || input >= graph->input_count ||
        (!is_first && settled->dtype == DTYPE_F32))
        return STATUS_OK;
    struct edit edit = {.graph = graph, .err = err};
    if (!edit_count_readers(&edit))
        return edit_end(&edit);
    struct value *last = behind_views(&edit, graph->inputs[input]);
    const bool all = all_convert(&edit, last, &numbers);
    if (is_first && all)
        *settled = numbers;
    if (all && image_numbers_equal(&numbers, settled))
        become_converted(&edit, last, settled->dtype);
    else if (!is_first && settled->dtype == DTYPE_BF16)
        widen_image(&edit, input);
    else if (!is_first)
        edit.status =
            error_set(err, STATUS_SHAPE, "the image is quantized differently in this batch size");
    return edit_end(&edit);
}
