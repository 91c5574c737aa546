/* Images in JSON and forms: base64, plain or as a data: URI (RFC 2397). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Decodes `size` characters in place; *ret points into `text`. STATUS_INVALID if the text is not
 * base64, is a data: URI without ";base64", or is a URL: lensd fetches none. */
enum status picture_text_decode(char *text, size_t size, uint8_t **ret, size_t *ret_size,
                                struct error *err) MUST_USE;
