/* The model host's table of models, private to worker.c, deployment_build.c, model_table.c,
 * model_demand.c, model_sizes.c, model_load.c and model_host.c. Each of these files calls
 * only files before it in this list.
 *
 * Locks: `lock` guards the table, the list of retiring deployments, and every deployment's `users`.
 * While it is held, no lock of a scheduler is taken. A thread that uses a deployment without the
 * lock is counted in its users. A thread that takes the deployment out of the table waits for its
 * users before it ends the deployment. `state` is atomic, so any thread can read it. */
#pragma once

#include <pthread.h>

#include "server/schedule/runtime/lane.h"

/* The most sizes of a model whose failures are recorded. */
#define FAILED_SIZES 16

struct failed_size {
    struct stage_size size; /* 0 x 0: empty */
    bool is_short;          /* memory was short; emptied when memory may have become free */
    char why[300];
};

/* One entry of the table: a version of a model, from its announcement until it leaves the table and
 * no request holds it. */
struct model_entry {
    char name[sizeof((struct model_status *)0)->name];
    char version[sizeof((struct model_status *)0)->version]; /* "": not known yet */
    enum model_state state;
    bool is_required; /* with options.ready_strict a version of its name must be served */
    bool was_ready;   /* table_can_answer() has been true */
    double progress;
    const char *phase; /* static text: the current phase of the load */
    int64_t begun;     /* clock_now() when the load began or first reported progress */
    char failure[sizeof((struct model_status *)0)->failure];
    struct deployment *deployment;  /* exactly while state is MODEL_READY, except for pipelines */
    struct pipeline_config *stages; /* of a pipeline, exactly while state is MODEL_READY; owned */
    struct model_brief brief;       /* zeroed until the files have been read */

    struct model_host *host;
    _Atomic int refs;        /* one for the table, and one for each request that holds the entry */
    _Atomic int64_t used;    /* clock_now() when the entry was last held, released or loaded */
    _Atomic int64_t keep_ns; /* keep_alive_ns of the last request, which replaces `idle_ns`;
                                negative: the request had none */
    int64_t idle_ns;         /* nanoseconds without a request before the model is unloaded;
                                INT64_MAX: never */
    enum unload_cause cause; /* for MODEL_UNLOADING and MODEL_UNLOADED */
    bool on_demand;          /* while the model is loading, requests wait instead of failing */
    int64_t wanted_at; /* clock_now() when the first request began to wait for a load; 0: none */
    /* L(b) of the last deployment; an element of size 0 ends the list */
    struct session_batch known[SESSION_MAX_BATCHES];
    size_t took[DEVICE_MAX]; /* bytes that the last deployment uses on each of options.devices */
    uint64_t loads, unloads[UNLOAD_CAUSES];
    double load_seconds; /* duration of the last load */

    /* For a model whose file does not fix height and width, while it is ready. */
    struct deployment *sizes[DEPLOYMENT_SIZES]; /* beside `deployment`; NULL: the place is empty */
    struct stage_size wanted;                   /* the size to compile next; 0 x 0: none */
    struct failed_size failed[FAILED_SIZES];
    size_t replaced_failures; /* failures that have replaced another one in `failed` */
};

struct model_host {
    struct model_host_options options; /* immutable, with defaults filled in */
    struct pool *pool;
    struct device_budgets budget;
    struct device_queue device_queues[DEVICE_MAX]; /* one for each of options.devices */
    _Atomic int state;                             /* enum model_host_state */

    pthread_mutex_t lock;
    pthread_cond_t released;      /* signalled when a deployment loses its last user */
    struct model_entry **entries; /* sorted by name, then in the order of announcement; owned */
    size_t entry_count;
    char default_name[sizeof((struct model_status *)0)->name]; /* "" if unknown */
    uint64_t generations;                                      /* the last number given to a load */
    bool settled, draining;
    bool awaits_sizes; /* the host is not ready until the sizes that pipelines name are compiled */
    struct model_host_source source;
    TAILQ_HEAD(, deployment) deployments;  /* in the table or retiring, in order of arrival */
    struct deployment *retiring;           /* out of the table, not freed yet */
    TAILQ_HEAD(, predict_request) waiting; /* requests that wait for a load, oldest first */
    size_t waiting_count;
    /* table_sizes_to_come_locked(), because model_table.c must not call model_sizes.c */
    int (*sizes_to_come)(struct model_host *host, const struct pipeline_config *stages);
};

