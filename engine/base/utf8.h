/* UTF-8 (RFC 3629): is this text fit to be put into an answer? */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed UTF-8 character at text[0 … left), 1 to 4; 0 where there is none: a
 * stray or missing continuation byte, an overlong form, a surrogate, beyond U+10FFFF. */
size_t utf8_length(const char *text, size_t left);

/* Code point of the character at text[0 … left), left >= 1, whose bytes are *ret_length. UINT32_MAX
 * and 1 where utf8_length() is 0. */
uint32_t utf8_character(const char *text, size_t left, size_t *ret_length);

/* Writes a code point of at most U+10FFFF; returns the number of its bytes, 1 to 4. */
size_t utf8_put(uint32_t character, char to[static 4]);

/* Whether a character may change how a terminal or a viewer shows the text around it: controls (C0,
 * DEL, C1), line and paragraph separators, and what sets the direction of text (Bidi_Control of
 * Unicode's UAX #9). Also for UINT32_MAX. */
bool utf8_is_control(uint32_t character);

/* All `size` bytes are well-formed. */
bool utf8_valid(const char *text, size_t size);

/* Replaces in place every byte that is not part of a well-formed character by '?'; `text` is
 * terminated. */
void utf8_repair(char *text);

/* Copies `text` to `buffer` for display in a terminal, truncated to its size. The bytes of
 * control characters (utf8_is_control) and those that are not valid UTF-8 become \xNN. Returns
 * `buffer`. */
const char *utf8_shown(const char *text, char *buffer, size_t size);
