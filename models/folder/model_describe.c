/* Describes a graph for the server: the image input and its size, the outputs, the task, and the
 * number of classes and parameters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/op/ops.h"
#include "engine/passes/edit.h"
#include "engine/passes/validate.h"
#include "models/folder/model_internal.h"
#include "models/folder/preprocess_config.h"

/* If a side of the model's input has fewer pixels than this, the default preprocessing does not
 * crop photos, because a crop would lose too much of an icon or a digit. */
#define SMALL_INPUT 64

/* ---- the image input ---- */

static bool is_channels(int64_t dim)
{
    return dim == 1 || dim == 3;
}

static bool is_pixel_dtype(enum dtype dtype)
{
    return dtype_is_float(dtype) || dtype == DTYPE_U8;
}

/* True for images with 1 or 3 channels, [N, C, H, W] or, with *ret_last, [N, H, W, C]. If dims[1]
 * is free and dims[3] is neither 1 nor 3, the shape is [N, C, H, W]. */
static bool is_image(const struct value *input, bool *ret_last)
{
    const int64_t *dims = input->shape.dims;
    if (input->shape.rank != 4 || !is_pixel_dtype(input->dtype))
        return false;
    const bool first = is_channels(dims[1]) && !(dims[1] == 1 && dims[3] == 3);
    *ret_last = !first && is_channels(dims[3]);
    return first || *ret_last || dims[1] == DIM_UNKNOWN;
}

static void find_image_input(struct model *model)
{
    const struct graph *graph = model->graph;
    size_t i = 0;
    while (i < graph->input_count &&
           (model->prompt.is_set || !is_image(graph->inputs[i], &model->input_channels_last)))
        i++;
    if (i == graph->input_count) {
        model->image_input = SIZE_MAX;
        if (model->text.tokenizer || model->prompt.is_set)
            return;
        if (model->lacks_tokenizer)
            model_warn(model, MODEL_NO_TOKENIZER "; until then only tensors can be sent to this "
                                                 "model");
        else
            model_warn(model, "no input looks like an image ([N, C, H, W] or [N, H, W, C] with 1 "
                              "or 3 channels): photos cannot be sent to this model, tensors can");
        return;
    }
    const int64_t *dims = graph->inputs[i]->shape.dims;
    const int rows = model->input_channels_last ? 1 : 2;
    model->image_input = i;
    model->free_height = dims[rows] == DIM_UNKNOWN;
    model->free_width = dims[rows + 1] == DIM_UNKNOWN;
    model->fixed_batch = dims[0] != DIM_UNKNOWN;
    model->file_batch = model->fixed_batch ? dims[0] : 0;
}

/* ---- adapting the preprocessing ---- */

/* Warns if mean and std fit pixels 0 … 255, although pixels are divided by 255 first. */
static void warn_of_scale(struct model *model)
{
    const struct preprocess *p = &model->preprocess;
    bool large = false;
    for (int c = 0; c < preprocess_channels(p); c++)
        large = large || p->mean[c] > 3 || p->std[c] > 10;
    if (large && p->scale <= 2.0f / 255.0f)
        model_warn(model,
                   "%s: mean %g and std %g look like those of pixels 0 to 255, but pixels are "
                   "scaled to 0 … 1 first: %sdivide both by 255",
                   model->preprocess_source, (double)p->mean[0], (double)p->std[0],
                   strncmp(model->preprocess_source, "preprocessor", 12) != 0
                       ? ""
                       : "set \"do_rescale\" to false, or ");
}

static void fit_channels(struct model *model)
{
    static const char no_mean[] = "ImageNet defaults, without mean and std";
    struct preprocess *p = &model->preprocess;
    const struct value *input = model->graph->inputs[model->image_input];
    const int64_t channels = input->shape.dims[model->input_channels_last ? 3 : 1];
    const bool becomes_gray = channels == 1 && p->channels != CHANNELS_GRAY;
    if (becomes_gray) {
        p->channels = CHANNELS_GRAY;
    } else if (channels == 3 && p->channels == CHANNELS_GRAY) {
        p->channels = CHANNELS_RGB;
        model_warn(model, "%s asks for grey photos but the model takes 3 channels: they stay RGB",
                   model->preprocess_source);
    }
    if (model->is_configured || (!becomes_gray && input->dtype != DTYPE_U8))
        return;
    if (input->dtype == DTYPE_U8) /* the model normalises by itself */
        p->scale = 1;
    model->preprocess_source = no_mean;
    for (int c = 0; c < 3; c++) {
        p->mean[c] = 0;
        p->std[c] = 1;
    }
}

