/* Private to lane*.c: the state of a lane. lane.c creates it and runs its thread; lane_inflight.c
 * takes batches and keeps the device busy; lane_passes.c runs and answers them; lane_device.c
 * quarantines the lane when its device fails. Each file calls only files after it in this list.
 *
 * Locks: `lock` guards only the two members below it. Calls to the scheduler and the device queue
 * take their own locks. The thread that runs the session is the lane's or one that borrows it
 * (lane_borrow()). It holds `session_lock` from before its runs until their outputs are answered. A
 * thread that needs a turn on the device takes this lock after it gets the turn. The output buffers
 * and the current batch belong to the lane's thread alone. */
#pragma once

#include <semaphore.h>

#include "models/tasks/class_scores.h"
#include "server/schedule/policy/batch_cap.h"
#include "server/schedule/runtime/lane.h"

/* A batch in flight: it was taken, but not answered yet. */
struct inflight_batch {
    struct batch batch;
    size_t taken; /* number of images, including dropped ones */
    bool is_submitted;
    enum status status; /* result of submitting it */
    struct error error;
    struct session_want want;
    double copy_in_ms;
    int64_t begun;
    const void **inputs; /* input_count */
    bool *wanted;        /* output_count */
};

/* The images of a batch that run in one forward pass: all, or a part after a failed pass. */
struct image_range {
    int first, count;
};

struct lane {
    /* immutable once created */
    const struct model *model;
    struct session *session;
    struct session_info info;
    size_t input_count;
    struct device_budgets *budget; /* NULL: there is none, or nothing is booked yet */
    struct shared_arena *arena;    /* its queue's */
    size_t needs;  /* bytes that it needs on its device, as checked against the limit */
    size_t booked; /* the part of `needs` that is not in `arena` */
    struct scheduler *scheduler;
    struct deployment *deployment;
    int index; /* index of this lane in its scheduler */
    bool started;
    pthread_t thread;
    sem_t warm;          /* posted once by the thread */
    enum status entered; /* session_enter()'s result, set before `warm` */
    struct error refusal;

    pthread_mutex_t session_lock;
    struct device_turn borrowed; /* the turn of the thread that borrows the session */
    int64_t borrowed_at;         /* clock_now() */

    _Atomic int64_t stuck_at; /* when the pass being collected counts as stuck; 0: none */

    pthread_mutex_t lock;
    int64_t quarantined_since; /* guarded by lock; 0: it works */
    char quarantine_reason[sizeof((struct lane_health *)0)->reason];

    /* used only by the lane's thread */
    struct device_turn turn;
    int64_t turn_used;             /* nanoseconds that passes of this turn have used */
    struct error device_error;     /* from the last failed probe */
    const struct tensor **outputs; /* of the last run, session_output_count */
    const void **inputs;           /* of the next run, input_count */
    struct inflight_batch inflight[BATCHER_MAX_DEPTH];
    int first_inflight, inflight_count;
    int64_t ended; /* end of the last pass */
    bool has_best; /* the outputs collected last have only the best classes */
    struct task_buffer buffers[TASK_MAX_OUTPUTS]; /* for outputs that are not float32 */
    struct batch_cap cap;
    struct lane_meters meters;
    struct batch_layout retry_layout;
    void *retry_rows; /* a batch of the smallest size: retries, probes, warm-up */
    uint8_t *retry_marks;
    const uint8_t *marks; /* 1 for each image at `inputs` that is bytes; NULL: all are floats */
    int valid_rows;       /* number of images at `inputs` */
    const struct batch *running; /* the batch whose pass is being collected; NULL: a probe */
    struct image_range part;     /* the images of `running` in this pass */
};

/* The result of a forward pass. */
struct outcome {
    int batch;
    double copy_in_ms, forward_ms;
    int64_t ended;
    enum status status;
    struct error failure;
};

/* Number of images that a batch buffer must hold, with padding. */
static inline int lane_padded_batch(const struct lane *lane, int batch)
{
    return session_batch_for(lane->session, batch);
}

/* Only the lane's thread calls these functions, except lane_is_quarantined(). */

/* ---- lane_inflight.c ---- */

/* Runs and answers a batch, and the batches that follow it without a gap. Called during the lane's
 * turn on the device, which it ends. */
void lane_serve(struct lane *lane, const struct batch *first);

/* ---- lane_passes.c ---- */

/* The current limit of images per pass (batch_cap.h); updates the gauge. */
int lane_batch_cap(struct lane *lane);

/* Runs the whole batch; `ran`, if not NULL, is the result of a run that has failed. A sub-batch
 * that fails is split further, down to the single images that fail; one larger than the cap is
 * split at once. Returns how many images, counted from the first, were answered: all, unless the
 * device fails. */
int lane_run_sub_batches(struct lane *lane, const struct batch *batch, const struct outcome *ran);

/* Finishes the images of a sub-batch whose pass has ended; row i of the pass is its image i. */
void lane_answer_images(struct lane *lane, const struct batch *batch, struct image_range part,
                        const struct outcome *outcome);

/* Records that a forward pass of `count` images has ended, `took` nanoseconds after it could begin.
 * Call it before lane_end_pass(). Returns the status for its requests, also in *err: STATUS_INVALID
 * if values of clients' tensors are the cause. */
enum status lane_note_pass(struct lane *lane, int count, int64_t took, enum status status,
                           struct error *err);

/* Decides whether to stop a run (session_set_stop()): true if no client waits for an image of the
 * pass, or the grace time is over. `lane` is a struct lane. */
bool lane_is_unwanted(void *lane);

/* Marks of the rows from `first` on that are bytes, not floats (session_run.are_pixels). NULL:
 * none. */
const uint8_t *lane_marks_of(const struct lane *lane, const struct batch *batch, int first);

/* Ends the lane's turn on the device. If it has more to run, it first queues for the next. */
void lane_end_turn(struct lane *lane);

/* ---- lane_device.c ---- */

/* Any thread. The lane tells the scheduler shortly after this becomes true. */
bool lane_is_quarantined(struct lane *lane);

/* Probes the device. Only STATUS_DEVICE counts as a failure, as a model may refuse zeros. */
bool lane_device_is_well(struct lane *lane);

/* Call these before and after collecting a pass that runs `part` of `batch`. */
void lane_begin_pass(struct lane *lane, const struct batch *batch, struct image_range part);
void lane_end_pass(struct lane *lane);

/* Handles a device failure: the images from `answered` on go to other lanes, or fail if there are
 * none. Returns how many images of the batch are finished. */
int lane_give_up_device(struct lane *lane, struct batch *batch, int answered);

/* Waits in quarantine. Returns true when the device works again, false when the lane must end. */
bool lane_stay_quarantined(struct lane *lane);
