/* Writes the log line of each finished request, counts it in /metrics and exports its spans. */
#include "server/http/transport/request_log.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "server/observe/log.h"
#include "server/observe/log_sample.h"

struct request_log {
    struct metrics *metrics;
    struct metric *bytes_in, *seconds;
    const struct route_table *routes;
    struct metric *by_status[600]; /* lensd_http_requests_total, created on first use */
    struct metric **by_path; /* lensd_http_path_requests_total: a row for each route and a last row
                                for no route; a column for the first digit of the status */
    pthread_mutex_t lock;
    struct log_sample refusals; /* guarded by lock */
};

#define STATUS_CLASSES 6 /* 1xx … 5xx; index 0 is not used */

struct request_log *request_log_create(struct metrics *metrics, const struct route_table *routes)
{
    struct request_log *log = calloc(1, sizeof *log);
    if (!log)
        return NULL;
    log->routes = routes;
    log->by_path = alloc_array((routes->count + 1) * STATUS_CLASSES, sizeof(struct metric *));
    if (!log->by_path) {
        free(log);
        return NULL;
    }
    pthread_mutex_init(&log->lock, NULL);
    log->metrics = metrics;
    log->bytes_in = metrics_get(metrics, METRIC_COUNTER, "lensd_http_body_bytes_total",
                                "Bytes of request bodies received.", "");
    log->seconds = metrics_get(
        metrics, METRIC_HISTOGRAM, "lensd_http_request_duration_seconds",
        "Time from the request line to the end of the answer of requests with a body.", "");
    return log;
}

void request_log_free(struct request_log *log)
{
    if (!log)
        return;
    (void)request_log_tell_left_out(log, true);
    pthread_mutex_destroy(&log->lock);
    FREE_ALL(log->by_path, log);
}

/* Increments the series *at, which is created if it is NULL. */
static void count_in(struct request_log *log, struct metric **at, const char *name,
                     const char *help, const char *labels)
{
    /* Two threads may look up the same series at once: they get the same pointer. */
    struct metric *metric = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    if (!metric) {
        metric = metrics_get(log->metrics, METRIC_COUNTER, name, help, labels);
        __atomic_store_n(at, metric, __ATOMIC_RELEASE);
    }
    metric_add(metric, 1);
}

/* `route` may be NULL. Paths come from the table, so clients cannot create series. */
static void count_status(struct request_log *log, const struct route *route, int status)
{
    char labels[256];
    const size_t place = route ? (size_t)(route - log->routes->routes) : log->routes->count;
    snprintf(labels, sizeof labels, "status=\"%d\"", status);
    count_in(log, &log->by_status[status], "lensd_http_requests_total",
             "Answered HTTP requests by status.", labels);
    snprintf(labels, sizeof labels, "path=\"%.200s\",status=\"%dxx\"",
             route ? route->path : "other", status / 100);
    count_in(log, &log->by_path[place * STATUS_CLASSES + (size_t)(status / 100)],
             "lensd_http_path_requests_total",
             "Answered HTTP requests by path and class of status; other: no such path, or unknown.",
             labels);
}

static void count_request(struct request_log *log, const struct exchange *x, int64_t now)
{
    int status = x->answer.status;
    if (x->write_seconds && x->state == EXCHANGE_ANSWERED)
        metric_observe(x->write_seconds, (double)(now - x->answered) * 1e-9);
    if (status < 100 || status >= (int)COUNT_OF(log->by_status))
        return;
    count_status(log, x->route, status);
    metric_add(log->bytes_in, (double)x->bytes_in);
    if (x->route && x->route->takes_body)
        metric_observe(log->seconds, (double)(now - x->started) * 1e-9);
}

static double rounded_ms(double milliseconds)
{
    return round(milliseconds * 1000) / 1000;
}

