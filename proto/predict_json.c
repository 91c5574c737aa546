/* Writes the JSON of /predict: results and errors. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "proto/dialects.h"
#include "proto/writer.h"

char *error_json(const char *sentence, const char *code)
{
    return write_document("error=%s code=%s", sentence, code);
}

const char *answer_label(const struct answer_prediction *prediction, char room[static 24])
{
    if (prediction->label)
        return prediction->label;
    snprintf(room, 24, "%zu", prediction->index);
    return room;
}

static void write_oriented(struct writer *w, cJSON *entry, const struct answer_oriented *box)
{
    cJSON *object = write_object(w, entry, "oriented_box");
    write_members(w, object, "x=%.3f y=%.3f width=%.3f height=%.3f angle=%g", (double)box->x,
                  (double)box->y, (double)box->width, (double)box->height, (double)box->angle);
    cJSON *corners = write_array(w, object, "corners");
    for (int i = 0; i < 4; i++)
        write_members(w, corners, "[%.3f %.3f]", (double)box->corners[i][0],
                      (double)box->corners[i][1]);
}

static void write_points(struct writer *w, cJSON *entry, const struct answer_prediction *box)
{
    cJSON *list = write_array(w, entry, box->are_corners ? "corners" : "keypoints");
    for (size_t i = 0; i < box->point_count; i++) {
        const struct answer_point *point = &box->points[i];
        const double x = (double)point->x, y = (double)point->y, score = (double)point->score;
        if (box->are_corners)
            write_members(w, list, "[%.3f %.3f]", x, y);
        else if (score >= 0)
            write_members(w, list, "{name=%s x=%.3f y=%.3f score=%g}", point->name, x, y, score);
        else
            write_members(w, list, "{name=%s x=%.3f y=%.3f}", point->name, x, y);
    }
}

static void write_polygons(struct writer *w, cJSON *entry, const struct answer_mask *mask)
{
    cJSON *list = write_array(w, entry, "polygons");
    for (size_t i = 0, at = 0; i < mask->polygons; i++) {
        cJSON *points = write_array(w, list, NULL);
        for (; at < mask->ends[i]; at++)
            write_members(w, points, "%u", mask->points[at]);
    }
}

static void write_mask(struct writer *w, cJSON *entry, const struct answer_mask *mask,
                       const struct answer_image *image)
{
    write_members(w, entry, "area=%lu", mask->area);
    if (mask->counts)
        write_members(w, entry, "rle{size[%u %u] counts=%s}", image->height, image->width,
                      mask->counts);
    else if (mask->png)
        write_members(w, entry, "png{x=%u y=%u width=%u height=%u data=%s}", mask->left, mask->top,
                      mask->width, mask->height, mask->png);
    else
        write_polygons(w, entry, mask);
}

static void write_box(struct writer *w, cJSON *entry, const struct answer_prediction *prediction,
                      const struct answer_image *image)
{
    const float *box = prediction->box;
    write_members(w, entry, "track_id?=%u box{x1=%.3f y1=%.3f x2=%.3f y2=%.3f}",
                  prediction->track_id, (double)box[0], (double)box[1], (double)box[2],
                  (double)box[3]);
    if (prediction->oriented)
        write_oriented(w, entry, prediction->oriented);
    if (prediction->are_corners || prediction->point_count)
        write_points(w, entry, prediction);
    if (prediction->mask)
        write_mask(w, entry, prediction->mask, image);
}

static void write_crop(struct writer *w, cJSON *entry, const struct answer_image *crop);

/* The areas of a segmenter are written as "segments" and have no score. */
static void write_predictions(struct writer *w, cJSON *object, const struct answer_image *image)
{
    const bool is_box = image->kind == ANSWER_BOXES, is_area = image->kind == ANSWER_AREAS;
    cJSON *list = write_array(w, object, is_area ? "segments" : "predictions");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        cJSON *entry = write_object(w, list, NULL);
        write_members(w, entry, "label=%s index=%zu", prediction->label, prediction->index);
        if (is_area) {
            write_mask(w, entry, prediction->mask, image);
            continue;
        }
        write_float(w, entry, is_box ? "score" : "probability", prediction->probability);
        if (is_box)
            write_box(w, entry, prediction, image);
        if (prediction->crop)
            write_crop(w, entry, prediction->crop);
    }
}

