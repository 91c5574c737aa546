/* Memory of the fake's devices, and who may touch it when.
 *
 * Every stream is an actor with a vector clock, and so is the host (all its threads together, whose
 * own order other tools check). Work takes the clocks of whoever enqueued it, of what ran before it
 * in its stream, and of events it waited for. Kernels and copies report what they read and write
 * (the kernels' sources are compiled with -fsanitize=thread, whose calls end up here): an access
 * that is not ordered after the last write, or a write that is not ordered after the last reads, is
 * counted as a race, whatever the order in which they happened to run. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake_order
{
using clocks = std::vector<uint32_t>; /* by actor; missing ones are 0 */

constexpr int HOST = 0;        /* the actor */
constexpr int HOST_MEMORY = 8; /* the region after those of eight devices: page-locked */

int new_actor();
void join(clocks &to, const clocks &from);

/* What one piece of work does, on the thread that runs it; `vc` is its actor's, ticked. */
void begin(int actor, const clocks &vc);
void touch(const void *data, size_t size, bool writes); /* outside begin … end: nothing */
void end();

void check(bool on);
size_t races(char *text, size_t size);
void forget();

/* Memory of a region, 256-byte aligned; nullptr when the region is full. */
void *allocate(int region, size_t size);
void release(void *data, size_t size);
bool is_ours(const void *data);
} // namespace fake_order
