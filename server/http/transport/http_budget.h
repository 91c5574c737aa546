/* The memory that bodies of requests and answers may take together (--max-upload-memory): a body
 * and what is made of it until it has been answered, an answer from the moment its request is let
 * in until it has been sent. Shared by all connections; any thread. A client's requests together
 * get no more than a share of it, so that one client cannot keep out all others. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct http_budget {
    size_t limit; /* bytes */
    _Atomic size_t used;
    struct http_budget *whole; /* what this is a share of; NULL: it is none */
};

/* False, and nothing is charged, when that would pass the limit, of the share or of the whole.
 * `own`: what the same request has charged: alone it may take more than the share. */
bool http_budget_charge(struct http_budget *budget, size_t own, size_t bytes);

/* What a request alone may take. */
size_t http_budget_most(const struct http_budget *budget);

/* Replaces *charged, a charge, by `bytes`, which are held already: past the limit where it must be,
 * so that the next ones are refused. */
void http_budget_settle(struct http_budget *budget, size_t *charged, size_t bytes);

void http_budget_release(struct http_budget *budget, size_t bytes);
