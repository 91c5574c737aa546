/* The decode workers' work: one image from bytes to a slot of its model's forming batch. The three
 * functions are what a pool (pool.h) needs. */
#pragma once

#include "server/schedule/runtime/pool.h"

/* context: struct pipeline_options, outlives the pool. NULL when out of memory. */
void *worker_start(void *context);
void worker_run(void *state, struct pool_source *source);
void worker_stop(void *state);
