/* Completes the options of the model host and the HTTP server. */
#include "server/app/settings.h"

#include <stdlib.h>

#include "server/http/api/route_table.h"

struct model_host_options settings_model_host(const struct config *config, struct metrics *metrics)
{
    struct model_host_options options = config->model_host;
    options.cache = config->cache_folder;
    options.trials = config->command == COMMAND_SERVE ? TRIALS_LATER : TRIALS_NONE;
    options.task_options = &config->task_options;
    options.metrics = metrics;
    return options;
}

struct http_options settings_http(const struct config *config, struct model_host *model_host,
                                  struct loader *loader, struct metrics *metrics)
{
    struct http_options options = config->http;
    options.note = config->fallback;
    options.keys.metrics = metrics;
    options.routes = &http_route_table;
    options.grpc_routes = &grpc_route_table;
    options.zmq_routes = &zmq_route_table;
    options.model_host = model_host;
    options.loader = loader;
    options.metrics = metrics;
    return options;
}

enum status settings_traces(const struct config *config, struct metrics *metrics,
                            struct trace_exporter_options *ret, struct error *err)
{
    char *end;
    int port;
    *ret = (struct trace_exporter_options){.endpoint = config->trace_endpoint,
                                           .sample = strtod(config->trace_sample, &end),
                                           .metrics = metrics};
    if (end == config->trace_sample || *end || !(ret->sample >= 0 && ret->sample <= 1))
        return error_set(err, STATUS_CONFIG, "--trace-sample is '%.40s'; it must be 0 to 1",
                         config->trace_sample);
    return ret->endpoint ? trace_endpoint_port(ret->endpoint, &port, err) : STATUS_OK;
}
