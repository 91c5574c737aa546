/* lensd inspect: what a model is, and whether lensd can run it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "engine/ops/ops.h"
#include "engine/runtime/session.h"
#include "models/folder/repository.h"
#include "models/onnx/onnx.h"
#include "proto/answers.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/image/image.h"
#include "server/loader/model_open.h"

#define LABELS_SHOWN 5

/* All texts live until the end of the command. */
struct inspection {
    struct model *model; /* NULL when it could not be loaded */
    char *file, *name;
    bool compiles;
    struct error problem; /* why the model could not be loaded or compiled */
    struct inspect_tensor *inputs, *outputs;
    char (*shapes)[SHAPE_TEXT];
    struct inspect_operator *operators;
    struct onnx_op_use *uses;
    size_t use_count;
    char transform[400];
    const char *formats[IMAGE_FORMATS];
    size_t format_count;
};

static void inspection_done(struct inspection *in)
{
    model_free(in->model);
    free(in->file);
    free(in->name);
    free(in->inputs);
    free(in->outputs);
    free(in->shapes);
    free(in->operators);
    free(in->uses);
}

/* ---- operators ---- */

/* Of a graph: for the embedded model, which has no file to list. */
static enum status inspect_count_operators(const struct graph *graph, struct inspection *in,
                                           struct error *err)
{
    in->operators = alloc_array(graph->node_count, sizeof *in->operators);
    if (!in->operators)
        return error_no_memory(err, NULL);
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        size_t k = 0;
        while (k < in->use_count && strcmp(in->operators[k].name, op_name(node->op)) != 0)
            k++;
        if (k == in->use_count)
            in->operators[in->use_count++] =
                (struct inspect_operator){.name = op_name(node->op),
                                          .domain = op_domain(node->op),
                                          .opset = node->opset,
                                          .supported = op_find(node->op, node->opset) != NULL};
        in->operators[k].count++;
    }
    return STATUS_OK;
}

static enum status list_operators(struct inspection *in, struct error *err)
{
    if (!in->file)
        return inspect_count_operators(in->model->graph, in, err);
    TRY(onnx_list_ops(in->file, &in->uses, &in->use_count, err));
    in->operators = alloc_array(in->use_count, sizeof *in->operators);
    if (!in->operators)
        return error_no_memory(err, NULL);
    for (size_t i = 0; i < in->use_count; i++)
        in->operators[i] = (struct inspect_operator){.name = in->uses[i].name,
                                                     .domain = in->uses[i].domain,
                                                     .opset = in->uses[i].opset,
                                                     .count = in->uses[i].count,
                                                     .supported = in->uses[i].supported};
    return STATUS_OK;
}

/* ---- tensors ---- */

/* "[N, 3, height, 224]": symbolic dimensions by their names. */
static void describe_shape(const struct value *value, char text[static SHAPE_TEXT])
{
    size_t used = 0;
    if (value->shape.rank == SHAPE_UNKNOWN) {
        snprintf(text, SHAPE_TEXT, "[?]");
        return;
    }
    text[0] = '\0';
    for (int i = 0; i < value->shape.rank && used < SHAPE_TEXT; i++) {
        char number[32];
        const char *dim = value->dim_names[i] && value->dim_names[i][0] ? value->dim_names[i] : "?";
        if (value->shape.dims[i] != DIM_UNKNOWN) {
            snprintf(number, sizeof number, "%lld", (long long)value->shape.dims[i]);
            dim = number;
        }
        int n = snprintf(text + used, SHAPE_TEXT - used, "%s%.40s", i ? ", " : "[", dim);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used < SHAPE_TEXT)
        snprintf(text + used, SHAPE_TEXT - used, "%s", value->shape.rank ? "]" : "[]");
}

