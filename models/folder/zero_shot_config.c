/* Reads zero_shot.json of a model's folder: texts, their vectors, and how scores are made. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

static enum status zero_shot_wrong(const char *key, const char *expected, struct error *err)
{
    return error_set(err, STATUS_MODEL, "\"%s\" is not %s", key, expected);
}

static enum status zero_shot_number(const cJSON *json, const char *key, float *ret,
                                    struct error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!item)
        return STATUS_OK;
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 1e6))
        return zero_shot_wrong(key, "a number between -1e6 and 1e6", err);
    *ret = (float)item->valuedouble;
    return STATUS_OK;
}

/* One vector, scaled to length 1. */
static enum status read_vector(const cJSON *list, size_t size, float *ret, struct error *err)
{
    static const char expected[] = "a list of vectors of the same size, of numbers that are not "
                                   "all 0";
    double sum = 0;
    size_t k = 0;
    for (const cJSON *entry = cJSON_IsArray(list) ? list->child : NULL; entry;
         entry = entry->next, k++) {
        if (k == size || !cJSON_IsNumber(entry) || !(fabs(entry->valuedouble) < 1e18))
            return zero_shot_wrong("vectors", expected, err);
        ret[k] = (float)entry->valuedouble;
        sum += entry->valuedouble * entry->valuedouble;
    }
    if (k != size || !(sum > 0))
        return zero_shot_wrong("vectors", expected, err);
    for (k = 0; k < size; k++)
        ret[k] = (float)((double)ret[k] / sqrt(sum));
    return STATUS_OK;
}

static enum status read_vectors(const cJSON *json, struct zero_shot *ret, struct error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "vectors");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    size_t all;
    if (!cJSON_IsArray(first) || !first->child)
        return zero_shot_wrong("vectors", "a list of vectors, one for each label", err);
    ret->count = (size_t)cJSON_GetArraySize(list);
    ret->size = (size_t)cJSON_GetArraySize(first);
    if (!size_mul(ret->count, ret->size, &all))
        return error_no_memory(err, "for the vectors of texts");
    ret->vectors = alloc_array(all, sizeof *ret->vectors);
    if (!ret->vectors)
        return error_no_memory(err, "for the vectors of texts");
    size_t i = 0;
    for (const cJSON *entry = first; entry; entry = entry->next, i++)
        TRY(read_vector(entry, ret->size, ret->vectors + i * ret->size, err));
    return STATUS_OK;
}

static enum status read_activation(const cJSON *json, struct zero_shot *ret, struct error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "activation");
    if (item && (!cJSON_IsString(item) || (strcmp(item->valuestring, "softmax") != 0 &&
                                           strcmp(item->valuestring, "sigmoid") != 0)))
        return zero_shot_wrong("activation", "\"softmax\" or \"sigmoid\"", err);
    ret->is_sigmoid = item && !strcmp(item->valuestring, "sigmoid");
    return STATUS_OK;
}

/* Only known keys: a misspelt one would be ignored silently. */
static enum status check_keys(const cJSON *json, struct error *err)
{
    static const char *const keys[] = {"labels", "vectors", "scale", "bias", "activation"};
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "the file is not a JSON object");
    for (const cJSON *item = json->child; item; item = item->next) {
        size_t i = 0;
        while (i < COUNT_OF(keys) && strcmp(keys[i], item->string) != 0)
            i++;
        if (i == COUNT_OF(keys))
            return error_set(err, STATUS_MODEL,
                             "unknown key \"%.60s\"; it takes labels, vectors, scale, bias and "
                             "activation",
                             item->string);
    }
    return STATUS_OK;
}

static enum status read_texts(const cJSON *json, struct zero_shot *ret, struct labels *labels,
                              struct error *err)
{
    TRY(check_keys(json, err));
    ret->scale = 100;
    TRY(zero_shot_number(json, "scale", &ret->scale, err));
    TRY(zero_shot_number(json, "bias", &ret->bias, err));
    TRY(read_activation(json, ret, err));
    TRY(read_vectors(json, ret, err));
    char *names = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(json, "labels"));
    if (!names)
        return zero_shot_wrong("labels", "a list of strings", err);
    const enum status status = labels_from_json(names, strlen(names), labels, err);
    free(names);
    TRY(status);
    if (labels->count != ret->count)
        return error_set(err, STATUS_MODEL, "it has %zu labels, but %zu vectors", labels->count,
                         ret->count);
    return STATUS_OK;
}

enum status zero_shot_read(const struct model_place *place, struct zero_shot *ret,
                           struct labels *ret_labels, struct error *err)
{
    char *text = NULL, *path = NULL;
    size_t size = 0;
    cJSON *json = NULL;
    struct labels labels = {0};
    enum status status = model_side_file(place, "zero_shot.json", &text, &size, &path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    status = json_parse(text, size, &json, err);
    if (status == STATUS_OK)
        status = read_texts(json, ret, &labels, err);
    if (status != STATUS_OK) {
        (void)error_prefix(err, "%.200s", path);
        (void)error_set(err, STATUS_MODEL, "%s", err->message);
        status = STATUS_MODEL;
        labels_done(&labels);
        zero_shot_done(ret);
    } else {
        labels_done(ret_labels);
        *ret_labels = labels;
    }
    cJSON_Delete(json);
    free(text);
    free(path);
    return status;
}
