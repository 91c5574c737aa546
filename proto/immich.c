/* The machine-learning service of Immich: POST /predict with a form whose part `entries` names
 * tasks and their models, and a part `image` or `text`. Vectors are strings that contain a JSON
 * array: Immich's server passes the strings to its database. Errors are FastAPI's. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/strbuf.h"
#include "proto/writer.h"

/* ---- entries ---- */

/* A task, the two types of model that it may name, the form of its answer, and the form if a
 * request names only the first type. */
struct immich_task {
    const char *name, *first, *second;
    const struct dialect *dialect, *first_alone;
};

static const struct dialect clip, faces, text_lines, face_boxes, line_boxes;

static const struct immich_task tasks[] = {
    {"facial-recognition", "detection", "recognition", &faces, &face_boxes},
    {"ocr", "detection", "recognition", &text_lines, &line_boxes},
    {"clip", "visual", "textual", &clip}};

/* Converts a model's name to the name of its folder in Immich's cache. Returns false if the result
 * is empty or too long. */
static bool clean_name(const char *name, char *ret, size_t room)
{
    size_t used = 0;
    for (const char *at = basename(name); *at && used < room; at++)
        if (*at != '.')
            ret[used++] = (char)(*at == ':' || *at == '\\' ? '_' : *at);
    if (used == 0 || used == room)
        return false;
    ret[used] = '\0';
    return true;
}

/* Reads {"modelName": …, "options": {"minScore": …}}; sets *score only if "minScore" is present. */
static enum status read_model(const cJSON *model, char name[static 128], float *score,
                              struct error *err)
{
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(model, "modelName");
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(model, "options");
    const cJSON *least = cJSON_GetObjectItemCaseSensitive(options, "minScore");
    const bool has_score = least && !cJSON_IsNull(least);
    if (has_score)
        *score = cJSON_IsNumber(least) ? (float)least->valuedouble : -1;
    if (cJSON_IsString(text) && clean_name(text->valuestring, name, 128) &&
        (!has_score || (*score >= 0 && *score <= 1)))
        return STATUS_OK;
    return error_set(
        err, STATUS_INVALID,
        "Invalid request format. \"%.40s\" in `entries` needs \"modelName\", a name of "
        "1 to 127 bytes; \"minScore\" goes from 0 to 1",
        model->string);
}

/* Returns the FLORES-200 code of a language of Immich, IMMICH_LANGUAGE bytes, as in NLLB's
 * vocabulary: for "de-AT" the code of "de", for an unknown language the code of English. */
static const char *find_language(const char *language)
{
    static const char codes[] =
        " af:afr_Latn ar:arb_Arab az:azj_Latn be:bel_Cyrl bg:bul_Cyrl ca:cat_Latn cs:ces_Latn "
        "da:dan_Latn de:deu_Latn el:ell_Grek en:eng_Latn es:spa_Latn et:est_Latn fa:pes_Arab "
        "fi:fin_Latn fr:fra_Latn he:heb_Hebr hi:hin_Deva hr:hrv_Latn hu:hun_Latn hy:hye_Armn "
        "id:ind_Latn it:ita_Latn ja:jpn_Hira kmr:kmr_Latn ko:kor_Hang lb:ltz_Latn lt:lit_Latn "
        "lv:lav_Latn mfa:zsm_Latn mk:mkd_Cyrl mn:khk_Cyrl mr:mar_Deva ms:zsm_Latn nb_NO:nob_Latn "
        "nl:nld_Latn pl:pol_Latn pt:por_Latn pt_BR:por_Latn ro:ron_Latn ru:rus_Cyrl sk:slk_Latn "
        "sl:slv_Latn sr_Cyrl:srp_Cyrl sv:swe_Latn ta:tam_Taml te:tel_Telu th:tha_Thai tr:tur_Latn "
        "uk:ukr_Cyrl vi:vie_Latn zh-CN:zho_Hans zh-TW:zho_Hant zh_Hant:zho_Hant "
        "zh_SIMPLIFIED:zho_Hans";
    const size_t sizes[] = {strlen(language), strcspn(language, "-")};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char key[20];
        snprintf(key, sizeof key, " %.*s:", sizes[i] < 16 ? (int)sizes[i] : 0, language);
        const char *at = strstr(codes, key);
        if (at)
            return at + strlen(key);
    }
    return "eng_Latn";
}

