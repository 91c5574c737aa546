/* TorchServe's handlers: {label: probability, …} for an image; a class without a label of its own
 * is named by its index. A detector answers [{label: [x1, y1, x2, y2], "score"}, …], an embedding
 * its numbers. For several images the answer is a list of these and of {"error", "code"}. Source:
 * ts/torch_handler of pytorch/serve. Requests have /predict's form; for a model of texts the body,
 * or a form's `data`, is a text. */
#include <cjson/cJSON.h>
#include <string.h>

#include "proto/dialects.h"
#include "proto/writer.h"

/* Writes boxes like TorchServe's object_detector: [{"person": [x1, y1, x2, y2], "score": 0.99}]. */
static void write_named_boxes(struct writer *w, cJSON *list, const struct answer_image *image)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        struct answer_prediction found = image->predictions[i];
        if (found.label && (!*found.label || !strcmp(found.label, "score")))
            found.label = NULL;
        cJSON *entry = write_object(w, list, NULL);
        write_members(w, write_array(w, entry, LABEL_STRING(&found)), "%.3f %.3f %.3f %.3f",
                      (double)found.box[0], (double)found.box[1], (double)found.box[2],
                      (double)found.box[3]);
        write_float(w, entry, "score", found.probability);
    }
}

static void write_labels(struct writer *w, cJSON *object, const struct answer_image *image)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        struct answer_prediction found = image->predictions[i];
        if (found.label && (!*found.label || cJSON_GetObjectItemCaseSensitive(object, found.label)))
            found.label = NULL;
        write_float(w, object, LABEL_STRING(&found), found.probability);
    }
}

/* Adds the answer for one image to `root`, a list. */
static void write_torchserve(struct writer *w, cJSON *root, const struct answer_image *image)
{
    if (image->error)
        write_members(w, root, "{error=%s code=%s}", image->error, image->code);
    else if (image->embedding)
        write_floats(w, root, NULL, image->embedding, image->embedding_count);
    else if (image->text)
        write_members(w, root, "{text=%s score=%g}", image->text, (double)image->text_score);
    else if (image->kind == ANSWER_BOXES)
        write_named_boxes(w, write_array(w, root, NULL), image);
    else
        write_labels(w, write_object(w, root, NULL), image);
}

static void torchserve_write(struct writer *w, const struct predict_answer *answer)
{
    for (size_t i = 0; i < answer->image_count; i++)
        write_torchserve(w, write_root_list(w), &answer->images[i]);
    if (!answer->as_list) {
        cJSON *only = cJSON_DetachItemFromArray(w->root, 0);
        cJSON_Delete(w->root);
        w->root = only;
    }
}

/* the threshold of TorchServe's object_detector */
static const struct dialect_default defaults[] = {{"confidence", "0.5"}, {0}};

const struct dialect dialect_torchserve = {.name = "TorchServe",
                                           .defaults = defaults,
                                           .kinds = ~0u,
                                           .text = "data",
                                           .write = torchserve_write};
