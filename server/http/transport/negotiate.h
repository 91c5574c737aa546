/* Content negotiation: Accept and Accept-Encoding (RFC 9110, section 12.5), If-None-Match. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The quality (0 … 1) of `token` in a list such as "gzip, br;q=0.5, *;q=0". An unlisted token has
 * the quality of "*", or 0 without "*". An unlisted "identity" has 0.001, as a last resort. */
double negotiate_token(const char *list, const char *token);

/* The index in `offers` of the media type that `accept` ("text/plain, application/json;q=0.5")
 * prefers; the first of equals. If `accept` is NULL or blank, 0. -1: none is acceptable. The offers
 * are "type/subtype" without parameters. */
int negotiate_type(const char *accept, const char *const *offers, size_t count);

/* Whether an If-None-Match list names this entity tag (weak comparison), or is "*". */
bool negotiate_etag(const char *if_none_match, const char *etag);
