/* Reads JSON configuration files: parses a file, and reads an object's members by a table. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/folder/model_internal.h"

/* Reports the place `end`, at which cJSON stopped. */
static enum status json_invalid(const char *text, size_t size, const char *end, struct error *err)
{
    size_t at = end >= text && end <= text + size ? (size_t)(end - text) : size, line = 1;
    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    return error_set(err, STATUS_MODEL, "the file is not valid JSON: see line %zu, byte %zu", line,
                     at);
}

enum status json_parse(const char *text, size_t size, struct cJSON **ret, struct error *err)
{
    if (text_skip_blanks(text, 0, size) == size)
        return error_set(err, STATUS_MODEL, "the file is empty");
    const char *end = NULL;
    *ret = cJSON_ParseWithLengthOpts(text, size, &end, false);
    return *ret ? STATUS_OK : json_invalid(text, size, end, err);
}

bool json_is_whole(const struct cJSON *item, double least, double most)
{
    return cJSON_IsNumber(item) && item->valuedouble >= least && item->valuedouble <= most &&
           floor(item->valuedouble) >= item->valuedouble;
}

static enum status read_number(const cJSON *item, const struct json_member *member, void *to,
                               struct error *err)
{
    const bool is_whole = member->kind == JSON_INT || member->kind == JSON_SIZE;
    const double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    char expected[80];
    if (!(value >= member->least && value <= member->most) || (is_whole && floor(value) < value)) {
        snprintf(expected, sizeof expected, "a %snumber from %g to %g", is_whole ? "whole " : "",
                 member->least, member->most);
        return json_wrong(item->string, expected, err);
    }
    if (member->kind == JSON_FLOAT)
        *(float *)to = (float)value;
    else if (member->kind == JSON_DOUBLE)
        *(double *)to = value;
    else if (member->kind == JSON_INT)
        *(int *)to = (int)value;
    else
        *(size_t *)to = (size_t)value;
    return STATUS_OK;
}

static enum status read_member(const cJSON *item, const struct json_member *member, void *object,
                               struct error *err)
{
    void *to = (char *)object + member->at;
    if (member->read || member->kind == JSON_OTHER)
        return member->read ? member->read(item, object, err) : STATUS_OK;
    if (member->kind == JSON_FLAG) {
        *(int *)to = cJSON_IsTrue(item);
        return cJSON_IsBool(item) ? STATUS_OK : json_wrong(item->string, "true or false", err);
    }
    if (member->kind != JSON_TEXT)
        return read_number(item, member, to, err);
    if (!cJSON_IsString(item))
        return json_wrong(item->string, "a text", err);
    *(const char **)to = item->valuestring;
    return STATUS_OK;
}

static enum status unknown_key(const char *key, const char *what, const struct json_member *members,
                               size_t count, struct error *err)
{
    char keys[300] = "";
    for (size_t i = 0; i < count; i++)
        text_append(keys, sizeof keys, i + 1 < count ? ", " : " and ", "%s", members[i].key);
    return error_set(err, STATUS_MODEL, "unknown key \"%.60s\"; %s takes %s", key, what, keys);
}

enum status json_members(const struct cJSON *json, const char *what,
                         const struct json_member *members, size_t count, void *object,
                         struct error *err)
{
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "the file is not a JSON object");
    for (const cJSON *item = json->child; item; item = item->next) {
        size_t i = 0;
        while (i < count && strcmp(members[i].key, item->string) != 0)
            i++;
        if (i == count)
            return unknown_key(item->string, what, members, count, err);
        TRY(read_member(item, &members[i], object, err));
    }
    return STATUS_OK;
}
