/* Counts the bytes of all bodies and answers against --max-upload-memory. */
#include "server/http/transport/http_budget.h"

/* True if `bytes` more fit. A client's share may exceed its limit if one request alone uses it. */
static bool fits(const struct http_budget *budget, size_t used, size_t own, size_t bytes)
{
    return (bytes <= budget->limit && used <= budget->limit - bytes) ||
           (budget->whole && used <= own);
}

bool http_budget_charge(struct http_budget *budget, size_t own, size_t bytes)
{
    size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (!fits(budget, used, own, bytes))
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
    for (; budget; budget = budget->whole)
        atomic_fetch_add_explicit(&budget->used, bytes - *charged, memory_order_relaxed);
    *charged = bytes;
}

void http_budget_release(struct http_budget *budget, size_t bytes)
{
    for (; budget; budget = budget->whole)
        atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}
