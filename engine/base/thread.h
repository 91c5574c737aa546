/* Threads that are named for top and debuggers and block every signal, so that SIGTERM always
 * reaches the main thread; conditions that wait on the monotonic clock; locks held by a block. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Advice for the error that the system starts no more threads. */
#define THREAD_LIMIT_HINT                                                                          \
    "raise the limit of threads (ulimit -u, a container's pids limit) or of memory (ulimit -v)"

/* Starts `run(argument)`; `name` is cut to 15 bytes. False when the system has no thread left. */
bool thread_start(pthread_t *ret, const char *name, void *(*run)(void *argument), void *argument);

void condition_init(pthread_cond_t *condition);
/* Waits as pthread_cond_wait until clock_now() reaches `until` (INT64_MAX: forever). May return
 * early for no reason: check the state again. */
void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);

static inline pthread_mutex_t *lock_begin(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void lock_end(pthread_mutex_t **mutex)
{
    pthread_mutex_unlock(*mutex);
}

/* LOCK(&queue->lock); holds the lock until the enclosing block ends, also by a return, which
 * computes its value first. One per block. */
#define LOCK(mutex)                                                                                \
    pthread_mutex_t *lock_held_ __attribute__((cleanup(lock_end), unused)) = lock_begin(mutex)
