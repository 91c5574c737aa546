/* Reads pipeline.json. */
#include "models/folder/pipeline_config.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/folder/preprocess.h"

const struct align_template align_arcface = {112,
                                             112,
                                             5,
                                             {{38.2946f, 51.6963f},
                                              {73.5318f, 51.5014f},
                                              {56.0252f, 71.7366f},
                                              {41.5493f, 92.3655f},
                                              {70.7299f, 92.2041f}}};

/* Reads a text that fits into `room` bytes with its terminator. */
static bool stage_text(const cJSON *item, char *ret, size_t room)
{
    if (!cJSON_IsString(item) || !item->valuestring[0] || strlen(item->valuestring) >= room)
        return false;
    memcpy(ret, item->valuestring, strlen(item->valuestring) + 1);
    return true;
}

static enum status stage_labels(const cJSON *list, void *object, struct error *err)
{
    struct pipeline_stage *ret = object;
    static const char expected[] =
        "a list of 1 to 32 labels, of at most 63 bytes, or class numbers";
    for (const cJSON *entry = cJSON_IsArray(list) ? list->child : NULL; entry;
         entry = entry->next) {
        if (ret->label_count == STAGE_LABELS_MAX)
            return json_wrong(list->string, expected, err);
        char *label = ret->labels[ret->label_count++];
        if (json_is_whole(entry, 0, 1e9))
            snprintf(label, sizeof ret->labels[0], "%.0f", entry->valuedouble);
        else if (!stage_text(entry, label, sizeof ret->labels[0]))
            return json_wrong(list->string, expected, err);
    }
    return ret->label_count ? STATUS_OK : json_wrong(list->string, expected, err);
}

static enum status stage_sizes(const cJSON *list, void *object, struct error *err)
{
    struct pipeline_stage *ret = object;
    static const char expected[] =
        "a list of 1 to 5 sizes such as \"320x48\", width and height of 1 to 4096 pixels";
    for (const cJSON *entry = cJSON_IsArray(list) ? list->child : NULL; entry;
         entry = entry->next) {
        struct stage_size *size = &ret->sizes[ret->size_count];
        if (ret->size_count++ == STAGE_SIZES_MAX || !cJSON_IsString(entry) ||
            !model_read_size(entry->valuestring, &size->width, &size->height))
            return json_wrong(list->string, expected, err);
    }
    return ret->size_count ? STATUS_OK : json_wrong(list->string, expected, err);
}

static enum status stage_model(const cJSON *item, void *object, struct error *err)
{
    struct pipeline_stage *ret = object;
    return stage_text(item, ret->model, sizeof ret->model) && !strchr(ret->model, '/') &&
                   ret->model[0] != '.'
               ? STATUS_OK
               : json_wrong(item->string, "the name of a model in the same repository", err);
}

static bool align_point(const cJSON *pair, float ret[static 2])
{
    const cJSON *x = cJSON_IsArray(pair) ? pair->child : NULL, *y = x ? x->next : NULL;
    if (!y || y->next || !cJSON_IsNumber(x) || !cJSON_IsNumber(y) ||
        !(fabs(x->valuedouble) <= MODEL_SIDE_MAX) || !(fabs(y->valuedouble) <= MODEL_SIDE_MAX))
        return false;
    ret[0] = (float)x->valuedouble;
    ret[1] = (float)y->valuedouble;
    return true;
}

/* Reads {"size": "112x112", "points": [[38.3, 51.7], …]}, or the name of a template. */
static enum status stage_align(const cJSON *item, void *object, struct error *err)
{
    static const char expected[] =
        "\"arcface\", or an object such as {\"size\": \"112x112\", \"points\": [[38.3, 51.7], "
        "[73.5, 51.5]]} with 2 to 16 points";
    struct pipeline_stage *ret = object;
    const cJSON *size = json_get(item, "size");
    const cJSON *points = json_get(item, "points");
    if (cJSON_IsString(item) && !strcmp(item->valuestring, "arcface")) {
        ret->align = align_arcface;
        return STATUS_OK;
    }
    if (!cJSON_IsString(size) || !cJSON_IsArray(points) || cJSON_GetArraySize(item) != 2 ||
        !model_read_size(size->valuestring, &ret->align.width, &ret->align.height))
        return json_wrong(item->string, expected, err);
    for (const cJSON *point = points->child; point; point = point->next)
        if (ret->align.count == ALIGN_POINTS_MAX ||
            !align_point(point, ret->align.points[ret->align.count++]))
            return json_wrong(item->string, expected, err);
    return ret->align.count >= 2 ? STATUS_OK : json_wrong(item->string, expected, err);
}

