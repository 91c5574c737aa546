/* The scheduler of one model: a batcher with a lock, memory for its batches, and threads around it.
 *
 * Callers are the HTTP side (submit), decode workers (claim … commit), lanes (next_batch …
 * answered) and the model host (drain, stop). Every function is thread-safe and holds the
 * scheduler's lock for a few hundred instructions only; on_done callbacks run outside it.
 *
 * The life of an image, and who owns it: after submit the scheduler has it in its queue; claim
 * gives it to a worker; commit gives it back; next_batch gives it to a lane. Whoever owns it ends
 * it with scheduler_finish, after which its request may be gone, and then tells the scheduler that
 * it was answered (drop, abandon, answered), which is what drain waits for. */
#pragma once

#include "server/schedule/policy/admission.h"
#include "server/schedule/policy/batcher.h"
#include "server/schedule/policy/layout.h"
#include "server/schedule/runtime/device_queue.h"
#include "server/schedule/runtime/meters.h"
#include "server/schedule/runtime/model_host.h"
#include "server/schedule/runtime/pool.h"

struct scheduler;

struct scheduler_options {
    struct deployment *deployment; /* borrowed, outlives the scheduler */
    struct metrics *metrics;       /* borrowed; may be NULL */
    struct pool *pool; /* borrowed: gets a ticket for every image a worker may prepare */
    struct admission admission;
    int max_batch, lanes;
    int depth;                  /* batches that a lane may have at a time; 0: 1 */
    struct device_id device;    /* that batches are copied to: where their memory comes from */
    bool takes_pixels;          /* every lane's session takes photos as bytes */
    int workers;                /* threads of the pool */
    struct batch_layout layout; /* of a buffer; its rows at least max_batch: what the
                                   sessions pad a full batch to. Taken over on success. */
};

/* Makes lanes * depth + 1 + (at least one, enough for all workers) batch buffers, 64-byte aligned,
 * with their pages touched. STATUS_NO_MEMORY. */
enum status scheduler_create(const struct scheduler_options *options, struct scheduler **ret,
                             struct error *err) MUST_USE;
/* Nobody may be inside any more: lanes have ended, and the pool has, or has forgotten it. NULL is
 * fine. */
void scheduler_free(struct scheduler *scheduler);

struct deployment *scheduler_served(const struct scheduler *scheduler);
struct batcher_counts scheduler_counts(struct scheduler *scheduler);

/* L(b) of lane `lane` (0 … lanes - 1) as its session measured it, before its first batch. */
void scheduler_set_latency(struct scheduler *scheduler, int lane, const struct session_info *info);

/* L(b) of a lane as it is now. */
void scheduler_latency(struct scheduler *scheduler, int lane, struct latency *ret);

/* Puts L(b) as it is now in the place of what was measured when the session was made. */
void scheduler_describe_latency(struct scheduler *scheduler, int lane, struct session_info *info);

/* model_host_would_admit for this model and size, without counting refusals. */
enum status scheduler_would_admit(struct scheduler *scheduler,
                                  const struct predict_request *request, size_t images,
                                  size_t bytes, int *ret_retry_after_s, struct error *err) MUST_USE;

/* model_host_submit for this model. */
enum status scheduler_submit(struct scheduler *scheduler, struct predict_request *request,
                             int *ret_retry_after_s, struct error *err) MUST_USE;

/* model_host_cancel for this model; the request is pinned, and stays so. */
void scheduler_cancel(struct scheduler *scheduler, struct predict_request *request);

/* Ends predict_request_pin. */
void predict_request_unpin(struct predict_request *request);

/* Whether a client still waits for this image, checked before each step of its work:
 * STATUS_DRAINING (the grace time is over), STATUS_CANCELLED (its client has gone), STATUS_TIMEOUT
 * (its deadline is over or cannot be met any more), STATUS_DEVICE (no device is left). */
enum status scheduler_check_wanted(struct scheduler *scheduler, const struct predict_image *image,
                                   struct error *err) MUST_USE;

/* Takes the images that nobody waits for any more out of a batch, and finishes them. The batch is
 * the caller's, who took it. */
void scheduler_drop_unwanted(struct scheduler *scheduler, struct batch *batch);

/* The image's status, error and results are set: counts it and, when it was the last of its
 * request, calls on_done. The image must not be touched afterwards. */
void scheduler_finish(struct scheduler *scheduler, struct predict_image *image);

/* --- decode workers, one ticket each --- */

struct scheduler *scheduler_of_source(struct pool_source *source);

/* The next image whose answer is to be made; NULL: there is none, or no further long task may
 * begin. Call scheduler_end_deferred once it is finished. */
struct predict_image *scheduler_take_deferred(struct scheduler *scheduler);
void scheduler_end_deferred(struct scheduler *scheduler);

/* The next image to prepare; NULL when there is none any more. False: only large ones wait, and
 * the pool has as many of them as it takes: the ticket has not been used. */
bool scheduler_claim(struct scheduler *scheduler, struct predict_image **ret);

