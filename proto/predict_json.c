/* The JSON of /predict: parses a request's images and options, writes results and errors. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/answers.h"
#include "proto/picture_text.h"
#include "proto/predict_json.h"
#include "proto/writer.h"

/* ---- answers ---- */

char *error_json(const char *sentence, const char *code, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "error", sentence);
    write_text(&w, root, "code", code);
    return write_finish(&w, root, ret_size);
}

char *status_word_json(const char *word, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "status", word);
    return write_finish(&w, root, ret_size);
}

static void write_oriented(struct writer *w, cJSON *entry, const struct answer_oriented *oriented)
{
    cJSON *object = write_object(w, entry, "oriented_box");
    write_decimal(w, object, "x", (double)oriented->x);
    write_decimal(w, object, "y", (double)oriented->y);
    write_decimal(w, object, "width", (double)oriented->width);
    write_decimal(w, object, "height", (double)oriented->height);
    write_float(w, object, "angle", oriented->angle);
    cJSON *corners = write_array(w, object, "corners");
    for (int i = 0; i < 4; i++) {
        cJSON *corner = write_array(w, corners, NULL);
        write_decimal(w, corner, NULL, (double)oriented->corners[i][0]);
        write_decimal(w, corner, NULL, (double)oriented->corners[i][1]);
    }
}

static void write_corners(struct writer *w, cJSON *entry, const struct answer_prediction *box)
{
    cJSON *list = write_array(w, entry, "corners");
    for (size_t i = 0; i < box->point_count; i++) {
        cJSON *corner = write_array(w, list, NULL);
        write_decimal(w, corner, NULL, (double)box->points[i].x);
        write_decimal(w, corner, NULL, (double)box->points[i].y);
    }
}

static void write_points(struct writer *w, cJSON *entry, const struct answer_prediction *box)
{
    cJSON *list = write_array(w, entry, "keypoints");
    for (size_t i = 0; i < box->point_count; i++) {
        const struct answer_point *point = &box->points[i];
        cJSON *object = write_object(w, list, NULL);
        if (point->name)
            write_text(w, object, "name", point->name);
        write_decimal(w, object, "x", (double)point->x);
        write_decimal(w, object, "y", (double)point->y);
        if (point->score >= 0)
            write_float(w, object, "score", point->score);
    }
}

static void write_rle(struct writer *w, cJSON *entry, const char *counts,
                      const struct answer_image *image)
{
    cJSON *rle = write_object(w, entry, "rle");
    cJSON *size = write_array(w, rle, "size");
    write_count(w, size, NULL, image->height);
    write_count(w, size, NULL, image->width);
    write_text(w, rle, "counts", counts);
}

static void write_polygons(struct writer *w, cJSON *entry, const struct answer_mask *mask)
{
    cJSON *list = write_array(w, entry, "polygons");
    for (size_t i = 0, at = 0; i < mask->polygons; i++) {
        cJSON *points = write_array(w, list, NULL);
        for (; at < mask->ends[i]; at++)
            write_count(w, points, NULL, mask->points[at]);
    }
}

static void write_mask(struct writer *w, cJSON *entry, const struct answer_mask *mask,
                       const struct answer_image *image)
{
    write_count(w, entry, "area", mask->area);
    if (mask->counts) {
        write_rle(w, entry, mask->counts, image);
    } else if (mask->png) {
        cJSON *png = write_object(w, entry, "png");
        write_count(w, png, "x", mask->left);
        write_count(w, png, "y", mask->top);
        write_count(w, png, "width", mask->width);
        write_count(w, png, "height", mask->height);
        write_text(w, png, "data", mask->png);
    } else {
        write_polygons(w, entry, mask);
    }
}

static void write_box(struct writer *w, cJSON *entry, const struct answer_prediction *prediction,
                      const struct answer_image *image)
{
    static const char *const corners[] = {"x1", "y1", "x2", "y2"};
    cJSON *box = write_object(w, entry, "box");
    for (int k = 0; k < 4; k++)
        write_decimal(w, box, corners[k], (double)prediction->box[k]);
    if (prediction->oriented)
        write_oriented(w, entry, prediction->oriented);
    if (prediction->are_corners)
        write_corners(w, entry, prediction);
    else if (prediction->point_count)
        write_points(w, entry, prediction);
    if (prediction->mask)
        write_mask(w, entry, prediction->mask, image);
}

