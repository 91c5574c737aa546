/* Finds the path through the text whose tokens have the largest sum of scores (Unigram). */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/text/pipeline.h"

/* An unknown character scores this much less than the worst token. */
#define UNKNOWN_PENALTY 10.0

/* The best path to a place of the text. */
struct best_path {
    double score;
    int32_t id;
    uint32_t start; /* start of the path's last token; UINT32_MAX: no path leads here */
};

/* Returns the score as `tokenizers` reads it with serde_json: the digits as a double, divided by a
 * power of ten. The last bit of that result may be wrong, but it decides between paths with nearly
 * equal scores. */
static double as_serde_reads(double score)
{
    char text[40], digits[24];
    int precision = 14, exponent = 0, count = 0;
    do
        snprintf(text, sizeof text, "%.*e", precision, fabs(score));
    while (strtod(text, NULL) < fabs(score) || strtod(text, NULL) > fabs(score) ? ++precision < 18
                                                                                : false);
    for (const char *c = text; *c != 'e'; c++)
        if (*c != '.')
            digits[count++] = *c;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = '\0';
    exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10) - (count - 1);
    if (exponent >= 0 || exponent < -22)
        return score;
    return copysign((double)strtoull(digits, NULL, 10) / pow(10, -exponent), score);
}

enum status unigram_read(const cJSON *json, struct token_model *model, struct error *err)
{
    static const char expected[] = "a list of tokens and their scores";
    const cJSON *list = json_get(json, "vocab");
    if (!cJSON_IsArray(list))
        return json_wrong("vocab", expected, err);
    const size_t count = (size_t)cJSON_GetArraySize(list);
    size_t id = 0, unknown;
    double least = INFINITY;
    model->scores = alloc_array(count, sizeof *model->scores);
    TRY(check_memory(model->scores, "for the vocabulary", err));
    for (const cJSON *item = list->child; item; item = item->next, id++) {
        const cJSON *token = cJSON_IsArray(item) ? item->child : NULL;
        if (!cJSON_IsString(token) || !cJSON_IsNumber(token->next) ||
            !isfinite(token->next->valuedouble))
            return json_wrong("vocab", expected, err);
        TRY(vocabulary_add(&model->vocabulary, token->valuestring, strlen(token->valuestring), id,
                           false, err));
        model->scores[id] = as_serde_reads(token->next->valuedouble);
        least = fmin(least, model->scores[id]);
    }
    model->size = count;
    model->unknown_score = least - UNKNOWN_PENALTY;
    TRY(json_size(json, "unk_id", SIZE_MAX, SIZE_MAX, &unknown, err));
    if (unknown != SIZE_MAX && unknown >= count)
        return error_set(err, STATUS_MODEL, "\"unk_id\" is %zu, but there are %zu tokens", unknown,
                         count);
    model->unknown = unknown == SIZE_MAX ? TOKEN_NONE : (int32_t)unknown;
    return STATUS_OK;
}

static void offer(const struct token_model *model, struct best_path *path, double score, int32_t id,
                  size_t start)
{
    if (model->sums_floats)
        score = (float)score;
    if (path->start == UINT32_MAX || score > path->score)
        *path = (struct best_path){score, id, (uint32_t)start};
}

/* Finds the best path to each place. Returns false if an unknown character has no token. */
static bool find_best_paths(const struct token_model *model, const char *text, size_t size,
                            struct best_path *paths)
{
    const struct trie *trie = &model->vocabulary.trie;
    for (size_t start = 0, length; start < size; start += length) {
        const double so_far = paths[start].score;
        bool has_single = false;
        length = utf8_length(text + start, size - start);
        uint32_t node = 0;
        for (size_t i = start; i < size && (node = trie_step(trie, node, text[i])); i++) {
            const int32_t id = trie->ids[node];
            if (id < 0)
                continue;
            offer(model, &paths[i + 1], model->scores[id] + so_far, id, start);
            has_single |= i + 1 == start + length;
        }
        if (!has_single && model->unknown < 0)
            return false;
        if (!has_single)
            offer(model, &paths[start + length], model->unknown_score + so_far, model->unknown,
                  start);
    }
    return true;
}

/* Appends the ids of a token of the path. The text of an unknown token may have several characters
 * that are unknown, but that are a token together. */
static void add_token(const struct token_model *model, const char *text, size_t size, int32_t id,
                      struct id_list *to)
{
    if (id == model->unknown && (id = trie_find(&model->vocabulary.trie, text, size)) < 0) {
        if (model_has_bytes(model, text, size)) {
            for (size_t i = 0; i < size; i++)
                ids_add(to, model->bytes[(uint8_t)text[i]]);
            return;
        }
        id = model->unknown;
    }
    ids_add(to, id);
}

void unigram_tokenize(const struct token_model *model, const char *text, size_t size,
                      struct id_list *to)
{
    if (!array_reserve(&to->scratch, &to->scratch_room, size + 1, sizeof(struct best_path))) {
        to->failed = STATUS_NO_MEMORY;
        return;
    }
    struct best_path *paths = to->scratch;
    for (size_t i = 0; i <= size; i++)
        paths[i].start = UINT32_MAX;
    paths[0] = (struct best_path){0};
    if (!find_best_paths(model, text, size, paths)) {
        to->failed = STATUS_INVALID;
        return;
    }
    /* Turns the path's links around, from the end on: each place then leads to the next one. */
    uint32_t next = (uint32_t)size;
    for (uint32_t end = (uint32_t)size, start; end > 0; next = end, end = start) {
        start = paths[end].start;
        paths[end].start = next;
    }
    for (uint32_t start = 0, end = next; start < size;) {
        const int32_t id = paths[end].id;
        uint32_t previous = paths[end].start;
        while (id == model->unknown && previous > end && paths[previous].id == id) {
            end = previous;
            previous = paths[end].start;
        }
        add_token(model, text + start, end - start, id, to);
        start = end;
        end = previous;
    }
}
