/* Replaces inputs of a graph by nodes, so that it needs only a photo: sizes that a detector uses to
 * scale its boxes, thresholds, masks, and inputs in lensd.json. Detectors' boxes must be in pixels
 * of the model's input, so the sizes are those of this input. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/passes/edit.h"
#include "models/folder/model_internal.h"

/* Special values: SIDE_… of known_input.numbers, ZEROS of known_input.count. */
enum {
    SIDE_WIDTH = -1,
    SIDE_HEIGHT = -2,
    ZEROS = 3,      /* `count`: every number is 0 */
    ROWS_MAX = 4096 /* the largest batch size that a file may fix, as in sessions */
};

/* In this order: Hugging Face's mask of a padded batch, where 1 means no padding; SAM's mask of an
 * earlier run, whether there is one, and the size of an output that lensd does not use; sizes in
 * RT-DETR's and D-FINE's own exports; PaddleDetection's inputs, where a scale_factor of 1 gives
 * boxes in pixels of the model's input; Ultralytics' thresholds for suppression. */
static const struct known_input {
    const char *name;
    size_t count; /* 2: two numbers per image; 1: one number in all; 0: one per pixel; or ZEROS */
    float numbers[2];
} known_inputs[] = {
    {"pixel_mask", 0, {1}},
    {"mask_input", ZEROS, {0}},
    {"has_mask_input", ZEROS, {0}},
    {"orig_im_size", ZEROS, {0}},
    {"orig_target_sizes", 2, {SIDE_WIDTH, SIDE_HEIGHT}},
    {"orig_sizes", 2, {SIDE_WIDTH, SIDE_HEIGHT}},
    {"im_shape", 2, {SIDE_HEIGHT, SIDE_WIDTH}},
    {"scale_factor", 2, {1, 1}},
    {"score_threshold", 1, {0.25f}},
    {"conf_threshold", 1, {0.25f}},
    {"confidence_threshold", 1, {0.25f}},
    {"iou_threshold", 1, {0.45f}},
    {"nms_threshold", 1, {0.45f}},
    {"max_output_boxes_per_class", 1, {300}},
};

/* Returns the shape of an input for one photo, or for the batch size that the file fixes. */
static struct shape fill_shape(const struct value *input)
{
    struct shape shape = input->shape;
    for (int d = 0; d < shape.rank; d++)
        shape.dims[d] = shape.dims[d] == DIM_UNKNOWN ? 1 : shape.dims[d];
    return shape;
}

static const struct known_input *find_known(const struct model *model, const struct value *input)
{
    const struct shape shape = fill_shape(input);
    for (size_t i = 0; i < COUNT_OF(known_inputs); i++) {
        const struct known_input *known = &known_inputs[i];
        const int64_t last = shape.rank > 0 ? shape.dims[shape.rank - 1] : 1;
        if (strcmp(input->name, known->name) == 0 && shape.rank != SHAPE_UNKNOWN &&
            (known->count == ZEROS ? model->prompt.is_set && input->dtype == DTYPE_F32
             : known->count == 0   ? shape.rank == 3
             : known->count == 2   ? shape.rank == 2 && last == 2 && shape.dims[0] <= ROWS_MAX
                                   : shape_count(&shape) == 1))
            return known;
    }
    return NULL;
}

/* Returns the dimensions `which` of the image input as a value of `shape`. */
static struct value *image_sides(struct edit *edit, const struct model *model,
                                 const struct shape *shape, const int64_t *which)
{
    struct value *image = edit->graph->inputs[model->image_input];
    struct value *const inputs[] = {
        edit_insert_value(edit, 0, OP_SHAPE, 13, "image's sides", &image, 1, DTYPE_I64, &SHAPE(4)),
        edit_constant(edit, DTYPE_I64, shape, which)};
    return edit_insert_value(edit, 1, OP_GATHER, 13, "sides of inputs", inputs, 2, DTYPE_I64,
                             shape);
}

