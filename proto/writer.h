/* Writes JSON as a tree, member by member; a failed allocation is remembered, and the text is then
 * NULL. Not thread-safe: a writer and its tree belong to one thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cJSON json_node; /* an object or an array */

struct writer {
    bool failed;  /* out of memory somewhere: the text will be NULL */
    bool indents; /* one member a line, for people */
};

/* An object without a parent. write_finish() frees it with all that was added. */
json_node *write_root(void);

/* Each adds a member `key` to `object` (or an entry to an array: key NULL). Texts that are not
 * UTF-8 are repaired. The containers are NULL when out of memory, and every function takes that. */
json_node *write_object(struct writer *w, json_node *parent, const char *key);
json_node *write_array(struct writer *w, json_node *parent, const char *key);
void write_text(struct writer *w, json_node *parent, const char *key, const char *text);
void write_bool(struct writer *w, json_node *parent, const char *key, bool value);
void write_count(struct writer *w, json_node *parent, const char *key, unsigned long long value);
void write_integer(struct writer *w, json_node *parent, const char *key, int64_t value);
/* The shortest text that reads back as the same float; null for NaN and infinities. */
void write_float(struct writer *w, json_node *parent, const char *key, float value);
/* Three decimals: milliseconds, seconds. */
void write_decimal(struct writer *w, json_node *parent, const char *key, double value);

/* Prints `root` with a newline behind it, and frees the tree; malloc'ed, NULL when anything failed.
 */
char *write_finish(struct writer *w, json_node *root, size_t *ret_size);
