/* A lane: the thread of one model on one device. It takes batches from the model's scheduler, runs
 * the forward pass, and turns scores into classes. Several lanes of a model share one queue.
 *
 * lane.c creates a lane and runs its thread; lane_inflight.c takes batches and keeps the device
 * busy; lane_passes.c runs and answers them; lane_device.c quarantines the lane when its device
 * fails. Each file calls only files after it in this list.
 *
 * Locks: `lock` guards only the two members below it. Calls to the scheduler and the device queue
 * take their own locks. The lane's thread, or one that borrows the session (lane_borrow()), holds
 * `session_lock` from before it runs the session until the outputs are answered. It takes this lock
 * after it gets its turn on the device. The output buffers and the current batch belong to the
 * lane's thread alone. */
#pragma once

#include <semaphore.h>

#include "models/tasks/class_scores.h"
#include "server/schedule/policy/batch_cap.h"
#include "server/schedule/runtime/budget.h"
#include "server/schedule/runtime/scheduler.h"

/* A batch that the lane has taken, or some of its images that run again, and their pass. */
struct lane_pass {
    struct batch batch; /* without images that no client waits for any more */
    bool is_submitted;
    bool has_ended;     /* `forward_ms` and `ended` are set */
    enum status status; /* of session_submit(), later of the pass */
    struct error error;
    double copy_in_ms, forward_ms;
    int64_t begun, ended;
    const void **inputs; /* info.input_count pointers, in lane.inputs */
};

struct lane {
    /* immutable once created */
    const struct model *model;
    /* Once the lane is started, other threads use its session only between lane_borrow() and
     * lane_return(). */
    struct session *session;
    struct session_info info; /* session_info() at the lane's creation */
    struct device_budgets *budget;
    struct shared_arena *arena; /* the arena of the device's queue */
    size_t needs;               /* bytes that the lane uses on its device */
    size_t booked;              /* the part of `needs` that is not in `arena` */
    struct scheduler *scheduler;
    struct deployment *deployment;
    int index; /* index of this lane in its scheduler */
    bool started;
    pthread_t thread;
    sem_t warm;          /* posted by the lane's thread after the warm-up */
    enum status entered; /* session_enter()'s result, set before `warm` */
    struct error refusal;

    pthread_mutex_t session_lock;
    struct device_turn borrowed; /* the turn of the thread that borrows the session */
    int64_t borrowed_at;         /* clock_now() */

    _Atomic int64_t
        stuck_at; /* from this time (clock_now()) on the current pass is stuck; 0: no pass */

    pthread_mutex_t lock;
    int64_t quarantined_since; /* written by the lane's thread, under lock; 0: the lane works */
    char quarantine_reason[sizeof((struct lane_health *)0)->reason];

    /* used only by the lane's thread */
    struct device_turn turn;
    int64_t turn_used;             /* nanoseconds that passes of this turn have used */
    struct error device_error;     /* the error of the last failed probe */
    const struct tensor **outputs; /* the outputs of the last run */
    bool *wanted;                  /* the outputs that the images of the last pass need */
    const void **inputs;           /* for a probe or the warm-up, then for each of `inflight` */
    struct lane_pass inflight[BATCHER_MAX_DEPTH];
    int first_inflight, inflight_count;
    int64_t ended;                                /* end of the last pass */
    struct task_buffer buffers[TASK_MAX_OUTPUTS]; /* for outputs that are not float32 */
    struct batch_cap cap;
    struct lane_meters meters;
    struct batch_layout retry_layout;
    void *retry_rows; /* inputs of a batch of the smallest size: for retries, probes and warm-up */
    uint8_t *retry_marks;        /* session_request.are_pixels for `retry_rows` */
    const struct batch *running; /* its pass is being collected; NULL: none, or a probe */
};