static enum status fit_size(struct model *model, struct error *err)
{
    struct preprocess *p = &model->preprocess;
    const int64_t *dims = model->graph->inputs[model->image_input]->shape.dims;
    const int rows = model->input_channels_last ? 1 : 2;
    const int64_t width = model->free_width ? p->width : dims[rows + 1];
    const int64_t height = model->free_height ? p->height : dims[rows];
    int before_width = p->width, before_height = p->height;
    if (width == 0 || height == 0)
        return error_set(err, STATUS_MODEL,
                         "%s gives neither \"size\" nor \"crop_size\", and the model does not fix "
                         "the size of its input; add {\"size\": {\"height\": …, \"width\": …}}",
                         model->preprocess_source);
    if (width < 1 || height < 1 || width > 16384 || height > 16384)
        return error_set(err, STATUS_MODEL,
                         "the image input '%.60s' is %lld x %lld pixels, and free sides come from "
                         "%s; lensd handles 1 to 16384",
                         model->graph->inputs[model->image_input]->name, (long long)width,
                         (long long)height, model->preprocess_source);
    if (!preprocess_fit(p, (int)width, (int)height))
        return STATUS_OK;
    if (before_width == 0)
        return STATUS_OK;
    if (model->is_configured)
        model_warn(model,
                   "%s prepares %d x %d pixels, but the model takes %lld x %lld; lensd scales the "
                   "sizes to fit",
                   model->preprocess_source, before_width, before_height, (long long)width,
                   (long long)height);
    else if (width < SMALL_INPUT || height < SMALL_INPUT) {
        p->resize = RESIZE_EXACT;
        p->resize_width = (int)width;
        p->resize_height = (int)height;
    }
    return STATUS_OK;
}

/* ---- outputs ---- */

/* Lists the outputs of `graph`, with names borrowed from the model's graph. An output of
 * PaddleDetection whose shape is unknown has the shape that the file declares. */
static void note_outputs(const struct model *model, const struct graph *graph,
                         const struct task_facts *facts, struct session_tensor *outputs)
{
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *declared = model->graph->outputs[i], *made = graph->outputs[i];
        const bool is_declared = facts->has_scales && made->shape.rank == SHAPE_UNKNOWN;
        outputs[i] = (struct session_tensor){declared->name, made->dtype,
                                             is_declared ? declared->shape : made->shape};
    }
}

/* Infers shapes for `batch` photos or one text on a copy of the graph, which the caller frees. *ret
 * is NULL if the shapes do not fit the graph; then compiling the model reports the error. */
static enum status probe_shapes(const struct model *model, int64_t batch, struct graph **ret,
                                struct error *err)
{
    struct graph *copy;
    struct error ignored;
    TRY(graph_clone(model->graph, &copy, err));
    if (model->image_input != SIZE_MAX) {
        struct shape *shape = &copy->inputs[model->image_input]->shape;
        bool last = model->input_channels_last;
        shape->dims[0] = model->fixed_batch ? model->file_batch : batch;
        shape->dims[last ? 1 : 2] = model->preprocess.height;
        shape->dims[last ? 2 : 3] = model->preprocess.width;
        shape->dims[last ? 3 : 1] = preprocess_channels(&model->preprocess);
    }
    for (size_t i = 0; i < copy->input_count; i++)
        if ((model->text.tokenizer || word_input_is(model, copy->inputs[i])) &&
            copy->inputs[i]->shape.dims[0] == DIM_UNKNOWN)
            copy->inputs[i]->shape.dims[0] = 1;
    *ret = graph_validate(copy, &ignored) == STATUS_OK ? copy : NULL;
    if (!*ret)
        graph_free(copy);
    return STATUS_OK;
}

/* Checks whether output i is [steps, batch, classes], the layout of CTC's loss: by its shape for
 * two photos or, if the file fixes a batch of one, by the number of characters. */
