/* The tokens of a model: from text to id and back. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/pipeline.h"

void vocabulary_done(struct vocabulary *vocabulary)
{
    for (size_t i = 0; i < vocabulary->count; i++)
        free(vocabulary->tokens[i]);
    free(vocabulary->tokens);
    trie_done(&vocabulary->trie);
    trie_done(&vocabulary->hidden);
    memset(vocabulary, 0, sizeof *vocabulary);
}

static bool make_room(struct vocabulary *vocabulary, size_t count)
{
    if (count > vocabulary->room) {
        const size_t room = count + count / 2 + 256;
        char **tokens = realloc(vocabulary->tokens, room * sizeof *tokens);
        if (!tokens)
            return false;
        vocabulary->tokens = tokens;
        vocabulary->room = room;
    }
    while (vocabulary->count < count)
        vocabulary->tokens[vocabulary->count++] = NULL;
    return true;
}

enum status vocabulary_add(struct vocabulary *vocabulary, const char *token, size_t size, size_t id,
                           bool is_hidden, struct error *err)
{
    if (id >= TOKEN_IDS_MAX)
        return error_set(err, STATUS_MODEL,
                         "the token \"%.60s\" has the id %zu; the largest is %zu", token, id,
                         TOKEN_IDS_MAX - 1);
    if (size > TOKEN_BYTES_MAX)
        return error_set(err, STATUS_MODEL, "the token \"%.60s…\" has %zu bytes; the most is %d",
                         token, size, TOKEN_BYTES_MAX);
    char *copy = strndup(token, size);
    const bool is_new = trie_find(&vocabulary->trie, token, size) < 0;
    if (!copy || !make_room(vocabulary, id + 1) ||
        !trie_add(is_hidden ? &vocabulary->hidden : &vocabulary->trie, token, size, (int32_t)id)) {
        free(copy);
        return error_no_memory(err, "for the vocabulary");
    }
    free(vocabulary->tokens[id]);
    vocabulary->tokens[id] = copy;
    vocabulary->distinct += is_new;
    return STATUS_OK;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token)
{
    const int32_t id = trie_find(&vocabulary->trie, token, strlen(token));
    return id >= 0 ? id : trie_find(&vocabulary->hidden, token, strlen(token));
}

enum status vocabulary_read(struct vocabulary *vocabulary, const cJSON *json, struct error *err)
{
    if (!cJSON_IsObject(json))
        return json_wrong_part("vocab", "an object of tokens and their ids", err);
    for (const cJSON *item = json->child; item; item = item->next) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < 1e9))
            return error_set(err, STATUS_MODEL, "the token \"%.60s\" has no id", item->string);
        TRY(vocabulary_add(vocabulary, item->string, strlen(item->string),
                           (size_t)item->valuedouble, false, err));
    }
    return STATUS_OK;
}

void vocabulary_bytes(const struct vocabulary *vocabulary, int32_t ret[static 256])
{
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        ret[i] = vocabulary_find(vocabulary, name);
    }
}

void ids_add(struct id_list *list, int32_t id)
{
    if (list->count == list->room && !list->failed) {
        const size_t room = 2 * list->room + 64;
        int32_t *ids = realloc(list->ids, room * sizeof *ids);
        list->failed = ids ? STATUS_OK : STATUS_NO_MEMORY;
        list->ids = ids ? ids : list->ids;
        list->room = ids ? room : list->room;
    }
    if (!list->failed)
        list->ids[list->count++] = id;
}

bool model_has_bytes(const struct token_model *model, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (model->bytes[(uint8_t)text[i]] < 0)
            return false;
    return model->has_byte_fallback;
}
