/* The sizes of a model with free height and width, or with rows of tokens of any length. Each size
 * is an additional deployment; for tokens height is 1 and width is the length of a row. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/model_table.h"

static struct stage_size size_of(const struct deployment *deployment)
{
    const struct preprocess *p = &deployment->model->preprocess;
    return (struct stage_size){p->width, p->height};
}

static bool is_same_size(struct stage_size a, struct stage_size b)
{
    return a.height == b.height && a.width == b.width;
}

static bool has_size(const struct deployment *deployment, struct stage_size size)
{
    return is_same_size(size_of(deployment), size);
}

/* Returns the deployment for a size; NULL: the size is not compiled. entry->deployment must not be
 * NULL, also in the functions below. */
static struct deployment *find_size_locked(struct model_entry *entry, struct stage_size size)
{
    if (has_size(entry->deployment, size))
        return entry->deployment;
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        if (entry->sizes[i] && has_size(entry->sizes[i], size)) {
            entry->sizes[i]->used_at = clock_now();
            return entry->sizes[i];
        }
    return NULL;
}

static double size_distance(const struct deployment *deployment, struct stage_size size)
{
    const struct preprocess *p = &deployment->model->preprocess;
    return fabs(log((double)p->height / size.height)) + fabs(log((double)p->width / size.width));
}

static struct deployment *find_nearest_locked(struct model_entry *entry, struct stage_size size)
{
    struct deployment *nearest = entry->deployment;
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++)
        if (entry->sizes[i] && size_distance(entry->sizes[i], size) < size_distance(nearest, size))
            nearest = entry->sizes[i];
    if (nearest != entry->deployment)
        nearest->used_at = clock_now();
    return nearest;
}

/* True if a pipeline's stage names this size of the model. */
static bool is_named_locked(const struct model_host *host, const struct model_entry *entry,
                            struct stage_size size)
{
    for (size_t e = 0; e < host->entry_count; e++) {
        const struct pipeline_config *stages = host->entries[e]->stages;
        for (size_t s = 0; stages && s < stages->stage_count; s++) {
            const struct pipeline_stage *stage = &stages->stages[s];
            if (strcmp(stage->model, entry->name) != 0)
                continue;
            for (size_t i = 0; i < stage->size_count; i++)
                if (is_same_size(stage->sizes[i], size))
                    return true;
        }
    }
    return false;
}

/* Returns a free element of entry->sizes if `may_be_free` and there is one, else the element with
 * the least recently used size that no pipeline names; NULL if there is none. */
static struct deployment **spare_place_locked(const struct model_host *host,
                                              struct model_entry *entry, bool may_be_free)
{
    struct deployment **oldest = NULL;
    for (size_t i = 0; i < DEPLOYMENT_SIZES; i++) {
        struct deployment **at = &entry->sizes[i];
        if (!*at && may_be_free)
            return at;
        if (*at && (!oldest || (*at)->used_at < (*oldest)->used_at) &&
            !is_named_locked(host, entry, size_of(*at)))
            oldest = at;
    }
    return oldest;
}

/* Returns the element of entry->sizes for `size`; a size that a pipeline names replaces the least
 * recently used one if necessary. NULL: pipelines name all sizes there, but not `size`. */
static struct deployment **choose_place_locked(const struct model_host *host,
                                               struct model_entry *entry, struct stage_size size)
{
    struct deployment **place = spare_place_locked(host, entry, true);
    const bool may_be_any = !place && is_named_locked(host, entry, size);
    for (size_t i = 0; may_be_any && i < DEPLOYMENT_SIZES; i++)
        if (!place || entry->sizes[i]->used_at < (*place)->used_at)
            place = &entry->sizes[i];
    return place;
}

/* Returns the record of the size's failure; NULL: the size has not failed, or the record was
 * replaced. For size 0 x 0 returns an unused record. */
static struct failed_size *find_failed_size(struct model_entry *entry, struct stage_size size)
{
    for (size_t i = 0; i < FAILED_SIZES; i++)
        if (is_same_size(entry->failed[i].size, size))
            return &entry->failed[i];
    return NULL;
}