#define AT(member) offsetof(struct pipeline_stage, member)

static const struct json_member stage_members[] = {
    {.key = "model", .read = stage_model},
    {.key = "sizes", .read = stage_sizes},
    /* Settings that choose crops: */
    {.key = "labels", .read = stage_labels},
    {"min_score", JSON_DOUBLE, AT(min_score), 0, 1},
    {"margin", JSON_DOUBLE, AT(margin), 0, 1},
    {.key = "align", .read = stage_align},
    {"max", JSON_SIZE, AT(max), 1, STAGE_CROPS_MAX},
    {"turn", JSON_DOUBLE, AT(turn), 0, 1},
};

/* Reads a stage. `before` is the previous stage; NULL for the first one. */
static enum status read_stage(const cJSON *json, const struct pipeline_stage *before,
                              struct pipeline_stage *ret, struct error *err)
{
    const bool is_turned = before && before->turn > 0;
    *ret = (struct pipeline_stage){.max = is_turned ? before->max : STAGE_CROPS_DEFAULT};
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "expected an object such as {\"model\": \"NAME\"}");
    for (const cJSON *item = json->child; item; item = item->next) {
        for (const cJSON *other = json->child; other != item; other = other->next)
            if (!strcmp(other->string, item->string))
                return error_set(err, STATUS_MODEL, "\"%.60s\" is given twice", item->string);
        for (size_t i = 2; (!before || is_turned) && i < COUNT_OF(stage_members); i++)
            if (!strcmp(stage_members[i].key, item->string))
                return error_set(err, STATUS_MODEL,
                                 "\"%s\" chooses crops, and %s; write it into the stage that gets "
                                 "the crops",
                                 item->string,
                                 before ? "this stage gets every crop of the stage before it"
                                        : "the first stage gets whole photos");
    }
    TRY(json_members(json, "a stage", stage_members, COUNT_OF(stage_members), ret, err));
    if (ret->align.count && ret->margin > 0)
        return error_set(err, STATUS_MODEL,
                         "\"align\" and \"margin\" cannot be combined; remove one of them");
    if (!ret->model[0])
        return error_set(err, STATUS_MODEL,
                         "\"model\" is missing: the name of a model in the same repository");
    return STATUS_OK;
}

enum status pipeline_config_parse(const cJSON *json, struct pipeline_config *ret, struct error *err)
{
    static const char form[] =
        "{\"stages\": [{\"model\": \"a-detector\"}, {\"model\": \"a-classifier\"}]}";
    const cJSON *list = cJSON_IsObject(json) ? json->child : NULL;
    *ret = (struct pipeline_config){.stage_count = 0};
    if (!list || list->next || strcmp(list->string, "stages") != 0 || !cJSON_IsArray(list))
        return error_set(err, STATUS_MODEL,
                         "the file must be an object with the one key \"stages\": %s", form);
    for (const cJSON *entry = list->child; entry; entry = entry->next) {
        if (ret->stage_count == PIPELINE_STAGES_MAX)
            return error_set(err, STATUS_MODEL, "more than %d stages", PIPELINE_STAGES_MAX);
        const size_t at = ret->stage_count++;
        if (read_stage(entry, at ? &ret->stages[at - 1] : NULL, &ret->stages[at], err) != STATUS_OK)
            return error_prefix(err, "stage %zu", at + 1);
    }
    if (ret->stage_count && ret->stages[ret->stage_count - 1].turn > 0)
        return error_set(err, STATUS_MODEL,
                         "\"turn\" is in the last stage, and no stage gets the turned crops; add "
                         "the stage that reads them");
    return ret->stage_count >= 2 ? STATUS_OK
                                 : error_set(err, STATUS_MODEL, "a pipeline has 2 or %d stages: %s",
                                             PIPELINE_STAGES_MAX, form);
}

enum status pipeline_config_read(const char *folder, struct pipeline_config *ret, struct error *err)
{
    struct model_place place = {.is_immich = false};
    struct side_file file;
    model_path(place.folders[0], "%s", folder);
    TRY(side_json_open(&place, PIPELINE_FILE, &file, err));
    return side_file_close(&file, pipeline_config_parse(file.json, ret, err), err);
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
