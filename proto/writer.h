/* Helpers of the JSON writers in this library: cJSON calls that remember a failed allocation
 * instead of returning it a hundred times. Private to proto/. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct writer {
    bool failed;  /* out of memory somewhere: the text will be NULL */
    bool indents; /* one member a line, for people */
};

/* Each adds a member `key` to `object` (or an entry to an array: key NULL). Texts that are not
 * UTF-8 are repaired. The containers are NULL when out of memory, and every function takes that. */
cJSON *write_object(struct writer *w, cJSON *parent, const char *key);
cJSON *write_array(struct writer *w, cJSON *parent, const char *key);
void write_text(struct writer *w, cJSON *parent, const char *key, const char *text);
void write_bool(struct writer *w, cJSON *parent, const char *key, bool value);
void write_count(struct writer *w, cJSON *parent, const char *key, unsigned long long value);
void write_integer(struct writer *w, cJSON *parent, const char *key, int64_t value);
/* The shortest text that reads back as the same float; null for NaN and infinities. */
void write_float(struct writer *w, cJSON *parent, const char *key, float value);
/* Three decimals: milliseconds, seconds. */
void write_decimal(struct writer *w, cJSON *parent, const char *key, double value);

/* Prints `root` with a newline behind it, and frees the tree; malloc'ed, NULL when anything failed.
 */
char *write_finish(struct writer *w, cJSON *root, size_t *ret_size);