/* Replaces the pipeline NAME by its detector NAME.detection. OCR's "EN__NAME" loses the prefix, the
 * language of the text reader. */
static void use_detector(const struct immich_task *task, struct immich_entry *ret)
{
    const char *dashes = task->first_alone == &line_boxes ? strstr(ret->model, "__") : NULL;
    char name[sizeof ret->model];
    snprintf(name, sizeof name, "%.100s.detection", dashes ? dashes + 2 : ret->model);
    memcpy(ret->model, name, sizeof name);
    ret->dialect = task->first_alone;
}

static enum status read_task(const struct immich_task *task, const cJSON *json,
                             struct immich_entries *all, struct error *err)
{
    struct immich_entry *ret = &all->list[all->count++];
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(json, task->first);
    const cJSON *second = cJSON_GetObjectItemCaseSensitive(json, task->second);
    const bool is_clip = task->dialect == &clip;
    char other[128] = "";
    *ret = (struct immich_entry){.least_box = -1, .least_text = 0.9f};
    if (!first && !second)
        return error_set(err, STATUS_INVALID,
                         "Invalid request format. \"%s\" in `entries` takes \"%s\" and \"%s\"",
                         task->name, task->first, task->second);
    if (first)
        TRY(read_model(first, ret->model, &ret->least_box, err));
    if (second)
        TRY(read_model(second, first ? other : ret->model, &ret->least_text, err));
    ret->dialect = task->dialect;
    all->is_text = is_clip && second;
    const char *language = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(second, "options"), "language"));
    if (language && !strncmp(ret->model, "nllb", 4))
        ret->language = find_language(language);
    if (all->is_text && (first || all->count > 1))
        all->refusal = "clip's textual cannot be combined with another type or task";
    else if (!is_clip && !first)
        all->refusal = "recognition depends on the output of detection, which is not in `entries`";
    else if (!is_clip && second && strcmp(ret->model, other) != 0)
        all->refusal = "detection and recognition must name the same model";
    else if (!is_clip && !second)
        use_detector(task, ret);
    return STATUS_OK;
}

static enum status read_root(const cJSON *root, struct immich_entries *ret, struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(tasks); i++) {
        const cJSON *task = cJSON_GetObjectItemCaseSensitive(root, tasks[i].name);
        if (cJSON_IsObject(task))
            TRY(read_task(&tasks[i], task, ret, err));
    }
    for (size_t i = 0; ret->count > 1 && i < ret->count; i++)
        if (ret->list[i].dialect == &face_boxes || ret->list[i].dialect == &line_boxes)
            ret->refusal = "detection without recognition cannot be combined with another task";
    return cJSON_IsObject(root) && ret->count && (size_t)cJSON_GetArraySize(root) == ret->count
               ? STATUS_OK
               : error_set(err, STATUS_INVALID,
                           "Invalid request format. `entries` must be a JSON object with tasks, "
                           "each once: \"clip\", \"facial-recognition\" or \"ocr\"");
}

enum status immich_entries_parse(const char *text, size_t size, struct immich_entries *ret,
                                 struct error *err)
{
    const struct json_limits limits = {8, 256};
    struct error cause;
    *ret = (struct immich_entries){.count = 0};
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

/* Adds a vector as a string that contains a JSON array. */
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
    write_text(w, parent, key, text);
    free(text);
}

static void write_size(struct writer *w, const struct answer_image *image)
{
    if (image->width) /* not for a text */
        write_members(w, w->root, "imageHeight=%u imageWidth=%u", image->height, image->width);
}

static void write_clip(struct writer *w, const struct predict_answer *answer)
{
    write_vector_text(w, w->root, "clip", &answer->images[0]);
    write_size(w, &answer->images[0]);
}

static void write_faces(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    json_node *list = write_array(w, w->root, "facial-recognition");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *face = &image->predictions[i];
        if (!face->crop || !face->crop->embedding)
            continue;
        json_node *entry = write_object(w, list, NULL);
        write_members(w, entry, "boundingBox{x1=%g y1=%g x2=%g y2=%g}", (double)rintf(face->box[0]),
                      (double)rintf(face->box[1]), (double)rintf(face->box[2]),
                      (double)rintf(face->box[3]));
        write_vector_text(w, entry, "embedding", face->crop);
        write_members(w, entry, "score=%g", (double)face->probability);
    }
    write_size(w, image);
}

