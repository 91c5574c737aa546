/* What a client would like: Accept and Accept-Encoding (RFC 9110, section 12.5). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* How much a list of tokens ("gzip, br;q=0.5, *;q=0") likes `token`: 0 … 1. A token that is not
 * there counts as "*" does; without "*" it is 0, but "identity" is 0.001: better than nothing. */
double negotiate_token(const char *list, const char *token);

/* The media type among `offers` that `accept` ("text/plain, application/json;q=0.5") likes best, by
 * its index; the earlier one of equals. NULL likes everything. -1: none is acceptable. Types are
 * "type/subtype" without parameters. */
int negotiate_type(const char *accept, const char *const *offers, size_t count);

/* Does an If-None-Match list name this entity tag (compared weakly), or "*"? */
bool negotiate_etag(const char *if_none_match, const char *etag);
