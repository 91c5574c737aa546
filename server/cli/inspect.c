/* lensd inspect: describes a model, and says whether lensd can run it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "engine/runtime/session.h"
#include "models/folder/embedded.h"
#include "models/folder/repository.h"
#include "models/onnx/onnx.h"
#include "proto/writer.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/image/image.h"

#define LABELS_SHOWN 5

/* All texts live until the end of the command. */
struct inspection {
    struct model *model;                         /* NULL: not loaded */
    char file[PATH_MAX], name[MODEL_PLACE_NAME]; /* "": the embedded model */
    bool compiles;
    char note[200];       /* why the session runs images one by one; "": it does not */
    struct error problem; /* why the model could not be loaded or compiled */
    struct onnx_op_use *uses;
    size_t use_count;
    char transform[400];
    char tokenizer[200]; /* "": the model takes no texts */
    char second_half[PATH_MAX];
    const char *text_half, *decoder; /* one is second_half, or both are NULL */
};

static bool is_supported(const struct inspection *in)
{
    bool supported = in->compiles;
    for (size_t i = 0; i < in->use_count; i++)
        supported = supported && in->uses[i].supported;
    return supported;
}

/* Writes "[N, 3, height, 224]", with the names of symbolic dimensions. */
static void describe_shape(const struct value *value, char text[static SHAPE_TEXT])
{
    snprintf(text, SHAPE_TEXT, value->shape.rank == SHAPE_UNKNOWN ? "[?" : "[");
    for (int i = 0; i < value->shape.rank; i++) {
        const char *name =
            value->dim_names[i] && value->dim_names[i][0] ? value->dim_names[i] : "?";
        if (value->shape.dims[i] == DIM_UNKNOWN)
            text_append(text, SHAPE_TEXT, i ? ", " : "", "%.40s", name);
        else
            text_append(text, SHAPE_TEXT, i ? ", " : "", "%lld", (long long)value->shape.dims[i]);
    }
    text_append(text, SHAPE_TEXT, "", "]");
}

/* Compiles the model for one image, because some errors appear only when shapes are known. Does not
 * run the model: its loops may be endless. */
static enum status inspect_compile(const struct model *model, char *note, size_t size,
                                   struct error *err)
{
    struct session_options options = command_session_options(model);
    options.max_batch = 1;
    options.trial = true;
    struct session *session = NULL;
    TRY(model_advise(model, session_create(model->graph, &options, &session, err), err));
    snprintf(note, size, "%s", session_info(session)->note);
    session_free(session);
    return STATUS_OK;
}

static enum status inspect_model(const struct config *config, struct inspection *in,
                                 struct error *err)
{
    if (config->model)
        TRY(model_find(config->model, in->file, in->name, err));
    enum status status = model_load(config->model, NULL, NULL, &in->model, &in->problem);
    /* Operators that lensd lacks are no error here, because the command lists them. */
    if (status != STATUS_OK && (status != STATUS_UNSUPPORTED || !config->model)) {
        *err = in->problem;
        return status;
    }
    TRY(onnx_list_ops(config->model ? in->file : NULL, digits_model, digits_model_size, &in->uses,
                      &in->use_count, err));
    if (!in->model)
        return STATUS_OK;
    if (in->model->image_input != SIZE_MAX)
        preprocess_describe(&in->model->preprocess, in->transform, sizeof in->transform);
    if (in->model->text.tokenizer)
        tokenizer_describe(in->model->text.tokenizer, in->tokenizer, sizeof in->tokenizer);
    const char *ending;
    if (config->model && in->model->image_input != SIZE_MAX &&
        model_find_half(config->model, in->second_half, &ending))
        *(strcmp(ending, MODEL_TEXT_ENDING) ? &in->decoder : &in->text_half) = in->second_half;
    in->compiles = inspect_compile(in->model, in->note, sizeof in->note, &in->problem) == STATUS_OK;
    return STATUS_OK;
}

/* ---- JSON ---- */

static void write_tensors(struct writer *w, json_node *root, const char *key,
                          struct value *const *values, size_t count)
{
    json_node *list = write_array(w, root, key);
    for (size_t i = 0; i < count; i++) {
        char shape[SHAPE_TEXT];
        describe_shape(values[i], shape);
        write_members(w, list, "{name=%s dtype=%s shape=%s}", values[i]->name,
                      dtype_name(values[i]->dtype), shape);
    }
}

static void write_operators(struct writer *w, const struct inspection *in)
{
    json_node *list = write_array(w, w->root, "operators");
    for (size_t i = 0; i < in->use_count; i++) {
        const struct onnx_op_use *use = &in->uses[i];
        write_members(w, list, "{name=%s domain=%s opset=%d count=%zu supported=%hhd}", use->name,
                      use->domain, use->opset, use->count, use->supported);
    }
}

