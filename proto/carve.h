/* Cuts large arrays out of JSON before it becomes a tree. Private to proto/.
 *
 * The cut is lexical: strings are skipped, brackets counted; the array that is the value of a
 * certain member is replaced by a 0, and remembered where it lies. What is left goes through
 * json_check() like every JSON from outside, so that whatever the cut made of broken text is
 * refused there, or where the array is read. */
#pragma once

#include "engine/base/status.h"

struct carved {
    const char *text; /* an array, from its bracket to behind its last one (or to the end) */
    size_t size;
};

struct carve_rule {
    size_t depth;       /* of the object with the member: 1 = the outermost value */
    const char *parent; /* the outermost object's member that it is in; NULL: any, or none */
    const char *member;
};

/* Writes what is left of text[0 … size) to `rest` (size + 1 bytes; terminated), its length to
 * *ret_rest_size, and the arrays, in their order, to `ret`: at most `max`. STATUS_INVALID beyond.
 */
enum status json_carve(const char *text, size_t size, const struct carve_rule *rule, char *rest,
                       size_t *ret_rest_size, struct carved *ret, size_t max, size_t *ret_count,
                       struct error *err) MUST_USE;
