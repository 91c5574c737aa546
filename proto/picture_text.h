/* Pictures inside JSON and forms: base64, alone or as a data: URI (RFC 2397). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Decodes `size` characters in place; *ret points into `text`. STATUS_INVALID for text that is not
 * base64, for data: URIs without ";base64", and for addresses, which lensd does not fetch. */
enum status picture_text_decode(char *text, size_t size, uint8_t **ret, size_t *ret_size,
                                struct error *err) MUST_USE;
