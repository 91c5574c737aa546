/* Locks: `lock` guards only the queue of jobs. The tracked versions belong to the thread that
 * loads. */
#include "server/loader/loader.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/queue.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/thread.h"
#include "models/folder/repository.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/stages.h"

#define JOBS_MAX 64
#define QUIET_MS 500
/* Time between two scans without an event: there are no events if the kernel has no watch left, or
 * if the file system reports no changes. */
#define LOOK_MS 5000

#define WATCH_DEPTH 2 /* levels of folders below the repository: models and versions */
#define WATCH_EVENTS                                                                               \
    (IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |            \
     IN_DELETE_SELF | IN_MOVE_SELF)

/* A version that the loader has tried to load, and the signature of its files at that time.
 * `version` is "" if the whole model has a problem. */
struct tracked_version {
    char *name, *path;
    char version[sizeof((struct repository_version *)0)->version];
    uint64_t signature;
    bool is_served;
    bool is_tried;
    bool is_seen;      /* the last scan has found the version */
    bool is_unloaded;  /* unloaded by the API; loaded again only by the API */
    char *last_logged; /* the last log text about a pipeline's stages; NULL: none */
};

struct queued_job {
    enum loader_job kind;
    void (*on_done)(void *context, enum status status, const struct error *err);
    void *context;
    STAILQ_ENTRY(queued_job) entry;
    char name[];
};

struct loader {
    struct loader_options options;
    char name[160];
    struct repository first; /* the files found by loader_create(), until they are loaded */
    int loaded_fd, wake_fd;
    pthread_t thread;
    bool started;
    _Atomic int cancel;
    _Atomic int interrupt; /* 1 stops trials, because other work waits; they run later */
    _Atomic int has_job;   /* 1 stops the compilation of a size, because a job waits or the loader
                              ends; it runs later */

    /* used only by the loader's thread */
    struct tracked_version *tracked;
    size_t tracked_count;
    bool is_lost; /* the last scan failed */
    char
        default_name[sizeof((struct model_status *)0)->name]; /* the last default model; "": none */
    char served_text[400]; /* the text of loader_served() if some models failed; else "" */
    struct error outcome;  /* set before loaded_fd is written */

    pthread_mutex_t lock;
    STAILQ_HEAD(, queued_job) jobs;
    size_t job_count;
    bool stopping;
};

/* ---- what there is ---- */

static enum status scan_disk(const struct loader *loader, struct repository *ret, struct error *err)
{
    if (loader->options.models)
        return repository_scan(loader->options.models, loader->options.is_immich, ret, err);
    return repository_scan_model(loader->options.model, loader->options.model_name, ret, err);
}

static enum status read_model(const struct loader *loader, const char *path, const char *name,
                              const char *version, struct model **ret, struct error *err)
{
    const struct model_limits limits = {.version = version, .is_immich = loader->options.is_immich};
    return model_load(path, name, &limits, ret, err);
}

static enum status no_such_model(const struct loader *loader, const char *option, const char *name,
                                 struct error *err)
{
    char names[256] = "";
    for (size_t i = 0; i < loader->first.count; i++)
        text_append(names, sizeof names, ", ", "%s", loader->first.models[i].name);
    return error_set(err, STATUS_CONFIG, "%s '%.128s': there is no such model; the server has: %s",
                     option, name, names);
}

static enum status check_default(const struct loader *loader, struct error *err)
{
    const struct loader_options *options = &loader->options;
    const char *wanted = options->default_model;
    if (!wanted || (options->models && options->watch) || repository_find(&loader->first, wanted))
        return STATUS_OK;
    return no_such_model(loader, "--default-model", wanted, err);
}

/* Checks that every name in --preload exists. */
static enum status check_preload(const struct loader *loader, struct error *err)
{
    char name[sizeof((struct model_status *)0)->name];
    for (const char *at = loader->options.preload; at && *at;) {
        const size_t size = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)size, at);
        if (!repository_find(&loader->first, name))
            return no_such_model(loader, "--preload", name, err);
        at += size + (at[size] == ',');
    }
    return STATUS_OK;
}

static void announce(const struct loader *loader, const struct repository *repository)
{
    for (size_t i = 0; i < repository->count; i++) {
        const struct repository_model *model = &repository->models[i];
        for (size_t v = 0; v < model->version_count; v++)
            model_host_announce(loader->options.model_host, model->name, model->versions[v].version,
                                true);
        if (model->version_count == 0)
            model_host_announce(loader->options.model_host, model->name, NULL, true);
    }
}

