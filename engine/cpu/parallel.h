/* Private to engine/cpu/: splitting a loop over the forward pass's threads: the team that oneDNN's
 * loops run in, too, so that the two never fight.
 *
 *     0        share of member 0        |        share of member 1        n
 *     [chunk][chunk][chunk][chunk][chunk]|[chunk][chunk][chunk][chunk][chunk]
 *       member 0 ────▶                       member 1 ────▶        ◀── who is done helps the others
 *
 * Each member begins with its own share, the same one in every pass and in every layer of the same
 * height, so that it finds in its caches what it has written; who is done takes chunks of the
 * others. A member whose core is busy with something else thus leaves its work to the others.
 * Where chunks begin follows from n and the number of threads alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/forkjoin.h"

enum { PARALLEL_SHARES = 64 }; /* with more threads a loop is split evenly, for good */

/* For measurements: loops that this thread forks are split evenly, as they are beyond
 * PARALLEL_SHARES. */
extern _Thread_local bool parallel_is_even;

/* Calls body(context, begin, end) for pieces of 0 … n on up to `threads` threads, once for each:
 * for loops that leave something behind by forkjoin_member() that depends on which pieces those
 * were. In one piece when n * cost is small. cost: rough nanoseconds (or bytes / 8) per item. */
void parallel_even(int threads, size_t n, size_t cost,
                   void (*body)(void *context, size_t begin, size_t end), void *context);

/* Calls body(context, begin, end) for pieces of 0 … n on up to `threads` threads, several times for
 * each; pieces begin at multiples of `grain` within their share. cost as above. Which thread it is:
 * forkjoin_member(), for scratch. */
void parallel_grains(int threads, size_t n, size_t grain, size_t cost,
                     void (*body)(void *context, size_t begin, size_t end), void *context);
/* parallel_grains() with a grain of 1. */
void parallel_for(int threads, size_t n, size_t cost,
                  void (*body)(void *context, size_t begin, size_t end), void *context);
