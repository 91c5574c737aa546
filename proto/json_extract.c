/* Copies a JSON text, replaces its large arrays by 0 and records their places. The scan looks only
 * at strings and brackets. */
#include "proto/json_extract.h"

#include <stdbool.h>
#include <string.h>

struct extraction {
    const char *text;
    size_t size, at, copied; /* text[copied … at) has not been copied yet */
    size_t depth;
    bool in_parent; /* inside the rule's parent member */
    const struct extract_rule *rule;
    char *rest; /* size + 1 bytes */
    size_t rest_size;
    struct json_span *spans;
    size_t span_count, max;
};

/* Returns the position after the string that begins at `at`, or the end of the text if it is not
 * closed. */
static size_t after_string(const struct extraction *c, size_t at)
{
    for (at++; at < c->size; at++) {
        if (c->text[at] == '\\')
            at++;
        else if (c->text[at] == '"')
            return at + 1;
    }
    return c->size;
}

static size_t after_blanks(const struct extraction *c, size_t at)
{
    while (at < c->size && (c->text[at] == ' ' || c->text[at] == '\t' || c->text[at] == '\n' ||
                            c->text[at] == '\r'))
        at++;
    return at;
}

/* Returns the position after the array that begins at `at`. */
static size_t after_array(const struct extraction *c, size_t at)
{
    size_t depth = 0;
    while (at < c->size) {
        char byte = c->text[at];
        if (byte == '"') {
            at = after_string(c, at);
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

static void copy_until(struct extraction *c, size_t end)
{
    if (end > c->copied) /* the text may be empty */
        memcpy(c->rest + c->rest_size, c->text + c->copied, end - c->copied);
    c->rest_size += end - c->copied;
    c->copied = end;
}

/* Handles a key, a string at c->at with a colon after it: sets in_parent, and cuts the array of the
 * rule's member. */
static enum status take_key(struct extraction *c, size_t end, struct error *err)
{
    size_t length = end - c->at - 2, value = after_blanks(c, end);
    if (value >= c->size || c->text[value] != ':')
        return STATUS_OK;
    value = after_blanks(c, value + 1);
    const char *key = c->text + c->at + 1;
    const struct extract_rule *rule = c->rule;
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
    size_t array_end = after_array(c, value);
    c->spans[c->span_count] = (struct json_span){c->text + value, array_end - value};
    c->rest[c->rest_size++] = '0'; /* not longer than the array that it replaces */
    c->span_count++;
    c->copied = array_end;
    return STATUS_OK;
}

static enum status cut_out(struct extraction *c, struct error *err)
{
    while (c->at < c->size) {
        char byte = c->text[c->at];
        size_t next = c->at + 1;
        if (byte == '"') {
            next = after_string(c, c->at);
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

enum status json_extract(const char *text, size_t size, const struct extract_rule *rule, char *rest,
                         size_t *ret_rest_size, struct json_span *ret, size_t max,
                         size_t *ret_count, struct error *err)
{
    struct extraction cut = {
        .text = text, .size = size, .rule = rule, .rest = rest, .spans = ret, .max = max};
    TRY(cut_out(&cut, err));
    *ret_rest_size = cut.rest_size;
    *ret_count = cut.span_count;
    return STATUS_OK;
}
