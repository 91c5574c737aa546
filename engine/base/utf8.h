/* UTF-8 (RFC 3629): validation and repair of text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed UTF-8 character at the start of text[0 … left), 1 to 4 bytes. 0 for
 * malformed bytes (a stray or missing continuation byte, an overlong form, a surrogate, a code
 * point above U+10FFFF), or if left is 0. */
size_t utf8_length(const char *text, size_t left);

/* Code point of the character at the start of text[0 … left), left >= 1; *ret_length is its length.
 * UINT32_MAX and length 1 for malformed bytes. */
uint32_t utf8_character(const char *text, size_t left, size_t *ret_length);

/* Writes a code point of at most U+10FFFF and returns its length in bytes, 1 to 4. */
size_t utf8_put(uint32_t character, char to[static 4]);

/* True if a character can change how a terminal or viewer shows the text around it: controls (C0,
 * DEL, C1), line and paragraph separators, and characters that set the text's direction
 * (Bidi_Control of Unicode's UAX #9). Also true for UINT32_MAX. */
bool utf8_is_control(uint32_t character);

/* True if all `size` bytes are well-formed. */
bool utf8_valid(const char *text, size_t size);

/* Replaces malformed bytes with '?', in place. `text` is terminated. */
void utf8_repair(char *text);

/* Copies `text` to `buffer` for display in a terminal, truncated to `size` bytes. Bytes of control
 * characters (utf8_is_control) and bytes that are not valid UTF-8 become \xNN. Returns `buffer`. */
const char *utf8_shown(const char *text, char *buffer, size_t size);