enum status loader_create(const struct loader_options *options, struct loader **ret,
                          struct error *err)
{
    struct loader *loader = calloc(1, sizeof *loader);
    TRY(check_memory(loader, NULL, err));
    loader->options = *options;
    STAILQ_INIT(&loader->jobs);
    loader->loaded_fd = -1;
    loader->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&loader->lock, NULL);
    enum status status = scan_disk(loader, &loader->first, err);
    if (status == STATUS_OK && loader->wake_fd < 0)
        status = error_set(err, STATUS_IO, "cannot make an event: %s", strerror(errno));
    if (status == STATUS_OK && options->models && loader->first.count == 0 && !options->watch)
        status =
            error_set(err, STATUS_NOT_FOUND,
                      "%.200s: there is no model in this folder; put each in a sub-folder of its "
                      "own (%s), or start with --watch, which waits for them",
                      options->models,
                      options->is_immich ? "clip/NAME, facial-recognition/NAME, ocr/NAME"
                                         : "NAME/model.onnx");
    IF_OK(status, check_default(loader, err));
    IF_OK(status, check_preload(loader, err));
    if (status != STATUS_OK) {
        loader_free(loader);
        return status;
    }
    if (options->models)
        snprintf(loader->name, sizeof loader->name, "%zu model%s", loader->first.count,
                 loader->first.count == 1 ? "" : "s");
    else
        snprintf(loader->name, sizeof loader->name, "%s", loader->first.models[0].name);
    announce(loader, &loader->first);
    *ret = loader;
    return STATUS_OK;
}

const char *loader_name(const struct loader *loader)
{
    return loader->name;
}

const char *loader_served(const struct loader *loader)
{
    return loader->served_text[0] ? loader->served_text : loader->name;
}

/* ---- loading ---- */

static struct tracked_version *find_tracked(struct loader *loader, const char *name,
                                            const char *version)
{
    for (size_t i = 0; i < loader->tracked_count; i++)
        if (!strcmp(loader->tracked[i].name, name) && !strcmp(loader->tracked[i].version, version))
            return &loader->tracked[i];
    return NULL;
}

/* Finds or adds the entry of a version; NULL when out of memory. */
static struct tracked_version *
track_version(struct loader *loader, const struct repository_model *model, const char *version)
{
    struct tracked_version *tracked = find_tracked(loader, model->name, version);
    if (tracked)
        return tracked;
    struct tracked_version *grown =
        reallocarray(loader->tracked, loader->tracked_count + 1, sizeof *grown);
    char *copy = strdup(model->name), *path = model->path ? strdup(model->path) : NULL;
    loader->tracked = grown ? grown : loader->tracked;
    if (!grown || !copy || (model->path && !path)) {
        FREE_ALL(copy, path);
        return NULL;
    }
    tracked = &grown[loader->tracked_count++];
    *tracked = (struct tracked_version){.name = copy, .path = path};
    snprintf(tracked->version, sizeof tracked->version, "%s", version);
    return tracked;
}

static void forget_version(struct loader *loader, size_t i)
{
    FREE_ALL(loader->tracked[i].name, loader->tracked[i].path, loader->tracked[i].last_logged);
    loader->tracked[i] = loader->tracked[--loader->tracked_count];
}

/* True once every model that existed at start has been tried. */
static bool is_running(const struct loader *loader)
{
    return loader->started && loader->loaded_fd < 0;
}

/* True if no version of a model is served. */
static bool has_failed(const struct loader *loader, const char *name)
{
    for (size_t i = 0; i < loader->tracked_count; i++)
        if (loader->tracked[i].is_served && !strcmp(loader->tracked[i].name, name))
            return false;
    return true;
}

static void log_failure(struct loader *loader, const char *name, const char *version,
                        const struct error *err)
{
    if (!loader->options.models && !is_running(loader))
        return; /* the error ends the program, and main() reports it */
    const struct tracked_version *tracked = find_tracked(loader, name, version);
    const bool is_stale = version[0] ? tracked && tracked->is_served : !has_failed(loader, name);
    const char *stale = is_stale ? "the version loaded before still answers (stale)" : NULL;
    log_event(LOG_ERROR, "model not loaded", LOG_STR("model", name), LOG_STR("version", version),
              LOG_STR("text", err->message), LOG_STR("consequence", stale));
}

