/* Draws answers: masks first, then boxes and key points, labels on top. Each class has a colour;
 * lines and letters grow with the photo. */
#include "server/answers/annotate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "server/image/encode.h"
#include "server/schedule/runtime/image_answer.h"

#define MASK_OPACITY 0.45f

/* Key points with a lower score are not drawn. */
#define POINT_SCORE 0.5f

enum { LABEL_TEXT = 240 };

/* The photo to draw on. */
struct annotation {
    struct canvas canvas;
    const struct model *model;
    const struct predict_request *request;
    float line, letter; /* thickness of lines, height of capitals; pixels */
};

size_t annotate_bytes(const struct predict_image *image)
{
    /* The decoded photo, the turned one and the encoded one take up to three bytes per pixel each.
     */
    return (size_t)image->width * image->height * 9;
}

/* Appends "dog 88 %" to `text`, after ": " if there is text already. */
static void add_label(char text[static LABEL_TEXT], const char *label, size_t index, float share)
{
    if (label)
        text_append(text, LABEL_TEXT, ": ", "%.100s", label);
    else
        text_append(text, LABEL_TEXT, ": ", "class %zu", index);
    text_append(text, LABEL_TEXT, " ", "%.0f %%", (double)share * 100);
}

static void write_label(const struct annotation *a, size_t index, float share,
                        char ret[static LABEL_TEXT])
{
    ret[0] = '\0';
    add_label(ret, predict_class_name(a->request, index), index, share);
}

/* Draws white letters on a field of `colour`, whose lower left corner is (x, y). Moves the field
 * into the photo if necessary. Returns the height of the field. */
static float draw_label(const struct annotation *a, float x, float y, const char *text,
                        struct rgb_colour colour)
{
    const float pad = a->letter * 0.4f, height = a->letter + 2 * pad;
    const float width = draw_text_width(text, a->letter) + 2 * pad;
    x = fmaxf(fminf(x, (float)a->canvas.width - width), 0);
    y = fmaxf(y, height);
    draw_fill(&a->canvas, x, y - height, x + width, y, colour);
    draw_text(&a->canvas, x + pad, y - height + pad, a->letter, text, DRAW_WHITE);
    return height;
}

static void draw_mask(const struct annotation *a, const struct segment *mask)
{
    struct mask_reader reader = {.at = mask->counts};
    const struct rgb_colour colour = draw_colour(mask->index);
    const uint32_t height = a->canvas.height;
    uint64_t at = 0;
    uint32_t length;
    for (bool inside; mask_next(&reader, &length, &inside); at += length) {
        for (uint64_t from = at; inside && from < at + length;) {
            const uint64_t end = (from / height + 1) * height;
            const uint64_t count = (end < at + length ? end : at + length) - from;
            draw_column(&a->canvas, (uint32_t)(from / height), (uint32_t)(from % height),
                        (uint32_t)count, MASK_OPACITY, colour);
            from += count;
        }
    }
}

/* Returns the corners of box i; for a box of text, those of the quadrilateral around the text. */
static void outline_of(const struct annotation *a, const struct detections *found, size_t i,
                       float ret[static 4][2])
{
    if (a->model->task.kind != TASK_TEXT_BOXES) {
        detection_corners(&found->items[i], ret);
        return;
    }
    for (size_t k = 0; k < TEXT_CORNERS; k++) {
        ret[k][0] = found->points[i * TEXT_CORNERS + k].x;
        ret[k][1] = found->points[i * TEXT_CORNERS + k].y;
    }
}

static void draw_outline(const struct annotation *a, const struct detections *found, size_t box)
{
    float corners[4][2];
    outline_of(a, found, box, corners);
    for (int i = 0; i < 4; i++)
        draw_line(&a->canvas, corners[i][0], corners[i][1], corners[(i + 1) % 4][0],
                  corners[(i + 1) % 4][1], a->line, draw_colour(found->items[box].index));
}

/* Limbs between COCO's 17 key points. */
static const uint8_t limbs[][2] = {{0, 1},   {0, 2},   {1, 3},   {2, 4},  {5, 6},  {5, 7},
                                   {7, 9},   {6, 8},   {8, 10},  {5, 11}, {6, 12}, {11, 12},
                                   {11, 13}, {13, 15}, {12, 14}, {14, 16}};

static bool is_seen(const struct task_point *point)
{
    return point->score < 0 || point->score >= POINT_SCORE;
}

static void draw_points(const struct annotation *a, const struct task_point *points, size_t count,
                        struct rgb_colour colour)
{
    for (size_t i = 0; count == 17 && i < COUNT_OF(limbs); i++) {
        const struct task_point *from = &points[limbs[i][0]], *to = &points[limbs[i][1]];
        if (is_seen(from) && is_seen(to))
            draw_line(&a->canvas, from->x, from->y, to->x, to->y, a->line, colour);
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_seen(&points[i]))
            continue;
        draw_line(&a->canvas, points[i].x, points[i].y, points[i].x, points[i].y, a->line * 3.2f,
                  DRAW_WHITE);
        draw_line(&a->canvas, points[i].x, points[i].y, points[i].x, points[i].y, a->line * 2.4f,
                  colour);
    }
}

/* Adds the best class, or the text, that the next stage of a pipeline found in a box. */
static void add_crop(const struct predict_image *crop, char text[static LABEL_TEXT])
{
    if (crop->prediction_count) {
        const struct prediction *best = &crop->predictions[0];
        add_label(text, best->label, best->index, best->probability);
        return;
    }
    const struct text_reading *line = &crop->answer.text;
    for (size_t i = 0; i < line->count && strlen(text) < LABEL_TEXT - 16; i++) {
        const char *character =
            labels_name(&crop->request->used_model->labels, line->characters[i]);
        text_append(text, LABEL_TEXT, i ? "" : ": ", "%.8s", character ? character : " ");
    }
}

