/* Writes predictions as JSON, text and numbers. */
#include "server/answers/describe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/arena.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "proto/answers.h"
#include "proto/base64.h"
#include "server/image/encode.h"
#include "server/image/image.h"
#include "server/schedule/runtime/image_answer.h"

/* ---- predictions ---- */

/* Returns the number format in which a device computes; NULL if unknown. */
static const char *precision_on(const struct model_status *model, struct device_id device)
{
    for (size_t i = 0; model && i < model->lane_count; i++)
        if (device_equal(model->lanes[i].device, device))
            return precision_name(model->lanes[i].precision);
    return NULL;
}

/* Memory that lives as long as the description of a request. */
struct described {
    struct arena *arena;
    struct owned {
        void *memory; /* malloc'ed */
        struct owned *next;
    } * owned;
};

/* Makes the description own `memory`. Returns false if `memory` is NULL, or when out of memory;
 * then `memory` has been freed. */
static bool own(struct described *described, void *memory)
{
    struct owned *owned = memory ? arena_alloc(described->arena, 1, sizeof *owned) : NULL;
    if (!owned) {
        free(memory);
        return false;
    }
    *owned = (struct owned){memory, described->owned};
    described->owned = owned;
    return true;
}

static void described_done(struct described *described)
{
    for (struct owned *owned = described->owned; owned; owned = owned->next)
        free(owned->memory);
    arena_free(described->arena);
}

static void describe_oriented(const struct detection *box, const struct predict_image *image,
                              struct answer_oriented *oriented, struct answer_prediction *ret)
{
    const float sides[] = {(float)image->width, (float)image->height};
    *oriented = (struct answer_oriented){.x = (box->x1 + box->x2) / 2,
                                         .y = (box->y1 + box->y2) / 2,
                                         .width = box->x2 - box->x1,
                                         .height = box->y2 - box->y1,
                                         .angle = box->angle};
    detection_corners(box, oriented->corners);
    /* ret->box is the box around the corners, clipped to the photo. */
    for (int k = 0; k < 2; k++) {
        float least = oriented->corners[0][k], most = least;
        for (int i = 1; i < 4; i++) {
            least = fminf(least, oriented->corners[i][k]);
            most = fmaxf(most, oriented->corners[i][k]);
        }
        ret->box[k] = fminf(fmaxf(least, 0), sides[k]);
        ret->box[2 + k] = fminf(fmaxf(most, 0), sides[k]);
    }
    ret->oriented = oriented;
}

/* Enlarges the bitmap of a part of the picture to the whole picture, `width` x `height`. When out
 * of memory, frees the pixels and returns false. */
static bool mask_whole(struct mask_bitmap *bitmap, uint32_t width, uint32_t height)
{
    size_t bytes;
    uint8_t *pixels = size_mul(width, height, &bytes) ? calloc(bytes, 1) : NULL;
    for (uint32_t y = 0; pixels && y < bitmap->height; y++)
        memcpy(pixels + (size_t)(bitmap->top + y) * width + bitmap->left,
               bitmap->pixels + (size_t)y * bitmap->width, bitmap->width);
    free(bitmap->pixels);
    *bitmap = (struct mask_bitmap){.width = width, .height = height, .pixels = pixels};
    return pixels != NULL;
}

/* Returns the bitmap as PNG in base64; NULL when out of memory. */
static char *mask_png(struct mask_bitmap *bitmap)
{
    struct error ignored;
    uint8_t *bytes;
    size_t size;
    if (image_encode_png(PNG_KIND_GREY1, bitmap->pixels, bitmap->width, bitmap->height, &bytes,
                         &size, &ignored) != STATUS_OK)
        return NULL;
    char *text = base64_text(bytes, size);
    free(bytes);
    return text;
}

/* How masks are written. */
struct mask_how {
    enum mask_form form;
    bool is_whole;                     /* the PNG has the picture's size, not the mask's */
    const struct describe_how *pixels; /* adds pixels to polygons, if take() allows; or NULL */
};

/* Adds the pixels of a mask, and takes ownership of them, also on failure. Returns false when out
 * of memory, or if how->take refused. */