static enum status is_time_major(const struct model *model, size_t i, const struct shape *one,
                                 const struct task_facts *facts, bool *ret, struct error *err)
{
    struct graph *two;
    *ret = false;
    if (model->image_input == SIZE_MAX || one->rank != 3 || one->dims[0] < 2 || one->dims[1] != 1)
        return STATUS_OK;
    if (model->fixed_batch) {
        const int64_t characters = one->dims[2] - (int64_t)facts->label_count;
        *ret =
            model->file_batch == 1 && facts->are_characters && (characters == 1 || characters == 2);
        return STATUS_OK;
    }
    TRY(probe_shapes(model, 2, &two, err));
    *ret = two && shape_equal(&two->outputs[i]->shape, &SHAPE(one->dims[0], 2, one->dims[2]));
    graph_free(two);
    return STATUS_OK;
}

/* Makes `to` the output instead of `from`. The file may list `from` twice. */
static void rename_output(struct graph *graph, struct value *from, struct value *to)
{
    to->name = from->name;
    from->name = "";
    for (size_t k = 0; k < graph->output_count; k++)
        if (graph->outputs[k] == from)
            graph->outputs[k] = to;
}

/* Transposes output i, [steps, batch, classes], so that several photos can share a pass. */
static enum status put_batch_first(struct model *model, size_t i, struct error *err)
{
    static const int64_t swapped[] = {1, 0, 2};
    struct graph *graph = model->graph;
    struct edit edit = {.graph = graph, .err = err};
    struct value *from = graph->outputs[i];
    struct shape shape = from->shape;
    for (int d = 0; d < 2 && shape.rank == 3; d++)
        shape.dims[d] = from->shape.dims[1 - d];
    struct value *to = edit_insert_value(&edit, graph->node_count, OP_TRANSPOSE, 13, from->name,
                                         &from, 1, from->dtype, &shape);
    TRY(check_memory(to && node_set_ints(graph, to->producer, "perm", swapped, 3), NULL, err));
    rename_output(graph, from, to);
    model_warn(model,
               "output '%.60s' is [steps, batch, classes] in the file; lensd returns it as [batch, "
               "steps, classes]",
               to->name);
    return edit_end(&edit);
}

/* Changes PaddleDetection's rows of all photos, [batch x n, 6], to [batch, n, 6], so that photos
 * can share a pass. *ret_any: the graph has changed. If the number of rows depends on the photo,
 * the graph stays as it is, and a pass has one photo. */
static enum status split_rows(struct model *model, const struct graph *one, bool *ret_any,
                              struct error *err)
{
    struct graph *graph = model->graph, *two;
    struct edit edit = {.graph = graph, .err = err};
    const int64_t photos = model->fixed_batch ? model->file_batch : 2;
    const struct shape *rows = &one->outputs[0]->shape;
    *ret_any = false;
    if (one->output_count != 2 || rows->rank != 2 || rows->dims[0] < 1 || photos < 2)
        return STATUS_OK;
    const int64_t each = model->fixed_batch ? rows->dims[0] / photos : rows->dims[0];
    TRY(probe_shapes(model, photos, &two, err));
    *ret_any = two && shape_equal(&two->outputs[0]->shape, &SHAPE(photos * each, 6)) &&
               shape_equal(&two->outputs[1]->shape, &SHAPE(photos));
    graph_free(two);
    if (!*ret_any)
        return STATUS_OK;
    struct value *from = graph->outputs[0];
    struct value *sides = edit_constant(&edit, DTYPE_I64, &SHAPE(3), (int64_t[]){-1, each, 6});
    struct value *to = edit_insert_value(&edit, graph->node_count, OP_RESHAPE, 13, from->name,
                                         (struct value *[]){from, sides}, 2, from->dtype,
                                         &SHAPE(DIM_UNKNOWN, each, 6));
    TRY(check_memory(to != NULL, NULL, err));
    rename_output(graph, from, to);
    model_warn(model,
               "output '%.60s' has the boxes of all photos in one dimension; lensd returns it as "
               "[batch, %lld, 6]",
               to->name, (long long)each);
    return edit_end(&edit);
}

static bool is_listed_before(const struct graph *graph, size_t i)
{
    size_t k = 0;
    while (graph->outputs[k] != graph->outputs[i])
        k++;
    return k < i;
}

