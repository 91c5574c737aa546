/* Keeps the queue of traces, and sends them from a thread, with retries. */
#include "server/observe/trace_exporter.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/thread.h"
#include "lensd_version.h"
#include "proto/json.h"
#include "proto/writer.h"
#include "server/observe/curl.h"
#include "server/observe/log.h"

#define SECOND INT64_C(1000000000)

enum { QUEUE = 2048, BATCH = 256 };

#define SEND_AFTER    (SECOND) /* a trace waits this long for further ones, to be sent together */
#define SEND_TIMEOUT  10000L   /* ms; OTEL_EXPORTER_OTLP_TIMEOUT's default */
#define RETRY_FIRST   (SECOND) /* wait after the first failure; doubles after each further one */
#define RETRY_LONGEST (30 * SECOND)
#define RETRY_TIMES   6
#define LAST_WAIT     (2 * SECOND)  /* to send the last traces when lensd ends */
#define LOG_EVERY     (60 * SECOND) /* interval of log lines while sending fails */

/* ---- the exporter ---- */

struct trace_exporter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct trace_record records[QUEUE]; /* a ring */
    size_t first, count;
    int64_t oldest;          /* records[first] is due SEND_AFTER after this time */
    _Atomic int64_t stop_at; /* 0: no stop requested; set under the lock */

    /* All members below are set before the thread starts. Then only the thread uses them, except
     * `sampled_below` and `dropped`. */
    void *handle; /* CURL */
    struct curl_list *headers;
    char url[512];
    uint64_t
        sampled_below; /* requests with a random number below this are sampled; UINT64_MAX: all */
    struct trace_record batch[BATCH];
    struct answer_text {
        char text[1024];
        size_t size;
    } answer;
    int64_t logged; /* time of the last log line about a failure; 0: none since a success */
    struct metric *sent, *dropped, *failed;
};

/* ---- converting records to spans ---- */

/* Writes a number as text, because OTLP's JSON has 64-bit numbers as texts. */
static const char *number_text(int64_t value, char text[static 24])
{
    snprintf(text, 24, "%" PRId64, value);
    return text;
}

/* Adds an attribute of OpenTelemetry's semantic conventions, unless `text` is NULL or "". */
static void add_text(struct writer *w, json_node *attributes, const char *key, const char *text)
{
    if (text && text[0])
        write_members(w, attributes, "{key=%s value{stringValue=%s}}", key, text);
}

/* Adds an attribute, unless `number` is 0. */
static void add_number(struct writer *w, json_node *attributes, const char *key, int64_t number)
{
    char text[24];
    if (number)
        write_members(w, attributes, "{key=%s value{intValue=%s}}", key, number_text(number, text));
}

/* Decodes percent-escapes: "%2C" becomes ",". */
static void decode_percent(char *text)
{
    char *out = text;
    for (const char *in = text; *in; out++) {
        if (in[0] == '%' && isxdigit((unsigned char)in[1]) && isxdigit((unsigned char)in[2])) {
            *out = (char)strtol((char[]){in[1], in[2], 0}, NULL, 16);
            in += 3;
        } else {
            *out = *in++;
        }
    }
    *out = 0;
}

/* Takes the first pair of "key=value,key=value" (W3C Baggage, the format of OpenTelemetry's
 * variables), in place. *ret_value is NULL for an empty entry. */
static enum status next_pair(char **rest, const char *variable, char **ret_key, char **ret_value,
                             struct error *err)
{
    char *pair = strsep(rest, ",");
    char *equals = strchr(pair, '=');
    *ret_key = text_trim(pair, " ");
    *ret_value = NULL;
    if (!**ret_key && !equals)
        return STATUS_OK; /* an empty entry, as after a comma at the end */
    if (!equals || equals == pair)
        return error_set(err, STATUS_CONFIG, "%s must be written as key=value,key=value", variable);
    *equals = 0;
    *ret_key = text_trim(pair, " ");
    *ret_value = text_trim(equals + 1, " ");
    decode_percent(*ret_value);
    return STATUS_OK;
}

