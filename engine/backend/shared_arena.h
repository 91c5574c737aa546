/* The memory of activations on a CPU. Sessions that run one at a time can have one arena in common:
 * the largest of them decides its size, and what one has touched serves the others. Their outputs
 * lie elsewhere, so that they outlive another session's run.
 *
 * Thread-safe. Locks: one, held for the whole of a run: two sessions never compute at a time. */
#pragma once

#include <pthread.h>
#include <stddef.h>

struct backend;

struct shared_arena {
    pthread_mutex_t lock;
    unsigned char *base;   /* guarded by lock, as the next; moves when it grows; NULL: empty */
    struct backend *users; /* linked */
    _Atomic size_t bytes;  /* changes under the lock */
    size_t booked;         /* budget_book_arena's, guarded by the budget's lock */
};

static inline void shared_arena_init(struct shared_arena *arena)
{
    *arena = (struct shared_arena){.booked = 0};
    pthread_mutex_init(&arena->lock, NULL);
}

/* After its last user has left, and with it the memory. */
static inline void shared_arena_done(struct shared_arena *arena)
{
    pthread_mutex_destroy(&arena->lock);
}
