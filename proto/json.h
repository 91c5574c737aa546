/* Checks untrusted JSON before cJSON parses it; reads and writes small objects.
 *
 * cJSON builds 64 bytes of tree for a two-byte value, recurses for every level and does not check
 * UTF-8. json_check() reads the text once, without recursion or allocation, and refuses texts that
 * are too large or too deep for cJSON, or not valid. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

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

/* ---- /v2/logging: the logging extension of the Open Inference Protocol, as in Triton ---- */

/* The protocol enables each level by itself; the lowest enabled level applies. */
struct logging_settings {
    bool error, warning, info;
    int verbose;  /* 1 or more: debug */
    bool as_json; /* log_format "json"; otherwise "default" */
};

/* Returns {"log_file":"","log_info":true,"log_warning":true,"log_error":true,
 * "log_verbose_level":0,"log_format":"default"}; malloc'ed, NULL when out of memory. */
char *logging_json(const struct logging_settings *settings);

/* Changes the settings in the object `text`, and no others. STATUS_INVALID for an unknown name, an
 * invalid value, and a log_file: requests must not name paths. Then *settings is undefined. */
enum status logging_json_read(const char *text, size_t size, struct logging_settings *settings,
                              struct error *err) MUST_USE;

/* ---- replies of other servers ---- */

/* Returns the number of spans that a trace collector (OTLP/HTTP) has rejected, 0 if its reply has
 * none. `message` receives the reason, or "". Source: opentelemetry-proto 1.x. */
int64_t otlp_rejected(const char *json, size_t size, char *message, size_t message_size);

#define HUB_FILES_MAX 20000

/* A repository of Hugging Face's hub. */
struct hub_list {
    char commit[41]; /* lower-case hexadecimal digits */
    char **paths;    /* from the repository's root; checked only for control bytes */
    size_t count;
};

/* Reads the hub's reply to GET /api/models/REPOSITORY/revision/REVISION. Source:
 * huggingface.co/docs/hub/api. STATUS_CONFIG: the reply is not the hub's; STATUS_NO_MEMORY. The
 * caller always frees *ret with hub_list_done(). */
enum status hub_list_read(const char *text, size_t size, struct hub_list *ret,
                          struct error *err) MUST_USE;
void hub_list_done(struct hub_list *list);
