/* The documents of the Open Inference Protocol: server, models, statistics, repository and log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/json.h"
#include "proto/v2.h"
#include "proto/writer.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/loader/loader.h"
#include "server/observe/log.h"

static void respond_document(struct exchange *x, int http, enum v2_document document,
                             struct writer *w)
{
    size_t size = 0;
    char *text = v2_document(w, document, x->route->is_message, &size);
    respond_text(x, http, TYPE_JSON, text, size);
}

/* As in Triton, the HTTP status is 400 before the server is ready, and 503 while it shuts down. */
static void respond_flag(struct exchange *x, const char *name, enum v2_document flag, bool good)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, flag == V2_LIVE ? "name=%s live=%hhd" : "name=%s ready=%hhd", name,
                  good);
    int http = good || x->route->is_message ? 200 : atomic_load(&x->server->draining) ? 503 : 400;
    x->answer.retry_after_s = good ? 0 : model_host_retry_after(x->server->options.model_host);
    respond_document(x, http, flag, &w);
}

void v2_live_handle(struct exchange *x)
{
    respond_flag(x, NULL, V2_LIVE, true);
}

void v2_ready_handle(struct exchange *x)
{
    bool draining = atomic_load(&x->server->draining);
    respond_flag(x, NULL, V2_READY,
                 !draining &&
                     model_host_readiness(x->server->options.model_host) == MODEL_HOST_READY);
}

void v2_server_handle(struct exchange *x)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "name=%s version=%s extensions[%s %s %s %s %s %s]", "lensd",
                  LENSD_VERSION, "classification", "model_repository", "model_configuration",
                  "schedule_policy", "binary_tensor_data", "statistics");
    respond_document(x, 200, V2_SERVER, &w);
}

void v2_model_ready_handle(struct exchange *x)
{
    struct error err;
    struct model_host *model_host = x->server->options.model_host;
    enum status status =
        model_host_acquire(model_host, x->match.model, exchange_version(x), NULL, &err);
    if (status == STATUS_NOT_FOUND && !x->route->is_message) { /* Triton's gRPC says: not ready */
        respond_error(x, &err);
        return;
    }
    respond_flag(x, x->match.model, V2_READY,
                 status == STATUS_OK && !atomic_load(&x->server->draining));
    if (status == STATUS_NOT_READY) /* until this model is loaded, not until all models are */
        x->answer.retry_after_s = err.retry_after_s;
}

/* ---- metadata and configuration ---- */

/* Adds an input or output. If its shape depends on the data, the shape is the one that the model's
 * file declares, or [-1]. In the configuration the batch dimension is left out. */
static void write_tensor(struct writer *w, json_node *list, const struct deployment *deployment,
                         bool is_output, size_t i, bool is_config)
{
    const struct model *model = deployment->model;
    const struct served_tensor *tensor =
        is_output ? &deployment->outputs[i] : &deployment->inputs[i];
    const struct model_tensor *declared = is_output ? &model->outputs[i] : &model->inputs[i];
    const bool is_known = tensor->shape.rank != SHAPE_UNKNOWN;
    const struct shape *shape = is_known ? &tensor->shape : &declared->shape;
    char type[32];
    json_node *entry = write_object(w, list, NULL);
    snprintf(type, sizeof type, "%s%s", is_config ? "TYPE_" : "", dtype_oip_name(tensor->dtype));
    write_text(w, entry, "name", tensor->name);
    write_text(w, entry, is_config ? "data_type" : "datatype", type);
    if (is_config && !is_output)
        write_text(w, entry, "format",
                   i != deployment->image_input ? "FORMAT_NONE"
                   : model->input_channels_last ? "FORMAT_NHWC"
                                                : "FORMAT_NCHW");
    json_node *dims = write_array(w, entry, is_config ? "dims" : "shape");
    if (shape->rank == SHAPE_UNKNOWN)
        write_members(w, dims, "%d", -1);
    for (int d = is_config && deployment->has_rows; d < shape->rank; d++)
        write_members(w, dims, "%ld",
                      is_known && deployment->has_rows && d == 0 ? -1L : shape->dims[d]);
    if (is_config && is_output)
        write_text(w, entry, "label_filename",
                   model->labels.count > 0 && i == model->output ? "labels.txt" : "");
}