void model_tell_doubts(const struct model *model,
                       void (*tell)(const struct model *model, const char *text))
{
    char text[240];
    if (model->warning[0])
        tell(model, model->warning);
    if (model->image_input == SIZE_MAX)
        return;
    snprintf(
        text, sizeof text,
        "no file says how to prepare photos, so lensd uses %.63s; put preprocessor_config.json "
        "beside the .onnx file (lensd inspect shows the preprocessing)",
        model->preprocess_source);
    /* For lines of text the default is right: PP-OCR's models were trained with it. */
    if (!model->is_configured && model->task.kind != TASK_TEXT)
        tell(model, text);
    const bool has_names =
        model->task.kind == TASK_CLASSIFICATION || model->task.kind == TASK_DETECTION ||
        model->task.kind == TASK_INSTANCES || model->task.kind == TASK_SEGMENTATION;
    if (has_names && model->labels.count == 0)
        tell(model, "the model has no labels, so classes have numbers, not names; put labels.txt "
                    "beside the .onnx file, one name per line");
}

static void log_doubt(const struct model *model, const char *text)
{
    log_event(LOG_WARN, "model", LOG_STR("model", model->name), LOG_STR("text", text));
}

/* Warns if lensd refuses photos for the model because it does not know what its outputs mean. */
static void log_photos_refused(struct model_host *model_host, const char *name, const char *version)
{
    struct deployment *deployment;
    struct error unloaded; /* the model may have been unloaded since it was loaded */
    char text[480];
    if (model_host_acquire(model_host, name, version, &deployment, &unloaded) != STATUS_OK)
        return;
    snprintf(text, sizeof text,
             "/predict refuses photos: %s; if that is intended, write {\"task\": \"tensors\"} into "
             "lensd.json",
             deployment->no_answer);
    if (deployment->takes_images && deployment->no_answer[0] && !deployment->model->task.is_tensors)
        log_event(LOG_WARN, "model", LOG_STR("model", name), LOG_STR("text", text));
    model_host_release(model_host, deployment);
}

/* True if --preload ("a,b") names the model. */
static bool is_preloaded(const struct loader *loader, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = loader->options.preload; at && *at;) {
        const size_t size = strcspn(at, ",");
        if (size == length && !memcmp(at, name, size))
            return true;
        at += size + (at[size] == ',');
    }
    return false;
}

/* True if a model is only listed, until a request needs it. */
static bool waits_for_request(const struct loader *loader, const struct model *model)
{
    return loader->started &&
           (model->load == MODEL_LOAD_DEFAULT ? loader->options.is_lazy
                                              : model->load == MODEL_LOAD_LAZY) &&
           (is_running(loader) || !is_preloaded(loader, model->name));
}

/* Reads one version and serves it, or only lists it if it is lazy and neither the API nor a request
 * asked for it. */
static enum status load_version(struct loader *loader, const struct repository_model *model,
                                const char *version, bool is_asked, struct error *err)
{
    struct model_host *model_host = loader->options.model_host;
    struct model *loaded = NULL;
    int64_t start = clock_now();
    const char *name = model->name;
    model_host_announce(model_host, name, version, false);
    if (model->stages)
        return model_host_add_pipeline(model_host, name, version, model->stages, err);
    enum status status = read_model(loader, model->path, name, version, &loaded, err);
    if (status != STATUS_OK) {
        model_host_fail(model_host, name, version, err->message);
        return status;
    }
    model_tell_doubts(loaded, log_doubt);
    if (!is_asked &&
        model_host_may_wait(model_host, name, version, waits_for_request(loader, loaded))) {
        status = model_host_list_model(model_host, loaded, err);
        if (status != STATUS_OK)
            model_host_fail(model_host, name, version, err->message);
        return status;
    }
    TRY(model_host_add_model(model_host, loaded, &loader->cancel, err));
    log_photos_refused(model_host, name, version);
    log_event(is_running(loader) ? LOG_INFO : LOG_DEBUG, "model loaded", LOG_STR("model", name),
              LOG_STR("version", version), LOG_REAL("ms", clock_ms(clock_now() - start)));
    return STATUS_OK;
}

/* Call it if a model's folder has no problem. If it had one before: clears the failure that was
 * recorded for the whole model, and lets load_model() retry versions that are not served, even if
 * their files are unchanged. */
