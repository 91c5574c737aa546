/* The metadata documents of the Open Inference Protocol: server, models, statistics. */
#include <string.h>

#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/v2.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

/* As in Triton, the HTTP status is 400 before the server is ready, and 503 while it shuts down. */
static void respond_flag(struct exchange *x, const char *name, const char *flag, bool good)
{
    size_t size = 0;
    const bool is_message = x->route->is_message;
    char *text = v2_flag_document(is_message, name, flag, good, &size);
    int http = good || is_message ? 200 : atomic_load(&x->server->draining) ? 503 : 400;
    x->answer.retry_after_s = good ? 0 : model_host_retry_after(x->server->options.model_host);
    respond_text(x, http, TYPE_JSON, text, size);
}

void v2_live_handle(struct exchange *x)
{
    respond_flag(x, NULL, "live", true);
}

void v2_ready_handle(struct exchange *x)
{
    bool draining = atomic_load(&x->server->draining);
    respond_flag(x, NULL, "ready",
                 !draining &&
                     model_host_readiness(x->server->options.model_host) == MODEL_HOST_READY);
}

void v2_server_handle(struct exchange *x)
{
    size_t size = 0;
    char *text = v2_server_document(x->route->is_message, "lensd", LENSD_VERSION, &size);
    respond_text(x, 200, TYPE_JSON, text, size);
}

void v2_model_ready_handle(struct exchange *x)
{
    struct error err;
    int retry_after_s = 0;
    struct model_host *model_host = x->server->options.model_host;
    enum status status = model_host_acquire(model_host, x->match.model, exchange_version(x), NULL,
                                            &retry_after_s, &err);
    if (status == STATUS_NOT_FOUND && !x->route->is_message) { /* Triton's gRPC says: not ready */
        respond_error(x, &err);
        return;
    }
    respond_flag(x, x->match.model, "ready",
                 status == STATUS_OK && !atomic_load(&x->server->draining));
    if (retry_after_s > 0) /* until this model is loaded, not until all models are */
        x->answer.retry_after_s = retry_after_s;
}

/* ---- metadata and configuration ---- */

/* Lists names, types and shapes. If a tensor's shape depends on the data, lists the shape in
 * `declared`, the tensors as the model's file declares them. */
static struct v2_tensor *describe_tensors(const struct deployment *deployment,
                                          const struct served_tensor *tensors,
                                          const struct model_tensor *declared, size_t count)
{
    struct v2_tensor *list = alloc_array(count, sizeof *list);
    for (size_t i = 0; list && i < count; i++) {
        list[i] = (struct v2_tensor){tensors[i].name, tensors[i].dtype, tensors[i].shape};
        if (list[i].shape.rank == SHAPE_UNKNOWN)
            list[i].shape = declared[i].shape;
        else if (deployment->has_rows && list[i].shape.rank >= 1)
            list[i].shape.dims[0] = -1;
    }
    return list;
}

#define LABEL_BYTES 80 /* bytes that writing a label needs, in addition to its text */

static char *describe_model(struct exchange *x, const struct deployment *deployment,
                            size_t *ret_size)
{
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    const char **versions = alloc_array(count, sizeof *versions);
    struct v2_tensor *inputs = describe_tensors(deployment, deployment->inputs,
                                                deployment->model->inputs, deployment->input_count);
    struct v2_tensor *outputs = describe_tensors(
        deployment, deployment->outputs, deployment->model->outputs, deployment->output_count);
    char *text = NULL;
    if (models && versions && inputs && outputs) {
        struct v2_model model = {.name = deployment->model->name,
                                 .version = deployment->model->version,
                                 .versions = versions,
                                 .inputs = inputs,
                                 .outputs = outputs,
                                 .input_count = deployment->input_count,
                                 .output_count = deployment->output_count,
                                 .max_batch_size = deployment->has_rows ? deployment->max_batch : 0,
                                 .image_input = deployment->image_input,
                                 .channels_last = deployment->model->input_channels_last,
                                 .has_labels = deployment->model->labels.count > 0,
                                 .label_output = deployment->model->output,
                                 .instance_count = 1,
                                 .instance_kind = "KIND_CPU",
                                 .labels = (const char *const *)deployment->model->labels.names,
                                 .label_count = deployment->model->labels.count};
        for (size_t i = 0; i < count; i++) {
            if (strcmp(models[i].name, model.name) != 0 || models[i].state != MODEL_READY)
                continue;
            versions[model.version_count++] = models[i].version;
            model.instance_count = models[i].lane_count;
            if (models[i].lane_count && models[i].lanes[0].device.kind != DEVICE_CPU)
                model.instance_kind = "KIND_GPU";
        }
        text = x->route->document(x->route->is_message, &model, ret_size);
    }
    FREE_ALL(inputs, outputs, versions, models);
    return text;
}