static enum status explain_missing_size(const struct model_host *host, struct model_entry *entry,
                                        struct stage_size size, struct error *err)
{
    const char *name = entry->name;
    const struct deployment *base = entry->deployment;
    const struct preprocess *own = &base->model->preprocess;
    /* Estimates the time to compile: that of the model's own size, times the ratio of pixels if
     * `size` is larger. */
    const double pixels = (double)size.height * size.width,
                 own_pixels = (double)own->height * own->width;
    const double ratio = own_pixels > 0 && pixels > own_pixels ? pixels / own_pixels : 1;
    const double seconds = ceil(base->load_ms * 1e-3 * ratio);
    const int wait = seconds < 1 ? 1 : seconds > 3600 ? 3600 : (int)seconds;
    const struct failed_size *failed = find_failed_size(entry, size);
    if (failed && failed->is_short)
        return error_set(err, STATUS_SHORT_OF_MEMORY,
                         "memory has no room for model '%s' at %d x %d pixels: %s; /predict takes "
                         "the nearest size: size=~%dx%d",
                         name, size.width, size.height, failed->why, size.width, size.height);
    if (failed)
        return error_set(err, STATUS_INVALID, "model '%s' does not work with %d x %d pixels: %s",
                         name, size.width, size.height, failed->why);
    if (!choose_place_locked(host, entry, size))
        return error_set(err, STATUS_INVALID,
                         "model '%s' keeps %d sizes besides its own, and pipelines name all of "
                         "them; request one of these, or the nearest from /predict: size=~%dx%d",
                         name, DEPLOYMENT_SIZES, size.width, size.height);
    entry->wanted = size;
    error_set(err, STATUS_NOT_READY,
              "model '%s' is being compiled for %d x %d pixels; try again in %d s", name,
              size.width, size.height, wait);
    err->retry_after_s = wait;
    return STATUS_NOT_READY;
}

enum status model_host_acquire_size(struct model_host *host, struct deployment *deployment,
                                    int height, int width, enum size_choice choice,
                                    struct deployment **ret, struct error *err)
{
    const struct stage_size size = {width, height};
    struct deployment *found = NULL;
    enum status status = STATUS_OK;
    if (height < 1 || width < 1 || height > MODEL_SIDE_MAX || width > MODEL_SIDE_MAX)
        return error_set(err, STATUS_INVALID,
                         "the size %d x %d is not possible; a side must have 1 to %d pixels", width,
                         height, MODEL_SIDE_MAX);
    pthread_mutex_lock(&host->lock);
    /* The caller's deployment may have been replaced or removed meanwhile. */
    struct model_entry *entry =
        table_find_version_locked(host, deployment->model->name, deployment->model->version);
    const bool is_here = entry && entry->deployment;
    const struct failed_size *failed = is_here ? find_failed_size(entry, size) : NULL;
    found = is_here                      ? find_size_locked(entry, size)
            : has_size(deployment, size) ? deployment
                                         : NULL;
    if (!found && is_here &&
        (choice == SIZE_NEAREST || (choice == SIZE_NEAREST_IF_SHORT && failed && failed->is_short)))
        found = find_nearest_locked(entry, size);
    if (!found && !deployment->takes_images)
        status =
            error_set(err, STATUS_INVALID, "model '%s' takes no photos, and only photos have sizes",
                      deployment->model->name);
    else if (!found)
        status = model_check_size(deployment->model, height, width, err);
    if (found)
        found->users++;
    else if (status == STATUS_OK && is_here)
        status = explain_missing_size(host, entry, size, err);
    else if (status == STATUS_OK)
        status = error_set(err, STATUS_NOT_READY, "model '%s' has been unloaded",
                           deployment->model->name);
    pthread_mutex_unlock(&host->lock);
    if (found)
        *ret = found;
    else if (status == STATUS_NOT_READY && host->source.wake)
        host->source.wake(host->source.context);
    return status;
}

size_t table_use_sizes(struct model_host *host, const struct deployment *base,
                       struct deployment *ret[static DEPLOYMENT_SIZES])
{
    size_t count = 0;
    LOCK(&host->lock);
    const struct model_entry *entry =
        table_find_version_locked(host, base->model->name, base->model->version);
    for (size_t i = 0; entry && i < DEPLOYMENT_SIZES; i++)
        if (entry->sizes[i]) {
            ret[count++] = entry->sizes[i];
            entry->sizes[i]->users++;
        }
    return count;
}

void model_host_set_source(struct model_host *host, const struct model_host_source *source)
{
    host->source = *source;
}