static void clear_model_problem(struct loader *loader, const char *name)
{
    if (!find_tracked(loader, name, ""))
        return;
    model_host_clear_failure(loader->options.model_host, name);
    for (size_t i = 0; i < loader->tracked_count; i++)
        if (!loader->tracked[i].is_served && !strcmp(loader->tracked[i].name, name))
            loader->tracked[i].is_tried = false;
}

static bool serves(const struct loader *loader, const char *name, const char *except)
{
    for (size_t i = 0; i < loader->tracked_count; i++) {
        const struct tracked_version *tracked = &loader->tracked[i];
        if (tracked->is_served && tracked->is_seen && !strcmp(tracked->name, name) &&
            strcmp(tracked->version, except) != 0)
            return true;
    }
    return false;
}

/* Loads a version, and records that it was tried. */
static enum status follow_version(struct loader *loader, const struct repository_model *model,
                                  const struct repository_version *version,
                                  struct tracked_version *tracked, bool is_asked, struct error *err)
{
    tracked->is_tried = true; /* `signature` cannot show this: it may be 0 */
    tracked->signature = version->signature;
    enum status status = load_version(loader, model, version->version, is_asked, err);
    if (status == STATUS_OK)
        tracked->is_served = true;
    else
        log_failure(loader, model->name, version->version, err);
    return status;
}

/* Reloads served versions that the policy no longer names if their files have changed: such
 * versions stay until a version that the policy names is served. */
static void follow_spares(struct loader *loader, const struct repository_model *model,
                          struct error *first)
{
    for (size_t i = 0; i < model->spare_count && !loader->cancel; i++) {
        const struct repository_version *version = &model->versions[model->version_count + i];
        struct tracked_version *tracked = find_tracked(loader, model->name, version->version);
        struct error failure = {0};
        if (!tracked || !tracked->is_served || tracked->signature == version->signature)
            continue;
        if (follow_version(loader, model, version, tracked, false, &failure) != STATUS_OK &&
            first->status == STATUS_OK)
            *first = failure;
    }
}

/* Loads those versions which a model's policy names and which are new or have changed; with `again`
 * all versions which the policy names. Goes on after a failure, and returns the first failure. */
static enum status load_model(struct loader *loader, const struct repository_model *model,
                              bool again, struct error *err)
{
    struct error first = {0};
    if (model->problem.status != STATUS_OK) {
        struct tracked_version *tracked = track_version(loader, model, "");
        if (tracked && (again || !tracked->is_seen)) {
            model_host_announce(loader->options.model_host, model->name, NULL, false);
            model_host_fail(loader->options.model_host, model->name, NULL, model->problem.message);
            log_failure(loader, model->name, "", &model->problem);
        }
        if (tracked)
            tracked->is_seen = true;
        *err = model->problem;
        return err->status;
    }
    clear_model_problem(loader, model->name);
    for (size_t i = model->version_count; i-- > 0 && !loader->cancel;) {
        const struct repository_version *version = &model->versions[i];
        struct tracked_version *tracked = track_version(loader, model, version->version);
        TRY(check_memory(tracked, NULL, err));
        tracked->is_seen = true;
        if (!again && tracked->is_tried && tracked->signature == version->signature)
            continue;
        struct error failure = {0};
        if (follow_version(loader, model, version, tracked, again, &failure) != STATUS_OK)
            first = first.status == STATUS_OK ? failure : first;
    }
    if (!serves(loader, model->name, ""))
        follow_spares(loader, model, &first);
    if (first.status != STATUS_OK)
        *err = first;
    return first.status;
}

/* Drops versions that the policy did not name in the last scan: those of a removed model, and those
 * that another version replaces. A version stays while no other version of its model is served. */
static void drop_unseen(struct loader *loader, const struct repository *repository)
{
    struct error ignored;
    for (size_t i = loader->tracked_count; i-- > 0;) {
        struct tracked_version *tracked = &loader->tracked[i];
        bool model_is_there = repository_find(repository, tracked->name) != NULL;
        if (tracked->is_seen || (model_is_there && tracked->is_served &&
                                 !serves(loader, tracked->name, tracked->version)))
            continue;
        if (tracked->version[0] || !model_is_there) {
            if (tracked->is_served)
                log_event(LOG_INFO, "model removed", LOG_STR("model", tracked->name),
                          LOG_STR("version", tracked->version));
            (void)!model_host_remove_model(loader->options.model_host, tracked->name,
                                           model_is_there ? tracked->version : NULL, true,
                                           &ignored);
        }
        if (!tracked->is_unloaded) /* an unload by the API holds even if the files come back */
            forget_version(loader, i);
    }
}

