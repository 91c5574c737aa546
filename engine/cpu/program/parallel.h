/* Private to engine/cpu/: splits a loop over the threads of the forward pass. oneDNN's loops run on
 * the same team of threads, so the two never compete.
 *
 *     0        share of member 0        |        share of member 1        n
 *     [chunk][chunk][chunk][chunk][chunk]|[chunk][chunk][chunk][chunk][chunk]
 *       member 0 ────▶                       member 1 ────▶
 *
 * Each member begins with its own share. It is the same one in every pass and in every layer of the
 * same height, so that the member finds in its caches what it has written. A member that is done
 * takes chunks of the others' shares, so that a core busy with something else does not hold up the
 * loop. Chunk boundaries depend on n and the number of threads alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/forkjoin.h"

enum { PARALLEL_SHARES = 64 }; /* with more threads each thread gets one equal part */

/* If true, each thread of this thread's loops gets one equal part. For measurements. */
extern _Thread_local bool parallel_is_even;

/* Calls body(context, begin, end) once on each of up to `threads` threads, for ranges that together
 * are 0 … n: for loops that keep results by forkjoin_member() which depend on the range. One call
 * when n * cost is small. cost: rough nanoseconds (or bytes / 8) per item. */
void parallel_even(int threads, size_t n, size_t cost,
                   void (*body)(void *context, size_t begin, size_t end), void *context);

/* Calls body(context, begin, end) several times on each of up to `threads` threads, for ranges that
 * together are 0 … n; a range begins at a multiple of `grain` within its share. cost as above. The
 * thread's number, for scratch memory: forkjoin_member(). */
void parallel_grains(int threads, size_t n, size_t grain, size_t cost,
                     void (*body)(void *context, size_t begin, size_t end), void *context);
/* parallel_grains() with a grain of 1. */
void parallel_for(int threads, size_t n, size_t cost,
                  void (*body)(void *context, size_t begin, size_t end), void *context);
