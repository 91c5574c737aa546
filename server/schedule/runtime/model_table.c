/* The table of models and the states of versions, which docs/design.md draws. A READY version that
 * is loaded again stays READY: its deployment is exchanged. */
#include "server/schedule/runtime/model_table.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"

/* The phase of a load before its first report of progress. */
#define PHASE_WAITING "waiting"

const char *model_state_name(enum model_state state)
{
    static const char *const names[MODEL_STATES] = {[MODEL_LOADING] = "loading",
                                                    [MODEL_READY] = "ready",
                                                    [MODEL_FAILED] = "failed",
                                                    [MODEL_UNLOADING] = "unloading",
                                                    [MODEL_UNLOADED] = "unloaded"};
    return names[state];
}

const char *unload_cause_name(enum unload_cause cause)
{
    static const char *const names[UNLOAD_CAUSES] = {[UNLOAD_NOT_YET] = "not loaded yet",
                                                     [UNLOAD_ASKED] = "asked",
                                                     [UNLOAD_IDLE] = "idle",
                                                     [UNLOAD_MEMORY] = "memory",
                                                     [UNLOAD_REPLACED] = "replaced"};
    return names[cause];
}

/* Positive if `a` is newer. Versions that are not numbers are older than all numbers. */
static int compare_versions(const char *a, const char *b)
{
    bool a_number = *a && !a[strspn(a, "0123456789")], b_number = *b && !b[strspn(b, "0123456789")];
    if (a_number != b_number)
        return a_number ? 1 : -1;
    if (!a_number)
        return strcmp(a, b);
    a += strspn(a, "0");
    b += strspn(b, "0");
    size_t a_digits = strlen(a), b_digits = strlen(b);
    return a_digits != b_digits ? (a_digits > b_digits ? 1 : -1) : strcmp(a, b);
}