/* Transposes all outputs that are [steps, batch, classes]. *ret_any: there is one. */
static enum status transpose_all(struct model *model, const struct graph *one,
                                 const struct task_facts *facts, bool *ret_any, struct error *err)
{
    *ret_any = false;
    for (size_t i = 0; i < one->output_count; i++) {
        bool is_transposed;
        TRY(is_time_major(model, i, &one->outputs[i]->shape, facts, &is_transposed, err));
        if (is_transposed && !is_listed_before(one, i))
            TRY(put_batch_first(model, i, err));
        *ret_any = *ret_any || is_transposed;
    }
    return STATUS_OK;
}

/* Finds the output shapes for one photo or text, and makes the batch the first dimension. */
static enum status probe_outputs(struct model *model, struct task_facts *facts,
                                 struct session_tensor *outputs, struct error *err)
{
    struct graph *copy;
    bool is_changed = false;
    TRY(probe_shapes(model, 1, &copy, err));
    enum status status = !copy               ? STATUS_OK
                         : facts->has_scales ? split_rows(model, copy, &is_changed, err)
                                             : transpose_all(model, copy, facts, &is_changed, err);
    if (is_changed) {
        graph_free(copy);
        copy = NULL;
        IF_OK(status, probe_shapes(model, 1, &copy, err));
    }
    note_outputs(model, model->graph, facts, outputs);
    if (status == STATUS_OK && copy) {
        class_output_find(model, copy, facts);
        note_outputs(model, copy, facts, outputs);
    }
    graph_free(copy);
    TRY(status);
    if (!model->class_count && !facts->class_note[0])
        class_output_find(model, model->graph, facts);
    if (facts->configured_output && !model->class_count)
        return error_set(err, STATUS_MODEL,
                         "lensd.json: \"output\" is \"%.60s\", but the model has no output of that "
                         "name with one score per class",
                         facts->configured_output);
    return STATUS_OK;
}

/* ---- the task ---- */

/* True if the known dimensions of the first output allow one score per class. */
static bool may_be_scores(const struct model *model, const struct session_tensor *output)
{
    int wide = 0;
    if (!dtype_is_float(output->dtype) ||
        model_rows_depend_on_data(model, &model->graph->outputs[0]->shape))
        return false;
    for (int d = 0; d < output->shape.rank; d++)
        wide += output->shape.dims[d] != 1 && output->shape.dims[d] != DIM_UNKNOWN;
    return wide <= 1;
}

/* Sets height and width of the preprocessing where the graph does not fix them. */
static void set_open_sides(struct model *model, int width, int height)
{
    if (model->free_height)
        model->preprocess.height = height;
    if (model->free_width)
        model->preprocess.width = width;
}

/* PaddleOCR's preprocessing: BGR, OpenCV's resize. A line is 48 pixels high, and padded on the
 * right with 0 after normalisation. */
static void fit_text(struct model *model)
{
    struct preprocess *p = &model->preprocess;
    const bool is_line = model->task.kind == TASK_TEXT;
    set_open_sides(model, is_line ? 320 : 960, is_line ? 48 : 960);
    p->resize = RESIZE_LETTERBOX;
    p->resize_width = p->width;
    p->resize_height = p->height;
    p->resample = RESAMPLE_LINEAR;
    p->pads_corner = true;
    p->pads_normalised = is_line;
    p->pad_value = 0;
    if (p->channels == CHANNELS_RGB)
        p->channels = CHANNELS_BGR;
    for (int c = 0; is_line && c < 3; c++)
        p->mean[c] = p->std[c] = 0.5f;
    model->preprocess_source = "defaults of this task";
}

/* SAM's preprocessing scales a photo's longest side to the input's side, and pads with zeros on the
 * right and below after normalisation. SAM 2, whose encoder has more outputs, stretches photos. */
static void fit_encoder(struct model *model)
{
    struct preprocess *p = &model->preprocess;
    const struct graph *graph = model->graph;
    bool is_sam2 = false;
    for (size_t i = 0; i < graph->output_count; i++)
        is_sam2 = is_sam2 || !strncmp(graph->outputs[i]->name, "high_res_feats", 14);
    set_open_sides(model, 1024, 1024);
    p->resize = is_sam2 ? RESIZE_EXACT : RESIZE_LETTERBOX;
    p->resize_width = p->width;
    p->resize_height = p->height;
    p->pads_corner = p->pads_normalised = !is_sam2;
    model->preprocess_source = "defaults of this task";
}

/* Sets the preprocessing of the layout's framework, if no file sets it. RT-DETR's resize is always
 * set, because Ultralytics' metadata does not say that RT-DETR stretches photos. */
