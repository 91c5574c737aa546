/* Models and versions coming and going.
 *
 *     announce ─▶ LOADING ─▶ READY ─▶ UNLOADING ─▶ UNLOADED, or out of the table
 *                    └─▶ FAILED
 *
 * A version that is READY and loaded again stays READY throughout: its instance is exchanged. */
#include "server/schedule/runtime/pipeline_table.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/thread.h"

/* What a load does before it reports. */
#define PHASE_WAITING "waiting"

/* Newer is greater; names that are no numbers come before those that are. */
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

struct model_entry *table_find_version_locked(struct pipeline *pipeline, const char *name,
                                              const char *version)
{
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        struct model_entry *entry = &pipeline->entries[i];
        if (!strcmp(entry->name, name) && !strcmp(entry->version, version))
            return entry;
    }
    return NULL;
}

/* Of one name: a ready one before others, then the newest. */
static struct model_entry *find_best_locked(struct pipeline *pipeline, const char *name)
{
    struct model_entry *best = NULL;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        struct model_entry *entry = &pipeline->entries[i];
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

/* The first model that was served, while it is; then the first of the table that is. */
static const char *default_name_locked(struct pipeline *pipeline)
{
    const struct model_entry *first = find_best_locked(pipeline, pipeline->default_name);
    if (first && first->state == MODEL_READY)
        return first->name;
    for (size_t i = 0; i < pipeline->entry_count; i++)
        if (pipeline->entries[i].state == MODEL_READY)
            return pipeline->entries[i].name;
    return pipeline->entry_count > 0 ? pipeline->entries[0].name : NULL;
}

struct model_entry *table_find_locked(struct pipeline *pipeline, const char *name,
                                      const char *version)
{
    if (!name)
        name = default_name_locked(pipeline);
    if (!name)
        return NULL;
    return version && *version ? table_find_version_locked(pipeline, name, version)
                               : find_best_locked(pipeline, name);
}

void table_release(struct pipeline *pipeline, struct instance *instance)
{
    pthread_mutex_lock(&pipeline->lock);
    bool last = --instance->users == 0;
    bool wake = last && pipeline->retiring;
    pthread_mutex_unlock(&pipeline->lock);
    if (wake)
        pthread_cond_broadcast(&pipeline->released);
}

/* The entry of a version, a new one if need be; NULL when the table is full. What was announced
 * without a version gets it now. */
static struct model_entry *table_enter_locked(struct pipeline *pipeline, const char *name,
                                              const char *version)
{
    struct model_entry *entry = table_find_version_locked(pipeline, name, version);
    if (!entry && (entry = table_find_version_locked(pipeline, name, "")) != NULL)
        snprintf(entry->version, sizeof entry->version, "%s", version);
    if (entry || pipeline->entry_count == PIPELINE_MAX_MODELS)
        return entry;
    entry = &pipeline->entries[pipeline->entry_count++];
    *entry =
        (struct model_entry){.state = MODEL_LOADING, .phase = PHASE_WAITING, .begun = clock_now()};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->version, sizeof entry->version, "%s", version);
    return entry;
}

static void leave_locked(struct pipeline *pipeline, struct model_entry *entry)
{
    size_t behind = (size_t)(pipeline->entries + pipeline->entry_count - entry) - 1;
    free(entry->stages);
    memmove(entry, entry + 1, behind * sizeof *entry);
    pipeline->entry_count--;
}

/* Names of which a version is ready; names of which none is, and one failed. */
static void count_names_locked(struct pipeline *pipeline, size_t *ret_ready, size_t *ret_failed)
{
    *ret_ready = *ret_failed = 0;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const struct model_entry *entry = &pipeline->entries[i];
        const struct model_entry *best = find_best_locked(pipeline, entry->name);
        if (best->state != MODEL_READY)
            *ret_failed += entry->state == MODEL_FAILED;
        else if (best == entry)
            ++*ret_ready;
    }
}

