/* Private to engine/cpu/: splitting a loop over the forward pass's threads: the team that oneDNN's
 * loops run in, too, so that the two never fight. */
#pragma once

#include <stddef.h>

#include "engine/base/forkjoin.h"

struct parallel_loop {
    size_t n;
    void (*body)(void *context, size_t begin, size_t end);
    void *context;
};

static inline void parallel_part(void *argument)
{
    const struct parallel_loop *loop = (const struct parallel_loop *)argument;
    size_t part = (size_t)forkjoin_member(), parts = (size_t)forkjoin_members();
    loop->body(loop->context, loop->n * part / parts, loop->n * (part + 1) / parts);
}

/* Calls body(context, begin, end) for pieces of 0 … n on up to `threads` threads; in one piece when
 * n * cost is small. cost: rough nanoseconds (or bytes / 8) per item. Which thread of them it is:
 * forkjoin_member(). */
static inline void parallel_for(int threads, size_t n, size_t cost,
                                void (*body)(void *context, size_t begin, size_t end),
                                void *context)
{
    enum { WORTH = 8192 }; /* waking the other threads costs a few microseconds */
    if (threads < 2 || n < 2 || n * cost < WORTH) {
        body(context, 0, n);
        return;
    }
    struct parallel_loop loop = {n, body, context};
    forkjoin_run(n < (size_t)threads ? (int)n : threads, parallel_part, &loop);
}
