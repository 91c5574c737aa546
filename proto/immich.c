/* The machine-learning service of Immich: POST /predict with a form whose part `entries` names a
 * task and its models, and a part `image` or `text`. Vectors are texts with a JSON array in them,
 * which Immich's server hands to its database. Errors are FastAPI's. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/strbuf.h"
#include "proto/writer.h"

/* ---- entries ---- */

/* A task, and the two types of model that it may name. */
struct immich_task {
    const char *name, *first, *second;
    const struct dialect *dialect;
};

static const struct immich_task tasks[] = {
    {"clip", "visual", "textual", &dialect_immich_clip},
    {"facial-recognition", "detection", "recognition", &dialect_immich_faces},
    {"ocr", "detection", "recognition", &dialect_immich_text}};

/* Cleans a name as Immich does for the folders of its cache. False: it is empty or too long. */
static bool clean_name(const char *name, char *ret, size_t room)
{
    const char *slash = strrchr(name, '/');
    size_t used = 0;
    for (const char *at = slash ? slash + 1 : name; *at && used < room; at++)
        if (*at != '.')
            ret[used++] = (char)(*at == ':' || *at == '\\' ? '_' : *at);
    if (used == 0 || used == room)
        return false;
    ret[used] = '\0';
    return true;
}

static bool read_score(const cJSON *model, float *ret)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(model, "options");
    const cJSON *score = cJSON_GetObjectItemCaseSensitive(options, "minScore");
    if (!score || cJSON_IsNull(score))
        return true;
    *ret = (float)score->valuedouble;
    return cJSON_IsNumber(score) && score->valuedouble >= 0 && score->valuedouble <= 1;
}

/* Reads {"modelName": …, "options": {…}}; `score` keeps its value if the options lack it. */
static enum status read_model(const cJSON *model, char name[static 128], float *score,
                              struct error *err)
{
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(model, "modelName");
    const char *label = model->string;
    if (!cJSON_IsString(text) || !clean_name(text->valuestring, name, 128))
        return error_set(err, STATUS_INVALID,
                         "Invalid request format. \"%.40s\" in `entries` needs \"modelName\", a "
                         "name of 1 to 127 bytes",
                         label);
    if (!read_score(model, score))
        return error_set(err, STATUS_INVALID,
                         "Invalid request format. \"minScore\" of \"%.40s\" in `entries` must be a "
                         "number from 0 to 1",
                         label);
    return STATUS_OK;
}

static enum status read_task(const struct immich_task *task, const cJSON *json,
                             struct immich_entries *ret, struct error *err)
{
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(json, task->first);
    const cJSON *second = cJSON_GetObjectItemCaseSensitive(json, task->second);
    const bool is_clip = task->dialect == &dialect_immich_clip;
    char other[128] = "";
    if (!first && !second)
        return error_set(err, STATUS_INVALID,
                         "Invalid request format. \"%s\" in `entries` takes \"%s\" and \"%s\"",
                         task->name, task->first, task->second);
    if (first)
        TRY(read_model(first, ret->model, &ret->least_box, err));
    if (second)
        TRY(read_model(second, first ? other : ret->model, &ret->least_text, err));
    ret->dialect = task->dialect;
    ret->is_text = is_clip && second;
    if (is_clip && first && second)
        ret->refusal = "send clip's visual and textual in two requests, as Immich's server does";
    else if (!is_clip && !first)
        ret->refusal = "recognition depends on the output of detection, which is not in `entries`";
    else if (!is_clip && !second)
        ret->refusal = "lensd answers detection only together with recognition";
    else if (!is_clip && strcmp(ret->model, other) != 0)
        ret->refusal = "detection and recognition must name the same model";
    return STATUS_OK;
}

static enum status read_root(const cJSON *root, struct immich_entries *ret, struct error *err)
{
    const cJSON *only = cJSON_IsObject(root) ? root->child : NULL;
    if (only && !only->next && cJSON_IsObject(only))
        for (size_t i = 0; i < COUNT_OF(tasks); i++)
            if (!strcmp(only->string, tasks[i].name))
                return read_task(&tasks[i], only, ret, err);
    return error_set(err, STATUS_INVALID,
                     "Invalid request format. `entries` must be a JSON object with one task: "
                     "\"clip\", \"facial-recognition\" or \"ocr\"");
}

