/* Extracts large arrays from JSON before it becomes a tree. Private to proto/.
 *
 * The scan is lexical: it skips strings and counts brackets; the array that is the value of a
 * certain member is replaced by 0, and its place recorded. The rest goes through json_check() like
 * all JSON from outside: malformed text is refused there, or when the array is read. */
#pragma once

#include "engine/base/status.h"

struct json_span {
    const char *text; /* an array with its brackets (or to the end of the text) */
    size_t size;
};

struct extract_rule {
    size_t depth; /* depth of the object with the member: 1 = the outermost value */
    const char
        *parent; /* the member of the outermost object that contains it; NULL: any, or none */
    const char *member;
};

/* Writes the rest of text[0 … size) to `rest` (size + 1 bytes; terminated), its length to
 * *ret_rest_size, and the arrays, in their order, to `ret`: at most `max`, else STATUS_INVALID. */
enum status json_extract(const char *text, size_t size, const struct extract_rule *rule, char *rest,
                         size_t *ret_rest_size, struct json_span *ret, size_t max,
                         size_t *ret_count, struct error *err) MUST_USE;