/* ---- worker.c ---- */

/* Creates host->pool: its threads decode photos and write images into batches. STATUS_NO_MEMORY. */
enum status worker_create_pool(struct model_host *host, struct error *err) MUST_USE;

/* ---- deployment_build.c ---- */

/* All pointers are borrowed; deployment_create() takes ownership of `model`. */
struct deployment_options {
    struct model_host *host;
    struct model *model;
    const struct precision_choice *choices; /* index: enum device_kind; NULL: choose now */
    const struct session_batch *known;      /* session_options.known; NULL: measure all sizes */
    int loads_to_come; /* loads that will follow; larger batches leave each an equal part of memory
                        */
    void (*on_progress)(void *context, const char *phase, double fraction); /* may be NULL */
    void *progress_context;
    const _Atomic int *cancel;     /* may be NULL */
    struct deployment *deployment; /* private: the one that deployment_create() builds */
};

/* Compiles the model on the host's devices and starts its threads. Takes ownership of the model,
 * even on failure. Errors: those of model_host_add_model(). */
enum status deployment_create(struct deployment_options *options, struct deployment **ret,
                              struct error *err) MUST_USE;

/* Runs the pending trials on the lanes' sessions while they serve, and replaces the pending entries
 * of `choices` (index: enum device_kind). options->model is the deployment's model, with its graph,
 * and stays the caller's. Errors: those of precision_try(). */
enum status deployment_try_precision(struct deployment *deployment,
                                     const struct deployment_options *options,
                                     struct precision_choice *choices, struct error *err) MUST_USE;

/* Refuses further requests. Returns when every admitted image is answered, however long that takes,
 * and no worker uses the deployment. */
void deployment_retire(struct deployment *deployment);

/* Joins the lanes' threads, frees sessions and buffers, and drops the creator's reference. First
 * call deployment_retire(), or answer all images and end the pool. NULL is fine. */
void deployment_end(struct deployment *deployment);

/* ---- model_table.c ---- */

/* Recomputes `state`; call it after every change of the table. */
void table_update_state_locked(struct model_host *host);

/* Returns the entry of `version`. If `version` is NULL or "", returns the newest version of the
 * name that can answer, or else the newest one. `name` NULL: the default model. NULL: there is
 * none. */
struct model_entry *table_find_locked(struct model_host *host, const char *name,
                                      const char *version);

/* Returns the name of the default model; NULL: there is none. */
const char *table_default_locked(const struct model_host *host);

/* Estimated seconds until a loading model is ready, from its progress so far; at least 1. */
int table_seconds_left(const struct model_entry *entry);

/* Estimated seconds until all loading models are ready. */
int table_retry_after_locked(const struct model_host *host);

/* The entry of exactly this version, or NULL. */
struct model_entry *table_find_version_locked(struct model_host *host, const char *name,
                                              const char *version);

/* Iterates over host->deployments. Releases `before` (NULL: the iteration starts) and returns the
 * next deployment, with the caller as a user; NULL at the end. */
struct deployment *table_use_next(struct model_host *host, struct deployment *before);

/* The entry of a version, created if needed; NULL when out of memory. An entry that was announced
 * without a version gets this one. */
struct model_entry *table_enter_locked(struct model_host *host, const char *name,
                                       const char *version);

/* The entry of the version, else one announced without a version, else NULL. With version NULL: the
 * one announced without a version, else the one that answers for the name. */
struct model_entry *table_find_announced_locked(struct model_host *host, const char *name,
                                                const char *version);

/* Moves a deployment (*at may be NULL) from the table to the list `retiring`. */
void table_leave_locked(struct model_host *host, struct deployment **at);

