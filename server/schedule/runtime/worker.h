/* The decode workers' work: one image from bytes to a slot of its model's forming batch. The
 * functions are what a pool (pool.h) needs. */
#pragma once

#include "server/schedule/runtime/pool.h"

/* What all workers use. */
struct worker_context {
    const struct model_host_options *options;
    struct device_budgets *budget; /* large pictures ask it for memory */
    size_t small_picture;          /* bytes; smaller ones do not */
};

/* context: struct worker_context, outlives the pool. NULL when out of memory. */
void *worker_start(void *context);
bool worker_run(void *state, struct pool_source *source);
void worker_rest(void *state, bool is_last);
void worker_stop(void *state);
