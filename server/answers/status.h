/* The state of the server, its models and devices as JSON, for the server and the command line. The
 * JSON is malloc'ed; NULL when out of memory. `note` says why --device auto chose the CPU; NULL or
 * "" if it did not. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* Returns "loading", "ready", "draining", "failed", "stuck" or "unloaded". `draining` overrides the
 * host's state. */
const char *status_state(struct model_host *model_host, bool draining);

/* {"status","ready","version","uptime_seconds","note"?,"confinement"?,"sizes_left"?,"formats":[…],
 * "models":[…]}: the state, the models and their progress. `confinement`: such as "seccomp,
 * Landlock 4"; NULL: unknown. */
char *status_health_json(struct model_host *model_host, bool draining, double uptime_s,
                         const char *note, const char *confinement);

/* {"devices":[{"id","name","usable","reason"?,"memory":{"total_bytes","free_bytes",
 * "used_by_lensd_bytes","limit_bytes"?},"threads"?,"cores"?,"isa"?,"fast_precisions":[…],
 * "models":[…]}],"unloaded"?:[…],"pipelines"?:[{"name","stages":[…]}],"note"?}: every device of the
 * machine with its models in `model_host` (NULL: none). An unusable device has no members after
 * "reason", unless a model uses it. */
char *status_devices_json(struct model_host *model_host, const char *note);
