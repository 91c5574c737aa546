/* Reads pipeline.json. */
#include "models/folder/pipeline_config.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/folder/preprocess.h"

static enum status stage_wrong(const cJSON *item, const char *expected, struct error *err)
{
    return error_set(err, STATUS_MODEL, "\"%.60s\" is not %s", item->string, expected);
}

/* A text that fits into `room` bytes with its terminator. */
static bool stage_text(const cJSON *item, char *ret, size_t room)
{
    if (!cJSON_IsString(item) || !item->valuestring[0] || strlen(item->valuestring) >= room)
        return false;
    memcpy(ret, item->valuestring, strlen(item->valuestring) + 1);
    return true;
}

static enum status stage_share(const cJSON *item, double *ret, struct error *err)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 1))
        return stage_wrong(item, "a number from 0 to 1", err);
    *ret = item->valuedouble;
    return STATUS_OK;
}

static bool stage_whole(const cJSON *item, double most)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= most &&
           floor(item->valuedouble) >= item->valuedouble;
}

static enum status stage_labels(const cJSON *list, struct pipeline_stage *ret, struct error *err)
{
    static const char expected[] =
        "a list of 1 to 32 labels, of at most 63 bytes, or class numbers";
    for (const cJSON *entry = cJSON_IsArray(list) ? list->child : NULL; entry;
         entry = entry->next) {
        if (ret->label_count == STAGE_LABELS_MAX)
            return stage_wrong(list, expected, err);
        char *label = ret->labels[ret->label_count++];
        if (stage_whole(entry, 1e9))
            snprintf(label, sizeof ret->labels[0], "%.0f", entry->valuedouble);
        else if (!stage_text(entry, label, sizeof ret->labels[0]))
            return stage_wrong(list, expected, err);
    }
    return ret->label_count ? STATUS_OK : stage_wrong(list, expected, err);
}

static enum status stage_sizes(const cJSON *list, struct pipeline_stage *ret, struct error *err)
{
    static const char expected[] = "a list of 1 to 5 sizes such as \"320x48\", width and height of "
                                   "1 to 4096 pixels";
    for (const cJSON *entry = cJSON_IsArray(list) ? list->child : NULL; entry;
         entry = entry->next) {
        struct stage_size *size = &ret->sizes[ret->size_count];
        if (ret->size_count++ == STAGE_SIZES_MAX || !cJSON_IsString(entry) ||
            !model_read_size(entry->valuestring, &size->width, &size->height))
            return stage_wrong(list, expected, err);
    }
    return ret->size_count ? STATUS_OK : stage_wrong(list, expected, err);
}

static enum status stage_member(const cJSON *item, bool is_first, struct pipeline_stage *ret,
                                struct error *err)
{
    const char *key = item->string;
    if (!strcmp(key, "model"))
        return stage_text(item, ret->model, sizeof ret->model) && !strchr(ret->model, '/') &&
                       ret->model[0] != '.'
                   ? STATUS_OK
                   : stage_wrong(item, "the name of a model in the same repository", err);
    if (!strcmp(key, "sizes"))
        return stage_sizes(item, ret, err);
    const bool is_crop = !strcmp(key, "labels") || !strcmp(key, "min_score") ||
                         !strcmp(key, "margin") || !strcmp(key, "max");
    if (!is_crop)
        return error_set(err, STATUS_MODEL,
                         "unknown key \"%.60s\"; a stage takes model, sizes, labels, min_score, "
                         "margin and max",
                         key);
    if (is_first)
        return error_set(err, STATUS_MODEL,
                         "\"%s\" chooses crops, and the first stage gets whole photos; write it "
                         "into the stage that gets the crops",
                         key);
    if (!strcmp(key, "labels"))
        return stage_labels(item, ret, err);
    if (!strcmp(key, "min_score"))
        return stage_share(item, &ret->min_score, err);
    if (!strcmp(key, "margin"))
        return stage_share(item, &ret->margin, err);
    if (!stage_whole(item, STAGE_CROPS_MAX) || item->valuedouble < 1)
        return stage_wrong(item, "a whole number from 1 to 1000", err);
    ret->max = (size_t)item->valuedouble;
    return STATUS_OK;
}

