/* Builds deployments (deployment.h) and ends them; for the model host. */
#pragma once

#include "server/schedule/runtime/lane.h"
#include "server/schedule/runtime/pool.h"

/* What deployments are made with; borrowed, but for `model` where a function takes it over. */
struct deployment_options {
    const struct model_host_options *host;
    struct pool *pool;
    struct device_budgets *budget;             /* books the memory of sessions */
    struct device_queue *const *device_queues; /* the lane on host->devices[i] uses number i */
    struct model *model;
    const struct precision_choice *choices; /* by enum device_kind; NULL: they are made now */
    const struct session_batch *known;      /* of an earlier deployment: session_options */
    enum deployment_plan plan;
    void (*on_progress)(void *context, const char *phase, double fraction); /* may be NULL */
    void *progress_context;
    const _Atomic int *cancel; /* may be NULL */
};

/* Compiles the model on the host's devices and starts its threads. Takes over the model on success
 * and on failure. Errors as model_host_add_model's. */
enum status deployment_create(const struct deployment_options *options, struct deployment **ret,
                              struct error *err) MUST_USE;

/* Measures the kernels of the model's layers for the tuning store, on its own thread, which leaves
 * most of the CPU to threads that serve. Needs `choices`; ignores `plan`. Layers stay unmeasured
 * if this fails. STATUS_CANCELLED. */
enum status deployment_measure_kernels(const struct deployment_options *options,
                                       struct error *err) MUST_USE;

/* Runs the pending trials on the lanes' sessions while they serve. Replaces those of `choices` (by
 * enum device_kind) that were pending. The options' model is the deployment's, with its graph.
 * Errors as precision_try's. */
enum status deployment_try_precision(struct deployment *deployment,
                                     const struct deployment_options *options,
                                     struct precision_choice *choices, struct error *err) MUST_USE;

/* Refuses further requests and returns when every admitted image is answered (however long that
 * takes) and no worker is inside. */
void deployment_retire(struct deployment *deployment);

/* Joins the threads, frees sessions and buffers, and lets go of the creator's reference. All images
 * are answered, and the pool has ended or deployment_retire was called. NULL is fine. */
void deployment_end(struct deployment *deployment);
