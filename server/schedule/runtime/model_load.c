/* Adds models to the table: builds a deployment, then switches the table to it. A served model gets
 * a faster precision in the same way. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/model_table.h"

struct loading {
    struct model_host *host;
    const char *name, *version;
    bool is_change; /* only the precision of a served version changes */
    int64_t begun;
};

static void on_progress(void *context, const char *phase, double fraction)
{
    const struct loading *loading = context;
    struct model_host *host = loading->host;
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = table_find_announced_locked(host, loading->name, loading->version);
    if (entry && entry->state == MODEL_LOADING) {
        if (entry->progress == 0)
            entry->begun = clock_now();
        entry->progress = fraction > entry->progress ? fraction : entry->progress;
        entry->phase = phase;
    }
    table_settle_and_unlock(host, NULL); /* waiting requests may have reached their deadlines */
}

static enum status table_begin(struct model_host *host, const char *name, const char *version,
                               struct error *err)
{
    enum status status = STATUS_OK;
    struct model_entry *entry = NULL;
    LOCK(&host->lock);
    if (strlen(name) >= sizeof((struct model_entry *)0)->name)
        status =
            error_set(err, STATUS_CONFIG,
                      "the model's name has %zu bytes; the limit is %zu, give it a shorter one",
                      strlen(name), sizeof((struct model_entry *)0)->name - 1);
    else if (strlen(version) >= sizeof((struct model_entry *)0)->version)
        status = error_set(err, STATUS_CONFIG,
                           "version '%.40s' of model '%s' has more than %zu characters", version,
                           name, sizeof((struct model_entry *)0)->version - 1);
    else if (host->draining)
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    else if (!(entry = table_enter_locked(host, name, version)))
        status = error_no_memory(err, "for the table of models");
    if (entry && (entry->state == MODEL_UNLOADED || entry->state == MODEL_FAILED)) {
        entry->on_demand = table_can_answer(entry);
        entry->state = MODEL_LOADING;
        entry->progress = 0;
    }
    return status;
}

/* Nanoseconds that a model may be idle; INT64_MAX: for ever. */
static int64_t idle_ns(const struct model_host *host, const struct model *model)
{
    const double ms = model->idle_unload_s >= 0 ? model->idle_unload_s * 1e3
                                                : (double)host->options.idle_unload_ms;
    return ms > 0 ? (int64_t)(ms * 1e6) : INT64_MAX;
}

static void note_loaded_locked(const struct loading *loading, struct model_entry *entry)
{
    const struct deployment *deployment = entry->deployment;
    table_describe_locked(entry, deployment->model, deployment);
    for (size_t i = 0; i < deployment->lane_count; i++)
        entry->took[i] = deployment->lanes[i]->needs;
    memcpy(entry->known, deployment->lanes[0]->info.batches, sizeof entry->known);
    if (loading->is_change)
        return;
    entry->loads++;
    entry->load_seconds = clock_ms(clock_now() - loading->begun) * 1e-3;
    entry->idle_ns = idle_ns(loading->host, deployment->model);
    atomic_store(&entry->keep_ns, -1);
    atomic_store(&entry->used, clock_now());
}

/* Switches the table to a deployment with its other sizes, or to the stages of a pipeline. The
 * caller calls table_retire(). */
static enum status publish(const struct loading *loading, struct deployment *deployment,
                           struct deployment *const *sizes, struct pipeline_config *stages,
                           struct error *err)
{
    struct model_host *host = loading->host;
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = NULL;
    enum status status = STATUS_OK;
    if (host->draining)
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    else if (!(entry = table_enter_locked(host, loading->name, loading->version)))
        status = error_no_memory(err, "for the table of models");
    if (status == STATUS_OK) {
        host->generations++;
        entry->unloads[UNLOAD_REPLACED] += entry->deployment && !loading->is_change;
        table_empty_locked(host, entry);
        entry->deployment = deployment;
        if (deployment)
            table_place_locked(host, deployment, host->generations);
        for (size_t i = 0; sizes && i < DEPLOYMENT_SIZES; i++)
            if ((entry->sizes[i] = sizes[i]) != NULL)
                table_place_locked(host, sizes[i], host->generations);
        free(entry->stages);
        entry->stages = stages;
        host->awaits_sizes |= stages && atomic_load(&host->state) != MODEL_HOST_READY;
        entry->progress = 1;
        entry->state = MODEL_READY;
        entry->on_demand = false;
        entry->wanted_at = 0;
        entry->failure[0] = '\0';
        if (deployment)
            note_loaded_locked(loading, entry);
        table_update_state_locked(host);
    }
    table_settle_and_unlock(host, NULL);
    return status;
}

