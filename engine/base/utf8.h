/* UTF-8 (RFC 3629): is this text fit to be put into an answer? */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the well-formed UTF-8 character at text[0 … left), 1 to 4; 0 where there is none: a
 * stray or missing continuation byte, an overlong form, a surrogate, beyond U+10FFFF. */
size_t utf8_length(const char *text, size_t left);

/* All `size` bytes are well-formed. */
bool utf8_valid(const char *text, size_t size);

/* Replaces in place every byte that is not part of a well-formed character by '?'; `text` is
 * terminated. */
void utf8_repair(char *text);

/* Copies `text` to `buffer` for display in a terminal, truncated to its size. Control characters
 * (C0, DEL, C1) and bytes that are not valid UTF-8 become \xNN. Returns `buffer`. */
const char *utf8_shown(const char *text, char *buffer, size_t size);
