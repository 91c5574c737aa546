/* Small steps of parsers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Reads a time such as "10", "0.5", "250ms", "30s" or "2m", in milliseconds; without a unit it is
 * in seconds. False if it is none. */
static inline bool text_read_ms(const char *text, double *ret)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *ret = strtod(text, &end) * (!strcmp(end, "ms") ? 1 : !strcmp(end, "m") ? 60000 : 1000);
    return !*end || !strcmp(end, "s") || !strcmp(end, "ms") || !strcmp(end, "m");
}

/* The first place in text[at … size) that is no blank of JSON (blank, tab, line feed, carriage
 * return); `size` when all are. */
static inline size_t text_skip_blanks(const char *text, size_t at, size_t size)
{
    while (at < size &&
           (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
        at++;
    return at;
}

/* Returns the name nearest to `word` among `count`; NULL if none is near. */
const char *text_nearest(const char *word, const char *const *names, size_t count);