/* Writes the attributes of the resource. STATUS_CONFIG: OTEL_RESOURCE_ATTRIBUTES is malformed. */
static enum status write_resource(struct writer *w, json_node *attributes, struct error *err)
{
    const char *variable = "OTEL_RESOURCE_ATTRIBUTES", *given = getenv(variable);
    const char *service = getenv("OTEL_SERVICE_NAME");
    char host[256] = "", *copy = strdup(given ? given : ""), *rest = copy, *key, *value;
    enum status status = check_memory(copy, "for attributes of traces", err);
    bool is_named = service && service[0];
    add_text(w, attributes, "service.name", service);
    while (status == STATUS_OK && rest) {
        status = next_pair(&rest, variable, &key, &value, err);
        if (status != STATUS_OK || !value || (is_named && !strcmp(key, "service.name")))
            continue;
        write_members(w, attributes, "{key=%s value{stringValue=%s}}", key, value);
        is_named = is_named || !strcmp(key, "service.name");
    }
    free(copy);
    add_text(w, attributes, "service.name", is_named ? NULL : "lensd");
    add_text(w, attributes, "service.version", LENSD_VERSION);
    if (gethostname(host, sizeof host - 1) == 0)
        add_text(w, attributes, "host.name", host);
    return status;
}

/* Returns the nanoseconds to add to clock_now() for the time since 1970. */
static int64_t epoch(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec - clock_now();
}

enum span_kind { SPAN_INTERNAL = 1, SPAN_SERVER = 2 };

struct span {
    const char *trace, *id, *parent, *name; /* parent "": none */
    enum span_kind kind;
    int64_t begin, end; /* clock_now() */
};

/* Writes a span, and returns its list of attributes. since: epoch() */
static json_node *write_span(struct writer *w, json_node *list, const struct span *span,
                             int64_t since, bool failed)
{
    char begin[24], end[24];
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry,
                  "traceId=%s spanId=%s parentSpanId?=%s name=%s kind=%d startTimeUnixNano=%s "
                  "endTimeUnixNano=%s",
                  span->trace, span->id, span->parent, span->name, (int)span->kind,
                  number_text(span->begin + since, begin), number_text(span->end + since, end));
    json_node *attributes = write_array(w, entry, "attributes");
    if (failed)
        write_members(w, entry, "status{code=%d}", 2);
    return attributes;
}

/* Writes a span for the request and one for each phase, with OpenTelemetry's names for HTTP. */
static void write_record(struct writer *w, json_node *list, const struct trace_record *record,
                         int64_t since)
{
    char name[160];
    snprintf(name, sizeof name, "%s %s", record->method, record->route);
    const struct span request = {record->trace.id, record->trace.span, record->trace.parent, name,
                                 SPAN_SERVER,      record->begin,      record->end};
    json_node *attributes = write_span(w, list, &request, since, record->status >= 500);
    add_text(w, attributes, "http.request.method", record->method);
    add_text(w, attributes, "http.route", record->route);
    add_number(w, attributes, "http.response.status_code", record->status);
    add_number(w, attributes, "http.request.body.size", record->bytes_in);
    add_number(w, attributes, "http.response.body.size", record->bytes_out);
    add_text(w, attributes, "client.address", record->client);
    add_text(w, attributes, "error.type", record->code);
    add_text(w, attributes, "lensd.request.id", record->id);
    add_text(w, attributes, "lensd.model", record->model);
    add_text(w, attributes, "lensd.device", record->device);
    add_text(w, attributes, "lensd.cache", record->cache);
    add_number(w, attributes, "lensd.images", record->images);
    add_number(w, attributes, "lensd.batch.size", record->batch);
    const uint64_t own = strtoull(record->trace.span, NULL, 16);
    for (size_t i = 0; i < record->phase_count; i++) {
        const struct trace_phase *phase = &record->phases[i];
        char id[17]; /* computed from the id of the request's span; differs between phases */
        snprintf(id, sizeof id, "%016llx",
                 (unsigned long long)((own ^ ((i + 1) * 0x9E3779B97F4A7C15u)) | 1));
        const struct span span = {record->trace.id, id,           record->trace.span, phase->name,
                                  SPAN_INTERNAL,    phase->begin, phase->end};
        write_span(w, list, &span, since, false);
    }
}

/* Returns the body of a request of OTLP/HTTP in JSON: ExportTraceServiceRequest of
 * opentelemetry-proto 1.x. malloc'ed; NULL when out of memory. */
static char *batch_json(struct trace_exporter *exporter, size_t count)
{
    const int64_t since = epoch();
    struct writer w = {.root = write_root()};
    json_node *entry = write_object(&w, write_array(&w, w.root, "resourceSpans"), NULL);
    json_node *attributes = write_array(&w, write_object(&w, entry, "resource"), "attributes");
    w.failed |= write_resource(&w, attributes, NULL) != STATUS_OK;
    entry = write_object(&w, write_array(&w, entry, "scopeSpans"), NULL);
    write_members(&w, entry, "scope{name=%s version=%s}", "lensd", LENSD_VERSION);
    json_node *list = write_array(&w, entry, "spans");
    for (size_t i = 0; i < count; i++)
        write_record(&w, list, &exporter->batch[i], since);
    return write_finish(&w);
}

