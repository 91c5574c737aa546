/* Reads protobuf's text format: messages in {} or <>, lists in [], a colon before every plain
 * value, an optional ',' or ';' after a field. Refuses what Triton would refuse, so that no file is
 * read only in part. Does not check names and types. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "models/folder/model_internal.h"

enum expected {
    FIELD,         /* a name, or the end of the message */
    ITEM,          /* a value of a list */
    FIRST_OR_NONE, /* a value of a list, or its end */
    AFTER_VALUE,
};

enum { NAME_MOST = 40 };

struct syntax {
    char *text, *at;
    const char *open[PBTXT_DEPTH_MAX];      /* for each level, its opening bracket in the text */
    size_t path_sizes[PBTXT_DEPTH_MAX + 1]; /* bytes of `path` that belong to each level */
    size_t depth;
    char path[(PBTXT_DEPTH_MAX + 1) * (NAME_MOST + 1)];
    pbtxt_fn *on_value;
    void *context;
    struct error *err;
};

static size_t line_of(const char *text, const char *at)
{
    size_t line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

static bool in_list(const struct syntax *s)
{
    return s->depth > 0 && *s->open[s->depth - 1] == '[';
}

/* Passes the value text[0 … size) to on_value. */
static enum status report(const struct syntax *s, enum pbtxt_kind kind, const char *text,
                          size_t size, bool is_negative)
{
    const struct pbtxt_value value = {s->path, kind, text, size, is_negative, in_list(s)};
    const enum status status = s->on_value(s->context, &value, s->err);
    return status == STATUS_MODEL ? error_prefix(s->err, "line %zu", line_of(s->text, s->at))
                                  : status;
}

static bool is_letter(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static enum status refuse(const struct syntax *s, const char *expected)
{
    const size_t line = line_of(s->text, s->at);
    const unsigned char c = (unsigned char)*s->at;
    if (!c && s->depth > 0)
        return error_set(s->err, STATUS_MODEL, "line %zu: the '%c' of line %zu is never closed",
                         line, *s->open[s->depth - 1], line_of(s->text, s->open[s->depth - 1]));
    if (!c)
        return error_set(s->err, STATUS_MODEL, "line %zu: expected %s, but the file ends", line,
                         expected);
    if (c < 0x20 || c > 0x7E)
        return error_set(s->err, STATUS_MODEL, "line %zu: expected %s, not the byte 0x%02x", line,
                         expected, c);
    return error_set(s->err, STATUS_MODEL, "line %zu: expected %s, not '%c'", line, expected, c);
}

static void skip_blanks_and_comments(struct syntax *s)
{
    for (;;) {
        s->at += strspn(s->at, " \t\r\n\v\f");
        if (*s->at != '#')
            return;
        s->at += strcspn(s->at, "\n");
    }
}

static void skip_word(struct syntax *s)
{
    while (is_letter(*s->at) || isdigit((unsigned char)*s->at))
        s->at++;
}

static char *text_end(char *quote)
{
    char *end = quote + 1;
    while (*end && *end != '\n' && *end != *quote)
        end += end[0] == '\\' && end[1] && end[1] != '\n' ? 2 : 1;
    return *end == *quote ? end : NULL;
}

/* Reads one text or several adjacent ones, and reports each. */
static enum status read_texts(struct syntax *s)
{
    while (*s->at == '"' || *s->at == '\'') {
        char *begin = s->at + 1, *end = text_end(s->at);
        if (!end)
            return error_set(s->err, STATUS_MODEL,
                             "line %zu: the text that begins here has no end: %c is missing",
                             line_of(s->text, s->at), *s->at);
        s->at = end + 1;
        *end = '\0';
        TRY(report(s, PBTXT_TEXT, begin, (size_t)(end - begin), false));
        skip_blanks_and_comments(s);
    }
    return STATUS_OK;
}

/* Skips a number: decimal, 0x…, a fraction, 1e-3, 1.0f. */
static void skip_number(struct syntax *s)
{
    for (bool exponent = false;; s->at++) {
        const char c = *s->at;
        if (!is_letter(c) && !isdigit((unsigned char)c) && c != '.' &&
            !(exponent && (c == '-' || c == '+')))
            return;
        exponent = c == 'e' || c == 'E';
    }
}

static enum status read_scalar(struct syntax *s)
{
    if (*s->at == '"' || *s->at == '\'')
        return read_texts(s);
    const bool is_negative = *s->at == '-';
    if (is_negative) {
        s->at++;
        skip_blanks_and_comments(s);
    }
    const char *begin = s->at;
    const bool is_number = isdigit((unsigned char)*begin) || *begin == '.';
    if (is_number)
        skip_number(s);
    else if (is_letter(*begin))
        skip_word(s);
    else
        return refuse(s, "a value");
    return report(s, is_number ? PBTXT_NUMBER : PBTXT_WORD, begin, (size_t)(s->at - begin),
                  is_negative);
}

static enum status pbtxt_open_level(struct syntax *s)
{
    if (s->depth == PBTXT_DEPTH_MAX)
        return error_set(s->err, STATUS_MODEL, "line %zu: the file is nested deeper than %d levels",
                         line_of(s->text, s->at), PBTXT_DEPTH_MAX);
    s->open[s->depth++] = s->at++;
    s->path_sizes[s->depth] = strlen(s->path);
    return *s->open[s->depth - 1] == '[' ? STATUS_OK : report(s, PBTXT_MESSAGE, "", 0, false);
}

static enum status read_value(struct syntax *s, enum expected *ret_next)
{
    const bool is_list = *s->at == '[' && !in_list(s);
    *ret_next = is_list ? FIRST_OR_NONE : FIELD;
    if (in_list(s))
        s->path[s->path_sizes[s->depth]] = '\0';
    if (is_list || *s->at == '{' || *s->at == '<')
        return pbtxt_open_level(s);
    *ret_next = AFTER_VALUE;
    return read_scalar(s);
}

static bool closes(const struct syntax *s)
{
    static const char pairs[] = "{}<>[]";
    return s->depth > 0 && *s->at && *s->at == strchr(pairs, *s->open[s->depth - 1])[1];
}

static enum status read_field(struct syntax *s, enum expected *ret_next)
{
    if (!is_letter(*s->at))
        return refuse(s, "the name of a setting");
    const char *name = s->at;
    skip_word(s);
    const int length = (int)(s->at - name < NAME_MOST ? s->at - name : NAME_MOST);
    const size_t before = s->path_sizes[s->depth];
    snprintf(s->path + before, sizeof s->path - before, "%s%.*s", before ? "." : "", length, name);
    const size_t line = line_of(s->text, name);
    skip_blanks_and_comments(s);
    if (*s->at == ':') {
        s->at++;
        skip_blanks_and_comments(s);
    } else if (!*s->at || !strchr("{<[", *s->at)) {
        return error_set(s->err, STATUS_MODEL, "line %zu: expected ':' after '%.*s'", line, length,
                         name);
    }
    return read_value(s, ret_next);
}

static enum status read_after_value(struct syntax *s, enum expected *ret_next)
{
    *ret_next = in_list(s) ? ITEM : FIELD;
    if (in_list(s) && *s->at != ',')
        return refuse(s, "',' or ']'");
    if (*s->at == ',' || (*s->at == ';' && !in_list(s)))
        s->at++;
    return STATUS_OK;
}

enum status pbtxt_read(char *text, size_t size, pbtxt_fn *on_value, void *context,
                       struct error *err)
{
    static const char mark[] = "\xEF\xBB\xBF";
    struct syntax s = {
        .text = text, .at = text, .on_value = on_value, .context = context, .err = err};
    enum expected next = FIELD;
    if (!strncmp(text, mark, sizeof mark - 1))
        s.at += sizeof mark - 1;
    for (skip_blanks_and_comments(&s); *s.at || s.depth > 0 || next != FIELD;
         skip_blanks_and_comments(&s)) {
        if (next != ITEM && closes(&s)) {
            s.depth--;
            s.at++;
            next = AFTER_VALUE;
        } else if (next == FIELD) {
            TRY(read_field(&s, &next));
        } else if (next == AFTER_VALUE) {
            TRY(read_after_value(&s, &next));
        } else {
            TRY(read_value(&s, &next));
        }
    }
    if ((size_t)(s.at - text) < size)
        return error_set(err, STATUS_MODEL, "line %zu: there is a NUL byte", line_of(text, s.at));
    return STATUS_OK;
}
