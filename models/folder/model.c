/* Loads a model: its graph, then labels and preprocessing from the folder's files, Triton's
 * config.pbtxt or the graph's metadata; or the embedded default. */
#include "models/folder/model.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/folder/embedded.h"
#include "models/folder/model_internal.h"
#include "models/folder/pipeline_config.h"
#include "models/folder/preprocess_config.h"

enum status model_check_size(const struct model *model, int height, int width, struct error *err)
{
    const struct preprocess *own = &model->preprocess;
    if ((model->free_height || height == own->height) && (model->free_width || width == own->width))
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "model '%s' takes %d x %d pixels, %s; export it with free height and width "
                     "(dynamic axes) to use other sizes",
                     model->name, own->width, own->height,
                     model->free_height  ? "of which its file fixes the width"
                     : model->free_width ? "of which its file fixes the height"
                                         : "which its file fixes");
}

void model_set_size(struct model *model, int height, int width)
{
    struct preprocess *p = &model->preprocess;
    p->height = height;
    p->width = width;
    if (p->resize == RESIZE_EXACT || p->resize == RESIZE_LETTERBOX || p->resize == RESIZE_BODY) {
        p->resize_height = height;
        p->resize_width = width;
    } else if (p->resize == RESIZE_SHORT_SIDE) {
        p->resize_short = height > width ? height : width;
    }
    if (model->text.allows_short_rows)
        text_input_set_length(model->graph, &model->text, (size_t)width);
}

void model_drop_graph(struct model *model)
{
    graph_free(model->graph);
    model->graph = NULL;
    model->labels_source = NULL;
    model->metadata = NULL;
    model->metadata_count = 0;
}

static void free_tensors(struct model_tensor *tensors, size_t count)
{
    for (size_t i = 0; tensors && i < count; i++)
        free(tensors[i].name);
    free(tensors);
}

void model_free(struct model *model)
{
    if (!model)
        return;
    graph_free(model->graph);
    labels_done(&model->labels);
    labels_done(&model->point_names);
    zero_shot_done(&model->texts);
    text_input_done(&model->text);
    FREE_ALL(model->name, model->source, model->version, model->calibration);
    free_tensors(model->inputs, model->input_count);
    free_tensors(model->outputs, model->output_count);
    free(model);
}

