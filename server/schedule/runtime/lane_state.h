/* Private to lane*.c: the state of a lane. lane.c creates it and runs its thread; lane_inflight.c
 * takes batches and keeps the device busy; lane_passes.c runs and answers them; lane_device.c
 * quarantines the lane when its device fails. Calls go down in that order.
 *
 * Locks: `lock` guards the two members below it, and is held for nothing else. Calls to the
 * scheduler and the device queue take their own locks. `session_lock` is held by the thread that
 * runs the session, from before its runs until their outputs are answered: the lane's, or one that
 * borrows it (lane_borrow). A thread that needs a turn on the device gets it before this lock. The
 * buffers for outputs and the batch that was taken belong to the lane's thread alone. */
#pragma once

#include <semaphore.h>

#include "models/tasks/class_scores.h"
#include "server/schedule/policy/batch_cap.h"
#include "server/schedule/runtime/lane.h"

/* An in-flight batch: taken, not answered yet. */
struct inflight_batch {
    struct batch batch;
    size_t taken; /* images, those that were dropped included */
    bool is_submitted;
    enum status status; /* of submitting it */
    struct error error;
    struct session_want want;
    double copy_in_ms;
    int64_t begun;
    const void **inputs; /* input_count */
    bool *wanted;        /* output_count */
};

/* The images of a batch that one forward pass runs: all, or a part if the pass is retried. */
struct image_range {
    int first, count;
};

struct lane {
    /* immutable once created */
    const struct model *model;
    struct session *session;
    struct session_info info;
    size_t input_count;
    struct device_budgets *budget; /* NULL: none, or nothing is booked yet */
    struct shared_arena *arena;    /* its queue's */
    size_t needs;                  /* bytes of its device, as its limit was checked */
    size_t booked;                 /* of these, all that do not lie in `arena` */
    struct scheduler *scheduler;
    struct deployment *deployment;
    int index; /* of this lane in its scheduler */
    bool started;
    pthread_t thread;
    sem_t warm;          /* posted once by the thread */
    enum status entered; /* session_enter()'s, before `warm`; not OK: the thread ends */
    struct error refusal;

    pthread_mutex_t session_lock;
    struct device_turn borrowed; /* the turn of who borrows the session */
    int64_t borrowed_at;         /* of clock_now() */

    _Atomic int64_t stuck_at; /* of clock_now(): when the pass being collected counts as stuck; 0:
                                 no pass is */

    pthread_mutex_t lock;
    int64_t quarantined_since; /* guarded by lock; 0: it works */
    char quarantine_reason[sizeof((struct lane_health *)0)->reason];

    /* the thread's own */
    struct device_turn turn;
    int64_t turn_used;             /* nanoseconds of this turn that passes have taken */
    struct error device_error;     /* of the last probe that failed */
    const struct tensor **outputs; /* of the last run, session_output_count */
    const void **inputs;           /* of the next run, input_count */
    struct inflight_batch inflight[BATCHER_MAX_DEPTH];
    int first_inflight, inflight_count;
    int64_t ended; /* when the last pass did */
    bool has_best; /* the run collected last: only the best classes came back */
    struct task_buffer buffers[TASK_MAX_OUTPUTS]; /* for outputs that are not float32 */
    struct batch_cap cap;
    struct lane_meters meters;
    struct batch_layout retry_layout;
    void *retry_rows; /* a batch of the smallest compiled size, for retries, probes and warm-up */
    uint8_t *retry_marks;
    const uint8_t *marks;        /* 1 for each image at `inputs` that is bytes; NULL: all floats */
    int valid_rows;              /* number of images at `inputs` */
    const struct batch *running; /* the batch whose pass is being collected; NULL: a probe */
    struct image_range part;     /* the part of it that the pass runs */
};

/* How a forward pass ended. */
struct outcome {
    int batch;
    double copy_in_ms, forward_ms;
    int64_t ended;
    enum status status;
    struct error failure;
};

/* How many images a buffer for a batch must hold. */
static inline int lane_padded_batch(const struct lane *lane, int batch)
{
    return session_batch_for(lane->session, batch);
}

/* All of these: the lane's thread alone, but lane_is_quarantined. */

/* ---- lane_inflight.c ---- */

/* Runs and answers a batch, and those that follow it without a gap. Called during the lane's turn
 * on the device, which it ends. */
void lane_serve(struct lane *lane, const struct batch *first);

/* ---- lane_passes.c ---- */

/* How many images a pass may have now (batch_cap.h); the gauge shows it. */
int lane_batch_cap(struct lane *lane);

/* Runs the batch whole; `ran`, if not NULL, is how that has failed already. A sub-batch that fails
 * is split further, down to the single images that fail; one larger than the cap is split at once.
 * Returns how many images, from the first on, were answered: all, unless the device fails. */
int lane_run_sub_batches(struct lane *lane, const struct batch *batch, const struct outcome *ran);

/* Finishes the images of a sub-batch whose pass has ended; row i of the pass is its image i. */
void lane_answer_images(struct lane *lane, const struct batch *batch, struct image_range part,
                        const struct outcome *outcome);

/* A forward pass of `count` images has ended, `took` nanoseconds after it could begin. Call it
 * before lane_end_pass(). Returns the status for its requests, also in *err: STATUS_INVALID where
 * the values of clients' tensors are the cause. */
enum status lane_note_pass(struct lane *lane, int count, int64_t took, enum status status,
                           struct error *err);

/* Whether to stop a run (session_set_stop): no client waits for an image of the pass any more, or
 * the grace time is over. `lane` is a struct lane. */
bool lane_is_unwanted(void *lane);

/* Which rows from `first` on are bytes, not floats (session_run.are_pixels). NULL: none. */
const uint8_t *lane_marks_of(const struct lane *lane, const struct batch *batch, int first);

/* Ends the lane's turn on the device. With more to run it queues for the next one at once, before
 * it answers. */
void lane_end_turn(struct lane *lane);

/* ---- lane_device.c ---- */

/* Any thread. The scheduler is told right afterwards. */
bool lane_is_quarantined(struct lane *lane);

/* Probes the device. Only STATUS_DEVICE counts: a model may refuse zeros for reasons of its own. */
bool lane_device_is_well(struct lane *lane);

/* Around the collection of a pass that runs `part` of `batch`. */
void lane_begin_pass(struct lane *lane, const struct batch *batch, struct image_range part);
void lane_end_pass(struct lane *lane);

/* The device fails: the images from `answered` on go to other lanes, or fail where there are none.
 * Returns how many images of the batch are finished. */
int lane_give_up_device(struct lane *lane, struct batch *batch, int answered);

/* Returns true when the device works again, false when the lane shall end. */
bool lane_stay_quarantined(struct lane *lane);