/* Whether models were removed, and none is being loaded. */
static bool is_unloaded_locked(const struct pipeline *pipeline)
{
    bool removed = false;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        if (pipeline->entries[i].state == MODEL_LOADING)
            return false;
        removed |= pipeline->entries[i].state == MODEL_UNLOADING ||
                   pipeline->entries[i].state == MODEL_UNLOADED;
    }
    return removed;
}

void table_update_state_locked(struct pipeline *pipeline)
{
    size_t ready, failed;
    count_names_locked(pipeline, &ready, &failed);
    size_t required = pipeline->required_total > 1 ? pipeline->required_total : 1;
    if (pipeline->settled)
        required = failed > 0 ? 1 : 0;
    const enum pipeline_state loaded = pipeline->awaits_sizes ? PIPELINE_LOADING : PIPELINE_READY;
    enum pipeline_state state = pipeline->draining             ? PIPELINE_DRAINING
                                : ready >= required            ? loaded
                                : failed > 0                   ? PIPELINE_FAILED
                                : is_unloaded_locked(pipeline) ? PIPELINE_UNLOADED
                                                               : PIPELINE_LOADING;
    atomic_store_explicit(&pipeline->state, (int)state, memory_order_release);
}

void pipeline_announce(struct pipeline *pipeline, const char *name, const char *version,
                       size_t required_total)
{
    pthread_mutex_lock(&pipeline->lock);
    struct model_entry *entry = version ? NULL : find_best_locked(pipeline, name);
    if (!entry)
        entry = table_enter_locked(pipeline, name, version ? version : "");
    if (entry && entry->state != MODEL_READY && entry->state != MODEL_LOADING) { /* tried again */
        entry->state = MODEL_LOADING;
        entry->progress = 0;
        entry->phase = PHASE_WAITING;
        entry->failure[0] = '\0';
    }
    if (required_total > pipeline->required_total)
        pipeline->required_total = required_total;
    table_update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
}

static struct model_entry *find_announced_locked(struct pipeline *pipeline, const char *name,
                                                 const char *version)
{
    struct model_entry *entry = version ? table_find_version_locked(pipeline, name, version) : NULL;
    if (!entry)
        entry = table_find_version_locked(pipeline, name, "");
    return entry || version ? entry : find_best_locked(pipeline, name);
}

void pipeline_fail(struct pipeline *pipeline, const char *name, const char *version,
                   const char *failure)
{
    pthread_mutex_lock(&pipeline->lock);
    struct model_entry *entry = find_announced_locked(pipeline, name, version);
    if (entry) {
        if (entry->state != MODEL_READY)
            entry->state = MODEL_FAILED;
        snprintf(entry->failure, sizeof entry->failure, "%s", failure);
    }
    table_update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
}

int table_seconds_left(const struct model_entry *entry)
{
    enum { MOST = 3600 };
    const double seconds = clock_ms(clock_now() - entry->begun) * 1e-3;
    const double left =
        entry->progress > 0 ? ceil(seconds * (1 - entry->progress) / entry->progress) : 1;
    return left < 1 ? 1 : left > MOST ? MOST : (int)left;
}

int pipeline_retry_after(struct pipeline *pipeline)
{
    int most = 1;
    pthread_mutex_lock(&pipeline->lock);
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const struct model_entry *entry = &pipeline->entries[i];
        const int seconds = entry->state == MODEL_LOADING ? table_seconds_left(entry) : 1;
        most = seconds > most ? seconds : most;
    }
    pthread_mutex_unlock(&pipeline->lock);
    return most;
}

void pipeline_mend(struct pipeline *pipeline, const char *name)
{
    pthread_mutex_lock(&pipeline->lock);
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        struct model_entry *entry = &pipeline->entries[i];
        if (entry->state == MODEL_READY && !strcmp(entry->name, name))
            entry->failure[0] = '\0';
    }
    pthread_mutex_unlock(&pipeline->lock);
}

void pipeline_settle(struct pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->lock);
    pipeline->settled = true;
    table_update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
}

/* --- leaving --- */

void table_begin_retiring_locked(struct pipeline *pipeline, struct instance *instance)
{
    instance->next_retiring = pipeline->retiring;
    pipeline->retiring = instance;
}

