/* PhotoPrism's vision service: labels, unsafe pictures, vectors of faces. PhotoPrism reads an
 * error's number from "code" instead of the HTTP status, so both have the number. Source:
 * api_request.go, api_response.go and the packages nsfw and face of photoprism/photoprism. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"

static json_node *begin_result(struct writer *w, const struct predict_answer *answer,
                               const char *kind)
{
    write_members(w, w->root, "id=%s code=%d model{type=%s name=%s}",
                  cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(answer->request, "id")),
                  200, kind, answer->model);
    return write_object(w, w->root, "result");
}

/* ---- labels ---- */

static int by_probability(const void *a, const void *b)
{
    const struct answer_prediction *left = a, *right = b;
    return (left->probability < right->probability) - (left->probability > right->probability);
}

static int by_label(const void *a, const void *b)
{
    const struct answer_prediction *left = a, *right = b;
    const int order = strcmp(left->label, right->label);
    return order ? order : by_probability(a, b);
}

/* Collects the labels of all pictures, each once with its best score, best first. Returns how many;
 * *ret is malloc'ed, NULL when out of memory. */
static size_t merge_labels(const struct predict_answer *answer, struct answer_prediction **ret)
{
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < answer->image_count; i++)
        count += answer->images[i].prediction_count;
    struct answer_prediction *all = *ret = alloc_array(count, sizeof *all);
    if (!all)
        return 0;
    count = 0;
    for (size_t i = 0; i < answer->image_count; i++)
        for (size_t k = 0; k < answer->images[i].prediction_count; k++)
            if (answer->images[i].predictions[k].label)
                all[count++] = answer->images[i].predictions[k];
    qsort(all, count, sizeof *all, by_label);
    for (size_t i = 0; i < count; i++)
        if (!kept || strcmp(all[kept - 1].label, all[i].label) != 0)
            all[kept++] = all[i];
    qsort(all, kept, sizeof *all, by_probability);
    return kept;
}

static void labels_write(struct writer *w, const struct predict_answer *answer)
{
    struct answer_prediction *labels;
    const size_t count = merge_labels(answer, &labels);
    w->failed |= !labels;
    json_node *list = write_array(w, begin_result(w, answer, "labels"), "labels");
    for (size_t i = 0; i < count; i++)
        write_members(w, list, "{name=%s source=%s confidence=%g topicality=%g}", labels[i].label,
                      "image", (double)labels[i].probability, (double)labels[i].probability);
    free(labels);
}

/* ---- unsafe pictures ---- */

enum nsfw_kind { DRAWING, HENTAI, NEUTRAL, PORN, SEXY, NSFW_KINDS };

/* Returns the kind that a model's label means; NSFW_KINDS if it means none. */
static enum nsfw_kind kind_of(const char *label)
{
    static const struct {
        const char *begin;
        enum nsfw_kind kind;
    } words[] = {{"drawing", DRAWING}, {"hentai", HENTAI}, {"neutral", NEUTRAL},
                 {"normal", NEUTRAL},  {"safe", NEUTRAL},  {"sfw", NEUTRAL},
                 {"porn", PORN},       {"nsfw", PORN},     {"unsafe", PORN},
                 {"sexy", SEXY}};
    for (size_t i = 0; label && i < COUNT_OF(words); i++)
        if (!strncasecmp(label, words[i].begin, strlen(words[i].begin)))
            return words[i].kind;
    return NSFW_KINDS;
}

/* Finds the picture's best score of each kind. Returns false if there is no label, or one that
 * names no kind. */
static bool read_kinds(const struct answer_image *image, float *kinds)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        const enum nsfw_kind kind = kind_of(image->predictions[i].label);
        if (kind == NSFW_KINDS)
            return false;
        kinds[kind] = fmaxf(kinds[kind], image->predictions[i].probability);
    }
    return image->prediction_count > 0;
}

static char *photoprism_error(int http, const char *sentence, const char *code)
{
    (void)code;
    return write_document("code=%d error=%s result{}", http, sentence);
}

static void nsfw_write(struct writer *w, const struct predict_answer *answer)
{
    json_node *list = write_array(w, begin_result(w, answer, "nsfw"), "nsfw");
    for (size_t i = 0; i < answer->image_count; i++) {
        float kinds[NSFW_KINDS] = {0};
        if (!read_kinds(&answer->images[i], kinds)) {
            cJSON_Delete(w->root);
            w->root = write_root();
            write_members(w, w->root, "code=%d error=%s result{}", 400,
                          "the labels of this model are not drawings, hentai, neutral, porn and "
                          "sexy, nor normal and nsfw; name another model in vision.yml");
            return;
        }
        write_members(w, list, "{score=%g Drawing=%g Hentai=%g Neutral=%g Porn=%g Sexy=%g}",
                      (double)fmaxf(kinds[PORN], fmaxf(kinds[SEXY], kinds[HENTAI])),
                      (double)kinds[DRAWING], (double)kinds[HENTAI], (double)kinds[NEUTRAL],
                      (double)kinds[PORN], (double)kinds[SEXY]);
    }
}

/* ---- faces ---- */

static void face_write(struct writer *w, const struct predict_answer *answer)
{
    json_node *list = write_array(w, begin_result(w, answer, "face"), "embeddings");
    for (size_t i = 0; i < answer->image_count; i++)
        write_floats(w, write_array(w, list, NULL), NULL, answer->images[i].embedding,
                     answer->images[i].embedding_count);
}

static const struct dialect_parameter parameters[] = {{0}};
static const struct dialect_default defaults[] = {{"top_k", "5"}, {0}};

#define SERVICE(kind, models, function)                                                            \
    .name = "PhotoPrism", .parameters = parameters, .defaults = defaults, .kinds = 1u << (kind),   \
    .takes = models, .fails_whole = true, .model = "model", .images = "images", .write = function, \
    .write_error = photoprism_error

const struct dialect dialect_photoprism_labels = {
    SERVICE(ANSWER_CLASSES, "a classifier", labels_write)};
const struct dialect dialect_photoprism_nsfw = {
    SERVICE(ANSWER_CLASSES, "a classifier", nsfw_write)};
const struct dialect dialect_photoprism_face = {
    SERVICE(ANSWER_EMBEDDING, "a model of vectors", face_write)};
