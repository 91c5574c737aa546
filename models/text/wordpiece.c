/* Splits a word into the longest tokens of the vocabulary, from left to right (WordPiece). */
#include <string.h>

#include "models/text/pipeline.h"

void wordpiece_tokenize(const struct token_model *model, const char *text, size_t size,
                        struct id_list *to)
{
    const struct trie *trie = &model->vocabulary.trie;
    const uint32_t later = trie_walk(trie, 0, model->prefix, strlen(model->prefix));
    const size_t count_before = to->count;
    size_t characters = 0;
    for (size_t i = 0; i < size; i++)
        characters += ((uint8_t)text[i] & 0xC0) != 0x80;
    bool is_known = characters <= model->word_max;
    for (size_t at = 0, length = 0; is_known && at < size; at += length) {
        int32_t id = TOKEN_NONE;
        if (at == 0 || later || !*model->prefix)
            id = trie_longest(trie, at ? later : 0, text + at, size - at, &length);
        is_known = id >= 0;
        if (is_known)
            ids_add(to, id);
    }
    if (is_known)
        return;
    to->count = count_before;
    if (model->unknown >= 0)
        ids_add(to, model->unknown);
    else if (!to->failed)
        to->failed = STATUS_INVALID;
}