/* Users of the instance and of its other sizes. */
static size_t count_users(const struct instance *instance)
{
    size_t users = instance->users;
    for (size_t i = 0; i < INSTANCE_SIZES; i++)
        users += instance->sizes[i] ? instance->sizes[i]->users : 0;
    return users;
}

static void wait_unused_locked(struct pipeline *pipeline, const struct instance *instance)
{
    while (count_users(instance) > 0)
        condition_wait(&pipeline->released, &pipeline->lock, INT64_MAX);
}

void table_retire(struct pipeline *pipeline, struct instance *instance)
{
    pthread_mutex_lock(&pipeline->lock);
    wait_unused_locked(pipeline, instance); /* who holds it may submit still */
    pthread_mutex_unlock(&pipeline->lock);
    instance_retire(instance);
    pthread_mutex_lock(&pipeline->lock);
    wait_unused_locked(pipeline, instance); /* a drain may look at what is on the list */
    struct instance **at = &pipeline->retiring;
    while (*at != instance)
        at = &(*at)->next_retiring;
    *at = instance->next_retiring;
    instance->served->instance = NULL;
    for (size_t i = 0; i < INSTANCE_SIZES; i++)
        if (instance->sizes[i])
            instance->sizes[i]->served->instance = NULL;
    pthread_mutex_unlock(&pipeline->lock);
    instance_free(instance);
}

/* The next ready version to remove, put on the list; NULL: none. */
static struct instance *take_one(struct pipeline *pipeline, const char *name, const char *version)
{
    struct instance *taken = NULL;
    pthread_mutex_lock(&pipeline->lock);
    for (size_t i = 0; !taken && i < pipeline->entry_count; i++) {
        struct model_entry *entry = &pipeline->entries[i];
        if (strcmp(entry->name, name) != 0 || !entry->instance ||
            (version && strcmp(entry->version, version) != 0))
            continue;
        taken = entry->instance;
        entry->instance = NULL;
        entry->state = MODEL_UNLOADING;
        entry->failure[0] = '\0';
        table_begin_retiring_locked(pipeline, taken);
    }
    table_update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
    return taken;
}

enum status pipeline_remove_model(struct pipeline *pipeline, const char *name, const char *version,
                                  bool forget, struct error *err)
{
    size_t found = 0;
    struct instance *instance;
    while ((instance = take_one(pipeline, name, version)) != NULL)
        table_retire(pipeline, instance);
    pthread_mutex_lock(&pipeline->lock);
    for (size_t i = pipeline->entry_count; i-- > 0;) {
        struct model_entry *entry = &pipeline->entries[i];
        if (strcmp(entry->name, name) != 0 || entry->instance ||
            (version && strcmp(entry->version, version) != 0))
            continue;
        found++;
        free(entry->stages);
        entry->stages = NULL;
        entry->state = MODEL_UNLOADED;
        if (forget)
            leave_locked(pipeline, entry);
    }
    table_update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
    if (found == 0)
        return error_set(err, STATUS_NOT_FOUND, "there is no model '%.128s'%s%.20s", name,
                         version ? " of version " : "", version ? version : "");
    return STATUS_OK;
}

/* --- adding --- */

struct loading {
    struct pipeline *pipeline;
    const char *name, *version;
    bool completes; /* a first instance, of the same weights */
};

static void on_progress(void *context, const char *phase, double fraction)
{
    const struct loading *loading = context;
    struct pipeline *pipeline = loading->pipeline;
    pthread_mutex_lock(&pipeline->lock);
    struct model_entry *entry = find_announced_locked(pipeline, loading->name, loading->version);
    if (entry && entry->state == MODEL_LOADING) {
        if (entry->progress == 0)
            entry->begun = clock_now();
        entry->progress = fraction > entry->progress ? fraction : entry->progress;
        entry->phase = phase;
    }
    pthread_mutex_unlock(&pipeline->lock);
}

static enum status no_place(struct error *err)
{
    return error_set(err, STATUS_CONFIG,
                     "%d models and versions are served, which is the most; unload one, or serve "
                     "further ones by another lensd",
                     PIPELINE_MAX_MODELS);
}

