/* Reads tokenizer.json: each stage reads its own member. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/pipeline.h"

/* ---- The model ---- */

/* Guesses the kind of a model without a "type", as in older files. */
static const char *guess_kind(const cJSON *json)
{
    if (json_get(json, "merges"))
        return "BPE";
    return cJSON_IsArray(json_get(json, "vocab")) ? "Unigram" : "WordPiece";
}

static enum status set_text(const cJSON *json, const char *key, const char *other, char **ret,
                            struct error *err)
{
    const char *text;
    TRY(json_text(json, key, other, &text, err));
    if (strlen(text) > TOKEN_BYTES_MAX)
        return json_wrong(key, "a short text", err);
    *ret = strdup(text);
    return check_memory(*ret, "for a tokenizer", err);
}

static enum status wordpiece_read(const cJSON *json, struct token_model *model, struct error *err)
{
    TRY(json_size(json, "max_input_chars_per_word", 100, SIZE_MAX, &model->word_max, err));
    return vocabulary_read(&model->vocabulary, json_get(json, "vocab"), err);
}

static const struct model_kind {
    const char *type;
    enum status (*read)(const cJSON *json, struct token_model *model, struct error *err);
    void (*tokenize)(const struct token_model *model, const char *text, size_t size,
                     struct id_list *to);
    const char *prefix, *unknown;
} model_kinds[] = {
    {"BPE", bpe_read, bpe_tokenize, "", NULL},
    {"WordPiece", wordpiece_read, wordpiece_tokenize, "##", "[UNK]"},
    {"Unigram", unigram_read, unigram_tokenize, "", NULL},
};

static enum status read_model(const cJSON *json, struct token_model *ret, struct error *err)
{
    const char *type, *unknown;
    size_t k = 0;
    TRY(json_text(json, "type", guess_kind(json), &type, err));
    while (k < COUNT_OF(model_kinds) && strcmp(type, model_kinds[k].type) != 0)
        k++;
    if (k == COUNT_OF(model_kinds))
        return error_set(err, STATUS_UNSUPPORTED, "lensd does not support the model \"%.60s\"",
                         type);
    const struct model_kind *kind = &model_kinds[k];
    ret->kind = kind->type;
    ret->tokenize = kind->tokenize;
    ret->unknown = TOKEN_NONE;
    TRY(set_text(json, "continuing_subword_prefix", kind->prefix, &ret->prefix, err));
    TRY(set_text(json, "end_of_word_suffix", "", &ret->suffix, err));
    TRY(kind->read(json, ret, err));
    TRY(json_text(json, "unk_token", kind->unknown, &unknown, err));
    if (unknown && ret->unknown < 0)
        ret->unknown = vocabulary_find(&ret->vocabulary, unknown);
    if (unknown && ret->unknown < 0)
        ret->unknown = TOKEN_MISSING;
    TRY(json_flag(json, "byte_fallback", false, &ret->has_byte_fallback, err));
    if (ret->has_byte_fallback && (*ret->prefix || *ret->suffix))
        return error_set(err, STATUS_UNSUPPORTED,
                         "lensd does not support \"byte_fallback\" together "
                         "with a prefix or suffix of words");
    vocabulary_bytes(&ret->vocabulary, ret->bytes);
    if (!ret->size)
        ret->size = ret->vocabulary.distinct;
    return STATUS_OK;
}

void token_model_done(struct token_model *model)
{
    trie_done(&model->vocabulary.trie);
    FREE_ALL(model->prefix, model->suffix, model->scores, model->merges);
}

/* ---- Truncation and padding ---- */

static enum status read_truncation(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    const char *direction, *strategy;
    TRY(json_size(json, "max_length", SIZE_MAX, SIZE_MAX, &ret->facts.max_length, err));
    TRY(json_text(json, "direction", "Right", &direction, err));
    TRY(json_text(json, "strategy", "LongestFirst", &strategy, err));
    if (!strcmp(strategy, "OnlySecond"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "lensd does not support the truncation strategy "
                         "\"OnlySecond\", which shortens a second text");
    ret->truncates_left = !strcmp(direction, "Left");
    ret->facts.truncates = true;
    return STATUS_OK;
}

static enum status read_padding(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    size_t id, type;
    const char *direction;
    TRY(json_size(json, "pad_id", 0, TOKEN_IDS_MAX, &id, err));
    TRY(json_size(json, "pad_type_id", 0, 1, &type, err));
    TRY(json_size(json, "pad_to_multiple_of", 1, 1 << 20, &ret->facts.length_multiple, err));
    TRY(json_text(json, "direction", "Right", &direction, err));
    /* "strategy" is "BatchLongest" or {"Fixed": 77}. */
    const cJSON *strategy = json_get(json, "strategy");
    TRY(json_size(cJSON_IsObject(strategy) ? strategy : NULL, "Fixed", 0, 1 << 20,
                  &ret->facts.fixed_length, err));
    ret->facts.length_multiple += !ret->facts.length_multiple;
    ret->facts.pad_id = (int64_t)id;
    ret->facts.pad_type_id = (int64_t)type;
    ret->facts.pads_left = !strcmp(direction, "Left");
    ret->facts.has_pad = true;
    return STATUS_OK;
}

enum status tokenizer_read_json(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    const cJSON *model = json_get(json, "model");
    if (!cJSON_IsObject(model))
        return json_wrong("model", "an object", err);
    TRY(read_model(model, &ret->model, err));
    TRY(normalizers_read(json_get(json, "normalizer"), &ret->normalizers, err));
    TRY(pre_tokenizers_read(json_get(json, "pre_tokenizer"), &ret->pre_tokenizers, err));
    TRY(added_tokens_read(json_get(json, "added_tokens"), ret, err));
    if (json_get(json, "truncation"))
        TRY(read_truncation(json_get(json, "truncation"), ret, err));
    return json_get(json, "padding") ? read_padding(json_get(json, "padding"), ret, err)
                                     : STATUS_OK;
}
