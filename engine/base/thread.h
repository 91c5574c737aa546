/* Named threads that block all signals but SIGBUS, so that SIGTERM always reaches the main thread;
 * conditions on the monotonic clock; locks that the end of a block releases. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Advice for errors when the system refuses further threads. */
#define THREAD_LIMIT_HINT                                                                          \
    "raise the limit of threads (ulimit -u, a container's pids limit) or of memory (ulimit -v)"

/* Starts a thread that calls run(argument). `name` is truncated to 15 bytes; NULL: the name of the
 * calling thread. Returns false with errno when memory is short or the system refuses another
 * thread. */
bool thread_start(pthread_t *ret, const char *name, void *(*run)(void *argument), void *argument);

/* CPU time of a thread in nanoseconds; 0 if the system does not know it. */
int64_t thread_cpu_time(pthread_t thread);

void condition_init(pthread_cond_t *condition);
/* Waits like pthread_cond_wait(), at most until clock_now() reaches `until` (INT64_MAX: forever).
 * It may wake up spuriously: check the state again. */
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

/* LOCK(&queue->lock); holds the lock until the enclosing block ends. A return statement computes
 * its value before the unlock. One LOCK per block. */
#define LOCK(mutex)                                                                                \
    pthread_mutex_t *lock_held_ __attribute__((cleanup(lock_end), unused)) = lock_begin(mutex)