/* Turns STATUS_NOT_FOUND into success with *ret_found false. */
static enum status not_found_is_fine(enum status status, bool *ret_found)
{
    *ret_found = status == STATUS_OK;
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

/* ---- labels ---- */

static enum status labels_from_file(const struct model_place *place, const char *name, bool is_json,
                                    struct labels *ret, struct error *err)
{
    struct side_file file;
    TRY((is_json ? side_json_open : side_file_open)(place, name, &file, err));
    return side_file_close(&file,
                           is_json ? labels_from_json(file.json, ret, err)
                                   : labels_from_text(file.text, file.size, ret, err),
                           err);
}

static enum status no_such_input(const struct graph *graph, const char *name, struct error *err)
{
    char names[160] = "";
    for (size_t i = 0; i < graph->input_count; i++)
        text_append(names, sizeof names, ", ", "'%.60s'", graph->inputs[i]->name);
    return error_set(
        err, STATUS_MODEL,
        "it describes an input '%.60s', which the model does not have; the model's %s %s", name,
        graph->input_count == 1 ? "only input is" : "inputs are", names);
}

/* Sets symbolic dimensions to those in config.pbtxt. If config.pbtxt has max_batch_size, its `dims`
 * omit the batch. Otherwise the number of `dims` shows whether they include the batch. */
static enum status fix_input(struct value *value, const struct triton_input *input, bool batched,
                             struct error *err)
{
    struct shape *shape = &value->shape;
    if (input->rank == 0 || input->is_reshaped || shape->rank < 0)
        return STATUS_OK;
    const int first = shape->rank - input->rank;
    if (first != 1 && (first != 0 || batched))
        return error_set(err, STATUS_MODEL,
                         "input '%.60s' has %d dims, but the model's shape is %s%s", input->name,
                         input->rank, SHAPE_STRING(shape),
                         batched ? ", whose first dimension is the batch (max_batch_size)" : "");
    for (int d = 0; d < input->rank; d++) {
        int64_t *own = &shape->dims[d + first], declared = input->dims[d];
        if (*own == DIM_UNKNOWN && declared > 0)
            *own = declared;
        else if (declared >= 0 && *own != declared)
            return error_set(err, STATUS_MODEL,
                             "input '%.80s' has dimension %lld, but the model's shape is %s",
                             input->name, (long long)declared, SHAPE_STRING(shape));
    }
    return STATUS_OK;
}

static enum status fix_dimensions(struct graph *graph, const struct triton_config *config,
                                  struct error *err)
{
    for (size_t k = 0; k < config->input_count; k++) {
        const struct triton_input *input = &config->inputs[k];
        if (!input->name)
            return error_set(err, STATUS_MODEL, "it describes an input without a name");
        struct value *value = value_named(graph->inputs, graph->input_count, input->name);
        if (!value)
            return no_such_input(graph, input->name, err);
        TRY(fix_input(value, input, config->max_batch > 0, err));
    }
    return STATUS_OK;
}

/* Reads config.pbtxt: labels of the first output that names a file, input shapes, largest batch. */
static enum status read_triton(const struct model_place *place, struct model *model,
                               bool want_labels, struct error *err)
{
    struct side_file file;
    bool found;
    struct triton_config config = {0};
    TRY(not_found_is_fine(side_file_open(place, "config.pbtxt", &file, err), &found));
    if (!found)
        return STATUS_OK;
    enum status status = triton_config_read(file.text, file.size, &config, err);
    if (status == STATUS_OK && config.label_file && want_labels) {
        model->labels_source =
            arena_copy_text(model->graph->arena, config.label_file, strlen(config.label_file));
        status = check_memory(model->labels_source, "while reading labels", err);
        IF_OK(status, labels_from_file(place, config.label_file, false, &model->labels, err));
    }
    IF_OK(status, fix_dimensions(model->graph, &config, err));
    model->max_batch = config.max_batch;
    if (status != STATUS_OK && status != STATUS_NO_MEMORY) /* also if the label file is missing */
        status = error_set(err, STATUS_MODEL, "%s", err->message);
    return side_file_close(&file, status, err);
}

static const char *metadata_value(const struct onnx_model *onnx, const char *key)
{
    for (size_t i = 0; i < onnx->metadata_count; i++)
        if (!strcmp(onnx->metadata[i].key, key))
            return onnx->metadata[i].value;
    return NULL;
}

/* Reads the characters of a model that reads text: characters.txt, else rapidocr's metadata. */
static enum status read_characters(const struct model_place *place, const struct onnx_model *onnx,
                                   struct model *model, struct error *err)
{
    static const char file[] = "characters.txt";
    bool found;
    TRY(not_found_is_fine(labels_from_file(place, file, false, &model->labels, err), &found));
    const char *listed = metadata_value(onnx, "character");
    model->labels_source = found ? file : "\"character\" in the file's metadata";
    if (found || !listed)
        return STATUS_OK;
    enum status status = labels_from_text(listed, strlen(listed), &model->labels, err);
    return status == STATUS_OK ? status : error_prefix(err, "%.200s: metadata", place->file);
}

static enum status read_labels(const struct model_place *place, const struct onnx_model *onnx,
                               struct model *model, bool *ret_are_characters, struct error *err)
{
    static const struct {
        const char *file;
        bool is_json;
    } sources[] = {{"labels.txt", false},
                   {"index_to_name.json", true},
                   {"labels.json", true},
                   {"imagenet_classes.txt", false},
                   {"config.json", true}};
    TRY(read_characters(place, onnx, model, err));
    bool found = model->labels.count > 0;
    *ret_are_characters = found;
    for (size_t i = 0; i < COUNT_OF(sources) && !found; i++) {
        TRY(not_found_is_fine(
            labels_from_file(place, sources[i].file, sources[i].is_json, &model->labels, err),
            &found));
        model->labels_source = found ? sources[i].file : "the model's own metadata";
    }
    TRY(read_triton(place, model, !found, err));
    const char *names = metadata_value(onnx, "names");
    if (model->labels.count || !names)
        return STATUS_OK;
    enum status status = labels_from_python(names, &model->labels, err);
    return status == STATUS_OK ? status : error_prefix(err, "%.200s: metadata", place->file);
}

/* ---- preprocessing ---- */

static enum status preprocess_from_file(const struct model_place *place, const char *name,
                                        preprocess_reader *read, struct model *model,
                                        struct error *err)
{
    char remarks[PREPROCESS_REMARKS] = "";
    struct side_file file;
    TRY(side_json_open(place, name, &file, err));
    const enum status status = read(file.json, &model->preprocess, remarks, err);
    if (status == STATUS_OK && remarks[0])
        model_warn(model, "%s: %s", name, remarks);
    return side_file_close(&file, status, err);
}

static enum status read_preprocess(const struct model_place *place, const struct onnx_model *onnx,
                                   struct model *model, bool *ret_configured, struct error *err)
{
    static const struct {
        const char *file, *text;
        preprocess_reader *read;
    } sources[] = {
        {"preprocessor_config.json", "preprocessor_config.json", preprocess_from_huggingface},
        {"preprocess_cfg.json", "preprocess_cfg.json (open_clip)", preprocess_from_open_clip},
        {"config.json", "config.json (timm)", preprocess_from_timm},
    };
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        TRY(not_found_is_fine(
            preprocess_from_file(place, sources[i].file, sources[i].read, model, err),
            ret_configured));
        if (*ret_configured) {
            model->preprocess_source = sources[i].text;
            if (place->is_immich && sources[i].read == preprocess_from_open_clip)
                preprocess_as_immich(&model->preprocess);
            return STATUS_OK;
        }
    }
    enum status status = not_found_is_fine(preprocess_from_metadata(metadata_value(onnx, "imgsz"),
                                                                    metadata_value(onnx, "task"),
                                                                    &model->preprocess, err),
                                           ret_configured);
    if (status != STATUS_OK)
        return error_prefix(err, "%.200s", place->file);
    if (!*ret_configured)
        preprocess_default(&model->preprocess);
    model->preprocess_source = *ret_configured ? "model metadata" : "ImageNet defaults";
    return STATUS_OK;
}

