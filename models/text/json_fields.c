/* Reads members of JSON objects, and checks their values. */
#include "models/text/json_fields.h"

#include <cjson/cJSON.h>
#include <math.h>

const cJSON *json_get(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

enum status json_wrong(const char *what, const char *expected, struct error *err)
{
    return error_set(err, STATUS_MODEL, "\"%.60s\" is not %s", what, expected);
}

enum status json_text(const cJSON *json, const char *key, const char *other, const char **ret,
                      struct error *err)
{
    const cJSON *item = json_get(json, key);
    *ret = item && cJSON_IsString(item) ? item->valuestring : other;
    return !item || cJSON_IsString(item) ? STATUS_OK : json_wrong(key, "a text", err);
}

enum status json_flag(const cJSON *json, const char *key, bool other, bool *ret, struct error *err)
{
    const cJSON *item = json_get(json, key);
    *ret = item ? cJSON_IsTrue(item) : other;
    return !item || cJSON_IsBool(item) ? STATUS_OK : json_wrong(key, "true or false", err);
}

enum status json_size(const cJSON *json, const char *key, size_t other, size_t most, size_t *ret,
                      struct error *err)
{
    const cJSON *item = json_get(json, key);
    *ret = other;
    if (!item)
        return STATUS_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
        floor(item->valuedouble) < item->valuedouble)
        return json_wrong(key, "a whole number", err);
    *ret = item->valuedouble >= (double)most ? most : (size_t)item->valuedouble;
    return STATUS_OK;
}
