/* The loader: brings models into the model host, and out of it.
 *
 *     start ─▶ look ─▶ load what is new or changed ─▶ remove what has gone ─▶ wait ─┐
 *                ▲                                                                   │
 *                └── something changed on disk (--watch) · load / unload by API ◀────┘
 *
 * One thread does all of it, so that loads run one after another. Lazy models are read and listed
 * when they are found, and loaded when a request waits for them (model_host_await). The thread also
 * unloads what has been idle for long enough. While nothing is to be loaded, it compiles sizes that
 * clients ask for, and compares precisions for models that serve in fp32 until then (precision.h).
 * Signatures (models/folder/repository.h) show which files have changed. A changed version is
 * loaded while the old one serves, and replaces it once warm (model_host_add_model). If it does not
 * load, the old one stays, and the log, /health and /v2/repository/index say why. Older versions
 * are removed when a newer one serves.
 *
 * Watching: inotify, and a scan from time to time, because not every file system reports changes. A
 * change is acted on when the files have not been touched for half a second. */
#pragma once

#include "server/schedule/runtime/model_host.h"

struct loader_options {
    const char *models;        /* the repository's folder; NULL: one model */
    const char *model;         /* without `models`: its path; NULL or "digits": the embedded one */
    const char *model_name;    /* without `models`: the name to serve it under; NULL: its own */
    const char *default_model; /* must be there, unless `watch`ed for in `models`; NULL: any */
    bool is_immich;            /* `models` is Immich's cache: repository_scan_immich() */
    bool watch;
    bool is_lazy;        /* models are listed at start and loaded by requests, unless they say
                            otherwise themselves */
    const char *preload; /* "a,b": these are loaded at start all the same; NULL: none */
    struct model_host *model_host; /* borrowed; outlives the loader */
};

struct loader;

/* Looks at what is there, and announces it to the model host; loads nothing yet. Texts are
 * borrowed. STATUS_NOT_FOUND, STATUS_IO, STATUS_CONFIG with a sentence when there is nothing to
 * begin with. */
enum status loader_create(const struct loader_options *options, struct loader **ret,
                          struct error *err) MUST_USE;

/* "resnet50", or "3 models": what is served, for people. Alive as long as the loader. */
const char *loader_name(const struct loader *loader);

/* The same once loaded_fd was written, with what could not be loaded: "4 of 7 models (failed: a, b,
 * c)". */
const char *loader_served(const struct loader *loader);

/* Starts the thread. `loaded_fd`: an eventfd that is written to when everything that was there at
 * start has been tried. STATUS_NO_MEMORY. */
enum status loader_start(struct loader *loader, int loaded_fd, struct error *err) MUST_USE;

/* After loaded_fd: how it went. An error when nothing is served and nothing will be. */
enum status loader_outcome(struct loader *loader, struct error *err);

/* Instead of starting: loads everything that is there on the caller's thread. The first failure,
 * even where others could be served; STATUS_CONFIG for a pipeline whose models cannot do what its
 * stages want. */
enum status loader_try(struct loader *loader, struct error *err) MUST_USE;

enum loader_job { LOADER_LOAD, LOADER_UNLOAD };

/* Loads a model again from where it lies, all versions that its policy names, or unloads it; from
 * any thread. `on_done` is called once, from the loader's thread (with STATUS_DRAINING from
 * loader_stop), after success. STATUS_DRAINING, STATUS_NO_MEMORY, STATUS_OVERLOADED (too many of
 * these wait). */
enum status loader_submit(struct loader *loader, enum loader_job job, const char *name,
                          void (*on_done)(void *context, enum status status,
                                          const struct error *err),
                          void *context, struct error *err) MUST_USE;

/* Cancels what is being loaded and joins the thread; jobs that wait are answered. May be called
 * again. */
void loader_stop(struct loader *loader);
void loader_free(struct loader *loader); /* NULL is fine */