static enum status table_begin(struct pipeline *pipeline, const char *name, const char *version,
                               struct error *err)
{
    enum status status = STATUS_OK;
    pthread_mutex_lock(&pipeline->lock);
    if (strlen(name) >= sizeof pipeline->entries->name)
        status = error_set(err, STATUS_CONFIG,
                           "the model's name has %zu bytes; at most %zu are possible, give it a "
                           "shorter one",
                           strlen(name), sizeof pipeline->entries->name - 1);
    else if (strlen(version) >= sizeof pipeline->entries->version)
        status = error_set(err, STATUS_CONFIG,
                           "version '%.40s' of model '%s' has more than %zu characters", version,
                           name, sizeof pipeline->entries->version - 1);
    else if (pipeline->draining)
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    else if (!table_enter_locked(pipeline, name, version))
        status = no_place(err);
    pthread_mutex_unlock(&pipeline->lock);
    return status;
}

enum status table_create_size(struct pipeline *pipeline, const struct instance *base,
                              struct model *model, struct instance_size size,
                              const _Atomic int *cancel, struct instance **ret, struct error *err)
{
    struct precision_choice choices[DEVICE_KINDS];
    memcpy(choices, base->choices, sizeof choices); /* changed by this thread alone */
    model->task.options = base->served->model->task.options;
    model_set_size(model, size.height, size.width);
    return instance_create(&pipeline->options, pipeline->pool, pipeline->budget,
                           pipeline->device_queues, model, choices, PLAN_MEASURE, NULL, NULL,
                           cancel, ret, err);
}

static bool hands_over_sizes(const struct loading *loading, const struct instance *old)
{
    return loading->completes && old->plan == PLAN_FIRST;
}

/* What completes a first instance takes over its sizes, which have the same weights and precision.
 */
static void hand_over_sizes(struct instance *from, struct instance *to)
{
    memcpy(to->sizes, from->sizes, sizeof to->sizes);
    memset(from->sizes, 0, sizeof from->sizes);
    memcpy(to->failed, from->failed, sizeof to->failed);
    to->failed_count = from->failed_count;
    to->wanted = from->wanted;
    to->used_at = from->used_at;
}

/* The sizes of what is served, that have to be compiled again; returns how many. */
static size_t sizes_to_carry(const struct loading *loading,
                             struct instance_size ret[static INSTANCE_SIZES])
{
    struct pipeline *pipeline = loading->pipeline;
    size_t count = 0;
    pthread_mutex_lock(&pipeline->lock);
    const struct model_entry *entry =
        table_find_version_locked(pipeline, loading->name, loading->version);
    const struct instance *old = entry ? entry->instance : NULL;
    for (size_t i = 0; old && !hands_over_sizes(loading, old) && i < INSTANCE_SIZES; i++)
        if (old->sizes[i]) {
            const struct preprocess *p = &old->sizes[i]->served->model->preprocess;
            ret[count++] = (struct instance_size){p->height, p->width};
        }
    pthread_mutex_unlock(&pipeline->lock);
    return count;
}

/* Compiles the sizes in use for `instance` before it is served, so that no request for them is
 * refused. Sizes that fail are left out. STATUS_CANCELLED. */
static enum status carry_sizes(const struct loading *loading, struct instance *instance,
                               const _Atomic int *cancel, struct error *err)
{
    const struct pipeline_source *source = &loading->pipeline->source;
    const struct model *own = instance->served->model;
    struct instance_size sizes[INSTANCE_SIZES];
    const size_t count = source->read ? sizes_to_carry(loading, sizes) : 0;
    for (size_t i = 0; i < count; i++) {
        const struct instance_size size = sizes[i];
        struct error left_out;
        struct model *model;
        const bool is_own =
            own->preprocess.height == size.height && own->preprocess.width == size.width;
        if (is_own || model_check_size(own, size.height, size.width, &left_out) != STATUS_OK ||
            source->read(source->context, loading->name, loading->version, &model, &left_out) !=
                STATUS_OK)
            continue;
        if (table_create_size(loading->pipeline, instance, model, size, cancel, &instance->sizes[i],
                              &left_out) == STATUS_CANCELLED)
            return error_set(err, STATUS_CANCELLED, "%s", left_out.message);
    }
    return STATUS_OK;
}

