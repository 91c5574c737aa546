/* Starts named threads with all signals blocked; waits for conditions by the monotonic clock. */
#include "server/schedule/runtime/thread.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

bool thread_start(pthread_t *ret, const char *name, void *(*run)(void *argument), void *argument)
{
    /* A new thread inherits the mask; so do the threads of the team that it makes. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a fault in a mapped file is handled where it happens */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(ret, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return false;
    char cut[16];
    snprintf(cut, sizeof cut, "%.15s", name);
    pthread_setname_np(*ret, cut);
    return true;
}

void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until)
{
    if (until == INT64_MAX) {
        pthread_cond_wait(condition, lock);
        return;
    }
    if (until < 0)
        until = 0;
    struct timespec end = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_cond_timedwait(condition, lock, &end);
}