static enum status list_tensors(struct inspection *in, struct error *err)
{
    const struct graph *graph = in->model->graph;
    in->inputs = alloc_array(graph->input_count, sizeof *in->inputs);
    in->outputs = alloc_array(graph->output_count, sizeof *in->outputs);
    in->shapes = alloc_array(graph->input_count + graph->output_count, sizeof *in->shapes);
    if (!in->inputs || !in->outputs || !in->shapes)
        return error_no_memory(err, NULL);
    for (size_t i = 0; i < graph->input_count + graph->output_count; i++) {
        bool input = i < graph->input_count;
        const struct value *value =
            input ? graph->inputs[i] : graph->outputs[i - graph->input_count];
        describe_shape(value, in->shapes[i]);
        *(input ? &in->inputs[i] : &in->outputs[i - graph->input_count]) = (struct inspect_tensor){
            .name = value->name, .dtype = dtype_name(value->dtype), .shape = in->shapes[i]};
    }
    return STATUS_OK;
}

/* ---- the whole ---- */

/* Compiles the model as `lensd serve` does first: some faults show only when shapes are known. Does
 * not run it: its loops may have no end. */
static enum status inspect_compile(const struct model *model, struct error *err)
{
    const struct session_options options = {
        .device = DEVICE_HOST,
        .max_batch = 1,
        .trial = true,
        .no_kernel_tuning = true,
        .image_input = model->image_input,
        .image_layout = model->image_input == SIZE_MAX ? IMAGE_AS_DECLARED : IMAGE_NHWC_ANY,
        .image_channels_last = model->input_channels_last,
        .image_height = model->preprocess.height,
        .image_width = model->preprocess.width,
    };
    struct session *session = NULL;
    TRY(session_create(model->graph, &options, &session, err));
    session_free(session);
    return STATUS_OK;
}

static enum status inspect_model(const struct config *config, struct inspection *in,
                                 struct error *err)
{
    if (!model_is_embedded(config->model))
        TRY(model_find(config->model, &in->file, &in->name, err));
    enum status status = model_open(config->model, NULL, &in->model, &in->problem);
    /* Missing operators are what this command lists; a broken file is an error. */
    if (status != STATUS_OK && (status != STATUS_UNSUPPORTED || !in->file)) {
        *err = in->problem;
        return status;
    }
    TRY(list_operators(in, err));
    if (!in->model)
        return STATUS_OK;
    if (in->model->image_input != SIZE_MAX)
        preprocess_describe(&in->model->preprocess, in->transform, sizeof in->transform);
    in->format_count = image_formats(in->formats);
    TRY(list_tensors(in, err));
    in->compiles = inspect_compile(in->model, &in->problem) == STATUS_OK;
    return STATUS_OK;
}

static struct inspect_answer answer_of(const struct inspection *in)
{
    struct inspect_answer answer = {.name = in->name,
                                    .file = in->file ? in->file : "embedded",
                                    .version = "1",
                                    .operators = in->operators,
                                    .operator_count = in->use_count,
                                    .supported = in->compiles,
                                    .problem = in->compiles ? NULL : in->problem.message};
    for (size_t i = 0; i < in->use_count; i++)
        answer.supported = answer.supported && in->operators[i].supported;
    const struct model *model = in->model;
    if (!model)
        return answer;
    answer.name = model->name;
    answer.version = model->version;
    answer.producer = model->graph->producer;
    answer.opset = model->graph->opset;
    answer.file_bytes = model->file_bytes;
    answer.parameter_count = model->parameter_count;
    answer.parameter_bytes = model->parameter_bytes;
    answer.inputs = in->inputs;
    answer.input_count = model->graph->input_count;
    answer.outputs = in->outputs;
    answer.output_count = model->graph->output_count;
    answer.transform = in->transform;
    answer.transform_source = model->preprocess_source;
    answer.formats = in->formats;
    answer.format_count = in->format_count;
    answer.labels = (const char *const *)model->labels.names;
    answer.label_count = model->labels.count;
    answer.class_count = model->class_count;
    answer.task = task_name(model->task.kind);
    answer.task_evidence = model->task.evidence;
    answer.warning = model->warning;
    return answer;
}

