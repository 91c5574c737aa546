/* Turns a text into ids, through the stages of a tokenizer. */
#include "models/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/text/pipeline.h"

enum status tokenizer_open(const char *const *folders, struct tokenizer **ret, struct error *err)
{
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    TRY(check_memory(tokenizer, "for a tokenizer", err));
    tokenizer->facts.max_length = SIZE_MAX;
    tokenizer->facts.length_multiple = 1;
    const enum status status = tokenizer_read_files(folders, tokenizer, err);
    const struct token_model *model = &tokenizer->model;
    const size_t after = model->size + tokenizer->added.new_count;
    tokenizer->facts.vocabulary_size =
        after > model->vocabulary.count ? after : model->vocabulary.count;
    tokenizer->facts.kind = model->kind;
    for (size_t i = 0; i < tokenizer->pre_tokenizers.count; i++)
        if (tokenizer->pre_tokenizers.steps[i].run == step_bytes)
            tokenizer->facts.kind = "byte-level BPE";
    if (status != STATUS_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    *ret = tokenizer;
    return STATUS_OK;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    added_tokens_done(&tokenizer->added);
    steps_done(&tokenizer->cleaners);
    steps_done(&tokenizer->normalizers);
    steps_done(&tokenizer->pre_tokenizers);
    token_model_done(&tokenizer->model);
    free(tokenizer);
}

const struct tokenizer_facts *tokenizer_facts(const struct tokenizer *tokenizer)
{
    return &tokenizer->facts;
}

const char *tokenizer_describe(const struct tokenizer *tokenizer, char *buffer, size_t size)
{
    const struct tokenizer_facts *facts = &tokenizer->facts;
    if (facts->max_length == SIZE_MAX)
        snprintf(buffer, size, "%s, %zu tokens", facts->kind, facts->vocabulary_size);
    else
        snprintf(buffer, size, "%s, %zu tokens, texts of up to %zu", facts->kind,
                 facts->vocabulary_size, facts->max_length);
    return buffer;
}

/* ---- Encoding ---- */

static void make_ids(const struct tokenizer *tokenizer, const char *text, size_t size,
                     struct id_list *ids)
{
    struct text_parts parts = {0}, spare = {0};
    const struct added_tokens *added = &tokenizer->added;
    text_parts_add_part(&parts, text, size, -1, true);
    steps_run(&tokenizer->cleaners, &parts, &spare);
    step_run(&(struct text_step){.run = step_added, .added = added, .trie = &added->raw}, &parts,
             &spare);
    steps_run(&tokenizer->normalizers, &parts, &spare);
    step_run(&(struct text_step){.run = step_added, .added = added, .trie = &added->normalized},
             &parts, &spare);
    steps_run(&tokenizer->pre_tokenizers, &parts, &spare);
    ids->failed = parts.failed;
    for (size_t i = 0; i < parts.count && !ids->failed; i++)
        if (parts.list[i].token >= 0)
            ids_add(ids, parts.list[i].token);
        else
            tokenizer->model.tokenize(&tokenizer->model, parts.text + parts.list[i].start,
                                      parts.list[i].size, ids);
    text_parts_done(&parts);
    text_parts_done(&spare);
}

static enum status explain(enum status status, struct error *err)
{
    if (status == STATUS_TOO_LARGE)
        return error_set(err, status,
                         "the tokenizer makes the text longer than %zu bytes; shorten it",
                         PARTS_BYTES_MAX);
    if (status == STATUS_INVALID)
        return error_set(err, status,
                         "the tokenizer cannot split the text: it has a character that "
                         "the vocabulary lacks, or takes too many steps");
    return error_no_memory(err, "for the tokens of a text");
}

/* Removes ids until `added` more ids fit. */
static enum status fit(const struct tokenizer *tokenizer, const struct encode_options *options,
                       struct id_list *ids, size_t added, struct error *err)
{
    const size_t most = options->max_length ? options->max_length : tokenizer->facts.max_length;
    if (added > most)
        return error_set(err, STATUS_INVALID,
                         "%zu tokens are too few: the model adds %zu special tokens to each text",
                         most, added);
    if (ids->count <= most - added)
        return STATUS_OK;
    if (!options->truncate && !tokenizer->facts.truncates)
        return error_set(err, STATUS_INVALID,
                         "the text has %zu tokens, but the model takes %zu; shorten it, or ask to "
                         "truncate it",
                         ids->count + added, most);
    if (tokenizer->truncates_left)
        memmove(ids->ids, ids->ids + ids->count - (most - added),
                (most - added) * sizeof *ids->ids);
    ids->count = most - added;
    return STATUS_OK;
}

/* Writes the tokens of the template's pieces. */
static enum status place(const struct tokenizer *tokenizer, bool has_special,
                         const struct id_list *ids, struct token_list *ret, struct error *err)
{
    const size_t most = ids->count + tokenizer->facts.added_count;
    ret->ids = alloc_array(most, 2 * sizeof *ret->ids);
    TRY(check_memory(ret->ids, "for the tokens of a text", err));
    ret->types = ret->ids + most;
    for (size_t p = 0; p < tokenizer->piece_count; p++) {
        const struct template_piece *piece = &tokenizer->pieces[p];
        const size_t count = piece->id < 0 ? ids->count : has_special;
        for (size_t i = 0; i < count; i++) {
            ret->ids[ret->count] = piece->id < 0 ? ids->ids[i] : piece->id;
            ret->types[ret->count++] = piece->type;
        }
    }
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size,
                             const struct encode_options *options, struct token_list *ret,
                             struct error *err)
{
    struct id_list ids = {0};
    const size_t added = options->omit_special ? 0 : tokenizer->facts.added_count;
    memset(ret, 0, sizeof *ret);
    if (size > TOKENIZER_TEXT_MAX)
        return error_set(err, STATUS_TOO_LARGE, "the text has %zu bytes; the limit is %zu", size,
                         TOKENIZER_TEXT_MAX);
    if (!utf8_valid(text, size))
        return error_set(err, STATUS_INVALID, "the text is not UTF-8");
    make_ids(tokenizer, text, size, &ids);
    enum status status = ids.failed ? explain(ids.failed, err) : STATUS_OK;
    IF_OK(status, fit(tokenizer, options, &ids, added, err));
    IF_OK(status, place(tokenizer, !options->omit_special, &ids, ret, err));
    FREE_ALL(ids.ids, ids.scratch);
    return status;
}

void token_list_done(struct token_list *list)
{
    free(list->ids); /* frees the types, too */
    memset(list, 0, sizeof *list);
}

int64_t tokenizer_cell(const struct tokenizer *tokenizer, const struct token_list *list,
                       size_t length, enum text_input_kind kind, size_t i)
{
    const struct tokenizer_facts *facts = &tokenizer->facts;
    const size_t before = facts->pads_left ? length - list->count : 0;
    const bool is_token = i >= before && i - before < list->count;
    return kind == TEXT_MASK  ? is_token
           : kind == TEXT_IDS ? (is_token ? list->ids[i - before] : facts->pad_id)
                              : (is_token ? list->types[i - before] : facts->pad_type_id);
}