/* Moves all deployments of an entry to the list `retiring`; forgets its failed and wanted sizes. */
void table_empty_locked(struct model_host *host, struct model_entry *entry);

/* Ends the deployments in the list `retiring`; returns when they have answered everything. Only the
 * thread that loads changes the list. */
void table_retire(struct model_host *host);

/* Releases the reference that the table or a request has on an entry. */
void table_unref_entry(struct model_entry *entry);

/* True if a request can be answered: at once, or after a load that requests can start. */
bool table_can_answer(const struct model_entry *entry);

/* Fills in entry->brief from a model and, if it is loaded, its deployment (else NULL). */
void table_describe_locked(struct model_entry *entry, const struct model *model,
                           const struct deployment *deployment);

/* Records a failed load. `is_passing`: a later load may succeed, so requests can start one. */
void table_fail_locked(struct model_host *host, struct model_entry *entry, const char *failure,
                       bool is_passing);

/* Finds the entries that a request needs: that of its model, or those of the stages of its
 * pipeline. Returns their number; 0 if one cannot answer (submitting then returns the reason). */
size_t table_find_needed_locked(struct model_host *host, const struct predict_request *request,
                                struct model_entry *ret[static PIPELINE_STAGES_MAX]);

/* If the entry is not ready, marks it for the loader, and returns true: requests have to wait. */
bool table_want_locked(struct model_entry *entry);

/* Makes a request hold the entries that it needs. Returns false if it has to wait for a load. */
bool table_hold_locked(struct model_host *host, struct predict_request *request);

/* True if the request has to wait for a load, or for sizes (waits_for_sizes). Starts the load. */
bool table_must_wait_locked(struct model_host *host, const struct predict_request *request);

/* Removes a request from the list of waiting ones. Returns false if it is not there. */
bool table_stop_waiting_locked(struct model_host *host, struct predict_request *request);

/* Unlocks, and calls on_done of requests that need not wait any more: their models are loaded,
 * their deadline has passed, or they need `failed` (may be NULL), whose load has failed. Call it
 * after each change of the table. */
void table_settle_and_unlock(struct model_host *host, const struct model_entry *failed);

/* ---- model_demand.c ---- */

/* Releases the entries that a request holds. */
void table_let_go(struct predict_request *request);

/* Unloads idle models, the least recently used first, until a load of this model is likely to fit.
 * Only the thread that loads calls it. */
void table_make_room(struct model_host *host, const struct model *model);

/* Unloads the least recently used idle model except `name`. Returns false if there is none. */
bool table_unload_oldest(struct model_host *host, const char *name);

/* Writes "; in memory are a (120.0 MiB, in use), b (80.0 MiB)": the loaded models except the named
 * one; "" if there are none. */
void table_name_loaded(struct model_host *host, const char *name, char *text, size_t size);

/* ---- model_sizes.c ---- */

/* Returns how many of the sizes that a pipeline's stages name are not compiled yet. All sizes of a
 * model that is loading count. */
int table_sizes_to_come_locked(struct model_host *host, const struct pipeline_config *stages);

/* Sets ret to the other compiled sizes of the model of `base`, with the caller as a user of each.
 * Returns their number. */
size_t table_use_sizes(struct model_host *host, const struct deployment *base,
                       struct deployment *ret[static DEPLOYMENT_SIZES]);

/* Sets `generation` of a deployment that enters the table, and adds it to host->deployments. */
void table_place_locked(struct model_host *host, struct deployment *deployment,
                        uint64_t generation);

/* Compiles the sizes of a served version again, for `deployment`, which will replace it, so that no
 * request for a size is refused. Leaves out sizes that fail. The caller has zeroed `ret`, and ends
 * the deployments in it, even on failure. STATUS_CANCELLED. */
enum status table_carry_sizes(struct model_host *host, const struct deployment *deployment,
                              const _Atomic int *cancel,
                              struct deployment *ret[static DEPLOYMENT_SIZES],
                              struct error *err) MUST_USE;

/* Returns how many loads will follow the current one. */
int table_loads_to_come(struct model_host *host);