/* Takes ownership of `session`, which is `model` compiled with `options`, even on failure. The
 * lane's memory on its device is booked in `budget` while the lane lives; the limit is in the
 * options. The lane takes turns on its device with the other lanes of `queue`. `budget` and `queue`
 * must outlive the lane. STATUS_NO_MEMORY, STATUS_SHAPE. The caller frees *ret, which a failure may
 * set. */
enum status lane_create(const struct model *model, struct session *session,
                        const struct session_options *options, struct device_budgets *budget,
                        struct device_queue *queue, struct lane **ret, struct error *err) MUST_USE;

/* Waits for a turn on the device, and until the lane has answered its current batch. Until
 * lane_return() the lane does not run its session. One thread at a time, while the lane is started.
 * `lane` is a struct lane. */
void lane_borrow(void *lane);
void lane_return(void *lane);

/* Reports whether the lane is stuck, or quarantined because its device fails. Any thread. */
void lane_describe_health(struct lane *lane, struct lane_health *ret);

/* True if a pass takes far too long, or outlasts the grace time of a shutdown. Any thread. */
bool lane_is_stuck(const struct lane *lane);

/* Starts the thread as lane `index` (0, 1 …) of `scheduler`, which must outlive it.
 * STATUS_NO_MEMORY if no thread can be started. */
enum status lane_start(struct lane *lane, struct scheduler *scheduler, int index,
                       struct error *err) MUST_USE;

/* Joins the thread, after scheduler_stop, and frees the session. NULL is fine. */
void lane_free(struct lane *lane);

/* The functions below are private to lane*.c. Only the lane's thread calls them, except
 * lane_is_unwanted(). */

/* ---- lane_inflight.c ---- */

/* Runs and answers a batch, and the batches that follow it without a gap. Called during the lane's
 * turn on the device, which it ends. */
void lane_serve(struct lane *lane, const struct batch *first);

/* ---- lane_passes.c ---- */

/* The current limit of images per pass (batch_cap.h); updates the gauge. */
int lane_batch_cap(struct lane *lane);

/* Submits the images of pass->batch, whose slots have no gaps. The caller has set `begun`.
 * `is_retry`: the padding is zeros. */
void lane_submit(struct lane *lane, struct lane_pass *pass, bool is_retry);

/* Waits for the pass, and sets its status, error and times. Counts and logs it. The status is
 * STATUS_INVALID if clients' tensors are the cause of a failure. */
void lane_collect(struct lane *lane, struct lane_pass *pass);

/* Runs a batch and answers its images. A batch whose pass has failed (`has_ended`) is split
 * repeatedly, down to the single images that fail; a batch larger than the cap is split at once.
 * Returns how many images, counted from the first, were answered: all, unless the device fails. */
int lane_run_sub_batches(struct lane *lane, const struct lane_pass *pass);

/* Answers the images of a pass that has ended. */
void lane_answer_images(struct lane *lane, const struct lane_pass *pass);

/* For session_set_stop(): returns true, to stop the run, if no client waits for an image of the
 * pass or the grace time is over. `lane` is a struct lane. The session's thread calls it. */
bool lane_is_unwanted(void *lane);

/* Ends the lane's turn on the device. If images are ready, it also queues for the next turn. */
void lane_end_turn(struct lane *lane);

/* ---- lane_device.c ---- */

/* Probes the device. Only STATUS_DEVICE counts as a failure, because a model may refuse zeros. */
bool lane_device_is_well(struct lane *lane);

/* The time (clock_now()) from which on a pass of `batch` that begins now counts as stuck. */
int64_t lane_stuck_time(const struct lane *lane, const struct batch *batch);

/* Handles a device failure: the images from number `answered` on go to other lanes. An image fails
 * if it has moved before, or if no other lane works. Returns the number of finished images. */
int lane_give_up_device(struct lane *lane, struct batch *batch, int answered);

/* Waits in quarantine. Returns true when the device works again, false when the lane must end. */
bool lane_stay_quarantined(struct lane *lane);