/* True if the size is neither compiled nor failed, entry->sizes has room, and a failure record is
 * unused: the size of a replaced record would be compiled, and fail, again. */
static bool may_add_size(const struct model_host *host, struct model_entry *entry,
                         struct stage_size size)
{
    return entry->deployment && find_failed_size(entry, (struct stage_size){0}) &&
           spare_place_locked(host, entry, true) && !find_size_locked(entry, size) &&
           !find_failed_size(entry, size) &&
           model_check_size(entry->deployment->model, size.height, size.width, NULL) == STATUS_OK;
}

struct deployment *model_host_acquire_length(struct model_host *host,
                                             const struct deployment *deployment, size_t tokens)
{
    const struct model *model = deployment->model;
    const struct stage_size size = {(int)text_input_row_length(&model->text, tokens), 1};
    struct deployment *found = NULL;
    if (!model->text.allows_short_rows)
        return NULL;
    pthread_mutex_lock(&host->lock);
    struct model_entry *entry = table_find_version_locked(host, model->name, model->version);
    for (size_t i = 0; entry && i < DEPLOYMENT_SIZES; i++) {
        struct deployment *at = entry->sizes[i];
        if (at && at->generation == deployment->generation && at->model->text.length >= tokens &&
            at->model->text.length < (found ? found : deployment)->model->text.length)
            found = at;
    }
    const bool is_new = entry && entry->wanted.height == 0 && may_add_size(host, entry, size);
    if (is_new)
        entry->wanted = size;
    if (found) {
        found->used_at = clock_now();
        found->users++;
    }
    pthread_mutex_unlock(&host->lock);
    if (is_new && host->source.wake)
        host->source.wake(host->source.context);
    return found;
}

/* Sets *ret to the next size that a stage names and that is not compiled; returns the model. NULL:
 * there is no such size. */
static const struct model_entry *next_stage_size_locked(struct model_host *host,
                                                        const struct pipeline_config *stages,
                                                        struct stage_size *ret)
{
    for (size_t s = 0; s < stages->stage_count; s++) {
        const struct pipeline_stage *stage = &stages->stages[s];
        struct model_entry *entry = table_find_locked(host, stage->model, NULL);
        for (size_t i = 0; entry && i < stage->size_count; i++) {
            *ret = stage->sizes[i];
            if (may_add_size(host, entry, *ret))
                return entry;
        }
    }
    return NULL;
}

/* Sets *ret to the next size that a client has requested, and returns the model; NULL: none. */
static const struct model_entry *next_wish_locked(const struct model_host *host,
                                                  struct stage_size *ret)
{
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = host->entries[i];
        *ret = entry->wanted;
        if (ret->height == 0)
            continue;
        if (choose_place_locked(host, entry, *ret))
            return entry;
        entry->wanted = (struct stage_size){0}; /* pipelines now name all compiled sizes */
    }
    return NULL;
}

/* Adds to `seen` the sizes of a model that the stages of pipeline `entry` name. STATUS_CONFIG:
 * there are more than DEPLOYMENT_SIZES. */
static enum status note_sizes(const struct deployment *base, const struct model_entry *entry,
                              struct stage_size seen[static DEPLOYMENT_SIZES], size_t *seen_count,
                              struct error *err)
{
    const struct model *model = base->model;
    for (size_t s = 0; s < entry->stages->stage_count; s++) {
        const struct pipeline_stage *stage = &entry->stages->stages[s];
        for (size_t i = 0; !strcmp(stage->model, model->name) && i < stage->size_count; i++) {
            const struct stage_size size = stage->sizes[i];
            size_t k = 0;
            while (k < *seen_count && !is_same_size(seen[k], size))
                k++;
            if (k < *seen_count || has_size(base, size) ||
                model_check_size(model, size.height, size.width, NULL) != STATUS_OK)
                continue;
            if (k == DEPLOYMENT_SIZES)
                return error_set(
                    err, STATUS_CONFIG,
                    "stage %zu of pipeline '%s' names %dx%d for model '%s', which can keep only %d "
                    "sizes besides its own, for all pipelines together, so this one replaces "
                    "another whenever it is requested; name fewer sizes",
                    s + 1, entry->name, size.width, size.height, model->name, DEPLOYMENT_SIZES);
            seen[(*seen_count)++] = size;
        }
    }
    return STATUS_OK;
}

