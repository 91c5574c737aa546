/* Fork and join: the threads that a forward pass is split over.
 *
 * A team belongs to the thread that forks: its members are made at its first parallel region, sleep
 * between passes, and end with that thread. Member 0 is the thread itself. Within a pass, regions
 * follow each other every few microseconds, and waking a thread takes as long as a small layer, so
 * waiting threads spin before they sleep. On a core that other threads use, a spin can keep the
 * awaited thread from running, so a thread whose recent spins were wasted sleeps at once
 * (forkjoin.c). Measured: docs/measurements/threads.md.
 *
 * oneDNN's loops run here as well: it is built for GNU OpenMP and calls a few of its functions
 * (execution model: OpenMP API 5.2, 1.2), which engine/cpu/openmp.c defines. So a thread has one
 * team for both. Thread-safe: teams share nothing. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Calls body(context) in `threads` members at once, the caller among them; returns when all of them
 * have. Inside a region, or with threads < 2, only the caller runs it, as member 0 of 1. If the
 * system has no memory or threads left, the team is smaller: forkjoin_members() says how large.
 */
void forkjoin_run(int threads, void (*body)(void *context), void *context);

/* The same for a body that takes its work from a shared list until the list is empty. When the
 * caller's own call returns, members that have not begun never begin, so that a core that is busy
 * elsewhere delays nobody. body must not call forkjoin_barrier().
 */
void forkjoin_share(int threads, void (*body)(void *context), void *context);

/* Creates the calling thread's team of `threads` members now. Returns how many members it has, the
 * caller included: fewer if the system refuses a thread (errno says why). Regions of that size then
 * allocate nothing. */
int forkjoin_prepare(int threads);

/* Nanoseconds of CPU time that the members of the calling thread's team have had so far, itself
 * first; at most `most` of them. Returns how many were written. Outside regions only. */
int forkjoin_cpu_times(int64_t *times, int most);

/* Which member of the region this thread is, of how many; outside: 0 of 1. */
int forkjoin_member(void);
int forkjoin_members(void);

/* Whether this thread is inside a region of several members. */
bool forkjoin_is_inside(void);

/* Waits until every member of the region has called it. Outside: nothing. */
void forkjoin_barrier(void);

/* How many threads oneDNN compiles for, and uses in regions that this thread forks. Initially all
 * that this process may use. */
void forkjoin_set_threads(int threads);
int forkjoin_threads(void);
