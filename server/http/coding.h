/* Content codings (RFC 9110, section 8.4.1): gzip (RFC 1952) and deflate (RFC 1950; RFC 1951 alone,
 * as some clients send it, is understood too), in and out. zlib is named in this room only.
 *
 * What comes in is inflated as it arrives, straight into the bounded body, and given up as soon as
 * it grows too fast: a kilobyte can become a megabyte, and nobody's photo does. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"
#include "server/http/upload.h"

enum coding { CODING_NONE, CODING_GZIP, CODING_DEFLATE };

/* Of a Content-Encoding header; NULL, "" and "identity" are CODING_NONE. False: another one, or
 * several. */
bool coding_parse(const char *content_encoding, enum coding *ret);

/* "gzip", "deflate"; NULL for none. */
const char *coding_name(enum coding coding);

/* What an Accept-Encoding header likes best of what we have (RFC 9110, section 12.5.3). */
enum coding coding_choose(const char *accept_encoding);

struct inflater;

/* max_ratio: bytes out for each byte in; the first INFLATE_FREE bytes are not looked at.
 * STATUS_NO_MEMORY. */
#define INFLATE_FREE ((size_t)1 << 20)
enum status inflater_create(enum coding coding, size_t max_ratio, struct inflater **ret,
                            struct error *err) MUST_USE;
void inflater_free(struct inflater *inflater); /* NULL is fine */

/* Inflates the next bytes into `upload`. STATUS_INVALID for what is no such stream, or goes on
 * behind its end; STATUS_TOO_LARGE beyond the ratio; the errors of upload_append. */
enum status inflater_feed(struct inflater *inflater, const void *bytes, size_t size,
                          struct upload *upload, struct error *err) MUST_USE;

/* At the end of the body: STATUS_INVALID where the stream has not ended. */
enum status inflater_end(const struct inflater *inflater, struct error *err) MUST_USE;

/* `text` deflated, malloc'ed; NULL when out of memory or when it would not become shorter. */
char *coding_compress(enum coding coding, const char *text, size_t size, size_t *ret_size);