/* Logs when the default model changes or is gone. */
static void report_default(struct loader *loader)
{
    char name[sizeof loader->default_name];
    const bool is_there = model_host_default(loader->options.model_host, name, sizeof name);
    if (!strcmp(name, loader->default_name))
        return;
    if (loader->default_name[0])
        log_event(LOG_WARN, "default model changed", LOG_STR("model", is_there ? name : "none"),
                  LOG_STR("before", loader->default_name),
                  LOG_STR("text", is_there ? "it answers requests that name no model; "
                                             "--default-model NAME chooses one"
                                           : "requests that name no model are refused; "
                                             "--default-model NAME chooses one"));
    snprintf(loader->default_name, sizeof loader->default_name, "%s", name);
}

/* Logs the problem of a pipeline's stages, once. */
static void log_stages(struct tracked_version *tracked, const char *event, const char *text)
{
    if (text && (!tracked->last_logged || strcmp(tracked->last_logged, text) != 0))
        log_event(LOG_WARN, event, LOG_STR("model", tracked->name), LOG_STR("text", text));
    free(tracked->last_logged);
    tracked->last_logged = text ? strdup(text) : NULL;
}

/* Checks that the pipelines can answer with the served models. Logs each failure; returns the
 * first. */
static enum status check_stages(struct loader *loader, struct error *err)
{
    struct error first = {0};
    for (size_t i = 0; i < loader->tracked_count; i++) {
        struct tracked_version *tracked = &loader->tracked[i];
        struct error failure = {0};
        const enum status status = tracked->is_served
                                       ? stages_check(loader->options.model_host, tracked->name,
                                                      tracked->version, &failure)
                                       : STATUS_OK;
        if (first.status == STATUS_OK)
            first = failure;
        if (status != STATUS_OK)
            log_stages(tracked, "pipeline cannot answer", failure.message);
        else if (tracked->is_served &&
                 model_host_check_sizes(loader->options.model_host, tracked->name, tracked->version,
                                        &failure) != STATUS_OK)
            log_stages(tracked, "too many sizes", failure.message);
        else
            log_stages(tracked, NULL, NULL);
    }
    if (err)
        *err = first;
    return first.status;
}

/* Call it after the models have changed: logs a new default model, and problems of pipelines. */
static void report_changes(struct loader *loader)
{
    report_default(loader);
    (void)!check_stages(loader, NULL);
}

static bool is_unloaded(const struct loader *loader, const char *name)
{
    for (size_t i = 0; i < loader->tracked_count; i++)
        if (loader->tracked[i].is_unloaded && !strcmp(loader->tracked[i].name, name))
            return true;
    return false;
}

/* Makes the model host serve the models of `repository`. Returns the number of failed models. */
static size_t reconcile(struct loader *loader, const struct repository *repository,
                        struct error *err)
{
    size_t failed = 0;
    for (size_t i = 0; i < loader->tracked_count; i++)
        loader->tracked[i].is_seen =
            !loader->tracked[i].version[0] && loader->tracked[i].is_seen &&
            repository_find(repository, loader->tracked[i].name) &&
            repository_find(repository, loader->tracked[i].name)->problem.status != STATUS_OK;
    for (size_t i = 0; i < repository->count && !loader->cancel; i++) {
        const struct repository_model *model = &repository->models[i];
        struct error failure = {0};
        if (is_unloaded(loader, model->name)) {
            for (size_t k = 0; k < loader->tracked_count; k++)
                if (!strcmp(loader->tracked[k].name, model->name))
                    loader->tracked[k].is_seen = true;
            continue;
        }
        if (load_model(loader, model, false, &failure) != STATUS_OK && failed++ == 0 && err)
            *err = failure;
    }
    if (!loader->cancel)
        drop_unseen(loader, repository);
    return failed;
}

/* ---- jobs ---- */

/* Marks a model's versions as unloaded by the API, or not. */
static void set_unloaded(struct loader *loader, const char *name, bool unloaded)
{
    for (size_t i = 0; i < loader->tracked_count; i++) {
        struct tracked_version *tracked = &loader->tracked[i];
        if (strcmp(tracked->name, name) != 0)
            continue;
        tracked->is_unloaded = unloaded;
        tracked->is_served = tracked->is_served && !unloaded;
    }
}