static void write_crop(struct writer *w, cJSON *entry, const struct answer_image *crop);

static void write_predictions(struct writer *w, cJSON *object, const struct answer_image *image)
{
    cJSON *list = write_array(w, object, "predictions");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        cJSON *entry = write_object(w, list, NULL);
        if (prediction->label)
            write_text(w, entry, "label", prediction->label);
        write_count(w, entry, "index", prediction->index);
        write_float(w, entry, image->kind == ANSWER_BOXES ? "score" : "probability",
                    prediction->probability);
        if (image->kind == ANSWER_BOXES)
            write_box(w, entry, prediction, image);
        if (prediction->crop)
            write_crop(w, entry, prediction->crop);
    }
}

static void write_embedding(struct writer *w, cJSON *object, const struct answer_image *image)
{
    cJSON *list = write_array(w, object, "embedding");
    for (size_t i = 0; i < image->embedding_count; i++)
        write_float(w, list, NULL, image->embedding[i]);
}

static void write_areas(struct writer *w, cJSON *object, const struct answer_image *image)
{
    cJSON *list = write_array(w, object, "segments");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *area = &image->predictions[i];
        cJSON *entry = write_object(w, list, NULL);
        if (area->label)
            write_text(w, entry, "label", area->label);
        write_count(w, entry, "index", area->index);
        write_mask(w, entry, area->mask, image);
    }
}

static void write_depth(struct writer *w, cJSON *object, const struct answer_image *image)
{
    cJSON *depth = write_object(w, object, "depth");
    write_float(w, depth, "min", image->depth_least);
    write_float(w, depth, "max", image->depth_greatest);
    write_text(w, depth, "png", image->depth);
}

static void write_line(struct writer *w, cJSON *object, const struct answer_image *image)
{
    write_text(w, object, "text", image->text);
    write_float(w, object, "score", image->text_score);
}

static void write_answer(struct writer *w, cJSON *object, const struct answer_image *image)
{
    if (image->embedding)
        write_embedding(w, object, image);
    else if (image->depth)
        write_depth(w, object, image);
    else if (image->text)
        write_line(w, object, image);
    else if (image->kind == ANSWER_AREAS)
        write_areas(w, object, image);
    else
        write_predictions(w, object, image);
    cJSON *size = write_object(w, object, "image");
    write_count(w, size, "width", image->width);
    write_count(w, size, "height", image->height);
}

/* Crops may have boxes with crops, as many levels as a pipeline has stages. */
static void write_crop(struct writer *w, cJSON *entry, const struct answer_image *crop)
{
    cJSON *object = write_object(w, entry, "crop");
    if (!crop->error) {
        write_answer(w, object, crop);
        return;
    }
    write_text(w, object, "error", crop->error);
    write_text(w, object, "code", crop->code);
}

/* `total_ms` < 0: the time belongs to the request, not to this image. */
static void write_result(struct writer *w, cJSON *object, const struct answer_image *image,
                         double total_ms)
{
    write_text(w, object, "device", image->device);
    if (image->precision)
        write_text(w, object, "precision", image->precision);
    write_answer(w, object, image);
    write_count(w, object, "batch", (unsigned long long)image->batch);
    cJSON *timing = write_object(w, object, "timing_ms");
    write_decimal(w, timing, "decode", image->decode_ms);
    write_decimal(w, timing, "preprocess", image->preprocess_ms);
    write_decimal(w, timing, "queue", image->queue_ms);
    write_decimal(w, timing, "forward", image->forward_ms);
    if (total_ms >= 0)
        write_decimal(w, timing, "total", total_ms);
}

static void write_results(struct writer *w, cJSON *root, const struct predict_answer *answer)
{
    /* Images of one request may run on several devices: the answer names the first, and each result
     * its own. */
    for (size_t i = 0; i < answer->image_count; i++) {
        if (answer->images[i].error)
            continue;
        write_text(w, root, "device", answer->images[i].device);
        break;
    }
    cJSON *list = write_array(w, root, "results");
    for (size_t i = 0; i < answer->image_count; i++) {
        const struct answer_image *image = &answer->images[i];
        cJSON *entry = write_object(w, list, NULL);
        if (image->name)
            write_text(w, entry, "name", image->name);
        if (image->error) {
            write_text(w, entry, "error", image->error);
            write_text(w, entry, "code", image->code);
        } else {
            write_result(w, entry, image, -1);
        }
    }
    cJSON *timing = write_object(w, root, "timing_ms");
    write_decimal(w, timing, "total", answer->total_ms);
}