static void fit_task(struct model *model)
{
    struct preprocess *p = &model->preprocess;
    const enum task_layout layout = model->task.layout;
    const bool is_rtdetr = layout == LAYOUT_RTDETR || layout == LAYOUT_RTDETR_FINAL;
    const bool is_face = task_layout_is_faces(layout), is_scrfd = is_face && layout != LAYOUT_YUNET;
    const bool is_body = layout == LAYOUT_HEATMAPS;
    /* Hugging Face's models and RF-DETR use ImageNet's mean and std. */
    const bool is_imagenet = layout == LAYOUT_DETR || layout == LAYOUT_DETR_SIGMOID ||
                             layout == LAYOUT_RFDETR || is_body || task_layout_is_masks(layout);
    const bool is_map = model->task.kind == TASK_SEGMENTATION || model->task.kind == TASK_DEPTH;
    if (model->image_input == SIZE_MAX || (model->is_configured && !is_rtdetr))
        return;
    if (model->task.kind == TASK_TEXT_BOXES || model->task.kind == TASK_TEXT) {
        fit_text(model);
        return;
    }
    if (model->task.kind == TASK_MASKS) {
        fit_encoder(model);
        return;
    }
    const bool is_anomaly = model->task.kind == TASK_ANOMALY;
    if (!task_has_boxes(model->task.kind) && !is_map && !is_anomaly)
        return;
    if (is_anomaly)
        set_open_sides(model, 256, 256);
    const bool is_paddle = layout == LAYOUT_PADDLE || layout == LAYOUT_PADDLE_FLAT;
    const bool is_stretched = is_map || is_anomaly || is_rtdetr || (is_imagenet && !is_body) ||
                              layout == LAYOUT_TORCHVISION || layout == LAYOUT_TENSORFLOW ||
                              layout == LAYOUT_RTDETR_LISTS || is_paddle;
    p->resize = is_stretched ? RESIZE_EXACT : is_body ? RESIZE_BODY : RESIZE_LETTERBOX;
    if (is_scrfd)
        set_open_sides(model, 640, 640);
    p->resize_width = p->width;
    p->resize_height = p->height;
    if (model->is_configured)
        return;
    const bool is_yolox = layout == LAYOUT_YOLOX || layout == LAYOUT_YOLOX_PIXELS;
    /* Without antialiasing: Ultralytics, YOLOv5, YOLOX, faces, RF-DETR and PaddleDetection. */
    if (is_rtdetr || layout == LAYOUT_RFDETR || is_paddle || !is_stretched)
        p->resample = RESAMPLE_LINEAR;
    p->pads_corner = is_yolox || is_face;
    p->sides_floor = is_yolox || is_scrfd;
    p->pad_value = is_face ? 0 : p->pad_value;
    model->preprocess_source = "defaults of this task";
    if ((is_yolox || layout == LAYOUT_YUNET) && p->channels == CHANNELS_RGB)
        p->channels = CHANNELS_BGR;
    if (is_yolox || is_face)
        p->scale = 1;
    if (is_map || is_imagenet)
        return;
    for (int c = 0; c < 3; c++) {
        p->mean[c] = is_scrfd ? 127.5f : 0;
        p->std[c] = is_scrfd ? 128 : 1;
    }
}

static enum status decide_task(struct model *model, struct task_facts *facts,
                               struct session_tensor *outputs, struct error *err)
{
    facts->label_count = model->labels.count;
    facts->has_scales = strstr(model->filled, "scale_factor") != NULL;
    TRY(probe_outputs(model, facts, outputs, err));
    const struct graph *graph = model->graph;
    facts->outputs = outputs;
    facts->output_count = graph->output_count;
    const bool has_scores =
        model->class_count || (!facts->class_note[0] && may_be_scores(model, &outputs[0]));
    facts->class_output = has_scores ? model->output : SIZE_MAX;
    facts->width = model->preprocess.width;
    facts->height = model->preprocess.height;
    for (size_t i = 0; i < graph->node_count; i++)
        facts->has_exp = facts->has_exp || graph->nodes[i]->op == OP_EXP;
    TRY(task_decide(facts, &model->task, err));
    if (model->task.kind == TASK_EMBEDDING)
        graph_hash(&model->fingerprint, graph);
    if (model->task.kind != TASK_CLASSIFICATION)
        model->class_count = 0;
    if (model->task.output_count)
        model->output = model->task.outputs[0];
    fit_task(model);
    return STATUS_OK;
}