/* ---- sending ---- */

static size_t on_answer(char *bytes, size_t size, size_t count, void *context)
{
    struct answer_text *answer = context;
    const size_t free_bytes = sizeof answer->text - answer->size;
    const size_t taken = size * count < free_bytes ? size * count : free_bytes;
    memcpy(answer->text + answer->size, bytes, taken);
    answer->size += taken;
    return size * count;
}

/* Returns nonzero, which aborts the transfer, once stop_at has passed. */
static int on_progress(void *context, long long total, long long now, long long sent_total,
                       long long sent)
{
    (void)total, (void)now, (void)sent_total, (void)sent;
    const struct trace_exporter *exporter = context;
    const int64_t end = exporter->stop_at;
    return end && clock_now() > end;
}

enum sent { SENT, SEND_AGAIN, SEND_NEVER };

static void log_failure(struct trace_exporter *exporter, const char *text)
{
    metric_add(exporter->failed, 1);
    if (exporter->logged && clock_now() - exporter->logged < LOG_EVERY)
        return;
    exporter->logged = clock_now();
    log_event(LOG_WARN, "traces", LOG_STR("url", exporter->url), LOG_STR("text", text));
}

static void note_answer(struct trace_exporter *exporter, size_t count)
{
    char reason[256], text[400];
    const int64_t rejected =
        otlp_rejected(exporter->answer.text, exporter->answer.size, reason, sizeof reason);
    metric_add(exporter->sent, (double)count);
    if (rejected) {
        snprintf(text, sizeof text, "the collector has rejected %lld spans: %s",
                 (long long)rejected, reason);
        log_failure(exporter, text);
    } else if (exporter->logged) {
        exporter->logged = 0;
        log_event(LOG_INFO, "traces", LOG_STR("url", exporter->url),
                  LOG_STR("text", "the collector accepts traces again"));
    }
}

/* Sends one request. *ret_wait: nanoseconds that the collector asks lensd to wait; else 0. */
static enum sent post(struct trace_exporter *exporter, const char *json, size_t count,
                      int64_t *ret_wait)
{
    char text[256], answer[48];
    long status = 0;
    int64_t seconds = 0;
    exporter->answer.size = 0;
    curl.setopt(exporter->handle, OPT_POSTFIELDS, json);
    const int code = curl.perform(exporter->handle);
    curl.getinfo(exporter->handle, INFO_RESPONSE_CODE, &status);
    curl.getinfo(exporter->handle, INFO_RETRY_AFTER, &seconds);
    *ret_wait = seconds > 0 && seconds < 3600 ? seconds * SECOND : 0;
    if (!code && status >= 200 && status < 300) {
        note_answer(exporter, count);
        return SENT;
    }
    const bool again = code || status == 429 || (status >= 502 && status <= 504);
    snprintf(answer, sizeof answer, "the collector answers %ld", status);
    snprintf(text, sizeof text, "%.100s%s", code ? curl.text(code) : answer,
             again ? "; traces wait, and are dropped when the queue is full" : "; traces dropped");
    log_failure(exporter, text);
    return again ? SEND_AGAIN : SEND_NEVER;
}

static void send_batch(struct trace_exporter *exporter, size_t count)
{
    char *json = batch_json(exporter, count);
    enum sent sent = json ? SEND_AGAIN : SEND_NEVER;
    int64_t wait = RETRY_FIRST;
    for (int i = 0; sent == SEND_AGAIN && i < RETRY_TIMES; i++) {
        int64_t asked;
        sent = post(exporter, json, count, &asked);
        if (sent != SEND_AGAIN || exporter->stop_at)
            break; /* there is no second attempt when lensd ends */
        const int64_t until = clock_now() + (asked ? asked : wait);
        LOCK(&exporter->lock);
        while (!exporter->stop_at && clock_now() < until)
            condition_wait(&exporter->changed, &exporter->lock, until);
        wait = wait * 2 < RETRY_LONGEST ? wait * 2 : RETRY_LONGEST;
    }
    free(json);
    if (sent != SENT)
        metric_add(exporter->dropped, (double)count);
}

/* Waits until BATCH traces are queued or the oldest is due, and moves them to exporter->batch.
 * Returns their number; 0: the thread must end. */
