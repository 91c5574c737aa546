/* The API of DOODS, which Home Assistant's integration of that name uses. Corners are fractions of
 * the picture's sides, scores are percentages, and each label may have a threshold. Source:
 * odrpc.py, doods.py of snowzach/doods2; pydoods. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "proto/dialects.h"
#include "proto/writer.h"

#define EVERY_LABEL "*"

/* ---- requests ---- */

/* Lowers *least to the lowest threshold of {label: percentage, …}. */
static enum status read_thresholds(const cJSON *detect, double *least, struct error *err)
{
    const cJSON *entry;
    if (detect && !cJSON_IsNull(detect) && !cJSON_IsObject(detect))
        return error_set(err, STATUS_INVALID,
                         "\"detect\" must be an object with percentages: {\"person\": 60}");
    cJSON_ArrayForEach(entry, detect)
    {
        if (!cJSON_IsNumber(entry) || !(entry->valuedouble >= 0 && entry->valuedouble <= 100))
            return error_set(err, STATUS_INVALID,
                             "the threshold of \"%.40s\" must be a percentage from 0 to 100",
                             entry->string);
        *least = fmin(*least, entry->valuedouble);
    }
    return STATUS_OK;
}

static const char *const sides[] = {"left", "top", "right", "bottom"};

static enum status read_regions(const cJSON *regions, double *least, struct error *err)
{
    const cJSON *region;
    cJSON_ArrayForEach(region, regions)
    {
        for (size_t i = 0; i < 4; i++)
            if (!cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(region, sides[i])))
                return error_set(err, STATUS_INVALID,
                                 "a region must have the number \"%s\", a share of the picture's "
                                 "side",
                                 sides[i]);
        TRY(read_thresholds(cJSON_GetObjectItemCaseSensitive(region, "detect"), least, err));
    }
    return STATUS_OK;
}

static enum status doods_find(cJSON *root, struct predict_json *ret, struct error *err)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(root, "detector_name");
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "image"));
    const char *refused = NULL;
    double least = 100;
    if (cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "preprocess")))
        refused = "preprocess";
    if (text && *text)
        refused = "image";
    if (refused)
        return error_set(err, STATUS_INVALID,
                         "\"%s\" is not supported; POST /predict?format=image returns the picture "
                         "with the boxes drawn on it",
                         refused);
    text = cJSON_GetStringValue(name);
    if (text && (!*text || !strcmp(text, "default")))
        cJSON_DeleteItemFromObjectCaseSensitive(root, "detector_name");
    TRY(read_thresholds(cJSON_GetObjectItemCaseSensitive(root, "detect"), &least, err));
    TRY(read_regions(cJSON_GetObjectItemCaseSensitive(root, "regions"), &least, err));
    /* Boxes must exceed "confidence". doods_write() then compares each with the threshold of its
     * label. */
    cJSON_DeleteItemFromObjectCaseSensitive(root, "confidence");
    TRY(check_memory(cJSON_AddNumberToObject(root, "confidence", fmax(least / 100 - 1e-6, 0)),
                     "for a request", err));
    return dialect_add_pictures(cJSON_GetObjectItemCaseSensitive(root, "data"), ret, err);
}

/* ---- answers ---- */

static bool passes(const cJSON *detect, const char *label, float percent)
{
    const cJSON *least = cJSON_GetObjectItemCaseSensitive(detect, label);
    if (!least)
        least = cJSON_GetObjectItemCaseSensitive(detect, EVERY_LABEL);
    return least && percent >= (float)least->valuedouble;
}

/* True if the region contains the box or, without "covers", touches it. */
static bool is_in_region(const cJSON *region, const double *box)
{
    double of[4];
    for (size_t i = 0; i < 4; i++)
        of[i] = cJSON_GetObjectItemCaseSensitive(region, sides[i])->valuedouble;
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(region, "covers")))
        return of[0] <= box[0] && of[1] <= box[1] && of[2] >= box[2] && of[3] >= box[3];
    return box[0] <= of[2] && box[1] <= of[3] && box[2] >= of[0] && box[3] >= of[1];
}

static bool is_asked_for(const cJSON *request, const char *label, float percent, const double *box)
{
    const cJSON *region;
    if (passes(cJSON_GetObjectItemCaseSensitive(request, "detect"), label, percent))
        return true;
    cJSON_ArrayForEach(region, cJSON_GetObjectItemCaseSensitive(request, "regions"))
    {
        if (is_in_region(region, box) &&
            passes(cJSON_GetObjectItemCaseSensitive(region, "detect"), label, percent))
            return true;
    }
    return false;
}

static void doods_write(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    const double side[] = {image->width, image->height};
    write_members(w, w->root, "id=%s",
                  cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(answer->request, "id")));
    json_node *list = write_array(w, w->root, "detections");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        const float percent = found->probability * 100;
        const char *label = LABEL_STRING(found);
        double box[4];
        for (size_t k = 0; k < 4; k++)
            box[k] = fmin(fmax((double)found->box[k] / side[k % 2], 0), 1);
        if (is_asked_for(answer->request, label, percent, box))
            write_members(w, list, "{top=%g left=%g bottom=%g right=%g label=%s confidence=%g}",
                          box[1], box[0], box[3], box[2], label, (double)percent);
    }
}

static const struct dialect_parameter parameters[] = {{"confidence", "confidence", false}, {0}};

const struct dialect dialect_doods = {.name = "DOODS",
                                      .parameters = parameters,
                                      .kinds = 1u << ANSWER_BOXES,
                                      .takes = "a detector",
                                      .is_single = true,
                                      .model = "detector_name",
                                      .find = doods_find,
                                      .write = doods_write};
