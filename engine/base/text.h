/* Small steps of parsers over texts that may have bytes of 0 in them. */
#pragma once

#include <stddef.h>

/* The first place in text[at … size) that is no blank of JSON (blank, tab, line feed, carriage
 * return); `size` when all are. */
static inline size_t text_skip_blanks(const char *text, size_t at, size_t size)
{
    while (at < size &&
           (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
        at++;
    return at;
}
