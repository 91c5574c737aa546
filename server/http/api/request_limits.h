/* Reads time limit, priority and client of a predict request, for every protocol, into struct
 * predict_request.
 *
 *     X-Request-Timeout-Ms: 250     from the request line to the answer; default: --default-timeout
 *     X-Priority: 1                 1 goes first, 8 last; 0 or absent: the default, 4
 *
 * The client is the name of its API key, otherwise its address. */
#pragma once

#include <stdint.h>

#include "server/http/transport/exchange.h"

/* Sets started, deadline, priority and client, and keep_alive from the query. STATUS_INVALID: a
 * number or time is malformed or out of range. */
enum status request_limits_read(const struct exchange *exchange, struct predict_request *request,
                                struct error *err) MUST_USE;

/* Applies the V2 protocol's `timeout`, in microseconds from request->started, and `priority`;
 * neither is negative. 0: not set, so the header's value applies. Of several time limits the
 * shortest applies. STATUS_INVALID: a priority above 8. */
enum status request_limits_of_body(struct predict_request *request, int64_t timeout_us,
                                   int64_t priority, struct error *err) MUST_USE;

/* For a route's admit: asks model_host_would_admit(), and sets Retry-After if that refuses. The
 * caller has set model, version and size of `request` from the request line and headers. */
enum status request_limits_ask_room(struct exchange *exchange, struct predict_request *request,
                                    struct error *err) MUST_USE;