/* ---- task ---- */

/* Adds the facts in Ultralytics' metadata. Texts are borrowed. */
static void add_metadata(const struct onnx_model *onnx, struct task_facts *facts)
{
    const char *args = metadata_value(onnx, "args");
    const char *author = metadata_value(onnx, "author");
    /* Other exporters may use other words for a task. */
    const bool is_ultralytics = author && !strcmp(author, "Ultralytics");
    const char *end = metadata_value(onnx, "end2end");
    facts->metadata_task = is_ultralytics ? metadata_value(onnx, "task") : NULL;
    facts->description = metadata_value(onnx, "description");
    facts->point_shape = metadata_value(onnx, "kpt_shape");
    facts->is_final = (end && !strcmp(end, "True")) || (args && strstr(args, "'nms': True"));
}

/* Names the key points: by VitPose's labels, else as Ultralytics' metadata names those of its first
 * class, {0: ['nose', 'left_eye']}, else as the five points of face detectors or COCO's 17 points.
 */
static enum status name_points(const struct onnx_model *onnx, struct model *model,
                               struct error *err)
{
    static const char coco[] =
        "nose\nleft_eye\nright_eye\nleft_ear\nright_ear\nleft_shoulder\nright_shoulder\n"
        "left_elbow\nright_elbow\nleft_wrist\nright_wrist\nleft_hip\nright_hip\nleft_knee\n"
        "right_knee\nleft_ankle\nright_ankle\n";
    static const char face[] = "right_eye\nleft_eye\nnose\nright_mouth_corner\nleft_mouth_corner\n";
    const char *names = metadata_value(onnx, "kpt_names");
    const char *list = names ? strchr(names, '[') : NULL;
    if (model->task.layout == LAYOUT_HEATMAPS && model->labels.count == model->task.point_count) {
        model->point_names = model->labels; /* VitPose's id2label */
        model->labels = (struct labels){0};
        return STATUS_OK;
    }
    if (list && strchr(list, ']'))
        return labels_from_python(list, &model->point_names, err);
    if (task_layout_is_faces(model->task.layout))
        return labels_from_text(face, sizeof face - 1, &model->point_names, err);
    if (model->task.point_count == 17)
        return labels_from_text(coco, sizeof coco - 1, &model->point_names, err);
    return STATUS_OK;
}

