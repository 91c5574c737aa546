/* Prepares and sends a handler's answer. */
#pragma once

#include "server/http/transport/exchange.h"

/* Compresses the answer if that is worthwhile, and charges the budget for its final size. May be
 * called again. */
void answer_pack(struct exchange *exchange);

/* Ends a wait: calls the handler's `finish` if there is no answer yet, frees the handler's work and
 * the body, and then packs the answer, which thus needs no memory beside them. */
void answer_write(struct exchange *exchange);