static bool describe_pixels(const struct mask_bitmap *bitmap, const struct describe_how *how,
                            struct described *described, struct answer_mask *ret)
{
    /* Each pixel and each row end takes one byte in the bitmap, two in the JSON text, and two in
     * each of the text's two copies. */
    const size_t bytes = 7 * ((size_t)bitmap->width + 1) * bitmap->height;
    if (how->take && how->take(how->context, bytes, how->err) != STATUS_OK) {
        free(bitmap->pixels);
        return false;
    }
    ret->left = bitmap->left;
    ret->top = bitmap->top;
    ret->width = bitmap->width;
    ret->height = bitmap->height;
    ret->pixels = bitmap->pixels;
    return own(described, bitmap->pixels);
}

/* Returns false when out of memory, or if how->pixels->take() refused. */
static bool describe_mask(const struct segment *segment, const struct mask_how *how,
                          const struct predict_image *image, struct described *described,
                          const struct answer_mask **ret_mask)
{
    struct mask_bitmap bitmap;
    struct mask_polygons polygons = {0};
    struct answer_mask *ret = arena_alloc(described->arena, 1, sizeof *ret);
    if (!ret)
        return false;
    *ret_mask = ret;
    ret->area = segment->area;
    if (how->form <= MASK_FORM_RLE) {
        ret->counts = segment->counts;
        return true;
    }
    if (mask_bitmap_of(segment->counts, image->height, &bitmap, NULL) != STATUS_OK)
        return false;
    bool is_done = true;
    if (how->is_whole && !mask_whole(&bitmap, image->width, image->height))
        return false;
    if (how->form == MASK_FORM_POLYGON || (segment->area == 0 && !how->is_whole)) {
        is_done = mask_polygons_of(&bitmap, &polygons, NULL) == STATUS_OK;
        ret->points = polygons.points;
        ret->ends = polygons.ends;
        ret->polygons = polygons.polygons;
        const bool has_points = !polygons.points || own(described, polygons.points);
        const bool has_ends = !polygons.ends || own(described, polygons.ends);
        is_done = is_done && has_points && has_ends;
        if (is_done && how->pixels && segment->area > 0)
            return describe_pixels(&bitmap, how->pixels, described, ret);
    } else {
        char *png = mask_png(&bitmap);
        ret->png = png;
        ret->left = bitmap.left;
        ret->top = bitmap.top;
        ret->width = bitmap.width;
        ret->height = bitmap.height;
        is_done = own(described, png);
    }
    free(bitmap.pixels);
    return is_done;
}

static bool describe_image(const struct predict_image *image, const struct describe_how *how,
                           struct described *described, struct answer_image *ret);

/* Describes box i, and its crop by describe_image(). Calls nest as deep as stages do. */
static bool describe_box(const struct predict_image *image, const struct model *model, size_t i,
                         const struct mask_how *how, struct described *described,
                         struct answer_prediction *ret)
{
    const struct detections *found = &image->answer.detections;
    const struct detection *box = &found->items[i];
    struct answer_point *points = arena_alloc(described->arena, found->point_count, sizeof *points);
    struct answer_oriented *oriented = arena_alloc(described->arena, 1, sizeof *oriented);
    if (!points || !oriented)
        return false;
    *ret = (struct answer_prediction){.label = predict_class_name(image->request, box->index),
                                      .index = box->index,
                                      .probability = box->score,
                                      .box = {box->x1, box->y1, box->x2, box->y2},
                                      .track_id = box->track_id,
                                      .points = points,
                                      .point_count = found->point_count,
                                      .are_corners = model->task.kind == TASK_TEXT_BOXES};
    if (model->task.kind == TASK_ORIENTED)
        describe_oriented(box, image, oriented, ret);
    for (size_t k = 0; k < found->point_count; k++) {
        const struct task_point *point = &found->points[i * found->point_count + k];
        points[k] = (struct answer_point){
            labels_name(&model->point_names, k), fminf(fmaxf(point->x, 0), (float)image->width),
            fminf(fmaxf(point->y, 0), (float)image->height), point->score};
    }
    if (box->mask.counts && !describe_mask(&box->mask, how, image, described, &ret->mask))
        return false;
    if (!image->crops || !image->crops[i])
        return true;
    struct answer_image *crop = arena_alloc(described->arena, 1, sizeof *crop);
    ret->crop = crop;
    return crop && describe_image(image->crops[i], NULL, described, crop);
}

