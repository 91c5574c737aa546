/* A lane: the thread of one model on one device. It takes batches from the model's scheduler, runs
 * the forward pass, and turns scores into classes. Several lanes of a model pull from one queue. */
#pragma once

#include "server/schedule/runtime/budget.h"
#include "server/schedule/runtime/scheduler.h"

struct lane;

/* Takes over `session` on success and on failure: `model` compiled with `options`. What the lane
 * takes of its device is booked in `budget` (may be NULL; outlives the lane) as long as it lives;
 * the limit is the caller's, in the options. It takes turns on its device with the other lanes of
 * `queue`, which outlives it. STATUS_NO_MEMORY, STATUS_SHAPE. */
enum status lane_create(const struct model *model, struct session *session,
                        const struct session_options *options, struct device_budgets *budget,
                        struct device_queue *queue, struct lane **ret, struct error *err) MUST_USE;

/* Threads other than the lane's run it only between lane_borrow and lane_return. */
struct session *lane_session(const struct lane *lane);

/* Waits for a turn on the device and for the lane's answers; until lane_return the lane does not
 * run its session. One thread at a time, while the lane is started. */
void lane_borrow(struct lane *lane);
void lane_return(struct lane *lane);

/* As measured when it was created; alive and unchanged as long as the lane. */
const struct session_info *lane_info(const struct lane *lane);
int lane_max_batch(const struct lane *lane);
size_t lane_bytes(const struct lane *lane); /* of its device, with its part of the shared arena */

/* Whether it is quarantined because its device fails. Any thread. */
void lane_describe_health(struct lane *lane, struct lane_health *ret);

/* Whether a pass goes on that should have ended long ago, or that the end of the grace time does
 * not stop. Any thread. */
bool lane_is_stuck(const struct lane *lane);

/* Starts the thread as lane `index` (0, 1 …) of `scheduler`, which outlives it. STATUS_NO_MEMORY
 * when there is no thread to be had. */
enum status lane_start(struct lane *lane, struct scheduler *scheduler, int index,
                       struct error *err) MUST_USE;

/* Joins the thread, after scheduler_stop, and frees the session. NULL is fine. */
void lane_free(struct lane *lane);
