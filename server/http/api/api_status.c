/* State and metrics for probes, dashboards and people. The answers do not wait for any image. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "lensd_version.h"
#include "proto/writer.h"
#include "server/answers/status.h"
#include "server/faces/faces.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/observe/log.h"
#include "server/observe/process.h"

static bool is_draining(const struct exchange *x)
{
    return atomic_load(&x->server->draining);
}

static bool is_ready(const struct exchange *x)
{
    return !is_draining(x) &&
           model_host_readiness(x->server->options.model_host) == MODEL_HOST_READY;
}

/* Answers 200, or 503 with Retry-After. */
static void respond_state(struct exchange *x, bool good, char *text)
{
    x->answer.retry_after_s = good ? 0 : model_host_retry_after(x->server->options.model_host);
    respond_json(x, good ? 200 : 503, text);
}

void health_handle(struct exchange *x)
{
    const bool ready = is_ready(x);
    const double uptime_s = clock_ms(clock_now() - x->server->started) / 1000;
    respond_state(x, ready,
                  status_health_json(x->server->options.model_host, is_draining(x), uptime_s,
                                     x->server->options.note, x->server->confinement));
}

void livez_handle(struct exchange *x)
{
    respond_state(x, true, write_document("status=%s", "live"));
}

void readyz_handle(struct exchange *x)
{
    const bool ready = is_ready(x);
    respond_state(
        x, ready,
        write_document("status=%s", status_state(x->server->options.model_host, is_draining(x))));
}

void ping_handle(struct exchange *x)
{
    const bool ready = is_ready(x);
    if (ready && x->server->options.is_immich)
        respond_text(x, 200, TYPE_TEXT, strdup("pong"), strlen("pong"));
    else
        respond_state(x, ready, write_document("status=%s", ready ? "Healthy" : "Unhealthy"));
}

void devices_handle(struct exchange *x)
{
    const struct http_options *options = &x->server->options;
    respond_json(x, 200, status_devices_json(options->model_host, options->note));
}

static void put_head(FILE *out, const char *series, const char *type, const char *help)
{
    fprintf(out, "# HELP lensd_model_%s %s\n# TYPE lensd_model_%s %s\n", series, help, series,
            type);
}

/* `label`: NULL, or the name of the third label, whose value is `word`. */
static void put_sample(FILE *out, const struct model_status *model, const char *series,
                       const char *label, const char *word, double value)
{
    /* metrics_escape() writes at most 5 characters per byte. */
    char name[5 * sizeof model->name], version[5 * sizeof model->version];
    fprintf(out, "lensd_model_%s{model=\"%s\",version=\"%s\"", series,
            metrics_escape(model->name, name, sizeof name),
            metrics_escape(model->version, version, sizeof version));
    if (label)
        fprintf(out, ",%s=\"%s\"", label, word);
    fprintf(out, "} %.9g\n", value);
}

/* Metrics of the model versions that exist now. struct metrics would also keep removed versions. */
static void put_model_series(FILE *out, const struct model_status *models, size_t count)
{
    const struct model_status *m, *end = models + count;
    put_head(out, "state", "gauge", "1 for the state that a version of a model is in, else 0.");
    for (m = models; m < end; m++)
        for (int state = 0; state < MODEL_STATES; state++)
            put_sample(out, m, "state", "state", model_state_name((enum model_state)state),
                       (int)m->state == state);
    put_head(out, "stale", "gauge",
             "1 if a version serves what was loaded before, because its files have changed and did "
             "not load.");
    for (m = models; m < end; m++)
        if (m->state == MODEL_READY)
            put_sample(out, m, "stale", NULL, NULL, m->failure[0] != '\0');
    put_head(out, "loaded", "gauge", "1 if a version is in memory.");
    for (m = models; m < end; m++)
        put_sample(out, m, "loaded", NULL, NULL, m->state == MODEL_READY);
    put_head(out, "loads_total", "counter", "How often a version was loaded.");
    for (m = models; m < end; m++)
        put_sample(out, m, "loads_total", NULL, NULL, (double)m->loads);
    put_head(out, "load_seconds", "gauge", "How long the last load of a version took.");
    for (m = models; m < end; m++)
        put_sample(out, m, "load_seconds", NULL, NULL, m->load_seconds);
    put_head(out, "unloads_total", "counter", "How often a version was unloaded.");
    for (m = models; m < end; m++)
        for (int cause = UNLOAD_ASKED; cause < UNLOAD_CAUSES; cause++)
            put_sample(out, m, "unloads_total", "cause",
                       unload_cause_name((enum unload_cause)cause), (double)m->unloads[cause]);
}

/* Returns the text of struct metrics and of the series of models; malloc'ed, NULL when out of
 * memory. */
static char *all_metrics(const struct exchange *x, size_t *ret_size)
{
    char *text = NULL, *counted = metrics_text(x->server->options.metrics, ret_size);
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    FILE *out = counted && models ? open_memstream(&text, ret_size) : NULL;
    if (out) {
        fputs(counted, out);
        put_model_series(out, models, count);
    }
    FREE_ALL(models, counted);
    return text_close(out, &text);
}

void metrics_handle(struct exchange *x)
{
    size_t size = 0;
    struct metrics *metrics = x->server->options.metrics;
    /* Metrics that are updated only when /metrics is read. */
    metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_http_upload_bytes",
                           "Memory in use for bodies of requests and answers.", ""),
               (double)atomic_load(&x->server->budget.used));
    metric_set(metrics_get(metrics, METRIC_COUNTER, "lensd_log_lines_lost_total",
                           "Log lines dropped while standard error was full, or not written.", ""),
               (double)log_lost_total());
    metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_build_info",
                           "The running version of lensd.", "version=\"" LENSD_VERSION "\""),
               1);
    if (x->server->options.faces)
        metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_faces_people",
                               "People in the registry of faces.", ""),
                   (double)faces_count(x->server->options.faces));
    process_metrics_update(metrics);
    char *text = all_metrics(x, &size);
    respond_text(x, 200, TYPE_METRICS, text, size);
}
