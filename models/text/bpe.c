/* Encodes by byte pairs: merges neighbouring characters of a part, the pair of the lowest rank
 * first. A heap holds the pairs, so that n characters take n log n steps. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/heap.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/text/pipeline.h"

#define NO_SYMBOL UINT32_MAX

struct symbol {
    int32_t id;              /* TOKEN_NONE: merged into the symbol before */
    uint32_t previous, next; /* NO_SYMBOL: none */
};

struct word {
    struct symbol *symbols;
    uint64_t *heap; /* pairs to merge: rank << 32 | index of the first symbol */
    size_t count, waiting;
};

static size_t merge_slot(const struct token_model *model, uint32_t left, uint32_t right)
{
    const size_t mask = ((size_t)1 << model->merge_bits) - 1;
    const uint64_t key = (uint64_t)left << 32 | right;
    size_t slot = (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - model->merge_bits));
    while (model->merges[slot].left != UINT32_MAX &&
           (model->merges[slot].left != left || model->merges[slot].right != right))
        slot = (slot + 1) & mask;
    return slot;
}

static const struct merge *find_merge(const struct token_model *model, int32_t left, int32_t right)
{
    if (!model->merge_count)
        return NULL;
    const struct merge *merge = &model->merges[merge_slot(model, (uint32_t)left, (uint32_t)right)];
    return merge->left == UINT32_MAX ? NULL : merge;
}

/* Doubles the table, which is at most half full. */
static bool grow_merges(struct token_model *model)
{
    const struct token_model old = *model;
    const unsigned bits = model->merges ? model->merge_bits + 1 : 10;
    struct merge *merges = alloc_array((size_t)1 << bits, sizeof *merges);
    if (!merges)
        return false;
    memset(merges, 0xFF, sizeof *merges << bits);
    model->merges = merges;
    model->merge_bits = bits;
    for (size_t i = 0; old.merges && i < (size_t)1 << old.merge_bits; i++)
        if (old.merges[i].left != UINT32_MAX)
            merges[merge_slot(model, old.merges[i].left, old.merges[i].right)] = old.merges[i];
    free(old.merges);
    return true;
}

static enum status no_token(const char *token, size_t size, struct error *err)
{
    return error_set(err, STATUS_MODEL,
                     "a merge needs the token \"%.*s\", which the vocabulary lacks",
                     (int)(size < 60 ? size : 60), token);
}

enum status bpe_add_merge(struct token_model *model, const char *left, size_t left_size,
                          const char *right, size_t right_size, size_t rank, struct error *err)
{
    const struct trie *trie = &model->vocabulary.trie;
    const int32_t left_id = trie_find(trie, left, left_size);
    const int32_t right_id = trie_find(trie, right, right_size);
    const size_t skipped = strlen(model->prefix);
    if (left_id < 0)
        return no_token(left, left_size, err);
    if (right_id < 0 || right_size < skipped)
        return no_token(right, right_size, err);
    char made[2 * TOKEN_BYTES_MAX];
    memcpy(made, left, left_size);
    memcpy(made + left_size, right + skipped, right_size - skipped);
    const int32_t to = trie_find(trie, made, left_size + right_size - skipped);
    if (to < 0)
        return no_token(made, left_size + right_size - skipped, err);
    if ((!model->merges || 2 * model->merge_count >= (size_t)1 << model->merge_bits) &&
        !grow_merges(model))
        return error_no_memory(err, "for merges");
    struct merge *merge = &model->merges[merge_slot(model, (uint32_t)left_id, (uint32_t)right_id)];
    model->merge_count += merge->left == UINT32_MAX;
    *merge = (struct merge){(uint32_t)left_id, (uint32_t)right_id, (uint32_t)rank, to};
    return STATUS_OK;
}

/* Reads "left right" or ["left", "right"]. */
static enum status read_merge(const cJSON *item, struct token_model *model, size_t rank,
                              struct error *err)
{
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    if (first && first->next && !first->next->next && cJSON_IsString(first) &&
        cJSON_IsString(first->next))
        return bpe_add_merge(model, first->valuestring, strlen(first->valuestring),
                             first->next->valuestring, strlen(first->next->valuestring), rank, err);
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    const char *blank = strchr(text, ' ');
    if (!blank || strchr(blank + 1, ' '))
        return json_wrong("merges", "a list of pairs of tokens", err);
    return bpe_add_merge(model, text, (size_t)(blank - text), blank + 1, strlen(blank + 1), rank,
                         err);
}

enum status bpe_read(const cJSON *json, struct token_model *model, struct error *err)
{
    const cJSON *dropout = json_get(json, "dropout");
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble <= 0))
        return error_set(err, STATUS_UNSUPPORTED,
                         "the model's \"dropout\" makes ids random, which "
                         "lensd does not support; set it to null");
    TRY(json_flag(json, "fuse_unk", false, &model->fuses_unknown, err));
    TRY(json_flag(json, "ignore_merges", false, &model->ignores_merges, err));
    TRY(vocabulary_read(&model->vocabulary, json_get(json, "vocab"), err));
    const cJSON *merges = json_get(json, "merges");
    size_t rank = 0;
    for (const cJSON *item = cJSON_IsArray(merges) ? merges->child : NULL; item;
         item = item->next, rank++)
        TRY(read_merge(item, model, rank, err));
    return merges ? STATUS_OK : json_wrong("merges", "a list of pairs of tokens", err);
}