/* Copies L(b) of the model's last deployment. Returns false if there was no deployment, or if the
 * files have changed. */
static bool recall_times(struct model_host *host, const struct model *model,
                         struct session_batch ret[static SESSION_MAX_BATCHES])
{
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_version_locked(host, model->name, model->version);
    /* If the sizes in bytes differ, the files have changed. */
    const bool is_known = entry && entry->known[0].size > 0 &&
                          entry->brief.file_bytes == model->file_bytes &&
                          entry->brief.parameter_bytes == model->parameter_bytes;
    if (is_known)
        memcpy(ret, entry->known, sizeof entry->known);
    return is_known;
}

/* Refuses a faster precision if, beside the served version, memory has room only for smaller
 * batches than that version runs. */
static enum status check_batches(struct model_host *host, const struct deployment *deployment,
                                 struct error *err)
{
    pthread_mutex_lock(&host->lock);
    const struct model_entry *entry =
        table_find_version_locked(host, deployment->model->name, deployment->model->version);
    const int before = entry && entry->deployment ? entry->deployment->max_batch : 1;
    pthread_mutex_unlock(&host->lock);
    if (deployment->max_batch >= before)
        return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY,
                     "memory has room for batches of %d beside the version that serves, which runs "
                     "batches of %d; raise --memory",
                     deployment->max_batch, before);
}

/* Applies the host's options to a model that has been read. Frees the model on failure. */
static enum status prepare_model(struct model_host *host, struct model *model, struct error *err)
{
    if (host->options.task_options)
        model->task.options = task_options_merge(host->options.task_options, &model->task.options);
    const enum status status = model_find_classes(model, NULL, 0, &model->task.options, err);
    if (status != STATUS_OK)
        model_free(model);
    return status;
}

/* Calls deployment_create(); as long as memory is short, unloads an idle model and tries again. */
static enum status create_with_room(struct model_host *host, struct deployment_options *options,
                                    const char *name, const char *version, struct deployment **ret,
                                    struct error *err)
{
    const struct model_host_source *source = &host->source;
    for (;;) {
        struct error unread;
        const enum status status = deployment_create(options, ret, err);
        if (!status_lacks_memory(status) || !source->read || !table_unload_oldest(host, name) ||
            source->read(source->context, name, version, &options->model, &unread) != STATUS_OK ||
            prepare_model(host, options->model, &unread) != STATUS_OK)
            return status;
    }
}

/* Records a failed load. If memory was short and other models are in memory, adds their names to
 * the sentence; a load that a request has started is then tried again at the next request. */
static void note_failure(struct model_host *host, const char *name, const char *version,
                         struct error *failure)
{
    char loaded[200] = "";
    const bool is_short = status_lacks_memory(failure->status);
    if (is_short)
        table_name_loaded(host, name, loaded, sizeof loaded);
    if (loaded[0]) {
        const struct error plain = *failure;
        (void)error_set(failure, plain.status, "%.280s%s", plain.message, loaded);
    }
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = table_find_announced_locked(host, name, version);
    if (entry)
        table_fail_locked(host, entry, failure->message, loaded[0] && entry->on_demand);
    table_settle_and_unlock(host, entry);
}

/* Implements model_host_add_model(). If `choices` is not NULL, changes only the precision of a
 * served version. */
