/* Hugging Face's task APIs, for InferenceClient of huggingface_hub: image classification, object
 * detection, image segmentation. The model determines the task. Source:
 * huggingface_hub/inference/_generated/types. Errors are lensd's own: {"error", "code"}. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

#include "proto/dialects.h"
#include "proto/writer.h"

static void write_found(struct writer *w, cJSON *entry, const struct answer_prediction *found,
                        const struct answer_image *image)
{
    const float *box = found->box;
    char number[32];
    snprintf(number, sizeof number, "LABEL_%zu", found->index);
    /* A semantic segmenter has no score: NAN is written as null. */
    write_members(w, entry, "label=%s score=%g", found->label ? found->label : number,
                  image->kind == ANSWER_AREAS ? NAN : (double)found->probability);
    if (image->kind != ANSWER_CLASSES && found->mask)
        write_text(w, entry, "mask", found->mask->png ? found->mask->png : "");
    else if (image->kind == ANSWER_BOXES)
        write_members(w, entry, "box{xmin=%ld ymin=%ld xmax=%ld ymax=%ld}", lrintf(box[0]),
                      lrintf(box[1]), lrintf(box[2]), lrintf(box[3]));
}

static void hugging_face_write(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    json_node *list = write_root_list(w);
    for (size_t i = 0; i < image->prediction_count; i++)
        write_found(w, write_object(w, list, NULL), &image->predictions[i], image);
}

static const struct dialect_parameter parameters[] = {{"threshold", "confidence", false},
                                                      {"top_k", "top_k", false},
                                                      {"candidate_labels", "labels", false},
                                                      {"hypothesis_template", "prompt", false},
                                                      {0}};
static const struct dialect_default defaults[] = {
    {"confidence", "0.5"}, {"top_k", "5"}, {"masks", "png"}, {0}};

const struct dialect dialect_hugging_face = {.name = "Hugging Face",
                                             .parameters = parameters,
                                             .defaults = defaults,
                                             .kinds = 1u << ANSWER_CLASSES | 1u << ANSWER_BOXES |
                                                      1u << ANSWER_AREAS,
                                             .takes = "a classifier, a detector or a segmenter",
                                             .is_base64 = true,
                                             .is_single = true,
                                             .has_whole_mask = true,
                                             .nested = "parameters",
                                             .images = "inputs",
                                             .write = hugging_face_write};
