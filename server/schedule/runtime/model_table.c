/* Models and versions coming and going.
 *
 *     announce ─▶ LOADING ─▶ READY ─▶ UNLOADING ─▶ UNLOADED, or out of the table
 *                    └─▶ FAILED
 *
 * A version that is READY and loaded again stays READY throughout: its deployment is exchanged. */
#include "server/schedule/runtime/model_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/schedule/runtime/thread.h"

/* The phase of a load that has not reported yet. */
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

/* > 0: `a` is newer. Versions that are not numbers are older than all numbers. */
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

struct model_entry *table_find_version_locked(struct model_host *host, const char *name,
                                              const char *version)
{
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = &host->entries[i];
        if (!strcmp(entry->name, name) && !strcmp(entry->version, version))
            return entry;
    }
    return NULL;
}

/* The best version of a name: a ready one before others, then the newest. */
static struct model_entry *find_best_locked(struct model_host *host, const char *name)
{
    struct model_entry *best = NULL;
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = &host->entries[i];
        if (strcmp(entry->name, name) != 0)
            continue;
        bool ready = entry->state == MODEL_READY;
        bool best_ready = best && best->state == MODEL_READY;
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

/* Whether every other name of the table is a stage of this one. */
static bool is_all_locked(const struct model_host *host, const struct model_entry *entry)
{
    const size_t stages = entry->stages ? entry->stages->stage_count : 0;
    for (size_t i = 0; i < host->entry_count; i++) {
        const char *name = host->entries[i].name;
        bool is_in = !strcmp(name, entry->name);
        for (size_t s = 0; s < stages && !is_in; s++)
            is_in = !strcmp(name, entry->stages->stages[s].model);
        if (!is_in)
            return false;
    }
    return true;
}

/* The stages of an unloaded pipeline are gone, but it stays the default. */
static void choose_default_locked(struct model_host *host)
{
    const struct model_entry *before = find_best_locked(host, host->default_name);
    if (before && (before->state == MODEL_UNLOADING || before->state == MODEL_UNLOADED))
        return;
    host->default_name[0] = '\0';
    for (size_t i = 0; i < host->entry_count; i++)
        if (is_all_locked(host, &host->entries[i]))
            snprintf(host->default_name, sizeof host->default_name, "%s", host->entries[i].name);
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

struct deployment *table_use_version(struct model_host *host, const char *name, const char *version)
{
    pthread_mutex_lock(&host->lock);
    const struct model_entry *entry = table_find_version_locked(host, name, version);
    struct deployment *deployment = entry ? entry->deployment : NULL;
    if (deployment)
        deployment->users++;
    pthread_mutex_unlock(&host->lock);
    return deployment;
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
    if (entry || host->entry_count == MODEL_HOST_MAX_MODELS)
        return entry;
    const struct model_entry *other = find_best_locked(host, name);
    entry = &host->entries[host->entry_count++];
    *entry = (struct model_entry){.state = MODEL_LOADING,
                                  .is_required = other && other->is_required,
                                  .phase = PHASE_WAITING,
                                  .begun = clock_now()};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->version, sizeof entry->version, "%s", version);
    return entry;
}

static void leave_locked(struct model_host *host, struct model_entry *entry)
{
    size_t behind = (size_t)(host->entries + host->entry_count - entry) - 1;
    free(entry->stages);
    memmove(entry, entry + 1, behind * sizeof *entry);
    host->entry_count--;
}

/* Counts names with a ready version, and names without one of which a version failed. */
static void count_names_locked(struct model_host *host, size_t *ret_ready, size_t *ret_failed)
{
    *ret_ready = *ret_failed = 0;
    for (size_t i = 0; i < host->entry_count; i++) {
        const struct model_entry *entry = &host->entries[i];
        const struct model_entry *best = find_best_locked(host, entry->name);
        if (best->state != MODEL_READY)
            *ret_failed += entry->state == MODEL_FAILED;
        else if (best == entry)
            ++*ret_ready;
    }
}

/* Whether models were removed, and none is being loaded. */
static bool is_unloaded_locked(const struct model_host *host)
{
    bool removed = false;
    for (size_t i = 0; i < host->entry_count; i++) {
        if (host->entries[i].state == MODEL_LOADING)
            return false;
        removed |=
            host->entries[i].state == MODEL_UNLOADING || host->entries[i].state == MODEL_UNLOADED;
    }
    return removed;
}

void table_update_state_locked(struct model_host *host)
{
    size_t ready, failed;
    choose_default_locked(host);
    count_names_locked(host, &ready, &failed);
    size_t required = host->required_total > 1 ? host->required_total : 1;
    if (host->settled)
        required = failed > 0 ? 1 : 0;
    const enum model_host_state loaded = host->awaits_sizes ? MODEL_HOST_LOADING : MODEL_HOST_READY;
    enum model_host_state state = host->draining             ? MODEL_HOST_DRAINING
                                  : ready >= required        ? loaded
                                  : failed > 0               ? MODEL_HOST_FAILED
                                  : is_unloaded_locked(host) ? MODEL_HOST_UNLOADED
                                                             : MODEL_HOST_LOADING;
    atomic_store_explicit(&host->state, (int)state, memory_order_release);
}

void model_host_announce(struct model_host *host, const char *name, const char *version,
                         size_t required_total)
{
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = version ? NULL : find_best_locked(host, name);
    if (!entry)
        entry = table_enter_locked(host, name, version ? version : "");
    if (entry && entry->state != MODEL_READY && entry->state != MODEL_LOADING) { /* tried again */
        entry->state = MODEL_LOADING;
        entry->progress = 0;
        entry->phase = PHASE_WAITING;
        entry->failure[0] = '\0';
    }
    if (entry && required_total > 0)
        entry->is_required = true;
    if (required_total > host->required_total)
        host->required_total = required_total;
    table_update_state_locked(host);
    pthread_mutex_unlock(&host->lock);
}

struct model_entry *table_find_announced_locked(struct model_host *host, const char *name,
                                                const char *version)
{
    struct model_entry *entry = version ? table_find_version_locked(host, name, version) : NULL;
    if (!entry)
        entry = table_find_version_locked(host, name, "");
    return entry || version ? entry : find_best_locked(host, name);
}

void model_host_fail(struct model_host *host, const char *name, const char *version,
                     const char *failure)
{
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = table_find_announced_locked(host, name, version);
    if (entry) {
        if (entry->state != MODEL_READY)
            entry->state = MODEL_FAILED;
        snprintf(entry->failure, sizeof entry->failure, "%s", failure);
    }
    table_update_state_locked(host);
    pthread_mutex_unlock(&host->lock);
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
        const struct model_entry *entry = &host->entries[i];
        const int seconds = entry->state == MODEL_LOADING ? table_seconds_left(entry) : 1;
        most = seconds > most ? seconds : most;
    }
    return most;
}

