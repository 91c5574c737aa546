/* Writes JSON as a tree, member by member; after a failed allocation the text is NULL. Not
 * thread-safe: a writer and its tree belong to one thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cJSON json_node; /* an object or an array */

struct writer {
    bool failed;  /* out of memory somewhere: the text will be NULL */
    bool indents; /* one member per line, for people */
};

/* Creates an object without a parent. write_finish() frees it with everything added to it. */
json_node *write_root(void);

/* Each adds a member `key` to `object` (or an entry to an array: key NULL). Texts that are not
 * UTF-8 are repaired. The containers are NULL when out of memory, and every function accepts NULL.
 * */
json_node *write_object(struct writer *w, json_node *parent, const char *key);
json_node *write_array(struct writer *w, json_node *parent, const char *key);
void write_text(struct writer *w, json_node *parent, const char *key, const char *text);
void write_bool(struct writer *w, json_node *parent, const char *key, bool value);
void write_count(struct writer *w, json_node *parent, const char *key, unsigned long long value);
void write_integer(struct writer *w, json_node *parent, const char *key, int64_t value);
/* Adds the shortest text that reads back as the same float; null for NaN and infinities. */
void write_float(struct writer *w, json_node *parent, const char *key, float value);
/* Adds a number with three decimals: milliseconds, seconds. */
void write_decimal(struct writer *w, json_node *parent, const char *key, double value);

/* Prints `root` and a newline, and frees the tree; malloc'ed, NULL if anything failed. */
char *write_finish(struct writer *w, json_node *root, size_t *ret_size);
