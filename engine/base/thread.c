/* Starts named threads, with all signals but SIGBUS blocked; waits for conditions. */
#include "engine/base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct thread_beginning {
    void *(*run)(void *argument);
    void *argument;
    char name[16];
};

/* A thread names itself: a confined process may not write another thread's name in /proc. */
static void *run_named(void *context)
{
    const struct thread_beginning beginning = *(struct thread_beginning *)context;
    free(context);
    if (beginning.name[0])
        pthread_setname_np(pthread_self(), beginning.name);
    return beginning.run(beginning.argument);
}

bool thread_start(pthread_t *ret, const char *name, void *(*run)(void *argument), void *argument)
{
    struct thread_beginning *beginning = malloc(sizeof *beginning);
    if (!beginning)
        return false;
    *beginning = (struct thread_beginning){.run = run, .argument = argument};
    snprintf(beginning->name, sizeof beginning->name, "%.15s", name ? name : "");
    /* A new thread inherits the mask of the thread that creates it. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a thread handles its own faults in mapped files */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int cause = pthread_create(ret, NULL, run_named, beginning);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!cause)
        return true;
    free(beginning);
    errno = cause;
    return false;
}

int64_t thread_cpu_time(pthread_t thread)
{
    struct timespec now = {0};
    clockid_t clock;
    if (pthread_getcpuclockid(thread, &clock) == 0)
        clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
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
