/* Builds JSON as a tree, member by member. After a failed allocation the text is NULL. Not
 * thread-safe: a writer and its tree belong to one thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cJSON json_node; /* an object or an array */

struct writer {
    json_node *root; /* from write_root(), or an array; NULL: out of memory */
    bool failed;     /* out of memory somewhere: the text will be NULL */
    bool indents;    /* one member per line, for people */
};

/* Creates an object without a parent. write_finish() frees it with everything added to it. */
json_node *write_root(void);
/* Makes the root, which has no members, an array, and returns it. */
json_node *write_root_list(struct writer *w);

/* Adds members, described by a template, to an object or an array. The compiler checks the values
 * as for printf. Blanks separate members, and containers nest at most six deep:
 *
 *     name=%s          a member; the key may be missing in an array
 *     size{ … }        an object with members
 *     corners[%.3f %.3f]   an array with entries
 *
 *     %s           a text, repaired if it is not UTF-8; a NULL text omits the member
 *     %hhd         true or false
 *     %d %u %ld %lu %zu   an integer
 *     %.3f         a number with three decimals: milliseconds, pixels
 *     %g           the shortest text that reads back as the same float
 *
 * NaN and infinities become null. `name?=` omits the member if its text is empty or its number is
 * not above 0. `parent` is NULL when out of memory. */
void write_members(struct writer *w, json_node *parent, const char *template, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes an object with these members as a text; see write_finish(). */
char *write_document(const char *template, ...) __attribute__((format(printf, 1, 2)));

/* Each adds a member `key` to an object, or with key NULL an entry to an array. A NULL container or
 * text means that memory ran out: the writer fails. */
json_node *write_object(struct writer *w, json_node *parent, const char *key);
json_node *write_array(struct writer *w, json_node *parent, const char *key);
void write_text(struct writer *w, json_node *parent, const char *key, const char *text);
/* Adds an array of texts; `texts` may be NULL if `count` is 0. */
void write_texts(struct writer *w, json_node *parent, const char *key, const char *const *texts,
                 size_t count);
void write_float(struct writer *w, json_node *parent, const char *key, float value);
/* Adds an array of floats. */
void write_floats(struct writer *w, json_node *parent, const char *key, const float *values,
                  size_t count);

/* Prints the root and a newline, and frees the tree; malloc'ed, NULL if anything failed. */
char *write_finish(struct writer *w);
