/* The JSON of traces for a collector. Source: opentelemetry-proto 1.x, trace.proto, and the rules
 * of OTLP/HTTP: ids in hexadecimal, 64-bit numbers as text. */
#include "proto/trace_json.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/writer.h"

static void write_number(struct writer *w, cJSON *parent, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    write_text(w, parent, key, text);
}

static void write_attribute(struct writer *w, cJSON *list, const struct otlp_attribute *attribute)
{
    char number[24];
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "key", attribute->key);
    cJSON *value = write_object(w, entry, "value");
    snprintf(number, sizeof number, "%" PRId64, attribute->number);
    write_text(w, value, attribute->text ? "stringValue" : "intValue",
               attribute->text ? attribute->text : number);
}

static void write_span(struct writer *w, cJSON *list, const struct otlp_span *span)
{
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "traceId", span->trace);
    write_text(w, entry, "spanId", span->id);
    if (span->parent[0])
        write_text(w, entry, "parentSpanId", span->parent);
    write_text(w, entry, "name", span->name);
    write_count(w, entry, "kind", (unsigned long long)span->kind);
    write_number(w, entry, "startTimeUnixNano", span->begin);
    write_number(w, entry, "endTimeUnixNano", span->end);
    cJSON *attributes = write_array(w, entry, "attributes");
    for (size_t i = 0; i < span->attribute_count; i++)
        write_attribute(w, attributes, &span->attributes[i]);
    if (span->failed)
        write_count(w, write_object(w, entry, "status"), "code", 2);
}

char *otlp_spans_json(const struct otlp_resource *resource, const struct otlp_span *spans,
                      size_t count, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    cJSON *entry = write_object(&w, write_array(&w, root, "resourceSpans"), NULL);
    cJSON *attributes = write_array(&w, write_object(&w, entry, "resource"), "attributes");
    for (size_t i = 0; i < resource->count; i++)
        write_attribute(
            &w, attributes,
            &(struct otlp_attribute){.key = resource->keys[i], .text = resource->values[i]});
    entry = write_object(&w, write_array(&w, entry, "scopeSpans"), NULL);
    cJSON *scope = write_object(&w, entry, "scope");
    write_text(&w, scope, "name", "lensd");
    write_text(&w, scope, "version", resource->version);
    cJSON *list = write_array(&w, entry, "spans");
    for (size_t i = 0; i < count; i++)
        write_span(&w, list, &spans[i]);
    return write_finish(&w, root, ret_size);
}

int64_t otlp_rejected(const char *json, size_t size, char *message, size_t message_size)
{
    cJSON *root = cJSON_ParseWithLength(json, size);
    const cJSON *partial = cJSON_GetObjectItemCaseSensitive(root, "partialSuccess");
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(partial, "rejectedSpans");
    const char *reason =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(partial, "errorMessage"));
    snprintf(message, message_size, "%s", reason ? reason : "");
    int64_t rejected = 0;
    if (cJSON_IsString(count))
        rejected = strtoll(count->valuestring, NULL, 10);
    else if (cJSON_IsNumber(count))
        rejected = count->valueint;
    cJSON_Delete(root);
    return rejected > 0 ? rejected : 0;
}
