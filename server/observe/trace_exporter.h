/* Sends traces to an OpenTelemetry collector: OTLP over HTTP, as JSON, with libcurl.
 *
 * HTTP threads put traces into a bounded queue and never wait: if the queue is full, the trace is
 * dropped and counted. A thread sends the traces, at most 256 in one request. It retries after the
 * failures for which the protocol demands that (429, 502, 503, 504, no connection).
 *
 * libcurl is loaded on demand. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "server/observe/metrics.h"

#define TRACE_PHASES  8
#define TRACE_SAMPLED 1 /* a bit of trace->flags */

/* The place of a request in a trace. Ids are hexadecimal. */
struct trace {
    char id[33];     /* "": none */
    char parent[17]; /* the client's span; "": the trace begins here */
    char span[17];   /* ours, for this request */
    uint8_t flags;
};

/* One request. Texts that are pointers are constants. Times are clock_now()'s. */
struct trace_record {
    struct trace trace;
    char method[16];
    const char *route; /* from the table of routes: "/v2/models/{model}/infer" */
    char client[64], id[64], model[64], device[24];
    int status;        /* HTTP */
    const char *code;  /* machine word of the error; NULL: none */
    const char *cache; /* "hit" if the answer came from the cache, else NULL */
    int64_t images, batch, bytes_in, bytes_out; /* batch: images in the forward pass; 0: none ran */
    int64_t begin, end;
    struct trace_phase {
        const char *name; /* "decode" … */
        int64_t begin, end;
    } phases[TRACE_PHASES];
    size_t phase_count;
};

struct trace_exporter;

/* The variable that names a PEM file with the certificates that https:// trusts. */
#define TRACE_CERTIFICATE "OTEL_EXPORTER_OTLP_CERTIFICATE"

/* Starts the thread. Appends /v1/traces to `endpoint` ("http://localhost:4318"). `sample`, 0 … 1,
 * is the share of requests to record if they have no traceparent. Borrows `metrics`. Uses these
 * environment variables, which must not change: TRACE_CERTIFICATE, OTEL_SERVICE_NAME,
 * OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS. STATUS_CONFIG: libcurl is not installed,
 * or the address or a variable is invalid; STATUS_NO_MEMORY. */
enum status trace_exporter_create(const char *endpoint, double sample, struct metrics *metrics,
                                  struct trace_exporter **ret, struct error *err) MUST_USE;

/* Sends the queued traces, for at most two seconds, and ends the thread. Accepts NULL. */
void trace_exporter_free(struct trace_exporter *exporter);

/* Decides whether to record a request without a traceparent. `random` is uniform over all 64-bit
 * numbers. Thread-safe. */
bool trace_exporter_samples(const struct trace_exporter *exporter, uint64_t random);

/* Copies the record. Thread-safe, never waits for the collector. */
void trace_exporter_put(struct trace_exporter *exporter, const struct trace_record *record);

/* Checks --trace-endpoint and returns its port (default: 80 or 443). STATUS_CONFIG: it is
 * invalid. */
enum status trace_endpoint_port(const char *endpoint, int *ret_port, struct error *err) MUST_USE;
