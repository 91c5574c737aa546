/* Targets of requests: percent-decoding (RFC 3986, section 2.1) and query parameters. */
#pragma once

#include <stddef.h>

#include "engine/base/status.h"

#define QUERY_MAX 16

struct query_parameter {
    const char *name, *value; /* inside the parsed text */
};

struct query {
    struct query_parameter parameters[QUERY_MAX];
    size_t count;
};

/* Decodes %XX in place. STATUS_INVALID for a malformed escape, or a result with control characters
 * or invalid UTF-8. */
enum status url_decode(char *text, struct error *err) MUST_USE;

/* Splits "a=1&b=2" in place ('+' is a blank). STATUS_INVALID as url_decode(), and for more than
 * QUERY_MAX parameters or a repeated one. `text` may be NULL or "". */
enum status query_parse(char *text, struct query *ret, struct error *err) MUST_USE;

/* The value of a parameter; NULL if the query has none of this name. */
const char *query_value(const struct query *query, const char *name);

/* Finds the field `name` in a form of type application/x-www-form-urlencoded, and decodes its value
 * in place. A '%' without two digits stays. Returns the value, which has *ret_size bytes in `form`,
 * or NULL if there is no such field. */
unsigned char *query_form_field(unsigned char *form, size_t size, const char *name,
                                size_t *ret_size);
