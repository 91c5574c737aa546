/* Translates the user's options into those of the pipeline and the HTTP server. */
#pragma once

#include "server/app/config.h"
#include "server/http/transport/server.h"
#include "server/schedule/runtime/pipeline.h"

/* `metrics` may be NULL. */
struct pipeline_options settings_pipeline(const struct config *config, struct metrics *metrics);

/* Texts are borrowed from *config. `loader` may be NULL. */
struct http_options settings_http(const struct config *config, struct pipeline *pipeline,
                                  struct loader *loader, struct metrics *metrics);