static void write_tensors(struct writer *w, json_node *root, const struct deployment *deployment,
                          bool is_config)
{
    json_node *list = write_array(w, root, is_config ? "input" : "inputs");
    for (size_t i = 0; i < deployment->input_count; i++)
        write_tensor(w, list, deployment, false, i, is_config);
    list = write_array(w, root, is_config ? "output" : "outputs");
    for (size_t i = 0; i < deployment->output_count; i++)
        write_tensor(w, list, deployment, true, i, is_config);
}

static bool is_version_of(const struct model_status *status, const struct model *model)
{
    return status->state == MODEL_READY && !strcmp(status->name, model->name);
}

static void write_metadata(struct writer *w, const struct deployment *deployment,
                           const struct model_status *models, size_t count)
{
    write_text(w, w->root, "name", deployment->model->name);
    json_node *versions = write_array(w, w->root, "versions");
    for (size_t i = 0; i < count; i++)
        if (is_version_of(&models[i], deployment->model))
            write_text(w, versions, NULL, models[i].version);
    write_text(w, w->root, "platform", "onnxruntime_onnx");
    write_tensors(w, w->root, deployment, false);
}

static void write_config(struct writer *w, json_node *config, const struct deployment *deployment,
                         const struct model_status *models, size_t count)
{
    const char *name = deployment->model->name, *kind = "KIND_CPU";
    const int batch = deployment->has_rows ? deployment->max_batch : 0;
    size_t versions = 0, lanes = 1;
    for (size_t i = 0; i < count; i++) {
        if (!is_version_of(&models[i], deployment->model))
            continue;
        versions++;
        lanes = models[i].lane_count;
        if (lanes && models[i].lanes[0].device.kind != DEVICE_CPU)
            kind = "KIND_GPU";
    }
    write_members(w, config,
                  "name=%s platform=%s backend=%s default_model_filename=%s "
                  "version_policy{latest{num_versions=%zu}} max_batch_size=%d",
                  name, "onnxruntime_onnx", "onnxruntime", "model.onnx", versions ? versions : 1,
                  batch);
    write_tensors(w, config, deployment, true);
    write_members(w, config, "instance_group[{name=%s kind=%s count=%zu}]", name, kind, lanes);
    if (batch > 1)
        write_members(w, config,
                      "dynamic_batching{preferred_batch_size[%d] max_queue_delay_microseconds=%d}",
                      batch, 0);
}

#define LABEL_BYTES 80 /* bytes that writing a label needs, in addition to its text */

static enum status respond_model(struct exchange *x, struct deployment **acquired,
                                 struct error *err)
{
    const struct deployment *deployment = *acquired;
    const enum v2_document document = (enum v2_document)x->route->document;
    const struct model *model = deployment->model;
    const struct labels *labels = &model->labels;
    if (document == V2_LABELS)
        TRY(charge_answer(x, labels->count * (labels->longest + LABEL_BYTES), err));
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    if (document == V2_METADATA) {
        write_metadata(&w, deployment, models, count);
    } else if (document == V2_CONFIG) {
        write_config(&w, x->route->is_message ? write_object(&w, w.root, "config") : w.root,
                     deployment, models, count);
    } else {
        write_members(&w, w.root, "model=%s version=%s", model->name, model->version);
        write_texts(&w, w.root, "labels", labels->names, labels->count);
    }
    free(models);
    respond_document(x, 200, document, &w);
    if (x->state == EXCHANGE_SUSPENDED)
        exchange_resume(x);
    return STATUS_OK;
}

/* Clients request a model's document before their first inference, so this loads the model. */
void v2_document_handle(struct exchange *x)
{
    if (submission_create(x, sizeof(struct predict_request), NULL, submission_free))
        submission_to_model(x, respond_model);
}

/* ---- statistics ---- */

static void write_count(struct writer *w, json_node *parent, const char *key,
                        struct deployment_count count)
{
    write_members(w, write_object(w, parent, key), "count=%lu ns=%lu", count.count, count.ns);
}