static void write_file(struct writer *w, const struct model *model)
{
    const struct graph *graph = model ? model->graph : NULL;
    write_members(
        w, w->root, "producer?=%s opset=%d file_bytes=%zu parameters=%zu parameter_bytes=%zu",
        graph ? graph->producer : "", graph ? graph->opset : 0, model ? model->file_bytes : 0,
        model ? model->parameter_count : 0, model ? model->parameter_bytes : 0);
    write_tensors(w, w->root, "inputs", graph ? graph->inputs : NULL,
                  graph ? graph->input_count : 0);
    write_tensors(w, w->root, "outputs", graph ? graph->outputs : NULL,
                  graph ? graph->output_count : 0);
}

static void write_task(struct writer *w, const struct inspection *in)
{
    const struct model *model = in->model;
    const char *formats[IMAGE_FORMATS];
    if (in->transform[0]) {
        write_members(w, w->root, "transform=%s transform_source=%s", in->transform,
                      model->preprocess_source);
        write_texts(w, w->root, "formats", formats, image_formats(formats));
    }
    if (in->tokenizer[0]) {
        json_node *inputs = write_array(w, w->root, "text_inputs");
        for (size_t i = 0; i < model->input_count; i++)
            write_text(w, inputs, NULL, model->inputs[i].name);
        write_members(w, w->root, "tokenizer=%s tokens=%zu", in->tokenizer, model->text.length);
    }
    write_members(w, w->root, "text_half=%s decoder?=%s", in->text_half, in->decoder);
    if (model)
        write_members(w, w->root, "task=%s task_evidence=%s", task_name(model->task.kind),
                      model->task.evidence);
    write_members(w, w->root, "classes=%zu", model ? model->class_count : 0);
    json_node *labels = write_array(w, w->root, "labels");
    for (size_t i = 0; model && i < model->labels.count; i++)
        write_text(w, labels, NULL, model->labels.names[i]);
}

/* {"name","file","version","producer"?,"opset","file_bytes","parameters","parameter_bytes",
 * "inputs":[{"name","dtype","shape"}…],"outputs":[…],"operators":[{"name","domain","opset","count",
 * "supported"}…],"transform"?,"transform_source"?,"formats"?:[…],"text_inputs"?,"tokenizer"?,
 * "tokens"?,"text_half"?,"decoder"?,"task"?,"task_evidence"?,"classes","labels":[…],"supported",
 * "problem"?,"warning"?,"note"?} */
static int print_inspection_json(const struct inspection *in)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "name=%s file=%s version=%s", in->model ? in->model->name : in->name,
                  *in->file ? in->file : "embedded", in->model ? in->model->version : "1");
    write_file(&w, in->model);
    write_operators(&w, in);
    write_task(&w, in);
    write_members(&w, w.root, "supported=%hhd problem?=%s warning?=%s note?=%s", is_supported(in),
                  in->compiles ? "" : in->problem.message, in->model ? in->model->warning : "",
                  in->note);
    return print_json(write_finish(&w));
}

/* ---- text ---- */

