/* Writes /health and /devices from a snapshot of the models. */
#include "server/answers/status.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/writer.h"

/* Returns a snapshot of the models (empty without a model host), or NULL when out of memory. */
static struct model_status *take_snapshot(struct model_host *model_host, size_t *ret_count)
{
    *ret_count = 0;
    return model_host ? model_host_snapshot(model_host, ret_count)
                      : alloc_array(1, sizeof(struct model_status));
}

/* Writes nothing if the model is not a pipeline. */
static void write_stages(struct writer *w, json_node *entry, const struct model_status *model)
{
    json_node *list = model->stage_count ? write_array(w, entry, "stages") : NULL;
    for (size_t i = 0; i < model->stage_count; i++)
        write_text(w, list, NULL, model->stages[i]);
}

const char *status_state(struct model_host *model_host, bool draining)
{
    static const char *const states[] = {
        [MODEL_HOST_LOADING] = "loading",   [MODEL_HOST_READY] = "ready",
        [MODEL_HOST_DRAINING] = "draining", [MODEL_HOST_FAILED] = "failed",
        [MODEL_HOST_STUCK] = "stuck",       [MODEL_HOST_UNLOADED] = "unloaded"};
    return states[draining ? MODEL_HOST_DRAINING : model_host_readiness(model_host)];
}

/* Lists the devices that are quarantined or stuck for one model. */
static void write_quarantines(struct writer *w, json_node *entry, const struct model_status *model)
{
    json_node *list = NULL;
    for (size_t i = 0; i < model->lane_count; i++) {
        if (!model->health[i].is_quarantined && !model->health[i].is_stuck)
            continue;
        if (!list)
            list = write_array(w, entry, "quarantined");
        write_members(w, list, "{device=%s reason=%s seconds=%.3f}",
                      DEVICE_STRING(model->lanes[i].device), model->health[i].reason,
                      model->health[i].quarantined_s);
    }
}

/* Returns why a model is not loaded; "" for other models. */
static const char *unloaded_cause(const struct model_status *model)
{
    return model->state == MODEL_UNLOADED ? unload_cause_name(model->cause) : "";
}

static void write_health_model(struct writer *w, json_node *list, const struct model_status *model)
{
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry, "name=%s version=%s state=%s progress=%.3f", model->name,
                  model->version, model_state_name(model->state), model->progress);
    if (model->state == MODEL_LOADING && model->phase)
        write_members(w, entry, "phase=%s seconds_left=%d", model->phase, model->seconds_left);
    write_members(w, entry, "cause?=%s default=%hhd stale=%hhd", unloaded_cause(model),
                  model->is_default, model->state == MODEL_READY && model->failure[0]);
    if (model->lane_count)
        write_text(w, entry, "precision", precision_name(model->lanes[0].precision));
    write_stages(w, entry, model);
    write_members(w, entry, "error?=%s", model->failure);
    write_quarantines(w, entry, model);
    write_members(w, entry, "queued=%zu in_flight=%zu", model->queued, model->in_flight);
}

char *status_health_json(struct model_host *model_host, bool draining, double uptime_s,
                         const char *note, const char *confinement)
{
    size_t count;
    struct model_status *models = take_snapshot(model_host, &count);
    const char *formats[IMAGE_FORMATS], *state = status_state(model_host, draining);
    const size_t format_count = image_formats(formats);
    struct writer w = {.root = write_root(), .failed = !models};
    write_members(&w, w.root,
                  "status=%s ready=%hhd version=%s uptime_seconds=%.3f note?=%s confinement?=%s "
                  "sizes_left?=%zu",
                  state, !strcmp(state, "ready"), LENSD_VERSION, uptime_s, note, confinement,
                  model_host_sizes_left(model_host));
    write_texts(&w, w.root, "formats", formats, format_count);
    json_node *list = write_array(&w, w.root, "models");
    for (size_t i = 0; i < count; i++)
        write_health_model(&w, list, &models[i]);
    free(models);
    return write_finish(&w);
}

static void write_trial(struct writer *w, json_node *list, const struct precision_trial *trial)
{
    const struct agreement *a = &trial->agreement;
    json_node *row = write_object(w, list, NULL);
    write_members(w, row,
                  "precision=%s outcome=%s times_fp32=%.3f one_ms=%.3f fp32_one_ms=%.3f "
                  "image_ms=%.3f fp32_image_ms=%.3f",
                  precision_name(trial->precision), trial_outcome_name(trial->outcome),
                  trial->speed, trial->one_ms, trial->fp32_one_ms, trial->image_ms,
                  trial->fp32_image_ms);
    write_members(w, row,
                  "images=%d clear=%zu agreeing=%zu difference_of=%s mean_difference=%g "
                  "greatest_difference=%g",
                  a->images, a->clear, a->agreeing, a->is_vector ? "probability" : "relative",
                  a->mean, a->greatest);
    if (a->is_vector && a->correlation != 0)
        write_float(w, row, "correlation", (float)a->correlation);
}