void table_set_generation(struct instance *instance, uint64_t generation)
{
    instance->served->generation = generation;
    for (size_t i = 0; i < INSTANCE_SIZES; i++)
        if (instance->sizes[i])
            instance->sizes[i]->served->generation = generation;
}

/* Switches the table over, to an instance or to the stages of a pipeline. *ret_old: what was there
 * before, on the list; NULL: nothing. */
static enum status publish(const struct loading *loading, struct instance *instance,
                           struct pipeline_config *stages, struct instance **ret_old,
                           struct error *err)
{
    struct pipeline *pipeline = loading->pipeline;
    pthread_mutex_lock(&pipeline->lock);
    struct model_entry *entry = NULL;
    enum status status = STATUS_OK;
    *ret_old = NULL;
    if (pipeline->draining)
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    else if (!(entry = table_enter_locked(pipeline, loading->name, loading->version)))
        status = no_place(err);
    if (status == STATUS_OK) {
        *ret_old = entry->instance;
        if (entry->instance && hands_over_sizes(loading, entry->instance))
            hand_over_sizes(entry->instance, instance);
        if (entry->instance)
            table_begin_retiring_locked(pipeline, entry->instance);
        entry->instance = instance;
        if (instance)
            table_set_generation(instance, ++pipeline->generations);
        free(entry->stages);
        entry->stages = stages;
        pipeline->awaits_sizes |= stages && atomic_load(&pipeline->state) != PIPELINE_READY;
        entry->progress = 1;
        entry->state = MODEL_READY;
        entry->failure[0] = '\0';
        if (!pipeline->default_name[0])
            snprintf(pipeline->default_name, sizeof pipeline->default_name, "%s", entry->name);
        table_update_state_locked(pipeline);
    }
    pthread_mutex_unlock(&pipeline->lock);
    return status;
}

/* Whether to serve single images first and to compile the rest later. */
static bool starts_quickly(struct pipeline *pipeline, const struct model *model)
{
    const struct pipeline_options *options = &pipeline->options;
    bool starts = options->trials == TRIALS_LATER && options->max_batch == 0;
    for (size_t i = 0; i < options->device_count; i++)
        starts = starts && options->devices[i].kind == DEVICE_CPU;
    pthread_mutex_lock(&pipeline->lock);
    const struct model_entry *entry =
        table_find_version_locked(pipeline, model->name, model->version);
    starts = starts && !(entry && entry->instance); /* which must not become slower */
    pthread_mutex_unlock(&pipeline->lock);
    return starts;
}

/* `choices`: as instance_create's; of the model that is served, where they are given. */
static enum status add_model(struct pipeline *pipeline, struct model *model,
                             const struct precision_choice *choices, const _Atomic int *cancel,
                             struct error *err)
{
    char name[sizeof pipeline->entries->name], version[sizeof pipeline->entries->version];
    struct error failure = {0};
    if (pipeline->options.task_options)
        model->task.options =
            task_options_merge(pipeline->options.task_options, &model->task.options);
    enum status status = model_find_classes(model, &model->task.options, &failure);
    if (status == STATUS_OK)
        status = table_begin(pipeline, model->name, model->version, &failure);
    if (status != STATUS_OK) {
        model_free(model);
        if (err)
            *err = failure;
        return status;
    }
    snprintf(name, sizeof name, "%s", model->name);
    snprintf(version, sizeof version, "%s", model->version);
    struct loading loading = {pipeline, name, version, .completes = choices};
    const enum instance_plan plan = choices                           ? PLAN_KNOWN
                                    : starts_quickly(pipeline, model) ? PLAN_FIRST
                                                                      : PLAN_MEASURE;
    struct instance *instance = NULL, *old = NULL;
    status = instance_create(&pipeline->options, pipeline->pool, pipeline->budget,
                             pipeline->device_queues, model, choices, plan, on_progress, &loading,
                             cancel, &instance, &failure);
    if (status != STATUS_OK)
        error_prefix(&failure, "%s", name);
    if (status == STATUS_OK)
        status = carry_sizes(&loading, instance, cancel, &failure);
    if (status == STATUS_OK)
        status = publish(&loading, instance, NULL, &old, &failure);
    if (status == STATUS_OK) {
        if (old)
            table_retire(pipeline, old);
        return STATUS_OK;
    }
    if (!choices) /* else the version that is served was not to be replaced */
        pipeline_fail(pipeline, name, version, failure.message);
    instance_free(instance);
    if (err)
        *err = failure;
    return status;
}