static enum status add_model(struct model_host *host, struct model *model,
                             const struct precision_choice *choices, const _Atomic int *cancel,
                             struct error *err)
{
    char name[sizeof((struct model_entry *)0)->name],
        version[sizeof((struct model_entry *)0)->version];
    struct deployment *deployment = NULL, *sizes[DEPLOYMENT_SIZES] = {0};
    struct loading loading = {host, name, version, .is_change = choices, .begun = clock_now()};
    struct session_batch known[SESSION_MAX_BATCHES];
    snprintf(name, sizeof name, "%s", model->name);
    snprintf(version, sizeof version, "%s", model->version);
    enum status status = prepare_model(host, model, err);
    if (status == STATUS_OK &&
        (status = table_begin(host, model->name, model->version, err)) != STATUS_OK)
        model_free(model);
    if (status == STATUS_OK) {
        struct deployment_options options = {
            .host = host,
            .model = model,
            .choices = choices,
            .known = !choices && recall_times(host, model, known) ? known : NULL,
            .on_progress = on_progress,
            .progress_context = &loading,
            .cancel = cancel};
        table_make_room(host, model);
        options.loads_to_come = table_loads_to_come(host);
        status = create_with_room(host, &options, name, version, &deployment, err);
        if (status != STATUS_OK)
            error_prefix(err, "%s", name);
        if (status == STATUS_OK && choices)
            status = check_batches(host, deployment, err);
        IF_OK(status, table_carry_sizes(host, deployment, cancel, sizes, err));
        IF_OK(status, publish(&loading, deployment, sizes, NULL, err));
    }
    if (status == STATUS_OK) {
        table_retire(host);
        return STATUS_OK;
    }
    if (!choices) /* with `choices` the served version stays, and clients notice no failure */
        note_failure(host, name, version, err);
    deployment_end(deployment);
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        deployment_end(sizes[i]);
    return status;
}

enum status model_host_list_model(struct model_host *host, struct model *model, struct error *err)
{
    TRY(prepare_model(host, model, err));
    const enum status status = table_begin(host, model->name, model->version, err);
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = table_find_version_locked(host, model->name, model->version);
    if (status == STATUS_OK && entry->state == MODEL_LOADING) {
        table_describe_locked(entry, model, NULL);
        memset(entry->known, 0, sizeof entry->known); /* measured with the previous files */
        if (entry->wanted_at == 0) {
            entry->state = MODEL_UNLOADED;
            entry->cause = entry->loads ? entry->cause : UNLOAD_NOT_YET;
        }
        entry->on_demand = true;
    }
    table_update_state_locked(host);
    table_settle_and_unlock(host, NULL);
    model_free(model);
    return status;
}

bool model_host_may_wait(struct model_host *host, const char *name, const char *version,
                         bool is_lazy)
{
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_version_locked(host, name, version);
    if (entry && (entry->deployment || entry->wanted_at))
        return false;
    return is_lazy || (entry && entry->state == MODEL_UNLOADED && table_can_answer(entry));
}

enum status model_host_add_model(struct model_host *host, struct model *model,
                                 const _Atomic int *cancel, struct error *err)
{
    return add_model(host, model, NULL, cancel, err);
}

enum status model_host_add_pipeline(struct model_host *host, const char *name, const char *version,
                                    const struct pipeline_config *config, struct error *err)
{
    const struct loading loading = {host, name, version, .begun = clock_now()};
    struct pipeline_config *stages = malloc(sizeof *stages);
    enum status status =
        stages ? table_begin(host, name, version, err) : error_no_memory(err, "for a pipeline");
    if (status == STATUS_OK) {
        *stages = *config;
        status = publish(&loading, NULL, NULL, stages, err);
    }
    if (status == STATUS_OK) {
        table_retire(host);
        return STATUS_OK;
    }
    free(stages);
    model_host_fail(host, name, version, err->message);
    return status;
}

/* --- precisions --- */