static enum status no_class(const struct model *model, bool is_own, const char *name, size_t length,
                            struct error *err)
{
    enum { MOST = 4096 }; /* the most labels that are searched for a similar label */
    char word[64];
    const size_t count = model->labels.count < MOST ? model->labels.count : MOST;
    snprintf(word, sizeof word, "%.*s", (int)(length < 60 ? length : 60), name);
    if (is_own)
        return error_set(err, STATUS_INVALID,
                         "classes: '%s' is neither a number nor one of the request's labels; "
                         "name one of those, or leave classes out",
                         word);
    const char *near = text_nearest(word, model->labels.names, count);
    return error_set(err, STATUS_INVALID,
                     "classes: '%s' is neither a number nor a label of model '%s'; %s%.80s%sGET "
                     "/models/%s/labels (lensd inspect --labels) lists them",
                     word, model->name, near ? "did you mean '" : "", near ? near : "",
                     near ? "'? " : "", model->name);
}

enum status model_find_classes(const struct model *model, const char *const *own, size_t own_count,
                               struct task_options *options, struct error *err)
{
    const char *const *names = own ? own : model->labels.names;
    const size_t count = own ? own_count : model->labels.count;
    const char *at = options->class_names;
    if (!at || (!task_has_boxes(model->task.kind) && model->task.kind != TASK_SEGMENTATION))
        return STATUS_OK;
    options->class_count = 0;
    while (options->class_count < TASK_MAX_CLASSES) {
        const size_t length = strcspn(at, ",");
        size_t index = 0;
        if (strspn(at, "0123456789") == length)
            index = strtoul(at, NULL, 10);
        else if (!labels_find(names, count, at, length, &index))
            return no_class(model, own, at, length, err);
        options->classes[options->class_count++] = (uint32_t)index;
        if (!at[length])
            break;
        at += length + 1;
    }
    options->class_names = NULL;
    return STATUS_OK;
}

/* ---- loading ---- */

/* Reads the tokenizer, and finds the inputs for its tokens. */
static enum status read_text(const struct model_place *place, struct model *model,
                             struct error *err)
{
    const char *second = *place->folders[1] ? place->folders[1] : NULL;
    return text_input_read(model->graph, model->words.form == WORDS_TOKENS,
                           (const char *[]){place->folders[0], second, NULL}, &model->text, err);
}

static enum status find_calibration(const struct model_place *place, char **ret, struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(place->folders) && place->folders[i][0]; i++) {
        char path[PATH_MAX];
        model_path(path, "%s/calibration", place->folders[i]);
        if (!path_is_folder(path))
            continue;
        *ret = strdup(path);
        return check_memory(*ret, "while looking for a model", err);
    }
    return STATUS_OK;
}

