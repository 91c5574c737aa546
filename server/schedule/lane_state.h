/* Private to lane*.c: what a lane is made of. lane.c makes it and has its thread; lane_flights.c
 * takes batches and keeps the device busy; lane_passes.c runs them in parts and answers;
 * lane_device.c sets the lane aside when its device fails. Calls go down in that order.
 *
 * Locks: `lock` guards the lines for lane_describe_health, and is held for nothing else; the
 * scheduler's and the turns' calls take their own for themselves. The session, the scores buffer
 * and the batch that was taken belong to the lane's thread alone. */
#pragma once

#include <semaphore.h>

#include "server/schedule/batch_cap.h"
#include "server/schedule/lane.h"
#include "server/schedule/postprocess.h"

/* A batch between take and answer. */
struct flight {
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

struct lane {
    /* immutable once created */
    const struct model *model;
    struct session *session;
    struct session_info info;
    size_t input_count;
    struct budget *budget; /* NULL: none, or nothing is booked yet */
    size_t booked;
    struct scheduler *scheduler;
    struct served *served;
    int index; /* of this lane in its scheduler */
    bool started;
    pthread_t thread;
    sem_t warm;          /* posted once by the thread */
    enum status entered; /* session_enter()'s, before `warm`; not OK: the thread ends */
    struct error refusal;

    pthread_mutex_t lock;
    int64_t aside_since; /* guarded by lock; 0: it works */
    char aside_reason[sizeof((struct lane_health *)0)->reason];

    /* the thread's own */
    struct turn turn;
    int64_t turn_used;             /* of its turn's time */
    struct error device_error;     /* of the last probe that failed */
    const struct tensor **outputs; /* of the last run, session_output_count */
    const void **inputs;           /* of the next run, input_count */
    struct flight flights[BATCHER_MAX_DEPTH];
    int first_flight, flight_count;
    int64_t ended; /* when the last pass did */
    bool has_best; /* the run collected last: only the best classes came back */
    struct scores_buffer scores;
    struct batch_cap cap;
    struct lane_meters meters;
    struct batch_layout aside_layout;
    void *aside; /* a batch of the smallest compiled size: for retries, and to warm up */
    uint8_t *aside_marks;
    const uint8_t *marks; /* of the images at `inputs`; NULL: floats */
    int fed;              /* images there */
};

/* Part of a taken batch: what one forward pass runs. */
struct piece {
    int first, count;
};

/* A run of a batch that has ended. */
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

/* All of these: the lane's thread alone, but lane_is_set_aside. */

/* ---- lane_flights.c ---- */

/* A batch, and those that follow without a gap; with the device in hand, which it gives back. */
void lane_serve(struct lane *lane, const struct batch *first);

/* ---- lane_passes.c ---- */

/* The whole batch in one pass, if that works (`ran`: it has been tried, and did not). What fails is
 * split, down to the images that fail by themselves; and what is larger than the cap is split at
 * once. Returns how many images, from the first on, were answered: all of them, unless the device
 * fails. */
int lane_run_pieces(struct lane *lane, const struct batch *batch, const struct outcome *ran);

/* The pass of a piece has ended as `outcome` says, whose rows are its images: finishes them all. */
void lane_answer_piece(struct lane *lane, const struct batch *batch, struct piece piece,
                       const struct outcome *outcome);

/* A forward pass of `count` images has ended, `took` nanoseconds after it could begin. */
void lane_note_pass(struct lane *lane, int count, int64_t took, enum status status,
                    const struct error *err);

/* Photos that are run again come as what they were: bytes or floats. */
const uint8_t *lane_marks_of(const struct lane *lane, const struct batch *batch, int first);

/* Lets others have the device. In line again at once if there is more to run: not only when what
 * was run has been answered. */
void lane_end_turn(struct lane *lane);

/* ---- lane_device.c ---- */

/* Any thread; what the scheduler is told follows it. */
bool lane_is_set_aside(struct lane *lane);

/* Zeros may be what a model cannot work with; only a failure of the device counts. */
bool lane_device_is_well(struct lane *lane);

/* The device fails: of the batch the images from `answered` on go to other lanes, or fail where
 * there are none. Returns how many of the batch were finished. */
int lane_give_up_device(struct lane *lane, struct batch *batch, int answered);

/* Until the device works again; false: the lane shall end. */
bool lane_stay_aside(struct lane *lane);
