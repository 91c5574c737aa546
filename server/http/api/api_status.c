/* State and metrics for probes, dashboards and people; they never wait for the queue of images. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/answers.h"
#include "server/answers/status.h"
#include "server/faces/faces.h"
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
    return !is_draining(x) &&
           model_host_readiness(x->server->options.model_host) == MODEL_HOST_READY;
}

/* Here, too, 503 means "ask again". */
static void respond_state(struct exchange *x, bool good, char *text, size_t size)
{
    x->answer.retry_after_s = good ? 0 : model_host_retry_after(x->server->options.model_host);
    respond_text(x, good ? 200 : 503, TYPE_JSON, text, size);
}

void health_handle(struct exchange *x)
{
    size_t size = 0;
    bool ready = is_ready(x);
    double uptime_s = clock_ms(clock_now() - x->server->started) / 1000;
    char *text = status_health_json(x->server->options.model_host, is_draining(x), uptime_s,
                                    x->server->options.note, x->server->confinement, &size);
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
        status_word_json(status_state(x->server->options.model_host, is_draining(x)), &size);
    respond_state(x, ready, text, size);
}

void ping_handle(struct exchange *x)
{
    size_t size = 0;
    bool ready = is_ready(x);
    if (ready && x->server->options.is_immich) {
        respond_text(x, 200, TYPE_TEXT, strdup("pong"), strlen("pong"));
        return;
    }
    char *text = status_word_json(ready ? "Healthy" : "Unhealthy", &size);
    respond_state(x, ready, text, size);
}

void devices_handle(struct exchange *x)
{
    size_t size = 0;
    char *text = status_devices_json(x->server->options.model_host, x->server->options.note, &size);
    respond_text(x, 200, TYPE_JSON, text, size);
}

static double is_loaded(const struct model_status *model)
{
    return model->state == MODEL_READY;
}

static double count_loads(const struct model_status *model)
{
    return (double)model->loads;
}

static double load_seconds(const struct model_status *model)
{
    return model->load_seconds;
}

/* One number of each version. */
struct model_series {
    const char *name, *type, *help;
    double (*read)(const struct model_status *model);
};

static const struct model_series loaded_series = {"loaded", "gauge", "1 if a version is in memory.",
                                                  is_loaded},
                                 loads_series = {"loads_total", "counter",
                                                 "How often a version was loaded.", count_loads},
                                 seconds_series = {"load_seconds", "gauge",
                                                   "How long the last load of a version took.",
                                                   load_seconds};

static void put_model_numbers(FILE *out, const struct model_status *models, size_t count,
                              const struct model_series *series)
{
    char name[5 * sizeof models->name], version[5 * sizeof models->version];
    fprintf(out, "# HELP lensd_model_%s %s\n# TYPE lensd_model_%s %s\n", series->name, series->help,
            series->name, series->type);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "lensd_model_%s{model=\"%s\",version=\"%s\"} %.9g\n", series->name,
                metrics_escape(models[i].name, name, sizeof name),
                metrics_escape(models[i].version, version, sizeof version),
                series->read(&models[i]));
}

/* Series of the versions that are in the table now: a registry would keep removed ones. */
static void put_model_states(FILE *out, const struct model_status *models, size_t count)
{
    /* metrics_escape() writes at most 5 characters per byte. */
    char name[5 * sizeof models->name], version[5 * sizeof models->version];
    fputs("# HELP lensd_model_state 1 for the state that a version of a model is in, else 0.\n"
          "# TYPE lensd_model_state gauge\n",
          out);
    for (size_t i = 0; i < count; i++)
        for (int state = 0; state < MODEL_STATES; state++)
            fprintf(out, "lensd_model_state{model=\"%s\",version=\"%s\",state=\"%s\"} %d\n",
                    metrics_escape(models[i].name, name, sizeof name),
                    metrics_escape(models[i].version, version, sizeof version),
                    model_state_name((enum model_state)state), (int)models[i].state == state);
    fputs("# HELP lensd_model_stale 1 if a version serves what was loaded before, because its "
          "files have changed and did not load.\n# TYPE lensd_model_stale gauge\n",
          out);
    for (size_t i = 0; i < count; i++)
        if (models[i].state == MODEL_READY)
            fprintf(out, "lensd_model_stale{model=\"%s\",version=\"%s\"} %d\n",
                    metrics_escape(models[i].name, name, sizeof name),
                    metrics_escape(models[i].version, version, sizeof version),
                    models[i].failure[0] != '\0');
    put_model_numbers(out, models, count, &loaded_series);
    put_model_numbers(out, models, count, &loads_series);
    put_model_numbers(out, models, count, &seconds_series);
    fputs("# HELP lensd_model_unloads_total How often a version was unloaded.\n"
          "# TYPE lensd_model_unloads_total counter\n",
          out);
    for (size_t i = 0; i < count; i++)
        for (int cause = UNLOAD_ASKED; cause < UNLOAD_CAUSES; cause++)
            fprintf(out,
                    "lensd_model_unloads_total{model=\"%s\",version=\"%s\",cause=\"%s\"} %" PRIu64
                    "\n",
                    metrics_escape(models[i].name, name, sizeof name),
                    metrics_escape(models[i].version, version, sizeof version),
                    unload_cause_name((enum unload_cause)cause), models[i].unloads[cause]);
}

/* The registry's text and the states of the models; malloc'ed, NULL when out of memory. */
static char *all_metrics(const struct exchange *x, size_t *ret_size)
{
    char *text = NULL, *counted = metrics_text(x->server->options.metrics, ret_size);
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    FILE *out = counted && models ? open_memstream(&text, ret_size) : NULL;
    if (out) {
        fputs(counted, out);
        put_model_states(out, models, count);
        const bool failed = ferror(out);
        if (fclose(out) != 0 || failed) {
            free(text);
            text = NULL;
        }
    }
    free(models);
    free(counted);
    return text;
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
                           "Log lines dropped while standard error was full, or not written.", "",
                           NULL, 0),
               (double)log_lost_total());
    metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_build_info", "The version that runs.",
                           "version=\"" LENSD_VERSION "\"", NULL, 0),
               1);
    if (x->server->options.faces)
        metric_set(metrics_get(metrics, METRIC_GAUGE, "lensd_faces_people",
                               "People in the registry of faces.", "", NULL, 0),
                   (double)faces_count(x->server->options.faces));
    process_metrics_update(metrics);
    gpu_metrics_update(metrics);
    char *text = all_metrics(x, &size);
    respond_text(x, 200, TYPE_METRICS, text, size);
}
