/* Reads zero_shot.json of a model's folder: texts, their vectors, and the scoring. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

/* Reads one vector, and scales it to length 1. */
static enum status read_vector(const cJSON *list, size_t size, float *ret, struct error *err)
{
    static const char expected[] = "a list of vectors of the same size, of numbers that are not "
                                   "all 0";
    double sum = 0;
    size_t k = 0;
    for (const cJSON *entry = cJSON_IsArray(list) ? list->child : NULL; entry;
         entry = entry->next, k++) {
        if (k == size || !cJSON_IsNumber(entry) || !(fabs(entry->valuedouble) < 1e18))
            return json_wrong("vectors", expected, err);
        ret[k] = (float)entry->valuedouble;
        sum += entry->valuedouble * entry->valuedouble;
    }
    if (k != size || !(sum > 0))
        return json_wrong("vectors", expected, err);
    for (k = 0; k < size; k++)
        ret[k] = (float)((double)ret[k] / sqrt(sum));
    return STATUS_OK;
}

static enum status read_vectors(const cJSON *json, struct zero_shot *ret, struct error *err)
{
    const cJSON *list = json_get(json, "vectors");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    size_t all;
    if (!cJSON_IsArray(first) || !first->child)
        return json_wrong("vectors", "a list of vectors, one for each label", err);
    ret->count = (size_t)cJSON_GetArraySize(list);
    ret->size = (size_t)cJSON_GetArraySize(first);
    TRY(check_memory(size_mul(ret->count, ret->size, &all), "for the vectors of texts", err));
    ret->vectors = alloc_array(all, sizeof *ret->vectors);
    TRY(check_memory(ret->vectors, "for the vectors of texts", err));
    size_t i = 0;
    for (const cJSON *entry = first; entry; entry = entry->next, i++)
        TRY(read_vector(entry, ret->size, ret->vectors + i * ret->size, err));
    return STATUS_OK;
}

static enum status read_activation(const cJSON *item, void *object, struct error *err)
{
    struct zero_shot *ret = object;
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    ret->is_sigmoid = !strcmp(text, "sigmoid");
    return ret->is_sigmoid || !strcmp(text, "softmax")
               ? STATUS_OK
               : json_wrong(item->string, "\"softmax\" or \"sigmoid\"", err);
}

static enum status read_prompt(const cJSON *item, void *object, struct error *err)
{
    struct zero_shot *ret = object;
    if (!cJSON_IsString(item) || !strstr(item->valuestring, "{}") ||
        strlen(item->valuestring) > ZERO_SHOT_PROMPT_MAX)
        return json_wrong(item->string, "a short text with {} where the label goes", err);
    free(ret->prompt);
    ret->prompt = strdup(item->valuestring);
    return check_memory(ret->prompt, "for the prompt of labels", err);
}

static const struct json_member texts_members[] = {
    {"labels", JSON_OTHER},
    {"vectors", JSON_OTHER},
    {"scale", JSON_FLOAT, offsetof(struct zero_shot, scale), -1e6, 1e6},
    {"bias", JSON_FLOAT, offsetof(struct zero_shot, bias), -1e6, 1e6},
    {.key = "activation", .read = read_activation},
    {.key = "prompt", .read = read_prompt},
};

static enum status read_texts(const cJSON *json, struct zero_shot *ret, struct labels *labels,
                              struct error *err)
{
    TRY(json_members(json, "it", texts_members, COUNT_OF(texts_members), ret, err));
    ret->has_scale = ret->has_scale || json_get(json, "scale") != NULL;
    /* Without labels the file sets only the scoring of labels in requests. */
    if (!json_get(json, "vectors") && !json_get(json, "labels"))
        return STATUS_OK;
    TRY(read_vectors(json, ret, err));
    const cJSON *names = json_get(json, "labels");
    if (!names)
        return json_wrong("labels", "a list of strings", err);
    const enum status status = labels_from_json(names, labels, err);
    if (status == STATUS_NOT_FOUND) /* side_file_close() adds no file name to STATUS_NOT_FOUND */
        return error_set(err, STATUS_MODEL, "%s", err->message);
    TRY(status);
    if (labels->count != ret->count)
        return error_set(err, STATUS_MODEL, "it has %zu labels, but %zu vectors", labels->count,
                         ret->count);
    return STATUS_OK;
}

enum status zero_shot_read(const struct model_place *place, struct zero_shot *ret,
                           struct labels *ret_labels, struct error *err)
{
    struct side_file file;
    struct labels labels = {0};
    enum status status = side_json_open(place, "zero_shot.json", &file, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    IF_OK(status, side_file_close(&file, read_texts(file.json, ret, &labels, err), err));
    if (status == STATUS_OK && ret->count) {
        const struct labels former = *ret_labels;
        *ret_labels = labels;
        labels = former;
    }
    labels_done(&labels);
    return status == STATUS_OK || status == STATUS_NO_MEMORY
               ? status
               : error_set(err, STATUS_MODEL, "%s", err->message);
}
