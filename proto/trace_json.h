/* Spans as OTLP/HTTP sends them in JSON (OpenTelemetry Protocol 1.x, ExportTraceServiceRequest). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum otlp_kind { OTLP_INTERNAL = 1, OTLP_SERVER = 2 };

/* `key` follows OpenTelemetry's semantic conventions. */
struct otlp_attribute {
    const char *key;
    const char *text; /* NULL: `number` is the value */
    int64_t number;
};

#define OTLP_ATTRIBUTES_MAX 16

/* Texts are borrowed. */
struct otlp_span {
    const char *trace;  /* 32 hexadecimal digits */
    const char *id;     /* 16 */
    const char *parent; /* 16; "": none */
    const char *name;
    enum otlp_kind kind;
    uint64_t begin, end; /* nanoseconds since 1970 */
    struct otlp_attribute attributes[OTLP_ATTRIBUTES_MAX];
    size_t attribute_count;
    bool failed;
};

/* Of the process that sends: service.name and others; borrowed. */
struct otlp_resource {
    const char *const *keys, *const *values;
    size_t count;
    const char *version; /* of lensd */
};

/* Malloc'ed, the caller frees; NULL when out of memory. */
char *otlp_spans_json(const struct otlp_resource *resource, const struct otlp_span *spans,
                      size_t count, size_t *ret_size);

/* Reads an answer: the number of spans that the collector has rejected, 0 if it says nothing of
 * them; `message` receives its reason, or "". */
int64_t otlp_rejected(const char *json, size_t size, char *message, size_t message_size);
