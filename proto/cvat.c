/* The API of Nuclio's dashboard, through which CVAT lists functions and runs them to annotate
 * pictures. A mask is a list: the pixels of its bounding box as 0 and 1, then the corners of the
 * box. Source: cvat/apps/lambda_manager/views.py, serverless/ and tools-control.tsx of
 * cvat-ai/cvat. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"

/* ---- functions ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns the labels as JSON, each only once, as CVAT demands; NULL when out of memory. */
static char *spec_of(const struct cvat_function *function)
{
    const char **labels = alloc_array(function->label_count, sizeof *labels);
    struct writer w = {.root = write_root(), .failed = !labels};
    json_node *list = write_root_list(&w);
    size_t count = 0;
    for (size_t i = 0; labels && i < function->label_count; i++)
        if (function->labels[i][0])
            labels[count++] = function->labels[i];
    if (count)
        qsort(labels, count, sizeof *labels, by_text);
    for (size_t i = 0, id = 0; i < count; i++)
        if (!i || strcmp(labels[i - 1], labels[i]) != 0)
            write_members(&w, list, "{id=%zu name=%s type=%s}", id++, labels[i], function->shape);
    free(labels);
    return write_finish(&w);
}

void cvat_write_function(struct writer *w, json_node *node, const struct cvat_function *function)
{
    char *spec = spec_of(function);
    w->failed = w->failed || !spec;
    const char *points = function->takes_points ? "0" : NULL; /* NULL omits a member */
    write_members(w, node,
                  "metadata{name=%s namespace=%s annotations{name=%s type=%s framework=%s spec=%s "
                  "version=%s min_pos_points=%s min_neg_points=%s startswith_box_optional=%s "
                  "help_message=%s}} spec{description=%s} status{state=%s}",
                  function->name, "nuclio", function->name, points ? "interactor" : "detector",
                  "onnx", spec, points ? "2" : NULL,
                  points && !function->takes_boxes ? "1" : points, points,
                  function->takes_boxes ? "true" : NULL,
                  points ? "Click what the mask must cover, and what it must not" : NULL,
                  "served by lensd", "ready");
    free(spec);
}

/* ---- shapes ---- */

/* Writes "[0,1,…,left,top,right,bottom]", or with `by_row` "[[0,1,…],…]", as a text: a tree of
 * numbers would take more memory. */
static void write_pixels(struct writer *w, json_node *entry, const struct answer_mask *mask,
                         bool by_row)
{
    const size_t pixels = (size_t)mask->width * mask->height;
    char *text = malloc(2 * pixels + 2 * (size_t)mask->height + 64);
    size_t used = 0;
    if (text) {
        text[used++] = '[';
        for (size_t i = 0; i < pixels; i++) {
            if (by_row && i % mask->width == 0)
                text[used++] = '[';
            text[used++] = mask->pixels[i] ? '1' : '0';
            if (by_row && (i + 1) % mask->width == 0)
                text[used++] = ']';
            text[used++] = ',';
        }
        if (by_row)
            snprintf(text + used - 1, 2, "]");
        else
            snprintf(text + used, 63, "%u,%u,%u,%u]", mask->left, mask->top,
                     mask->left + mask->width - 1, mask->top + mask->height - 1);
    }
    cJSON *raw = text ? cJSON_CreateRaw(text) : NULL;
    if (!raw || !cJSON_AddItemToObject(entry, "mask", raw)) {
        cJSON_Delete(raw);
        w->failed = true;
    }
    free(text);
}

/* Writes the longest outline, which CVAT uses when it converts masks to polygons. */
static void write_outline(struct writer *w, json_node *entry, const struct answer_mask *mask)
{
    size_t from = 0, size = 0;
    for (size_t i = 0, at = 0; i < mask->polygons; at = mask->ends[i++])
        if (mask->ends[i] - at > size) {
            from = at;
            size = mask->ends[i] - at;
        }
    if (size < 6) /* not even a triangle */
        return;
    json_node *points = write_array(w, entry, "points");
    for (size_t i = 0; i < size; i++)
        write_members(w, points, "%u", mask->points[from + i]);
}