/* Prints the formats that lensd can decode, and what the other formats need. */
static void print_formats(void)
{
    printf("%-12s", "formats");
    for (enum image_format i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        if (!image_format_missing(i))
            printf("%s%s", i == IMAGE_JPEG ? "" : ", ", image_format_name(i));
    printf("\n");
    for (enum image_format i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        if (image_format_missing(i))
            printf("%-12s(%s needs %s)\n", "", image_format_name(i), image_format_missing(i));
}

/* Escapes control characters of a text from a model file, for a terminal. The result is valid until
 * the end of the enclosing block. */
#define SHOWN(text) utf8_shown((text), (char[1024]){0}, 1024)

static void print_tensors(const char *title, struct value *const *values, size_t count)
{
    char shape[SHAPE_TEXT];
    for (size_t i = 0; i < count; i++) {
        describe_shape(values[i], shape);
        printf("%-12s%s  %s %s\n", i ? "" : title, SHOWN(values[i]->name),
               dtype_name(values[i]->dtype), SHOWN(shape));
    }
}

/* Prints "title       words …", wrapped at blanks to 80 columns. */
static void inspect_print_wrapped(const char *title, const char *text)
{
    printf("%-12s", title);
    config_print_wrapped(stdout, text + strspn(text, " "), 12, 12);
}

static void print_labels(const struct labels *labels)
{
    if (labels->count == 0)
        inspect_print_wrapped("labels", "none");
    for (size_t i = 0; i < labels->count && i < LABELS_SHOWN; i++)
        inspect_print_wrapped(i ? "" : "labels", SHOWN(labels->names[i]));
    if (labels->count > LABELS_SHOWN)
        printf("%-12s… and %zu more\n", "", labels->count - LABELS_SHOWN);
}

static void print_operators(const struct inspection *in)
{
    printf("\noperators\n");
    for (size_t i = 0; i < in->use_count; i++) {
        const struct onnx_op_use *op = &in->uses[i];
        printf("%8zu  %s%s%s  (opset %d)%s\n", op->count, SHOWN(op->domain),
               op->domain[0] ? "." : "", SHOWN(op->name), op->opset,
               op->supported ? "" : "  NOT SUPPORTED");
    }
}

static void print_model(const struct inspection *in, const struct model *model)
{
    const struct graph *graph = model->graph;
    const char *producer = graph->producer && graph->producer[0] ? graph->producer : NULL;
    printf("\n%-12s%s\n", "file", SIZE_STRING(model->file_bytes));
    printf("%-12s%d%s%s\n", "opset", graph->opset, producer ? ", made by " : "",
           producer ? SHOWN(producer) : "");
    print_tensors("inputs", graph->inputs, graph->input_count);
    if (model->filled[0])
        inspect_print_wrapped("", model->filled);
    print_tensors("outputs", graph->outputs, graph->output_count);
    printf("%-12s%llu (%s)\n", "parameters", (unsigned long long)model->parameter_count,
           SIZE_STRING(model->parameter_bytes));
    if (in->transform[0]) {
        inspect_print_wrapped("photos", SHOWN(in->transform));
        printf("%-12s(from %s)\n", "", model->preprocess_source);
        print_formats();
    } else if (in->tokenizer[0]) {
        inspect_print_wrapped("texts", SHOWN(in->tokenizer));
        printf("%-12sinputs", "");
        for (size_t i = 0; i < model->input_count; i++)
            printf("%s %s", i ? "," : "", SHOWN(model->inputs[i].name));
        printf(": %zu tokens\n", model->text.length);
    } else
        printf("%-12sno input looks like a photo\n", "photos");
    if (model->words.form == WORDS_VECTORS)
        printf("%-12s%s: up to %zu labels per request, vectors of %zu numbers\n", "words",
               SHOWN(model->inputs[model->words.input].name), model->words.count,
               model->words.size);
    if (model->words.form == WORDS_TOKENS)
        printf("%-12sthe labels that a request looks for, at most %zu tokens in all\n", "words",
               model->text.length);
    if (in->second_half[0])
        printf("%-12sin the half %s\n", in->decoder ? "masks" : "texts", SHOWN(in->second_half));
    inspect_print_wrapped("task", task_name(model->task.kind));
    inspect_print_wrapped("", model->task.evidence);
    if (model->class_count)
        printf("%-12s%zu\n", "classes", model->class_count);
    print_labels(&model->labels);
}

static void print_inspection(const struct inspection *in)
{
    const struct model *model = in->model;
    const bool answers_photos = model && model->image_input != SIZE_MAX &&
                                (model->input_count == 1 || model->words.form != WORDS_NONE) &&
                                model->task.kind != TASK_UNKNOWN;
    printf("%s  (%s)\n", SHOWN(model ? model->name : in->name),
           SHOWN(*in->file ? in->file : "embedded"));
    if (model)
        print_model(in, model);
    print_operators(in);
    if (in->note[0])
        printf("\nnote: %s\n", SHOWN(in->note));
    if (model && model->warning[0])
        printf("\nwarning: %s\n", SHOWN(model->warning));
    if (is_supported(in))
        printf(answers_photos || in->tokenizer[0]
                   ? "\nlensd can run this model.\n"
                   : "\nlensd can run this model on tensors (/v2/models/NAME/infer); "
                     "/predict refuses photos.\n");
    else
        printf("\nlensd cannot run this model%s%s\n", in->compiles ? "." : ": ",
               in->compiles ? "" : SHOWN(in->problem.message));
}

/* ---- a pipeline ---- */

static void print_stage(const struct pipeline_stage *stage, size_t at)
{
    char title[32], text[400];
    snprintf(title, sizeof title, "stage %zu", at + 1);
    snprintf(text, sizeof text, "%s, which gets %s", SHOWN(stage->model),
             at ? "crops of the previous stage's boxes" : "photos");
    inspect_print_wrapped(title, text);
    snprintf(text, sizeof text, "labels: ");
    for (size_t i = 0; i < stage->label_count; i++)
        text_append(text, sizeof text, i ? ", " : "", "%s", SHOWN(stage->labels[i]));
    if (stage->label_count)
        inspect_print_wrapped("", text);
    if (at)
        printf("%-12sscores from %g, margin %g, at most %zu crops\n", "", stage->min_score,
               stage->margin, stage->max);
    if (stage->turn > 0)
        printf("%-12sthe next stage gets the same crops; those with label 180 above %g are turned "
               "by 180 degrees\n",
               "", stage->turn);
    for (size_t i = 0; i < stage->size_count; i++)
        printf("%-12s%s%d x %d pixels\n", "", i ? "or " : "", stage->sizes[i].width,
               stage->sizes[i].height);
}

/* All stages but the first have labels, a least score, a margin and a limit of crops. */
static void write_stage(struct writer *w, json_node *list, const struct pipeline_stage *stage,
                        bool is_first)
{
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "model", stage->model);
    if (!is_first) {
        json_node *labels = write_array(w, entry, "labels");
        for (size_t i = 0; i < stage->label_count; i++)
            write_text(w, labels, NULL, stage->labels[i]);
        write_members(w, entry, "min_score=%g margin=%g max=%zu", stage->min_score, stage->margin,
                      stage->max);
    }
    if (stage->turn > 0)
        write_members(w, entry, "turn=%g", stage->turn);
    json_node *sizes = write_array(w, entry, "sizes");
    for (size_t i = 0; i < stage->size_count; i++) {
        char size[24];
        snprintf(size, sizeof size, "%dx%d", stage->sizes[i].width, stage->sizes[i].height);
        write_text(w, sizes, NULL, size);
    }
}

/* {"name","file","stages":["MODEL"…],"stage_details":[{"model","labels":[…],"min_score","margin",
 * "max","turn"?,"sizes":["WIDTHxHEIGHT"…]}…],"supported","problem"?} */
static int print_stages_json(const struct repository_model *model)
{
    const struct pipeline_config *stages = model->stages;
    const bool is_wrong = model->problem.status != STATUS_OK;
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "name=%s file=%s", model->name, model->path);
    json_node *names = write_array(&w, w.root, "stages");
    for (size_t i = 0; i < stages->stage_count; i++)
        write_text(&w, names, NULL, stages->stages[i].model);
    json_node *details = write_array(&w, w.root, "stage_details");
    for (size_t i = 0; i < stages->stage_count; i++)
        write_stage(&w, details, &stages->stages[i], i == 0);
    write_members(&w, w.root, "supported=%hhd problem?=%s", !is_wrong,
                  is_wrong ? model->problem.message : "");
    return print_json(write_finish(&w));
}

