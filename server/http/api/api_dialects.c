/* Lists models and status in other servers' APIs, and in KServe's V1 protocol. api_predict.c and
 * api_infer.c answer photos in these APIs. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

/* Roboflow's name of each task, and CVAT's name of the shape in the task's answers; NULL: none. */
static const struct {
    const char *roboflow, *shape;
} words[TASK_KINDS] = {[TASK_CLASSIFICATION] = {"classification", "tag"},
                       [TASK_ZERO_SHOT] = {"classification", NULL},
                       [TASK_DETECTION] = {"object-detection", "rectangle"},
                       [TASK_ORIENTED] = {"object-detection", "rectangle"},
                       [TASK_POSE] = {"keypoint-detection", "rectangle"},
                       [TASK_INSTANCES] = {"instance-segmentation", "mask"},
                       [TASK_SEGMENTATION] = {NULL, "mask"},
                       [TASK_MASKS] = {NULL, "mask"}};

/* Bytes that an answer needs for each label, in addition to the label's text. */
#define LISTED_LABEL_BYTES 64

/* The models in an answer. */
struct listed_models {
    struct dialect_model *rows;
    struct deployment **held; /* acquired, because they own the labels; NULL if not needed */
    size_t count;
    size_t bytes; /* bytes of the labels in the answer */
};

/* If the model is loaded, sets the row's labels to the newest version's, and row->takes_boxes. */
static void add_labels(struct exchange *x, struct listed_models *list)
{
    struct dialect_model *row = &list->rows[list->count];
    struct deployment **held = &list->held[list->count];
    char name[256];
    struct error ignored;
    snprintf(name, sizeof name, "%s%s", row->name, row->takes_points ? MODEL_DECODER_ENDING : "");
    if (model_host_acquire(x->server->options.model_host, name, NULL, held, NULL, &ignored) !=
        STATUS_OK)
        return;
    row->takes_boxes = (*held)->model->prompt.takes_boxes;
    const struct labels *labels = &(*held)->model->labels;
    row->labels = (const char *const *)labels->names;
    row->label_count = labels->count;
    list->bytes += labels->count * (labels->longest + LISTED_LABEL_BYTES);
}

typedef char *(*write_models_fn)(const struct dialect_model *models, size_t count);

enum model_list {
    LIST_NAMES,     /* detectors, and pipelines that begin with a detector */
    LIST_TASKS,     /* models for whose tasks Roboflow has a name */
    LIST_DETECTORS, /* detectors and their labels; each model once; no pipelines */
    LIST_SHAPES,    /* models with a CVAT shape, and their labels; each model once; no pipelines */
};

static bool is_listed(const struct model_status *model, enum model_list list, const char *only)
{
    const bool has_word =
        list == LIST_SHAPES ? words[model->task].shape : words[model->task].roboflow;
    const bool needs_boxes = list == LIST_NAMES || list == LIST_DETECTORS;
    return model->can_answer && model->takes_images && has_word &&
           (!needs_boxes || task_has_boxes(model->task)) &&
           (list <= LIST_TASKS || !model->stage_count) && (!*only || !strcmp(model->name, only));
}

/* `only`: the name of the only model to list; "" lists all. */
static void respond_models(struct exchange *x, enum model_list list, const char *only,
                           write_models_fn write)
{
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct listed_models listed = {alloc_array(count, sizeof *listed.rows),
                                   alloc_array(count, sizeof(struct deployment *)), 0, 0};
    struct error err;
    for (size_t i = 0; listed.rows && listed.held && i < count; i++) {
        const struct model_status *model = &models[i];
        if (!is_listed(model, list, only) ||
            (list > LIST_TASKS && listed.count &&
             !strcmp(listed.rows[listed.count - 1].name, model->name)))
            continue;
        listed.rows[listed.count] =
            (struct dialect_model){.name = model->name,
                                   .version = model->version,
                                   .task = words[model->task].roboflow,
                                   .shape = words[model->task].shape,
                                   .takes_points = model->task == TASK_MASKS,
                                   .width = model->width,
                                   .height = model->height};
        if (list > LIST_TASKS)
            add_labels(x, &listed);
        listed.count++;
    }
    if (*only && !listed.count) {
        respond_refusal(x, 404, "not_found",
                        "there is no function '%.120s'; GET /api/functions lists them", only);
    } else if (charge_answer(x, listed.bytes, &err) != STATUS_OK) {
        respond_error(x, &err);
    } else {
        char *text = models && listed.rows && listed.held ? write(listed.rows, listed.count) : NULL;
        respond_json(x, 200, text);
    }
    for (size_t i = 0; i < listed.count; i++)
        if (listed.held[i])
            model_host_release(x->server->options.model_host, listed.held[i]);
    FREE_ALL(listed.rows, listed.held, models);
}