static void push_pair(const struct token_model *model, struct word *word, uint32_t at)
{
    if (at == NO_SYMBOL || word->symbols[at].next == NO_SYMBOL)
        return;
    const struct merge *merge =
        find_merge(model, word->symbols[at].id, word->symbols[word->symbols[at].next].id);
    if (merge)
        heap_push(word->heap, &word->waiting, (uint64_t)merge->rank << 32 | at);
}

/* Merges until no pair is left. A merge removes a symbol and adds at most two pairs to the heap. */
static void merge_all(const struct token_model *model, struct word *word)
{
    for (uint32_t i = 0; i < word->count; i++)
        push_pair(model, word, i);
    while (word->waiting) {
        const uint64_t top = heap_pop(word->heap, &word->waiting);
        const uint32_t at = (uint32_t)top;
        struct symbol *symbol = &word->symbols[at];
        if (symbol->id < 0 || symbol->next == NO_SYMBOL)
            continue;
        struct symbol *next = &word->symbols[symbol->next];
        const struct merge *merge = find_merge(model, symbol->id, next->id);
        if (!merge || merge->rank != top >> 32)
            continue;
        symbol->id = merge->to;
        next->id = TOKEN_NONE;
        symbol->next = next->next;
        if (next->next != NO_SYMBOL)
            word->symbols[next->next].previous = at;
        push_pair(model, word, symbol->previous);
        push_pair(model, word, at);
    }
}

static void add_symbol(struct word *word, int32_t id)
{
    const uint32_t at = (uint32_t)word->count++;
    word->symbols[at] = (struct symbol){id, at ? at - 1 : NO_SYMBOL, NO_SYMBOL};
    if (at)
        word->symbols[at - 1].next = at;
}

/* Returns the id of a character: with the model's prefix unless it is the word's first character,
 * and with the suffix if it is the last. */
static int32_t find_character(const struct token_model *model, const char *text, size_t length,
                              bool is_first, bool is_last)
{
    const struct trie *trie = &model->vocabulary.trie;
    uint32_t node = 0;
    if (!is_first && *model->prefix &&
        !(node = trie_walk(trie, 0, model->prefix, strlen(model->prefix))))
        return TOKEN_NONE;
    node = trie_walk(trie, node, text, length);
    if (node && is_last && *model->suffix)
        node = trie_walk(trie, node, model->suffix, strlen(model->suffix));
    return node ? trie->ids[node] : TOKEN_NONE;
}

/* Adds the ids of an unknown character's bytes. Returns false if a byte has no id. */
static bool add_bytes(const struct token_model *model, const char *text, size_t length,
                      struct word *word)
{
    if (!model_has_bytes(model, text, length))
        return false;
    for (size_t i = 0; i < length; i++)
        add_symbol(word, model->bytes[(uint8_t)text[i]]);
    return true;
}

/* Splits the text into symbols. Returns false if an unknown character has no token. */
static bool split_characters(const struct token_model *model, const char *text, size_t size,
                             struct word *word)
{
    bool is_unknown = false; /* the last character is unknown; its token is not added yet */
    for (size_t i = 0, length; i < size; i += length) {
        length = utf8_length(text + i, size - i);
        const int32_t id = find_character(model, text + i, length, !i, i + length == size);
        if (id >= 0) {
            if (is_unknown)
                add_symbol(word, model->unknown);
            is_unknown = false;
            add_symbol(word, id);
        } else if (!add_bytes(model, text + i, length, word) && model->unknown != TOKEN_NONE) {
            if (model->unknown == TOKEN_MISSING)
                return false;
            if (is_unknown && !model->fuses_unknown)
                add_symbol(word, model->unknown);
            is_unknown = true;
        }
    }
    if (is_unknown)
        add_symbol(word, model->unknown);
    return true;
}

void bpe_tokenize(const struct token_model *model, const char *text, size_t size,
                  struct id_list *to)
{
    if (model->ignores_merges) {
        const int32_t id = trie_find(&model->vocabulary.trie, text, size);
        if (id >= 0) {
            ids_add(to, id);
            return;
        }
    }
    if (!array_reserve(&to->scratch, &to->scratch_room, size,
                       sizeof(struct symbol) + 3 * sizeof(uint64_t))) {
        to->failed = STATUS_NO_MEMORY;
        return;
    }
    struct word word = {.heap = to->scratch};
    word.symbols = (struct symbol *)(word.heap + 3 * size);
    if (!split_characters(model, text, size, &word))
        to->failed = STATUS_INVALID;
    merge_all(model, &word);
    for (size_t i = 0; i < word.count; i++)
        if (word.symbols[i].id >= 0)
            ids_add(to, word.symbols[i].id);
}
