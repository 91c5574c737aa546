/* Private to engine/cpu/: splitting a loop over the forward pass's threads (OpenMP, the same pool
 * that oneDNN uses, so that the two never fight). */
#pragma once

#include <omp.h>
#include <stddef.h>

/* Calls body(context, begin, end) for pieces of 0 … n on up to `threads` threads; in one piece when
 * n * cost is small. cost: rough nanoseconds (or bytes / 8) per item. */
static inline void parallel_for(int threads, size_t n, size_t cost,
                                void (*body)(void *context, size_t begin, size_t end),
                                void *context)
{
    enum { WORTH = 8192 }; /* waking the other threads costs a few microseconds */
    if (threads < 2 || n < 2 || n * cost < WORTH) {
        body(context, 0, n);
        return;
    }
    size_t pieces = n < (size_t)threads ? n : (size_t)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t p = 0; p < pieces; p++)
        body(context, n * p / pieces, n * (p + 1) / pieces);
}