static char *write_names(const struct dialect_model *models, size_t count)
{
    const struct deepstack_call call = {.command = "list", .when = time(NULL)};
    const char **names = alloc_array(count, sizeof *names);
    for (size_t i = 0; names && i < count; i++)
        names[i] = models[i].name;
    char *text = names ? deepstack_names_json(&call, "models", names, count) : NULL;
    free(names);
    return text;
}

void deepstack_ping_handle(struct exchange *x)
{
    const struct deepstack_call call = {.command = "ping", .when = time(NULL)};
    respond_json(x, 200, deepstack_done_json(&call, NULL, -1));
}

void deepstack_list_handle(struct exchange *x)
{
    respond_models(x, LIST_NAMES, "", write_names);
}

static void respond_labelled(struct exchange *x)
{
    if (x->route->dialect == &dialect_doods)
        respond_models(x, LIST_DETECTORS, "", doods_detectors_json);
    else if (x->match.model[0])
        respond_models(x, LIST_SHAPES, x->match.model, cvat_function_json);
    else
        respond_models(x, LIST_SHAPES, "", cvat_functions_json);
    exchange_resume(x);
}

/* Answers on an offload thread, because models may have many thousands of labels. */
void labelled_models_handle(struct exchange *x)
{
    exchange_wait(x, NULL, NULL);
    exchange_offload(x, SIZE_MAX, respond_labelled);
}

void roboflow_registry_handle(struct exchange *x)
{
    respond_models(x, LIST_TASKS, "", roboflow_models_json);
}

/* ---- KServe V1 ---- */

/* Adds the members of a model for OpenAI's clients. */
static void write_openai_model(struct writer *w, json_node *object, const char *name)
{
    write_members(w, object, "id=%s object=%s created=%d owned_by=%s", name, "model", 0, "lensd");
}

static bool is_in_path(const struct exchange *x, const struct model_status *model)
{
    return !strcmp(model->name, x->match.model) &&
           (!x->match.version[0] || !strcmp(model->version, x->match.version));
}

void kserve_model_handle(struct exchange *x)
{
    size_t count;
    bool is_ready = false, is_found = false;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    for (size_t i = 0; i < count; i++) {
        is_found |= is_in_path(x, &models[i]);
        is_ready |= is_in_path(x, &models[i]) && models[i].can_answer;
    }
    write_members(&w, w.root, "name=%s ready=%hhd", x->match.model, is_ready);
    write_openai_model(&w, w.root, x->match.model);
    json_node *list = write_array(&w, w.root, "model_version_status");
    for (size_t i = 0; i < count; i++) {
        const bool answers = models[i].can_answer;
        if (is_in_path(x, &models[i]))
            write_members(&w, list, "{version=%s state=%s status{error_code=%s error_message=%s}}",
                          models[i].version, answers ? "AVAILABLE" : "UNAVAILABLE",
                          answers ? "OK" : "UNKNOWN", answers ? "" : models[i].failure);
    }
    if (is_found && !is_ready)
        x->answer.retry_after_s = model_host_retry_after(x->server->options.model_host);
    respond_json(x, is_ready ? 200 : 503, write_finish(&w));
    if (models && !is_found)
        respond_refusal(x, 404, "not_found", "there is no model '%s'%s%s", x->match.model,
                        x->match.version[0] ? " of version " : "", x->match.version);
    free(models);
}

void kserve_models_handle(struct exchange *x)
{
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *names = write_array(&w, w.root, "models");
    write_text(&w, w.root, "object", "list");
    json_node *data = write_array(&w, w.root, "data");
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && !strcmp(models[i - 1].name, models[i].name))
            continue;
        write_text(&w, names, NULL, models[i].name);
        write_openai_model(&w, write_object(&w, data, NULL), models[i].name);
    }
    free(models);
    respond_json(x, 200, write_finish(&w));
}
