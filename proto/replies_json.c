/* Reads replies of Hugging Face's hub and of trace collectors; nothing in them is trusted. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/json.h"

static const char *text_of(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

/* Reads {"sha": "…", "siblings": [{"rfilename": "config.json"}, …]}. */
static enum status read_list(const cJSON *root, struct hub_list *ret, struct error *err)
{
    const char *commit = text_of(root, "sha");
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(root, "siblings");
    if (!commit || strlen(commit) != 40 || strspn(commit, "0123456789abcdef") != 40)
        return error_set(err, STATUS_CONFIG, "\"sha\" is not the hash of a commit");
    if (!cJSON_IsArray(files) || cJSON_GetArraySize(files) > HUB_FILES_MAX)
        return error_set(err, STATUS_CONFIG,
                         "\"siblings\" is not a list, or lists more than %d files", HUB_FILES_MAX);
    memcpy(ret->commit, commit, sizeof ret->commit);
    ret->paths = alloc_array((size_t)cJSON_GetArraySize(files), sizeof *ret->paths);
    TRY(check_memory(ret->paths, NULL, err));
    for (const cJSON *file = files->child; file; file = file->next) {
        const char *path = text_of(file, "rfilename");
        if (!path)
            return error_set(err, STATUS_CONFIG, "an entry of \"siblings\" has no \"rfilename\"");
        for (const char *at = path; *at; at++)
            if ((unsigned char)*at < ' ' || *at == 0x7f)
                return error_set(err, STATUS_CONFIG, "a file's name has control characters");
        ret->paths[ret->count] = strdup(path);
        TRY(check_memory(ret->paths[ret->count++], NULL, err));
    }
    return STATUS_OK;
}

enum status hub_list_read(const char *text, size_t size, struct hub_list *ret, struct error *err)
{
    *ret = (struct hub_list){0};
    enum status status = json_check(text, size, &(struct json_limits){32, 20 * HUB_FILES_MAX}, err);
    cJSON *root = status == STATUS_OK ? cJSON_ParseWithLength(text, size) : NULL;
    if (root)
        status = read_list(root, ret, err);
    else if (status == STATUS_OK)
        status = error_no_memory(err, NULL);
    cJSON_Delete(root);
    if (status == STATUS_INVALID || status == STATUS_CONFIG)
        return error_set(err, STATUS_CONFIG, "the answer is not that of a hub: %s",
                         err ? err->message : "");
    return status;
}

void hub_list_done(struct hub_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->paths[i]);
    free(list->paths);
    *list = (struct hub_list){0};
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
