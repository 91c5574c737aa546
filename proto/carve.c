/* Copies a JSON text with its large arrays replaced by 0, and remembers where they lie. The scan
 * looks at strings and brackets only. */
#include "proto/carve.h"

#include <stdbool.h>
#include <string.h>

struct cut {
    const char *text;
    size_t size, at, copied; /* text[copied … at) is still to be copied */
    size_t depth;
    bool in_parent; /* below the outermost member that the rule names */
    const struct carve_rule *rule;
    char *rest; /* size + a little */
    size_t rest_size;
    struct carved *spans;
    size_t span_count, max;
};

/* Behind the string that begins at `at`; the end where it has none. */
static size_t behind_string(const struct cut *c, size_t at)
{
    for (at++; at < c->size; at++) {
        if (c->text[at] == '\\')
            at++;
        else if (c->text[at] == '"')
            return at + 1;
    }
    return c->size;
}

static size_t behind_blanks(const struct cut *c, size_t at)
{
    while (at < c->size && (c->text[at] == ' ' || c->text[at] == '\t' || c->text[at] == '\n' ||
                            c->text[at] == '\r'))
        at++;
    return at;
}

/* Behind the array that begins at `at`. */
static size_t behind_array(const struct cut *c, size_t at)
{
    size_t depth = 0;
    while (at < c->size) {
        char byte = c->text[at];
        if (byte == '"') {
            at = behind_string(c, at);
            continue;
        }
        depth += byte == '[';
        depth -= byte == ']';
        at++;
        if (depth == 0)
            break;
    }
    return at;
}

static void copy_until(struct cut *c, size_t end)
{
    if (end > c->copied) /* there may be no text at all */
        memcpy(c->rest + c->rest_size, c->text + c->copied, end - c->copied);
    c->rest_size += end - c->copied;
    c->copied = end;
}

/* A string at c->at that a colon follows: is it one of the two members that matter? */
static enum status take_key(struct cut *c, size_t end, struct error *err)
{
    size_t length = end - c->at - 2, value = behind_blanks(c, end);
    if (value >= c->size || c->text[value] != ':')
        return STATUS_OK;
    value = behind_blanks(c, value + 1);
    const char *key = c->text + c->at + 1;
    const struct carve_rule *rule = c->rule;
    if (c->depth == 1 && rule->parent)
        c->in_parent = length == strlen(rule->parent) && !memcmp(key, rule->parent, length);
    bool is_member = c->depth == rule->depth && (c->in_parent || !rule->parent) &&
                     length == strlen(rule->member) && !memcmp(key, rule->member, length);
    if (!is_member || value >= c->size || c->text[value] != '[')
        return STATUS_OK;
    if (c->span_count == c->max)
        return error_set(err, STATUS_INVALID, "the request has more than %zu of \"%s\"", c->max,
                         rule->member);
    copy_until(c, value);
    size_t behind = behind_array(c, value);
    c->spans[c->span_count] = (struct carved){c->text + value, behind - value};
    c->rest[c->rest_size++] = '0'; /* not longer than the array that it stands for */
    c->span_count++;
    c->copied = behind;
    return STATUS_OK;
}

static enum status cut_out(struct cut *c, struct error *err)
{
    while (c->at < c->size) {
        char byte = c->text[c->at];
        size_t next = c->at + 1;
        if (byte == '"') {
            next = behind_string(c, c->at);
            if (next - c->at >= 2)
                TRY(take_key(c, next, err));
            next = c->copied > next ? c->copied : next;
        } else if (byte == '{' || byte == '[') {
            c->depth++;
        } else if ((byte == '}' || byte == ']') && c->depth > 0) {
            c->depth--;
        }
        c->at = next;
    }
    copy_until(c, c->size);
    c->rest[c->rest_size] = '\0';
    return STATUS_OK;
}

enum status json_carve(const char *text, size_t size, const struct carve_rule *rule, char *rest,
                       size_t *ret_rest_size, struct carved *ret, size_t max, size_t *ret_count,
                       struct error *err)
{
    struct cut cut = {
        .text = text, .size = size, .rule = rule, .rest = rest, .spans = ret, .max = max};
    TRY(cut_out(&cut, err));
    *ret_rest_size = cut.rest_size;
    *ret_count = cut.span_count;
    return STATUS_OK;
}
