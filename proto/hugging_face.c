/* Hugging Face's task APIs, for InferenceClient of huggingface_hub: image classification, object
 * detection, image segmentation. The model determines the task. Source:
 * huggingface_hub/inference/_generated/types. Errors are lensd's own: {"error", "code"}. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"

static enum status hugging_face_find(cJSON *root, struct dialect_pictures *ret, struct error *err)
{
    return dialect_add_pictures(cJSON_GetObjectItemCaseSensitive(root, "inputs"), ret, err);
}

static void write_found(struct writer *w, cJSON *entry, const struct answer_prediction *found,
                        const struct answer_image *image)
{
    static const char *const sides[] = {"xmin", "ymin", "xmax", "ymax"};
    char number[24];
    snprintf(number, sizeof number, "LABEL_%zu", found->index);
    write_text(w, entry, "label", found->label ? found->label : number);
    /* A semantic segmenter has no score: NAN is written as null. */
    write_float(w, entry, "score", image->kind == ANSWER_AREAS ? NAN : found->probability);
    if (image->kind != ANSWER_CLASSES && found->mask) {
        write_text(w, entry, "mask", found->mask->png ? found->mask->png : "");
    } else if (image->kind == ANSWER_BOXES) {
        cJSON *box = write_object(w, entry, "box");
        for (int k = 0; k < 4; k++)
            write_count(w, box, sides[k], (unsigned long long)lrintf(found->box[k]));
    }
}

static char *hugging_face_write(const struct predict_answer *answer, size_t *ret_size)
{
    const struct answer_image *image = &answer->images[0];
    struct writer w = {false};
    cJSON *root = cJSON_CreateArray();
    for (size_t i = 0; i < image->prediction_count; i++)
        write_found(&w, write_object(&w, root, NULL), &image->predictions[i], image);
    return write_finish(&w, root, ret_size);
}

static const struct dialect_parameter parameters[] = {{"threshold", "confidence", false},
                                                      {"top_k", "top_k", false}};
static const struct dialect_default defaults[] = {
    {"confidence", "0.5"}, {"top_k", "5"}, {"masks", "png"}};

const struct dialect dialect_hugging_face = {.name = "Hugging Face",
                                             .parameters = parameters,
                                             .parameter_count = COUNT_OF(parameters),
                                             .defaults = defaults,
                                             .default_count = COUNT_OF(defaults),
                                             .kinds = 1u << ANSWER_CLASSES | 1u << ANSWER_BOXES |
                                                      1u << ANSWER_AREAS,
                                             .takes = "a classifier, a detector or a segmenter",
                                             .is_base64 = true,
                                             .is_single = true,
                                             .has_whole_mask = true,
                                             .nested = "parameters",
                                             .find = hugging_face_find,
                                             .write = hugging_face_write,
                                             .write_error = NULL};