static void write_stats(struct writer *w, json_node *list, struct deployment *deployment,
                        const struct model_status *status)
{
    pthread_mutex_lock(&deployment->stats_lock);
    const struct deployment_stats stats = deployment->stats;
    pthread_mutex_unlock(&deployment->stats_lock);
    const struct {
        const char *key;
        struct deployment_count count;
    } counts[] = {{"success", stats.success},     {"fail", stats.fail},
                  {"queue", stats.queue},         {"compute_input", stats.input},
                  {"compute_infer", stats.infer}, {"compute_output", stats.output},
                  {"cache_hit", stats.cache_hit}, {"cache_miss", stats.cache_miss}};
    uint64_t bytes = 0;
    const char *memory = "CPU";
    for (size_t i = 0; i < status->lane_count; i++) {
        bytes += status->lanes[i].parameter_bytes + status->lanes[i].activation_bytes;
        if (status->lanes[i].device.kind != DEVICE_CPU)
            memory = "GPU";
    }
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry,
                  "name=%s version=%s last_inference=%lu inference_count=%lu execution_count=%lu",
                  status->name, status->version, stats.last_inference_ms, stats.inference_count,
                  stats.execution_count);
    json_node *inference = write_object(w, entry, "inference_stats");
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        write_count(w, inference, counts[i].key, counts[i].count);
    write_members(w, entry, "response_stats{}");
    json_node *batches = write_array(w, entry, "batch_stats");
    for (int size = 1; size <= BATCHER_MAX_BATCH; size++) {
        const struct deployment_batch *batch = &stats.batches[size];
        if (batch->infer.count == 0)
            continue;
        json_node *row = write_object(w, batches, NULL);
        write_members(w, row, "batch_size=%d", size);
        write_count(w, row, "compute_input", batch->input);
        write_count(w, row, "compute_infer", batch->infer);
        write_count(w, row, "compute_output", batch->output);
    }
    write_members(w, entry, "memory_usage[{type=%s id=%d byte_size=%lu}]", memory, 0, bytes);
}

static bool is_asked_for(const struct exchange *x, const struct model_status *model)
{
    return model->state == MODEL_READY && !model->stage_count && /* pipelines have no counts */
           (!x->match.model[0] || !strcmp(x->match.model, model->name)) &&
           (!x->match.version[0] || !strcmp(x->match.version, model->version));
}