enum status pipeline_add_model(struct pipeline *pipeline, struct model *model,
                               const _Atomic int *cancel, struct error *err)
{
    return add_model(pipeline, model, NULL, cancel, err);
}

enum status pipeline_add_stages(struct pipeline *pipeline, const char *name, const char *version,
                                const struct pipeline_config *config, struct error *err)
{
    const struct loading loading = {pipeline, name, version};
    struct instance *old = NULL;
    struct error failure = {0};
    struct pipeline_config *stages = malloc(sizeof *stages);
    enum status status = stages ? table_begin(pipeline, name, version, &failure)
                                : error_no_memory(&failure, "for a pipeline");
    if (status == STATUS_OK) {
        *stages = *config;
        status = publish(&loading, NULL, stages, &old, &failure);
    }
    if (status == STATUS_OK) {
        if (old)
            table_retire(pipeline, old);
        return STATUS_OK;
    }
    free(stages);
    pipeline_fail(pipeline, name, version, failure.message);
    if (err)
        *err = failure;
    return status;
}

/* --- precisions --- */

static bool is_pending(const struct instance *instance)
{
    bool is_pending = false;
    for (size_t k = 0; k < DEVICE_KINDS; k++)
        is_pending = is_pending ||
                     (instance->choices[k].why[0] && instance->choices[k].origin == CHOICE_PENDING);
    return is_pending;
}

bool pipeline_next_trial(struct pipeline *pipeline, char name[static 128], char version[static 16])
{
    bool found = false;
    pthread_mutex_lock(&pipeline->lock);
    for (size_t i = 0; !found && i < pipeline->entry_count; i++) {
        const struct model_entry *entry = &pipeline->entries[i];
        found =
            entry->instance && (entry->instance->plan == PLAN_FIRST || is_pending(entry->instance));
        if (found) {
            snprintf(name, 128, "%s", entry->name);
            snprintf(version, 16, "%s", entry->version);
        }
    }
    pthread_mutex_unlock(&pipeline->lock);
    return found;
}

void pipeline_skip_trial(struct pipeline *pipeline, const char *name, const char *version,
                         const char *why)
{
    pthread_mutex_lock(&pipeline->lock);
    const struct model_entry *entry = table_find_version_locked(pipeline, name, version);
    struct instance *instance = entry ? entry->instance : NULL;
    if (instance && instance->plan == PLAN_FIRST) {
        instance->plan = PLAN_KNOWN;
        log_event(LOG_WARN, "model incomplete", LOG_STR("model", name), LOG_STR("error", why),
                  LOG_STR("text", "images are run one by one; load the model again"));
    }
    for (size_t k = 0; instance && k < DEVICE_KINDS; k++) {
        struct precision_choice *choice = &instance->choices[k];
        if (!choice->why[0] || choice->origin != CHOICE_PENDING)
            continue;
        choice->origin = CHOICE_ONLY;
        snprintf(choice->why, sizeof choice->why, "%s", why);
    }
    pthread_mutex_unlock(&pipeline->lock);
}

struct instance *table_use_version(struct pipeline *pipeline, const char *name, const char *version)
{
    pthread_mutex_lock(&pipeline->lock);
    const struct model_entry *entry = table_find_version_locked(pipeline, name, version);
    struct instance *instance = entry ? entry->instance : NULL;
    if (instance)
        instance->users++;
    pthread_mutex_unlock(&pipeline->lock);
    return instance;
}

