/* Fork and join: the threads that a forward pass is split over.
 *
 * A team belongs to the thread that forks: its members are made at its first parallel region, sleep
 * between passes, and end with that thread. Member 0 is the thread itself. Within a pass, regions
 * follow each other every few microseconds, and to wake a thread takes as long as a small layer; so
 * who waits spins before it sleeps. On cores that others use, too, a spin keeps the very thread
 * that is waited for from running; so whose spins have lately been for nothing sleeps at once
 * (forkjoin.c). Measured: docs/measurements/threads.md.
 *
 * oneDNN's loops run here as well: it is built for GNU OpenMP, of which it uses few functions
 * (execution model: OpenMP API 5.2, 1.2), and engine/cpu/openmp.c stands in for these. So a thread
 * has one team, whoever forks. Thread-safe: teams share nothing. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Calls body(context) in `threads` members at once, the caller among them; returns when all of them
 * have. Inside a region, or with threads < 2, only the caller runs it, as member 0 of 1. Where the
 * system has no memory or thread left the team is smaller than asked for: ask forkjoin_members().
 */
void forkjoin_run(int threads, void (*body)(void *context), void *context);

/* The same for a body that takes its work from what all members share, until nothing is left: a
 * member that has not begun when the caller's own call returns is not waited for, and never begins.
 * So a core that is busy with something else delays nobody. body must not call forkjoin_barrier().
 */
void forkjoin_share(int threads, void (*body)(void *context), void *context);

/* Makes the calling thread's team as large as that, now. Returns how many members it has, the
 * caller among them: fewer where the system starts no further thread (errno says why). Regions of
 * that many need nothing more of the system. */
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

/* How many threads oneDNN uses in regions that this thread forks, and compiles for; at first all
 * that this process may use. */
void forkjoin_set_threads(int threads);
int forkjoin_threads(void);
