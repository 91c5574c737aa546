/* The decode workers' functions for pool_options: a task prepares one image, up to its slot in the
 * forming batch of its model, or makes a deferred answer. */
#pragma once

#include "server/schedule/runtime/pool.h"

/* The state that all workers share. */
struct worker_context {
    const struct model_host_options *options;
    struct device_budgets *budget; /* for the memory of large photos */
    size_t small_picture;          /* bytes; smaller photos are decoded without booking memory */
};

/* `context` is a struct worker_context that outlives the pool. Returns NULL when out of memory. */
void *worker_start(void *context);
bool worker_run(void *state, struct pool_source *source);
void worker_rest(void *state, bool is_last);
void worker_stop(void *state);
