/* DeepStack's detection, which CodeProject.AI and camera systems (Frigate, Blue Iris) use. Boxes
 * are in whole pixels, best first: Frigate stops at the first one below its threshold. Source:
 * frigate/detectors/plugins/deepstack.py; CodeProject.AI's API reference. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"

static enum status deepstack_find(cJSON *root, struct dialect_pictures *ret, struct error *err)
{
    return dialect_add_pictures(cJSON_GetObjectItemCaseSensitive(root, "image"), ret, err);
}

static char *deepstack_write(const struct predict_answer *answer, size_t *ret_size)
{
    static const char *const sides[] = {"x_min", "y_min", "x_max", "y_max"};
    const struct answer_image *image = &answer->images[0];
    struct writer w = {false};
    json_node *root = write_root();
    write_bool(&w, root, "success", true);
    cJSON *list = write_array(&w, root, "predictions");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        char number[24];
        snprintf(number, sizeof number, "%zu", found->index);
        cJSON *entry = write_object(&w, list, NULL);
        write_text(&w, entry, "label", found->label ? found->label : number);
        write_float(&w, entry, "confidence", found->probability);
        for (int k = 0; k < 4; k++)
            write_count(&w, entry, sides[k], (unsigned long long)lrintf(found->box[k]));
    }
    write_count(&w, root, "count", image->prediction_count);
    write_decimal(&w, root, "inferenceMs", image->forward_ms);
    write_decimal(&w, root, "processMs", answer->total_ms);
    write_count(&w, root, "code", 200);
    return write_finish(&w, root, ret_size);
}

static char *deepstack_error(int http, const char *sentence, const char *code, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    (void)code;
    write_bool(&w, root, "success", false);
    write_text(&w, root, "error", sentence);
    write_count(&w, root, "code", (unsigned long long)http);
    return write_finish(&w, root, ret_size);
}

char *deepstack_models_json(const struct dialect_model *models, size_t count, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_bool(&w, root, "success", true);
    cJSON *list = write_array(&w, root, "models");
    for (size_t i = 0; i < count; i++)
        write_text(&w, list, NULL, models[i].name);
    return write_finish(&w, root, ret_size);
}

static const struct dialect_parameter parameters[] = {{"min_confidence", "confidence", false}};
static const struct dialect_default defaults[] = {{"confidence", "0.4"}};

const struct dialect dialect_deepstack = {.name = "DeepStack",
                                          .parameters = parameters,
                                          .parameter_count = COUNT_OF(parameters),
                                          .defaults = defaults,
                                          .default_count = COUNT_OF(defaults),
                                          .kinds = 1u << ANSWER_BOXES,
                                          .takes = "a detector",
                                          .is_single = true,
                                          .find = deepstack_find,
                                          .write = deepstack_write,
                                          .write_error = deepstack_error};
