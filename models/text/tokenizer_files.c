/* Reads a tokenizer's files: tokenizer.json, or a vocabulary alone, with the rules of the
 * tokenizers that use it; and the configurations beside them. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/text/pipeline.h"
#include "proto/json.h"

#define FILE_MAX ((size_t)64 << 20)

/* 257,000 tokens and 580,000 merges, written as pairs, make 2.3 million values. */
static const struct json_limits limits = {64, 4000000};

/* Reads a file, terminated, from the first folder with it. STATUS_NOT_FOUND does not set *err. */
static enum status read_file(const char *const *folders, const char *name, char **ret,
                             size_t *ret_size, struct error *err)
{
    struct error cause;
    for (; *folders; folders++) {
        uint8_t *data;
        const enum status status =
            file_read_beneath(*folders, name, FILE_MAX, &data, ret_size, &cause);
        if (status == STATUS_OK) {
            *ret = (char *)data;
            return STATUS_OK;
        }
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
    return check_memory(*ret, "for a tokenizer", err);
}

/* Reads a file as JSON; NULL if no folder has it. */
static enum status read_json(const char *const *folders, const char *name, cJSON **ret,
                             struct error *err)
{
    char *text = NULL;
    size_t size;
    struct error cause;
    *ret = NULL;
    enum status status = read_file(folders, name, &text, &size, err);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    status = parse(text, size, ret, &cause);
    free(text);
    return status == STATUS_OK ? status : error_set(err, status, "%s: %s", name, cause.message);
}

/* ---- Vocabularies without a tokenizer.json ---- */

/* Reads the tokenizer of a class of Transformers, such as BertTokenizer. forms.json has, for each
 * class, a tokenizer.json without vocabulary and the tokens that surround a text. Takes over
 * `vocabulary` and `merges` (NULL: none). */
static enum status read_form(const char *class, cJSON *vocabulary, cJSON *merges,
                             struct tokenizer *ret, struct error *err)
{
    cJSON *forms = NULL;
    const char *bos, *eos;
    enum status status = parse((const char *)tokenizer_forms, tokenizer_forms_size, &forms, err);
    const cJSON *form = json_get(forms, class), *json = json_get(form, "tokenizer");
    cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    if (!cJSON_AddItemToObject(model, "vocab", vocabulary))
        cJSON_Delete(vocabulary);
    if (merges && !cJSON_AddItemToObject(model, "merges", merges))
        cJSON_Delete(merges);
    IF_OK(status, tokenizer_read_json(json, ret, err));
    IF_OK(status, json_text(form, "bos", "", &bos, err));
    IF_OK(status, json_text(form, "eos", "", &eos, err));
    IF_OK(status,
          template_set(ret, (int32_t)tokenizer_id(ret, bos), (int32_t)tokenizer_id(ret, eos), err));
    cJSON_Delete(forms);
    return status;
}

/* Adds the lines of a text without trailing blanks, which it removes from the text. If `to` is an
 * object, lines become keys, whose values are the line numbers. An array gets no empty lines and no
 * lines with "#version". */
static enum status add_lines(char *text, size_t size, cJSON *to, struct error *err)
{
    if (!utf8_valid(text, size) || memchr(text, '\0', size))
        return error_set(err, STATUS_MODEL, "the lines are not UTF-8");
    double number = 0;
    for (char *line, *rest = text; (line = strsep(&rest, "\n")) && (rest || *line); number++) {
        size_t length = strlen(line);
        while (length > 0 && strchr(" \t\r\v\f", line[length - 1]))
            line[--length] = '\0';
        const bool is_pair = cJSON_IsArray(to);
        if (is_pair && (!length || !strncmp(line, "#version", 8)))
            continue;
        if (is_pair ? !cJSON_AddItemToArray(to, cJSON_CreateString(line))
                    : !cJSON_AddNumberToObject(to, line, number))
            return error_no_memory(err, "for a vocabulary");
    }
    return STATUS_OK;
}

static enum status read_vocabulary_text(const char *const *folders, char *text, size_t size,
                                        struct tokenizer *ret, struct error *err)
{
    cJSON *config, *vocabulary = cJSON_CreateObject();
    bool is_small = true;
    enum status status = read_json(folders, "tokenizer_config.json", &config, err);
    IF_OK(status, json_flag(config, "do_lower_case", true, &is_small, err));
    cJSON_Delete(config);
    IF_OK(status, add_lines(text, size, vocabulary, err));
    if (status == STATUS_OK)
        return read_form(is_small ? "bert, lower case" : "bert", vocabulary, NULL, ret, err);
    cJSON_Delete(vocabulary);
    return status;
}

static enum status read_merges(const char *const *folders, cJSON *to, struct error *err)
{
    char *lines = NULL;
    size_t size;
    enum status status = read_file(folders, "merges.txt", &lines, &size, err);
    if (status == STATUS_NOT_FOUND)
        return error_set(err, STATUS_MODEL, "merges.txt is missing beside it");
    TRY(status);
    status = add_lines(lines, size, to, err);
    free(lines);
    return status;
}

static enum status read_vocabulary_json(const char *const *folders, char *text, size_t size,
                                        struct tokenizer *ret, struct error *err)
{
    cJSON *vocabulary = NULL, *merges = cJSON_CreateArray();
    enum status status = parse(text, size, &vocabulary, err);
    IF_OK(status, read_merges(folders, merges, err));
    if (status == STATUS_OK)
        return read_form(json_get(vocabulary, "<|startoftext|>") ? "clip"
                         : json_get(vocabulary, "<s>")           ? "roberta"
                                                                 : "gpt2",
                         vocabulary, merges, ret, err);
    cJSON_Delete(vocabulary);
    cJSON_Delete(merges);
    return status;
}

static enum status read_whole(const char *const *folders, char *text, size_t size,
                              struct tokenizer *ret, struct error *err)
{
    (void)folders;
    cJSON *json = NULL;
    TRY(parse(text, size, &json, err));
    enum status status = tokenizer_read_json(json, ret, err);
    IF_OK(status, template_read(json_get(json, "post_processor"), ret, err));
    cJSON_Delete(json);
    return status;
}

static enum status read_pieces(const char *const *folders, char *text, size_t size,
                               struct tokenizer *ret, struct error *err)
{
    (void)folders;
    return sentencepiece_read(text, size, ret, err);
}

/* Files that may have the tokenizer, the best first. */
static const struct {
    const char *name;
    enum status (*read)(const char *const *folders, char *text, size_t size, struct tokenizer *ret,
                        struct error *err);
} forms[] = {
    {"tokenizer.json", read_whole},       {"vocab.json", read_vocabulary_json},
    {"vocab.txt", read_vocabulary_text},  {"spiece.model", read_pieces},
    {"tokenizer.model", read_pieces},     {"sentencepiece.bpe.model", read_pieces},
    {"sentencepiece.model", read_pieces},
};

const char *tokenizer_file(size_t i)
{
    return i < COUNT_OF(forms) ? forms[i].name : NULL;
}

static enum status read_vocabulary(const char *const *folders, struct tokenizer *ret,
                                   struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        char *text = NULL;
        size_t size;
        struct error cause = {0};
        enum status status = read_file(folders, forms[i].name, &text, &size, err);
        if (status == STATUS_NOT_FOUND)
            continue;
        TRY(status);
        status = forms[i].read(folders, text, size, ret, &cause);
        free(text);
        return status == STATUS_OK ? status
                                   : error_set(err, status, "%s: %s", forms[i].name, cause.message);
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "there is no tokenizer: no tokenizer.json, vocab.json, "
                     "vocab.txt or model of sentencepiece");
}