static void write_anomaly(struct writer *w, cJSON *object, const struct answer_image *image)
{
    const struct answer_prediction *found = &image->predictions[0];
    cJSON *anomaly = write_object(w, object, "anomaly");
    write_float(w, anomaly, "score", found->probability);
    write_members(w, anomaly, "anomalous=%hhd", found->index != 0);
    if (found->mask)
        write_mask(w, write_object(w, object, "mask"), found->mask, image);
}

static void write_answer(struct writer *w, cJSON *object, const struct answer_image *image)
{
    const bool is_anomaly = image->kind == ANSWER_ANOMALY;
    if (is_anomaly)
        write_anomaly(w, object, image);
    if (image->embedding)
        write_floats(w, object, "embedding", image->embedding, image->embedding_count);
    else if (image->depth)
        write_members(w, write_object(w, object, is_anomaly ? "map" : "depth"),
                      "min=%g max=%g png=%s", (double)image->depth_least,
                      (double)image->depth_greatest, image->depth);
    else if (image->text && image->kind != ANSWER_BOXES)
        write_members(w, object, "text=%s score=%g", image->text, (double)image->text_score);
    else if (!is_anomaly)
        write_predictions(w, object, image);
    if (image->kind == ANSWER_BOXES)
        write_members(w, object, "text=%s", image->text);
    write_members(w, object, "frame?=%lu image{width=%u height=%u}", image->frame, image->width,
                  image->height);
}

/* Crops may have boxes with crops, as many levels as a pipeline has stages. */
static void write_crop(struct writer *w, cJSON *entry, const struct answer_image *crop)
{
    cJSON *object = write_object(w, entry, "crop");
    if (crop->error)
        write_members(w, object, "error=%s code=%s", crop->error, crop->code);
    else
        write_answer(w, object, crop);
}

/* `total_ms` < 0: the time belongs to the request, not to this image. */
static void write_result(struct writer *w, cJSON *object, const struct answer_image *image,
                         double total_ms)
{
    write_members(w, object, "device=%s precision=%s", image->device, image->precision);
    write_answer(w, object, image);
    write_members(w, object, "batch=%d", image->batch);
    cJSON *timing = write_object(w, object, "timing_ms");
    write_members(w, timing, "decode=%.3f preprocess=%.3f queue=%.3f forward=%.3f",
                  image->decode_ms, image->preprocess_ms, image->queue_ms, image->forward_ms);
    if (total_ms >= 0)
        write_members(w, timing, "total=%.3f", total_ms);
}

static void write_results(struct writer *w, cJSON *root, const struct predict_answer *answer)
{
    /* Images of one request may run on several devices. The answer names the first one; each result
     * names its own. */
    size_t first = 0;
    while (first < answer->image_count && answer->images[first].error)
        first++;
    if (first < answer->image_count)
        write_text(w, root, "device", answer->images[first].device);
    cJSON *list = write_array(w, root, "results");
    for (size_t i = 0; i < answer->image_count; i++) {
        const struct answer_image *image = &answer->images[i];
        cJSON *entry = write_object(w, list, NULL);
        write_members(w, entry, "name=%s error=%s", image->name, image->error);
        if (image->error)
            write_text(w, entry, "code", image->code);
        else
            write_result(w, entry, image, -1);
    }
    write_members(w, root, "timing_ms{total=%.3f}", answer->total_ms);
}

char *predict_answer_json(const struct predict_answer *answer)
{
    const struct answer_image *first = &answer->images[0];
    struct writer w = {.root = write_root()};
    if (answer->name)
        write_text(&w, w.root, "name", answer->name);
    if (answer->dialect) {
        answer->dialect->write(&w, answer);
    } else if (!answer->as_list && first->error) {
        write_members(&w, w.root, "error=%s code=%s", first->error, first->code);
    } else {
        write_text(&w, w.root, "model", answer->model);
        if (answer->as_list)
            write_results(&w, w.root, answer);
        else
            write_result(&w, w.root, first, answer->total_ms);
    }
    return write_finish(&w);
}
