/* Prepares SAM's mask decoder: keeps two outputs, and lets the decoder take 1 to 32 points.
 *
 *     points [1, 32, 2], labels [1, 32] ──▶ used points ──▶ the graph as the file has it
 *
 * Unused points cannot be padding, because attention would read them. So the graph first cuts
 * off unused points, and its later shapes depend on data. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/passes/edit.h"
#include "models/folder/model_internal.h"

/* Names of inputs in the exports of segment-anything, of samexporter (also for MobileSAM and SAM
 * 2), and of Hugging Face. */
enum prompt_input mask_prompt_input(const char *name)
{
    static const struct {
        const char *name;
        enum prompt_input input;
    } names[] = {{"point_coords", PROMPT_POINTS},
                 {"input_points", PROMPT_POINTS},
                 {"point_labels", PROMPT_LABELS},
                 {"input_labels", PROMPT_LABELS}};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i].name, name))
            return names[i].input;
    return PROMPT_NONE;
}

/* Sets the free dimensions of an input: the number of points to PROMPT_POINTS_MAX, others to 1.
 * Returns false if the shape does not fit the input's name, or has room for several lists of
 * points, which the server does not fill. */
static bool fix_shape(struct value *input)
{
    const enum prompt_input kind = mask_prompt_input(input->name);
    struct shape *shape = &input->shape;
    const int axis = shape->rank - (kind == PROMPT_POINTS ? 2 : 1);
    const bool is_prompt = kind == PROMPT_POINTS || kind == PROMPT_LABELS;
    if (shape->rank == SHAPE_UNKNOWN ||
        (is_prompt && (axis < 1 || shape->dims[axis] != DIM_UNKNOWN)) ||
        (kind == PROMPT_POINTS && shape->dims[axis + 1] != 2))
        return false;
    for (int d = 0; d < shape->rank; d++) {
        if (shape->dims[d] == DIM_UNKNOWN)
            shape->dims[d] = is_prompt && d == axis ? PROMPT_POINTS_MAX : 1;
        if (is_prompt && d < axis && shape->dims[d] != 1)
            return false;
    }
    return true;
}

/* Makes `all` (float32) input `i` of the graph. The readers of the old input now read the elements
 * of `all` whose indexes along `axis` are in `used` (int64, [n]). */
static void pick_used(struct edit *edit, size_t i, struct value *all, int axis, struct value *used)
{
    struct graph *graph = edit->graph;
    struct value *old = graph->inputs[i];
    const size_t at = edit_position(graph, used->producer) + 1;
    struct value *typed = edit_insert_cast(edit, at, "points", all, old->dtype);
    struct node *node = edit_insert_node(edit, at + 1, OP_GATHER, 13, "used points",
                                         (struct value *[]){typed, used}, 2);
    if (!node || !node_set_int(graph, node, "axis", axis)) {
        (void)edit_no_memory(edit);
        return;
    }
    node_set_output(node, 0, old);
    old->shape = SHAPE_NONE;
    old->name = "";
    graph->inputs[i] = all;
}

static struct value *add_input(struct edit *edit, const struct value *like)
{
    struct value *input = graph_add_value(edit->graph, like->name, DTYPE_F32, &like->shape);
    if (!input)
        (void)edit_no_memory(edit);
    return input;
}

/* Cuts off the points whose labels are PROMPT_NO_POINT. */
static void cut_points(struct edit *edit, struct mask_prompt *prompt)
{
    struct value **inputs = edit->graph->inputs;
    const struct shape points_shape = inputs[prompt->points]->shape;
    const struct shape labels_shape = inputs[prompt->labels]->shape;
    struct value *points = add_input(edit, inputs[prompt->points]);
    struct value *labels = add_input(edit, inputs[prompt->labels]);
    const int64_t flat = -1;
    const float least = PROMPT_NO_POINT;
    struct value *bound = edit_constant(edit, DTYPE_F32, &SHAPE(1), &least);
    struct value *list = edit_constant(edit, DTYPE_I64, &SHAPE(1), &flat);
    struct value *value =
        edit_insert_value(edit, 0, OP_GREATER, 13, "used labels", (struct value *[]){labels, bound},
                          2, DTYPE_BOOL, &labels_shape);
    value = edit_insert_value(edit, 1, OP_RESHAPE, 13, "used labels, flat",
                              (struct value *[]){value, list}, 2, DTYPE_BOOL,
                              &SHAPE(PROMPT_POINTS_MAX));
    value =
        edit_insert_value(edit, 2, OP_NON_ZERO, 13, "places of points", &value, 1, DTYPE_I64, NULL);
    value = edit_insert_value(edit, 3, OP_RESHAPE, 13, "places of points, flat",
                              (struct value *[]){value, list}, 2, DTYPE_I64, NULL);
    if (!value)
        return;
    pick_used(edit, prompt->points, points, points_shape.rank - 2, value);
    pick_used(edit, prompt->labels, labels, labels_shape.rank - 1, value);
}

