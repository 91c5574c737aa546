/* Builds and ends deployments (deployment.h). */
#pragma once

#include "server/schedule/runtime/lane.h"

struct model_host;

/* All pointers are borrowed; deployment_create() takes ownership of `model`. */
struct deployment_options {
    struct model_host *host;
    struct model *model;
    const struct precision_choice *choices; /* index: enum device_kind; NULL: choose now */
    const struct session_batch *known;      /* session_options.known; NULL: measure all sizes */
    void (*on_progress)(void *context, const char *phase, double fraction); /* may be NULL */
    void *progress_context;
    const _Atomic int *cancel; /* may be NULL */
};

/* Compiles the model on the host's devices and starts its threads. Takes ownership of the model,
 * even on failure. Errors: those of model_host_add_model(). */
enum status deployment_create(const struct deployment_options *options, struct deployment **ret,
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
