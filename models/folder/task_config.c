/* Reads settings of a model's folder: lensd.json, and the architecture in config.json. */
#include <cjson/cJSON.h>
#include <stddef.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

void task_config_done(struct task_config *config)
{
    cJSON_Delete(config->trees[0]);
    cJSON_Delete(config->trees[1]);
    *config = (struct task_config){0};
}

static enum status read_classes(const cJSON *item, void *object, struct error *err)
{
    struct task_config *config = object;
    static const char expected[] = "a list of 1 to 64 class numbers or labels";
    struct task_options *ret = &config->facts.options;
    ret->class_count = 0;
    for (const cJSON *entry = cJSON_IsArray(item) ? item->child : NULL; entry;
         entry = entry->next) {
        size_t index = 0;
        if (ret->class_count == TASK_MAX_CLASSES)
            return json_wrong(item->string, expected, err);
        if (json_is_whole(entry, 0, 1e9))
            index = (size_t)entry->valuedouble;
        else if (!cJSON_IsString(entry))
            return json_wrong(item->string, expected, err);
        else if (!labels_find(config->labels->names, config->labels->count, entry->valuestring,
                              strlen(entry->valuestring), &index))
            return error_set(err, STATUS_MODEL, "\"classes\": '%.60s' is not a label of this model",
                             entry->valuestring);
        ret->classes[ret->class_count++] = (uint32_t)index;
    }
    return ret->class_count ? STATUS_OK : json_wrong(item->string, expected, err);
}

static enum status read_masks(const cJSON *item, void *object, struct error *err)
{
    struct task_config *config = object;
    return cJSON_IsString(item) && task_option_set(&config->facts.options, item->string,
                                                   item->valuestring, NULL) == STATUS_OK
               ? STATUS_OK
               : json_wrong(item->string, "\"rle\", \"polygon\" or \"png\"", err);
}

/* Checks {"iou_threshold": 0.5, "sizes": [640, 640]}. */
static enum status read_inputs(const cJSON *item, void *object, struct error *err)
{
    struct task_config *config = object;
    bool is_right = cJSON_IsObject(item) && cJSON_GetArraySize(item) <= 8;
    config->inputs = item;
    for (const cJSON *entry = item->child; entry && is_right; entry = entry->next) {
        const int count = cJSON_IsArray(entry) ? cJSON_GetArraySize(entry) : 0;
        is_right = cJSON_IsNumber(entry) || (count > 0 && count <= 16);
        for (const cJSON *n = count ? entry->child : NULL; n && is_right; n = n->next)
            is_right = cJSON_IsNumber(n);
    }
    return is_right ? STATUS_OK
                    : json_wrong(item->string,
                                 "an object with a number, or a list of 1 to 16, for each of at "
                                 "most 8 inputs",
                                 err);
}

static enum status read_load(const cJSON *item, void *object, struct error *err)
{
    struct task_config *config = object;
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    config->load = !strcmp(text, "lazy") ? MODEL_LOAD_LAZY : MODEL_LOAD_EAGER;
    return config->load == MODEL_LOAD_LAZY || !strcmp(text, "eager")
               ? STATUS_OK
               : json_wrong(item->string, "\"eager\" or \"lazy\"", err);
}

#define AT(member) offsetof(struct task_config, member)

static const struct json_member lensd_members[] = {
    {"task", JSON_TEXT, AT(facts.configured_task)},
    {"layout", JSON_TEXT, AT(facts.configured_layout)},
    {"output", JSON_TEXT, AT(facts.configured_output)},
    {.key = "inputs", .read = read_inputs},
    {"confidence", JSON_FLOAT, AT(facts.options.confidence), 0, 1},
    {"iou", JSON_FLOAT, AT(facts.options.iou), 0, 1},
    {"max_detections", JSON_INT, AT(facts.options.max_detections), 1, TASK_MAX_DETECTIONS},
    {.key = "classes", .read = read_classes},
    {"agnostic", JSON_FLAG, AT(facts.options.agnostic)},
    {"normalize", JSON_FLAG, AT(facts.options.normalize)},
    {.key = "masks", .read = read_masks},
    {"unclip_ratio", JSON_FLOAT, AT(unclip_ratio), 0.1, 10},
    {"use_dilation", JSON_FLAG, AT(use_dilation)},
    {.key = "load", .read = read_load},
    {"idle_unload", JSON_DOUBLE, AT(idle_unload_s), 0, 604800}, /* seconds */
};

static enum status read_lensd(const cJSON *json, struct task_config *config, struct error *err)
{
    return json_members(json, "it", lensd_members, COUNT_OF(lensd_members), config, err);
}

/* Reads the config.json of Hugging Face or timm; other files of that name have no task. */
static enum status read_config(const cJSON *json, struct task_config *config, struct error *err)
{
    (void)err;
    const cJSON *list = json_get(json, "architectures");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    const cJSON *classes = json_get(json, "num_classes");
    config->facts.is_headless = json_is_whole(classes, 0, 0);
    config->facts.architecture = cJSON_GetStringValue(first);
    return STATUS_OK;
}

typedef enum status (*task_reader)(const cJSON *json, struct task_config *config,
                                   struct error *err);

/* Reads a file, if there is one. *ret_tree is owned by the caller. */
static enum status read_file(const struct model_place *place, const char *name, task_reader read,
                             struct task_config *config, cJSON **ret_tree, struct error *err)
{
    struct side_file file;
    const enum status status = side_json_open(place, name, &file, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    *ret_tree = file.json;
    file.json = NULL;
    return side_file_close(&file, read(*ret_tree, config, err), err);
}

enum status task_config_read(const struct model_place *place, const struct labels *labels,
                             struct task_config *ret, struct error *err)
{
    *ret = (struct task_config){
        .facts.options = TASK_OPTIONS_NONE, .idle_unload_s = -1, .labels = labels};
    enum status status = read_file(place, "lensd.json", read_lensd, ret, &ret->trees[0], err);
    IF_OK(status, read_file(place, "config.json", read_config, ret, &ret->trees[1], err));
    if (status != STATUS_OK)
        task_config_done(ret);
    return status;
}