static enum status load_by_name(struct loader *loader, const char *name, struct error *err)
{
    struct repository repository;
    TRY(scan_disk(loader, &repository, err));
    const struct repository_model *model = repository_find(&repository, name);
    enum status status = STATUS_OK;
    if (!model) {
        status =
            error_set(err, STATUS_NOT_FOUND, "there is no model '%.128s' in %s", name,
                      loader->options.models ? "the repository" : "what lensd was started with");
    } else {
        set_unloaded(loader, name, false);
        status = load_model(loader, model, true, err);
        (void)reconcile(loader, &repository, NULL);
    }
    repository_done(&repository);
    return status;
}

static enum status unload_by_name(struct loader *loader, const char *name, struct error *err)
{
    TRY(model_host_remove_model(loader->options.model_host, name, NULL, false, err));
    set_unloaded(loader, name, true);
    log_event(LOG_INFO, "model unloaded", LOG_STR("model", name));
    return STATUS_OK;
}

static struct queued_job *next_job(struct loader *loader)
{
    LOCK(&loader->lock);
    struct queued_job *job = STAILQ_FIRST(&loader->jobs);
    if (job) {
        STAILQ_REMOVE_HEAD(&loader->jobs, entry);
        loader->job_count--;
    }
    return job;
}

static void run_jobs(struct loader *loader)
{
    for (struct queued_job *job; (job = next_job(loader));) {
        struct error err = {0};
        enum status status = STATUS_OK;
        if (loader->cancel)
            status = error_set(&err, STATUS_DRAINING, "the server is shutting down");
        else if (job->kind == LOADER_LOAD)
            status = load_by_name(loader, job->name, &err);
        else
            status = unload_by_name(loader, job->name, &err);
        report_changes(loader);
        job->on_done(job->context, status, &err);
        free(job);
    }
}

static void wake_loader(void *context)
{
    struct loader *loader = context;
    const uint64_t one = 1;
    atomic_store(&loader->interrupt, 1);
    (void)!write(loader->wake_fd, &one, sizeof one);
}

enum status loader_submit(struct loader *loader, enum loader_job kind, const char *name,
                          void (*on_done)(void *context, enum status status,
                                          const struct error *err),
                          void *context, struct error *err)
{
    struct queued_job *job = malloc(sizeof *job + strlen(name) + 1);
    enum status status = STATUS_OK;
    TRY(check_memory(job, NULL, err));
    *job = (struct queued_job){kind, on_done, context};
    memcpy(job->name, name, strlen(name) + 1);
    pthread_mutex_lock(&loader->lock);
    if (loader->stopping)
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    else if (loader->job_count == JOBS_MAX)
        status = error_set(err, STATUS_OVERLOADED, "%d loads and unloads wait already; try again",
                           JOBS_MAX);
    if (status == STATUS_OK) {
        STAILQ_INSERT_TAIL(&loader->jobs, job, entry);
        loader->job_count++;
    }
    pthread_mutex_unlock(&loader->lock);
    if (status != STATUS_OK) {
        free(job);
        return status;
    }
    atomic_store(&loader->has_job, 1);
    wake_loader(loader);
    return STATUS_OK;
}

/* ---- sizes and precisions ---- */

/* Lists the current files of a version. *ret_version points into *ret, which the caller frees. It
 * is NULL if the version is gone. */
static enum status look_at_version(const struct tracked_version *tracked, struct repository *ret,
                                   const struct repository_version **ret_version, struct error *err)
{
    TRY(repository_scan_model(tracked->path, tracked->name, ret, err));
    const struct repository_model *model = &ret->models[0];
    *ret_version = NULL;
    for (size_t i = 0; i < model->version_count + model->spare_count; i++)
        if (!strcmp(model->versions[i].version, tracked->version))
            *ret_version = &model->versions[i];
    return STATUS_OK;
}

/* Reads a served version again, if its files have not changed. */
static enum status read_again(void *context, const char *name, const char *version,
                              struct model **ret, struct error *err)
{
    struct loader *loader = context;
    struct repository repository = {0};
    const struct repository_version *found = NULL;
    const struct tracked_version *tracked = find_tracked(loader, name, version);
    enum status status = STATUS_NOT_FOUND;
    if (tracked && look_at_version(tracked, &repository, &found, err) == STATUS_OK && found &&
        found->signature == tracked->signature)
        status = read_model(loader, tracked->path, name, version, ret, err);
    repository_done(&repository);
    if (status == STATUS_NOT_FOUND)
        return error_set(err, status, "the model's files have changed since it was loaded");
    return status;
}

