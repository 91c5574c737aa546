/* multipart/form-data (RFC 7578, RFC 2046 section 5.1): finds the parts in place. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

#define MULTIPART_NAME_MAX 128

struct multipart_part {
    char name[MULTIPART_NAME_MAX];     /* of the field, truncated; "" if it has none */
    char filename[MULTIPART_NAME_MAX]; /* "" if it has none */
    bool has_filename;
    const uint8_t *data; /* inside the body */
    size_t size;
};

struct multipart {
    struct multipart_part *parts;
    size_t count;
};

/* True if this Content-Type is multipart/form-data. */
bool multipart_is(const char *content_type);

/* Splits the untrusted body[0 … size). Allows max_parts parts (else STATUS_TOO_LARGE), each with 16
 * headers of at most 4 KiB together. STATUS_INVALID if the boundary is missing or wrong, if a
 * part's headers or the part itself do not end, or if there is no part. Free *ret with
 * multipart_done() (also valid on zeroed memory); the body must outlive it. */
enum status multipart_parse(const char *content_type, const uint8_t *body, size_t size,
                            size_t max_parts, struct multipart *ret, struct error *err) MUST_USE;
void multipart_done(struct multipart *multipart);