static size_t take_batch(struct trace_exporter *exporter)
{
    pthread_mutex_lock(&exporter->lock);
    while (!exporter->stop_at && exporter->count < BATCH &&
           (!exporter->count || clock_now() < exporter->oldest + SEND_AFTER)) {
        condition_wait(&exporter->changed, &exporter->lock,
                       exporter->count ? exporter->oldest + SEND_AFTER : INT64_MAX);
    }
    const size_t count = exporter->count < BATCH ? exporter->count : BATCH;
    for (size_t i = 0; i < count; i++)
        exporter->batch[i] = exporter->records[(exporter->first + i) % QUEUE];
    exporter->first = (exporter->first + count) % QUEUE;
    exporter->count -= count;
    exporter->oldest = clock_now();
    const bool is_over = exporter->stop_at && clock_now() > exporter->stop_at;
    pthread_mutex_unlock(&exporter->lock);
    if (is_over)
        metric_add(exporter->dropped, (double)count);
    return is_over ? 0 : count;
}

static void *exporter_thread(void *context)
{
    struct trace_exporter *exporter = context;
    for (size_t count; (count = take_batch(exporter)) > 0;)
        send_batch(exporter, count);
    return NULL;
}

/* ---- settings ---- */

enum status trace_endpoint_port(const char *endpoint, int *ret_port, struct error *err)
{
    const bool tls = strncasecmp(endpoint, "https://", 8) == 0;
    const char *host = endpoint + (tls ? 8 : 7);
    *ret_port = tls ? 443 : 80;
    if (!tls && strncasecmp(endpoint, "http://", 7) != 0)
        return error_set(err, STATUS_CONFIG,
                         "--trace-endpoint is '%.100s'; it must begin with http:// or https://, as "
                         "in http://localhost:4318",
                         endpoint);
    const char *colon = host[0] == '[' ? strchr(host, ']') : host;
    const size_t length = colon ? strcspn(colon, ":/?#") : 0;
    const size_t name = colon ? (size_t)(colon - host) + length : 0;
    char *end = NULL;
    const long port =
        colon && colon[length] == ':' ? strtol(colon + length + 1, &end, 10) : *ret_port;
    static const char path[] = "/v1/traces";
    const size_t size = strlen(endpoint);
    if (size >= sizeof path && !strcmp(endpoint + size - (sizeof path - 1), path))
        return error_set(err, STATUS_CONFIG,
                         "--trace-endpoint is '%.100s'; leave out %s, because lensd adds it",
                         endpoint, path);
    if (name == 0 || size > 400 || strpbrk(endpoint, " @?#") || port < 1 || port > 65535 ||
        (end && *end && *end != '/'))
        return error_set(err, STATUS_CONFIG,
                         "--trace-endpoint is '%.100s'; it must be an address without parameters, "
                         "as in http://localhost:4318",
                         endpoint);
    *ret_port = (int)port;
    return STATUS_OK;
}

static enum status add_header(struct trace_exporter *exporter, const char *line, struct error *err)
{
    struct curl_list *longer = curl.append(exporter->headers, line);
    TRY(check_memory(longer, "for headers of traces", err));
    exporter->headers = longer;
    return STATUS_OK;
}

static enum status read_headers(struct trace_exporter *exporter, struct error *err)
{
    const char *variable = "OTEL_EXPORTER_OTLP_HEADERS", *given = getenv(variable);
    char line[2048];
    TRY(add_header(exporter, "Content-Type: application/json", err));
    TRY(add_header(exporter, "Expect:", err)); /* do not wait for 100 Continue */
    char *copy = strdup(given ? given : "");
    TRY(check_memory(copy, "for headers of traces", err));
    enum status status = STATUS_OK;
    for (char *rest = copy, *key, *value; rest && status == STATUS_OK;) {
        status = next_pair(&rest, variable, &key, &value, err);
        if (status != STATUS_OK || !value)
            continue;
        const int length = snprintf(line, sizeof line, "%s: %s", key, value);
        status = length >= (int)sizeof line || strpbrk(line, "\r\n")
                     ? error_set(err, STATUS_CONFIG,
                                 "%s: a header is too long, or has more than one line", variable)
                     : add_header(exporter, line, err);
    }
    free(copy);
    return status;
}