/* Loads the next model that a request waits for, from its current files. True if there was one. */
static bool load_wanted(struct loader *loader)
{
    char name[sizeof((struct model_status *)0)->name];
    char version[sizeof((struct model_status *)0)->version];
    struct model_host *model_host = loader->options.model_host;
    struct repository repository = {0};
    const struct repository_version *found = NULL;
    struct error err = {0};
    if (loader->cancel || !model_host_next_load(model_host, name, version))
        return false;
    struct tracked_version *tracked = find_tracked(loader, name, version);
    enum status status = STATUS_OK;
    if (tracked)
        status = look_at_version(tracked, &repository, &found, &err);
    /* The model host records a failed load in its table. */
    if (status == STATUS_OK && found)
        (void)!follow_version(loader, &repository.models[0], found, tracked, true, &err);
    else
        model_host_fail(model_host, name, version,
                        status == STATUS_OK ? "its files were removed" : err.message);
    repository_done(&repository);
    report_changes(loader);
    return true;
}

static bool make_size(struct loader *loader)
{
    return !loader->cancel &&
           model_host_make_size(loader->options.model_host,
                                is_running(loader) ? &loader->has_job : &loader->cancel);
}

/* ---- the thread ---- */

/* Watches a folder and `depth` levels of sub-folders. Keeps existing watches. */
static void watch_folder(int watch, const char *folder, int depth)
{
    if (inotify_add_watch(watch, folder, WATCH_EVENTS | IN_ONLYDIR) < 0 || depth == 0)
        return;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char *path = entry->d_name[0] == '.' ? NULL : path_join(folder, entry->d_name);
        if (path)
            watch_folder(watch, path, depth - 1); /* IN_ONLYDIR refuses files */
        free(path);
    }
    if (dir)
        closedir(dir);
}

/* Reads the pending events. Returns true if there were any. */
static bool has_changed(int watch)
{
    char events[4096] __attribute__((aligned(8)));
    bool any = false;
    while (read(watch, events, sizeof events) > 0)
        any = true;
    return any;
}

/* Writes the text of loader_served() for a folder in which some models have failed. */
static void sum_up(struct loader *loader)
{
    const size_t all = loader->first.count;
    char names[300] = "";
    size_t failed = 0, listed = 0;
    for (size_t i = 0; i < all; i++) {
        const char *name = loader->first.models[i].name;
        if (!has_failed(loader, name))
            continue;
        failed++;
        if (strlen(names) + strlen(name) + sizeof ", and 4096 more" > sizeof names)
            continue;
        text_append(names, sizeof names, ", ", "%s", name);
        listed++;
    }
    if (listed < failed)
        text_append(names, sizeof names, " and ", "%zu more", failed - listed);
    if (failed > 0)
        snprintf(loader->served_text, sizeof loader->served_text, "%zu of %zu model%s (failed: %s)",
                 all - failed, all, all == 1 ? "" : "s", names);
}

static void load_first(struct loader *loader)
{
    struct error err = {0};
    const size_t all = loader->first.count, failed = reconcile(loader, &loader->first, &err);
    if (loader->options.models && failed > 0)
        sum_up(loader);
    repository_done(&loader->first);
    /* Without --models there is one model, or one pipeline and the models of its stages. */
    bool lost =
        loader->options.models ? failed == all && all > 0 && !loader->options.watch : failed > 0;
    loader->outcome = lost ? err : (struct error){STATUS_OK};
    report_changes(loader);
    if (!lost)
        model_host_settle(loader->options.model_host);
    while (model_host_state(loader->options.model_host) == MODEL_HOST_LOADING && make_size(loader))
        ;
    uint64_t one = 1;
    (void)!write(loader->loaded_fd, &one, sizeof one);
    loader->loaded_fd = -1;
}

enum status loader_try(struct loader *loader, struct error *err)
{
    struct error first = {0};
    if (reconcile(loader, &loader->first, &first) == 0)
        return check_stages(loader, err);
    *err = first;
    return first.status;
}