int table_sizes_to_come_locked(struct model_host *host, const struct pipeline_config *stages)
{
    int count = 0;
    for (size_t s = 0; s < stages->stage_count; s++) {
        const struct pipeline_stage *stage = &stages->stages[s];
        struct model_entry *entry = table_find_locked(host, stage->model, NULL);
        for (size_t i = 0; entry && i < stage->size_count; i++) {
            count += entry->state == MODEL_LOADING || may_add_size(host, entry, stage->sizes[i]);
        }
    }
    return count;
}

size_t model_host_sizes_left(struct model_host *host)
{
    size_t count = 0;
    LOCK(&host->lock);
    for (size_t i = 0; i < host->entry_count; i++)
        if (host->entries[i]->stages)
            count += (size_t)table_sizes_to_come_locked(host, host->entries[i]->stages);
    return count;
}

int table_loads_to_come(struct model_host *host)
{
    int count = 0;
    LOCK(&host->lock);
    for (size_t i = 0; i < host->entry_count; i++) {
        const struct model_entry *entry = host->entries[i];
        count += entry->state == MODEL_LOADING;
        if (entry->stages)
            count += table_sizes_to_come_locked(host, entry->stages);
    }
    return count > 1 ? count - 1 : 0;
}

static enum status check_sizes_locked(struct model_host *host, const struct model_entry *asked,
                                      const char *model, struct error *err)
{
    struct stage_size seen[DEPLOYMENT_SIZES];
    size_t seen_count = 0;
    const struct model_entry *found = table_find_locked(host, model, NULL);
    for (size_t i = 0; found && found->deployment && i < host->entry_count; i++) {
        const struct model_entry *entry = host->entries[i];
        struct error theirs;
        enum status status = STATUS_OK;
        if (entry->stages)
            status = note_sizes(found->deployment, entry, seen, &seen_count,
                                entry == asked ? err : &theirs);
        if (entry == asked)
            return status;
    }
    return STATUS_OK;
}

enum status model_host_check_sizes(struct model_host *host, const char *name, const char *version,
                                   struct error *err)
{
    enum status status = STATUS_OK;
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_version_locked(host, name, version);
    for (size_t s = 0; entry && entry->stages && s < entry->stages->stage_count; s++)
        if (status == STATUS_OK)
            status = check_sizes_locked(host, entry, entry->stages->stages[s].model, err);
    return status;
}

/* Returns the deployment of the next model to compile for a size, with the caller as a user; NULL
 * if there is none. */
static struct deployment *next_size(struct model_host *host, struct stage_size *ret)
{
    const struct model_entry *found = NULL;
    LOCK(&host->lock);
    for (size_t i = 0; !found && i < host->entry_count; i++)
        if (host->entries[i]->stages)
            found = next_stage_size_locked(host, host->entries[i]->stages, ret);
    if (!found && host->awaits_sizes) {
        host->awaits_sizes = false;
        table_update_state_locked(host);
    }
    if (!found)
        found = next_wish_locked(host, ret);
    if (!found)
        return NULL;
    found->deployment->users++;
    return found->deployment;
}

static void fail_size_locked(struct model_entry *entry, struct stage_size size,
                             const struct error *failure)
{
    struct failed_size *failed = find_failed_size(entry, (struct stage_size){0});
    if (!failed)
        failed = &entry->failed[entry->replaced_failures++ % FAILED_SIZES];
    failed->size = size;
    failed->is_short = status_lacks_memory(failure->status);
    snprintf(failed->why, sizeof failed->why, "%.299s", failure->message);
    if (is_same_size(entry->wanted, size))
        entry->wanted = (struct stage_size){0};
}

/* Compiles `model`, which was read again from the files of `base`, for another size. Needs no lock
 * for base->choices, because only this thread changes them. Takes ownership of `model`, even on
 * failure. Errors: those of deployment_create(). */
static enum status create_size(struct model_host *host, const struct deployment *base,
                               struct model *model, struct stage_size size,
                               const _Atomic int *cancel, struct deployment **ret,
                               struct error *err)
{
    model->task.options = base->model->task.options;
    model_set_size(model, size.height, size.width);
    struct deployment_options options = {.host = host,
                                         .model = model,
                                         .choices = base->choices,
                                         .loads_to_come = table_loads_to_come(host),
                                         .cancel = cancel};
    return deployment_create(&options, ret, err);
}

