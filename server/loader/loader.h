/* The loader: adds models to the model host, and removes them.
 *
 *     start ─▶ look ─▶ load what is new or changed ─▶ remove what has gone ─▶ wait ─┐
 *                ▲                                                                   │
 *                └── something changed on disk (--watch) · load / unload by API ◀────┘
 *
 * One thread does all of it, so that loads run one after another. Lazy models are read and listed
 * when they are found, and loaded when a request waits for them (model_host_await()). The thread
 * also unloads idle models. While there is nothing to load, it compiles sizes that clients request,
 * and compares precisions for models that still serve in fp32 (precision.h). Signatures
 * (models/folder/repository.h) show which files have changed. A changed version is loaded while the
 * old one serves, and then replaces the old one (model_host_add_model()). If the new one fails to
 * load, the old one stays, and the log, /health and /v2/repository/index give the reason. Versions
 * that the model's policy does not name are removed when a version that it names is served.
 *
 * Watching uses inotify and periodic scans, because not every file system reports changes. The
 * loader reacts when the files have not changed for half a second. */
#pragma once

#include "server/schedule/runtime/model_host.h"

struct loader_options {
    const char *models;        /* the repository's folder; NULL: one model */
    const char *model;         /* without `models`: the model's path; NULL: the embedded one */
    const char *model_name;    /* without `models`: the served name; NULL: the model's own */
    const char *default_model; /* a model that must exist, unless `models` is watched; or NULL */
    bool is_immich;            /* `models` is Immich's cache: see repository_scan() */
    bool watch;                /* follow changes of the files */
    bool is_lazy;        /* load models when requests need them, unless their files say otherwise */
    const char *preload; /* "a,b": lazy models to load at start; NULL: none */
    struct model_host *model_host; /* borrowed; outlives the loader */
};

/* Calls `tell` for each problem that a model's author may want to fix, with a sentence: an error in
 * its files, a default that may be wrong (preprocessing), missing labels. */
void model_tell_doubts(const struct model *model,
                       void (*tell)(const struct model *model, const char *text));

struct loader;

/* Lists the models and announces them to the model host; loads nothing yet. Borrows the options'
 * texts. STATUS_NOT_FOUND: there is no model; STATUS_CONFIG: default_model or preload names none;
 * STATUS_IO, STATUS_NO_MEMORY. */
enum status loader_create(const struct loader_options *options, struct loader **ret,
                          struct error *err) MUST_USE;

/* Names the models for people: "resnet50" or "3 models". The text lives as long as the loader. */
const char *loader_name(const struct loader *loader);

/* Returns loader_name(), or "4 of 7 models (failed: a, b, c)" if some failed. Call it after
 * loaded_fd was written. */
const char *loader_served(const struct loader *loader);

/* Starts the thread. It writes to `loaded_fd`, an eventfd, after it has tried to load every model
 * that existed at start. STATUS_NO_MEMORY. */
enum status loader_start(struct loader *loader, int loaded_fd, struct error *err) MUST_USE;

/* Returns an error if the program must end. With options.models: if all models failed and
 * options.watch is false. Without: if any model failed. Call it after loaded_fd was written. */
enum status loader_outcome(struct loader *loader, struct error *err);

/* Loads every model on the caller's thread, instead of loader_start(), and returns the first
 * failure, even if other models are served. STATUS_CONFIG: a pipeline's models do not fit
 * together. */
enum status loader_try(struct loader *loader, struct error *err) MUST_USE;

enum loader_job { LOADER_LOAD, LOADER_UNLOAD };

/* Queues a job: reloads a model from its path (all versions that its policy names), or unloads it.
 * Any thread. After success `on_done` is called once: from the loader's thread, or from
 * loader_stop() with STATUS_DRAINING. Errors: STATUS_DRAINING, STATUS_NO_MEMORY, STATUS_OVERLOADED
 * (too many jobs wait). */
enum status loader_submit(struct loader *loader, enum loader_job job, const char *name,
                          void (*on_done)(void *context, enum status status,
                                          const struct error *err),
                          void *context, struct error *err) MUST_USE;

/* Cancels the current load and joins the thread; waiting jobs are answered. May be called again. */
void loader_stop(struct loader *loader);
void loader_free(struct loader *loader); /* NULL is fine */
