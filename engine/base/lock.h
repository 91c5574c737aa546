/* Holds a mutex to the end of a block. */
#pragma once

#include <pthread.h>

static inline pthread_mutex_t *lock_begin(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void lock_end(pthread_mutex_t **mutex)
{
    pthread_mutex_unlock(*mutex);
}

/* LOCK(&queue->lock); holds the lock until the enclosing block ends, also by a return, whose value
 * is computed before. One per block. */
#define LOCK(mutex)                                                                                \
    pthread_mutex_t *lock_held_ __attribute__((cleanup(lock_end), unused)) = lock_begin(mutex)
