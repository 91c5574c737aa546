/* The log line, the counters and the spans (trace_exporter.h) of each finished request. */
#pragma once

#include "server/http/transport/exchange.h"

struct request_log;

/* `metrics` may be NULL. Borrows both. NULL when out of memory. */
struct request_log *request_log_create(struct metrics *metrics, const struct route_table *routes);
void request_log_free(struct request_log *log); /* accepts NULL */

/* Writes the line of a finished exchange, counts it and exports its spans. `outcome` is a constant:
 * "answered", "refused", "timeout", "client_gone" … Thread-safe. */
void request_log_write(struct request_log *log, const struct exchange *exchange,
                       const char *outcome);

/* Does the same for a request with late headers; only its client is known. `waited` is in
 * nanoseconds. Thread-safe. */
void request_log_late(struct request_log *log, const char *address, int64_t waited);

/* Refusals with Retry-After are sampled (log_sample.h). When their second is over, or now if `end`,
 * this logs how many lines were omitted. True if it has more to report later. Thread-safe. */
bool request_log_tell_left_out(struct request_log *log, bool end);
