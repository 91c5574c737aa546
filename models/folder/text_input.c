/* Finds the inputs that take tokens, and fills them with texts. */
#include "models/folder/text_input.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

#define TEXT_FILE_LENGTH_MAX 65536 /* most tokens per row that a file may fix */
#define SHORTEST_ROW         16    /* tokens; shorter rows are hardly faster */
#define SHORTEST_PART        16    /* a row has at least 1 / 16 of the full length */

enum text_input_kind text_input_named(const char *name)
{
    static const struct {
        const char *name;
        enum text_input_kind kind;
    } names[] = {
        {"input_ids", TEXT_IDS},        {"text", TEXT_IDS},
        {"tokens", TEXT_IDS},           {"text_tokens", TEXT_IDS},
        {"attention_mask", TEXT_MASK},  {"text_attention_mask", TEXT_MASK},
        {"token_type_ids", TEXT_TYPES},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i].name, name))
            return names[i].kind;
    return TEXT_NONE;
}

enum text_input_kind text_input_kind_of(const struct value *input)
{
    const bool is_row =
        input->shape.rank == 2 && (input->dtype == DTYPE_I64 || input->dtype == DTYPE_I32);
    return is_row ? text_input_named(input->name) : TEXT_NONE;
}

/* True if the graph takes tokens; other inputs must not exist, unless `beside` is set. Lists the
 * inputs for tokens in *ret. */
static bool find_inputs(const struct graph *graph, bool beside, struct text_input *ret)
{
    bool has_ids = false;
    for (size_t i = 0; i < graph->input_count; i++) {
        const int64_t length = graph->inputs[i]->shape.dims[1];
        const size_t at = ret->input_count;
        const enum text_input_kind kind = text_input_kind_of(graph->inputs[i]);
        if (beside && !kind)
            continue;
        if (at == TEXT_INPUTS_MAX || !kind ||
            (length != DIM_UNKNOWN && (length < 1 || length > TEXT_FILE_LENGTH_MAX)))
            return false;
        has_ids = has_ids || kind == TEXT_IDS;
        ret->kinds[at] = kind;
        ret->at[at] = i;
        ret->are_32[at] = graph->inputs[i]->dtype == DTYPE_I32;
        ret->input_count++;
    }
    return has_ids;
}

void text_input_place(const struct graph *graph, struct text_input *text)
{
    for (size_t i = 0, k = 0; i < graph->input_count && k < text->input_count; i++)
        if (text_input_kind_of(graph->inputs[i]))
            text->at[k++] = i;
}

static void set_length(struct graph *graph, bool beside, struct text_input *text)
{
    const struct tokenizer_facts *facts = tokenizer_facts(text->tokenizer);
    const size_t wanted = facts->fixed_length ? facts->fixed_length : facts->max_length;
    const size_t most = beside                ? TEXT_BESIDE_MAX
                        : facts->fixed_length ? TEXT_FILE_LENGTH_MAX
                                              : TEXT_LENGTH_MAX;
    text->length = wanted < most ? wanted : most;
    bool has_mask = false, is_free = true;
    for (size_t i = 0; i < text->input_count; i++) {
        has_mask = has_mask || text->kinds[i] == TEXT_MASK;
        if (graph->inputs[text->at[i]]->shape.dims[1] == DIM_UNKNOWN)
            continue;
        text->length = (size_t)graph->inputs[text->at[i]]->shape.dims[1];
        is_free = false;
    }
    text->allows_short_rows = has_mask && is_free && !beside && !facts->pads_left;
    text_input_set_length(graph, text, text->length);
}

void text_input_set_length(const struct graph *graph, struct text_input *text, size_t length)
{
    text->length = length;
    for (size_t i = 0; i < text->input_count; i++)
        graph->inputs[text->at[i]]->shape.dims[1] = (int64_t)length;
}

size_t text_input_row_length(const struct text_input *text, size_t tokens)
{
    size_t length = SHORTEST_ROW;
    while (length < tokens || length * SHORTEST_PART < text->length)
        length *= 2;
    return text->allows_short_rows && length < text->length ? length : text->length;
}