static enum status set_up(struct trace_exporter *exporter, const char *endpoint, double sample,
                          struct metrics *metrics, struct error *err)
{
    int port;
    TRY(trace_endpoint_port(endpoint, &port, err));
    TRY(curl_load("--trace-endpoint", err));
    snprintf(exporter->url, sizeof exporter->url, "%s%sv1/traces", endpoint,
             text_ends(endpoint, "/") ? "" : "/");
    exporter->sampled_below = sample >= 1 ? UINT64_MAX : (uint64_t)(sample * 0x1p64);
    exporter->handle = curl.init();
    TRY(check_memory(exporter->handle, "for traces", err));
    struct writer unused = {.root = write_root()}; /* write_resource() checks the variable */
    const enum status status =
        write_resource(&unused, write_array(&unused, unused.root, "attributes"), err);
    free(write_finish(&unused));
    TRY(status);
    TRY(read_headers(exporter, err));
    curl.setopt(exporter->handle, OPT_URL, exporter->url);
    curl.setopt(exporter->handle, OPT_HTTPHEADER, exporter->headers);
    curl.setopt(exporter->handle, OPT_USERAGENT, "lensd/" LENSD_VERSION);
    curl.setopt(exporter->handle, OPT_NOSIGNAL, 1L);
    curl.setopt(exporter->handle, OPT_NOPROXY, "*"); /* confinement forbids a proxy's port */
    const char *trusted = getenv(TRACE_CERTIFICATE);
    if (trusted && trusted[0])
        curl.setopt(exporter->handle, OPT_CAINFO, trusted);
    curl.setopt(exporter->handle, OPT_TIMEOUT_MS, SEND_TIMEOUT);
    curl.setopt(exporter->handle, OPT_WRITEFUNCTION, on_answer);
    curl.setopt(exporter->handle, OPT_WRITEDATA, &exporter->answer);
    curl.setopt(exporter->handle, OPT_NOPROGRESS, 0L);
    curl.setopt(exporter->handle, OPT_XFERINFOFUNCTION, on_progress);
    curl.setopt(exporter->handle, OPT_XFERINFODATA, exporter);
    const struct metric_row rows[] = {
        {&exporter->sent, METRIC_COUNTER, "lensd_traces_sent_total",
         "Traces in requests that the collector has accepted."},
        {&exporter->dropped, METRIC_COUNTER, "lensd_traces_dropped_total",
         "Traces that were not sent: the queue was full, or the collector did not accept them."},
        {&exporter->failed, METRIC_COUNTER, "lensd_trace_failures_total",
         "Requests to the collector that failed or had rejected spans."}};
    metrics_get_all(metrics, "", rows, COUNT_OF(rows));
    return STATUS_OK;
}

static void free_exporter(struct trace_exporter *exporter)
{
    if (exporter->handle)
        curl.cleanup(exporter->handle);
    if (exporter->headers)
        curl.free_list(exporter->headers);
    pthread_cond_destroy(&exporter->changed);
    pthread_mutex_destroy(&exporter->lock);
    free(exporter);
}

enum status trace_exporter_create(const char *endpoint, double sample, struct metrics *metrics,
                                  struct trace_exporter **ret, struct error *err)
{
    struct trace_exporter *exporter = calloc(1, sizeof *exporter);
    TRY(check_memory(exporter, "for traces", err));
    condition_init(&exporter->changed);
    pthread_mutex_init(&exporter->lock, NULL);
    enum status status = set_up(exporter, endpoint, sample, metrics, err);
    if (status == STATUS_OK &&
        !thread_start(&exporter->thread, "traces", exporter_thread, exporter))
        status = error_set(err, STATUS_NO_MEMORY, "cannot start the thread that sends traces");
    if (status != STATUS_OK) {
        free_exporter(exporter);
        return status;
    }
    *ret = exporter;
    return STATUS_OK;
}

void trace_exporter_free(struct trace_exporter *exporter)
{
    if (!exporter)
        return;
    pthread_mutex_lock(&exporter->lock);
    exporter->stop_at = clock_now() + LAST_WAIT;
    pthread_cond_broadcast(&exporter->changed);
    pthread_mutex_unlock(&exporter->lock);
    pthread_join(exporter->thread, NULL);
    free_exporter(exporter);
}

bool trace_exporter_samples(const struct trace_exporter *exporter, uint64_t random)
{
    return exporter->sampled_below == UINT64_MAX || random < exporter->sampled_below;
}

void trace_exporter_put(struct trace_exporter *exporter, const struct trace_record *record)
{
    pthread_mutex_lock(&exporter->lock);
    const bool is_full = exporter->count == QUEUE;
    if (!is_full) {
        if (!exporter->count)
            exporter->oldest = clock_now();
        exporter->records[(exporter->first + exporter->count++) % QUEUE] = *record;
        if (exporter->count == 1 || exporter->count == BATCH)
            pthread_cond_signal(&exporter->changed);
    }
    pthread_mutex_unlock(&exporter->lock);
    if (is_full)
        metric_add(exporter->dropped, 1);
}