static void write_choice(struct writer *w, json_node *entry, const struct precision_choice *choice)
{
    if (!choice->why[0])
        return;
    json_node *object = write_object(w, entry, "precision_choice");
    write_members(w, object, "origin=%s why=%s", choice_origin_name(choice->origin), choice->why);
    if (choice->trial_count == 0)
        return;
    write_members(w, object, "calibration_images=%d", choice->from_folder);
    json_node *trials = write_array(w, object, "trials");
    for (size_t i = 0; i < choice->trial_count; i++)
        write_trial(w, trials, &choice->trials[i]);
}

static void write_batches(struct writer *w, json_node *entry, const struct session_info *session)
{
    json_node *list = write_array(w, entry, "batches");
    for (size_t i = 0; i < session->batch_count; i++) {
        const struct session_batch *batch = &session->batches[i];
        write_members(w, list, "{size=%d milliseconds=%.3f activation_bytes=%zu}", batch->size,
                      batch->milliseconds, batch->activation_bytes);
    }
}

static void write_lane(struct writer *w, json_node *list, const struct model_status *model,
                       size_t lane)
{
    const struct session_info *session = &model->lanes[lane];
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry, "name=%s version=%s task=%s task_evidence=%s precision=%s", model->name,
                  model->version, task_name(model->brief.task), model->brief.task_evidence,
                  precision_name(session->precision));
    write_choice(w, entry, &model->choices[session->device.kind]);
    write_members(w, entry,
                  "threads?=%d parameter_bytes=%zu activation_bytes=%zu batched=%hhd note?=%s "
                  "quarantined?=%s",
                  session->threads, session->parameter_bytes, session->activation_bytes,
                  session->batched, session->note,
                  model->health[lane].is_quarantined ? model->health[lane].reason : "");
    write_batches(w, entry, session);
}

static void write_memory(struct writer *w, json_node *entry, const struct device_info *device,
                         struct model_host *model_host)
{
    size_t limit = 0;
    const size_t used = model_host ? model_host_memory(model_host, device->id, &limit) : 0;
    write_members(w, entry,
                  "memory{total_bytes=%zu free_bytes=%zu used_by_lensd_bytes=%zu limit_bytes?=%zu}",
                  device->total_bytes, device->free_bytes, used, limit);
}

static void write_device(struct writer *w, json_node *list, const struct device_info *device,
                         const struct model_status *models, size_t model_count,
                         struct model_host *model_host)
{
    bool is_used = false;
    for (size_t m = 0; m < model_count; m++)
        for (size_t k = 0; k < models[m].lane_count; k++)
            is_used |= device_equal(models[m].lanes[k].device, device->id);
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry, "id=%s name=%s usable=%hhd", DEVICE_STRING(device->id), device->name,
                  device->usable);
    if (!device->usable) {
        write_text(w, entry, "reason", device->reason[0] ? device->reason : "unknown");
        if (!is_used) /* a failed device is described further if models use it */
            return;
    }
    write_memory(w, entry, device, model_host);
    write_members(w, entry, "threads?=%d cores?=%d isa?=%s fast_precisions[%s ?=%s ?=%s ?=%s]",
                  device->threads, device->cores, device->isa, "fp32", device->bf16 ? "bf16" : "",
                  device->fp16 ? "fp16" : "", device->int8 ? "int8" : "");
    json_node *lanes = write_array(w, entry, "models");
    for (size_t m = 0; m < model_count; m++)
        for (size_t k = 0; k < models[m].lane_count; k++)
            if (device_equal(models[m].lanes[k].device, device->id))
                write_lane(w, lanes, &models[m], k);
}

char *status_devices_json(struct model_host *model_host, const char *note)
{
    struct device_info devices[DEVICE_MAX];
    const size_t device_count = device_list(devices, DEVICE_MAX);
    size_t count;
    struct model_status *models = take_snapshot(model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *pipelines = NULL, *unloaded = NULL;
    json_node *list = write_array(&w, w.root, "devices");
    for (size_t i = 0; i < device_count; i++)
        write_device(&w, list, &devices[i], models, count, model_host);
    for (size_t i = 0; i < count; i++) {
        if (models[i].lane_count == 0 && !models[i].stage_count && models[i].can_answer) {
            if (!unloaded)
                unloaded = write_array(&w, w.root, "unloaded");
            write_members(&w, write_object(&w, unloaded, NULL),
                          "name=%s version=%s task=%s task_evidence=%s state=%s cause?=%s",
                          models[i].name, models[i].version, task_name(models[i].brief.task),
                          models[i].brief.task_evidence, model_state_name(models[i].state),
                          unloaded_cause(&models[i]));
        }
        if (!models[i].stage_count)
            continue;
        if (!pipelines)
            pipelines = write_array(&w, w.root, "pipelines");
        json_node *entry = write_object(&w, pipelines, NULL);
        write_text(&w, entry, "name", models[i].name);
        write_stages(&w, entry, &models[i]);
    }
    write_members(&w, w.root, "note?=%s", note);
    free(models);
    return write_finish(&w);
}
