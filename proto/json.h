/* Checks untrusted JSON before cJSON parses it.
 *
 * cJSON builds 64 bytes of tree for a two-byte value, recurses for every level and does not check
 * UTF-8. json_check() reads the text once, without recursion or allocation, and refuses texts that
 * are too large or too deep for cJSON, or not valid. */
#pragma once

#include "engine/base/status.h"

struct json_limits {
    size_t max_depth;  /* nested arrays and objects; 1 … JSON_DEPTH_MAX */
    size_t max_values; /* numbers, texts, words, arrays, objects and keys in all */
};

#define JSON_DEPTH_MAX      512
#define JSON_LIMITS_DEFAULT ((struct json_limits){64, 100000})

/* Checks that text[0 … size) is exactly one JSON value (RFC 8259) in UTF-8, within the limits.
 * Refuses syntax errors, text after the value, invalid UTF-8, \u0000, lone surrogates, and a text
 * over 1 GiB. The error has the offset of the first wrong byte, or the value of the limit.
 * STATUS_INVALID. */
enum status json_check(const char *text, size_t size, const struct json_limits *limits,
                       struct error *err) MUST_USE;

/* Receives a setting of a flat configuration object. `text` is the value in the form of a
 * command-line flag: numbers as written, true / false, strings, and lists of strings joined by
 * commas. `key` and `text` are borrowed for the call. */
typedef enum status (*json_setting_fn)(void *context, const char *key, const char *text,
                                       struct error *err);

/* Calls on_setting for each member of the JSON object in text[0 … size), in order; stops at the
 * first error. STATUS_CONFIG if the text is not an object, repeats a key, or has a value that is an
 * object, null, or a list of anything but strings. */
enum status json_settings(const char *text, size_t size, json_setting_fn on_setting, void *context,
                          struct error *err) MUST_USE;
