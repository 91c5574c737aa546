/* State and metrics for probes, dashboards and people; never behind the queue of images. */
#include <string.h>

#include "engine/base/clock.h"
#include "lensd_version.h"
#include "proto/answers.h"
#include "server/http/api/describe.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/observe/gpus.h"
#include "server/observe/log.h"
#include "server/observe/process.h"

static bool is_draining(const struct exchange *x)
{
    return atomic_load(&x->server->draining);
}

static bool is_ready(const struct exchange *x)
{
    return !is_draining(x) && pipeline_state(x->server->options.pipeline) == PIPELINE_READY &&
           !pipeline_is_lost(x->server->options.pipeline);
}

/* 503 is "ask again" here, too. */
static void respond_state(struct exchange *x, bool good, char *text, size_t size)
{
    x->answer.retry_after_s = good ? 0 : pipeline_retry_after(x->server->options.pipeline);
    respond_text(x, good ? 200 : 503, TYPE_JSON, text, size);
}

void health_handle(struct exchange *x)
{
    size_t size = 0;
    bool ready = is_ready(x);
    double uptime_s = clock_ms(clock_now() - x->server->started) / 1000;
    char *text =
        describe_health(x->server->options.pipeline, is_draining(x), uptime_s,
                        x->server->options.note, atomic_load(&x->server->confinement), &size);
    respond_state(x, ready, text, size);
}

void livez_handle(struct exchange *x)
{
    size_t size = 0;
    char *text = status_word_json("live", &size);
    respond_state(x, true, text, size);
}

void readyz_handle(struct exchange *x)
{
    size_t size = 0;
    bool ready = is_ready(x);
    char *text =
        status_word_json(describe_state(x->server->options.pipeline, is_draining(x)), &size);
    respond_state(x, ready, text, size);
}

void ping_handle(struct exchange *x)
{
    size_t size = 0;
    bool ready = is_ready(x);
    char *text = status_word_json(ready ? "Healthy" : "Unhealthy", &size);
    respond_state(x, ready, text, size);
}

void devices_handle(struct exchange *x)
{
    size_t size = 0;
    char *text = describe_devices(x->server->options.pipeline, x->server->options.note, &size);
    respond_text(x, 200, TYPE_JSON, text, size);
}

void metrics_handle(struct exchange *x)
{
    size_t size = 0;
    struct metrics *metrics = x->server->options.metrics;
    /* Updated only when /metrics is read, not with every byte. */
    metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_http_upload_bytes",
                           "Memory that bodies of requests and answers take now.", "", NULL, 0),
               (double)atomic_load(&x->server->budget.used));
    metric_set(metrics_get(metrics, METRIC_COUNTER, "lensd_log_lines_lost_total",
                           "Log lines that could not be written.", "", NULL, 0),
               (double)log_lost_total());
    metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_build_info", "The version that runs.",
                           "version=\"" LENSD_VERSION "\"", NULL, 0),
               1);
    process_metrics_update(metrics);
    gpu_metrics_update(metrics);
    char *text = metrics_text(metrics, &size);
    respond_text(x, 200, TYPE_METRICS, text, size);
}
