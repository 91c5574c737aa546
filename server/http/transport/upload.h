/* A request's body as it arrives: one buffer, bounded, charged to what all bodies and answers
 * together may take. Not thread-safe: whoever has the exchange has it (exchange.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "server/http/transport/http_budget.h"

struct upload {
    uint8_t *data; /* NULL before the first byte */
    size_t size;
    size_t capacity;   /* charged to the budget */
    size_t beside;     /* charged on top of it: upload_charge() */
    size_t compressed; /* charged by another for the same request: what this is inflated from */
    size_t limit;      /* of this body */
    size_t expected;   /* Content-Length; 0 when not known */
    struct http_budget *budget;
};

/* Nothing is allocated: a client that announces 64 MiB and sends nothing costs nothing. `expected`
 * is at most `limit`: checked by the caller, who refuses before the body. */
void upload_init(struct upload *upload, struct http_budget *budget, size_t limit, size_t expected);

/* Appends a copy. STATUS_TOO_LARGE beyond the limit, or when the request would not fit into the
 * budget even alone, STATUS_OVERLOADED when it does not fit now,
 * STATUS_NO_MEMORY; the body is then to be dropped. */
enum status upload_append(struct upload *upload, const void *bytes, size_t size,
                          struct error *err) MUST_USE;

/* Charges memory that the caller makes of the body and keeps beside it, or instead of it, until
 * upload_done(). STATUS_TOO_LARGE and STATUS_OVERLOADED as above. */
enum status upload_charge(struct upload *upload, size_t bytes, struct error *err) MUST_USE;

/* Frees the bytes but keeps their charge: something of their size stands in for them. */
void upload_drop_bytes(struct upload *upload);

/* Frees the bytes and gives their charge back: what stands in for them has its own. */
void upload_release_bytes(struct upload *upload);

/* Frees the bytes and gives their charge back; may be called again. */
void upload_done(struct upload *upload);