static bool is_pending(const struct deployment *deployment)
{
    bool is_pending = false;
    for (size_t k = 0; k < DEVICE_KINDS; k++)
        is_pending = is_pending || (deployment->choices[k].why[0] &&
                                    deployment->choices[k].origin == CHOICE_PENDING);
    return is_pending;
}

/* Returns the next deployment whose precisions are to be compared, with the caller as a user; NULL
 * if there is none. */
static struct deployment *next_trial(struct model_host *host)
{
    LOCK(&host->lock);
    for (size_t i = 0; i < host->entry_count; i++) {
        struct deployment *deployment = host->entries[i]->deployment;
        if (deployment && is_pending(deployment)) {
            deployment->users++;
            return deployment;
        }
    }
    return NULL;
}

/* Ends the pending trials of a deployment; `why` is the reason for fp32. */
static void skip_trial(struct model_host *host, struct deployment *deployment, const char *why)
{
    LOCK(&host->lock);
    for (size_t k = 0; k < DEVICE_KINDS; k++) {
        struct precision_choice *choice = &deployment->choices[k];
        if (!choice->why[0] || choice->origin != CHOICE_PENDING)
            continue;
        choice->origin = CHOICE_ONLY;
        snprintf(choice->why, sizeof choice->why, "%s", why);
    }
}

/* Replaces the fp32 deployment by one of the chosen precision. After a failure the fp32 one is
 * still in the table, because only this thread takes deployments out. */
static void change_over(struct model_host *host, struct deployment *fp32, struct model *model,
                        const struct precision_choice *choices, const _Atomic int *cancel)
{
    struct error failure;
    char name[sizeof((struct model_entry *)0)->name], why[256];
    snprintf(name, sizeof name, "%s", model->name);
    const enum status status = add_model(host, model, choices, cancel, &failure);
    for (size_t k = 0; status == STATUS_OK && k < DEVICE_KINDS; k++)
        if (choices[k].why[0] && choices[k].precision != PRECISION_FP32)
            log_event(LOG_INFO, "precision changed", LOG_STR("model", name),
                      LOG_STR("from", "fp32"), LOG_STR("to", precision_name(choices[k].precision)),
                      LOG_STR("text", "from now on requests are answered in this precision"));
    if (status == STATUS_OK || status == STATUS_CANCELLED)
        return;
    snprintf(why, sizeof why, "a faster precision was chosen but could not be opened: %.180s",
             failure.message);
    log_event(LOG_WARN, "precision not changed", LOG_STR("model", name), LOG_STR("text", why));
    skip_trial(host, fp32, why);
}

bool model_host_try_precision(struct model_host *host, const _Atomic int *cancel)
{
    struct precision_choice choices[DEVICE_KINDS];
    struct error failure;
    struct model *model = NULL;
    struct deployment *deployment = next_trial(host);
    if (!deployment)
        return false;
    const char *name = deployment->model->name, *version = deployment->model->version;
    memcpy(choices, deployment->choices, sizeof choices); /* only this thread changes them */
    enum status status = host->source.read(host->source.context, name, version, &model, &failure);
    if (status == STATUS_OK) {
        const struct deployment_options options = {
            .host = host, .model = model, .choices = choices, .cancel = cancel};
        status = deployment_try_precision(deployment, &options, choices, &failure);
    }
    bool has_won = false;
    for (size_t k = 0; status == STATUS_OK && k < DEVICE_KINDS; k++)
        has_won = has_won || (choices[k].why[0] && choices[k].precision != PRECISION_FP32);
    if (status == STATUS_OK && !has_won) {
        pthread_mutex_lock(&host->lock);
        memcpy(deployment->choices, choices, sizeof choices);
        pthread_mutex_unlock(&host->lock);
    } else if (status != STATUS_OK && status != STATUS_CANCELLED) {
        skip_trial(host, deployment, failure.message);
    }
    model_host_release(host, deployment); /* before the replacement, which waits for all users */
    if (has_won)
        change_over(host, deployment, model, choices, cancel);
    else
        model_free(model);
    malloc_trim(0); /* the heap is fragmented after a trial */
    return true;
}
