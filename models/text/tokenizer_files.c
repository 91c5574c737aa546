/* The files of a tokenizer: tokenizer.json, or vocabularies alone with the rules of the tokenizers
 * that use them; and what the configurations beside them say. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/text/pipeline.h"
#include "proto/json.h"

#define FILE_MAX ((size_t)64 << 20)

/* Values of a tokenizer.json: 257,000 tokens and 580,000 merges of two texts are 2.3 million. */
static const struct json_limits limits = {64, 4000000};

/* Reads a file of the first folder that has it; terminated. STATUS_NOT_FOUND leaves *err alone. */
static enum status read_file(const char *const folders[], size_t count, const char *name,
                             char **ret, size_t *ret_size, struct error *err)
{
    struct error cause;
    for (size_t i = 0; i < count; i++) {
        uint8_t *data;
        const enum status status =
            file_read_beneath(folders[i], name, FILE_MAX, &data, ret_size, &cause);
        *ret = (char *)data;
        if (status == STATUS_OK)
            return STATUS_OK;
        if (status == STATUS_TOO_LARGE)
            return error_set(err, STATUS_MODEL, "%s: it is larger than %zu MiB", name,
                             FILE_MAX >> 20);
        if (status != STATUS_NOT_FOUND)
            return error_set(err, status == STATUS_INVALID ? STATUS_IO : status, "%s: %s", name,
                             cause.message);
    }
    return STATUS_NOT_FOUND;
}

static enum status parse(const char *text, size_t size, cJSON **ret, struct error *err)
{
    const enum status status = json_check(text, size, &limits, err);
    if (status != STATUS_OK)
        return error_set(err, STATUS_MODEL, "%s", err->message);
    *ret = cJSON_ParseWithLength(text, size);
    return *ret ? STATUS_OK : error_no_memory(err, "for a tokenizer");
}

/* The file as JSON; NULL where no folder has it. */
static enum status read_json(const char *const folders[], size_t count, const char *name,
                             cJSON **ret, struct error *err)
{
    char *text;
    size_t size;
    struct error cause;
    *ret = NULL;
    enum status status = read_file(folders, count, name, &text, &size, err);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    status = parse(text, size, ret, &cause);
    free(text);
    return status == STATUS_OK ? status : error_set(err, status, "%s: %s", name, cause.message);
}

/* ---- Vocabularies without a tokenizer.json ---- */

/* What a class of transformers adds to a vocabulary: members of tokenizer.json, where the model has
 * no vocabulary, and the special tokens, of which a vocabulary may lack some. */
struct form {
    const char *json;
    const char *front, *behind;
    const char *special[5];
};

static const struct form bert = {
    "{\"normalizer\":{\"type\":\"BertNormalizer\"},"
    "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"model\":{\"type\":\"WordPiece\"}}",
    "[CLS]",
    "[SEP]",
    {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}};

static const struct form clip = {
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
    "\"Replace\","
    "\"pattern\":{\"Regex\":\"\\\\s+\"},\"content\":\" \"},{\"type\":\"Lowercase\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":\"'s|'t|'re|'ve|'m|'ll|'d|[\\\\p{L}]+|[\\\\p{N}]|[^\\\\s\\\\p{L}\\\\p{N}]+\"},"
    "\"behavior\":\"Removed\",\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]"
    "},"
    "\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"unk_token\":\"<|endoftext|>\"}}",
    "<|startoftext|>",
    "<|endoftext|>",
    {"<|startoftext|>", "<|endoftext|>"}};

static const struct form roberta = {
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"model\":{\"type\":\"BPE\"}}",
    "<s>",
    "</s>",
    {"<s>", "</s>", "<unk>", "<pad>", "<mask>"}};

/* Reads the members; the model has its vocabulary already. */
static enum status apply_form(const struct form *form, struct tokenizer *ret, struct error *err)
{
    cJSON *json;
    TRY(parse(form->json, strlen(form->json), &json, err));
    enum status status = tokenizer_read_json(json, ret, err);
    cJSON_Delete(json);
    for (size_t i = 0; i < COUNT_OF(form->special) && form->special[i] && status == STATUS_OK; i++)
        if (vocabulary_find(&ret->model.vocabulary, form->special[i]) >= 0)
            status = added_tokens_add(ret, form->special[i], (struct added_token){0}, err);
    if (status == STATUS_OK)
        status = template_set(ret, vocabulary_find(&ret->model.vocabulary, form->front),
                              vocabulary_find(&ret->model.vocabulary, form->behind), err);
    return status;
}

