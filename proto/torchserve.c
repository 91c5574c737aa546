/* TorchServe's handlers: {label: probability, …} for an image; a class without a label, or with a
 * repeated one, is named by its index. A detector answers [{label: [x1, y1, x2, y2], "score"}, …],
 * an embedding its numbers, several images a list of these and of {"error", "code"}. Source:
 * ts/torch_handler of pytorch/serve. Requests have /predict's form. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"

static bool has_key(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key) != NULL;
}

/* Writes the boxes of TorchServe's object_detector: [{"person": [x1, y1, x2, y2], "score": 0.99}].
 * */
static void write_named_boxes(struct writer *w, cJSON *list, const struct answer_image *image)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        char number[24];
        snprintf(number, sizeof number, "%zu", prediction->index);
        cJSON *entry = write_object(w, list, NULL);
        cJSON *box = write_array(w, entry,
                                 prediction->label && *prediction->label &&
                                         strcmp(prediction->label, "score") != 0
                                     ? prediction->label
                                     : number);
        for (int k = 0; k < 4; k++)
            write_decimal(w, box, NULL, (double)prediction->box[k]);
        write_float(w, entry, "score", prediction->probability);
    }
}

static void write_labels(struct writer *w, cJSON *object, const struct answer_image *image)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        char number[24];
        snprintf(number, sizeof number, "%zu", prediction->index);
        const char *label = prediction->label;
        if (!label || !*label || has_key(object, label))
            label = number;
        write_float(w, object, label, prediction->probability);
    }
}

/* Adds the answer for one image to `root`, a list. */
static void write_torchserve(struct writer *w, cJSON *root, const struct answer_image *image)
{
    if (image->error) {
        cJSON *object = write_object(w, root, NULL);
        write_text(w, object, "error", image->error);
        write_text(w, object, "code", image->code);
    } else if (image->embedding) {
        cJSON *list = write_array(w, root, NULL);
        for (size_t i = 0; i < image->embedding_count; i++)
            write_float(w, list, NULL, image->embedding[i]);
    } else if (image->text) {
        cJSON *object = write_object(w, root, NULL);
        write_text(w, object, "text", image->text);
        write_float(w, object, "score", image->text_score);
    } else if (image->kind == ANSWER_BOXES) {
        write_named_boxes(w, write_array(w, root, NULL), image);
    } else {
        write_labels(w, write_object(w, root, NULL), image);
    }
}

static char *torchserve_write(const struct predict_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateArray();
    for (size_t i = 0; i < answer->image_count; i++)
        write_torchserve(&w, root, &answer->images[i]);
    if (!answer->as_list) {
        cJSON *only = cJSON_DetachItemFromArray(root, 0);
        cJSON_Delete(root);
        root = only;
    }
    return write_finish(&w, root, ret_size);
}

/* object_detector's threshold */
static const struct dialect_default defaults[] = {{"confidence", "0.5"}};

const struct dialect dialect_torchserve = {.name = "TorchServe",
                                           .defaults = defaults,
                                           .default_count = COUNT_OF(defaults),
                                           .kinds = ~0u,
                                           .write = torchserve_write};
