/* Private to proto/: checks JSON, and extracts large arrays before the rest becomes a tree. */
#pragma once

#include "proto/json.h"

struct json_span {
    const char *text; /* an array with its brackets; incomplete if the whole text ends in it */
    size_t size;
};

struct extract_rule {
    size_t depth;       /* nesting level of the object that has `member`; 1: outermost */
    const char *parent; /* the outermost object's member that must contain that object; NULL: any */
    const char *member;
};

struct extraction {
    const struct extract_rule *rule;
    char *rest; /* the text with each array replaced by 0; size + 1 bytes */
    size_t rest_size;
    struct json_span *spans; /* receives the arrays, in their order */
    size_t count, max;       /* of spans */
    size_t copied;           /* private; initially 0 */
};

/* Extracts the arrays that the rule names, and does json_check() for the rest. The elements of the
 * arrays are checked when they are read. STATUS_INVALID, also for more than `max` arrays. */
enum status json_extract(const char *text, size_t size, const struct json_limits *limits,
                         struct extraction *cut, struct error *err) MUST_USE;
