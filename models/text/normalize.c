/* Normalizers: steps that rewrite a part and never split it. */
#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/characters.h"
#include "models/text/pipeline.h"
#include "proto/base64.h"

/* ---- One character at a time ---- */

static void run_filter(const struct text_step *step, const char *text, size_t size, bool at_start,
                       struct text_parts *to)
{
    for (size_t i = 0; i < size;) {
        const size_t start = i;
        if (!step->matches(character_next(text, size, &i)))
            text_parts_add(to, text + start, i - start);
        else if (!start)
            at_start = false;
    }
    text_parts_end(to, -1, at_start);
}

/* True for the CJK ideographs that BERT calls Chinese characters. */
static bool is_chinese(uint32_t c)
{
    static const uint32_t blocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; c >= 0x3400 && i < COUNT_OF(blocks); i++)
        if (c >= blocks[i][0] && c <= blocks[i][1])
            return true;
    return false;
}

static bool is_dropped_by_bert(uint32_t c)
{
    return c == 0 || c == 0xFFFD || (c != '\t' && c != '\n' && c != '\r' && character_is_other(c));
}

/* step->flags: clean_text, handle_chinese_chars. */
static void run_bert(const struct text_step *step, const char *text, size_t size, bool at_start,
                     struct text_parts *to)
{
    for (size_t i = 0; i < size;) {
        const size_t start = i;
        const uint32_t c = character_next(text, size, &i);
        const bool is_padded = step->flags[1] && is_chinese(c);
        if (step->flags[0] && is_dropped_by_bert(c)) {
            at_start &= start > 0;
            continue;
        }
        if (is_padded)
            text_parts_put(to, ' ');
        if (step->flags[0] && character_is_space(c))
            text_parts_put(to, ' ');
        else
            text_parts_add(to, text + start, i - start);
        if (is_padded)
            text_parts_put(to, ' ');
    }
    text_parts_end(to, -1, at_start);
}

static void run_lower(const struct text_step *step, const char *text, size_t size, bool at_start,
                      struct text_parts *to)
{
    (void)step;
    characters_lower(text, size, to);
    text_parts_end(to, -1, at_start);
}

/* ---- The whole part ---- */

/* step->flags: compatible, compose. */
static void run_form(const struct text_step *step, const char *text, size_t size, bool at_start,
                     struct text_parts *to)
{
    characters_normalize(text, size, step->flags[0], step->flags[1], to);
    text_parts_end(to, -1, at_start);
}

/* step->flags: strip_left, strip_right. */
static void run_strip(const struct text_step *step, const char *text, size_t size, bool at_start,
                      struct text_parts *to)
{
    size_t start = 0, end = 0;
    bool is_begun = false;
    for (size_t i = 0; i < size;) {
        const bool is_space = character_is_space(character_next(text, size, &i));
        if (is_space && !is_begun)
            start = i;
        if (!is_space) {
            is_begun = true;
            end = i;
        }
    }
    start = step->flags[0] ? start : 0;
    end = step->flags[1] ? end : size;
    if (start < end)
        text_parts_add(to, text + start, end - start);
    text_parts_end(to, -1, at_start && !start);
}

static void run_prepend(const struct text_step *step, const char *text, size_t size, bool at_start,
                        struct text_parts *to)
{
    text_parts_add(to, step->content, step->content_size);
    text_parts_add(to, text, size);
    text_parts_end(to, -1, at_start);
}

struct replacement {
    const struct text_step *step;
    const char *text;
    struct text_parts *to;
    bool at_start;
};

static void replace_segment(void *context, size_t start, size_t end, bool is_match)
{
    struct replacement *r = context;
    if (!is_match) {
        text_parts_add(r->to, r->text + start, end - start);
        return;
    }
    text_parts_add(r->to, r->step->content, r->step->content_size);
    /* The replacement stands for the last character of the match. So if a match at the start has
     * several characters, the result does not begin with the text's first character. */
    size_t first = start;
    if (!start && end && (character_next(r->text, end, &first), first < end))
        r->at_start = false;
}

static void run_replace(const struct text_step *step, const char *text, size_t size, bool at_start,
                        struct text_parts *to)
{
    struct replacement replacement = {step, text, to, at_start};
    const enum status status =
        text_regex_each(step->regex, text, size, replace_segment, &replacement);
    if (status != STATUS_OK && !to->failed)
        to->failed = status;
    text_parts_end(to, -1, replacement.at_start);
}

/* ---- Precompiled: sentencepiece's table of replacements ---- */

/* The table is a double array of 32-bit units (Darts). The replacements follow the units; a value
 * of the double array is the offset of a replacement. */