/* Replaces an input by `named`, or by `known` if `named` is NULL. */
static void fill_input(struct edit *edit, const struct model *model, struct value *input,
                       const struct known_input *known, const cJSON *named)
{
    const struct shape shape = fill_shape(input);
    const cJSON *number = cJSON_IsArray(named) ? named->child : named;
    const int rows = model->input_channels_last ? 1 : 2; /* the height's index in the shape */
    struct value *filled;
    size_t at = 0;
    if (!named && !known->count) { /* ones of the shape [batch, height, width] */
        const float one = 1;
        struct value *ones = edit_constant(edit, DTYPE_F32, &SHAPE(1), &one);
        struct value *sides = image_sides(edit, model, &SHAPE(3), (int64_t[]){0, rows, rows + 1});
        filled = edit_insert_value(edit, 2, OP_EXPAND, 13, "pixels",
                                   (struct value *[]){ones, sides}, 2, DTYPE_F32, NULL);
        at = 3;
    } else if (!named && known->numbers[0] < 0) {
        int64_t which[2 * ROWS_MAX];
        for (size_t i = 0; i < shape_count(&shape); i++)
            which[i] = known->numbers[i % 2] <= SIDE_HEIGHT ? rows : rows + 1;
        filled = image_sides(edit, model, &shape, which);
        at = 2;
    } else {
        filled = edit_constant(edit, DTYPE_F32, &shape, NULL);
        for (size_t i = 0; filled && i < shape_count(&shape); i++) {
            ((float *)filled->known->data)[i] = named ? (float)number->valuedouble
                                                : known->count == ZEROS
                                                    ? 0
                                                    : known->numbers[i % known->count];
            number = named ? number->next : NULL;
        }
    }
    if (filled)
        filled = edit_insert_cast(edit, at, "filled input", filled, input->dtype);
    if (filled)
        edit_replace(edit->graph, input, filled);
}

static enum status check_named(const struct model *model, const cJSON *named, struct error *err)
{
    for (const cJSON *entry = named ? named->child : NULL; entry; entry = entry->next) {
        const struct graph *graph = model->graph;
        const struct value *input = value_named(graph->inputs, graph->input_count, entry->string);
        const size_t count = cJSON_IsArray(entry) ? (size_t)cJSON_GetArraySize(entry) : 1;
        if (!input ||
            (model->image_input != SIZE_MAX && input == graph->inputs[model->image_input]))
            return error_set(
                err, STATUS_MODEL,
                "lensd.json: \"inputs\" names '%.60s', but the model has no such input "
                "beside its image",
                entry->string);
        const struct shape shape = fill_shape(input);
        size_t elements;
        if (shape_check(&shape, input->dtype, &elements, NULL, NULL) != STATUS_OK ||
            elements != count)
            return error_set(
                err, STATUS_MODEL,
                "lensd.json: \"inputs\" gives '%.60s' %zu number%s, but the input's shape is %s",
                input->name, count, count == 1 ? "" : "s", SHAPE_STRING(&input->shape));
    }
    return STATUS_OK;
}

/* Removes input i from the graph. */
static void drop_input(struct model *model, size_t i)
{
    struct graph *graph = model->graph;
    graph->input_count--;
    memmove(&graph->inputs[i], &graph->inputs[i + 1],
            (graph->input_count - i) * sizeof(struct value *));
    if (model->image_input != SIZE_MAX)
        model->image_input -= model->image_input > i;
    model->prompt.points -= model->prompt.points > i;
    model->prompt.labels -= model->prompt.labels > i;
}

enum status model_fill_inputs(struct model *model, const cJSON *named, struct error *err)
{
    struct graph *graph = model->graph;
    struct edit edit = {.graph = graph, .err = err};
    const struct value *stranger = NULL;
    TRY(check_named(model, named, err));
    if (named && named->child && model->image_input == SIZE_MAX)
        return error_set(err, STATUS_MODEL,
                         "lensd.json: \"inputs\" is for inputs beside a photo, but this model "
                         "takes no photos; remove it");
    for (size_t i = 0; i < graph->input_count; i++)
        if (i != model->image_input && !word_input_is(model, graph->inputs[i]) &&
            !find_known(model, graph->inputs[i]) && !json_get(named, graph->inputs[i]->name))
            stranger = graph->inputs[i];
    if (stranger && model->image_input != SIZE_MAX && model->lacks_tokenizer)
        model_warn(model, MODEL_NO_TOKENIZER);
    else if (stranger && model->image_input != SIZE_MAX)
        model_warn(model,
                   "input '%.60s' is not a photo, and lensd does not know its values: write its "
                   "numbers into lensd.json, {\"inputs\": {\"%.60s\": …}}, or send tensors",
                   stranger->name, stranger->name);
    for (size_t i = graph->input_count; i-- > 0;) {
        struct value *input = graph->inputs[i];
        const cJSON *own = json_get(named, input->name);
        /* These inputs stay. Beside an unknown input (`stranger`) known inputs stay, too, because
         * clients send tensors. */
        if (i == model->image_input || word_input_is(model, input) ||
            (!own && !model->prompt.is_set && (stranger || model->image_input == SIZE_MAX)) ||
            (model->prompt.is_set && !find_known(model, input)))
            continue;
        fill_input(&edit, model, input, find_known(model, input), own);
        text_append(model->filled, sizeof model->filled, ", ", "%.60s", input->name);
        drop_input(model, i);
    }
    return edit_end(&edit);
}
