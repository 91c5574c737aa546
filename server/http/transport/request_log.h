/* The log line, the counters and the spans (trace_exporter.h) of each finished request. */
#pragma once

#include "server/http/transport/exchange.h"

struct request_log;

/* Borrows `metrics`, which may be NULL, and `routes`. Returns NULL when out of memory. */
struct request_log *request_log_create(struct metrics *metrics, const struct route_table *routes);
void request_log_free(struct request_log *log); /* accepts NULL */

/* Writes the line of a finished exchange, counts it and exports its spans. `outcome` is a constant:
 * "answered", "refused", "timeout", "client_gone" … Thread-safe. */
void request_log_write(struct request_log *log, const struct exchange *exchange,
                       const char *outcome);

/* Logs and counts a request whose headers were late; only its client is known. `waited`:
 * nanoseconds since their first byte. Thread-safe. */
void request_log_late(struct request_log *log, const char *address, int64_t waited);

/* Only the first refusals with Retry-After in a second are logged (log_sample.h). After the second,
 * or now if `end`, logs how many were left out. Returns true if the caller must call this function
 * again. Thread-safe. */
bool request_log_tell_left_out(struct request_log *log, bool end);
