/* Small functions for parsers of text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses a time such as "10", "0.5", "250ms", "30s" or "2m" into milliseconds. A number without a
 * unit is in seconds. Returns false if the text is not a time. */
static inline bool text_read_ms(const char *text, double *ret)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *ret = strtod(text, &end) * (!strcmp(end, "ms") ? 1 : !strcmp(end, "m") ? 60000 : 1000);
    return !*end || !strcmp(end, "s") || !strcmp(end, "ms") || !strcmp(end, "m");
}

/* True if `text` ends with `ending`. */
static inline bool text_ends(const char *text, const char *ending)
{
    const size_t length = strlen(text), size = strlen(ending);
    return length >= size && !strcmp(text + length - size, ending);
}

/* Removes the characters in `blanks` from both ends of `text`, in place. Returns the first that is
 * left. */
static inline char *text_trim(char *text, const char *blanks)
{
    text += strspn(text, blanks);
    for (size_t n = strlen(text); n && strchr(blanks, text[n - 1]); n--)
        text[n - 1] = '\0';
    return text;
}

/* First position in text[at … size) that is not JSON whitespace (space, tab, line feed, carriage
 * return); `size` if there is none. */
static inline size_t text_skip_blanks(const char *text, size_t at, size_t size)
{
    while (at < size &&
           (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
        at++;
    return at;
}

/* Closes a stream from open_memstream(text, …). Returns *text. If `out` is NULL because
 * open_memstream() has failed, or if a write has failed, frees *text and returns NULL. */
char *text_close(FILE *out, char **text);

/* Appends to `text`, of `size` bytes, and puts `separator` before it if there is text already. Cuts
 * what does not fit. */
void text_append(char *text, size_t size, const char *separator, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Writes a size such as "1.5 GiB" and returns `text`. BYTES_STRING() uses memory that
 * lasts until the end of the enclosing block. */
#define BYTES_TEXT 24
const char *bytes_text(uint64_t bytes, char text[static BYTES_TEXT]);
#define BYTES_STRING(bytes) bytes_text((bytes), (char[BYTES_TEXT]){0})

/* Returns the number of letters to add, omit, replace or swap with their neighbour that turns the
 * first 40 bytes of one text into those of the other. */
size_t text_distance(const char *a, const char *b);

/* Returns the most similar of `count` names, or NULL if none is similar to `word`. */
const char *text_nearest(const char *word, const char *const *names, size_t count);