enum status text_input_read(struct graph *graph, bool beside, const char *const *folders,
                            struct text_input *ret, struct error *err)
{
    struct text_input text = {0};
    *ret = text;
    if (!find_inputs(graph, beside, &text))
        return STATUS_OK;
    const enum status status = tokenizer_open(folders, &text.tokenizer, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    set_length(graph, beside, &text);
    *ret = text;
    return STATUS_OK;
}

void text_input_done(struct text_input *text)
{
    tokenizer_free(text->tokenizer);
    *text = (struct text_input){0};
}

void text_rows_done(struct text_rows *rows)
{
    for (size_t i = 0; i < TEXT_INPUTS_MAX; i++)
        free(rows->inputs[i]);
    *rows = (struct text_rows){0};
}

static enum status take_ids(const struct text_input *text, const struct text_item *item,
                            bool truncate, struct token_list *ret, struct error *err)
{
    const size_t vocabulary = tokenizer_facts(text->tokenizer)->vocabulary_size;
    const size_t count = truncate && item->id_count > text->length ? text->length : item->id_count;
    if (count > text->length)
        return error_set(err, STATUS_INVALID,
                         "the text has %zu tokens, but the model takes at most %zu; shorten it, or "
                         "set \"truncate\" to true",
                         count, text->length);
    for (size_t i = 0; i < count; i++)
        if (item->ids[i] < 0 || (uint64_t)item->ids[i] >= vocabulary)
            return error_set(err, STATUS_INVALID,
                             "token %lld is not in the model's vocabulary of %zu",
                             (long long)item->ids[i], vocabulary);
    int64_t *ids = alloc_array(2 * count, sizeof *ids);
    TRY(check_memory(ids, "for the tokens of a text", err));
    *ret = (struct token_list){ids, ids + count, count};
    memcpy(ret->ids, item->ids, count * sizeof *ret->ids);
    return STATUS_OK;
}

static enum status text_encode(const struct text_input *text, const struct text_item *item,
                               bool truncate, struct token_list *ret, struct error *err)
{
    const struct encode_options options = {.max_length = text->length, .truncate = truncate};
    if (!item->text && item->id_count)
        return take_ids(text, item, truncate, ret, err);
    if (!item->text || !item->size)
        return error_set(err, STATUS_INVALID, "the text is empty; send at least one %s",
                         item->text ? "character" : "token");
    return tokenizer_encode(text->tokenizer, item->text, item->size, &options, ret, err);
}

/* Writes row `row` of all inputs. */
static void write_row(const struct text_input *text, const struct token_list *tokens, size_t row,
                      struct text_rows *ret)
{
    const size_t length = text->length;
    for (size_t i = 0; i < text->input_count; i++)
        for (size_t k = 0; k < length; k++) {
            const int64_t number =
                tokenizer_cell(text->tokenizer, tokens, length, text->kinds[i], k);
            if (text->are_32[i])
                ((int32_t *)ret->inputs[i])[row * length + k] = (int32_t)number;
            else
                ((int64_t *)ret->inputs[i])[row * length + k] = number;
        }
}

enum status text_rows_make(const struct text_input *text, const struct text_item *items,
                           size_t count, bool truncate, struct text_rows *ret, struct error *err)
{
    size_t cells;
    *ret = (struct text_rows){0};
    bool has_room = size_mul(count, text->length, &cells);
    for (size_t i = 0; has_room && i < text->input_count; i++) {
        ret->inputs[i] = alloc_array(cells, text->are_32[i] ? sizeof(int32_t) : sizeof(int64_t));
        has_room = ret->inputs[i] != NULL;
    }
    TRY(check_memory(has_room, "for the tokens of texts", err));
    for (size_t r = 0; r < count; r++) {
        struct token_list tokens = {0};
        if (text_encode(text, &items[r], truncate, &tokens, err) != STATUS_OK)
            return count > 1 ? error_prefix(err, "text %zu", r) : err->status;
        write_row(text, &tokens, r, ret);
        ret->tokens += tokens.count;
        ret->longest = tokens.count > ret->longest ? tokens.count : ret->longest;
        token_list_done(&tokens);
    }
    return STATUS_OK;
}

void text_rows_shorten(const struct text_input *text, size_t count, size_t length,
                       struct text_rows *rows)
{
    for (size_t i = 0; i < text->input_count; i++) {
        const size_t size = text->are_32[i] ? sizeof(int32_t) : sizeof(int64_t);
        char *row = rows->inputs[i];
        for (size_t r = 1; r < count; r++)
            memmove(row + r * length * size, row + r * text->length * size, length * size);
    }
}
