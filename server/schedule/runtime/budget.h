/* The memory budget: how many bytes of each device all models together may take.
 *
 * Models are loaded one at a time, between budget_begin and budget_end, because each may take what
 * the others have left. A lane's bytes are booked when it is compiled and returned when it ends.
 * Counted are weights, activations and batches of inputs. Large pictures that are being decoded and
 * the tensors of data-dependent parts of runs take what the models leave of the host's memory;
 * request bodies have a limit of their own.
 *
 * Thread-safe. Locks: one, held for a few instructions; a thread that waits in budget_begin does
 * not hold it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

struct device_budgets;
struct shared_arena;

/* What one device may give; 0: no limit. */
struct budget_limit {
    struct device_id device;
    size_t bytes;
};

/* Limits of devices that are not named are 0. `host`: bytes for pictures, tensors of runs and the
 * CPU's models together; 0: no limit. NULL when out of memory; budget_free takes NULL. */
struct device_budgets *budget_create(const struct budget_limit *limits, size_t count, size_t host);
void budget_free(struct device_budgets *budget);

/* Waits until no other model is being loaded; false when *cancel (may be NULL) turned 1 meanwhile:
 * budget_end is then not to be called. */
bool budget_begin(struct device_budgets *budget, const _Atomic int *cancel);
void budget_end(struct device_budgets *budget);

/* Bytes that one of `sharers` (at least 1) lanes still to be made on the device may take: an equal
 * part of what is left, at least 1; 0 when there is no limit. */
size_t budget_share(struct device_budgets *budget, struct device_id device, int sharers);

/* How many loads are known to follow the one that begins: budget_batch_share leaves an equal part
 * to each. Called by the thread that loads. */
void budget_expect(struct device_budgets *budget, int loads);

/* Like budget_share, but leaves a part for each load of budget_expect(). Limits the batch sizes
 * after the first. */
size_t budget_batch_share(struct device_budgets *budget, struct device_id device, int sharers);

/* Books, and unbooks, bytes of a device. */
void budget_book(struct device_budgets *budget, struct device_id device, size_t bytes);
void budget_return(struct device_budgets *budget, struct device_id device, size_t bytes);

/* Makes what is booked for the arena its present size. Any thread. */
void budget_book_arena(struct device_budgets *budget, struct device_id device,
                       struct shared_arena *arena);

/* Takes bytes for a picture, once all of them are free, but does not wait beyond `until`
 * (clock_now()). STATUS_TIMEOUT: they are not yet; STATUS_TOO_LARGE: they will not be. */
enum status budget_take_picture(struct device_budgets *budget, size_t bytes, int64_t until,
                                struct error *err) MUST_USE;
void budget_give_picture(struct device_budgets *budget, size_t bytes);

/* Pictures and the tensors of runs together, for session_options.run_memory. */
struct memory_budget *budget_run_memory(struct device_budgets *budget);

/* What is booked now, and the limit (may be NULL). */
size_t budget_used(struct device_budgets *budget, struct device_id device, size_t *ret_limit);

/* The limits for `count` devices: `wanted[i]` bytes for devices[i] where that is not 0, otherwise
 * the most of `host` for the CPU, and nine tenths of a GPU's memory, as far as that is known. */
void budget_limits(const struct device_id *devices, const size_t *wanted, size_t count, size_t host,
                   struct budget_limit *ret);
