/* Reads what a model's folder says of its task: lensd.json, and the architecture in config.json. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

void task_config_done(struct task_config *config)
{
    free(config->task);
    free(config->layout);
    free(config->architecture);
    *config = (struct task_config){0};
}

static enum status bad_value(const cJSON *item, const char *expected, struct error *err)
{
    return error_set(err, STATUS_MODEL, "\"%.60s\" is not %s", item->string, expected);
}

static enum status read_text(const cJSON *item, char **ret, struct error *err)
{
    if (!cJSON_IsString(item))
        return bad_value(item, "a text", err);
    free(*ret);
    *ret = strdup(item->valuestring);
    return *ret ? STATUS_OK : error_no_memory(err, "while reading a model's task");
}

static enum status read_share(const cJSON *item, float *ret, struct error *err)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 1))
        return bad_value(item, "a number from 0 to 1", err);
    *ret = (float)item->valuedouble;
    return STATUS_OK;
}

static enum status read_flag(const cJSON *item, int *ret, struct error *err)
{
    if (!cJSON_IsBool(item))
        return bad_value(item, "true or false", err);
    *ret = cJSON_IsTrue(item);
    return STATUS_OK;
}

static bool is_whole(const cJSON *item, double least, double most)
{
    return cJSON_IsNumber(item) && item->valuedouble >= least && item->valuedouble <= most &&
           floor(item->valuedouble) >= item->valuedouble;
}

static enum status read_classes(const cJSON *item, struct task_config *config, struct error *err)
{
    static const char expected[] = "a list of 1 to 64 class numbers or labels";
    struct task_options *ret = &config->options;
    ret->class_count = 0;
    for (const cJSON *entry = cJSON_IsArray(item) ? item->child : NULL; entry;
         entry = entry->next) {
        size_t index = 0;
        if (ret->class_count == TASK_MAX_CLASSES)
            return bad_value(item, expected, err);
        if (is_whole(entry, 0, 1e9))
            index = (size_t)entry->valuedouble;
        else if (!cJSON_IsString(entry))
            return bad_value(item, expected, err);
        else if (!labels_find(config->labels, entry->valuestring, strlen(entry->valuestring),
                              &index))
            return error_set(err, STATUS_MODEL, "\"classes\": '%.60s' is not a label of this model",
                             entry->valuestring);
        ret->classes[ret->class_count++] = (uint32_t)index;
    }
    return ret->class_count ? STATUS_OK : bad_value(item, expected, err);
}

static enum status read_member(const cJSON *item, struct task_config *config, struct error *err)
{
    struct task_options *options = &config->options;
    const char *key = item->string;
    if (!strcmp(key, "task"))
        return read_text(item, &config->task, err);
    if (!strcmp(key, "layout"))
        return read_text(item, &config->layout, err);
    if (!strcmp(key, "confidence"))
        return read_share(item, &options->confidence, err);
    if (!strcmp(key, "iou"))
        return read_share(item, &options->iou, err);
    if (!strcmp(key, "use_dilation"))
        return read_flag(item, &config->use_dilation, err);
    if (!strcmp(key, "unclip_ratio")) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.1 && item->valuedouble <= 10))
            return bad_value(item, "a number from 0.1 to 10", err);
        config->unclip_ratio = (float)item->valuedouble;
        return STATUS_OK;
    }
    if (!strcmp(key, "agnostic"))
        return read_flag(item, &options->agnostic, err);
    if (!strcmp(key, "normalize"))
        return read_flag(item, &options->normalize, err);
    if (!strcmp(key, "masks"))
        return cJSON_IsString(item) &&
                       task_option_set(options, key, item->valuestring, NULL) == STATUS_OK
                   ? STATUS_OK
                   : bad_value(item, "\"rle\", \"polygon\" or \"png\"", err);
    if (!strcmp(key, "classes"))
        return read_classes(item, config, err);
    if (strcmp(key, "max_detections") != 0)
        return error_set(err, STATUS_MODEL,
                         "unknown key \"%.60s\"; it takes task, layout, confidence, iou, "
                         "max_detections, classes, agnostic, normalize, masks, unclip_ratio and "
                         "use_dilation",
                         key);
    if (!is_whole(item, 1, TASK_MAX_DETECTIONS))
        return bad_value(item, "a whole number from 1 to 1000", err);
    options->max_detections = (int)item->valuedouble;
    return STATUS_OK;
}

static enum status read_lensd(const cJSON *json, struct task_config *config, struct error *err)
{
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "the file is not a JSON object");
    for (const cJSON *item = json->child; item; item = item->next)
        TRY(read_member(item, config, err));
    return STATUS_OK;
}

/* Hugging Face's and timm's; whatever else a config.json is, it says nothing of tasks. */
static enum status read_config(const cJSON *json, struct task_config *config, struct error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "architectures");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    const cJSON *classes = cJSON_GetObjectItemCaseSensitive(json, "num_classes");
    config->is_headless = is_whole(classes, 0, 0);
    return cJSON_IsString(first) ? read_text(first, &config->architecture, err) : STATUS_OK;
}

typedef enum status (*task_reader)(const cJSON *json, struct task_config *config,
                                   struct error *err);

static enum status read_file(const struct model_place *place, const char *name, task_reader read,
                             struct task_config *config, struct error *err)
{
    char *text = NULL, *path = NULL;
    size_t size = 0;
    cJSON *json;
    enum status status = model_side_file(place, name, &text, &size, &path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    status = json_parse(text, size, &json, err);
    if (status == STATUS_OK) {
        status = read(json, config, err);
        cJSON_Delete(json);
    }
    if (status != STATUS_OK)
        (void)error_prefix(err, "%.200s", path);
    free(text);
    free(path);
    return status;
}

enum status task_config_read(const struct model_place *place, const struct labels *labels,
                             struct task_config *ret, struct error *err)
{
    *ret = (struct task_config){.options = TASK_OPTIONS_NONE, .labels = labels};
    enum status status = read_file(place, "lensd.json", read_lensd, ret, err);
    if (status == STATUS_OK)
        status = read_file(place, "config.json", read_config, ret, err);
    if (status != STATUS_OK)
        task_config_done(ret);
    return status;
}