static bool describe_area(const struct predict_image *image, const struct model *model, size_t i,
                          const struct mask_how *how, struct described *described,
                          struct answer_prediction *ret)
{
    const struct segment *segment = &image->answer.segments.items[i];
    const double pixels = (double)image->width * (double)image->height;
    *ret = (struct answer_prediction){.label = labels_name(&model->labels, segment->index),
                                      .index = segment->index,
                                      .probability = (float)((double)segment->area / pixels)};
    return describe_mask(segment, how, image, described, &ret->mask);
}

/* Returns false when out of memory. */
static bool describe_depth(const struct depth *depth, struct described *described,
                           struct answer_image *ret)
{
    uint16_t *pixels = NULL;
    uint8_t *bytes = NULL;
    char *text = NULL;
    size_t size;
    if (!depth->values)
        return true;
    if (depth_render(depth, &pixels, &ret->depth_least, &ret->depth_greatest, NULL) == STATUS_OK &&
        image_encode_png(PNG_KIND_GREY16, pixels, ret->width, ret->height, &bytes, &size, NULL) ==
            STATUS_OK)
        text = base64_text(bytes, size);
    FREE_ALL(pixels, bytes);
    ret->depth = text;
    return own(described, text);
}

/* Describes an anomaly as a prediction with its score, and the mask of the anomalous area. Returns
 * false if describe_mask() does so. */
static bool describe_anomaly(const struct predict_image *image, const struct mask_how *how,
                             struct described *described, struct answer_prediction *ret)
{
    const struct anomaly *anomaly = &image->answer.anomaly;
    const struct segments *areas = &image->answer.segments;
    *ret = (struct answer_prediction){.label = anomaly->is_anomalous ? "anomalous" : "normal",
                                      .index = anomaly->is_anomalous,
                                      .probability = anomaly->score};
    return !areas->count || describe_mask(&areas->items[0], how, image, described, &ret->mask);
}

static void put_line(FILE *out, const struct predict_image *line)
{
    const struct text_reading *read = &line->answer.text;
    for (size_t i = 0; i < read->count; i++) {
        const char *character =
            labels_name(&line->request->used_model->labels, read->characters[i]);
        fputs(character ? character : " ", out);
    }
}

char *describe_text(const struct predict_image *image)
{
    const struct detections *found = &image->answer.detections;
    const struct detection *before = NULL;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (out)
        put_line(out, image);
    for (size_t i = 0; out && image->crops && i < found->count; i++) {
        const struct predict_image *crop = image->crops[i];
        if (!crop || crop->answer.text.count == 0)
            continue;
        fputs(before ? text_separator(before, &found->items[i]) : "", out);
        put_line(out, crop);
        before = &found->items[i];
    }
    return text_close(out, &text);
}

/* Returns the form of masks that the request asks for, or else the model's options. */
static enum mask_form mask_form_of(const struct predict_request *request)
{
    const enum mask_form asked = request->options ? request->options->masks : MASK_FORM_NONE;
    const struct model *model = request->used_model;
    return asked != MASK_FORM_NONE || !model ? asked : model->task.options.masks;
}

enum answer_kind describe_kind(const struct predict_request *request)
{
    const enum task_kind kind = request->texts ? TASK_ZERO_SHOT : request->used_model->task.kind;
    return task_has_boxes(kind)        ? ANSWER_BOXES
           : kind == TASK_SEGMENTATION ? ANSWER_AREAS
           : kind == TASK_EMBEDDING    ? ANSWER_EMBEDDING
           : kind == TASK_DEPTH        ? ANSWER_DEPTH
           : kind == TASK_ANOMALY      ? ANSWER_ANOMALY
                                       : ANSWER_CLASSES;
}