/* The calling thread has finished with a large image (batch_item.is_large) that it claimed. */
void scheduler_end_large(struct scheduler *scheduler);

/* A claimed image was finished without a slot. */
void scheduler_drop(struct scheduler *scheduler);

/* A slot for a claimed image, for the worker to write its row of every input (scheduler_row). False
 * when the grace time is over and it is not to run any more: the image is still the worker's to
 * finish and drop. */
bool scheduler_reserve(struct scheduler *scheduler, struct predict_image *image,
                       struct batch_slot *ret);

/* The slot is written: the image belongs to its batch. */
void scheduler_commit(struct scheduler *scheduler, struct batch_slot slot);

/* The image was finished although it had a slot. */
void scheduler_abandon(struct scheduler *scheduler, struct batch_slot slot);

/* --- lanes --- */

/* Sleeps until there is a batch for lane `lane` and it is the lane's turn on the device, which it
 * keeps until device_turn_end. False: the lane shall end; it has no turn then. */
bool scheduler_next_batch(struct scheduler *scheduler, int lane, struct device_turn *turn,
                          struct batch *ret);

/* Is anything ready for an idle lane? */
bool scheduler_has_ready(struct scheduler *scheduler);

/* A forward pass of `images` on this lane took `ns`: keeps L(b) current. */
void scheduler_ran(struct scheduler *scheduler, int lane, int images, int64_t ns);

/* The row of slot `slot` in a buffer for an input; the images of a batch lie from slot batch->first
 * on. */
void *scheduler_row(struct scheduler *scheduler, int buffer, size_t input, int slot);

/* A lane that has a batch takes the one that shall follow it (batcher_take_ahead), sleeping until
 * `until` at most, when the device is about to be free; then, `may_close`, of what is forming, too.
 * False: there is none, or others want the device. */
bool scheduler_take_ahead(struct scheduler *scheduler, int lane, struct device_turn *turn,
                          int64_t until, bool may_close, struct batch *ret);

/* Marks of a buffer's rows, as session_run.are_pixels. The mark of a slot belongs to whoever owns
 * the slot's memory. NULL: every row is floats. */
uint8_t *scheduler_pixel_marks(struct scheduler *scheduler, int buffer);

/* The lane no longer needs the memory of its batch. */
void scheduler_release(struct scheduler *scheduler, const struct batch *batch);

/* The lane does not run its batch: the images left in it (batcher_give_back) go to another lane. */
void scheduler_give_back(struct scheduler *scheduler, const struct batch *batch);

/* Quarantines a lane whose device fails: predictions leave it out. With the last lane every
 * admitted image fails with STATUS_DEVICE and `reason`, and submit refuses. */
void scheduler_quarantine(struct scheduler *scheduler, int lane, const char *reason);
void scheduler_end_quarantine(struct scheduler *scheduler, int lane);

enum quarantine_event { QUARANTINE_PROBE, QUARANTINE_FAIL, QUARANTINE_END };

/* Waits on behalf of a quarantined lane: sleeps until `probe_at` (QUARANTINE_PROBE). When no lane
 * is left it gets the batches there still are, to fail all of them (QUARANTINE_FAIL). */
enum quarantine_event scheduler_wait_quarantined(struct scheduler *scheduler, int lane,
                                                 int64_t probe_at, struct batch *ret);

/* Whether no lane works. Takes no lock. */
bool scheduler_is_lost(const struct scheduler *scheduler);

/* Whether a lane other than `but_lane` (-1: any lane) works. */
bool scheduler_has_lanes(struct scheduler *scheduler, int but_lane);

/* The answer is to be made by a decode worker, from copies of the outputs in image->outputs; the
 * image is the scheduler's. False: as many answers as there are workers wait or are being made, and
 * the image stays the lane's. To the lane the image is finished either way (scheduler_answered). */
bool scheduler_defer(struct scheduler *scheduler, struct predict_image *image);

/* `images` of a batch have been finished. */
void scheduler_answered(struct scheduler *scheduler, size_t images);

/* The grace time is over: images that are not running yet fail with scheduler_cut_error. */
bool scheduler_is_cut(const struct scheduler *scheduler);
enum status scheduler_cut_error(struct error *err);

/* --- the model host --- */

/* After scheduler_wait_answered, when nobody submits any more: returns when no worker is inside. */
void scheduler_leave_pool(struct scheduler *scheduler);

/* Submit refuses from now on; what was admitted is still answered. */
void scheduler_stop_accepting(struct scheduler *scheduler);

/* Sleeps until everything admitted is answered; false when `until` (clock_now's scale, INT64_MAX:
 * no end) came first. */
bool scheduler_wait_answered(struct scheduler *scheduler, int64_t until);

/* Fails what waits in the queue, and has workers and lanes fail what has not begun its forward
 * pass. */
void scheduler_cut(struct scheduler *scheduler);

/* Lanes end at their next scheduler_next_batch. */
void scheduler_stop(struct scheduler *scheduler);
