/* Maps the tokens of a model to their ids. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/array.h"
#include "models/text/pipeline.h"

enum status vocabulary_add(struct vocabulary *vocabulary, const char *token, size_t size, size_t id,
                           bool is_hidden, struct error *err)
{
    struct trie *trie = &vocabulary->trie;
    if (id >= TOKEN_IDS_MAX || size > TOKEN_BYTES_MAX)
        return error_set(
            err, STATUS_MODEL,
            "the token \"%.60s\" has the id %zu and %zu bytes; the limits are %zu and %d", token,
            id, size, TOKEN_IDS_MAX - 1, TOKEN_BYTES_MAX);
    const int32_t earlier = trie_find(trie, token, size);
    const int32_t number = !is_hidden ? (int32_t)id : earlier >= 0 ? earlier : -2 - (int32_t)id;
    vocabulary->distinct += earlier == -1;
    TRY(check_memory(trie_add(trie, token, size, number), "for the vocabulary", err));
    if (id >= vocabulary->count)
        vocabulary->count = id + 1;
    return STATUS_OK;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token)
{
    const int32_t id = trie_find(&vocabulary->trie, token, strlen(token));
    return id < -1 ? -2 - id : id;
}

enum status vocabulary_read(struct vocabulary *vocabulary, const cJSON *json, struct error *err)
{
    if (!cJSON_IsObject(json))
        return json_wrong("vocab", "an object of tokens and their ids", err);
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
    if (!list->failed && !array_reserve(&list->ids, &list->room, list->count + 1, sizeof id))
        list->failed = STATUS_NO_MEMORY;
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
