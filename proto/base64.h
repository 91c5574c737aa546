/* Base64 (RFC 4648), for images inside JSON. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Decodes `size` characters to `dst`, which needs size / 4 * 3 + 3 bytes and may be `text` itself
 * (in place). Accepts the standard and the URL-safe alphabet, even mixed, and skips blanks, tabs
 * and line ends (the base64 tool wraps its lines). Padding is optional but must be correct. Unused
 * bits of the last character must be 0, so that each text has one meaning. *ret_size is the number
 * of bytes. STATUS_INVALID names the first wrong character and its offset; the bytes at `dst` are
 * then undefined. */
enum status base64_decode(const char *text, size_t size, uint8_t *dst, size_t *ret_size,
                          struct error *err) MUST_USE;

/* Encodes in the standard alphabet with padding, terminated; malloc'ed, NULL when out of memory. */
char *base64_text(const uint8_t *data, size_t size);

/* Decodes an image that was sent as text, plain or as a data: URI (RFC 2397), in place; *ret points
 * into `text`. STATUS_INVALID if the text is not base64, is a data: URI without ";base64", or is a
 * URL: lensd fetches none. */
enum status picture_text_decode(char *text, size_t size, uint8_t **ret, size_t *ret_size,
                                struct error *err) MUST_USE;
