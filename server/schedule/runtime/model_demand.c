/* Loads models that requests need, and unloads unused models. A request holds the entries of its
 * models; an entry that no request holds is idle, and its model may be unloaded. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/model_table.h"
#include "server/schedule/runtime/scheduler.h"

/* Interval for checking whether a model that must be unloaded has become idle. */
#define LOOK_AGAIN_NS INT64_C(500000000)

static void wake_loader(const struct model_host *host)
{
    if (host->source.wake)
        host->source.wake(host->source.context);
}

bool model_host_hold(struct model_host *host, struct predict_request *request)
{
    pthread_mutex_lock(&host->lock);
    const bool is_held = request->held_count > 0 || table_hold_locked(host, request);
    pthread_mutex_unlock(&host->lock);
    if (!is_held)
        wake_loader(host);
    return is_held;
}

void table_let_go(struct predict_request *request)
{
    for (size_t i = 0; i < request->held_count; i++) {
        struct model_entry *entry = request->held[i];
        const struct model_host *host = entry->host;
        const int64_t keep = atomic_load(&entry->keep_ns);
        atomic_store(&entry->used, clock_now());
        table_unref_entry(entry);
        if (keep >= 0 && keep != INT64_MAX) /* `keep` may end before the loader's next check */
            wake_loader(host);
    }
    request->held_count = 0;
}

/* Estimates the seconds until the request's models are loaded. A model that was never loaded counts
 * as 0. */
static double seconds_to_wait_locked(struct model_host *host, const struct predict_request *request)
{
    struct model_entry *needed[PIPELINE_STAGES_MAX];
    const size_t count = table_find_needed_locked(host, request, needed);
    double seconds = 0;
    for (size_t i = 0; i < count; i++) {
        const struct model_entry *entry = needed[i];
        if (entry->state != MODEL_READY)
            seconds += entry->progress > 0 ? table_seconds_left(entry) : entry->load_seconds;
    }
    return seconds;
}

enum status model_host_await(struct model_host *host, struct predict_request *request,
                             struct error *err)
{
    enum status status = STATUS_OK;
    pthread_mutex_lock(&host->lock);
    if (table_hold_locked(host, request)) { /* the models have been loaded meanwhile */
        pthread_mutex_unlock(&host->lock);
        request->on_done(request);
        return STATUS_OK;
    }
    const double seconds = seconds_to_wait_locked(host, request);
    const int wait = seconds > 1 ? (int)seconds + 1 : 1;
    if (request->deadline && clock_now() + (int64_t)(seconds * 1e9) > request->deadline) {
        status = error_set(err, STATUS_NOT_READY,
                           "the model is being loaded, which takes about %.1f s, and the request's "
                           "time limit ends before that; allow it more time, or try again in %d s",
                           seconds, wait);
    } else if (host->waiting_count >= host->options.max_queue) {
        status = error_set(err, STATUS_OVERLOADED,
                           "%zu requests wait for models that are being loaded; try again in %d s",
                           host->waiting_count, wait);
    } else {
        TAILQ_INSERT_TAIL(&host->waiting, request, waiting);
        request->is_waiting = true;
        host->waiting_count++;
        atomic_store(&request->pending, 1); /* from now on the request can be pinned */
    }
    if (status != STATUS_OK)
        err->retry_after_s = wait;
    const bool has_gone = status == STATUS_OK && atomic_load(&request->cancelled) &&
                          table_stop_waiting_locked(host, request);
    pthread_mutex_unlock(&host->lock);
    if (has_gone)
        predict_request_unpin(request);
    wake_loader(host);
    return status;
}

bool model_host_next_load(struct model_host *host, char name[static 128], char version[static 16])
{
    const struct model_entry *next = NULL;
    LOCK(&host->lock);
    for (size_t i = 0; !host->draining && i < host->entry_count; i++) {
        const struct model_entry *entry = host->entries[i];
        if (entry->wanted_at && entry->state == MODEL_LOADING &&
            (!next || entry->wanted_at < next->wanted_at))
            next = entry;
    }
    if (next) {
        snprintf(name, 128, "%s", next->name);
        snprintf(version, 16, "%s", next->version);
    }
    return next;
}

static bool is_unused_locked(const struct deployment *deployment)
{
    return !deployment || (deployment->users == 0 && atomic_load(&deployment->refs) == 1);
}

