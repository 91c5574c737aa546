/* Prepares a handler's answer for sending. */
#pragma once

#include "server/http/transport/exchange.h"

/* Compresses the answer if that is worthwhile, and charges the budget for its final size. May be
 * called again. */
void answer_pack(struct exchange *exchange);

/* Ends a wait: calls the handler's `finish` if there is no answer yet, frees the handler's work and
 * the body, and then packs the answer. A compressed answer thus never exists beside the body. */
void answer_write(struct exchange *exchange);