enum status immich_entries_parse(const char *text, size_t size, struct immich_entries *ret,
                                 struct error *err)
{
    const struct json_limits limits = {8, 256};
    struct error cause;
    *ret = (struct immich_entries){.least_box = -1, .least_text = 0.9f};
    if (json_check(text, size, &limits, &cause) != STATUS_OK)
        return error_set(err, STATUS_INVALID, "Invalid request format. `entries`: %s",
                         cause.message);
    cJSON *root = cJSON_ParseWithLength(text, size);
    const enum status status =
        root ? read_root(root, ret, err) : error_no_memory(err, "for a request");
    cJSON_Delete(root);
    return status;
}

/* ---- answers ---- */

/* Adds a vector as a text with a JSON array in it. */
static void write_vector_text(struct writer *w, json_node *parent, const char *key,
                              const struct answer_image *image)
{
    struct strbuf vector = {NULL};
    for (size_t i = 0; i < image->embedding_count; i++) {
        strbuf_put(&vector, i ? "," : "[");
        strbuf_float(&vector, image->embedding[i]);
    }
    strbuf_put(&vector, image->embedding_count ? "]" : "[]");
    char *text = strbuf_finish(&vector, NULL);
    if (text)
        write_text(w, parent, key, text);
    else
        w->failed = true;
    free(text);
}

static char *finish_with_size(struct writer *w, json_node *root, const struct answer_image *image,
                              size_t *ret_size)
{
    if (image->width) /* not of a text */
        write_members(w, root, "imageHeight=%u imageWidth=%u", image->height, image->width);
    return write_finish(w, root, ret_size);
}

static char *write_clip(const struct predict_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_vector_text(&w, root, "clip", &answer->images[0]);
    return finish_with_size(&w, root, &answer->images[0], ret_size);
}

static char *write_faces(const struct predict_answer *answer, size_t *ret_size)
{
    const struct answer_image *image = &answer->images[0];
    struct writer w = {false};
    json_node *root = write_root(), *list = write_array(&w, root, "facial-recognition");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *face = &image->predictions[i];
        if (!face->crop || !face->crop->embedding)
            continue;
        json_node *entry = write_object(&w, list, NULL);
        write_members(&w, entry, "boundingBox{x1=%g y1=%g x2=%g y2=%g}",
                      (double)rintf(face->box[0]), (double)rintf(face->box[1]),
                      (double)rintf(face->box[2]), (double)rintf(face->box[3]));
        write_vector_text(&w, entry, "embedding", face->crop);
        write_members(&w, entry, "score=%g", (double)face->probability);
    }
    return finish_with_size(&w, root, image, ret_size);
}

static char *write_lines(const struct predict_answer *answer, size_t *ret_size)
{
    const struct answer_image *image = &answer->images[0];
    struct writer w = {false};
    json_node *root = write_root(), *all = write_object(&w, root, "ocr");
    json_node *texts = write_array(&w, all, "text"), *boxes = write_array(&w, all, "box");
    json_node *box_scores = write_array(&w, all, "boxScore");
    json_node *text_scores = write_array(&w, all, "textScore");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *line = &image->predictions[i];
        if (!line->crop || !line->crop->text || !(line->crop->text_score > answer->least_text))
            continue;
        write_text(&w, texts, NULL, line->crop->text);
        for (size_t k = 0; k < line->point_count; k++) {
            write_float(&w, boxes, NULL, line->points[k].x / (float)image->width);
            write_float(&w, boxes, NULL, line->points[k].y / (float)image->height);
        }
        write_float(&w, box_scores, NULL, line->probability);
        write_float(&w, text_scores, NULL, line->crop->text_score);
    }
    return finish_with_size(&w, root, image, ret_size);
}

static char *immich_error(int http, const char *sentence, const char *code, size_t *ret_size)
{
    (void)http, (void)code;
    return write_document(ret_size, "detail=%s", sentence);
}

static const struct dialect_parameter no_parameters[] = {{0}};

#define IMMICH                                                                                     \
    .name = "Immich", .parameters = no_parameters, .is_single = true, .fails_whole = true,         \
    .write_error = immich_error

const struct dialect dialect_immich = {IMMICH, .invalid_http = 422, .write = write_clip};
const struct dialect dialect_immich_clip = {
    IMMICH, .kinds = 1u << ANSWER_EMBEDDING,
    .takes = "for clip one half of a model for photos and texts", .write = write_clip};
const struct dialect dialect_immich_faces = {
    IMMICH, .kinds = 1u << ANSWER_BOXES,
    .takes = "for facial-recognition a pipeline of a face detector and a model of vectors",
    .takes_pipelines = true, .write = write_faces};
const struct dialect dialect_immich_text = {
    IMMICH, .kinds = 1u << ANSWER_BOXES,
    .takes = "for ocr a pipeline of a text detector and a model that reads lines",
    .takes_pipelines = true, .write = write_lines};