char *predict_answer_json(const struct predict_answer *answer, size_t *ret_size)
{
    if (!answer->as_list && answer->images[0].error)
        return error_json(answer->images[0].error, answer->images[0].code, ret_size);
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "model", answer->model);
    if (answer->as_list)
        write_results(&w, root, answer);
    else
        write_result(&w, root, &answer->images[0], answer->total_ms);
    return write_finish(&w, root, ret_size);
}

/* ---- the request ---- */

/* Reads an image object {"b64": "…", "name": "…"}; decodes its text in place. */
static enum status read_image(cJSON *object, const char *where, struct predict_json_image *ret,
                              struct error *err)
{
    if (!cJSON_IsObject(object))
        return error_set(err, STATUS_INVALID,
                         "%s must be an object with the image as base64: {\"b64\": \"…\"}", where);
    cJSON *data = NULL, *name = NULL;
    for (cJSON *member = object->child; member; member = member->next) {
        if (!strcmp(member->string, "b64"))
            data = member;
        else if (!strcmp(member->string, "name"))
            name = member;
        else
            return error_set(err, STATUS_INVALID,
                             "unknown member \"%.40s\" in %s; it takes \"b64\" and \"name\"",
                             member->string, where);
    }
    if (!cJSON_IsString(data))
        return error_set(err, STATUS_INVALID, "%s lacks the text \"b64\": the image as base64",
                         where);
    if (name && !cJSON_IsString(name))
        return error_set(err, STATUS_INVALID, "\"name\" in %s must be a string", where);
    ret->name = name ? name->valuestring : NULL;
    /* Malformed base64 is an error of this image alone. */
    if (picture_text_decode(data->valuestring, strlen(data->valuestring), &ret->data, &ret->size,
                            &ret->error) != STATUS_OK)
        ret->data = NULL;
    return STATUS_OK;
}

static enum status read_images(cJSON *member, const struct predict_json_limits *limits,
                               struct predict_json *request, struct error *err)
{
    if (request->images)
        return error_set(err, STATUS_INVALID,
                         "the request has several members of images; send one \"image\", or one "
                         "\"images\"");
    request->as_list = !strcmp(member->string, "images");
    size_t count = 1;
    if (request->as_list) {
        if (!cJSON_IsArray(member) || !member->child)
            return error_set(err, STATUS_INVALID,
                             "\"images\" must be a list of one or more objects {\"b64\": \"…\"}");
        count = (size_t)cJSON_GetArraySize(member);
    }
    if (count > limits->max_images)
        return error_set(err, STATUS_TOO_LARGE,
                         "%zu images in one request; the limit is %zu (--max-images)", count,
                         limits->max_images);
    request->images = alloc_array(count, sizeof *request->images);
    if (!request->images)
        return error_no_memory(err, "for the images of a request");
    request->image_count = count;
    if (!request->as_list)
        return read_image(member, "\"image\"", &request->images[0], err);
    size_t i = 0;
    for (cJSON *entry = member->child; entry; entry = entry->next, i++)
        TRY(read_image(entry, "an entry of \"images\"", &request->images[i], err));
    return STATUS_OK;
}

static enum status read_top_k(const cJSON *member, int max, struct predict_json *request,
                              struct error *err)
{
    double value = cJSON_IsNumber(member) ? member->valuedouble : 0;
    if (!(value >= 1 && value <= max) || floor(value) != value)
        return error_set(err, STATUS_INVALID, "\"top_k\" must be a whole number from 1 to %d", max);
    request->top_k = (int)value;
    return STATUS_OK;
}

/* Writes a value as the text of a query parameter. Returns false if it has another type or memory
 * runs out. */