/* Returns the first output with one of these names, or NULL. */
static struct value *output_of(const struct graph *graph, const char *const *names, size_t count)
{
    struct value *found = NULL;
    for (size_t k = 0; k < count && !found; k++)
        found = value_named(graph->outputs, graph->output_count, names[k]);
    return found;
}

/* Identifies the decoder's inputs by their names, and fixes their shapes. */
static enum status read_inputs(struct graph *graph, struct mask_prompt *ret, struct error *err)
{
    enum { BYTES_MOST = 64 << 20 };
    bool is_sam2 = false;
    ret->points = ret->labels = SIZE_MAX;
    for (size_t i = 0; i < graph->input_count; i++) {
        struct value *input = graph->inputs[i];
        const enum prompt_input kind = mask_prompt_input(input->name);
        if (!fix_shape(input))
            return error_set(err, STATUS_MODEL,
                             "input '%.60s' of the decoder of masks has the shape %s; lensd takes "
                             "decoders with a free number of points, [1, points, 2], and labels, "
                             "[1, points]: export it with dynamic axes",
                             input->name, SHAPE_STRING(&input->shape));
        size_t bytes;
        if (!strcmp(input->name, "input_boxes"))
            return error_set(err, STATUS_MODEL,
                             "the decoder of masks has the input input_boxes beside its points, as "
                             "transformers.js' SAM 2 and 3 have it, which lensd cannot fill; "
                             "export it without, or with samexporter");
        if (shape_check(&input->shape, input->dtype, NULL, &bytes, NULL) != STATUS_OK ||
            bytes > BYTES_MOST)
            return error_set(err, STATUS_MODEL,
                             "input '%.60s' of the decoder of masks has the shape %s, more than "
                             "%d MiB; correct the shape in the file",
                             input->name, SHAPE_STRING(&input->shape), BYTES_MOST >> 20);
        if (kind == PROMPT_POINTS)
            ret->takes_boxes = !strcmp(input->name, "point_coords");
        ret->points = kind == PROMPT_POINTS ? i : ret->points;
        ret->labels = kind == PROMPT_LABELS ? i : ret->labels;
        is_sam2 = is_sam2 || !strncmp(input->name, "high_res_feats", 14);
    }
    if (ret->points == SIZE_MAX || ret->labels == SIZE_MAX)
        return error_set(err, STATUS_MODEL,
                         "the decoder of masks has no input of %s; lensd takes point_coords with "
                         "point_labels, or input_points with input_labels",
                         ret->points == SIZE_MAX ? "points" : "labels");
    ret->adds_point = ret->takes_boxes && !is_sam2; /* SAM 2's decoder adds this point itself */
    ret->is_padded = !is_sam2;
    ret->is_set = true;
    return STATUS_OK;
}

enum status mask_prompt_prepare(struct model *model, struct error *err)
{
    static const char *const masks[] = {"low_res_masks", "pred_masks", "masks"};
    static const char *const scores[] = {"iou_predictions", "iou_scores"};
    struct graph *graph = model->graph;
    struct edit edit = {.graph = graph, .err = err};
    TRY(read_inputs(graph, &model->prompt, err));
    struct value *outputs[] = {output_of(graph, masks, COUNT_OF(masks)),
                               output_of(graph, scores, COUNT_OF(scores))};
    if (!outputs[0] || !outputs[1])
        return error_set(err, STATUS_MODEL,
                         "the decoder of masks has no output of %s; lensd takes low_res_masks, "
                         "pred_masks or masks, with iou_predictions or iou_scores",
                         outputs[0] ? "scores" : "masks");
    cut_points(&edit, &model->prompt);
    graph->output_count = COUNT_OF(outputs); /* the graph has at least as many outputs */
    memcpy(graph->outputs, outputs, sizeof outputs);
    edit_sweep(&edit);
    return edit_end(&edit);
}
