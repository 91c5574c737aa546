/* DeepStack's detection, which CodeProject.AI and camera systems (Frigate, Blue Iris) use. Boxes
 * are in whole pixels, best first: Frigate stops at the first one below its threshold. Source:
 * frigate/detectors/plugins/deepstack.py; CodeProject.AI's API reference. */
#include <cjson/cJSON.h>
#include <math.h>

#include "proto/dialects.h"
#include "proto/writer.h"

static char *deepstack_write(const struct predict_answer *answer, size_t *ret_size)
{
    const struct answer_image *image = &answer->images[0];
    struct writer w = {false};
    json_node *root = write_root();
    write_members(&w, root, "success=%hhd", true);
    cJSON *list = write_array(&w, root, "predictions");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        const float *box = found->box;
        char number[24];
        write_members(&w, list, "{label=%s confidence=%g x_min=%ld y_min=%ld x_max=%ld y_max=%ld}",
                      answer_label(found, number), (double)found->probability, lrintf(box[0]),
                      lrintf(box[1]), lrintf(box[2]), lrintf(box[3]));
    }
    write_members(&w, root, "count=%zu inferenceMs=%.3f processMs=%.3f code=%d",
                  image->prediction_count, image->forward_ms, answer->total_ms, 200);
    return write_finish(&w, root, ret_size);
}

static char *deepstack_error(int http, const char *sentence, const char *code, size_t *ret_size)
{
    (void)code;
    return write_document(ret_size, "success=%hhd error=%s code=%d", false, sentence, http);
}

char *deepstack_models_json(const struct dialect_model *models, size_t count, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_members(&w, root, "success=%hhd", true);
    cJSON *list = write_array(&w, root, "models");
    for (size_t i = 0; i < count; i++)
        write_text(&w, list, NULL, models[i].name);
    return write_finish(&w, root, ret_size);
}

static const struct dialect_parameter parameters[] = {{"min_confidence", "confidence", false}, {0}};
static const struct dialect_default defaults[] = {{"confidence", "0.4"}, {0}};

const struct dialect dialect_deepstack = {.name = "DeepStack",
                                          .parameters = parameters,
                                          .defaults = defaults,
                                          .kinds = 1u << ANSWER_BOXES,
                                          .takes = "a detector",
                                          .is_single = true,
                                          .images = "image",
                                          .write = deepstack_write,
                                          .write_error = deepstack_error};
