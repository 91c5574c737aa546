/* What a request says of its own urgency, for whichever protocol it is in: how long it waits for an
 * answer, which requests go before it, and whose it is. Everything ends up in the fields of struct
 * predict_request; what they mean is said there.
 *
 *     X-Request-Timeout-Ms: 250     from the request line to the answer; else
 *                                   --default-timeout
 *     X-Priority: 1                 1 goes first, 8 last; 0, and none: the default, 4
 *
 * The client is its API key's name, else its address. Runs on the thread of the connection. */
#pragma once

#include <stdint.h>

#include "server/http/transport/exchange.h"

/* Sets deadline, priority and client from the headers, and `started`. STATUS_INVALID names the
 * header that is no number, or out of its range. */
enum status urgency_read(const struct exchange *exchange, struct predict_request *request,
                         struct error *err) MUST_USE;

/* A time limit in microseconds from the first byte that the body gives (the V2 protocol's
 * `timeout`); 0: none. The nearest of all that are given holds. */
void urgency_limit_us(struct predict_request *request, uint64_t microseconds);

/* A priority that the body gives (the V2 protocol's `priority`); 0: the default. STATUS_INVALID
 * beyond 8. */
enum status urgency_set_priority(struct predict_request *request, uint64_t priority,
                                 struct error *err) MUST_USE;

/* For a route's admit: is there room for this request, as far as its head tells? `request` has what
 * the head says of model, version and size; the rest is set here. A refusal has Retry-After. */
enum status urgency_ask_room(struct exchange *exchange, struct predict_request *request,
                             struct error *err) MUST_USE;
