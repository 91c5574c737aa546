/* Content codings (RFC 9110, section 8.4.1): inflates and compresses gzip (RFC 1952) and deflate
 * (RFC 1950; also raw RFC 1951, which some clients send). Only coding.c uses zlib.
 *
 * A body is inflated into a bounded buffer, and refused as soon as the ratio of output to input is
 * too high. A kilobyte can inflate to a megabyte, but no photo has such a ratio. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"
#include "server/http/transport/upload.h"

enum coding { CODING_NONE, CODING_GZIP, CODING_DEFLATE };

/* Parses a Content-Encoding header; NULL, "" and "identity" are CODING_NONE. Returns false for any
 * other coding, and for several. */
bool coding_parse(const char *content_encoding, enum coding *ret);

/* "gzip" and "deflate"; NULL for CODING_NONE. */
extern const char *const coding_names[];

/* Returns the coding that an Accept-Encoding header prefers (RFC 9110, section 12.5.3). */
enum coding coding_choose(const char *accept_encoding);

/* The largest possible ratio of output bytes to input bytes in deflate. */
#define INFLATE_MOST 1032

/* Inflates a complete, untrusted body and appends it to `upload`. STATUS_TOO_LARGE if it inflates
 * to more than max_ratio times the bytes read so far (checked after each 32 KiB, and only beyond
 * the first INFLATE_FREE bytes of output). STATUS_INVALID if a body that is not empty is no stream
 * of this coding, is truncated, or has bytes after its end. Also the errors of upload_append(). */
#define INFLATE_FREE ((size_t)1 << 20)
enum status coding_inflate(enum coding coding, const void *bytes, size_t size, size_t max_ratio,
                           struct upload *upload, struct error *err) MUST_USE;

/* Returns `text` compressed, malloc'ed; NULL for CODING_NONE, out of memory, or a longer result. */
char *coding_compress(enum coding coding, const char *text, size_t size, size_t *ret_size);
