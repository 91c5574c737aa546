/* Fork and join: the team of threads that runs a forward pass.
 *
 * A team belongs to the thread that forks; this thread is member 0. The other members start at the
 * first parallel region or in forkjoin_prepare(), sleep between passes, and end with the thread.
 * Within a pass, regions follow each other every few microseconds, and waking a thread takes as
 * long as computing a small layer. Therefore waiting threads spin before they sleep. On a core that
 * other threads use, a spin can delay the awaited thread. So a thread whose recent spins were
 * wasted sleeps at once (forkjoin.c). Measurements: docs/measurements/threads.md. Thread-safe:
 * teams share nothing. */
#pragma once

#include <stdint.h>

/* Calls body(context) in `threads` members in parallel, the caller among them, and returns when all
 * calls have returned. Inside a region, or with threads < 2, only the caller calls it, as member 0
 * of 1. A team has at most 1024 members, and fewer than `threads` if the system refuses memory or
 * a thread: see forkjoin_members(). */
void forkjoin_run(int threads, void (*body)(void *context), void *context);

/* Like forkjoin_run(), for a body that takes work from a shared list until the list is empty. When
 * the caller's own call returns, members that have not started are skipped, so that a busy core
 * delays nothing. */
void forkjoin_share(int threads, void (*body)(void *context), void *context);

/* Creates the calling thread's team of `threads` members now. Returns the number of members, the
 * caller included. It is smaller than `threads` if the system refuses a thread (errno says why).
 * Later regions of that size allocate nothing. */
int forkjoin_prepare(int threads);

/* Writes the CPU time in nanoseconds that each member of the calling thread's team has used, the
 * caller first, for at most `most` members. Returns the number written. Outside regions only. */
int forkjoin_cpu_times(int64_t *times, int most);

/* Index of this thread among the region's members, and their number; 0 and 1 outside of regions. */
int forkjoin_member(void);
int forkjoin_members(void);