static enum status read_stage(const cJSON *json, bool is_first, struct pipeline_stage *ret,
                              struct error *err)
{
    *ret = (struct pipeline_stage){.max = STAGE_CROPS_DEFAULT};
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "it is not an object such as {\"model\": \"NAME\"}");
    for (const cJSON *item = json->child; item; item = item->next) {
        for (const cJSON *other = json->child; other != item; other = other->next)
            if (!strcmp(other->string, item->string))
                return error_set(err, STATUS_MODEL, "\"%.60s\" is there twice", item->string);
        TRY(stage_member(item, is_first, ret, err));
    }
    if (!ret->model[0])
        return error_set(err, STATUS_MODEL,
                         "\"model\" is missing: the name of a model in the same "
                         "repository");
    return STATUS_OK;
}

static enum status read_stages(const cJSON *json, struct pipeline_config *ret, struct error *err)
{
    static const char form[] =
        "{\"stages\": [{\"model\": \"a-detector\"}, {\"model\": \"a-classifier\"}]}";
    const cJSON *list = cJSON_IsObject(json) ? json->child : NULL;
    *ret = (struct pipeline_config){.stage_count = 0};
    if (!list || list->next || strcmp(list->string, "stages") != 0 || !cJSON_IsArray(list))
        return error_set(err, STATUS_MODEL,
                         "the file must be an object with the one key "
                         "\"stages\": %s",
                         form);
    for (const cJSON *entry = list->child; entry; entry = entry->next) {
        if (ret->stage_count == PIPELINE_STAGES_MAX)
            return error_set(err, STATUS_MODEL, "more than %d stages", PIPELINE_STAGES_MAX);
        const size_t at = ret->stage_count++;
        if (read_stage(entry, at == 0, &ret->stages[at], err) != STATUS_OK)
            return error_prefix(err, "stage %zu", at + 1);
    }
    return ret->stage_count >= 2 ? STATUS_OK
                                 : error_set(err, STATUS_MODEL, "a pipeline has 2 or %d stages: %s",
                                             PIPELINE_STAGES_MAX, form);
}

enum status pipeline_config_parse(const char *text, size_t size, struct pipeline_config *ret,
                                  struct error *err)
{
    cJSON *json;
    TRY(json_parse(text, size, &json, err));
    const enum status status = read_stages(json, ret, err);
    cJSON_Delete(json);
    return status;
}

enum status pipeline_config_read(const char *folder, struct pipeline_config *ret, struct error *err)
{
    const struct model_place place = {.folders = {(char *)(uintptr_t)folder, NULL}};
    char *text = NULL, *path = NULL;
    size_t size = 0;
    TRY(model_side_file(&place, PIPELINE_FILE, &text, &size, &path, err));
    enum status status = pipeline_config_parse(text, size, ret, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "%.200s", path);
    free(text);
    free(path);
    return status;
}

char *pipeline_stage_path(const char *folder, const struct pipeline_stage *stage)
{
    char *path;
    return asprintf(&path, "%s/../%s", folder, stage->model) < 0 ? NULL : path;
}

const struct stage_size *pipeline_stage_size(const struct pipeline_stage *stage, bool keeps_aspect,
                                             unsigned width, unsigned height)
{
    const struct stage_size *best = NULL;
    double best_fit = 0;
    for (size_t i = 0; i < stage->size_count; i++) {
        const struct stage_size *size = &stage->sizes[i];
        const double across = (double)size->width / width, down = (double)size->height / height;
        const double fit =
            keeps_aspect ? fmin(across, down) : fmin(across, down) / fmax(across, down);
        const bool is_smaller =
            best && (double)size->width * size->height < (double)best->width * best->height;
        if (best && (fit < best_fit || (fit <= best_fit && !is_smaller)))
            continue;
        best = size;
        best_fit = fit;
    }
    return best;
}