int model_host_retry_after(struct model_host *host)
{
    pthread_mutex_lock(&host->lock);
    const int seconds = table_retry_after_locked(host);
    pthread_mutex_unlock(&host->lock);
    return seconds;
}

void model_host_clear_failure(struct model_host *host, const char *name)
{
    pthread_mutex_lock(&host->lock);
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = &host->entries[i];
        if (entry->state == MODEL_READY && !strcmp(entry->name, name))
            entry->failure[0] = '\0';
    }
    pthread_mutex_unlock(&host->lock);
}

void model_host_settle(struct model_host *host)
{
    pthread_mutex_lock(&host->lock);
    host->settled = true;
    table_update_state_locked(host);
    pthread_mutex_unlock(&host->lock);
}

struct deployment_options table_deployment_options(const struct model_host *host,
                                                   struct model *model,
                                                   const struct precision_choice *choices,
                                                   const _Atomic int *cancel)
{
    return (struct deployment_options){.host = &host->options,
                                       .pool = host->pool,
                                       .budget = host->budget,
                                       .device_queues = host->device_queues,
                                       .model = model,
                                       .choices = choices,
                                       .cancel = cancel};
}

/* --- leaving --- */

void table_begin_retiring_locked(struct model_host *host, struct deployment *deployment)
{
    deployment->next_retiring = host->retiring;
    host->retiring = deployment;
}

