/* Private to engine/cpu/: splits a loop over the threads of the forward pass.
 *
 *     0        share of member 0        |        share of member 1        n
 *     [chunk][chunk][chunk][chunk][chunk]|[chunk][chunk][chunk][chunk][chunk]
 *       member 0 ────▶                       member 1 ────▶
 *
 * Each member starts with its own share. The share is the same in every pass and in every layer of
 * equal height, so the member's caches still hold the data that it has written. A member that has
 * finished takes chunks of other shares, so that a busy core does not delay the loop. Chunk
 * boundaries depend on the arguments, not on timing. */
#pragma once

#include <stddef.h>

#include "engine/base/forkjoin.h"

enum { PARALLEL_SHARES = 64 }; /* at most; with more threads, several begin with the same share */

/* Splits 0 … n into ranges and calls body(context, begin, end) several times on each of up to
 * `threads` threads, or once if n * cost is small. cost: approximate nanoseconds (or bytes / 8) per
 * item. The body selects its scratch memory by forkjoin_member(). */
void parallel_for(int threads, size_t n, size_t cost,
                  void (*body)(void *context, size_t begin, size_t end), void *context);
