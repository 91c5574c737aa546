/* Lists models and status in other servers' APIs, and in KServe's V1 protocol. api_predict.c and
 * api_infer.c answer photos in these APIs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

/* Roboflow's name of a task, and CVAT's name of the shape of its answers; NULL if there is none. */
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

/* True if the API has a `word` for what the model answers to photos. */
static bool is_listed(const struct model_status *model, const char *word, bool needs_boxes)
{
    return model->can_answer && model->brief.takes_images && word &&
           (!needs_boxes || task_has_boxes(model->brief.task));
}

void deepstack_ping_handle(struct exchange *x)
{
    const struct deepstack_call call = {.command = "ping", .when = time(NULL)};
    respond_json(x, 200, deepstack_answer_json(&call, NULL, NULL, -1));
}

/* Lists detectors, and pipelines that begin with a detector. */
void deepstack_list_handle(struct exchange *x)
{
    const struct deepstack_call call = {.command = "list", .when = time(NULL)};
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    write_members(&w, w.root, "success=%hhd", true);
    json_node *list = write_array(&w, w.root, "models");
    for (size_t i = 0; i < count; i++)
        if (is_listed(&models[i], words[models[i].brief.task].roboflow, true))
            write_text(&w, list, NULL, models[i].name);
    free(models);
    deepstack_write_call(&w, &call);
    respond_json(x, 200, write_finish(&w));
}

/* Adds a model with its labels if it is loaded, to a list of DOODS or to CVAT's functions. With
 * `is_alone`, `list` itself becomes the function. */
static enum status write_labelled(struct exchange *x, struct writer *w, json_node *list,
                                  const struct model_status *model, bool is_alone,
                                  struct error *err)
{
    static const struct labels none;
    struct model_host *host = x->server->options.model_host;
    struct deployment *held = NULL;
    const bool takes_points = model->brief.task == TASK_MASKS;
    char name[256];
    struct error ignored;
    snprintf(name, sizeof name, "%s%s", model->name, takes_points ? MODEL_DECODER_ENDING : "");
    const bool is_loaded = model_host_acquire(host, name, NULL, &held, &ignored) == STATUS_OK;
    const struct labels *labels = is_loaded ? &held->model->labels : &none;
    const char *const *names = labels->names;
    const enum status status =
        charge_answer(x, labels->count * (labels->longest + LISTED_LABEL_BYTES), err);
    if (status == STATUS_OK && x->route->dialect == &dialect_doods) {
        json_node *entry = write_object(w, list, NULL);
        write_members(w, entry, "name=%s type=%s model=%s width=%d height=%d", model->name, "onnx",
                      model->name, model->brief.width, model->brief.height);
        write_texts(w, entry, "labels", names, labels->count);
    } else if (status == STATUS_OK) {
        const struct cvat_function function = {.name = model->name,
                                               .shape = words[model->brief.task].shape,
                                               .labels = names,
                                               .label_count = labels->count,
                                               .takes_points = takes_points,
                                               .takes_boxes =
                                                   is_loaded && held->model->prompt.takes_boxes};
        cvat_write_function(w, is_alone ? list : write_object(w, list, model->name), &function);
    }
    if (is_loaded)
        model_host_release(host, held);
    return status;
}

/* Lists each model once, but no pipelines: detectors for DOODS, models for whose shapes CVAT has a
 * name; or only the model in the path. */
static void respond_labelled(struct exchange *x)
{
    const bool is_doods = x->route->dialect == &dialect_doods;
    const char *only = x->match.model, *before = "";
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *list = is_doods ? write_array(&w, w.root, "detectors") : w.root;
    struct error err;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        const struct model_status *model = &models[i];
        const char *word =
            is_doods ? words[model->brief.task].roboflow : words[model->brief.task].shape;
        if (!is_listed(model, word, is_doods) || model->stage_count ||
            (*only && strcmp(model->name, only) != 0) || !strcmp(model->name, before))
            continue;
        before = model->name;
        status = write_labelled(x, &w, list, model, *only, &err);
    }
    respond_json(x, 200, write_finish(&w));
    if (status != STATUS_OK)
        respond_error(x, &err);
    else if (models && *only && !*before)
        respond_refusal(x, 404, "not_found",
                        "there is no function '%.120s'; GET /api/functions lists them", only);
    free(models);
    exchange_resume(x);
}

/* Answers on an offload thread, because models may have many thousands of labels. */
void labelled_models_handle(struct exchange *x)
{
    exchange_offload(x, SIZE_MAX, respond_labelled);
}

/* Lists each version of a model, and the newest one also without a version. */
void roboflow_registry_handle(struct exchange *x)
{
    const char *before = "";
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *list = write_array(&w, w.root, "models");
    for (size_t i = 0; i < count; i++) {
        const char *name = models[i].name, *word = words[models[i].brief.task].roboflow;
        char id[160];
        if (!is_listed(&models[i], word, false))
            continue;
        snprintf(id, sizeof id, "%s/%s", name, models[i].version);
        write_members(&w, list, "{model_id=%s task_type=%s}", id, word);
        if (strcmp(name, before) != 0)
            write_members(&w, list, "{model_id=%s task_type=%s}", name, word);
        before = name;
    }
    respond_json(x, 200, write_finish(&w));
    free(models);
}

/* ---- KServe V1 ---- */

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
