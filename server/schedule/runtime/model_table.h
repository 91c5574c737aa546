/* The model host's table of models, private to model_table.c ◀ model_sizes.c ◀ model_load.c
 * and model_host.c.
 *
 * Locks: `lock` guards the table, the list of what retires, and every deployment's `users`. Nothing
 * of a scheduler is called while it is held. A thread that uses a deployment without the lock
 * counts as one of its users; a thread that takes the deployment out of the table waits for them
 * before it ends it. `state` is an atomic copy, so that it can be read anywhere. */
#pragma once

#include <pthread.h>

#include "server/schedule/runtime/deployment_build.h"
#include "server/schedule/runtime/model_host.h"
#include "server/schedule/runtime/worker.h"

/* One line of the table: a version of a model. */
struct model_entry {
    char name[sizeof((struct model_status *)0)->name];
    char version[sizeof((struct model_status *)0)->version]; /* "": not known yet */
    enum model_state state;
    bool is_required; /* its name has to be served where options.ready_strict */
    double progress;
    const char *phase; /* static text: what the load does */
    int64_t begun;     /* clock_now() when it began to load */
    char failure[sizeof((struct model_status *)0)->failure];
    struct deployment *deployment;  /* exactly while state is MODEL_READY, but for pipelines */
    struct pipeline_config *stages; /* of a pipeline, exactly while state is MODEL_READY; owned */
};

struct model_host {
    struct model_host_options options; /* immutable, defaults filled in */
    struct pool *pool;
    struct device_budgets *budget;
    struct worker_context worker_context;           /* immutable */
    struct device_queue *device_queues[DEVICE_MAX]; /* of options.devices */
    _Atomic int state;                              /* enum model_host_state */

    pthread_mutex_t lock;
    pthread_cond_t released;     /* a deployment has lost its last user */
    struct model_entry *entries; /* MODEL_HOST_MAX_MODELS, of which entry_count are in use */
    size_t entry_count;
    char default_name[sizeof((struct model_status *)0)->name]; /* "": none, or options have it */
    size_t required_total;
    uint64_t generations; /* deployments that have been put into the table so far */
    bool settled, draining;
    bool awaits_sizes; /* not ready until the sizes that its pipelines name are compiled */
    struct model_host_source source;
    struct deployment *retiring; /* out of the table, not freed yet */
};

/* Recomputes `state`; call it after every change of the table. */
void table_update_state_locked(struct model_host *host);

/* The version that answers for a name (NULL: the default model): the one asked for, else the newest
 * that is ready, else one that tells why none is. NULL: there is no such model or version. */
struct model_entry *table_find_locked(struct model_host *host, const char *name,
                                      const char *version);

/* The name that requests without one mean; NULL: none. */
const char *table_default_locked(const struct model_host *host);

/* Seconds until a model that is loading will be ready, going by its progress so far; at least 1. */
int table_seconds_left(const struct model_entry *entry);

/* The same until all models that load are ready. */
int table_retry_after_locked(const struct model_host *host);

/* The entry of exactly this version; NULL: none. */
struct model_entry *table_find_version_locked(struct model_host *host, const char *name,
                                              const char *version);

/* The deployment that serves the version, with the caller as a user; NULL: none. */
struct deployment *table_use_version(struct model_host *host, const char *name,
                                     const char *version);

/* The other sizes of the model of `base` that are compiled, with the caller as a user of each.
 * Returns how many. */
size_t table_use_sizes(struct model_host *host, const struct deployment *base,
                       struct deployment *ret[static DEPLOYMENT_SIZES]);

/* The entry of a version, a new one if need be; NULL when the table is full. What was announced
 * without a version gets it now. */
struct model_entry *table_enter_locked(struct model_host *host, const char *name,
                                       const char *version);

/* The entry of the version, or what was announced without one; NULL: none. Without a version, the
 * one that answers for the name. */
struct model_entry *table_find_announced_locked(struct model_host *host, const char *name,
                                                const char *version);

/* Puts a deployment that has left the table on the list `retiring`. */
void table_begin_retiring_locked(struct model_host *host, struct deployment *deployment);

/* Ends a deployment on that list; returns when it has answered everything. */
void table_retire(struct model_host *host, struct deployment *deployment);

/* What the host gives to each of its deployments; the caller adds the rest. */
struct deployment_options table_deployment_options(const struct model_host *host,
                                                   struct model *model,
                                                   const struct precision_choice *choices,
                                                   const _Atomic int *cancel);

/* ---- model_sizes.c ---- */

/* Sets the load that the deployment and its sizes belong to. */
void table_set_generation(struct deployment *deployment, uint64_t generation);

/* Compiles the sizes in use of the same version for `deployment`, which is not in the table yet, so
 * that no request for them is refused. Sizes that fail are left out, and none is compiled where
 * `deployment` completes a first one, whose sizes it takes over. STATUS_CANCELLED. */
enum status table_carry_sizes(struct model_host *host, struct deployment *deployment,
                              bool completes, const _Atomic int *cancel,
                              struct error *err) MUST_USE;

/* Tells the budget how many loads will follow the one that begins now. */
void table_plan_memory(struct model_host *host);

/* If `to` completes `from`, a first deployment, it takes over its sizes. */
void table_hand_over_sizes_locked(struct deployment *from, struct deployment *to, bool completes);
