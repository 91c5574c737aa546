/* A request body in one growing buffer, bounded by its limit and the shared budget. */
#include "server/http/transport/upload.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

/* The first allocation for a body with a Content-Length, unless the body is shorter. Most images
 * fit, and a false Content-Length costs no more. */
#define FIRST_BYTES ((size_t)1 << 20)

/* ---- the budget ---- */

bool http_budget_charge(struct http_budget *budget, size_t own, size_t bytes)
{
    size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        const bool fits = bytes <= budget->limit && used <= budget->limit - bytes;
        /* A client's share may exceed its limit if one request alone uses it. */
        if (!fits && !(budget->whole && used <= own))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    if (!budget->whole || http_budget_charge(budget->whole, own, bytes))
        return true;
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
    return false;
}

size_t http_budget_most(const struct http_budget *budget)
{
    return budget->whole ? budget->whole->limit : budget->limit;
}

void http_budget_settle(struct http_budget *budget, size_t *charged, size_t bytes)
{
    /* Unsigned addition wraps, so this also subtracts if the size has become smaller. */
    for (; budget && bytes != *charged; budget = budget->whole)
        atomic_fetch_add_explicit(&budget->used, bytes - *charged, memory_order_relaxed);
    *charged = bytes;
}

/* ---- a body ---- */

void upload_init(struct upload *upload, struct http_budget *budget, size_t limit, size_t expected)
{
    *upload = (struct upload){.budget = budget, .limit = limit, .expected = expected};
}

/* The largest possible capacity if no other request held memory. */
static size_t room(const struct upload *upload)
{
    const size_t most = http_budget_most(upload->budget);
    return most > upload->beside ? most - upload->beside : 0;
}

static bool charge(const struct upload *upload, size_t bytes)
{
    return http_budget_charge(upload->budget, upload->capacity + upload->beside, bytes);
}

/* The next capacity for `need` bytes: doubles, but never exceeds the largest possible body. */
static size_t next_capacity(const struct upload *upload, size_t need)
{
    size_t bound = upload->expected ? upload->expected : upload->limit;
    bound = bound < room(upload) ? bound : room(upload);
    size_t capacity = upload->capacity ? upload->capacity : FIRST_BYTES / 2;
    if (!upload->capacity && !upload->expected)
        capacity = 16 * 1024;
    do {
        if (!size_mul(capacity, 2, &capacity))
            return need;
    } while (capacity < need);
    capacity = capacity > bound ? bound : capacity;
    return capacity > need ? capacity : need;
}

static enum status never_fits(const struct upload *upload, struct error *err)
{
    return error_set(
        err, STATUS_TOO_LARGE,
        "the body and its decoded form need more than %zu bytes, the limit for all requests "
        "together; send less at once, or raise the limit (--max-upload-memory)",
        http_budget_most(upload->budget));
}

static enum status overloaded(const struct upload *upload, struct error *err)
{
    return error_set(err, STATUS_OVERLOADED,
                     "the bodies and answers of all requests together would exceed %zu bytes, or "
                     "those of your address three quarters of that; try again soon, or raise the "
                     "limit (--max-upload-memory)",
                     http_budget_most(upload->budget));
}

enum status upload_append(struct upload *upload, const void *bytes, size_t size, struct error *err)
{
    size_t need;
    if (!size_add(upload->size, size, &need) || need > upload->limit)
        return error_set(err, STATUS_TOO_LARGE,
                         "the body is larger than %zu bytes; send a smaller image, or raise the "
                         "limit (--max-body)",
                         upload->limit);
    if (need > upload->capacity) {
        if (need > room(upload))
            return never_fits(upload, err);
        size_t capacity = next_capacity(upload, need), more = capacity - upload->capacity;
        if (!charge(upload, more))
            return overloaded(upload, err);
        uint8_t *grown = realloc(upload->data, capacity);
        if (!grown) {
            http_budget_settle(upload->budget, &more, 0);
            return error_set(err, STATUS_NO_MEMORY, "out of memory for a body of %zu bytes", need);
        }
        upload->data = grown;
        upload->capacity = capacity;
    }
    memcpy(upload->data + upload->size, bytes, size);
    upload->size = need;
    return STATUS_OK;
}

enum status upload_charge(struct upload *upload, size_t bytes, struct error *err)
{
    if (upload->capacity > room(upload) || bytes > room(upload) - upload->capacity)
        return never_fits(upload, err);
    if (!charge(upload, bytes))
        return overloaded(upload, err);
    upload->beside += bytes;
    return STATUS_OK;
}

void upload_drop_bytes(struct upload *upload)
{
    free(upload->data);
    upload->data = NULL;
    upload->size = 0;
}

void upload_release_bytes(struct upload *upload)
{
    http_budget_settle(upload->budget, &upload->capacity, 0);
    upload_drop_bytes(upload);
}

void upload_done(struct upload *upload)
{
    upload_release_bytes(upload);
    http_budget_settle(upload->budget, &upload->beside, 0);
}
