/* Threads of the scheduler: named for top and debuggers, with every signal blocked, so that SIGTERM
 * always reaches the main thread; and conditions that wait on the monotonic clock. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Behind a sentence on a thread that the system does not start. */
#define THREAD_LIMIT_HINT                                                                          \
    "raise the limit of threads (ulimit -u, a container's pids limit) or of memory (ulimit -v)"

/* Starts `run(argument)`; `name` is cut to 15 bytes. False when the system has no thread left. */
bool thread_start(pthread_t *ret, const char *name, void *(*run)(void *argument), void *argument);

void condition_init(pthread_cond_t *condition);

/* pthread_cond_wait until clock_now() reaches `until` (INT64_MAX: without end). Returns at wakes,
 * at the end, and sometimes for nothing: look at the state again. */
void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);