static void answer_document(struct exchange *x)
{
    struct model_host *model_host = x->server->options.model_host;
    struct deployment *deployment;
    struct error err;
    if (refuse_pipeline(x, x->match.model, exchange_version(x), &err) != STATUS_OK ||
        model_host_acquire(model_host, x->match.model, exchange_version(x), &deployment,
                           &x->answer.retry_after_s, &err) != STATUS_OK) {
        respond_error(x, &err);
    } else {
        size_t size = 0;
        const struct labels *labels = &deployment->model->labels;
        const size_t each = labels->longest + LABEL_BYTES;
        const bool fits = x->route->document != v2_labels_document ||
                          charge_answer(x, labels->count * each, &err) == STATUS_OK;
        char *text = fits ? describe_model(x, deployment, &size) : NULL;
        model_host_release(model_host, deployment);
        if (fits)
            respond_text(x, 200, TYPE_JSON, text, size);
        else
            respond_error(x, &err);
    }
    if (x->state == EXCHANGE_SUSPENDED)
        exchange_resume(x);
}

/* Clients request a model's document before their first inference, so this loads the model. */
void v2_document_handle(struct exchange *x)
{
    (void)submission_create(x, sizeof(struct predict_request), NULL, submission_free);
    submission_when_named(x, answer_document);
}

/* ---- statistics ---- */

static void read_stats(struct deployment *deployment, const struct model_status *status,
                       struct v2_stats *ret)
{
    pthread_mutex_lock(&deployment->stats_lock);
    *ret = deployment->stats;
    pthread_mutex_unlock(&deployment->stats_lock);
    ret->name = status->name;
    ret->version = status->version;
    ret->memory_type = "CPU";
    for (size_t i = 0; i < status->lane_count; i++) {
        ret->memory_bytes += status->lanes[i].parameter_bytes + status->lanes[i].activation_bytes;
        if (status->lanes[i].device.kind != DEVICE_CPU)
            ret->memory_type = "GPU";
    }
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
    size_t count, filled = 0, size = 0;
    struct model_status *models = model_host_snapshot(model_host, &count);
    struct v2_stats *stats = alloc_array(count, sizeof *stats);
    struct error err = {0};
    enum status status = STATUS_OK;
    for (size_t i = 0; models && stats && i < count; i++) {
        struct deployment *deployment;
        if (!is_asked_for(x, &models[i]))
            continue;
        status = model_host_acquire(model_host, models[i].name, models[i].version, &deployment,
                                    NULL, &err);
        if (status != STATUS_OK)
            continue; /* the version has been removed since */
        read_stats(deployment, &models[i], &stats[filled++]);
        model_host_release(model_host, deployment);
    }
    if (filled == 0 && x->match.model[0]) {
        struct deployment *deployment;
        status = refuse_pipeline(x, x->match.model, exchange_version(x), &err);
        IF_OK(status, model_host_acquire(model_host, x->match.model, exchange_version(x),
                                         &deployment, &x->answer.retry_after_s, &err));
        if (status == STATUS_OK)
            model_host_release(model_host, deployment);
    }
    if (filled == 0 && x->match.model[0] && status != STATUS_OK) {
        respond_error(x, &err);
    } else {
        char *text =
            models && stats ? v2_stats_document(x->route->is_message, stats, filled, &size) : NULL;
        respond_text(x, 200, TYPE_JSON, text, size);
    }
    FREE_ALL(stats, models);
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
    size_t count, filled = 0, size = 0;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct v2_index_entry *entries = alloc_array(count, sizeof *entries);
    for (size_t i = 0; models && entries && i < count; i++) {
        if (ready_only && models[i].state != MODEL_READY)
            continue;
        entries[filled++] = (struct v2_index_entry){
            models[i].name, models[i].version, states[models[i].state],
            models[i].failure[0] || models[i].state != MODEL_UNLOADED ? models[i].failure
                                                                      : reasons[models[i].cause]};
    }
    char *text =
        models && entries ? v2_index_document(x->route->is_message, entries, filled, &size) : NULL;
    respond_text(x, 200, TYPE_JSON, text, size);
    FREE_ALL(entries, models);
}
