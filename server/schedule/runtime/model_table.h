/* The model host's table of models, private to model_table.c ◀ model_demand.c ◀ model_sizes.c ◀
 * model_load.c and model_host.c.
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

/* Failures of sizes that are remembered. */
#define FAILED_SIZES 16

struct deployment_size {
    int height, width; /* 0: none */
};

static inline bool table_is_shortage(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY;
}

struct failed_size {
    struct deployment_size size;
    bool is_short; /* of memory: forgotten when a model is unloaded */
    char why[300];
};

/* What is known of a model, loaded or not. */
struct model_brief {
    uint64_t parameter_bytes, file_bytes;
    bool takes_images, takes_texts, answers_photos;
    enum task_kind task;
    char task_evidence[sizeof((struct model_status *)0)->task_evidence];
    float confidence, iou;
    int width, height, channels;
    size_t class_count;
};

/* One line of the table: a version of a model, from its announcement until it leaves the table, and
 * as long as requests hold it. */
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
    struct model_brief brief;       /* zeroes until it has been read */

    struct model_host *host;
    _Atomic int refs;        /* the table's and one for each request that holds it */
    _Atomic int64_t used;    /* clock_now() when it was last held, let go or loaded */
    _Atomic int64_t keep_ns; /* what the last request wants `idle_ns` to be; negative: nothing */
    int64_t idle_ns;         /* without a request, before it is unloaded; INT64_MAX: never */
    enum unload_cause cause; /* of MODEL_UNLOADING and MODEL_UNLOADED */
    bool on_demand;          /* a request asked for the load; others wait for it, too */
    uint64_t wanted_at;      /* number of that wish, by which loads are ordered; 0: none */
    /* L(b) of the last deployment that ran batches; size 0 ends them */
    struct session_batch known[SESSION_MAX_BATCHES];
    size_t took[DEVICE_MAX]; /* bytes of options.devices when it was last loaded */
    uint64_t loads, unloads[UNLOAD_CAUSES];
    double load_seconds; /* of the last load */

    /* Of a model whose file leaves height and width free, while it is ready. */
    struct deployment *sizes[DEPLOYMENT_SIZES]; /* beside `deployment`; NULL where there is none */
    struct deployment_size wanted;              /* a size to be compiled */
    struct failed_size failed[FAILED_SIZES];    /* a ring: failure i is at i modulo its size */
    size_t failed_count;                        /* so far */
    uint64_t size_uses;                         /* so far */
};

/* Deployments that have been taken out of the table together, and are not freed yet. */
struct leaving {
    struct deployment *all[1 + DEPLOYMENT_SIZES];
    size_t count;
};

struct model_host {
    struct model_host_options options; /* immutable, defaults filled in */
    struct pool *pool;
    struct device_budgets *budget;
    struct worker_context worker_context;           /* immutable */
    struct device_queue *device_queues[DEVICE_MAX]; /* of options.devices */
    _Atomic int state;                              /* enum model_host_state */

    pthread_mutex_t lock;
    pthread_cond_t released;      /* a deployment has lost its last user */
    struct model_entry **entries; /* by name, then in the order they were announced; each owned */
    size_t entry_count;
    char default_name[sizeof((struct model_status *)0)->name]; /* "": none, or options have it */
    size_t required_total;
    uint64_t generations, serials; /* given to deployments so far */
    bool settled, draining;
    bool awaits_sizes; /* not ready until the sizes that its pipelines name are compiled */
    struct model_host_source source;
    struct deployment *retiring;     /* out of the table, not freed yet */
    struct predict_request *waiting; /* for a load, oldest first */
    size_t waiting_count;
    uint64_t wishes; /* for loads, so far */
    /* table_sizes_to_come_locked(), which model_table.c must not call: model_sizes.c uses it */
    int (*sizes_to_come)(struct model_host *host, const struct pipeline_config *stages);
};

/* Sizes that the stages of a pipeline name and that are not compiled yet. */
int table_sizes_to_come_locked(struct model_host *host, const struct pipeline_config *stages);

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

/* Walks through everything that may hold images, in the table or leaving it, with the caller as a
 * user: releases `before` (NULL: begin), and returns the next; NULL: there is none. What enters the
 * table meanwhile comes last. */
struct deployment *table_use_next(struct model_host *host, struct deployment *before);

/* The entry of a version, a new one if need be; NULL when out of memory. What was announced without
 * a version gets it now. */
