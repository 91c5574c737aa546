/* Reads a flat JSON object of settings, and passes each on as the text of a flag. */
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/json.h"

#define SETTING_BYTES 4096

static enum status join_strings(const cJSON *list, char text[static SETTING_BYTES],
                                struct error *err)
{
    size_t used = 0;
    text[0] = '\0';
    for (const cJSON *entry = list->child; entry; entry = entry->next) {
        if (!cJSON_IsString(entry))
            return error_set(err, STATUS_CONFIG, "\"%.60s\" must be a list of strings",
                             list->string);
        int n = snprintf(text + used, SETTING_BYTES - used, "%s%s", used ? "," : "",
                         entry->valuestring);
        if (n < 0 || (size_t)n >= SETTING_BYTES - used)
            return error_set(err, STATUS_CONFIG, "\"%.60s\" is longer than %d bytes", list->string,
                             SETTING_BYTES);
        used += (size_t)n;
    }
    return STATUS_OK;
}

static enum status set_member(const cJSON *member, json_setting_fn on_setting, void *context,
                              struct error *err)
{
    char text[SETTING_BYTES];
    if (cJSON_IsString(member))
        return on_setting(context, member->string, member->valuestring, err);
    if (cJSON_IsBool(member))
        return on_setting(context, member->string, cJSON_IsTrue(member) ? "true" : "false", err);
    if (cJSON_IsNumber(member)) {
        /* Exact: settings are far below 2^53. */
        snprintf(text, sizeof text, "%.15g", member->valuedouble);
        return on_setting(context, member->string, text, err);
    }
    if (cJSON_IsArray(member)) {
        TRY(join_strings(member, text, err));
        return on_setting(context, member->string, text, err);
    }
    return error_set(err, STATUS_CONFIG,
                     "\"%.60s\" must be a number, a string, true, false, or a list of strings",
                     member->string);
}

static bool given_before(const cJSON *root, const cJSON *member)
{
    for (const cJSON *earlier = root->child; earlier != member; earlier = earlier->next)
        if (!strcmp(earlier->string, member->string))
            return true;
    return false;
}

enum status json_settings(const char *text, size_t size, json_setting_fn on_setting, void *context,
                          struct error *err)
{
    enum status status = json_check(text, size, &(struct json_limits){8, 1000}, err);
    if (status != STATUS_OK)
        return error_set(err, STATUS_CONFIG, "%s", err ? err->message : "");
    cJSON *root = cJSON_ParseWithLength(text, size);
    TRY(check_memory(root, "for a file of settings", err));
    if (!cJSON_IsObject(root))
        status = error_set(err, STATUS_CONFIG,
                           "a file of settings must be one JSON object: {\"port\": 8080, …}");
    for (const cJSON *member = root->child; member && status == STATUS_OK; member = member->next) {
        if (given_before(root, member))
            status = error_set(err, STATUS_CONFIG, "\"%.60s\" appears twice", member->string);
        else
            status = set_member(member, on_setting, context, err);
    }
    cJSON_Delete(root);
    return status;
}
