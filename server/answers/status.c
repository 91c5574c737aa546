/* Writes /health and /devices from a snapshot of the models. */
#include "server/answers/status.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/writer.h"

/* A snapshot of the models; NULL when out of memory. */
static struct model_status *take_snapshot(struct model_host *model_host, size_t *ret_count)
{
    struct model_status *models = alloc_array(MODEL_HOST_MAX_MODELS, sizeof *models);
    *ret_count =
        models && model_host ? model_host_models(model_host, models, MODEL_HOST_MAX_MODELS) : 0;
    return models;
}

/* Writes nothing where there is no text. */
static void write_given(struct writer *w, json_node *parent, const char *key, const char *text)
{
    if (text && text[0])
        write_text(w, parent, key, text);
}

static void write_positive(struct writer *w, json_node *parent, const char *key, long long number)
{
    if (number > 0)
        write_integer(w, parent, key, number);
}

/* Nothing for a model that is no pipeline. */
static void write_stages(struct writer *w, json_node *entry, const struct model_status *model)
{
    json_node *list = model->stage_count ? write_array(w, entry, "stages") : NULL;
    for (size_t i = 0; i < model->stage_count; i++)
        write_text(w, list, NULL, model->stages[i]);
}

/* ---- /health ---- */

const char *status_state(struct model_host *model_host, bool draining)
{
    static const char *const states[] = {
        [MODEL_HOST_LOADING] = "loading",   [MODEL_HOST_READY] = "ready",
        [MODEL_HOST_DRAINING] = "draining", [MODEL_HOST_FAILED] = "failed",
        [MODEL_HOST_STUCK] = "stuck",       [MODEL_HOST_UNLOADED] = "unloaded"};
    return states[draining ? MODEL_HOST_DRAINING : model_host_readiness(model_host)];
}

/* The devices that are quarantined for one model. */
static void write_quarantines(struct writer *w, json_node *entry, const struct model_status *model)
{
    json_node *list = NULL;
    char id[DEVICE_TEXT];
    for (size_t i = 0; i < model->lane_count; i++) {
        if (!model->health[i].is_quarantined && !model->health[i].is_stuck)
            continue;
        if (!list)
            list = write_array(w, entry, "quarantined");
        json_node *row = write_object(w, list, NULL);
        write_text(w, row, "device", device_text(model->lanes[i].device, id));
        write_text(w, row, "reason", model->health[i].reason);
        write_decimal(w, row, "seconds", model->health[i].quarantined_s);
    }
}

static void write_health_model(struct writer *w, json_node *list, const struct model_status *model)
{
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", model->name);
    write_text(w, entry, "version", model->version);
    write_text(w, entry, "state", model_state_name(model->state));
    write_decimal(w, entry, "progress", model->progress);
    if (model->state == MODEL_LOADING && model->phase) {
        write_text(w, entry, "phase", model->phase);
        write_integer(w, entry, "seconds_left", model->seconds_left);
    }
    write_bool(w, entry, "default", model->is_default);
    if (model->lane_count)
        write_text(w, entry, "precision", precision_name(model->lanes[0].precision));
    write_stages(w, entry, model);
    write_given(w, entry, "error", model->failure);
    write_quarantines(w, entry, model);
    write_count(w, entry, "queued", model->queued);
    write_count(w, entry, "in_flight", model->in_flight);
}

char *status_health_json(struct model_host *model_host, bool draining, double uptime_s,
                         const char *note, const char *confinement, size_t *ret_size)
{
    size_t count;
    struct model_status *models = take_snapshot(model_host, &count);
    const char *formats[IMAGE_FORMATS], *state = status_state(model_host, draining);
    const size_t format_count = image_formats(formats);
    struct writer w = {.failed = !models};
    json_node *root = write_root();
    write_text(&w, root, "status", state);
    write_bool(&w, root, "ready", !strcmp(state, "ready"));
    write_text(&w, root, "version", LENSD_VERSION);
    write_decimal(&w, root, "uptime_seconds", uptime_s);
    write_given(&w, root, "note", note);
    write_given(&w, root, "confinement", confinement);
    json_node *list = write_array(&w, root, "formats");
    for (size_t i = 0; i < format_count; i++)
        write_text(&w, list, NULL, formats[i]);
    list = write_array(&w, root, "models");
    for (size_t i = 0; i < count; i++)
        write_health_model(&w, list, &models[i]);
    free(models);
    return write_finish(&w, root, ret_size);
}

/* ---- /devices ---- */

static void write_trial(struct writer *w, json_node *list, const struct precision_trial *trial)
{
    const struct agreement *a = &trial->agreement;
    json_node *row = write_object(w, list, NULL);
    write_text(w, row, "precision", precision_name(trial->precision));
    write_text(w, row, "outcome", trial_outcome_name(trial->outcome));
    write_decimal(w, row, "times_fp32", trial->speed);
    write_decimal(w, row, "one_ms", trial->one_ms);
    write_decimal(w, row, "fp32_one_ms", trial->fp32_one_ms);
    write_decimal(w, row, "image_ms", trial->image_ms);
    write_decimal(w, row, "fp32_image_ms", trial->fp32_image_ms);
    write_integer(w, row, "images", a->images);
    write_count(w, row, "clear", a->clear);
    write_count(w, row, "agreeing", a->agreeing);
    write_text(w, row, "difference_of", a->is_vector ? "probability" : "relative");
    write_float(w, row, "mean_difference", (float)a->mean);
    write_float(w, row, "greatest_difference", (float)a->greatest);
    if (a->is_vector && a->correlation != 0)
        write_float(w, row, "correlation", (float)a->correlation);
}

