/* Splits a loop (parallel.h): threads get shares, cut into chunks that idle threads may take. */
#include "engine/cpu/program/parallel.h"

#include <stdalign.h>
#include <stdatomic.h>

#include "engine/base/forkjoin.h"

enum {
    PARALLEL_CHUNKS = 6,   /* chunks per share */
    PARALLEL_WORTH = 8192, /* ns of a loop that pays for waking threads, which takes a few µs */
    PARALLEL_CHUNK = 4096, /* ns of the smallest chunk; taking a chunk costs up to 100 ns */
};

struct parallel_loop {
    size_t n, chunk, shares; /* chunk, shares: unused if the loop is split evenly */
    void (*body)(void *context, size_t begin, size_t end);
    void *context;
    struct parallel_share {
        alignas(128) _Atomic size_t next;
        size_t end;
    } share[PARALLEL_SHARES];
};

static void parallel_even_part(void *argument)
{
    const struct parallel_loop *loop = (const struct parallel_loop *)argument;
    size_t part = (size_t)forkjoin_member(), parts = (size_t)forkjoin_members();
    loop->body(loop->context, loop->n * part / parts, loop->n * (part + 1) / parts);
}

static void parallel_shared_part(void *argument)
{
    struct parallel_loop *loop = (struct parallel_loop *)argument;
    const size_t own = (size_t)forkjoin_member();
    for (size_t i = 0; i < loop->shares; i++) {
        struct parallel_share *share = &loop->share[(own + i) % loop->shares];
        while (atomic_load_explicit(&share->next, memory_order_relaxed) < share->end) {
            const size_t begin =
                atomic_fetch_add_explicit(&share->next, loop->chunk, memory_order_relaxed);
            if (begin >= share->end)
                break;
            const size_t left = share->end - begin;
            loop->body(loop->context, begin, begin + (left < loop->chunk ? left : loop->chunk));
        }
    }
}

void parallel_even(int threads, size_t n, size_t cost,
                   void (*body)(void *context, size_t begin, size_t end), void *context)
{
    if (threads < 2 || n < 2 || n * cost < PARALLEL_WORTH) {
        body(context, 0, n);
        return;
    }
    struct parallel_loop loop;
    loop.n = n;
    loop.body = body;
    loop.context = context;
    forkjoin_run(n < (size_t)threads ? (int)n : threads, parallel_even_part, &loop);
}

void parallel_grains(int threads, size_t n, size_t grain, size_t cost,
                     void (*body)(void *context, size_t begin, size_t end), void *context)
{
    const size_t shares = n < (size_t)threads ? n : (size_t)threads;
    if (threads < 2 || n < 2 || n * cost < PARALLEL_WORTH || shares > PARALLEL_SHARES) {
        parallel_even(threads, n, cost, body, context);
        return;
    }
    struct parallel_loop loop;
    const size_t each = (n + shares - 1) / shares;
    size_t chunk = (each + PARALLEL_CHUNKS - 1) / PARALLEL_CHUNKS;
    if (chunk * cost < PARALLEL_CHUNK)
        chunk = PARALLEL_CHUNK / (cost ? cost : 1);
    loop.chunk = (chunk + grain - 1) / grain * grain;
    loop.n = n;
    loop.shares = shares;
    loop.body = body;
    loop.context = context;
    for (size_t i = 0; i < shares; i++) {
        atomic_init(&loop.share[i].next, n * i / shares);
        loop.share[i].end = n * (i + 1) / shares;
    }
    forkjoin_share((int)shares, parallel_shared_part, &loop);
}

void parallel_for(int threads, size_t n, size_t cost,
                  void (*body)(void *context, size_t begin, size_t end), void *context)
{
    parallel_grains(threads, n, 1, cost, body, context);
}
