/* Private to proto/: scans JSON, and extracts large arrays before the rest becomes a tree. */
#pragma once

#include <stdint.h>

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

/* A place in a JSON text. The functions below move the place over the text that they read, and fail
 * with STATUS_INVALID at the first wrong byte. */
struct json_scan {
    const char *text;
    size_t size, at;
    const struct json_limits *limits;
    size_t values, depth;
    bool is_object[JSON_DEPTH_MAX]; /* the kind of each level; else it is an array */
    struct error *err;

    struct extraction *cut; /* NULL: only check */
    bool is_in_parent;      /* inside the parent member of cut->rule */
    bool is_wanted;         /* the next value belongs to the member of cut->rule */
};

/* A number, as an integer and as a double. */
struct json_number {
    bool negative, is_integer; /* is_integer: without fraction or exponent, and fits 64 bits */
    uint64_t magnitude;
    double value;
};

static inline char json_peek(const struct json_scan *s)
{
    return s->at < s->size ? s->text[s->at] : '\0';
}

/* Returns STATUS_INVALID with the place, its byte, and what was `expected` instead. */
enum status json_scan_error(const struct json_scan *s, const char *expected);
/* `ret` NULL: only checks the number. */
enum status json_scan_number(struct json_scan *s, struct json_number *ret) MUST_USE;
/* Moves over a string, number or word. */
enum status json_scan_scalar(struct json_scan *s) MUST_USE;
/* Moves over the bracket that opens an array or object. STATUS_INVALID: too deep. */
enum status json_scan_open(struct json_scan *s) MUST_USE;
/* After a value: closes the arrays and objects that end. *ret_more: another value follows. */
enum status json_scan_after_value(struct json_scan *s, bool *ret_more) MUST_USE;