static void write_rectangle(struct writer *w, json_node *entry,
                            const struct answer_prediction *found)
{
    const struct answer_oriented *turned = found->oriented;
    const float *box = found->box;
    if (!turned) {
        write_members(w, entry, "type=%s points[%.3f %.3f %.3f %.3f]", "rectangle", (double)box[0],
                      (double)box[1], (double)box[2], (double)box[3]);
        return;
    }
    const double degrees = fmod((double)turned->angle * 180 / M_PI + 360, 360);
    const double x = (double)turned->x, y = (double)turned->y;
    const double width = (double)turned->width / 2, height = (double)turned->height / 2;
    write_members(w, entry, "type=%s points[%.3f %.3f %.3f %.3f] rotation=%.3f", "rectangle",
                  x - width, y - height, x + width, y + height, degrees);
}

/* True if class i of the picture becomes a tag: its probability is at least the threshold or,
 * without a threshold, it is the best class. */
static bool is_tag(const struct predict_answer *answer, size_t i, float probability)
{
    const cJSON *least = cJSON_GetObjectItemCaseSensitive(answer->request, "threshold");
    return cJSON_IsNumber(least) ? probability >= (float)least->valuedouble : i == 0;
}

/* Writes an interactor's answer, the best mask of a prompt: the rows of its bounding box, and the
 * place of the box. */
static void write_best(struct writer *w, const struct answer_image *image)
{
    static uint8_t nothing;
    static const struct answer_mask none = {.pixels = &nothing, .width = 1, .height = 1};
    const struct answer_mask *mask = image->prediction_count ? image->predictions[0].mask : NULL;
    if (!mask || !mask->pixels)
        mask = &none;
    write_pixels(w, w->root, mask, true);
    write_members(w, write_array(w, w->root, "bounds"), "%u %u %u %u", mask->left, mask->top,
                  mask->left + mask->width - 1, mask->top + mask->height - 1);
}

static void cvat_write(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    if (cJSON_HasObjectItem(answer->request, "pos_points")) {
        write_best(w, image);
        return;
    }
    json_node *list = write_root_list(w);
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        const struct answer_mask *mask = found->mask;
        char score[24];
        if ((mask && !mask->pixels) ||
            (image->kind == ANSWER_CLASSES && !is_tag(answer, i, found->probability)))
            continue;
        json_node *entry = write_object(w, list, NULL);
        snprintf(score, sizeof score, "%.6f", (double)found->probability);
        write_members(w, entry, "confidence=%s label=%s", score, LABEL_STRING(found));
        if (image->kind == ANSWER_CLASSES) {
            write_text(w, entry, "type", "tag");
        } else if (mask) {
            write_text(w, entry, "type", "mask");
            write_outline(w, entry, mask);
            write_pixels(w, entry, mask, false);
        } else {
            write_rectangle(w, entry, found);
        }
    }
}

static const struct dialect_parameter parameters[] = {{"threshold", "confidence", false},
                                                      {"pos_points", "inside", false},
                                                      {"neg_points", "outside", false},
                                                      {"obj_bbox", "corners", false},
                                                      {0}};
static const struct dialect_default defaults[] = {
    {"confidence", "0.5"}, {"top_k", "5"}, {"masks", "polygon"}, {0}};

const struct dialect dialect_cvat = {.name = "CVAT",
                                     .parameters = parameters,
                                     .defaults = defaults,
                                     .kinds = 1u << ANSWER_CLASSES | 1u << ANSWER_BOXES |
                                              1u << ANSWER_AREAS,
                                     .takes = "a classifier, a detector or a segmenter",
                                     .is_single = true,
                                     .takes_prompts = true,
                                     .has_pixels = true,
                                     .header = "x-nuclio-function-name",
                                     .images = "image",
                                     .write = cvat_write};