/* Returns false when out of memory, or if how->take() refused. */
static bool describe_image(const struct predict_image *image, const struct describe_how *how,
                           struct described *described, struct answer_image *ret)
{
    const struct dialect *dialect = how ? how->answer.dialect : NULL;
    const bool is_anomaly = image->answer.anomaly.is_set;
    const size_t boxes = image->answer.detections.count;
    const size_t areas = is_anomaly ? 0 : image->answer.segments.count;
    const size_t classes = image->prediction_count, count = classes + boxes + areas + is_anomaly;
    struct answer_prediction *predictions =
        arena_alloc(described->arena, count, sizeof *predictions);
    char *device = arena_alloc(described->arena, DEVICE_TEXT, 1);
    if (!predictions || !device)
        return false;
    *ret = (struct answer_image){.name = image->name,
                                 .device = device_text(image->times.device, device),
                                 .precision =
                                     precision_on(how ? how->status : NULL, image->times.device),
                                 .width = image->width,
                                 .height = image->height,
                                 .predictions = predictions,
                                 .prediction_count = count,
                                 .embedding = image->answer.embedding.values,
                                 .embedding_count = image->answer.embedding.count,
                                 .frame = image->frame,
                                 .batch = image->times.batch,
                                 .decode_ms = image->times.decode_ms,
                                 .preprocess_ms = image->times.preprocess_ms,
                                 .queue_ms = image->times.queue_ms,
                                 .forward_ms = image->times.forward_ms};
    if (image->status != STATUS_OK) {
        ret->error = image->error.message;
        ret->code = status_word(image->status);
        return true;
    }
    for (size_t i = 0; i < classes; i++)
        *predictions++ =
            (struct answer_prediction){.label = image->predictions[i].label,
                                       .index = image->predictions[i].index,
                                       .probability = image->predictions[i].probability};
    const struct model *used = image->request->used_model;
    const struct mask_how masks = {mask_form_of(image->request), dialect && dialect->has_whole_mask,
                                   dialect && dialect->has_pixels ? how : NULL};
    ret->kind = describe_kind(image->request);
    for (size_t i = 0; i < boxes; i++)
        if (!describe_box(image, used, i, &masks, described, predictions++))
            return false;
    for (size_t i = 0; i < areas; i++)
        if (!describe_area(image, used, i, &masks, described, predictions++))
            return false;
    if (is_anomaly && !describe_anomaly(image, &masks, described, predictions))
        return false;
    if ((used->task.kind != TASK_TEXT_BOXES || !image->crops) && !image->answer.text.is_read)
        return describe_depth(&image->answer.depth, described, ret);
    char *read = describe_text(image);
    ret->text = read;
    ret->text_score = image->answer.text.score;
    return own(described, read);
}

char *describe_predictions(const struct predict_request *request, const struct describe_how *how,
                           size_t *ret_size)
{
    const size_t count = request->image_count;
    struct described described = {.arena = arena_create(0)};
    struct answer_image *images =
        described.arena ? arena_alloc(described.arena, count, sizeof *images) : NULL;
    bool has_room = images != NULL;
    char *text = NULL;
    for (size_t i = 0; has_room && i < count; i++)
        has_room = describe_image(&request->images[i], how, &described, &images[i]);
    if (has_room) {
        struct predict_answer answer = how->answer;
        answer.images = images;
        answer.image_count = count;
        answer.when = time(NULL);
        if (!answer.model)
            answer.model = request->used_model ? request->used_model->name : "";
        text = how->form == DESCRIBE_LINES     ? predict_answer_lines(&answer)
               : how->form == DESCRIBE_NUMBERS ? predict_answer_numbers(&answer, ret_size)
                                               : predict_answer_json(&answer);
    }
    described_done(&described);
    if (text && ret_size && how->form != DESCRIBE_NUMBERS)
        *ret_size = strlen(text);
    return text;
}

bool describe_is_slow(const struct predict_request *request)
{
    const enum task_kind kind = request->used_model ? request->used_model->task.kind : TASK_UNKNOWN;
    if (request->wants_picture || kind == TASK_DEPTH || kind == TASK_ANOMALY ||
        (request->options && request->options->track))
        return true;
    if (mask_form_of(request) <= MASK_FORM_RLE)
        return false;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct task_answer *answer = &request->images[i].answer;
        if (answer->segments.count ||
            (answer->detections.count && answer->detections.items[0].mask.counts))
            return true;
    }
    return false;
}
