/* Private to models/text/: the parts of a text between two steps of tokenization. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* A text may grow up to this many bytes during normalization. */
#define PARTS_BYTES_MAX ((size_t)4 << 20)

struct text_part {
    size_t start, size;
    int32_t token; /* an added token; -1: text to be tokenised */
    bool at_start; /* the part begins with the original text's first character */
};

/* Zeroed: empty. `failed` keeps the first failure; additions after a failure have no effect. */
struct text_parts {
    char *text; /* the texts of all parts, concatenated */
    size_t size, room;
    struct text_part *list;
    size_t count, list_room;
    enum status failed;
};

void text_parts_done(struct text_parts *parts);

/* Makes room for `more` bytes after the text; NULL on failure. The caller increases parts->size. */
char *text_parts_room(struct text_parts *parts, size_t more);
void text_parts_add(struct text_parts *parts, const char *text, size_t size);
void text_parts_put(struct text_parts *parts, uint32_t character); /* at most U+10FFFF */

/* Makes a part of the text that was added since the last part, if any. */
void text_parts_end(struct text_parts *parts, int32_t token, bool at_start);

/* Adds text[0 … size) as a part. */
void text_parts_add_part(struct text_parts *parts, const char *text, size_t size, int32_t token,
                         bool at_start);

/* Where a pattern's matches go (SplitDelimiterBehavior). */
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

/* Splits a text into parts, and adds these to `to`. The caller passes segments that cover the text,
 * in order. */
struct splitter {
    struct text_parts *to;
    const char *text;
    enum split_behavior behavior;
    bool at_start; /* the text begins with the original text's first character */
    bool is_open, was_match;
    size_t start, end; /* with is_open: the part that is not yet in `to` */
};
void splitter_add(struct splitter *splitter, size_t start, size_t end, bool is_match);
void splitter_end(struct splitter *splitter);