static void write_lines(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    json_node *all = write_object(w, w->root, "ocr");
    json_node *texts = write_array(w, all, "text"), *boxes = write_array(w, all, "box");
    json_node *box_scores = write_array(w, all, "boxScore");
    json_node *text_scores = write_array(w, all, "textScore");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *line = &image->predictions[i];
        if (!line->crop || !line->crop->text || !(line->crop->text_score > answer->least_text))
            continue;
        write_text(w, texts, NULL, line->crop->text);
        for (size_t k = 0; k < line->point_count; k++) {
            write_float(w, boxes, NULL, line->points[k].x / (float)image->width);
            write_float(w, boxes, NULL, line->points[k].y / (float)image->height);
        }
        write_float(w, box_scores, NULL, line->probability);
        write_float(w, text_scores, NULL, line->crop->text_score);
    }
    write_size(w, image);
}

/* Adds a list of points for each box, or with `corners` a list of the corners x1, y1, x2, y2. */
static void write_places(struct writer *w, json_node *parent, const char *key,
                         const struct answer_image *image, bool corners)
{
    json_node *list = write_array(w, parent, key);
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        json_node *entry = write_array(w, list, NULL);
        for (size_t k = 0; corners && k < 4; k++)
            write_float(w, entry, NULL, rintf(found->box[k]));
        for (size_t k = 0; !corners && k < found->point_count; k++)
            write_floats(w, entry, NULL, (const float[]){found->points[k].x, found->points[k].y},
                         2);
    }
}

/* Answers `detection` without `recognition`. */
static void write_boxes(struct writer *w, const struct predict_answer *answer)
{
    const bool are_faces = answer->dialect == &face_boxes;
    const struct answer_image *image = &answer->images[0];
    json_node *all = write_object(w, w->root, are_faces ? "facial-recognition" : "ocr");
    write_places(w, all, "boxes", image, are_faces);
    json_node *scores = write_array(w, all, "scores");
    for (size_t i = 0; i < image->prediction_count; i++)
        write_float(w, scores, NULL, image->predictions[i].probability);
    if (are_faces)
        write_places(w, all, "landmarks", image, false);
    write_size(w, image);
}

char *immich_join(char *first, char *second)
{
    /* Drops the picture's size from the first answer. No string value contains "imageHeight":,
     * because its quotation marks would be escaped. */
    struct strbuf both = {.failed = !second};
    strbuf_add(&both, first, (size_t)(strstr(first, "\"imageHeight\":") - first));
    strbuf_put(&both, second ? second + 1 : "");
    FREE_ALL(first, second);
    return strbuf_finish(&both, NULL);
}

static char *immich_error(int http, const char *sentence, const char *code)
{
    (void)http, (void)code;
    return write_document("detail=%s", sentence);
}

static const struct dialect_parameter no_parameters[] = {{0}};

#define IMMICH                                                                                     \
    .name = "Immich", .parameters = no_parameters, .is_single = true, .fails_whole = true,         \
    .write_error = immich_error

const struct dialect dialect_immich = {IMMICH, .invalid_http = 422, .write = write_clip};
static const struct dialect clip = {IMMICH, .kinds = 1u << ANSWER_EMBEDDING,
                                    .takes = "for clip one half of a model for photos and texts",
                                    .write = write_clip};
static const struct dialect faces = {
    IMMICH, .kinds = 1u << ANSWER_BOXES,
    .takes = "for facial-recognition a pipeline of a face detector and a model of vectors",
    .takes_pipelines = true, .write = write_faces};
static const struct dialect text_lines = {
    IMMICH, .kinds = 1u << ANSWER_BOXES,
    .takes = "for ocr a pipeline of a text detector and a model that reads lines",
    .takes_pipelines = true, .write = write_lines};
static const struct dialect face_boxes = {IMMICH, .kinds = 1u << ANSWER_BOXES,
                                          .takes = "for facial-recognition a face detector",
                                          .write = write_boxes};
static const struct dialect line_boxes = {IMMICH, .kinds = 1u << ANSWER_BOXES,
                                          .takes = "for ocr a text detector", .write = write_boxes};