/* True if the model is loaded, and no request holds the entry or uses one of its deployments. */
static bool is_idle_locked(const struct model_entry *entry)
{
    bool is_idle =
        entry->deployment && atomic_load(&entry->refs) == 1 && is_unused_locked(entry->deployment);
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        is_idle = is_idle && is_unused_locked(entry->sizes[i]);
    return is_idle;
}

/* Unloads a model, and unlocks. Later requests wait until the model is loaded again. */
static void unload_and_unlock(struct model_host *host, struct model_entry *entry,
                              enum unload_cause cause)
{
    table_empty_locked(host, entry);
    entry->state = MODEL_UNLOADING;
    entry->cause = cause;
    entry->failure[0] = '\0';
    entry->unloads[cause]++;
    table_update_state_locked(host);
    pthread_mutex_unlock(&host->lock);
    table_retire(host);
    log_event(LOG_INFO, "model unloaded", LOG_STR("model", entry->name),
              LOG_STR("version", entry->version), LOG_STR("cause", unload_cause_name(cause)));
    pthread_mutex_lock(&host->lock);
    entry->state = MODEL_UNLOADED;
    if (entry->wanted_at)
        (void)table_want_locked(entry);
    table_update_state_locked(host);
    table_settle_and_unlock(host, NULL);
}

int64_t model_host_unload_idle(struct model_host *host)
{
    int64_t next = INT64_MAX;
    for (size_t i = 0;; i++) {
        pthread_mutex_lock(&host->lock);
        if (i >= host->entry_count || host->draining) {
            pthread_mutex_unlock(&host->lock);
            return next;
        }
        struct model_entry *entry = host->entries[i];
        const int64_t keep = atomic_load(&entry->keep_ns), now = clock_now();
        const int64_t idle = keep >= 0 ? keep : entry->idle_ns;
        const int64_t used = atomic_load(&entry->used);
        int64_t end = !entry->deployment || idle == INT64_MAX ? INT64_MAX : used + idle;
        if (end <= now && is_idle_locked(entry)) {
            unload_and_unlock(host, entry, UNLOAD_IDLE);
            continue;
        }
        pthread_mutex_unlock(&host->lock);
        end = end <= now ? now + LOOK_AGAIN_NS : end;
        next = end < next ? end : next;
    }
}

bool table_unload_oldest(struct model_host *host, const char *name)
{
    struct model_entry *oldest = NULL;
    pthread_mutex_lock(&host->lock);
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = host->entries[i];
        if (strcmp(entry->name, name) != 0 && is_idle_locked(entry) &&
            (!oldest || atomic_load(&entry->used) < atomic_load(&oldest->used)))
            oldest = entry;
    }
    if (oldest)
        unload_and_unlock(host, oldest, UNLOAD_MEMORY);
    else
        pthread_mutex_unlock(&host->lock);
    return oldest;
}

/* Estimates the peak memory of the model's load on options.devices[i]: the bytes of its last
 * deployment, plus the file's weights, because they are packed into other memory. For the first
 * load, three times the weights. */
static size_t likely_bytes(struct model_host *host, const struct model *model, size_t i)
{
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_version_locked(host, model->name, model->version);
    const size_t took = entry ? entry->took[i] : 0, weights = (size_t)model->parameter_bytes;
    return took ? took + weights : 3 * weights;
}

void table_make_room(struct model_host *host, const struct model *model)
{
    for (size_t i = 0; i < host->options.device_count; i++) {
        const size_t likely = likely_bytes(host, model, i);
        size_t left;
        while ((left = budget_share(&host->budget, host->options.devices[i], 1)) != 0 &&
               left < likely && table_unload_oldest(host, model->name))
            ;
    }
}

void table_name_loaded(struct model_host *host, const char *name, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    LOCK(&host->lock);
    for (size_t i = 0; i < host->entry_count && used < size; i++) {
        const struct model_entry *entry = host->entries[i];
        size_t bytes = 0;
        for (size_t k = 0; k < DEVICE_MAX; k++)
            bytes += entry->took[k];
        if (entry->deployment && strcmp(entry->name, name) != 0)
            used += (size_t)snprintf(
                text + used, size - used, "%s%s (%.1f MiB%s)", used ? ", " : "; in memory are ",
                entry->name, (double)bytes / (1 << 20), is_idle_locked(entry) ? "" : ", in use");
    }
}
