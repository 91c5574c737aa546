/* Reads and writes the JSON of the logging settings (/v2/logging). */
#include "proto/logging_json.h"

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

static enum status read_switch(const cJSON *member, bool *ret, struct error *err)
{
    if (!cJSON_IsBool(member))
        return error_set(err, STATUS_INVALID, "\"%s\" must be true or false", member->string);
    *ret = cJSON_IsTrue(member);
    return STATUS_OK;
}

static enum status read_format(const cJSON *member, bool *ret, struct error *err)
{
    const char *text = cJSON_IsString(member) ? member->valuestring : "";
    *ret = !strcmp(text, "json");
    if (*ret || !strcmp(text, "default") || !strcmp(text, "text"))
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "\"log_format\" must be \"default\" or \"json\"");
}

static enum status read_verbose(const cJSON *member, int *ret, struct error *err)
{
    double value = cJSON_IsNumber(member) ? member->valuedouble : -1;
    if (!(value >= 0 && value <= 1000) || value != (int)value)
        return error_set(err, STATUS_INVALID, "\"log_verbose_level\" must be 0 or more");
    *ret = (int)value;
    return STATUS_OK;
}

static enum status read_member(const cJSON *member, struct logging_settings *settings,
                               struct error *err)
{
    const char *key = member->string;
    if (!strcmp(key, "log_info"))
        return read_switch(member, &settings->info, err);
    if (!strcmp(key, "log_warning"))
        return read_switch(member, &settings->warning, err);
    if (!strcmp(key, "log_error"))
        return read_switch(member, &settings->error, err);
    if (!strcmp(key, "log_verbose_level"))
        return read_verbose(member, &settings->verbose, err);
    if (!strcmp(key, "log_format"))
        return read_format(member, &settings->as_json, err);
    if (!strcmp(key, "log_file") && cJSON_IsString(member) && !member->valuestring[0])
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
    struct logging_settings changed = *settings;
    TRY(json_check(text, size, &(struct json_limits){4, 100}, err));
    cJSON *root = cJSON_ParseWithLength(text, size);
    TRY(check_memory(root, "for a request", err));
    enum status status = STATUS_OK;
    if (!cJSON_IsObject(root))
        status = error_set(err, STATUS_INVALID,
                           "the settings must be one JSON object: {\"log_verbose_level\": 1}");
    for (const cJSON *member = root->child; member && status == STATUS_OK; member = member->next)
        status = read_member(member, &changed, err);
    cJSON_Delete(root);
    if (status == STATUS_OK)
        *settings = changed;
    return status;
}
