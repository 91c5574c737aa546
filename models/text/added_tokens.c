/* Reads added tokens, such as [CLS], and splits texts at them before a model sees the text. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/utf8.h"
#include "models/text/characters.h"
#include "models/text/pipeline.h"

/* Returns the character before text[end]; `end` is not 0. *ret_start is its first byte. */
static uint32_t character_before(const char *text, size_t end, size_t *ret_start)
{
    size_t length;
    *ret_start = end - 1;
    while (*ret_start > 0 && ((uint8_t)text[*ret_start] & 0xC0) == 0x80)
        --*ret_start;
    return utf8_character(text + *ret_start, end - *ret_start, &length);
}

int64_t tokenizer_id(const struct tokenizer *tokenizer, const char *token)
{
    const struct added_tokens *added = &tokenizer->added;
    const int32_t place = trie_find(&added->contents, token, strlen(token));
    return place >= 0 ? added->list[place].id
                      : vocabulary_find(&tokenizer->model.vocabulary, token);
}

/* True if word characters touch the token text[start … end), so it is not a whole word. */
static bool touches_word(const char *text, size_t size, size_t start, size_t end)
{
    size_t ignored, at = end;
    return (start > 0 && character_is_word(character_before(text, start, &ignored))) ||
           (end < size && character_is_word(character_next(text, size, &at)));
}

void step_added(const struct text_step *step, const char *text, size_t size, bool at_start,
                struct text_parts *to)
{
    const struct trie *trie = step->trie;
    size_t done = 0, length = 0;
    for (size_t i = 0; trie->bits && i < size; i += length) {
        const int32_t found = trie_longest(trie, 0, text + i, size - i, &length);
        if (found < 0) {
            length = 1;
            continue;
        }
        const struct added_token *token = &step->added->list[found];
        size_t start = i, end = i + length, before;
        if (token->is_single_word && touches_word(text, size, start, end))
            continue;
        while (token->strips_left && start > done &&
               character_is_space(character_before(text, start, &before)))
            start = before;
        for (size_t next = end; token->strips_right && end < size &&
                                character_is_space(character_next(text, size, &next));)
            end = next;
        if (start > done)
            text_parts_add_part(to, text + done, start - done, -1, at_start && !done);
        text_parts_add_part(to, text + start, end - start, token->id, at_start && !start);
        done = end;
    }
    if (done < size)
        text_parts_add_part(to, text + done, size - done, -1, at_start && !done);
}

/* Adds the token list[at] to a trie; first normalises the token if is_normalized. */
static enum status enter(struct tokenizer *tokenizer, size_t at, struct error *err)
{
    struct added_tokens *added = &tokenizer->added;
    const struct added_token *token = &added->list[at];
    struct text_parts parts = {0}, spare = {0};
    text_parts_add_part(&parts, token->content, strlen(token->content), -1, true);
    if (token->is_normalized)
        steps_run(&tokenizer->normalizers, &parts, &spare);
    enum status status = parts.failed ? parts.failed : STATUS_OK;
    if (status == STATUS_OK && parts.size &&
        !trie_add(token->is_normalized || token->is_literal ? &added->normalized : &added->raw,
                  parts.text, parts.size, (int32_t)at))
        status = STATUS_NO_MEMORY;
    text_parts_done(&parts);
    text_parts_done(&spare);
    return status == STATUS_OK ? status : error_set(err, status, "out of memory for added tokens");
}

enum status added_tokens_add(struct tokenizer *tokenizer, const char *content,
                             struct added_token token, struct error *err)
{
    struct added_tokens *added = &tokenizer->added;
    const size_t size = strlen(content);
    if (!size)
        return STATUS_OK;
    if (size > TOKEN_BYTES_MAX)
        return error_set(err, STATUS_MODEL,
                         "the added token \"%.60s…\" has %zu bytes; the limit is %d", content, size,
                         TOKEN_BYTES_MAX);
    token.id = vocabulary_find(&tokenizer->model.vocabulary, content);
    const int32_t earlier = trie_find(&added->contents, content, size);
    if (token.id < 0 && earlier >= 0)
        token.id = added->list[earlier].id;
    if (token.id < 0)
        token.id = (int32_t)(tokenizer->model.size + added->new_count++);
    token.content = NULL;
    if (array_reserve(&added->list, &added->room, added->count + 1, sizeof *added->list))
        token.content = strdup(content);
    TRY(check_memory(token.content, "for added tokens", err));
    added->list[added->count++] = token;
    TRY(check_memory(trie_add(&added->contents, content, size, (int32_t)added->count - 1),
                     "for added tokens", err));
    return enter(tokenizer, added->count - 1, err);
}

enum status added_tokens_read(const cJSON *json, struct tokenizer *tokenizer, struct error *err)
{
    for (const cJSON *item = cJSON_IsArray(json) ? json->child : NULL; item; item = item->next) {
        struct added_token token = {0};
        const char *content;
        TRY(json_text(item, "content", "", &content, err));
        TRY(json_flag(item, "single_word", false, &token.is_single_word, err));
        TRY(json_flag(item, "lstrip", false, &token.strips_left, err));
        TRY(json_flag(item, "rstrip", false, &token.strips_right, err));
        TRY(json_flag(item, "normalized", true, &token.is_normalized, err));
        TRY(added_tokens_add(tokenizer, content, token, err));
    }
    return STATUS_OK;
}

void added_tokens_done(struct added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++)
        free(added->list[i].content);
    free(added->list);
    trie_done(&added->raw);
    trie_done(&added->normalized);
    trie_done(&added->contents);
}
