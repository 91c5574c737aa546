/* Monotonic time, and CPU time. */
#pragma once

#include <stdint.h>
#include <time.h>

#define NS_PER_MS INT64_C(1000000)

/* Nanoseconds on CLOCK_MONOTONIC. */
static inline int64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* CPU time that the calling thread has used, in nanoseconds. */
static inline int64_t clock_thread(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double clock_ms(int64_t nanoseconds)
{
    return (double)nanoseconds * 1e-6;
}
