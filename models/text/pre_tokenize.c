/* Pre-tokenizers: steps that split a part into words. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/text/characters.h"
#include "models/text/pipeline.h"

/* GPT-2's pattern, which ByteLevel uses. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- By characters ---- */

static struct splitter splitter_of(const struct text_step *step, const char *text, bool at_start,
                                   struct text_parts *to)
{
    return (struct splitter){
        .to = to, .text = text, .behavior = step->behavior, .at_start = at_start};
}

/* Splits at characters; each is a separate match. */
static void run_characters(const struct text_step *step, const char *text, size_t size,
                           bool at_start, struct text_parts *to)
{
    struct splitter splitter = splitter_of(step, text, at_start, to);
    size_t done = 0;
    for (size_t i = 0; i < size;) {
        const size_t start = i;
        const uint32_t c = character_next(text, size, &i);
        if (!(step->matches ? step->matches(c) : c == step->character))
            continue;
        if (start > done)
            splitter_add(&splitter, done, start, false);
        splitter_add(&splitter, start, i, true);
        done = i;
    }
    if (done < size)
        splitter_add(&splitter, done, size, false);
    splitter_end(&splitter);
}

/* ---- By patterns ---- */

struct pattern_split {
    struct splitter splitter;
    bool is_inverted;
};

static void split_segment(void *context, size_t start, size_t end, bool is_match)
{
    struct pattern_split *split = context;
    splitter_add(&split->splitter, start, end, is_match != split->is_inverted);
}

/* step->flags: invert. */
static void run_split(const struct text_step *step, const char *text, size_t size, bool at_start,
                      struct text_parts *to)
{
    struct pattern_split split = {splitter_of(step, text, at_start, to), step->flags[0]};
    const enum status status = text_regex_each(step->regex, text, size, split_segment, &split);
    if (status != STATUS_OK && !to->failed)
        to->failed = status;
    splitter_end(&split.splitter);
}

/* ---- ByteLevel ---- */

void step_bytes(const struct text_step *step, const char *text, size_t size, bool at_start,
                struct text_parts *to)
{
    char *out = text_parts_room(to, size > PARTS_BYTES_MAX ? size : 2 * size);
    (void)step;
    if (!out)
        return;
    for (size_t i = 0; i < size; i++) {
        /* Printable Latin-1 bytes stand for themselves; the rest become U+0100, U+0101 … */
        const uint8_t b = (uint8_t)text[i];
        uint32_t c = b;
        if (b <= ' ')
            c = 0x100 + b;
        else if (b >= 0x7F && b <= 0xA0)
            c = 0x121 + b - 0x7F;
        else if (b == 0xAD)
            c = 0x143;
        out += utf8_put(c, out);
    }
    to->size = (size_t)(out - to->text);
    text_parts_end(to, -1, at_start);
}

/* Replaces blanks by step->content. flags[0]: also prepends step->content; flags[1]: prepends it
 * only to the part at the text's start. */
static void run_blanks(const struct text_step *step, const char *text, size_t size, bool at_start,
                       struct text_parts *to)
{
    if (step->flags[0] && (at_start || !step->flags[1]) && text[0] != ' ' &&
        (size < step->content_size || memcmp(text, step->content, step->content_size) != 0))
        text_parts_add(to, step->content, step->content_size);
    for (size_t i = 0, end; i < size; i = end + 1) {
        const char *blank = memchr(text + i, ' ', size - i);
        end = blank ? (size_t)(blank - text) : size;
        text_parts_add(to, text + i, end - i);
        if (blank)
            text_parts_add(to, step->content, step->content_size);
    }
    text_parts_end(to, -1, at_start);
}

static enum status read_byte_level(const cJSON *json, struct step_list *list,
                                   struct text_step *step, struct error *err)
{
    bool has_prefix, has_pattern;
    TRY(json_flag(json, "add_prefix_space", true, &has_prefix, err));
    TRY(json_flag(json, "use_regex", true, &has_pattern, err));
    if (has_prefix) { /* run_blanks() replaces blanks by blanks, and prepends one */
        step->run = run_blanks;
        step->flags[0] = true;
        step->content_size = 1;
        step->content = strdup(" ");
        TRY(check_memory(step->content, "for a tokenizer", err));
        step = step_add(list, (struct text_step){step_bytes});
    }
    if (has_pattern) {
        step->run = run_split;
        step->behavior = SPLIT_ISOLATED;
        TRY(text_regex_create(GPT2_PATTERN, false, &step->regex, err));
        step_add(list, (struct text_step){step_bytes});
    }
    return STATUS_OK;
}

/* ---- Metaspace ---- */

static enum status read_metaspace(const cJSON *json, struct step_list *list, struct text_step *step,
                                  struct error *err)
{
    const char *scheme;
    bool prefixes, splits;
    size_t length;
    TRY(json_text(json, "prepend_scheme", "always", &scheme, err));
    TRY(json_flag(json, "add_prefix_space", true, &prefixes, err));
    TRY(json_flag(json, "split", true, &splits, err));
    step->flags[0] = prefixes && strcmp(scheme, "never") != 0;
    step->flags[1] = !strcmp(scheme, "first");
    const uint32_t replacement = utf8_character(step->content, step->content_size, &length);
    if (!step->content_size || length != step->content_size)
        return json_wrong("replacement", "one character", err);
    if (!step->flags[1] && strcmp(scheme, "always") != 0 && strcmp(scheme, "never") != 0)
        return json_wrong("prepend_scheme", "\"first\", \"always\" or \"never\"", err);
    if (splits)
        step_add(list, (struct text_step){run_characters, .character = replacement,
                                          .behavior = SPLIT_MERGED_WITH_NEXT});
    return STATUS_OK;
}

/* ---- tokenizer.json ---- */

static enum status read_digits(const cJSON *json, struct step_list *list, struct text_step *step,
                               struct error *err)
{
    bool is_each;
    (void)list;
    TRY(json_flag(json, "individual_digits", false, &is_each, err));
    step->behavior = is_each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return STATUS_OK;
}

enum status pre_tokenizers_read(const cJSON *json, struct step_list *list, struct error *err)
{
    static const struct step_kind kinds[] = {
        {"ByteLevel", {step_bytes}, .read = read_byte_level},
        {"Split", {run_split}, .flag_keys = {"invert"}, .has_pattern = true, .has_behavior = true},
        {"Metaspace", {run_blanks}, .content_key = "replacement", .read = read_metaspace},
        {"Whitespace",
         {run_characters, character_is_space}, /* \w+|[^\w\s]+ */
         {run_characters, character_is_word, .behavior = SPLIT_CONTIGUOUS}},
        {"WhitespaceSplit", {run_characters, character_is_space}},
        {"BertPreTokenizer",
         {run_characters, character_is_space},
         {run_characters, character_is_punctuation, .behavior = SPLIT_ISOLATED}},
        {"Punctuation", {run_characters, character_is_punctuation}, .has_behavior = true},
        {"Digits", {run_characters, character_is_number}, .read = read_digits},
    };
    return steps_read(json, "pre-tokenizer", "pretokenizers", kinds, COUNT_OF(kinds), 0, list, err);
}
