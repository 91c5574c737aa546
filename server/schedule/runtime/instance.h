/* An instance: what serves one version of a model. Its lanes (a thread and a compiled session on
 * each device) and its scheduler, built beside what is served and ended when the version is
 * replaced or leaves.
 *
 *     instance_create ─▶ serves ─▶ instance_retire: no new requests, answers what it has
 *                                       └─▶ instance_free: joins threads, frees the rest
 *
 * A model whose file leaves height and width free has an instance for each size that clients asked
 * for lately, owned by the first one.
 *
 * The description (served.h) outlives it, for answers that are still being written. Owned by the
 * model host's table; not thread-safe beyond what scheduler.h promises. */
#pragma once

#include "server/schedule/runtime/lane.h"
#include "server/schedule/runtime/pool.h"

/* The most sizes, besides its own, that a model is compiled for at a time; and how many that failed
 * are remembered. */
#define INSTANCE_SIZES        4
#define INSTANCE_FAILED_SIZES 16

/* How its sessions are made. */
enum instance_plan {
    PLAN_MEASURE, /* layers whose kernels were not measured yet are measured */
    PLAN_KNOWN,   /* their kernels are chosen by rule */
    PLAN_FIRST, /* the same, and single images alone are compiled: for a quick start on CPUs; where
                   memory has no room for a second instance beside it, PLAN_MEASURE */
};

struct instance {
    struct served *served; /* one reference */
    struct scheduler *scheduler;
    struct lane *lanes[DEVICE_MAX];
    size_t lane_count;
    double load_ms; /* CPU time of the thread that created it */
    enum instance_plan plan;

    /* The model host's, guarded by its lock. */
    struct precision_choice choices[DEVICE_KINDS]; /* by enum device_kind; `why` "": none */
    size_t users; /* callers between model_host_acquire and model_host_release, or within submit */
    struct instance *next_retiring;
    struct instance *sizes[INSTANCE_SIZES]; /* of other sizes; NULL where there is none */
    struct instance_size {
        int height, width; /* 0: none */
    } wanted;              /* a size to be compiled */
    struct failed_size {
        struct instance_size size;
        bool is_short; /* of memory: forgotten when a model is unloaded */
        char why[300];
    } failed[INSTANCE_FAILED_SIZES]; /* a ring: failure i is at i modulo its size */
    size_t failed_count;             /* so far */
    uint64_t used_at;                /* number of this use, counted over all uses of `sizes` */
};

/* What instances are made with; borrowed, but for `model` where a function takes it over. */
struct instance_options {
    const struct model_host_options *host;
    struct pool *pool;
    struct device_budgets *budget;             /* books the memory of sessions */
    struct device_queue *const *device_queues; /* the lane on host->devices[i] uses number i */
    struct model *model;
    const struct precision_choice *choices; /* by enum device_kind; NULL: they are made now */
    enum instance_plan plan;
    void (*on_progress)(void *context, const char *phase, double fraction); /* may be NULL */
    void *progress_context;
    const _Atomic int *cancel; /* may be NULL */
};

/* Compiles the model on the host's devices and starts its threads. Takes over the model on success
 * and on failure. Errors as model_host_add_model's. */
enum status instance_create(const struct instance_options *options, struct instance **ret,
                            struct error *err) MUST_USE;

/* Measures the kernels of the model's layers for the tuning store, on its own thread, which leaves
 * most of the CPU to threads that serve. Needs `choices`; ignores `plan`. Layers stay unmeasured
 * if this fails. STATUS_CANCELLED. */
enum status instance_measure_kernels(const struct instance_options *options,
                                     struct error *err) MUST_USE;

/* Runs the pending trials on the lanes' sessions while they serve. Replaces those of `choices` (by
 * enum device_kind) that were pending. The options' model is the instance's, with its graph.
 * Errors as precision_try's. */
enum status instance_try_precision(struct instance *instance,
                                   const struct instance_options *options,
                                   struct precision_choice *choices, struct error *err) MUST_USE;

/* Refuses further requests and returns when every admitted image is answered (however long that
 * takes) and no worker is inside. */
void instance_retire(struct instance *instance);

/* Joins the threads; all images are answered, and the pool has ended or instance_retire was called.
 * NULL is fine. */
void instance_free(struct instance *instance);
