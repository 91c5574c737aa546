/* Makes the options of the model host, the HTTP server and the trace exporter. */
#pragma once

#include "server/app/config.h"
#include "server/http/transport/server.h"
#include "server/schedule/runtime/model_host.h"

/* `metrics` may be NULL. */
struct model_host_options settings_model_host(const struct config *config, struct metrics *metrics);

/* Borrows texts from *config. `loader` may be NULL. */
struct http_options settings_http(const struct config *config, struct model_host *model_host,
                                  struct loader *loader, struct metrics *metrics);

/* Returns the exporter's options; `endpoint` is NULL without --trace-endpoint. STATUS_CONFIG for an
 * invalid address or share. */
enum status settings_traces(const struct config *config, struct metrics *metrics,
                            struct trace_exporter_options *ret, struct error *err) MUST_USE;