struct model_entry *table_enter_locked(struct model_host *host, const char *name,
                                       const char *version);

/* The entry of the version, or what was announced without one; NULL: none. Without a version, the
 * one that answers for the name. */
struct model_entry *table_find_announced_locked(struct model_host *host, const char *name,
                                                const char *version);

/* Takes a deployment (*at may be NULL) out of the table, and puts it on the list `retiring`. */
void table_leave_locked(struct model_host *host, struct deployment **at, struct leaving *leaving);

/* The same of all that an entry has, whose sizes it forgets. */
void table_empty_locked(struct model_host *host, struct model_entry *entry,
                        struct leaving *leaving);

/* Ends them; returns when they have answered everything. */
void table_retire(struct model_host *host, const struct leaving *leaving);

/* Lets go of the table's, or a request's, hold on an entry. */
void table_unref_entry(struct model_entry *entry);

/* Whether a request can be answered: at once, or once a load is done that requests may ask for. */
bool table_can_answer(const struct model_entry *entry);

/* Fills in `brief`, also from its deployment where it has one. */
void table_describe_locked(struct model_entry *entry, const struct model *model,
                           const struct deployment *deployment);

/* A load has failed. `is_passing`: a later one may succeed, so requests may ask for it. */
void table_fail_locked(struct model_host *host, struct model_entry *entry, const char *failure,
                       bool is_passing);

/* The entries that a request needs; 0: what it names cannot answer, and submitting tells why. */
size_t table_find_needed_locked(struct model_host *host, const struct predict_request *request,
                                struct model_entry *ret[static PIPELINE_STAGES_MAX]);

/* Whether requests for the entry have to wait; asks for its load where it is unloaded. */
bool table_want_locked(struct model_host *host, struct model_entry *entry);

/* Makes a request hold the entries that it needs; false: it has to wait for a load. */
bool table_hold_locked(struct model_host *host, struct predict_request *request);

/* Whether an admitted request would have to wait for a load, which then begins. */
bool table_must_wait_locked(struct model_host *host, const struct predict_request *request);

/* Lets requests go on that wait for nothing more: all their models are loaded, their time is over,
 * or what they wait for does not come, such as `failed` (NULL: none). Unlocks. Called after changes
 * of the table. */
void table_settle_and_unlock(struct model_host *host, const struct model_entry *failed);

/* ---- model_demand.c ---- */

/* Ends the holds of a request. */
void table_let_go(struct predict_request *request);

/* Takes a request off the list of those that wait; false: it is not there. */
bool table_stop_waiting_locked(struct model_host *host, struct predict_request *request);

/* Unloads least recently used models that are idle until a load of this model is likely to fit.
 * From the thread that loads. */
void table_make_room(struct model_host *host, const struct model *model);

/* Unloads the least recently used idle model but the named one; false: all are busy. */
bool table_unload_oldest(struct model_host *host, const char *name);

/* "; in memory are a (120 MiB, busy), b (80 MiB)": those that are loaded, but for the named one; ""
 * if there are none. */
void table_name_loaded(struct model_host *host, const char *name, char *text, size_t size);

/* What the host gives to each of its deployments; the caller adds the rest. */
struct deployment_options table_deployment_options(const struct model_host *host,
                                                   struct model *model,
                                                   const struct precision_choice *choices,
                                                   const _Atomic int *cancel);

/* ---- model_sizes.c ---- */

/* Numbers a deployment that is about to be put into the table. `generation`: that of its load. */
void table_place_locked(struct model_host *host, struct deployment *deployment,
                        uint64_t generation);

/* Compiles the sizes in use of the same version for `deployment`, which is not in the table yet, so
 * that no request for them is refused. Sizes that fail are left out, and none is compiled where
 * `deployment` completes a first one, whose sizes stay. ret: zeroed; on failure, too, the caller
 * ends what is in it. STATUS_CANCELLED. */
enum status table_carry_sizes(struct model_host *host, const struct deployment *deployment,
                              bool completes, const _Atomic int *cancel,
                              struct deployment *ret[static DEPLOYMENT_SIZES],
                              struct error *err) MUST_USE;

/* Tells the budget how many loads will follow the one that begins now. */
void table_plan_memory(struct model_host *host);

/* Whether `completes` says that what replaces the entry's deployment has the same weights and
 * precision, so that its sizes stay. */
bool table_keeps_sizes_locked(const struct model_entry *entry, bool completes);
