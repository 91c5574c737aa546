/* Limits the memory of all request bodies and answers together (--max-upload-memory). A body and
 * the data derived from it count until the request is answered. An answer counts until it has been
 * sent; a large one counts from before it is computed. Any thread may use the budget.
 * The requests of one client together get a share, so that no client can block all others. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct http_budget {
    size_t limit; /* bytes */
    _Atomic size_t used;
    struct http_budget *whole; /* the budget of all clients, if this is a share; else NULL */
};

/* Charges `bytes` to a share and to the budget of all clients. Returns false and charges nothing if
 * a limit would be exceeded. `own` is the number of bytes that the same request has charged so far.
 * A single request may exceed the share while its client has no other request. */
bool http_budget_charge(struct http_budget *budget, size_t own, size_t bytes);

/* Returns the number of bytes that a single request may use. */
size_t http_budget_most(const struct http_budget *budget);

/* Changes a charge from *charged to `bytes`, which are already allocated, and sets *charged. This
 * may exceed the limit; later charges are then refused. */
void http_budget_settle(struct http_budget *budget, size_t *charged, size_t bytes);

void http_budget_release(struct http_budget *budget, size_t bytes);
