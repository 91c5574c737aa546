/* The scheduler of one model: a batcher with a lock, memory for its batches, and conditions for
 * threads.
 *
 * Callers are the HTTP side (submit), decode workers (claim … end_claim), lanes (next_batch …
 * answered) and the model host (drain, stop). Every function is thread-safe and holds the
 * scheduler's lock for only a few hundred instructions; on_done callbacks run outside it.
 *
 * An image and its owners: after submit the scheduler has it in its queue; claim gives it to a
 * worker; end_claim gives it back; next_batch gives it to a lane. The owner ends it with
 * scheduler_finish(), after which its request may be freed. Then it reports the answer to the
 * scheduler (end_claim, answered); drain waits for these reports. */
#pragma once

#include <stdatomic.h>

#include "server/schedule/policy/admission.h"
#include "server/schedule/policy/batcher.h"
#include "server/schedule/policy/layout.h"
#include "server/schedule/runtime/device_queue.h"
#include "server/schedule/runtime/meters.h"
#include "server/schedule/runtime/model_host.h"
#include "server/schedule/runtime/pool.h"

struct scheduler {
    struct pool_source source; /* first; guarded by the pool's lock */

    /* immutable after create */
    struct deployment *deployment;
    struct pool *pool;
    struct batch_layout layout;
    void *buffers;           /* of layout.bytes each, one after the other */
    struct device_id device; /* for which `buffers` were created */
    uint8_t *marks; /* for each row of all buffers: 1 for bytes, 0 for floats; NULL: all floats */

    _Atomic bool cut;          /* scheduler_cut() was called */
    _Atomic bool is_lost;      /* no lane works */
    _Atomic bool has_large;    /* the queue has a large image; for reading without the lock */
    _Atomic bool has_deferred; /* deferred_images is not empty; for reading without the lock */
    size_t workers;            /* immutable */

    pthread_mutex_t lock;
    pthread_cond_t lane_ready;       /* a lane may find a batch, or must end */
    pthread_cond_t quarantine_event; /* a quarantined lane may find a batch, or must end */
    pthread_cond_t all_answered;
    struct batcher *batcher;
    struct admission admission;
    /* Images whose answers decode workers make; the batcher does not count their tickets. */
    STAILQ_HEAD(, predict_image) deferred_images;
    size_t deferred; /* images in deferred_images, and those whose answers are being made */
    bool accepting, stopping;
    int lanes_asleep;        /* in wait_ready(); the batcher does not count them as idle */
    int lanes_woken;         /* about to take a batch after wait_ready() */
    int lanes_waiting_ahead; /* in scheduler_take_ahead(): they run a batch and want the next one */
    int lanes_waiting_beside; /* those of lanes_waiting_ahead that run batches in streams */
    int64_t progressed; /* clock_now() when an image was last answered, or the first one admitted */
    size_t quarantined_count;
    char quarantine_reason[256]; /* why the last lane was quarantined */
};

/* Makes the scheduler of a deployment whose lanes were created. All pointers are borrowed and must
 * outlive the scheduler. `pool` gets a ticket for every image that a worker may prepare.
 * STATUS_NO_MEMORY, STATUS_SHAPE, STATUS_DEVICE. The caller frees *ret, which a failure may set. */
enum status scheduler_create(struct deployment *deployment,
                             const struct model_host_options *options, struct pool *pool,
                             struct scheduler **ret, struct error *err) MUST_USE;
/* No thread may use it any more: lanes have ended, the pool ended or forgot it. NULL is fine. */
void scheduler_free(struct scheduler *scheduler);

/* *ret_still_ns: nanoseconds that images have waited without any answer; 0: no image waits. */
struct batcher_counts scheduler_counts(struct scheduler *scheduler, int64_t *ret_still_ns);

/* Returns the present L(b) of a lane: nanoseconds of a pass of `images`; 0: unknown. */
int64_t scheduler_latency(struct scheduler *scheduler, int lane, int images);

/* Does the work of model_host_would_admit() for this deployment, but does not count refusals. */
enum status scheduler_would_admit(struct scheduler *scheduler,
                                  const struct predict_request *request, size_t images,
                                  size_t bytes, struct error *err) MUST_USE;

/* Does the work of model_host_submit() for this deployment. */
enum status scheduler_submit(struct scheduler *scheduler, struct predict_request *request,
                             struct error *err) MUST_USE;

/* Does the work of model_host_cancel() for this deployment. The request stays pinned. */
void scheduler_cancel(struct scheduler *scheduler, struct predict_request *request);

/* Subtracts one from request->pending, for example the pin of predict_request_pin(). The last call
 * counts the request and calls on_done. */
void predict_request_unpin(struct predict_request *request);

/* Checks whether to go on with an image: STATUS_DRAINING (the grace time is over), STATUS_CANCELLED
 * (its client has gone), STATUS_TIMEOUT (its deadline has passed or cannot be met), STATUS_DEVICE
 * (no lane works). Call it before each step of the work. */
enum status scheduler_check_wanted(struct scheduler *scheduler, const struct predict_image *image,
                                   struct error *err) MUST_USE;

/* Finishes those images of a batch that no client waits for, and removes them from the batch. */
void scheduler_drop_unwanted(struct scheduler *scheduler, struct batch *batch);

/* Counts an image whose status, error and results are set. Calls on_done if it was the last of its
 * request. The image must not be touched afterwards. */
void scheduler_finish(struct scheduler *scheduler, struct predict_image *image);

/* --- decode workers, one ticket each --- */

/* The next image that a lane has deferred; NULL if there is none, or if no further long task may
 * begin. Call scheduler_end_deferred() once it is finished. */
