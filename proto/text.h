/* Text that grows: what is too long, or too often written, for a tree of cJSON. Private to proto/.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/tensor.h"

struct text {
    char *data; /* malloc'ed; not terminated before text_finish */
    size_t size, capacity;
    bool failed; /* out of memory: nothing is added any more */
};

/* Room for `more` bytes behind the text; NULL when there is none. text->size is the caller's to
 * raise. */
char *text_room(struct text *text, size_t more);

void text_add(struct text *text, const char *bytes, size_t size);
void text_put(struct text *text, const char *terminated);
void text_number(struct text *text, int64_t value);
void text_unsigned(struct text *text, uint64_t value);
#define FLOAT_TEXT 24 /* room for a float, and more than it needs */
#define FLOAT_MOST 15 /* bytes that it takes at most: -1.17549435e-38 */
/* Shortest text (of six digits or more) that reads back as the same value, which is finite, in the
 * forms of %g; returns its length. Not terminated. */
size_t write_shortest(float value, char text[static FLOAT_TEXT]);
/* The same; null for what is not finite. */
void text_float(struct text *text, float value);
void text_double(struct text *text, double value);
/* Element i of a tensor of numbers; booleans are 0 and 1. */
void text_element(struct text *text, const struct tensor *tensor, size_t i);
/* A JSON string; bytes that are no UTF-8 become '?'. */
void text_string(struct text *text, const char *terminated);

/* Terminates it and hands it over; NULL when it failed (everything is freed then). */
char *text_finish(struct text *text, size_t *ret_size);
