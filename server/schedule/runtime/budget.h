/* The memory budget: how many bytes of each device all models together may use.
 *
 * Models are loaded one at a time, because each may use the memory that earlier ones have left. A
 * lane's bytes are booked when it is compiled and released when it ends. Weights, activations and
 * batches of inputs are counted. Decoding large photos and the tensors of data-dependent parts of
 * runs use the host memory that models leave. Request bodies have their own limit.
 *
 * Thread-safe. One lock, held for a few instructions. */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

struct shared_arena;

struct device_budgets {
    /* One budget for photos and for tensors of runs: the host memory that models leave. For
     * session_options.run_memory. */
    struct memory_budget run;

    /* private to budget.c */
    pthread_mutex_t lock; /* guards all below */
    struct account {
        struct device_id device;
        size_t limit, used;
    } accounts[DEVICE_MAX]; /* one per device */
    size_t account_count;
    size_t host;                 /* bytes for `run` and the CPU's models together; 0: no limit */
    pthread_cond_t picture_done; /* memory of a photo or a model has become free */
};

/* Sets the limit of devices[i] to limits[i] bytes. 0 means 31/32 of `host` for the CPU, and nine
 * tenths of a GPU's memory, if known. Other devices have no limit. `host`: bytes for photos,
 * tensors of runs and the CPU's models together; 0: no limit. */
void budget_init(struct device_budgets *budget, const struct device_id *devices,
                 const size_t *limits, size_t count, size_t host);
void budget_done(struct device_budgets *budget);

/* How many bytes each of the next `sharers` (at least 1) lanes of the device may use: an equal part
 * of the memory that is left, at least 1; 0 when there is no limit. */
size_t budget_share(struct device_budgets *budget, struct device_id device, int sharers);

/* Books `bytes` of a device in place of the `before` bytes that were booked. */
void budget_book(struct device_budgets *budget, struct device_id device, size_t before,
                 size_t bytes);

/* Books the arena's present size in place of the size that was booked before. Any thread. */
void budget_book_arena(struct device_budgets *budget, struct device_id device,
                       struct shared_arena *arena);

/* Books `bytes` for a photo. STATUS_TIMEOUT (err is not set): the bytes were not free; the
 * call has waited up to 50 ms for memory: try again. STATUS_TOO_LARGE: models leave less memory. */
enum status budget_take_picture(struct device_budgets *budget, size_t bytes,
                                struct error *err) MUST_USE;
void budget_give_picture(struct device_budgets *budget, size_t bytes);

/* Returns the bytes of a device that are booked now. *ret_limit (may be NULL) is the device's
 * limit; 0: no limit. */
size_t budget_used(struct device_budgets *budget, struct device_id device, size_t *ret_limit);
