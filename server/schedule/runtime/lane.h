/* A lane: the thread of one model on one device. It takes batches from the model's scheduler, runs
 * the forward pass, and turns scores into classes. Several lanes of a model share one queue. */
#pragma once

#include "server/schedule/runtime/budget.h"
#include "server/schedule/runtime/scheduler.h"

struct lane;

/* Takes ownership of `session`, which is `model` compiled with `options`, even on failure. The
 * lane's memory on its device is booked in `budget` (may be NULL; must outlive the lane) while the
 * lane lives; the limit is in the options. The lane takes turns on its device with the other lanes
 * of `queue`, which must outlive it. STATUS_NO_MEMORY, STATUS_SHAPE. */
enum status lane_create(const struct model *model, struct session *session,
                        const struct session_options *options, struct device_budgets *budget,
                        struct device_queue *queue, struct lane **ret, struct error *err) MUST_USE;

/* Once the lane is started, other threads use its session only between lane_borrow() and
 * lane_return(). */
struct session *lane_session(const struct lane *lane);

/* Waits for a turn on the device, and until the lane has answered its current batch. Until
 * lane_return() the lane does not run its session. One thread at a time, while the lane is started.
 * `lane` is a struct lane. */
void lane_borrow(void *lane);
void lane_return(void *lane);

/* A copy of session_info() from the session's creation, unchanged while the lane exists. */
const struct session_info *lane_info(const struct lane *lane);
int lane_max_batch(const struct lane *lane);
/* Bytes that the lane uses on its device, with its part of the shared arena. */
size_t lane_bytes(const struct lane *lane);

/* Reports whether the lane is stuck, or quarantined because its device fails. Any thread. */
void lane_describe_health(struct lane *lane, struct lane_health *ret);

/* True if a pass takes far too long, or runs although the grace time of a shutdown is over. Any
 * thread. */
bool lane_is_stuck(const struct lane *lane);

/* Starts the thread as lane `index` (0, 1 …) of `scheduler`, which must outlive it.
 * STATUS_NO_MEMORY if no thread can be started. */
enum status lane_start(struct lane *lane, struct scheduler *scheduler, int index,
                       struct error *err) MUST_USE;

/* Joins the thread, after scheduler_stop, and frees the session. NULL is fine. */
void lane_free(struct lane *lane);