static void draw_boxes(const struct annotation *a, const struct predict_image *image)
{
    const struct detections *found = &image->answer.detections;
    char text[LABEL_TEXT];
    for (size_t i = 0; i < found->count; i++)
        if (found->items[i].mask.counts)
            draw_mask(a, &found->items[i].mask);
    for (size_t i = found->count; i-- > 0;) { /* the best boxes on top */
        draw_outline(a, found, i);
        if (a->model->task.kind == TASK_POSE)
            draw_points(a, found->points + i * found->point_count, found->point_count,
                        draw_colour(found->items[i].index));
    }
    /* Boxes of text get no labels, which would hide the text. */
    for (size_t i = a->model->task.kind == TASK_TEXT_BOXES ? 0 : found->count; i-- > 0;) {
        const struct detection *box = &found->items[i];
        write_label(a, box->index, box->score, text);
        if (box->track_id)
            text_append(text, LABEL_TEXT, " ", "#%u", box->track_id);
        if (image->crops && image->crops[i] && image->crops[i]->status == STATUS_OK)
            add_crop(image->crops[i], text);
        float corners[4][2], *highest = corners[2]; /* the label stands above this corner */
        outline_of(a, found, i, corners);
        for (int k = 0; k < 4; k++)
            highest = corners[k][1] < highest[1] ? corners[k] : highest;
        draw_label(a, highest[0] - a->line / 2, highest[1], text, draw_colour(box->index));
    }
}

static bool is_background(const struct annotation *a, uint32_t index)
{
    const char *label = labels_name(&a->model->labels, index);
    return label && strcasestr(label, "background") != NULL;
}

/* Draws areas in the colours of their classes, and a list of the classes, except the background. */
static void draw_areas(const struct annotation *a, const struct segments *found)
{
    const double pixels = (double)a->canvas.width * a->canvas.height;
    char text[LABEL_TEXT];
    float y = 0;
    for (size_t i = 0; i < found->count; i++)
        if (!is_background(a, found->items[i].index))
            draw_mask(a, &found->items[i]);
    for (size_t i = 0; i < found->count && y < (float)a->canvas.height; i++) {
        if (is_background(a, found->items[i].index))
            continue;
        write_label(a, found->items[i].index, (float)((double)found->items[i].area / pixels), text);
        y += draw_label(a, 0, y + 2 * a->letter, text, draw_colour(found->items[i].index));
    }
}

static void draw_classes(const struct annotation *a, const struct predict_image *image)
{
    char text[LABEL_TEXT];
    float y = 0;
    for (size_t i = 0; i < image->prediction_count && y < (float)a->canvas.height; i++) {
        const struct prediction *found = &image->predictions[i];
        write_label(a, found->index, found->probability, text);
        y += draw_label(a, 0, y + 2 * a->letter, text, draw_colour((uint32_t)found->index));
    }
}

/* Replaces the photo by a grey image of the depth. */
static enum status draw_depth(const struct annotation *a, const struct depth *depth,
                              struct error *err)
{
    uint16_t *pixels;
    float least, greatest;
    TRY(depth_render(depth, &pixels, &least, &greatest, err));
    for (size_t y = 0; y < a->canvas.height; y++)
        for (size_t x = 0; x < a->canvas.width; x++)
            memset(a->canvas.pixels + y * a->canvas.stride + 3 * x,
                   pixels[y * a->canvas.width + x] >> 8, 3);
    free(pixels);
    return STATUS_OK;
}

static enum status draw_answer(const struct annotation *a, const struct predict_image *image,
                               struct error *err)
{
    const enum task_kind kind = a->model->task.kind;
    if (kind == TASK_DEPTH)
        return draw_depth(a, &image->answer.depth, err);
    if (kind == TASK_TEXT || kind == TASK_EMBEDDING || kind == TASK_UNKNOWN)
        return error_set(err, STATUS_INVALID,
                         "a picture cannot show the answers of model '%s', which are %s; ask for "
                         "JSON",
                         a->model->name, kind == TASK_TEXT ? "texts" : "vectors");
    if (task_has_boxes(kind))
        draw_boxes(a, image);
    else if (kind == TASK_SEGMENTATION || kind == TASK_ANOMALY)
        draw_areas(a, &image->answer.segments);
    else
        draw_classes(a, image);
    return STATUS_OK;
}

enum status annotate_image(const struct predict_image *image, enum annotate_format format,
                           uint8_t **ret, size_t *ret_size, struct error *err)
{
    /* No limits are needed: the photo was decoded within the limits before. */
    const struct image_limits none = {0};
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct image photo;
    enum status status =
        decoder ? image_decode(decoder, image->data, image->size, &none, NULL, false, &photo, err)
                : error_no_memory(err, "for a photo");
    if (status == STATUS_OK) {
        const float side = (float)(photo.width > photo.height ? photo.width : photo.height);
        const struct annotation a = {
            .canvas = {image_pixels(decoder), photo.stride, photo.width, photo.height},
            .model = image->request->used_model,
            .request = image->request,
            .line = fmaxf(side / 300, 1.5f),
            .letter = fmaxf(side / 60, 8)};
        status = draw_answer(&a, image, err);
        IF_OK(status, format == ANNOTATE_JPEG
                          ? image_encode_jpeg(&a.canvas, ret, ret_size, err)
                          : image_encode_png(PNG_KIND_RGB8, a.canvas.pixels, a.canvas.width,
                                             a.canvas.height, ret, ret_size, err));
    }
    image_decoder_free(decoder);
    return status;
}
