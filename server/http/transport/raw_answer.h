/* Formats an answer that bypasses libmicrohttpd. */
#pragma once

#include "server/http/transport/exchange.h"

/* Returns a complete HTTP response for connection_refuse(); malloc'ed, NULL when out of memory.
 * request_id may be NULL. */
char *raw_answer(const struct answer *answer, const char *request_id, size_t *ret_size);