/* Writes the line; leaves out empty fields. */
static void write_request_line(const struct exchange *x, const char *outcome, double milliseconds)
{
    struct log_field fields[32] = {LOG_STR("event", "request"),
                                   LOG_STR("client", exchange_address(x))};
    size_t n = 2; /* the rest stays zero: a NULL key ends the list */
    if (x->key_name[0])
        fields[n++] = LOG_STR("key", x->key_name);
    fields[n++] = LOG_STR("id", x->request_id);
    if (x->trace.id[0]) {
        fields[n++] = LOG_STR("trace", x->trace.id);
        fields[n++] = LOG_STR("span", x->trace.span);
        fields[n++] = LOG_STR("parent", x->trace.parent);
    }
    fields[n++] = LOG_STR("method", x->method);
    fields[n++] = LOG_STR("path", x->path);
    fields[n++] = LOG_INT("status", x->answer.status);
    fields[n++] = LOG_STR("outcome", outcome);
    if (x->answer.code)
        fields[n++] = LOG_STR("code", x->answer.code);
    if (x->image_count) {
        fields[n++] = LOG_STR("model", x->model);
        fields[n++] = LOG_INT("images", x->image_count);
    }
    if (x->is_cached)
        fields[n++] = LOG_STR("cache", "hit");
    fields[n++] = LOG_INT("bytes_in", x->bytes_in);
    const bool has_body = strcmp(x->method, "HEAD") != 0 && x->answer.status != 304;
    fields[n++] = LOG_INT("bytes_out", has_body ? x->answer.size : 0);
    if (x->slowest.forward_ms > 0 || x->slowest.decode_ms > 0) {
        fields[n++] = LOG_REAL("decode_ms", rounded_ms(x->slowest.decode_ms));
        fields[n++] = LOG_REAL("preprocess_ms", rounded_ms(x->slowest.preprocess_ms));
        fields[n++] = LOG_REAL("queue_ms", rounded_ms(x->slowest.queue_ms));
        fields[n++] = LOG_REAL("forward_ms", rounded_ms(x->slowest.forward_ms));
    }
    fields[n++] = LOG_REAL("ms", rounded_ms(milliseconds));
    /* Probes and scrapes come every few seconds. V2 answers 400 for "not ready", and 404 for a
     * model that may be added later. */
    const bool is_routine = x->route && x->route->access == ROUTE_OPEN &&
                            (x->answer.status <= 404 || x->answer.status == 503);
    log_fields(is_routine ? LOG_DEBUG : LOG_INFO, fields);
}

bool request_log_tell_left_out(struct request_log *log, bool end)
{
    pthread_mutex_lock(&log->lock);
    int64_t left_out = log_sample_left_out(&log->refusals, end ? INT64_MAX : clock_now());
    bool more = log->refusals.left_out > 0;
    pthread_mutex_unlock(&log->lock);
    if (left_out)
        log_event(LOG_INFO, "refusals not logged", LOG_INT("requests", left_out),
                  LOG_STR("text", "only the first of each second are logged; all count in "
                                  "lensd_http_requests_total"));
    return more;
}

/* True if the line of this request is to be written. Leaves out most lines of refusals under load.
 */
static bool is_sampled(struct request_log *log, const struct exchange *x, int64_t now)
{
    if (x->answer.retry_after_s == 0 || !x->route || !x->route->takes_body)
        return true;
    (void)request_log_tell_left_out(log, false);
    LOCK(&log->lock);
    return log_sample_take(&log->refusals, now);
}

/* Logs requests that only admins may send, granted or refused, as warnings, which few disable. */
static void audit(const struct exchange *x)
{
    if (!x->route || (x->route->access != ROUTE_ADMIN && x->route->access != ROUTE_ADMIN_WRITES) ||
        route_method(x->method) & (METHOD_GET | METHOD_HEAD | METHOD_OPTIONS))
        return;
    log_event(LOG_WARN, "admin", LOG_STR("client", exchange_address(x)),
              LOG_STR("key", x->key_name[0] ? x->key_name : NULL), LOG_STR("id", x->request_id),
              LOG_STR("method", x->method), LOG_STR("path", x->path),
              LOG_INT("status", x->answer.status));
}

/* Adds a phase, unless it took no time (tensors are not decoded). */
static void add_phase(struct trace_record *record, const char *name, int64_t begin, int64_t end)
{
    if (end > begin)
        record->phases[record->phase_count++] = (struct trace_phase){name, begin, end};
}