/* Shows the pipeline in the folder, and sets *ret to the exit status. Returns false if the folder
 * has no pipeline. */
static bool inspect_stages(const struct config *config, int *ret)
{
    struct repository repository;
    if (repository_scan_model(config->model, NULL, &repository, NULL) != STATUS_OK)
        return false;
    const struct repository_model *model = &repository.models[0];
    const struct pipeline_config *stages = model->stages;
    const bool has_stages = stages != NULL;
    *ret = model->problem.status != STATUS_OK;
    if (has_stages && config->json) {
        const int printed = print_stages_json(model);
        *ret = printed ? printed : *ret;
    } else if (has_stages) {
        printf("%s  (%s), a pipeline\n\n", SHOWN(model->name), SHOWN(model->path));
        for (size_t i = 0; i < stages->stage_count; i++)
            print_stage(&stages->stages[i], i);
        if (*ret)
            printf("\nlensd cannot run this pipeline: %s\n", SHOWN(model->problem.message));
        else
            printf("\nlensd can run this pipeline if its models fit their stages; `lensd serve "
                   "--check` loads them and checks that.\n");
    }
    repository_done(&repository);
    return has_stages;
}

int command_inspect(const struct config *config)
{
    struct inspection in = {0};
    struct error err;
    int result;
    if (config->profile)
        return command_profile(config);
    if (inspect_stages(config, &result))
        return result;
    if (inspect_model(config, &in, &err) != STATUS_OK) {
        result = process_failed(&err);
    } else {
        result = 0;
        for (size_t i = 0; config->labels && in.model && i < in.model->labels.count; i++)
            printf("%s\n", SHOWN(in.model->labels.names[i]));
        if (config->json && !config->labels)
            result = print_inspection_json(&in);
        else if (!config->labels)
            print_inspection(&in);
        if (result == 0 && !is_supported(&in))
            result = 1;
    }
    model_free(in.model);
    free(in.uses);
    return result;
}