/* What can be decoded, and the packages that are missing for the rest. */
static void print_formats(const struct inspect_answer *answer)
{
    const char *need;
    printf("%-12s", "formats");
    for (size_t i = 0; i < answer->format_count; i++)
        printf("%s%s", i ? ", " : "", answer->formats[i]);
    printf("\n");
    for (int i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        if (!image_format_is_available((enum image_format)i, &need))
            printf("%-12s(%s needs %s)\n", "", image_format_name((enum image_format)i), need);
}

/* A text from the model file, with control characters escaped for a terminal. */
#define SHOWN(text) utf8_shown((text), (char[1024]){0}, 1024)

static void print_tensors(const char *title, const struct inspect_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf("%-12s%s  %s %s\n", i ? "" : title, SHOWN(tensors[i].name), tensors[i].dtype,
               SHOWN(tensors[i].shape));
}

/* "title       words …", broken at blanks where a line would pass 80 columns. */
static void inspect_print_wrapped(const char *title, const char *text)
{
    const size_t indent = 12, width = 80;
    size_t column = indent;
    printf("%-12s", title);
    for (const char *word = text + strspn(text, " "); *word;) {
        size_t length = strcspn(word, " ");
        if (column > indent && column + 1 + length > width) {
            printf("\n%-12s", "");
            column = indent;
        }
        int n = printf("%s%.*s", column > indent ? " " : "", (int)length, word);
        column += n < 0 ? 0 : (size_t)n;
        word += length;
        word += strspn(word, " ");
    }
    printf("\n");
}

static void print_labels(const struct inspect_answer *answer)
{
    if (answer->label_count == 0)
        inspect_print_wrapped("labels", "none");
    for (size_t i = 0; i < answer->label_count && i < LABELS_SHOWN; i++)
        inspect_print_wrapped(i ? "" : "labels", SHOWN(answer->labels[i]));
    if (answer->label_count > LABELS_SHOWN)
        printf("%-12s… and %zu more\n", "", answer->label_count - LABELS_SHOWN);
}

static void print_operators(const struct inspect_answer *answer)
{
    printf("\noperators\n");
    for (size_t i = 0; i < answer->operator_count; i++) {
        const struct inspect_operator *op = &answer->operators[i];
        printf("%8zu  %s%s%s  (opset %d)%s\n", op->count, SHOWN(op->domain),
               op->domain[0] ? "." : "", SHOWN(op->name), op->opset,
               op->supported ? "" : "  NOT SUPPORTED");
    }
}

static bool inspect_answers_photos(const struct model *model)
{
    return model && model->image_input != SIZE_MAX && model->task.kind != TASK_UNKNOWN;
}

static void print_answer(const struct inspect_answer *answer, bool answers_photos)
{
    char size[SIZE_TEXT];
    printf("%s  (%s)\n", SHOWN(answer->name), SHOWN(answer->file));
    if (answer->opset) {
        printf("\n");
        printf("%-12s%s\n", "file", size_text(answer->file_bytes, size));
        printf("%-12s%d%s%s\n", "opset", answer->opset,
               answer->producer && answer->producer[0] ? ", made by " : "",
               answer->producer ? SHOWN(answer->producer) : "");
        print_tensors("inputs", answer->inputs, answer->input_count);
        print_tensors("outputs", answer->outputs, answer->output_count);
        printf("%-12s%llu (%s)\n", "parameters", (unsigned long long)answer->parameter_count,
               size_text(answer->parameter_bytes, size));
        if (answer->transform && answer->transform[0]) {
            inspect_print_wrapped("photos", SHOWN(answer->transform));
            printf("%-12s(from %s)\n", "", answer->transform_source);
            print_formats(answer);
        } else
            printf("%-12sno input looks like a photo\n", "photos");
        inspect_print_wrapped("task", answer->task);
        inspect_print_wrapped("", answer->task_evidence);
        if (answer->class_count)
            printf("%-12s%zu\n", "classes", answer->class_count);
        print_labels(answer);
    }
    print_operators(answer);
    if (answer->warning && answer->warning[0])
        printf("\nwarning: %s\n", SHOWN(answer->warning));
    if (answer->supported && answers_photos)
        printf("\nlensd can run this model.\n");
    else if (answer->supported)
        printf("\nlensd can run this model on tensors (/v2/models/NAME/infer); /predict refuses "
               "photos.\n");
    else
        printf("\nlensd cannot run this model%s%s\n", answer->problem ? ": " : ".",
               answer->problem ? SHOWN(answer->problem) : "");
}

/* ---- a pipeline ---- */

static void print_stage(const struct pipeline_stage *stage, size_t at)
{
    char title[32], text[400];
    size_t used = 0;
    snprintf(title, sizeof title, "stage %zu", at + 1);
    snprintf(text, sizeof text, "%s, which gets %s", SHOWN(stage->model),
             at ? "crops of the boxes before" : "photos");
    inspect_print_wrapped(title, text);
    for (size_t i = 0; i < stage->label_count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                 i ? ", " : "labels: ", SHOWN(stage->labels[i]));
    if (stage->label_count)
        inspect_print_wrapped("", text);
    if (at)
        printf("%-12sscores from %g, margin %g, at most %zu crops\n", "", stage->min_score,
               stage->margin, stage->max);
    for (size_t i = 0; i < stage->size_count; i++)
        printf("%-12s%s%d x %d pixels\n", "", i ? "or " : "", stage->sizes[i].width,
               stage->sizes[i].height);
}

/* `sizes` and `names`: memory for texts. */
static struct inspect_stage
describe_stage(const struct pipeline_stage *stage, char sizes[static STAGE_SIZES_MAX][24],
               const char *names[static STAGE_LABELS_MAX + STAGE_SIZES_MAX])
{
    for (size_t i = 0; i < stage->label_count; i++)
        names[i] = stage->labels[i];
    for (size_t i = 0; i < stage->size_count; i++) {
        snprintf(sizes[i], 24, "%dx%d", stage->sizes[i].width, stage->sizes[i].height);
        names[STAGE_LABELS_MAX + i] = sizes[i];
    }
    return (struct inspect_stage){.model = stage->model,
                                  .labels = names,
                                  .label_count = stage->label_count,
                                  .min_score = stage->min_score,
                                  .margin = stage->margin,
                                  .max = stage->max,
                                  .sizes = names + STAGE_LABELS_MAX,
                                  .size_count = stage->size_count};
}

/* Shows the pipeline that lies there; *ret: the command's result. False: it is no pipeline. */
static bool inspect_stages(const struct config *config, int *ret)
{
    struct repository repository;
    if (model_is_embedded(config->model) ||
        repository_scan_model(config->model, NULL, &repository, NULL) != STATUS_OK)
        return false;
    const struct repository_model *model = &repository.models[0];
    const struct pipeline_config *stages = model->stages;
    const bool is_wrong = model->problem.status != STATUS_OK;
    if (!stages) {
        repository_done(&repository);
        return false;
    }
    const char *names[PIPELINE_STAGES_MAX][STAGE_LABELS_MAX + STAGE_SIZES_MAX];
    char sizes[PIPELINE_STAGES_MAX][STAGE_SIZES_MAX][24];
    struct inspect_stage details[PIPELINE_STAGES_MAX];
    for (size_t i = 0; i < stages->stage_count; i++)
        details[i] = describe_stage(&stages->stages[i], sizes[i], names[i]);
    *ret = is_wrong;
    if (config->json) {
        const int printed =
            print_json(inspect_pipeline_json(model->name, model->path, details, stages->stage_count,
                                             is_wrong ? model->problem.message : NULL, NULL));
        *ret = printed ? printed : *ret;
    } else {
        printf("%s  (%s), a pipeline\n\n", SHOWN(model->name), SHOWN(model->path));
        for (size_t i = 0; i < stages->stage_count; i++)
            print_stage(&stages->stages[i], i);
        if (is_wrong)
            printf("\nlensd cannot run this pipeline: %s\n", SHOWN(model->problem.message));
        else
            printf("\nlensd can run this pipeline if its models can do what the stages want; "
                   "`lensd serve --check` of it loads them and says so.\n");
    }
    repository_done(&repository);
    return true;
}

int command_inspect(const struct config *config)
{
    command_notes(config);
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
        struct inspect_answer answer = answer_of(&in);
        if (config->json)
            result = print_json(inspect_answer_json(&answer, NULL));
        else
            print_answer(&answer, inspect_answers_photos(in.model)), result = 0;
        if (result == 0 && !answer.supported)
            result = 1;
    }
    inspection_done(&in);
    return result;
}