/* Puts a session of the precision that won in the place of the one in fp32. */
static enum status change_over(struct pipeline *pipeline, struct model *model,
                               const struct precision_choice *choices, const _Atomic int *cancel,
                               struct error *err)
{
    char name[128], version[16], why[256];
    snprintf(name, sizeof name, "%s", model->name);
    snprintf(version, sizeof version, "%s", model->version);
    const enum status status = add_model(pipeline, model, choices, cancel, err);
    for (size_t k = 0; status == STATUS_OK && k < DEVICE_KINDS; k++)
        if (choices[k].why[0] && choices[k].precision != PRECISION_FP32)
            log_event(LOG_INFO, "precision changed", LOG_STR("model", name),
                      LOG_STR("from", "fp32"), LOG_STR("to", precision_name(choices[k].precision)),
                      LOG_STR("text", "from now on requests are answered in this precision"));
    if (status == STATUS_OK || status == STATUS_CANCELLED)
        return status;
    snprintf(why, sizeof why, "a faster precision was chosen but could not be opened: %.180s",
             err->message);
    log_event(LOG_WARN, "precision not changed", LOG_STR("model", name), LOG_STR("text", why));
    pipeline_skip_trial(pipeline, name, version, why);
    return STATUS_OK;
}

/* Puts what runs batches, with measured kernels, in the place of a first instance. */
static enum status complete(struct pipeline *pipeline, struct model *model,
                            const struct precision_choice *choices, const _Atomic int *cancel,
                            struct error *err)
{
    char name[128], version[16];
    snprintf(name, sizeof name, "%s", model->name);
    snprintf(version, sizeof version, "%s", model->version);
    enum status status =
        instance_measure_kernels(&pipeline->options, pipeline->budget, model, choices, cancel, err);
    if (status == STATUS_OK)
        status = add_model(pipeline, model, choices, cancel, err);
    else
        model_free(model);
    if (status == STATUS_OK)
        log_event(LOG_INFO, "model complete", LOG_STR("model", name),
                  LOG_STR("text", "kernels are measured; batches run from now on"));
    else if (status != STATUS_CANCELLED)
        pipeline_skip_trial(pipeline, name, version, err->message);
    return status == STATUS_CANCELLED ? status : STATUS_OK;
}

enum status pipeline_try_precision(struct pipeline *pipeline, struct model *model,
                                   const _Atomic int *cancel, struct error *err)
{
    struct precision_choice choices[DEVICE_KINDS];
    struct instance *instance = table_use_version(pipeline, model->name, model->version);
    if (!instance) {
        model_free(model);
        return STATUS_OK;
    }
    memcpy(choices, instance->choices, sizeof choices); /* changed by this thread alone */
    if (instance->plan == PLAN_FIRST) {
        table_release(pipeline, instance);
        return complete(pipeline, model, choices, cancel, err);
    }
    enum status status = instance_try_precision(instance, &pipeline->options, pipeline->budget,
                                                model, cancel, choices, err);
    bool has_won = false;
    for (size_t k = 0; k < DEVICE_KINDS; k++)
        has_won = has_won || (choices[k].why[0] && choices[k].precision != PRECISION_FP32);
    if (status == STATUS_OK && !has_won) {
        pthread_mutex_lock(&pipeline->lock);
        memcpy(instance->choices, choices, sizeof choices);
        pthread_mutex_unlock(&pipeline->lock);
    } else if (status != STATUS_OK && status != STATUS_CANCELLED) {
        pipeline_skip_trial(pipeline, model->name, model->version, err->message);
    }
    table_release(pipeline, instance); /* before the replacement, which waits for all users */
    if (status == STATUS_OK && has_won)
        status = change_over(pipeline, model, choices, cancel, err);
    else
        model_free(model);
    malloc_trim(0); /* the heap is fragmented after a trial */
    return status == STATUS_CANCELLED ? status : STATUS_OK;
}
