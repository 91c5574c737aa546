/* Splits a loop (parallel.h): threads get shares, cut into chunks that idle threads may take. */
#include "engine/cpu/program/parallel.h"

#include <stdalign.h>
#include <stdatomic.h>

#include "engine/base/forkjoin.h"

enum {
    PARALLEL_CHUNKS = 6,   /* chunks per share */
    PARALLEL_WORTH = 8192, /* ns of the shortest loop for which threads are woken, in a few µs */
    PARALLEL_CHUNK = 4096, /* ns of the smallest chunk; taking a chunk costs up to 100 ns */
};

struct parallel_loop {
    size_t chunk, shares;
    void (*body)(void *context, size_t begin, size_t end);
    void *context;
    struct parallel_share {
        alignas(128) _Atomic size_t next;
        size_t end;
    } share[PARALLEL_SHARES];
};

static void parallel_part(void *argument)
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

void parallel_for(int threads, size_t n, size_t cost,
                  void (*body)(void *context, size_t begin, size_t end), void *context)
{
    if (threads < 2 || n < 2 || n * cost < PARALLEL_WORTH) {
        body(context, 0, n);
        return;
    }
    struct parallel_loop loop;
    const size_t members = n < (size_t)threads ? n : (size_t)threads;
    const size_t each = (n + members - 1) / members;
    loop.shares = members < PARALLEL_SHARES ? members : PARALLEL_SHARES;
    loop.chunk = (each + PARALLEL_CHUNKS - 1) / PARALLEL_CHUNKS;
    if (loop.chunk * cost < PARALLEL_CHUNK)
        loop.chunk = PARALLEL_CHUNK / (cost ? cost : 1);
    loop.body = body;
    loop.context = context;
    for (size_t i = 0; i < loop.shares; i++) {
        atomic_init(&loop.share[i].next, n * i / loop.shares);
        loop.share[i].end = n * (i + 1) / loop.shares;
    }
    forkjoin_share((int)members, parallel_part, &loop);
}