/* ---- parameters ---- */

/* The recursion is as deep as the nesting of subgraphs, which the importer limits. */
static void count_parameters(struct model *model, const struct graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct tensor *tensor = graph->values[i]->known;
        model->parameter_count += tensor ? shape_count(&tensor->shape) : 0;
        model->parameter_bytes += tensor ? tensor->bytes : 0;
    }
    for (size_t n = 0; n < graph->node_count; n++)
        for (size_t a = 0; a < graph->nodes[n]->attr_count; a++)
            if (graph->nodes[n]->attrs[a].kind == ATTR_GRAPH)
                count_parameters(model, graph->nodes[n]->attrs[a].g);
}

/* ---- the tensors of raw requests ---- */

static enum status copy_tensors(struct value *const *values, size_t count,
                                struct model_tensor **ret, size_t *ret_count, struct error *err)
{
    *ret = alloc_array(count, sizeof **ret);
    TRY(check_memory(*ret, NULL, err));
    *ret_count = count;
    for (size_t i = 0; i < count; i++) {
        (*ret)[i] =
            (struct model_tensor){strdup(values[i]->name), values[i]->dtype, values[i]->shape};
        TRY(check_memory((*ret)[i].name, NULL, err));
    }
    return STATUS_OK;
}

/* ---- labels ---- */

/* Counts the classes 0 … count - 1 without a label, and lists three: "1, 2, 3 and 5 more". */
static size_t list_unnamed(const struct labels *labels, size_t count, char *text, size_t size)
{
    enum { NAMED = 3 };
    size_t unnamed = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        if (!labels_name(labels, i) && unnamed++ < NAMED)
            text_append(text, size, ", ", "%zu", i);
    if (unnamed > NAMED)
        text_append(text, size, " and ", "%zu more", unnamed - NAMED);
    return unnamed;
}

static void warn_of_labels(struct model *model)
{
    const struct labels *labels = &model->labels;
    char missing[100];
    if (!model->class_count || !labels->count)
        return;
    const size_t holes = list_unnamed(labels, labels->count, missing, sizeof missing);
    if (holes)
        model_warn(model,
                   "%.63s names %zu of the classes 0 to %zu, but not %s; the model has %zu class%s",
                   model->labels_source, labels->count - holes, labels->count - 1, missing,
                   model->class_count, model->class_count == 1 ? "" : "es");
    else if (model->class_count != labels->count)
        model_warn(model,
                   "%.63s has %zu label%s but the model has %zu class%s: give it a label for each",
                   model->labels_source, labels->count, labels->count == 1 ? "" : "s",
                   model->class_count, model->class_count == 1 ? "" : "es");
}

enum status model_describe(struct model *model, struct task_config *config, struct error *err)
{
    const char *task = config->facts.configured_task;
    find_image_input(model);
    if (!task || strcmp(task, "tensors") != 0)
        TRY(model_fill_inputs(model, config->inputs, err));
    if (model->image_input != SIZE_MAX) {
        fit_channels(model);
        TRY(fit_size(model, err));
        if (model->is_configured)
            warn_of_scale(model);
    } else if (model->preprocess.width == 0) {
        (void)preprocess_fit(&model->preprocess, 224, 224);
    }
    if (preprocess_check(&model->preprocess, err) != STATUS_OK) {
        (void)error_prefix(err, "%s", model->preprocess_source);
        return error_set(err, STATUS_MODEL, "%s", err->message);
    }
    struct session_tensor *outputs = alloc_array(model->graph->output_count, sizeof *outputs);
    TRY(check_memory(outputs, NULL, err));
    enum status status = decide_task(model, &config->facts, outputs, err);
    free(outputs);
    TRY(status);
    word_input_place(model);
    const struct value *output = model->graph->outputs[model->output];
    model->has_probabilities = output_is_probabilities(output);
    warn_of_labels(model);
    const struct graph *graph = model->graph;
    TRY(copy_tensors(graph->inputs, graph->input_count, &model->inputs, &model->input_count, err));
    TRY(copy_tensors(graph->outputs, graph->output_count, &model->outputs, &model->output_count,
                     err));
    count_parameters(model, model->graph);
    return STATUS_OK;
}