/* Calls on_line for each line without the blanks at its end. */
static enum status each_line(const char *text, size_t size, struct tokenizer *ret,
                             enum status (*on_line)(const char *line, size_t size, size_t number,
                                                    struct tokenizer *ret, struct error *err),
                             struct error *err)
{
    if (!utf8_valid(text, size))
        return error_set(err, STATUS_MODEL, "it is not UTF-8");
    size_t number = 0;
    for (size_t at = 0; at < size; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t next = end ? (size_t)(end - text) + 1 : size;
        size_t length = end ? next - 1 - at : size - at;
        while (length > 0 && strchr(" \t\r\v\f", text[at + length - 1]) && text[at + length - 1])
            length--;
        TRY(on_line(text + at, length, number, ret, err));
        at = next;
    }
    return STATUS_OK;
}

static enum status read_token(const char *line, size_t size, size_t number, struct tokenizer *ret,
                              struct error *err)
{
    return vocabulary_add(&ret->model.vocabulary, line, size, number, false, err);
}

static enum status read_merge(const char *line, size_t size, size_t number, struct tokenizer *ret,
                              struct error *err)
{
    if (!size || (size >= 8 && !memcmp(line, "#version", 8)))
        return STATUS_OK;
    const char *blank = memchr(line, ' ', size);
    if (!blank)
        return error_set(err, STATUS_MODEL, "line %zu is not a pair of tokens", number + 1);
    const size_t left = (size_t)(blank - line);
    return bpe_add_merge(&ret->model, line, left, blank + 1, size - left - 1, number, err);
}

static enum status read_vocabulary_text(char *text, size_t size, struct tokenizer *ret,
                                        struct error *err)
{
    TRY(each_line(text, size, ret, read_token, err));
    return apply_form(&bert, ret, err);
}

static enum status read_merges(char *text, size_t size, struct tokenizer *ret, struct error *err)
{
    const bool is_clip = vocabulary_find(&ret->model.vocabulary, clip.front) >= 0;
    TRY(apply_form(is_clip ? &clip : &roberta, ret, err));
    return each_line(text, size, ret, read_merge, err);
}

static enum status read_vocabulary_json(char *text, size_t size, struct tokenizer *ret,
                                        struct error *err)
{
    cJSON *json;
    TRY(parse(text, size, &json, err));
    const enum status status = vocabulary_read(&ret->model.vocabulary, json, err);
    cJSON_Delete(json);
    return status;
}

static enum status read_whole(char *text, size_t size, struct tokenizer *ret, struct error *err)
{
    cJSON *json;
    TRY(parse(text, size, &json, err));
    enum status status = tokenizer_read_json(json, ret, err);
    if (status == STATUS_OK)
        status = template_read(json_get(json, "post_processor"), ret, err);
    cJSON_Delete(json);
    return status;
}

/* The forms of a vocabulary, the best first. */
static const struct source {
    const char *name;
    enum status (*read)(char *text, size_t size, struct tokenizer *ret, struct error *err);
    bool needs_next; /* the next file, too, which is read after it */
} sources[] = {
    {"tokenizer.json", read_whole},
    {"vocab.json", read_vocabulary_json, true},
    {"merges.txt", read_merges},
    {"vocab.txt", read_vocabulary_text},
    {"spiece.model", sentencepiece_read},
    {"tokenizer.model", sentencepiece_read},
    {"sentencepiece.bpe.model", sentencepiece_read},
    {"sentencepiece.model", sentencepiece_read},
};

static enum status read_source(const char *const folders[], size_t count,
                               const struct source *source, struct tokenizer *ret,
                               struct error *err)
{
    char *text;
    size_t size;
    struct error cause = {0};
    TRY(read_file(folders, count, source->name, &text, &size, err));
    const enum status status = source->read(text, size, ret, &cause);
    free(text);
    if (status != STATUS_OK)
        return error_set(err, status, "%s: %s", source->name, cause.message);
    if (!source->needs_next)
        return STATUS_OK;
    const enum status next = read_source(folders, count, source + 1, ret, err);
    return next != STATUS_NOT_FOUND ? next
                                    : error_set(err, STATUS_MODEL, "%s: %s is missing beside it",
                                                source->name, source[1].name);
}

/* ---- The configurations ---- */

/* A token of a configuration: a text, or {"content": text}. TOKEN_NONE where there is none. */
static int64_t configured_token(const cJSON *json, const char *key,
                                const struct tokenizer *tokenizer)
{
    const cJSON *item = json_get(json, key);
    const char *text =
        cJSON_GetStringValue(cJSON_IsObject(item) ? json_get(item, "content") : item);
    return text ? tokenizer_id(tokenizer, text) : TOKEN_NONE;
}

static void set_pad(struct tokenizer *ret, int64_t id)
{
    if (ret->facts.has_pad || id < 0)
        return;
    ret->facts.pad_id = id;
    ret->facts.has_pad = true;
}