void v2_stats_handle(struct exchange *x)
{
    struct model_host *model_host = x->server->options.model_host;
    size_t count;
    struct model_status *models = model_host_snapshot(model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *list = write_array(&w, w.root, "model_stats");
    struct deployment *deployment;
    struct error err;
    enum status status = STATUS_OK;
    bool is_empty = true;
    for (size_t i = 0; i < count; i++) {
        if (!is_asked_for(x, &models[i]) ||
            model_host_acquire(model_host, models[i].name, models[i].version, &deployment, &err) !=
                STATUS_OK)
            continue; /* or the version has been removed since */
        write_stats(&w, list, deployment, &models[i]);
        model_host_release(model_host, deployment);
        is_empty = false;
    }
    if (is_empty && x->match.model[0]) {
        status = refuse_pipeline(x, x->match.model, exchange_version(x), &err);
        IF_OK(status, model_host_acquire(model_host, x->match.model, exchange_version(x),
                                         &deployment, &err));
        if (status == STATUS_OK)
            model_host_release(model_host, deployment);
    }
    respond_document(x, 200, V2_STATISTICS, &w);
    if (status != STATUS_OK)
        respond_error(x, &err);
    free(models);
}

/* ---- the repository ---- */

void v2_index_handle(struct exchange *x)
{
    static const char *const states[] = {[MODEL_LOADING] = "LOADING",
                                         [MODEL_READY] = "READY",
                                         [MODEL_FAILED] = "UNAVAILABLE",
                                         [MODEL_UNLOADING] = "UNLOADING",
                                         [MODEL_UNLOADED] = "UNAVAILABLE"};
    static const char *const reasons[] = {
        [UNLOAD_NOT_YET] = "not loaded yet; the first request loads it",
        [UNLOAD_ASKED] = "unloaded",
        [UNLOAD_IDLE] = "unloaded because it was idle; the next request loads it",
        [UNLOAD_MEMORY] = "unloaded because another model needed its memory; the next request "
                          "loads it"};
    const struct json_limits limits = {x->server->options.max_json_depth, 100};
    struct error err;
    bool ready_only;
    if (respond_if_long(x))
        return;
    const enum status status =
        x->route->is_message
            ? v2_index_unpack(x->body.data, x->body.size, &ready_only, &err)
            : v2_index_parse(x->body.data, x->body.size, &limits, &ready_only, &err);
    if (status != STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *list = write_array(&w, w.root, "models");
    for (size_t i = 0; i < count; i++) {
        const struct model_status *model = &models[i];
        const bool has_cause = model->state == MODEL_UNLOADED && !model->failure[0];
        if (!ready_only || model->state == MODEL_READY)
            write_members(&w, list, "{name=%s version=%s state=%s reason=%s}", model->name,
                          model->version, states[model->state],
                          has_cause ? reasons[model->cause] : model->failure);
    }
    free(models);
    respond_document(x, 200, V2_INDEX, &w);
}

/* Runs on the loader's thread. */
static void repository_done(void *context, enum status status, const struct error *err)
{
    struct exchange *x = context;
    if (status == STATUS_OK) /* as in Triton, the answer has no content */
        respond_json(x, 200, strdup(x->route->is_message ? "" : "{}\n"));
    else
        respond_error(x, err);
    exchange_resume(x);
}

/* True if the request has a file or a configuration, which is refused: clients only name models. */
static bool has_override(const struct exchange *x)
{
    const char *body = (const char *)x->body.data;
    return body && x->body.size > 0 &&
           (memmem(body, x->body.size, "\"config\"", 8) ||
            memmem(body, x->body.size, "\"file:", 6));
}

/* For admins. The answer comes from the loader. */
static void repository_submit(struct exchange *x, enum loader_job job)
{
    struct error err;
    struct loader *loader = x->server->options.loader;
    bool overrides;
    if (respond_if_long(x))
        return;
    if (!x->route->is_message) {
        overrides = job == LOADER_LOAD && has_override(x);
    } else if (v2_repository_unpack(x->body.data, x->body.size, x->match.model, &overrides, &err) !=
               STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    if (overrides) {
        respond_refusal(x, 400, "invalid_request",
                        "models are loaded only from the repository; leave out the parameters "
                        "\"config\" and \"file:\"");
        return;
    }
    if (!loader) {
        error_set(&err, STATUS_NOT_READY, "this server loads no models");
        respond_error(x, &err);
        return;
    }
    exchange_wait(x, NULL, NULL);
    if (loader_submit(loader, job, x->match.model, repository_done, x, &err) == STATUS_OK)
        return;
    respond_error(x, &err);
    exchange_resume(x);
}

void v2_load_handle(struct exchange *x)
{
    repository_submit(x, LOADER_LOAD);
}

void v2_unload_handle(struct exchange *x)
{
    repository_submit(x, LOADER_UNLOAD);
}

/* ---- the log, at run time ---- */

static struct logging_settings logging_current(void)
{
    enum log_level lowest = log_lowest;
    return (struct logging_settings){.error = true,
                                     .warning = lowest <= LOG_WARN,
                                     .info = lowest <= LOG_INFO,
                                     .verbose = lowest <= LOG_DEBUG,
                                     .as_json = log_as_json};
}

static void logging_change(struct exchange *x, const struct logging_settings *wanted)
{
    enum log_level lowest = wanted->verbose > 0 ? LOG_DEBUG
                            : wanted->info      ? LOG_INFO
                            : wanted->warning   ? LOG_WARN
                                                : LOG_ERROR;
    /* Log with the more verbose of both levels, so that the line appears if one shows info. */
    enum log_level before = log_lowest;
    log_lowest = lowest < before ? lowest : before;
    log_event(LOG_INFO, "log", LOG_STR("level", log_level_name(lowest)),
              LOG_STR("format", wanted->as_json ? "json" : "text"),
              LOG_STR("by", exchange_client(x)));
    log_as_json = wanted->as_json;
    log_lowest = lowest;
}

void logging_handle(struct exchange *x)
{
    struct error err;
    struct logging_settings settings = logging_current();
    if (x->method[0] == 'P') {
        if (respond_if_long(x))
            return;
        if (logging_json_read((const char *)x->body.data, x->body.size, &settings, &err) !=
            STATUS_OK) {
            respond_error(x, &err);
            return;
        }
        logging_change(x, &settings);
    }
    settings = logging_current();
    respond_json(x, 200, logging_json(&settings));
}