static void write_choice(struct writer *w, json_node *entry, const struct precision_choice *choice)
{
    if (!choice->why[0])
        return;
    json_node *object = write_object(w, entry, "precision_choice");
    write_text(w, object, "origin", choice_origin_name(choice->origin));
    write_text(w, object, "why", choice->why);
    if (choice->trial_count == 0)
        return;
    write_integer(w, object, "calibration_images", choice->from_folder);
    json_node *trials = write_array(w, object, "trials");
    for (size_t i = 0; i < choice->trial_count; i++)
        write_trial(w, trials, &choice->trials[i]);
}

static void write_batches(struct writer *w, json_node *entry, const struct session_info *session)
{
    json_node *list = write_array(w, entry, "batches");
    for (size_t i = 0; i < session->batch_count; i++) {
        const struct session_batch *batch = &session->batches[i];
        json_node *row = write_object(w, list, NULL);
        write_integer(w, row, "size", batch->size);
        write_decimal(w, row, "milliseconds", batch->milliseconds);
        write_count(w, row, "activation_bytes", batch->activation_bytes);
    }
}

static void write_lane(struct writer *w, json_node *list, const struct model_status *model,
                       size_t lane)
{
    const struct session_info *session = &model->lanes[lane];
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", model->name);
    write_text(w, entry, "version", model->version);
    write_text(w, entry, "task", task_name(model->task));
    write_text(w, entry, "task_evidence", model->task_evidence);
    write_text(w, entry, "precision", precision_name(session->precision));
    write_choice(w, entry, &model->choices[session->device.kind]);
    write_positive(w, entry, "threads", session->threads);
    write_count(w, entry, "parameter_bytes", session->parameter_bytes);
    write_count(w, entry, "activation_bytes", session->activation_bytes);
    write_bool(w, entry, "batched", session->batched);
    write_given(w, entry, "note",
                model->is_first ? "single images for now; batches and measured kernels follow"
                                : session->note);
    if (model->health[lane].is_quarantined)
        write_given(w, entry, "quarantined", model->health[lane].reason);
    write_batches(w, entry, session);
}

static void write_memory(struct writer *w, json_node *entry, const struct device_info *device,
                         struct model_host *model_host)
{
    size_t limit = 0;
    const size_t used = model_host ? model_host_memory(model_host, device->id, &limit) : 0;
    json_node *memory = write_object(w, entry, "memory");
    write_count(w, memory, "total_bytes", device->total_bytes);
    write_count(w, memory, "free_bytes", device->free_bytes);
    write_count(w, memory, "used_by_lensd_bytes", used);
    if (limit > 0)
        write_count(w, memory, "limit_bytes", limit);
}

static bool is_on(const struct session_info *lane, struct device_id device)
{
    return lane->device.kind == device.kind && lane->device.index == device.index;
}

static void write_device(struct writer *w, json_node *list, const struct device_info *device,
                         const struct model_status *models, size_t model_count,
                         struct model_host *model_host)
{
    char id[DEVICE_TEXT];
    bool is_used = false;
    for (size_t m = 0; m < model_count; m++)
        for (size_t k = 0; k < models[m].lane_count; k++)
            is_used |= is_on(&models[m].lanes[k], device->id);
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "id", device_text(device->id, id));
    write_text(w, entry, "name", device->name);
    write_bool(w, entry, "usable", device->usable);
    if (!device->usable) {
        write_text(w, entry, "reason", device->reason[0] ? device->reason : "unknown");
        if (!is_used) /* the models of a device that has failed are still shown */
            return;
    }
    write_memory(w, entry, device, model_host);
    write_positive(w, entry, "threads", device->threads);
    write_positive(w, entry, "cores", device->cores);
    write_given(w, entry, "isa", device->isa);
    json_node *precisions = write_array(w, entry, "fast_precisions");
    write_text(w, precisions, NULL, "fp32");
    write_given(w, precisions, NULL, device->bf16 ? "bf16" : "");
    write_given(w, precisions, NULL, device->fp16 ? "fp16" : "");
    write_given(w, precisions, NULL, device->int8 ? "int8" : "");
    json_node *lanes = write_array(w, entry, "models");
    for (size_t m = 0; m < model_count; m++)
        for (size_t k = 0; k < models[m].lane_count; k++)
            if (is_on(&models[m].lanes[k], device->id))
                write_lane(w, lanes, &models[m], k);
}

char *status_devices_json(struct model_host *model_host, const char *note, size_t *ret_size)
{
    struct device_info devices[DEVICE_MAX];
    const size_t device_count = device_list(devices, DEVICE_MAX);
    size_t count;
    struct model_status *models = take_snapshot(model_host, &count);
    struct writer w = {.failed = !models};
    json_node *root = write_root(), *pipelines = NULL;
    json_node *list = write_array(&w, root, "devices");
    for (size_t i = 0; i < device_count; i++)
        write_device(&w, list, &devices[i], models, count, model_host);
    for (size_t i = 0; i < count; i++) {
        if (!models[i].stage_count)
            continue;
        if (!pipelines)
            pipelines = write_array(&w, root, "pipelines");
        json_node *entry = write_object(&w, pipelines, NULL);
        write_text(&w, entry, "name", models[i].name);
        write_stages(&w, entry, &models[i]);
    }
    write_given(&w, root, "note", note);
    free(models);
    return write_finish(&w, root, ret_size);
}