struct predict_image *scheduler_take_deferred(struct scheduler *scheduler);
void scheduler_end_deferred(struct scheduler *scheduler);

/* Sets *ret to the next image to prepare; NULL: there is none. Returns false, and does not use the
 * ticket (pool_options.run), if all images that wait are large or deferred and no further long task
 * may begin. */
bool scheduler_claim(struct scheduler *scheduler, struct predict_image **ret);

/* Reserves a slot for a claimed image; the worker writes its row of every input (scheduler_row()).
 * Returns false when the grace time is over: the worker must finish the image. */
bool scheduler_reserve(struct scheduler *scheduler, struct predict_image *image,
                       struct batch_slot *ret);

/* Call it when the work on a claimed image has ended. `slot`: its slot, or NULL. If the
 * slot is written, the scheduler owns the image from then on. Otherwise the image was finished.
 * `is_large`: batch_item.is_large. */
void scheduler_end_claim(struct scheduler *scheduler, const struct batch_slot *slot,
                         bool is_written, bool is_large);

/* --- lanes --- */

enum lane_wake {
    LANE_BATCH, /* the lane has a batch, and its turn on the device until device_turn_end() */
    LANE_IDLE,  /* no image was ready in time */
    LANE_END,   /* the lane must end */
};

/* Sleeps until there is a batch for lane `lane` and its turn on the device, or until `until`
 * (clock_now(); INT64_MAX: for ever) if no image is ready. Can return any lane_wake. */
enum lane_wake scheduler_next_batch(struct scheduler *scheduler, int lane, struct device_turn *turn,
                                    int64_t until, struct batch *ret);

/* True if the slot of an image is written and no lane has taken the image. */
bool scheduler_has_ready(struct scheduler *scheduler);

/* Calls batcher_fills_lanes(). */
bool scheduler_fills_lanes(struct scheduler *scheduler);

/* Updates L(b): a forward pass of `images` on this lane took `ns`. */
void scheduler_ran(struct scheduler *scheduler, int lane, int images, int64_t ns);

/* The row of an input in slot `slot` of a buffer. The images of a batch begin at slot
 * batch->first. */
void *scheduler_row(struct scheduler *scheduler, int buffer, size_t input, int slot);

/* A lane that has a batch takes the next one (batcher_take_ahead()). It waits for a closed batch
 * until `until` (clock_now()) at most, and then may also take the forming batch. `beside`: the
 * lane's session if it runs batches at the same time, in streams; otherwise NULL. With `beside` the
 * lane takes any batch if batcher_fills_lanes(), and stops waiting when the session's oldest run
 * has ended. Returns false if there is no batch, or if other lanes wait for the device. */
bool scheduler_take_ahead(struct scheduler *scheduler, int lane, struct device_turn *turn,
                          int64_t until, const struct session *beside, struct batch *ret);

/* Call it when a run in streams has ended: wakes lanes in scheduler_take_ahead(). Any thread. The
 * argument is a struct scheduler. */
void scheduler_wake_lanes(void *scheduler);

/* Returns session_request.are_pixels for the slots of a buffer; NULL: all rows are numbers. The
 * owner of a slot's memory owns the slot's entry. */
uint8_t *scheduler_pixel_marks(struct scheduler *scheduler, int buffer);

/* Call it when the lane no longer needs the memory of its batch. `gives_back`: the images left in
 * `batch` have no answer, and go to another lane (batcher_release()). */
void scheduler_release(struct scheduler *scheduler, const struct batch *batch, bool gives_back);

/* Quarantines a lane whose device fails: predictions ignore the lane. If no other lane works, every
 * admitted image fails with STATUS_DEVICE and `reason`, and submit refuses. */
void scheduler_quarantine(struct scheduler *scheduler, int lane, const char *reason);
void scheduler_end_quarantine(struct scheduler *scheduler, int lane);

enum quarantine_event { QUARANTINE_PROBE, QUARANTINE_FAIL, QUARANTINE_END };

/* Called by a quarantined lane: sleeps until `probe_at` (clock_now(): QUARANTINE_PROBE), or until
 * it must end (QUARANTINE_END). If no lane works, it sets *ret to a remaining batch, whose images
 * the lane must fail (QUARANTINE_FAIL). */
enum quarantine_event scheduler_wait_quarantined(struct scheduler *scheduler, int lane,
                                                 int64_t probe_at, struct batch *ret);

/* Defers an image: a decode worker makes its answer from copies of the outputs in image->outputs,
 * and the scheduler owns the image. Returns false if one image per worker is already deferred; the
 * lane then still owns the image. In both cases the lane counts the image in its call of
 * scheduler_answered(). */
bool scheduler_defer(struct scheduler *scheduler, struct predict_image *image);

/* Call it when `images` of a batch have been finished or deferred. */
void scheduler_answered(struct scheduler *scheduler, size_t images);

/* Sets the error of images that are not running yet after scheduler_cut(). */
enum status scheduler_cut_error(struct error *err);

/* --- the model host --- */

/* Submit refuses from now on; admitted images are still answered. */
void scheduler_stop_accepting(struct scheduler *scheduler);

/* Sleeps until every admitted image is answered. Returns false if `until` (clock_now(), INT64_MAX:
 * no limit) came first. */
bool scheduler_wait_answered(struct scheduler *scheduler, int64_t until);

/* Fails the queued images; workers and lanes then fail images whose forward pass has not begun. */
void scheduler_cut(struct scheduler *scheduler);

/* Makes lanes end at their next scheduler_next_batch(). */
void scheduler_stop(struct scheduler *scheduler);