/* Users of the deployment and of its other sizes. */
static size_t count_users(const struct deployment *deployment)
{
    size_t users = deployment->users;
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        users += deployment->sizes[i] ? deployment->sizes[i]->users : 0;
    return users;
}

static void wait_unused_locked(struct model_host *host, const struct deployment *deployment)
{
    while (count_users(deployment) > 0)
        condition_wait(&host->released, &host->lock, INT64_MAX);
}

void table_retire(struct model_host *host, struct deployment *deployment)
{
    pthread_mutex_lock(&host->lock);
    wait_unused_locked(host, deployment); /* users may still submit */
    pthread_mutex_unlock(&host->lock);
    deployment_retire(deployment);
    pthread_mutex_lock(&host->lock);
    wait_unused_locked(host, deployment); /* a drain may use deployments on the list */
    struct deployment **at = &host->retiring;
    while (*at != deployment)
        at = &(*at)->next_retiring;
    *at = deployment->next_retiring;
    deployment->has_left = true;
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        if (deployment->sizes[i])
            deployment->sizes[i]->has_left = true;
    pthread_mutex_unlock(&host->lock);
    deployment_end(deployment);
}

/* The next ready version to remove, put on the list; NULL: none. */
static struct deployment *take_one(struct model_host *host, const char *name, const char *version)
{
    struct deployment *taken = NULL;
    pthread_mutex_lock(&host->lock);
    for (size_t i = 0; !taken && i < host->entry_count; i++) {
        struct model_entry *entry = &host->entries[i];
        if (strcmp(entry->name, name) != 0 || !entry->deployment ||
            (version && strcmp(entry->version, version) != 0))
            continue;
        taken = entry->deployment;
        entry->deployment = NULL;
        entry->state = MODEL_UNLOADING;
        entry->failure[0] = '\0';
        table_begin_retiring_locked(host, taken);
    }
    table_update_state_locked(host);
    pthread_mutex_unlock(&host->lock);
    return taken;
}

/* Memory has become free: sizes that it had no room for are compiled when they are wanted again. */
static void forget_shortages_locked(struct model_host *host)
{
    for (size_t i = 0; i < host->entry_count; i++) {
        struct deployment *deployment = host->entries[i].deployment;
        for (size_t k = 0; deployment && k < DEPLOYMENT_FAILED_SIZES; k++)
            if (deployment->failed[k].is_short)
                deployment->failed[k] = (struct failed_size){0};
    }
}

enum status model_host_remove_model(struct model_host *host, const char *name, const char *version,
                                    bool forget, struct error *err)
{
    size_t found = 0;
    struct deployment *deployment;
    while ((deployment = take_one(host, name, version)) != NULL)
        table_retire(host, deployment);
    pthread_mutex_lock(&host->lock);
    forget_shortages_locked(host);
    for (size_t i = host->entry_count; i-- > 0;) {
        struct model_entry *entry = &host->entries[i];
        if (strcmp(entry->name, name) != 0 || entry->deployment ||
            (version && strcmp(entry->version, version) != 0))
            continue;
        found++;
        free(entry->stages);
        entry->stages = NULL;
        entry->state = MODEL_UNLOADED;
        if (forget)
            leave_locked(host, entry);
    }
    table_update_state_locked(host);
    pthread_mutex_unlock(&host->lock);
    if (found == 0)
        return error_set(err, STATUS_NOT_FOUND, "there is no model '%.128s'%s%.20s", name,
                         version ? " of version " : "", version ? version : "");
    return STATUS_OK;
}