/* What a class of transformers adds to the ids of sentencepiece, where they are the same. */
static enum status read_class(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    static const struct {
        const char *name; /* its beginning: T5TokenizerFast is the same */
        bool front, behind;
    } classes[] = {{"T5Tokenizer", false, true},
                   {"LlamaTokenizer", true, false},
                   {"GemmaTokenizer", true, false},
                   {"PreTrainedTokenizer", false, false}};
    const char *name;
    size_t i = 0;
    bool front, behind;
    TRY(json_text(json, "tokenizer_class", "PreTrainedTokenizer", &name, err));
    while (i < COUNT_OF(classes) && strncmp(name, classes[i].name, strlen(classes[i].name)) != 0)
        i++;
    if (i == COUNT_OF(classes))
        return error_set(
            err, STATUS_UNSUPPORTED,
            "lensd does not know what the class %.60s adds to sentencepiece's model; put "
            "its tokenizer.json into the folder",
            name);
    TRY(json_flag(json, "add_bos_token", classes[i].front, &front, err));
    TRY(json_flag(json, "add_eos_token", classes[i].behind, &behind, err));
    return template_set(ret, front ? ret->front : TOKEN_NONE, behind ? ret->behind : TOKEN_NONE,
                        err);
}

static enum status read_tokenizer_config(const cJSON *json, struct tokenizer *ret,
                                         struct error *err)
{
    const char *side;
    /* Without a limit transformers writes 10^30. */
    TRY(json_size(json, "model_max_length", ret->facts.max_length, SIZE_MAX, &ret->facts.max_length,
                  err));
    if (ret->facts.max_length >= TOKENIZER_TEXT_MAX)
        ret->facts.max_length = SIZE_MAX;
    TRY(json_text(json, "padding_side", ret->facts.pads_left ? "left" : "right", &side, err));
    ret->facts.pads_left = !strcmp(side, "left");
    TRY(json_text(json, "truncation_side", ret->truncates_left ? "left" : "right", &side, err));
    ret->truncates_left = !strcmp(side, "left");
    set_pad(ret, configured_token(json, "pad_token", ret));
    return ret->piece_count ? STATUS_OK : read_class(json, ret, err);
}

/* The model's own configuration: how many places it has, and what it pads with. */
static enum status read_model_config(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    static const char *const parts[] = {NULL, "text_config", "text_cfg"};
    size_t pad;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const cJSON *part = parts[i] ? json_get(json, parts[i]) : json;
        size_t places;
        TRY(json_size(part, "max_position_embeddings", SIZE_MAX, SIZE_MAX, &places, err));
        TRY(json_size(part, "context_length", places, SIZE_MAX, &places, err));
        if (places && places < ret->facts.max_length)
            ret->facts.max_length = places;
        const cJSON *id = json_get(part, "pad_token_id");
        if (!cJSON_IsNumber(id) || id->valuedouble < 0)
            continue;
        TRY(json_size(part, "pad_token_id", 0, TOKEN_IDS_MAX, &pad, err));
        set_pad(ret, (int64_t)pad);
    }
    return STATUS_OK;
}

static enum status read_special_map(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    (void)err;
    set_pad(ret, configured_token(json, "pad_token", ret));
    return STATUS_OK;
}

static enum status read_configurations(const char *const folders[], size_t count,
                                       struct tokenizer *ret, struct error *err)
{
    static const struct {
        const char *name;
        enum status (*read)(const cJSON *json, struct tokenizer *ret, struct error *err);
    } files[] = {{"tokenizer_config.json", read_tokenizer_config},
                 {"special_tokens_map.json", read_special_map},
                 {"config.json", read_model_config}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        cJSON *json;
        struct error cause;
        TRY(read_json(folders, count, files[i].name, &json, err));
        const enum status status = json ? files[i].read(json, ret, &cause) : STATUS_OK;
        cJSON_Delete(json);
        if (status != STATUS_OK)
            return error_set(err, status, "%s: %s", files[i].name, cause.message);
    }
    return STATUS_OK;
}

enum status tokenizer_read_files(const char *const folders[], size_t count, struct tokenizer *ret,
                                 struct error *err)
{
    enum status status = STATUS_NOT_FOUND;
    for (size_t i = 0; i < COUNT_OF(sources) && status == STATUS_NOT_FOUND; i++)
        status = read_source(folders, count, &sources[i], ret, err);
    if (status == STATUS_NOT_FOUND)
        return error_set(err, status,
                         "there is no tokenizer: no tokenizer.json, vocab.json, "
                         "vocab.txt or model of sentencepiece");
    TRY(status);
    TRY(read_configurations(folders, count, ret, err));
    return ret->piece_count ? STATUS_OK : template_set(ret, TOKEN_NONE, TOKEN_NONE, err);
}