static void rescan(struct loader *loader)
{
    struct repository repository;
    struct error err;
    if (scan_disk(loader, &repository, &err) != STATUS_OK) {
        if (!loader->is_lost)
            log_event(LOG_ERROR, "model folder not read", LOG_STR("text", err.message));
        loader->is_lost = true; /* logged once */
        return;
    }
    loader->is_lost = false;
    (void)reconcile(loader, &repository, NULL);
    report_changes(loader);
    repository_done(&repository);
}

/* Does the most urgent work. Returns true if there may be more work. */
static bool work_on(struct loader *loader)
{
    return load_wanted(loader) || make_size(loader) ||
           (!loader->cancel &&
            model_host_try_precision(loader->options.model_host, &loader->interrupt));
}

/* The timeout for poll(): milliseconds until `end` (clock_now()), rounded up; -1 for INT64_MAX. */
static int ms_until(int64_t end)
{
    const int64_t now = clock_now();
    if (end == INT64_MAX)
        return -1;
    const int64_t ms = end > now ? (end - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

static void *loader_main(void *argument)
{
    struct loader *loader = argument;
    const char *watched = loader->options.models ? loader->options.models : loader->options.model;
    const bool watches = loader->options.watch && watched;
    const int watch = watches ? inotify_init1(IN_NONBLOCK | IN_CLOEXEC) : -1; /* -1: no events */
    char folder[PATH_MAX];
    if (watches && path_is_file(watched)) {
        path_folder(watched, folder);
        watched = folder;
    }
    /* The watch starts before the files are first read, so that no change is missed. */
    if (watches)
        watch_folder(watch, watched, WATCH_DEPTH);
    load_first(loader);
    int64_t next_look = watches ? clock_now() + LOOK_MS * NS_PER_MS : INT64_MAX;
    int64_t next_unload = model_host_unload_idle(loader->options.model_host);
    bool has_work = work_on(loader);
    while (!loader->cancel) {
        struct pollfd events[] = {{.fd = loader->wake_fd, .events = POLLIN},
                                  {.fd = watch, .events = POLLIN}};
        const int64_t next = next_look < next_unload ? next_look : next_unload;
        (void)poll(events, 2, has_work ? 0 : ms_until(next));
        uint64_t count;
        (void)!read(loader->wake_fd, &count, sizeof count);
        loader->interrupt = loader->cancel;
        loader->has_job = loader->cancel;
        run_jobs(loader);
        next_unload = model_host_unload_idle(loader->options.model_host);
        has_work = work_on(loader);
        if (!watches || loader->cancel)
            continue;
        if (has_changed(watch)) /* each event puts off the scan, until no more files change */
            next_look = clock_now() + QUIET_MS * NS_PER_MS;
        if (clock_now() < next_look)
            continue;
        watch_folder(watch, watched, WATCH_DEPTH); /* also new sub-folders */
        rescan(loader);
        has_work = true;
        next_look = clock_now() + LOOK_MS * NS_PER_MS;
    }
    run_jobs(loader); /* fails the remaining jobs with STATUS_DRAINING */
    if (watch >= 0)
        close(watch);
    return NULL;
}

enum status loader_start(struct loader *loader, int loaded_fd, struct error *err)
{
    loader->loaded_fd = loaded_fd;
    model_host_set_source(loader->options.model_host,
                          &(struct model_host_source){wake_loader, read_again, loader});
    loader->started = true; /* before the thread reads it */
    if (!thread_start(&loader->thread, "loader", loader_main, loader)) {
        loader->started = false;
        return error_set(err, STATUS_NO_MEMORY,
                         "cannot start the thread that loads models; " THREAD_LIMIT_HINT);
    }
    return STATUS_OK;
}

enum status loader_outcome(struct loader *loader, struct error *err)
{
    *err = loader->outcome;
    return err->status;
}

void loader_stop(struct loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->stopping = true;
    pthread_mutex_unlock(&loader->lock);
    atomic_store(&loader->cancel, 1);
    atomic_store(&loader->has_job, 1);
    wake_loader(loader);
    if (loader->started)
        pthread_join(loader->thread, NULL);
    loader->started = false;
    run_jobs(loader);
}

void loader_free(struct loader *loader)
{
    if (!loader)
        return;
    loader_stop(loader);
    repository_done(&loader->first);
    while (loader->tracked_count > 0)
        forget_version(loader, loader->tracked_count - 1);
    free(loader->tracked);
    if (loader->wake_fd >= 0)
        close(loader->wake_fd);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}