void table_place_locked(struct model_host *host, struct deployment *deployment, uint64_t generation)
{
    deployment->generation = generation;
    TAILQ_INSERT_TAIL(&host->deployments, deployment, of_host);
}

bool model_host_make_size(struct model_host *host, const _Atomic int *cancel)
{
    struct stage_size size;
    struct error failure = {0};
    struct model *model;
    struct deployment *base = next_size(host, &size), *deployment = NULL, **place;
    if (!base)
        return false;
    const int64_t start = clock_now();
    log_event(LOG_INFO, "compiling size", LOG_STR("model", base->model->name),
              LOG_INT("width", size.width), LOG_INT("height", size.height),
              LOG_INT("sizes_left", (int64_t)model_host_sizes_left(host)));
    enum status status = host->source.read(host->source.context, base->model->name,
                                           base->model->version, &model, &failure);
    IF_OK(status, create_size(host, base, model, size, cancel, &deployment, &failure));
    pthread_mutex_lock(&host->lock);
    /* `base` is still in the table, because only this thread takes deployments out. */
    struct model_entry *entry =
        table_find_version_locked(host, base->model->name, base->model->version);
    if (status == STATUS_OK && host->draining)
        status = error_set(&failure, STATUS_DRAINING, "the server is shutting down");
    place = choose_place_locked(host, entry, size);
    if (status == STATUS_OK && !place)
        status = error_set(&failure, STATUS_INVALID, "pipelines name all sizes that it keeps");
    if (status == STATUS_OK) {
        table_leave_locked(host, place);
        table_place_locked(host, deployment, base->generation);
        deployment->used_at = clock_now();
        *place = deployment;
        if (is_same_size(entry->wanted, size))
            entry->wanted = (struct stage_size){0};
    } else if (status_lacks_memory(status) && !base->model->text.allows_short_rows &&
               (place = spare_place_locked(host, entry, false)) != NULL) {
        table_leave_locked(host, place);
    } else if (status != STATUS_CANCELLED) {
        fail_size_locked(entry, size, &failure);
    }
    const bool has_failed = status != STATUS_OK && find_failed_size(entry, size);
    atomic_store(&entry->used, clock_now());
    table_settle_and_unlock(host, NULL);
    if (has_failed)
        log_event(LOG_WARN, "size not compiled", LOG_STR("model", base->model->name),
                  LOG_INT("width", size.width), LOG_INT("height", size.height),
                  LOG_STR("error", failure.message),
                  LOG_STR("text", base->model->text.allows_short_rows
                                      ? "texts are padded to a longer length"
                                  : status_lacks_memory(status)
                                      ? "pipelines use the nearest size that is compiled"
                                      : "requests for it are refused"));
    if (status == STATUS_OK)
        log_event(LOG_INFO, "size compiled", LOG_STR("model", base->model->name),
                  LOG_INT("width", size.width), LOG_INT("height", size.height),
                  LOG_REAL("ms", clock_ms(clock_now() - start)));
    else
        deployment_end(deployment);
    model_host_release(host, base);
    table_retire(host);
    return true;
}

enum status table_carry_sizes(struct model_host *host, const struct deployment *deployment,
                              const _Atomic int *cancel,
                              struct deployment *ret[static DEPLOYMENT_SIZES], struct error *err)
{
    const struct model_host_source *source = &host->source;
    const struct model *own = deployment->model;
    struct deployment *old[DEPLOYMENT_SIZES];
    const size_t count = source->read ? table_use_sizes(host, deployment, old) : 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count; i++) {
        const struct stage_size size = size_of(old[i]);
        struct error left_out;
        struct model *model;
        model_host_release(host, old[i]);
        if (status != STATUS_OK || has_size(deployment, size) ||
            model_check_size(own, size.height, size.width, &left_out) != STATUS_OK ||
            source->read(source->context, own->name, own->version, &model, &left_out) != STATUS_OK)
            continue;
        if (create_size(host, deployment, model, size, cancel, &ret[i], &left_out) ==
            STATUS_CANCELLED)
            status = error_set(err, STATUS_CANCELLED, "%s", left_out.message);
    }
    return status;
}
