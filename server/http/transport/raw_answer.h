/* The bytes of an answer that is sent past libmicrohttpd. */
#pragma once

#include "server/http/transport/exchange.h"

/* A whole HTTP response with the answer in it, for connection_refuse(); malloc'ed, NULL when out of
 * memory. request_id may be NULL. */
char *raw_answer(const struct answer *answer, const char *request_id, size_t *ret_size);