/* The position of the first entry whose name is not before `name`. */
static size_t find_place_locked(const struct model_host *host, const char *name)
{
    size_t low = 0, high = host->entry_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(host->entries[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_name(const struct model_host *host, size_t place, const char *name)
{
    return place < host->entry_count && !strcmp(host->entries[place]->name, name);
}

struct model_entry *table_find_version_locked(struct model_host *host, const char *name,
                                              const char *version)
{
    for (size_t i = find_place_locked(host, name); has_name(host, i, name); i++)
        if (!strcmp(host->entries[i]->version, version))
            return host->entries[i];
    return NULL;
}

bool table_can_answer(const struct model_entry *entry)
{
    return entry->state == MODEL_READY || (entry->state == MODEL_LOADING && entry->on_demand) ||
           ((entry->state == MODEL_UNLOADING || entry->state == MODEL_UNLOADED) &&
            entry->cause != UNLOAD_ASKED);
}

/* Finds the newest version of a name that can answer; if none can, the newest version. */
static struct model_entry *find_best_locked(struct model_host *host, const char *name)
{
    struct model_entry *best = NULL;
    for (size_t i = find_place_locked(host, name); has_name(host, i, name); i++) {
        struct model_entry *entry = host->entries[i];
        bool ready = table_can_answer(entry);
        bool best_ready = best && table_can_answer(best);
        if (!best || ready > best_ready ||
            (ready == best_ready && compare_versions(entry->version, best->version) > 0))
            best = entry;
    }
    return best;
}

const char *table_default_locked(const struct model_host *host)
{
    return host->options.default_model ? host->options.default_model
           : host->default_name[0]     ? host->default_name
                                       : NULL;
}

/* True if every other name of the table is a stage of this entry, its text encoder or its mask
 * decoder. With `besides`, names that have never been able to answer do not count. */
static bool is_all_locked(const struct model_host *host, const struct model_entry *entry,
                          bool besides)
{
    const size_t stages = entry->stages ? entry->stages->stage_count : 0;
    for (size_t i = 0; i < host->entry_count; i++) {
        const char *name = host->entries[i]->name;
        const size_t length = strlen(entry->name);
        bool is_in = (besides && !host->entries[i]->was_ready) ||
                     (!strncmp(name, entry->name, length) &&
                      (!name[length] || !strcmp(name + length, MODEL_TEXT_ENDING) ||
                       !strcmp(name + length, MODEL_DECODER_ENDING)));
        for (size_t s = 0; s < stages && !is_in; s++)
            is_in = !strcmp(name, entry->stages->stages[s].model);
        if (!is_in)
            return false;
    }
    return true;
}

/* An unloaded default pipeline stays the default, although its stages are gone. A default model
 * that was ready stays the default if no other was ready: a broken folder does not count. */
static void choose_default_locked(struct model_host *host)
{
    for (size_t i = 0; i < host->entry_count; i++)
        host->entries[i]->was_ready |= table_can_answer(host->entries[i]);
    const struct model_entry *before = find_best_locked(host, host->default_name);
    const bool is_unloaded = before && before->cause == UNLOAD_ASKED &&
                             (before->state == MODEL_UNLOADING || before->state == MODEL_UNLOADED);
    if (is_unloaded || (before && before->was_ready && is_all_locked(host, before, true)))
        return;
    host->default_name[0] = '\0';
    for (size_t i = 0; i < host->entry_count; i++)
        if (is_all_locked(host, host->entries[i], false))
            snprintf(host->default_name, sizeof host->default_name, "%s", host->entries[i]->name);
}

struct model_entry *table_find_locked(struct model_host *host, const char *name,
                                      const char *version)
{
    if (!name)
        name = table_default_locked(host);
    if (!name)
        return NULL;
    return version && *version ? table_find_version_locked(host, name, version)
                               : find_best_locked(host, name);
}

void model_host_release(struct model_host *host, struct deployment *deployment)
{
    pthread_mutex_lock(&host->lock);
    bool last = --deployment->users == 0;
    bool wake = last && host->retiring;
    pthread_mutex_unlock(&host->lock);
    if (wake)
        pthread_cond_broadcast(&host->released);
}

struct model_entry *table_enter_locked(struct model_host *host, const char *name,
                                       const char *version)
{
    struct model_entry *entry = table_find_version_locked(host, name, version);
    if (!entry && (entry = table_find_version_locked(host, name, "")) != NULL)
        snprintf(entry->version, sizeof entry->version, "%s", version);
    if (entry)
        return entry;
    struct model_entry **grown =
        reallocarray(host->entries, host->entry_count + 1, sizeof(struct model_entry *));
    host->entries = grown ? grown : host->entries;
    if (!grown || !(entry = calloc(1, sizeof *entry)))
        return NULL;
    const struct model_entry *other = find_best_locked(host, name);
    *entry = (struct model_entry){.host = host,
                                  .refs = 1,
                                  .keep_ns = -1,
                                  .idle_ns = INT64_MAX,
                                  .state = MODEL_LOADING,
                                  .is_required = other && other->is_required,
                                  .phase = PHASE_WAITING,
                                  .begun = clock_now()};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->version, sizeof entry->version, "%s", version);
    size_t at = find_place_locked(host, name);
    while (has_name(host, at, name))
        at++;
    memmove(&grown[at + 1], &grown[at], (host->entry_count++ - at) * sizeof *grown);
    return grown[at] = entry;
}

void table_unref_entry(struct model_entry *entry)
{
    if (atomic_fetch_sub_explicit(&entry->refs, 1, memory_order_acq_rel) > 1)
        return;
    FREE_ALL(entry->stages, entry);
}

static void leave_locked(struct model_host *host, size_t place)
{
    struct model_entry **at = &host->entries[place];
    table_unref_entry(*at);
    memmove(at, at + 1, (--host->entry_count - place) * sizeof *at);
}

/* Counts the versions that can answer, the failed versions of names of which none can answer, and,
 * before model_host_settle(), the required versions that cannot answer. */
static void count_versions_locked(struct model_host *host, size_t *ret_ready, size_t *ret_failed,
                                  size_t *ret_missing)
{
    *ret_ready = *ret_failed = *ret_missing = 0;
    for (size_t i = 0; i < host->entry_count; i++) {
        const struct model_entry *entry = host->entries[i];
        *ret_ready += table_can_answer(entry);
        *ret_failed +=
            entry->state == MODEL_FAILED && !table_can_answer(find_best_locked(host, entry->name));
        *ret_missing += !host->settled && entry->is_required && !table_can_answer(entry);
    }
}

/* True if no model is being loaded, and either a version is unloaded or the table is empty. */
static bool is_unloaded_locked(const struct model_host *host)
{
    bool removed = host->settled && host->entry_count == 0;
    for (size_t i = 0; i < host->entry_count; i++) {
        const enum model_state state = host->entries[i]->state;
        if (state == MODEL_LOADING)
            return false;
        removed |= state == MODEL_UNLOADING || state == MODEL_UNLOADED;
    }
    return removed;
}

void table_update_state_locked(struct model_host *host)
{
    size_t ready, failed, missing;
    choose_default_locked(host);
    count_versions_locked(host, &ready, &failed, &missing);
    const enum model_host_state loaded = host->awaits_sizes ? MODEL_HOST_LOADING : MODEL_HOST_READY;
    enum model_host_state state = host->draining              ? MODEL_HOST_DRAINING
                                  : ready > 0 && missing == 0 ? loaded
                                  : failed > 0                ? MODEL_HOST_FAILED
                                  : is_unloaded_locked(host)  ? MODEL_HOST_UNLOADED
                                                              : MODEL_HOST_LOADING;
    atomic_store_explicit(&host->state, (int)state, memory_order_release);
}

void model_host_announce(struct model_host *host, const char *name, const char *version,
                         bool is_required)
{
    LOCK(&host->lock);
    struct model_entry *entry = version ? NULL : find_best_locked(host, name);
    if (!entry)
        entry = table_enter_locked(host, name, version ? version : "");
    if (entry && !table_can_answer(entry) && entry->state != MODEL_LOADING) {
        entry->state = MODEL_LOADING;
        entry->progress = 0;
        entry->phase = PHASE_WAITING;
        entry->failure[0] = '\0';
    }
    if (entry && is_required)
        entry->is_required = true;
    table_update_state_locked(host);
}

struct model_entry *table_find_announced_locked(struct model_host *host, const char *name,
                                                const char *version)
{
    struct model_entry *entry = version ? table_find_version_locked(host, name, version) : NULL;
    if (!entry)
        entry = table_find_version_locked(host, name, "");
    return entry || version ? entry : find_best_locked(host, name);
}

/* ---- requests that wait ---- */

size_t table_find_needed_locked(struct model_host *host, const struct predict_request *request,
                                struct model_entry *ret[static PIPELINE_STAGES_MAX])
{
    struct model_entry *entry = table_find_locked(host, request->model, request->version);
    const struct pipeline_config *stages = entry ? entry->stages : NULL;
    const size_t count = stages ? stages->stage_count : 1;
    for (size_t i = 0; i < count; i++) {
        ret[i] = stages ? table_find_locked(host, stages->stages[i].model, NULL) : entry;
        if (!ret[i] || !table_can_answer(ret[i]) || ret[i]->stages)
            return 0;
    }
    return count;
}

bool table_want_locked(struct model_entry *entry)
{
    if (entry->state == MODEL_READY)
        return false;
    if (entry->wanted_at == 0)
        entry->wanted_at = clock_now();
    if (entry->state == MODEL_UNLOADED) {
        entry->state = MODEL_LOADING;
        entry->on_demand = true;
        entry->progress = 0;
        entry->phase = "waiting";
        entry->failure[0] = '\0';
        entry->begun = clock_now();
    }
    return true;
}

bool table_must_wait_locked(struct model_host *host, const struct predict_request *request)
{
    struct model_entry *needed[PIPELINE_STAGES_MAX];
    const size_t count = host->draining ? 0 : table_find_needed_locked(host, request, needed);
    bool must_wait = false;
    for (size_t i = 0; i < count; i++)
        must_wait = table_want_locked(needed[i]) || must_wait;
    if (must_wait || count < 2 || !request->waits_for_sizes)
        return must_wait;
    return host->sizes_to_come(host,
                               table_find_locked(host, request->model, request->version)->stages);
}

bool table_hold_locked(struct model_host *host, struct predict_request *request)
{
    struct model_entry *needed[PIPELINE_STAGES_MAX];
    if (table_must_wait_locked(host, request))
        return false;
    const size_t count = table_find_needed_locked(host, request, needed);
    for (size_t i = 0; i < count; i++) {
        struct model_entry *entry = needed[i];
        atomic_fetch_add_explicit(&entry->refs, 1, memory_order_relaxed);
        atomic_store(&entry->keep_ns, request->has_keep_alive ? request->keep_alive_ns : -1);
        atomic_store(&entry->used, clock_now());
        request->held[request->held_count++] = entry;
    }
    return true;
}

static bool is_over(const struct predict_request *request)
{
    return request->deadline && clock_now() >= request->deadline;
}

/* True if the request needs this entry, or if one of its models cannot answer. */
static bool needs_locked(struct model_host *host, const struct predict_request *request,
                         const struct model_entry *entry)
{
    struct model_entry *needed[PIPELINE_STAGES_MAX];
    const size_t count = table_find_needed_locked(host, request, needed);
    bool needs = count == 0;
    for (size_t i = 0; i < count; i++)
        needs = needs || needed[i] == entry;
    return needs;
}

bool table_stop_waiting_locked(struct model_host *host, struct predict_request *request)
{
    if (!request->is_waiting)
        return false;
    TAILQ_REMOVE(&host->waiting, request, waiting);
    request->is_waiting = false;
    host->waiting_count--;
    return true;
}

void table_settle_and_unlock(struct model_host *host, const struct model_entry *failed)
{
    TAILQ_HEAD(, predict_request) settled = TAILQ_HEAD_INITIALIZER(settled);
    struct predict_request *request = TAILQ_FIRST(&host->waiting), *next;
    for (; request; request = next) {
        next = TAILQ_NEXT(request, waiting);
        if (is_over(request) || (failed && needs_locked(host, request, failed)) ||
            table_hold_locked(host, request)) {
            table_stop_waiting_locked(host, request);
            TAILQ_INSERT_TAIL(&settled, request, waiting);
        }
    }
    pthread_mutex_unlock(&host->lock);
    while ((request = TAILQ_FIRST(&settled)) != NULL) {
        TAILQ_REMOVE(&settled, request, waiting); /* before the request may be freed */
        predict_request_unpin(request);
    }
}

void model_host_end_waits(struct model_host *host)
{
    pthread_mutex_lock(&host->lock);
    table_settle_and_unlock(host, NULL);
}

/* ---- changes ---- */

void model_host_fail(struct model_host *host, const char *name, const char *version,
                     const char *failure)
{
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = table_find_announced_locked(host, name, version);
    if (entry)
        table_fail_locked(host, entry, failure, false);
    table_settle_and_unlock(host, entry);
}

void table_fail_locked(struct model_host *host, struct model_entry *entry, const char *failure,
                       bool is_passing)
{
    entry->wanted_at = 0;
    if (entry->state != MODEL_READY)
        entry->state = is_passing ? MODEL_UNLOADED : MODEL_FAILED;
    snprintf(entry->failure, sizeof entry->failure, "%s", failure);
    table_update_state_locked(host);
}

void table_describe_locked(struct model_entry *entry, const struct model *model,
                           const struct deployment *deployment)
{
    const struct task *task = &model->task;
    struct model_brief *brief = &entry->brief;
    *brief = (struct model_brief){
        .parameter_bytes = model->parameter_bytes,
        .file_bytes = model->file_bytes,
        .takes_images = deployment_image_input(model) != SIZE_MAX,
        .takes_texts = deployment_takes_texts(model),
        .task = task->kind,
        .confidence = task_has_option(task, "confidence") ? task->options.confidence : -1,
        .iou = task_has_option(task, "iou") ? task->options.iou : -1};
    memcpy(brief->task_evidence, task->evidence, sizeof brief->task_evidence);
    if (brief->takes_images) {
        brief->width = model->preprocess.width;
        brief->height = model->preprocess.height;
        brief->channels = preprocess_channels(&model->preprocess);
    }
    brief->answers_photos =
        brief->takes_images &&
        (deployment ? !deployment->no_answer[0] : task->kind != TASK_UNKNOWN && !task->is_tensors);
    if (brief->answers_photos && task->kind == TASK_CLASSIFICATION)
        brief->class_count =
            model->class_count || !deployment ? model->class_count : deployment->class_count;
}

int table_seconds_left(const struct model_entry *entry)
{
    enum { MOST = 3600 };
    const double seconds = clock_ms(clock_now() - entry->begun) * 1e-3;
    const double left =
        entry->progress > 0 ? ceil(seconds * (1 - entry->progress) / entry->progress) : 1;
    return left < 1 ? 1 : left > MOST ? MOST : (int)left;
}

int table_retry_after_locked(const struct model_host *host)
{
    int most = 1;
    for (size_t i = 0; i < host->entry_count; i++) {
        const struct model_entry *entry = host->entries[i];
        const int seconds = entry->state == MODEL_LOADING ? table_seconds_left(entry) : 1;
        most = seconds > most ? seconds : most;
    }
    return most;
}

int model_host_retry_after(struct model_host *host)
{
    LOCK(&host->lock);
    return table_retry_after_locked(host);
}

void model_host_clear_failure(struct model_host *host, const char *name)
{
    LOCK(&host->lock);
    for (size_t i = find_place_locked(host, name); has_name(host, i, name); i++)
        if (host->entries[i]->state == MODEL_READY)
            host->entries[i]->failure[0] = '\0';
}

void model_host_settle(struct model_host *host)
{
    LOCK(&host->lock);
    host->settled = true;
    table_update_state_locked(host);
}

struct deployment *table_use_next(struct model_host *host, struct deployment *before)
{
    pthread_mutex_lock(&host->lock);
    struct deployment *next =
        before ? TAILQ_NEXT(before, of_host) : TAILQ_FIRST(&host->deployments);
    if (next)
        next->users++;
    pthread_mutex_unlock(&host->lock);
    if (before)
        model_host_release(host, before);
    return next;
}

/* --- leaving --- */

void table_leave_locked(struct model_host *host, struct deployment **at)
{
    if (!*at)
        return;
    (*at)->next_retiring = host->retiring;
    host->retiring = *at;
    *at = NULL;
}

void table_empty_locked(struct model_host *host, struct model_entry *entry)
{
    table_leave_locked(host, &entry->deployment);
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        table_leave_locked(host, &entry->sizes[i]);
    memset(entry->failed, 0, sizeof entry->failed);
    entry->wanted = (struct stage_size){0};
}

static void wait_unused_locked(struct model_host *host, const struct deployment *deployment)
{
    while (deployment->users > 0)
        condition_wait(&host->released, &host->lock, INT64_MAX);
}

void table_retire(struct model_host *host)
{
    struct deployment *deployment;
    bool has_retired = false;
    pthread_mutex_lock(&host->lock);
    while ((deployment = host->retiring) != NULL) {
        wait_unused_locked(host, deployment); /* its users may still submit */
        pthread_mutex_unlock(&host->lock);
        deployment_retire(deployment);
        pthread_mutex_lock(&host->lock);
        wait_unused_locked(host, deployment); /* a drain may have begun to use it */
        host->retiring = deployment->next_retiring;
        TAILQ_REMOVE(&host->deployments, deployment, of_host);
        deployment->has_left = has_retired = true;
        pthread_mutex_unlock(&host->lock);
        deployment_end(deployment);
        pthread_mutex_lock(&host->lock);
    }
    pthread_mutex_unlock(&host->lock);
    if (has_retired)
        malloc_trim(0); /* returns the memory of the freed weights to the system */
}

/* Memory has become free: sizes that failed for lack of memory are compiled when they are requested
 * again. Records of other failures stay. */
static void forget_shortages_locked(struct model_host *host)
{
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = host->entries[i];
        for (size_t k = 0; k < FAILED_SIZES; k++)
            if (entry->failed[k].is_short)
                entry->failed[k] = (struct failed_size){0};
    }
}

enum status model_host_remove_model(struct model_host *host, const char *name, const char *version,
                                    bool forget, struct error *err)
{
    size_t found = 0;
    pthread_mutex_lock(&host->lock);
    for (size_t i = find_place_locked(host, name); has_name(host, i, name); i++) {
        struct model_entry *entry = host->entries[i];
        if (!entry->deployment || (version && strcmp(entry->version, version) != 0))
            continue;
        table_empty_locked(host, entry);
        entry->state = MODEL_UNLOADING;
        entry->cause = UNLOAD_ASKED;
        entry->failure[0] = '\0';
        entry->unloads[UNLOAD_ASKED]++;
    }
    table_update_state_locked(host);
    table_settle_and_unlock(host, NULL);
    table_retire(host);
    pthread_mutex_lock(&host->lock);
    forget_shortages_locked(host);
    for (size_t i = find_place_locked(host, name); has_name(host, i, name);) {
        struct model_entry *entry = host->entries[i];
        const bool is_meant = !entry->deployment && (!version || !strcmp(entry->version, version));
        found += is_meant;
        if (is_meant) {
            free(entry->stages);
            entry->stages = NULL;
            entry->state = MODEL_UNLOADED;
            entry->cause = UNLOAD_ASKED;
            entry->wanted_at = 0;
        }
        if (is_meant && forget)
            leave_locked(host, i);
        else
            i++;
    }
    table_update_state_locked(host);
    table_settle_and_unlock(host, NULL);
    if (found == 0)
        return error_set(err, STATUS_NOT_FOUND, "there is no model '%.128s'%s%.20s", name,
                         version ? " of version " : "", version ? version : "");
    return STATUS_OK;
}
