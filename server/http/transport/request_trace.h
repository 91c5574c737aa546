/* Hands the spans of a finished request to the exporter (trace_exporter.h). */
#pragma once

#include "server/http/transport/exchange.h"

/* Exports only sampled requests to paths that take a body, because health checks and pages would
 * outnumber them. Call it from the connection's thread. */
void request_trace(const struct exchange *exchange);
