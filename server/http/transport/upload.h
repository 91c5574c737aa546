/* Request bodies in memory, and the budget of all bodies and answers. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Limits the memory of all request bodies and answers together (--max-upload-memory). A body and
 * the data derived from it count until the request is answered. An answer counts until it has been
 * sent; a large one counts from before it is computed. Any thread may use the budget.
 * The requests of one client together get a share, so that no client can block all others. */
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

/* A request's body in one bounded buffer, charged to the budget. Not thread-safe: it belongs to the
 * thread that owns the exchange (exchange.h). */
struct upload {
    uint8_t *data; /* NULL before the first byte */
    size_t size;
    size_t capacity; /* of data; charged to the budget */
    size_t beside;   /* bytes that the request has charged in addition */
    size_t limit;    /* bytes allowed in this body */
    size_t expected; /* Content-Length; 0 if unknown */
    struct http_budget *budget;
};

/* Allocates nothing: a client that announces 64 MiB and sends nothing uses no memory. The caller
 * has checked that `expected` is at most `limit`. */
void upload_init(struct upload *upload, struct http_budget *budget, size_t limit, size_t expected);

/* Appends a copy. STATUS_TOO_LARGE: the body exceeds its limit, or alone exceeds the budget;
 * STATUS_OVERLOADED: the budget has no room now; STATUS_NO_MEMORY. The caller drops the body after
 * an error. */
enum status upload_append(struct upload *upload, const void *bytes, size_t size,
                          struct error *err) MUST_USE;

/* Charges memory that the caller derives from the body and keeps until upload_done().
 * STATUS_TOO_LARGE and STATUS_OVERLOADED as upload_append(). */
enum status upload_charge(struct upload *upload, size_t bytes, struct error *err) MUST_USE;

/* Frees the bytes but keeps their charge: the caller holds a replacement of the same size. */
void upload_drop_bytes(struct upload *upload);

/* Frees the bytes and releases their charge: the caller has charged the replacement itself. */
void upload_release_bytes(struct upload *upload);

/* Frees the bytes and releases all charges; may be called again. */
void upload_done(struct upload *upload);