const char *charsmap_find(const struct text_step *step, const char *text, size_t size,
                          bool is_longest, size_t *ret_key, size_t *ret_length)
{
    if (!step->length) /* there is no table */
        return NULL;
    const uint32_t *units = (const uint32_t *)(const void *)step->content;
    const char *texts = step->content + step->length * sizeof *units, *found = NULL;
    const size_t texts_size = step->content_size - step->length * sizeof *units;
#define OFFSET(unit) ((size_t)((unit) >> 10) << (((unit)&0x200) >> 6))
    size_t at = OFFSET(units[0]);
    for (size_t i = 0; i < size && text[i] && (is_longest || !found); i++) {
        at ^= (uint8_t)text[i];
        if (at >= step->length || (units[at] & 0x800000FF) != (uint8_t)text[i])
            break;
        const uint32_t unit = units[at];
        at ^= OFFSET(unit);
        const size_t place = unit & 0x100 && at < step->length ? units[at] & 0x7FFFFFFF : SIZE_MAX;
        if (place >= texts_size)
            continue;
        *ret_key = i + 1;
        *ret_length = strnlen(texts + place, texts_size - place);
        found = texts + place;
    }
    return found;
#undef OFFSET
}

/* Grapheme clusters of this size or more are looked up character by character. */
enum { CLUSTER_BYTES = 6 };

static void run_precompiled(const struct text_step *step, const char *text, size_t size,
                            bool at_start, struct text_parts *to)
{
    size_t length, found, key;
    for (size_t i = 0; i < size; i += length) {
        length = characters_grapheme(text + i, size - i);
        const char *made = length < CLUSTER_BYTES
                               ? charsmap_find(step, text + i, length, false, &key, &found)
                               : NULL;
        if (made) {
            text_parts_add(to, made, found);
            continue;
        }
        for (size_t c = i, start = i; c < i + length; start = c) {
            character_next(text, i + length, &c);
            made = charsmap_find(step, text + start, c - start, false, &key, &found);
            text_parts_add(to, made ? made : text + start, made ? found : c - start);
        }
    }
    text_parts_end(to, -1, at_start);
}

enum status charsmap_set(struct text_step *step, const uint8_t *bytes, size_t size,
                         struct error *err)
{
    const size_t trie = size < 4 ? 0
                                 : bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 |
                                       (size_t)bytes[3] << 24;
    if (trie < 4 || trie % 4 || trie > size - 4)
        return json_wrong("precompiled_charsmap", "a table of sentencepiece", err);
    step->run = run_precompiled;
    step->length = trie / 4;
    step->content_size = size - 4;
    step->content = malloc(size - 4);
    TRY(check_memory(step->content, "for a tokenizer", err));
    memcpy(step->content, bytes + 4, size - 4);
    return STATUS_OK;
}

static enum status read_precompiled(const cJSON *json, struct step_list *list,
                                    struct text_step *step, struct error *err)
{
    const char *text;
    size_t size = 0;
    TRY(json_text(json, "precompiled_charsmap", "", &text, err));
    if (!*text) { /* there is no table: remove the new step */
        list->count--;
        return STATUS_OK;
    }
    uint8_t *bytes = malloc(strlen(text) / 4 * 3 + 3);
    TRY(check_memory(bytes, "for a tokenizer", err));
    enum status status = base64_decode(text, strlen(text), bytes, &size, err);
    IF_OK(status, charsmap_set(step, bytes, size, err));
    free(bytes);
    return status == STATUS_OK || status == STATUS_NO_MEMORY
               ? status
               : error_set(err, STATUS_MODEL, "%s", err->message);
}

/* ---- tokenizer.json ---- */

static enum status read_bert(const cJSON *json, struct step_list *list, struct text_step *step,
                             struct error *err)
{
    bool is_lower, strips;
    (void)step;
    TRY(json_flag(json, "lowercase", true, &is_lower, err));
    TRY(json_flag(json, "strip_accents", is_lower, &strips, err));
    if (strips) {
        step_add(list, (struct text_step){run_form});
        step_add(list, (struct text_step){run_filter, character_is_nonspacing});
    }
    if (is_lower)
        step_add(list, (struct text_step){run_lower});
    return STATUS_OK;
}

static bool is_ascii_sign(uint32_t c)
{
    return c < 128 && ispunct((int)c);
}

void normalizers_canonicalize(struct step_list *list)
{
    step_add(list, (struct text_step){run_filter, is_ascii_sign});
    step_add(list, (struct text_step){run_lower});
}

enum status normalizers_read(const cJSON *json, struct step_list *list, struct error *err)
{
    static const struct step_kind kinds[] = {
        {"NFD", {run_form}},
        {"NFC", {run_form, .flags = {false, true}}},
        {"NFKD", {run_form, .flags = {true, false}}},
        {"NFKC", {run_form, .flags = {true, true}}},
        {"Lowercase", {run_lower}},
        {"StripAccents", {run_filter, character_is_mark}},
        {"Strip", {run_strip, .flags = {true, true}}, .flag_keys = {"strip_left", "strip_right"}},
        {"Replace", {run_replace}, .has_pattern = true, .content_key = "content"},
        {"Prepend", {run_prepend}, .content_key = "prepend"},
        {"BertNormalizer",
         {run_bert, .flags = {true, true}},
         .flag_keys = {"clean_text", "handle_chinese_chars"},
         .read = read_bert},
        {"Precompiled", {run_precompiled}, .read = read_precompiled},
        {"ByteLevel", {step_bytes}},
    };
    return steps_read(json, "normalizer", "normalizers", kinds, COUNT_OF(kinds), 0, list, err);
}
