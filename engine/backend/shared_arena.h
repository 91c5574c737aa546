/* The memory of activations on a CPU. Sessions that run one at a time can share an arena: the
 * largest of them decides its size, and pages that one has touched serve the others. Outputs lie
 * elsewhere, so another session's run leaves them alone. An arena begins with 0 bytes.
 *
 * Thread-safe. A run holds the lock from begin to end: sessions of one arena compute in turn. */
#pragma once

#include <pthread.h>
#include <stddef.h>

struct backend;

struct shared_arena {
    pthread_mutex_t lock;
    unsigned char *base;   /* guarded by lock, as the next; moves when it grows; NULL: empty */
    struct backend *users; /* linked by next_user */
    _Atomic size_t bytes;  /* changes under the lock */
    size_t booked;         /* budget_book_arena's, guarded by the budget's lock */
};

static inline void shared_arena_init(struct shared_arena *arena)
{
    *arena = (struct shared_arena){.booked = 0};
    pthread_mutex_init(&arena->lock, NULL);
}

/* Call it after the last user has left, which frees the memory. */
static inline void shared_arena_done(struct shared_arena *arena)
{
    pthread_mutex_destroy(&arena->lock);
}
