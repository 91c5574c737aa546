/* The decode workers' functions for pool_options: a task prepares one image, up to its slot in the
 * forming batch of its model, or makes a deferred answer. */
#pragma once

#include "server/schedule/runtime/pool.h"

/* `host` is a struct model_host. Returns NULL when out of memory. */
void *worker_start(void *host);
bool worker_run(void *state, struct pool_source *source);
void worker_rest(void *state, bool is_last);
void worker_stop(void *state);