static bool put_parameter(FILE *out, const cJSON *value)
{
    if (cJSON_IsString(value))
        return fputs(value->valuestring, out) >= 0;
    if (cJSON_IsBool(value))
        return fputs(cJSON_IsTrue(value) ? "true" : "false", out) >= 0;
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        return false;
    const bool is_whole = floor(value->valuedouble) >= value->valuedouble;
    return fprintf(out, is_whole ? "%.0f" : "%.9f", value->valuedouble) >= 0;
}

enum status predict_json_parameter(const cJSON *member, struct predict_json *request,
                                   struct error *err)
{
    if (!request->parameters)
        request->parameters = alloc_array(PREDICT_JSON_PARAMETERS, sizeof *request->parameters);
    if (request->parameter_count == PREDICT_JSON_PARAMETERS)
        return error_set(err, STATUS_INVALID, "the request has more than %d parameters",
                         PREDICT_JSON_PARAMETERS);
    char *text = NULL;
    size_t size;
    FILE *out = request->parameters ? open_memstream(&text, &size) : NULL;
    if (!out)
        return error_no_memory(err, "for a JSON request");
    bool is_value = true;
    if (!cJSON_IsArray(member))
        is_value = put_parameter(out, member);
    for (const cJSON *entry = cJSON_IsArray(member) ? member->child : NULL; entry && is_value;
         entry = entry->next) {
        is_value = !cJSON_IsBool(entry) && put_parameter(out, entry);
        if (entry->next)
            fputc(',', out);
    }
    if (fclose(out) != 0 || !is_value) {
        free(text);
        return error_set(
            err, STATUS_INVALID,
            "\"%.40s\" must be a string, a number, true, false, or a list of strings and "
            "numbers",
            member->string);
    }
    request->parameters[request->parameter_count++] =
        (struct predict_json_parameter){member->string, text};
    return STATUS_OK;
}

static enum status read_request(cJSON *root, const struct predict_json_limits *limits,
                                struct predict_json *request, struct error *err)
{
    static const char form[] =
        "{\"image\": {\"b64\": \"…\"}} or {\"images\": [{\"b64\": \"…\"}, …]}";
    if (!cJSON_IsObject(root))
        return error_set(err, STATUS_INVALID, "a JSON request must be an object: %s", form);
    for (cJSON *member = root->child; member; member = member->next) {
        if (!strcmp(member->string, "image") || !strcmp(member->string, "images")) {
            TRY(read_images(member, limits, request, err));
        } else if (!strcmp(member->string, "top_k")) {
            TRY(read_top_k(member, limits->max_top_k, request, err));
        } else if (!strcmp(member->string, "model")) {
            if (!cJSON_IsString(member))
                return error_set(err, STATUS_INVALID, "\"model\" must be a string");
            request->model = member->valuestring;
        } else {
            TRY(predict_json_parameter(member, request, err));
        }
    }
    if (!request->images)
        return error_set(err, STATUS_INVALID, "the request has no image: send %s", form);
    return STATUS_OK;
}

enum status predict_json_tree(const char *text, size_t size,
                              const struct predict_json_limits *limits, struct predict_json **ret,
                              cJSON **ret_root, struct error *err)
{
    TRY(json_check(text, size, &limits->json, err));
    struct predict_json *request = calloc(1, sizeof *request);
    cJSON *root = request ? cJSON_ParseWithLength(text, size) : NULL;
    if (!root) {
        free(request);
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a JSON request of %zu bytes",
                         size);
    }
    request->tree = root;
    *ret = request;
    *ret_root = root;
    return STATUS_OK;
}

enum status predict_json_parse(const char *text, size_t size,
                               const struct predict_json_limits *limits, struct predict_json **ret,
                               struct error *err)
{
    struct predict_json *request;
    cJSON *root;
    TRY(predict_json_tree(text, size, limits, &request, &root, err));
    enum status status = read_request(root, limits, request, err);
    if (status != STATUS_OK) {
        predict_json_free(request);
        return status;
    }
    *ret = request;
    return STATUS_OK;
}

void predict_json_free(struct predict_json *request)
{
    if (!request)
        return;
    cJSON_Delete(request->tree);
    for (size_t i = 0; i < request->parameter_count; i++)
        free(request->parameters[i].text);
    free(request->parameters);
    free(request->images);
    free(request);
}
