/* Memory on a CPU for activations of several sessions. Sessions that run one at a time can use one
 * arena: the largest session decides its size, and all reuse the same pages. Outputs are elsewhere,
 * so that another session's run does not overwrite them. A new arena has 0 bytes.
 *
 * Thread-safe. A run holds the lock from start to end, so sessions that share an arena run one
 * after another. A session with streams holds the lock until the last of its runs in flight ends.
 * It begins no further run while a thread waits to resize the arena. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

struct backend;

struct shared_arena {
    pthread_mutex_t lock;
    unsigned char *base;        /* guarded by lock; moves when it grows; NULL: empty */
    struct backend *users;      /* linked by next_user; guarded by lock */
    const struct backend *last; /* the backend whose program ran last; guarded by lock */
    _Atomic size_t bytes;       /* changes under the lock */
    atomic_int waiting;         /* threads that wait to resize the arena */
    size_t booked;              /* bytes, counted by a memory budget and guarded by its lock */
};

static inline void shared_arena_init(struct shared_arena *arena)
{
    *arena = (struct shared_arena){.booked = 0};
    pthread_mutex_init(&arena->lock, NULL);
}

/* Call it after the last user has left. That user freed `base` when it left. */
static inline void shared_arena_done(struct shared_arena *arena)
{
    pthread_mutex_destroy(&arena->lock);
}
