/* Reads and writes the JSON of the logging settings (/v2/logging). */
#include <cjson/cJSON.h>
#include <string.h>

#include "proto/json.h"
#include "proto/writer.h"

char *logging_json(const struct logging_settings *settings)
{
    return write_document("log_file=%s log_info=%hhd log_warning=%hhd log_error=%hhd "
                          "log_verbose_level=%d log_format=%s",
                          "", settings->info, settings->warning, settings->error, settings->verbose,
                          settings->as_json ? "json" : "default");
}

static enum status read_member(const cJSON *member, struct logging_settings *settings,
                               struct error *err)
{
    const char *key = member->string, *text = cJSON_GetStringValue(member);
    bool *is_on = !strcmp(key, "log_info")      ? &settings->info
                  : !strcmp(key, "log_warning") ? &settings->warning
                  : !strcmp(key, "log_error")   ? &settings->error
                                                : NULL;
    if (is_on) {
        *is_on = cJSON_IsTrue(member);
        return cJSON_IsBool(member)
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID, "\"%s\" must be true or false", key);
    }
    if (!strcmp(key, "log_verbose_level")) {
        const double value = cJSON_IsNumber(member) ? member->valuedouble : -1;
        settings->verbose = value >= 0 && value <= 1000 ? (int)value : -1;
        return value == settings->verbose && value >= 0
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID, "\"log_verbose_level\" must be 0 or more");
    }
    if (!strcmp(key, "log_format")) {
        settings->as_json = text && !strcmp(text, "json");
        return text && (settings->as_json || !strcmp(text, "default") || !strcmp(text, "text"))
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID,
                               "\"log_format\" must be \"default\" or \"json\"");
    }
    if (!strcmp(key, "log_file") && text && !*text)
        return STATUS_OK;
    if (!strcmp(key, "log_file"))
        return error_set(err, STATUS_INVALID,
                         "\"log_file\" cannot be set: the log goes to standard error; redirect it "
                         "where lensd is started");
    return error_set(err, STATUS_INVALID,
                     "unknown setting \"%.60s\"; known are log_info, log_warning, log_error, "
                     "log_verbose_level and log_format",
                     key);
}

enum status logging_json_read(const char *text, size_t size, struct logging_settings *settings,
                              struct error *err)
{
    TRY(json_check(text, size, &(struct json_limits){4, 100}, err));
    cJSON *root = cJSON_ParseWithLength(text, size);
    TRY(check_memory(root, "for a request", err));
    enum status status = STATUS_OK;
    if (!cJSON_IsObject(root))
        status = error_set(err, STATUS_INVALID,
                           "the settings must be one JSON object: {\"log_verbose_level\": 1}");
    for (const cJSON *member = root->child; member && status == STATUS_OK; member = member->next)
        status = read_member(member, settings, err);
    cJSON_Delete(root);
    return status;
}
