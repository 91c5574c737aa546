/* Regular expressions by PCRE2, with limits. They run as just-in-time compiled code if the process
 * may make memory executable, else in the interpreter. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/text/regex.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/parts.h"

enum { STEPS_MAX = 20000000, HEAP_MAX_KIB = 65536, PATTERN_MAX = 4096 };

struct text_regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

/* Oniguruma's sets, as parts of a class. In PCRE2, U+180E is a blank, \w depends on the version,
 * and a script includes characters that several scripts use. */
#define SPACES "\\p{Z}\\t-\\r\\x{85}"
#define WORDS                                                                                      \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{"     \
    "1F169}"                                                                                       \
    "\\x{1F170}-\\x{1F189}"

static const struct {
    const char *ruby, *set;
    bool is_negated; /* outside of classes only */
} sets[] = {
    {"\\s", SPACES},
    {"\\S", SPACES, true},
    {"\\w", WORDS},
    {"\\W", WORDS, true},
    {"\\h", "0-9a-fA-F"},
    {"[:punct:]", "\\p{P}\\p{S}"},
    {"\\p{Han}", "\\p{sc:Han}"},
    {"\\p{Hiragana}", "\\p{sc:Hiragana}"},
    {"\\p{Katakana}", "\\p{sc:Katakana}"},
};

static void put(struct text_parts *to, const char *text)
{
    text_parts_add(to, text, strlen(text));
}

/* Writes the set at the start of a pattern. Returns its length in the pattern, or 0. */
static size_t put_set(const char *pattern, bool in_class, struct text_parts *to)
{
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        const size_t length = strlen(sets[i].ruby);
        if (strncmp(pattern, sets[i].ruby, length) != 0 || (in_class && sets[i].is_negated))
            continue;
        put(to, in_class ? "" : sets[i].is_negated ? "[^" : "[");
        put(to, sets[i].set);
        put(to, in_class ? "" : "]");
        return length;
    }
    return 0;
}

/* Translates Ruby's syntax. Returns false for nested classes and &&, which PCRE2 lacks. */
static bool translate(const char *pattern, struct text_parts *to)
{
    size_t class_start = 0, length; /* where an open class begins; 0: none is open */
    bool in_name = false;           /* [:alpha:] */
    for (size_t i = 0; pattern[i]; i += length) {
        length = put_set(pattern + i, class_start, to);
        if (length)
            continue;
        length = pattern[i] == '\\' && pattern[i + 1] ? 2 : 1;
        const bool opens = pattern[i] == '[', names = opens && pattern[i + 1] == ':';
        if (class_start && ((opens && !names) || !strncmp(pattern + i, "&&", 2)))
            return false;
        if (opens && !class_start)
            class_start = i + 1 + (pattern[i + 1] == '^');
        else if (names)
            in_name = true;
        else if (pattern[i] == ']' && class_start && i > class_start) {
            class_start = in_name ? class_start : 0;
            in_name = false;
        }
        text_parts_add(to, pattern + i, length);
    }
    return true;
}

static enum status refuse(const char *pattern, const char *why, struct error *err)
{
    return error_set(err, STATUS_UNSUPPORTED, "the pattern \"%.100s\" cannot be used: %s", pattern,
                     why);
}

static enum status compile(struct text_regex *regex, const char *shown, const char *pattern,
                           size_t size, uint32_t options, struct error *err)
{
    int code;
    size_t at;
    char why[120];
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    regex->limits = pcre2_match_context_create(NULL);
    if (context && regex->limits) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(context, 50);
        pcre2_set_match_limit(regex->limits, STEPS_MAX);
        pcre2_set_heap_limit(regex->limits, HEAP_MAX_KIB);
        regex->code = pcre2_compile((PCRE2_SPTR)pattern, size, options, &code, &at, context);
    }
    pcre2_compile_context_free(context);
    TRY(check_memory(context && regex->limits, "for a pattern", err));
    if (!regex->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return refuse(shown, why, err);
    }
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    return STATUS_OK;
}

enum status text_regex_create(const char *pattern, bool literal, struct text_regex **ret,
                              struct error *err)
{
    struct text_regex *regex = calloc(1, sizeof *regex);
    struct text_parts text = {0};
    enum status status = STATUS_OK;
    if (literal)
        put(&text, pattern);
    else if (!translate(pattern, &text))
        status = refuse(pattern, "lensd does not support nested sets", err);
    if (!regex || text.failed)
        status = error_no_memory(err, "for a pattern");
    else if (status == STATUS_OK && (!text.size || text.size > PATTERN_MAX))
        status = refuse(pattern, text.size ? "it is too long" : "it is empty", err);
    IF_OK(status,
          compile(regex, pattern, text.text, text.size,
                  literal ? PCRE2_UTF | PCRE2_LITERAL | PCRE2_NO_UTF_CHECK
                          : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                  err));
    text_parts_done(&text);
    *ret = regex;
    return status;
}

void text_regex_free(struct text_regex *regex)
{
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    pcre2_match_context_free(regex->limits);
    free(regex);
}

/* Finds the first match from `at` on. Uses the interpreter if the compiled code lacks stack. */
static int find(const struct text_regex *regex, const char *text, size_t size, size_t at,
                pcre2_match_data *data)
{
    int found = pcre2_match(regex->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, data,
                            regex->limits);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(regex->code, (PCRE2_SPTR)text, size, at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, regex->limits);
    return found;
}

enum status text_regex_each(const struct text_regex *regex, const char *text, size_t size,
                            text_segment_fn *on_segment, void *context)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex->code, NULL);
    if (!data)
        return STATUS_NO_MEMORY;
    const size_t *match = pcre2_get_ovector_pointer(data);
    size_t done = 0, at = 0;
    bool had_match = false;
    int found = 1;
    while (at <= size && (found = find(regex, text, size, at, data)) > 0) {
        const size_t start = match[0], end = match[1];
        at = end;
        /* After an empty match the search skips a character. An empty match right behind another
         * match is ignored. */
        if (start == end) {
            for (at++; at < size && ((uint8_t)text[at] & 0xC0) == 0x80;)
                at++;
            if (had_match && start == done)
                continue;
        }
        if (start > done)
            on_segment(context, done, start, false);
        on_segment(context, start, end, true);
        done = end;
        had_match = true;
    }
    pcre2_match_data_free(data);
    if (found <= 0 && found != PCRE2_ERROR_NOMATCH)
        return found == PCRE2_ERROR_NOMEMORY ? STATUS_NO_MEMORY : STATUS_INVALID;
    if (done < size)
        on_segment(context, done, size, false);
    return STATUS_OK;
}
