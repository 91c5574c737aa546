/* Whether a text is protobuf's text format at all, so that a file that Triton would refuse is not
 * half read here. Messages in {} or <>, lists in [], a colon before every plain value, ',' or ';'
 * behind a field as one likes. Names and types are not looked at. */
#include <ctype.h>
#include <string.h>

#include "models/folder/model_internal.h"

enum expected {
    FIELD,         /* a name, or the end of the message */
    ITEM,          /* a value of a list */
    FIRST_OR_NONE, /* the same, or the end of the list */
    BEHIND_VALUE,
};

struct syntax {
    const char *text, *at;
    const char *open[PBTXT_DEPTH_MAX]; /* where each level was opened */
    size_t depth;
    struct error *err;
};

size_t pbtxt_line(const char *text, const char *at)
{
    size_t line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

static bool is_letter(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static bool in_list(const struct syntax *s)
{
    return s->depth > 0 && *s->open[s->depth - 1] == '[';
}

static enum status refuse(const struct syntax *s, const char *expected)
{
    const size_t line = pbtxt_line(s->text, s->at);
    const unsigned char c = (unsigned char)*s->at;
    if (!c && s->depth > 0)
        return error_set(s->err, STATUS_MODEL, "line %zu: the '%c' of line %zu is never closed",
                         line, *s->open[s->depth - 1], pbtxt_line(s->text, s->open[s->depth - 1]));
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

const char *pbtxt_text_end(const char *quote)
{
    const char *end = quote + 1;
    while (*end && *end != '\n' && *end != *quote)
        end += end[0] == '\\' && end[1] && end[1] != '\n' ? 2 : 1;
    return *end == *quote ? end : NULL;
}

/* Neighbouring texts are one. */
static enum status skip_texts(struct syntax *s)
{
    while (*s->at == '"' || *s->at == '\'') {
        const char *end = pbtxt_text_end(s->at);
        if (!end)
            return error_set(s->err, STATUS_MODEL,
                             "line %zu: the text that begins here has no end: %c is missing",
                             pbtxt_line(s->text, s->at), *s->at);
        s->at = end + 1;
        skip_blanks_and_comments(s);
    }
    return STATUS_OK;
}

/* Decimal, 0x…, fractions, 1e-3, 1.0f. */
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

static enum status skip_scalar(struct syntax *s)
{
    if (*s->at == '"' || *s->at == '\'')
        return skip_texts(s);
    if (*s->at == '-') {
        s->at++;
        skip_blanks_and_comments(s);
    }
    if (isdigit((unsigned char)*s->at) || *s->at == '.')
        skip_number(s);
    else if (is_letter(*s->at))
        skip_word(s);
    else
        return refuse(s, "a value");
    return STATUS_OK;
}

static enum status pbtxt_open_level(struct syntax *s)
{
    if (s->depth == PBTXT_DEPTH_MAX)
        return error_set(s->err, STATUS_MODEL, "line %zu: it is nested deeper than %d levels",
                         pbtxt_line(s->text, s->at), PBTXT_DEPTH_MAX);
    s->open[s->depth++] = s->at++;
    return STATUS_OK;
}

static enum status read_value(struct syntax *s, enum expected *ret_next)
{
    const bool is_list = *s->at == '[' && !in_list(s);
    *ret_next = is_list ? FIRST_OR_NONE : FIELD;
    if (is_list || *s->at == '{' || *s->at == '<')
        return pbtxt_open_level(s);
    *ret_next = BEHIND_VALUE;
    return skip_scalar(s);
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
    const int length = (int)(s->at - name < 40 ? s->at - name : 40);
    const size_t line = pbtxt_line(s->text, name);
    skip_blanks_and_comments(s);
    if (*s->at == ':') {
        s->at++;
        skip_blanks_and_comments(s);
    } else if (!*s->at || !strchr("{<[", *s->at)) {
        return error_set(s->err, STATUS_MODEL, "line %zu: expected ':' behind '%.*s'", line, length,
                         name);
    }
    return read_value(s, ret_next);
}

static enum status read_behind_value(struct syntax *s, enum expected *ret_next)
{
    *ret_next = in_list(s) ? ITEM : FIELD;
    if (in_list(s) && *s->at != ',')
        return refuse(s, "',' or ']'");
    if (*s->at == ',' || (*s->at == ';' && !in_list(s)))
        s->at++;
    return STATUS_OK;
}

enum status pbtxt_check(const char *text, size_t size, struct error *err)
{
    static const char mark[] = "\xEF\xBB\xBF";
    struct syntax s = {.text = text, .at = text, .err = err};
    enum expected next = FIELD;
    if (!strncmp(text, mark, sizeof mark - 1))
        s.at += sizeof mark - 1;
    for (skip_blanks_and_comments(&s); *s.at || s.depth > 0 || next != FIELD;
         skip_blanks_and_comments(&s)) {
        if (next != ITEM && closes(&s)) {
            s.depth--;
            s.at++;
            next = BEHIND_VALUE;
        } else if (next == FIELD) {
            TRY(read_field(&s, &next));
        } else if (next == BEHIND_VALUE) {
            TRY(read_behind_value(&s, &next));
        } else {
            TRY(read_value(&s, &next));
        }
    }
    if ((size_t)(s.at - text) < size)
        return error_set(err, STATUS_MODEL, "line %zu: there is a NUL byte",
                         pbtxt_line(text, s.at));
    return STATUS_OK;
}
