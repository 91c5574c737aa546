/* Translates the options of the command line into those of the model host and the HTTP server. */
#include "server/app/settings.h"

#include <stdlib.h>
#include <string.h>

#include "server/http/api/route_table.h"

struct model_host_options settings_model_host(const struct config *config, struct metrics *metrics)
{
    struct model_host_options options = {
        .device_count = config->device_count,
        .precision = (enum precision)config->precision,
        .cache = config->cache_folder,
        .trials = config->command == COMMAND_PREDICT ? TRIALS_NONE : TRIALS_LATER,
        .threads = (int)config->threads,
        .workers = (int)config->workers,
        .max_batch = (int)config->max_batch,
        .max_queue = (size_t)config->max_queue,
        .max_queue_bytes = (size_t)config->max_queue_bytes,
        .max_queue_ms = config->max_queue_ms,
        .limits = {.max_pixels = (uint64_t)config->max_pixels,
                   .max_side = (uint32_t)config->max_side,
                   .max_scans = (uint32_t)config->max_scans},
        .fast_decode = config->fast_decode,
        .task_options = &config->task_options,
        .default_model = config->default_model,
        .idle_unload_ms = config->idle_unload_ms,
        .ready_strict = config->ready == CONFIG_READY_STRICT,
        .metrics = metrics};
    memcpy(options.devices, config->devices, sizeof options.devices);
    memcpy(options.memory_limits, config->memory_limits, sizeof options.memory_limits);
    return options;
}

struct http_options settings_http(const struct config *config, struct model_host *model_host,
                                  struct loader *loader, struct metrics *metrics)
{
    return (struct http_options){
        .host = config->host,
        .port = (int)config->port,
        .admin_port = (int)config->admin_port,
        .grpc_port = (int)config->grpc_port,
        .unix_path = config->unix_path,
        .unix_mode = config->unix_bits,
        .tls_cert = config->tls_cert,
        .tls_key = config->tls_key,
        .threads = (int)config->http_threads,
        .top_k = (int)config->top_k,
        .note = config->fallback,
        .max_body = (size_t)config->max_body,
        .max_upload_memory = (size_t)config->max_upload_memory,
        .max_header = (size_t)config->max_header,
        .max_images = (size_t)config->max_images,
        .max_json_depth = (size_t)config->max_json_depth,
        .response_cache = (size_t)config->response_cache,
        .max_connections = (size_t)config->max_connections,
        .max_connections_per_address = (size_t)config->max_connections_per_address,
        .header_timeout_ms = config->header_timeout,
        .default_timeout_ms = config->default_timeout,
        .body_timeout_ms = config->body_timeout,
        .answer_timeout_ms = config->answer_timeout,
        .idle_timeout_ms = config->idle_timeout,
        .max_inflate_ratio = (size_t)config->max_inflate_ratio,
        .cors_origin = config->cors_origin,
        .trusted_proxies = config->trusted_proxies,
        .proxy_protocol = config->proxy_protocol,
        .allowed_hosts = config->allowed_hosts,
        .keys = {.keys_file = config->api_keys,
                 .admin_file = config->admin_key_file,
                 .protect_open = config->protect_health,
                 .metrics = metrics},
        .routes = &http_route_table,
        .grpc_routes = &grpc_route_table,
        .model_host = model_host,
        .loader = loader,
        .metrics = metrics,
    };
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
