/* Private to proto/: a growing buffer for messages of protobuf, and for JSON that is too long or
 * frequent for a cJSON tree. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/tensor.h"

struct strbuf {
    char *data; /* malloc'ed; not terminated before strbuf_finish */
    size_t size, capacity;
    bool failed; /* out of memory: later additions are ignored */
};

/* Makes room for `more` bytes after the text; NULL: out of memory. The caller then increases
 * text->size. */
char *strbuf_room(struct strbuf *text, size_t more);

void strbuf_add(struct strbuf *text, const char *bytes, size_t size);
void strbuf_put(struct strbuf *text, const char *terminated);
void strbuf_number(struct strbuf *text, int64_t value);
void strbuf_unsigned(struct strbuf *text, uint64_t value);
/* 10^0 to 10^22, all exact as doubles. */
extern const double exact_powers[23];
#define FLOAT_TEXT 32 /* more than enough for a double */
#define FLOAT_MOST 15 /* the longest float: -1.17549435e-38 */
/* Writes a finite value with the fewest digits, six to nine as in "%.6g", that read back as the
 * same value. Returns the length; adds no terminator. */
size_t write_shortest(float value, char text[static FLOAT_TEXT]);
/* Appends a float in the form of write_shortest(), or null if the float is not finite. */
void strbuf_float(struct strbuf *text, float value);
/* Appends element i of a tensor of numbers; booleans become 0 and 1. */
void strbuf_element(struct strbuf *text, const struct tensor *tensor, size_t i);
/* Appends a JSON string; bytes that are not UTF-8 become '?'. */
void strbuf_string(struct strbuf *text, const char *terminated);

/* Appends a number as protobuf's varint. */
void strbuf_varint(struct strbuf *text, uint64_t value);
/* Appends field `number` of a protobuf message, with these bytes. */
void strbuf_field(struct strbuf *text, unsigned number, const char *bytes, size_t size);
/* Appends `inner` as a field's bytes, and frees `inner`. */
void strbuf_inner(struct strbuf *text, unsigned number, struct strbuf *inner);

/* Terminates the text and returns it; after a failure frees everything and returns NULL. */
char *strbuf_finish(struct strbuf *text, size_t *ret_size);
