/* Prepares and sends a handler's answer. */
#pragma once

#include "server/http/transport/exchange.h"

/* Compresses the answer if that is worthwhile, and charges the budget for its final size. May be
 * called again. */
void answer_pack(struct exchange *exchange);

/* Ends a wait: calls the handler's `finish` if there is no answer yet, frees the handler's work and
 * the body (so that they do not coexist with the packed answer), and packs the answer. */
void answer_write(struct exchange *exchange);