/* Hands the spans of a request to the exporter: read, queue, decode, preprocess, queue, forward,
 * answer, write. Leaves out requests that are not sampled, and health checks and pages. */
static void trace_request(const struct exchange *x)
{
    struct trace_exporter *exporter = x->server->options.traces;
    if (!exporter || !(x->trace.flags & TRACE_SAMPLED) || !x->route || !x->route->takes_body)
        return;
    const struct predict_times *times = &x->times;
    /* Two starts were measured. Durations give the starts and ends of the other phases. */
    const int64_t decoded = times->decode_start + (int64_t)(times->decode_ms * 1e6);
    const int64_t prepared = decoded + (int64_t)(times->preprocess_ms * 1e6);
    const int64_t passed = times->forward_start + (int64_t)(times->forward_ms * 1e6);
    const int64_t submitted =
        times->decode_start + (times->forward_start - prepared) - (int64_t)(times->queue_ms * 1e6);
    const char *client = exchange_address(x);
    struct trace_record record = {.trace = x->trace,
                                  .route = x->route->path,
                                  .status = x->answer.status,
                                  .code = x->answer.code,
                                  .cache = x->is_cached ? "hit" : NULL,
                                  .images = (int64_t)x->image_count,
                                  .batch = times->batch,
                                  .bytes_in = (int64_t)x->bytes_in,
                                  .bytes_out = (int64_t)x->answer.size,
                                  .begin = x->started,
                                  .end = clock_now()};
    snprintf(record.method, sizeof record.method, "%s", x->method);
    snprintf(record.client, sizeof record.client, "%s", client ? client : "");
    snprintf(record.id, sizeof record.id, "%.63s", x->request_id);
    snprintf(record.model, sizeof record.model, "%s", x->model);
    if (times->batch) {
        (void)device_text(times->device, record.device);
        add_phase(&record, "read", x->started, submitted);
        add_phase(&record, "queue", submitted, times->decode_start);
        add_phase(&record, "decode", times->decode_start, decoded);
        add_phase(&record, "preprocess", decoded, prepared);
        add_phase(&record, "queue", prepared, times->forward_start);
        add_phase(&record, "forward", times->forward_start, passed);
        if (x->answered)
            add_phase(&record, "answer", passed, x->answered);
    }
    if (x->answered)
        add_phase(&record, "write", x->answered, record.end);
    trace_exporter_put(exporter, &record);
}

void request_log_write(struct request_log *log, const struct exchange *x, const char *outcome)
{
    int64_t now = clock_now();
    count_request(log, x, now);
    audit(x);
    if (is_sampled(log, x, now))
        write_request_line(x, outcome, clock_ms(now - x->started));
    trace_request(x);
}

void request_log_late(struct request_log *log, const char *address, int64_t waited)
{
    const int status = status_http(STATUS_REQUEST_TIMEOUT);
    count_status(log, NULL, status);
    log_event(LOG_INFO, "request", LOG_STR("client", address), LOG_INT("status", status),
              LOG_STR("outcome", "refused"), LOG_STR("code", status_word(STATUS_REQUEST_TIMEOUT)),
              LOG_REAL("ms", rounded_ms(clock_ms(waited))));
}

void exchange_note(struct exchange *x, const struct predict_request *request)
{
    struct predict_times *slowest = &x->slowest;
    x->image_count = request->image_count;
    x->write_seconds = request->write_seconds;
    if (request->used_model)
        snprintf(x->model, sizeof x->model, "%s", request->used_model->name);
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        slowest->decode_ms = fmax(slowest->decode_ms, image->times.decode_ms);
        slowest->preprocess_ms = fmax(slowest->preprocess_ms, image->times.preprocess_ms);
        slowest->queue_ms = fmax(slowest->queue_ms, image->times.queue_ms);
        slowest->forward_ms = fmax(slowest->forward_ms, image->times.forward_ms);
        if (image->times.forward_ms > 0 && image->times.forward_start >= x->times.forward_start)
            x->times = image->times;
    }
}
