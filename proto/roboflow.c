/* Roboflow Inference: boxes by their centres, outlines of masks, key points, classes. Source:
 * inference/core/entities of roboflow/inference 1.x. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "proto/dialects.h"
#include "proto/writer.h"

static enum status roboflow_find(cJSON *root, struct predict_json *ret, struct error *err)
{
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "visualize_predictions")))
        return error_set(
            err, STATUS_INVALID,
            "\"visualize_predictions\" is not supported; POST /MODEL/VERSION?format=image returns "
            "the image with the predictions drawn on it");
    return dialect_add_pictures(cJSON_GetObjectItemCaseSensitive(root, "image"), ret, err);
}

static void write_outline(struct writer *w, cJSON *entry, const struct answer_mask *mask)
{
    size_t best = 0, begin = 0, end = 0;
    for (size_t i = 0, at = 0; i < mask->polygons; at = mask->ends[i++]) {
        if (mask->ends[i] - at <= best)
            continue;
        best = mask->ends[i] - at;
        begin = at;
        end = mask->ends[i];
    }
    cJSON *points = write_array(w, entry, "points");
    for (; begin + 1 < end; begin += 2)
        write_members(w, points, "{x=%u y=%u}", mask->points[begin], mask->points[begin + 1]);
}

static void write_keypoints(struct writer *w, cJSON *entry, const struct answer_prediction *box)
{
    cJSON *list = write_array(w, entry, "keypoints");
    for (size_t i = 0; i < box->point_count; i++) {
        const struct answer_point *point = &box->points[i];
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        write_members(w, list, "{x=%.3f y=%.3f confidence=%g class_id=%zu class=%s}",
                      (double)point->x, (double)point->y,
                      point->score >= 0 ? (double)point->score : 1, i,
                      point->name ? point->name : number);
    }
}

static void write_class(struct writer *w, cJSON *entry, const struct answer_prediction *found)
{
    write_members(w, entry, "confidence=%g class=%s class_id=%zu", (double)found->probability,
                  LABEL_STRING(found), found->index);
}

static void write_box(struct writer *w, cJSON *entry, const struct answer_prediction *found,
                      const char *id, size_t place)
{
    const float *box = found->box;
    char text[160];
    write_members(w, entry, "x=%.3f y=%.3f width=%.3f height=%.3f", (double)(box[0] + box[2]) / 2,
                  (double)(box[1] + box[3]) / 2, (double)(box[2] - box[0]),
                  (double)(box[3] - box[1]));
    write_class(w, entry, found);
    snprintf(text, sizeof text, "%s-%zu", id, place);
    write_text(w, entry, "detection_id", text);
    if (found->mask)
        write_outline(w, entry, found->mask);
    if (found->point_count)
        write_keypoints(w, entry, found);
}

static void write_image(struct writer *w, cJSON *object, const struct answer_image *image,
                        const struct predict_answer *answer)
{
    if (image->error) { /* an image of a list failed */
        write_members(w, object, "message=%s code=%s", image->error, image->code);
        return;
    }
    write_members(w, object, "inference_id=%s time=%.3f image{width=%u height=%u}", answer->id,
                  answer->total_ms / 1000, image->width, image->height);
    cJSON *list = write_array(w, object, "predictions");
    for (size_t i = 0; i < image->prediction_count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        if (image->kind == ANSWER_BOXES)
            write_box(w, entry, &image->predictions[i], answer->id, i);
        else
            write_class(w, entry, &image->predictions[i]);
    }
    if (image->kind == ANSWER_CLASSES && image->prediction_count) {
        const struct answer_prediction *best = &image->predictions[0];
        write_members(w, object, "top=%s confidence=%g", LABEL_STRING(best),
                      (double)best->probability);
    }
}

static void roboflow_write(struct writer *w, const struct predict_answer *answer)
{
    for (size_t i = 0; i < answer->image_count; i++)
        write_image(w, answer->as_list ? write_object(w, write_root_list(w), NULL) : w->root,
                    &answer->images[i], answer);
}

static char *roboflow_error(int http, const char *sentence, const char *code)
{
    (void)http;
    return write_document("message=%s code=%s", sentence, code);
}

static const struct dialect_parameter parameters[] = {{"confidence", "confidence", true},
                                                      {"overlap", "iou", true},
                                                      {"iou_threshold", "iou", true},
                                                      {"max_detections", "max_detections", false},
                                                      {"class_filter", "classes", false},
                                                      {"class_agnostic_nms", "agnostic", false},
                                                      {"classes", "classes", false},
                                                      {"format", "format", false},
                                                      {0}};
static const struct dialect_default defaults[] = {
    {"confidence", "0.4"}, {"iou", "0.3"}, {"masks", "polygon"}, {0}};

const struct dialect dialect_roboflow = {.name = "Roboflow Inference",
                                         .parameters = parameters,
                                         .defaults = defaults,
                                         .kinds = 1u << ANSWER_CLASSES | 1u << ANSWER_BOXES,
                                         .takes = "a classifier or a detector",
                                         .is_base64 = true,
                                         .has_id = true,
                                         .model = "model_id",
                                         .find = roboflow_find,
                                         .write = roboflow_write,
                                         .write_error = roboflow_error};
