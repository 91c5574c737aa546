/* Limits the memory of all request bodies and answers together (--max-upload-memory). A body and
 * the data derived from it count until the request is answered. An answer counts from the admission
 * of its request until it has been sent. All connections share one budget; any thread may use it.
 * The requests of one client together get a share, so that one client cannot block the others. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct http_budget {
    size_t limit; /* bytes */
    _Atomic size_t used;
    struct http_budget *whole; /* for a share: the whole budget; NULL: this is the whole */
};

/* Charges `bytes`. Returns false and charges nothing if that would exceed the limit of the share or
 * of the whole. `own` is the number of bytes that the same request has charged so far. A single
 * request may exceed the share while its client has no other request. */
bool http_budget_charge(struct http_budget *budget, size_t own, size_t bytes);

/* Returns the number of bytes that a single request may use. */
size_t http_budget_most(const struct http_budget *budget);

/* Sets the charge *charged to `bytes`, which are already allocated. This may exceed the limit;
 * later charges are then refused. */
void http_budget_settle(struct http_budget *budget, size_t *charged, size_t bytes);

void http_budget_release(struct http_budget *budget, size_t bytes);
