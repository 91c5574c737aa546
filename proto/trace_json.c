/* Reads the JSON answer of a collector of traces. Source: opentelemetry-proto 1.x. */
#include "proto/trace_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

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
