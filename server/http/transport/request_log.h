/* The log line and the counters of each finished request. */
#pragma once

#include "server/http/transport/exchange.h"

struct request_log;

/* `metrics` may be NULL. Borrows both. NULL when out of memory. */
struct request_log *request_log_create(struct metrics *metrics, const struct route_table *routes);
void request_log_free(struct request_log *log); /* NULL is fine */

/* Writes the line of an exchange that is over and counts it. `outcome` is a constant: "answered",
 * "refused", "timeout", "client_gone" … Thread-safe. */
void request_log_write(struct request_log *log, const struct exchange *exchange,
                       const char *outcome);

/* The same for a request whose headers were late, of which nothing but the client is known.
 * `waited`: nanoseconds. Thread-safe. */
void request_log_late(struct request_log *log, const char *address, int64_t waited);

/* Refusals of work with Retry-After are sampled (log_sample.h): writes how many were left out, once
 * their second is over, or at once if it is the `end`. Returns whether there are more to be told.
 * Thread-safe. */
bool request_log_tell_left_out(struct request_log *log, bool end);