static enum status fill(struct model *model, const struct model_place *place, const char *name,
                        const struct model_limits *limits, struct error *err)
{
    struct onnx_model onnx = {0};
    model->name = strdup(name ? name : place->name);
    model->source = strdup(place->file);
    model->version = strdup(place->version);
    TRY(check_memory(model->name && model->source && model->version, NULL, err));
    TRY(place->is_embedded ? onnx_load_memory(digits_model, digits_model_size, 0, &onnx, err)
                           : onnx_load_file(place->file, limits ? limits->memory : 0, &onnx, err));
    model->graph = onnx.graph;
    model->metadata = onnx.metadata;
    model->metadata_count = onnx.metadata_count;
    model->file_bytes = onnx.file_bytes;
    TRY(find_calibration(place, &model->calibration, err));
    /* Errors of these readers already name a file, perhaps another file than the model's. */
    bool are_characters;
    TRY(read_labels(place, &onnx, model, &are_characters, err));
    model->texts.scale = 100;
    bool is_half = place->is_half;
    if (model_has_tokenizer(place))
        TRY(model_split(model, place->wants_texts, &is_half, err));
    if (place->makes_masks)
        TRY(mask_prompt_prepare(model, err));
    word_input_find(model, is_half);
    TRY(read_text(place, model, err));
    for (size_t i = 0; i < model->graph->input_count; i++)
        model->lacks_tokenizer |=
            !model->text.tokenizer && text_input_kind_of(model->graph->inputs[i]);
    if (!model->text.tokenizer && model->words.form == WORDS_TOKENS)
        model->words.form = WORDS_NONE;
    if (!model->text.tokenizer)
        TRY(zero_shot_read(place, &model->texts, &model->labels, err));
    if (model->texts.count)
        model->labels_source = "zero_shot.json";
    TRY(read_preprocess(place, &onnx, model, &model->is_configured, err));
    if (place->is_embedded)
        model->preprocess_source = "embedded";
    model->free_width = model->text.allows_short_rows;
    if (model->free_width)
        model_set_size(model, 1, (int)model->text.length);
    struct task_config config;
    TRY(task_config_read(place, &model->labels, &config, err));
    struct task_facts *facts = &config.facts;
    if (facts->architecture && !strncmp(facts->architecture, "Siglip", 6) &&
        !model->texts.has_scale)
        model->texts.is_sigmoid = true;
    add_metadata(&onnx, facts);
    facts->text_size = model->texts.count ? model->texts.size : 0;
    facts->are_characters = are_characters;
    facts->words = model->words.form;
    facts->takes_texts = model->text.tokenizer != NULL && facts->words == WORDS_NONE;
    facts->is_half = is_half;
    facts->is_encoder = place->is_encoder;
    facts->makes_masks = model->prompt.is_set;
    facts->mask_side = model->prompt.is_padded;
    enum status status = model_describe(model, &config, err);
    model->task.unclip_ratio = config.unclip_ratio;
    model->task.dilates = config.use_dilation;
    model->load = config.load;
    model->idle_unload_s = place->is_embedded ? 0 : config.idle_unload_s;
    if (status == STATUS_OK && model->task.kind == TASK_POSE)
        status = name_points(&onnx, model, err);
    task_config_done(&config);
    return status == STATUS_OK ? status : error_prefix(err, "%.200s", place->file);
}

enum status model_load(const char *path, const char *name, const struct model_limits *limits,
                       struct model **ret, struct error *err)
{
    struct model_place place = {
        .name = "digits", .file = "embedded", .version = "1", .is_embedded = !path};
    if (path)
        TRY(model_place_find(path, limits ? limits->version : NULL, &place, err));
    if (place.is_pipeline) {
        struct pipeline_config config;
        TRY(pipeline_config_read(path, &config, err));
        return error_set(err, STATUS_MODEL,
                         "%.200s: a pipeline of models, which only serve, predict and inspect "
                         "take; name one of its models",
                         path);
    }
    place.is_immich = limits && limits->is_immich;
    struct model *model = calloc(1, sizeof *model);
    const enum status status =
        model ? fill(model, &place, name, limits, err) : error_no_memory(err, NULL);
    if (status != STATUS_OK) {
        model_free(model);
        return status;
    }
    *ret = model;
    return STATUS_OK;
}
