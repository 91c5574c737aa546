/* Content codings (RFC 9110, section 8.4.1): gzip (RFC 1952) and deflate (RFC 1950; RFC 1951 alone,
 * as some clients send it, is understood too), in and out. zlib is named in coding.c
 * only.
 *
 * What comes in is inflated straight into a bounded body, and given up as soon as it grows too
 * fast: a kilobyte can become a megabyte, and nobody's photo does. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"
#include "server/http/transport/upload.h"

enum coding { CODING_NONE, CODING_GZIP, CODING_DEFLATE };

/* Of a Content-Encoding header; NULL, "" and "identity" are CODING_NONE. False: another one, or
 * several. */
bool coding_parse(const char *content_encoding, enum coding *ret);

/* "gzip", "deflate"; NULL for none. */
const char *coding_name(enum coding coding);

/* What an Accept-Encoding header likes best of what we have (RFC 9110, section 12.5.3). */
enum coding coding_choose(const char *accept_encoding);

/* Bytes that one byte may become at most. */
#define INFLATE_MOST 1032

/* Inflates a whole body, malformed or hostile as it may be, to the end of `upload`.
 * STATUS_TOO_LARGE where it makes more than max_ratio bytes of each of those read so far (in chunks
 * of 32 KiB; the first INFLATE_FREE bytes are not looked at); STATUS_INVALID for what is no such
 * stream, goes on behind its end, or ends before it; STATUS_NO_MEMORY; the errors of upload_append.
 * No bytes are no error. */
#define INFLATE_FREE ((size_t)1 << 20)
enum status coding_inflate(enum coding coding, const void *bytes, size_t size, size_t max_ratio,
                           struct upload *upload, struct error *err) MUST_USE;

/* `text` deflated, malloc'ed; NULL when out of memory or when it would not become shorter. */
char *coding_compress(enum coding coding, const char *text, size_t size, size_t *ret_size);
