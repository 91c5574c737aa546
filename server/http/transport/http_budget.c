/* Counts the bytes of all bodies and answers against --max-upload-memory. */
#include "server/http/transport/http_budget.h"

bool http_budget_charge(struct http_budget *budget, size_t bytes)
{
    size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (bytes > budget->limit || used > budget->limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void http_budget_settle(struct http_budget *budget, size_t *charged, size_t bytes)
{
    /* Unsigned: a smaller number wraps to the subtraction that it is. */
    atomic_fetch_add_explicit(&budget->used, bytes - *charged, memory_order_relaxed);
    *charged = bytes;
}

void http_budget_release(struct http_budget *budget, size_t bytes)
{
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}
