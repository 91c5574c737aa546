/* Files beside a model: labels, preprocessing, pipeline.json. The first byte picks the reader.
 * Whatever comes is refused with a sentence, or gives labels that are all there and UTF-8, or a
 * preprocessing whose sizes are positive. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "models/folder/labels.h"
#include "models/folder/model_internal.h"
#include "models/folder/pipeline_config.h"
#include "models/folder/preprocess_config.h"
#include "tests/fuzz/target.h"

static void check_labels(enum status status, struct labels *labels, const struct error *err)
{
    HOLDS(status == STATUS_OK || *err->message);
    HOLDS(labels->count <= LABELS_MAX);
    for (size_t i = 0; i < labels->count; i++)
        HOLDS(utf8_valid(labels->names[i], strlen(labels->names[i])));
    labels_done(labels);
}

static void check_preprocess(enum status status, struct preprocess *p, const struct error *err)
{
    if (status != STATUS_OK) {
        HOLDS(*err->message);
        return;
    }
    char text[256];
    HOLDS((p->width > 0 && p->height > 0) || (p->width == 0 && p->height == 0));
    preprocess_fit(p, 299, 300);
    HOLDS(p->width == 299 && p->height == 300);
    if (preprocess_check(p, NULL) == STATUS_OK)
        preprocess_describe(p, text, sizeof text);
}

/* Parses the text and passes it to the reader of JSON with this number. */
static void read_json(int reader, const char *text, size_t size)
{
    struct error err = {0};
    struct labels labels = {0};
    struct preprocess p = {0};
    char remarks[PREPROCESS_REMARKS] = "";
    struct pipeline_config config;
    cJSON *json;
    if (json_parse(text, size, &json, &err) != STATUS_OK) {
        HOLDS(*err.message);
        return;
    }
    switch (reader) {
    case 1:
        check_labels(labels_from_json(json, &labels, &err), &labels, &err);
        break;
    case 3:
        check_preprocess(preprocess_from_huggingface(json, &p, remarks, &err), &p, &err);
        HOLDS(strlen(remarks) < sizeof remarks);
        break;
    case 4:
        check_preprocess(preprocess_from_timm(json, &p, remarks, &err), &p, &err);
        break;
    default:
        if (pipeline_config_parse(json, &config, &err) != STATUS_OK) {
            HOLDS(*err.message);
            break;
        }
        HOLDS(config.stage_count >= 2 && config.stage_count <= PIPELINE_STAGES_MAX);
        for (size_t i = 0; i < config.stage_count; i++) {
            const struct pipeline_stage *stage = &config.stages[i];
            HOLDS(stage->model[0] && !strchr(stage->model, '/'));
            HOLDS(stage->max >= 1 && stage->max <= STAGE_CROPS_MAX);
            HOLDS(stage->margin >= 0 && stage->margin <= 1);
            HOLDS(!pipeline_stage_size(stage, i > 0, 640, 480) == !stage->size_count);
        }
    }
    cJSON_Delete(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct error err = {0};
    struct labels labels = {0};
    struct preprocess p = {0};
    char *text = malloc(size); /* terminated, as files are read */
    HOLDS(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    size_t length = size - 1;
    switch (data[0] % 8) {
    case 0:
        check_labels(labels_from_text(text, length, &labels, &err), &labels, &err);
        break;
    case 1:
    case 3:
    case 4:
    case 7:
        read_json(data[0] % 8, text, length);
        break;
    case 2:
        check_labels(labels_from_python(text, &labels, &err), &labels, &err);
        break;
    case 5:
        check_preprocess(preprocess_from_metadata(text, "classify", &p, &err), &p, &err);
        break;
    default: {
        struct triton_config config;
        if (triton_config_read(text, length, &config, &err) == STATUS_OK) {
            HOLDS(config.max_batch >= 0);
            HOLDS(!config.label_file || !strchr(config.label_file, '/'));
        }
    }
    }
    free(text);
    return 0;
}