/* ---- The configurations ---- */

/* Returns the id of a token, given as a text or {"content": text}; TOKEN_NONE if there is none. */
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

/* Reads the tokens that a class adds to sentencepiece's ids. Refuses unknown classes. */
static enum status read_class(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    static const struct {
        const char *name; /* beginning of the class's name; T5TokenizerFast matches, too */
        bool bos, eos;
    } classes[] = {{"T5Tokenizer", false, true},
                   {"LlamaTokenizer", true, false},
                   {"GemmaTokenizer", true, false},
                   {"PreTrainedTokenizer", false, false}};
    const char *name;
    size_t i = 0;
    bool bos, eos;
    TRY(json_text(json, "tokenizer_class", "PreTrainedTokenizer", &name, err));
    while (i < COUNT_OF(classes) && strncmp(name, classes[i].name, strlen(classes[i].name)) != 0)
        i++;
    if (i == COUNT_OF(classes))
        return error_set(err, STATUS_UNSUPPORTED,
                         "lensd does not know which tokens the tokenizer class %.60s adds to "
                         "sentencepiece's model; put the model's tokenizer.json into the folder",
                         name);
    TRY(json_flag(json, "add_bos_token", classes[i].bos, &bos, err));
    TRY(json_flag(json, "add_eos_token", classes[i].eos, &eos, err));
    return template_set(ret, bos ? ret->bos : TOKEN_NONE, eos ? ret->eos : TOKEN_NONE, err);
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

/* Reads the model's own configuration: its number of positions, its padding token, and whether
 * open_clip cleans texts. */
static enum status read_model_config(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    static const char *const parts[] = {NULL, "text_config", "text_cfg"};
    const char *clean;
    size_t pad;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const cJSON *part = parts[i] ? json_get(json, parts[i]) : json;
        size_t places;
        TRY(json_size(part, "max_position_embeddings", SIZE_MAX, SIZE_MAX, &places, err));
        TRY(json_size(part, "context_length", places, SIZE_MAX, &places, err));
        if (places && places < ret->facts.max_length)
            ret->facts.max_length = places;
        TRY(json_text(json_get(part, "tokenizer_kwargs"), "clean", "", &clean, err));
        if (!strcmp(clean, "canonicalize") && !ret->cleaners.count)
            normalizers_canonicalize(&ret->cleaners);
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

static enum status read_configurations(const char *const *folders, struct tokenizer *ret,
                                       struct error *err)
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
        TRY(read_json(folders, files[i].name, &json, err));
        const enum status status = json ? files[i].read(json, ret, &cause) : STATUS_OK;
        cJSON_Delete(json);
        if (status != STATUS_OK)
            return error_set(err, status, "%s: %s", files[i].name, cause.message);
    }
    return STATUS_OK;
}

enum status tokenizer_read_files(const char *const *folders, struct tokenizer *ret,
                                 struct error *err)
{
    TRY(read_vocabulary(folders, ret, err));
    TRY(read_configurations(folders, ret, err));
    return ret->piece_count ? STATUS_OK : template_set(ret, TOKEN_NONE, TOKEN_NONE, err);
}
