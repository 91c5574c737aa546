/* The scheduler of one model: a batcher with a lock, memory for its batches, and conditions for
 * threads.
 *
 * Callers are the HTTP side (submit), decode workers (claim … commit), lanes (next_batch …
 * answered) and the model host (drain, stop). Every function is thread-safe and holds the
 * scheduler's lock for only a few hundred instructions; on_done callbacks run outside it.
 *
 * An image and its owners: after submit the scheduler has it in its queue; claim gives it to a
 * worker; commit gives it back; next_batch gives it to a lane. The owner ends it with
 * scheduler_finish(), after which its request may be freed. Then it reports the answer to the
 * scheduler (drop, abandon, answered); drain waits for these reports. */
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
    struct deployment *deployment; /* borrowed, must outlive the scheduler */
    struct metrics *metrics;       /* borrowed; may be NULL */
    struct pool *pool; /* borrowed; gets a ticket for every image that a worker may prepare */
    struct admission admission;
    int max_batch, lanes;
    int depth;               /* batches that a lane can have at a time, at least 1 */
    struct device_id device; /* device that batches are copied to; determines the kind of memory */
    bool takes_pixels;       /* every lane's session takes photos as bytes */
    int workers;             /* threads of the pool */
    struct batch_layout layout; /* of a buffer; its rows are the padded size of a full batch, at
                                   least max_batch. Owned on success. */
};

/* Allocates lanes * depth + 1 batch buffers, and at least one more, so that all workers have slots.
 * They are 64-byte aligned, and their pages are touched. STATUS_NO_MEMORY. */
enum status scheduler_create(const struct scheduler_options *options, struct scheduler **ret,
                             struct error *err) MUST_USE;
/* No thread may use it any more: lanes have ended, the pool ended or forgot it. NULL is fine. */
void scheduler_free(struct scheduler *scheduler);

struct deployment *scheduler_served(const struct scheduler *scheduler);
struct batcher_counts scheduler_counts(struct scheduler *scheduler);

/* Sets L(b) of lane `lane` (0 … lanes - 1) as measured by its session, before its first batch. */
void scheduler_set_latency(struct scheduler *scheduler, int lane, const struct session_info *info);

/* The present L(b) of a lane. */
void scheduler_latency(struct scheduler *scheduler, int lane, struct latency *ret);

/* Replaces the measurements from the session's creation by the present L(b). */
void scheduler_describe_latency(struct scheduler *scheduler, int lane, struct session_info *info);

/* model_host_would_admit() for this model and size; does not count refusals. */
enum status scheduler_would_admit(struct scheduler *scheduler,
                                  const struct predict_request *request, size_t images,
                                  size_t bytes, int *ret_retry_after_s, struct error *err) MUST_USE;

/* model_host_submit() for this model. */
enum status scheduler_submit(struct scheduler *scheduler, struct predict_request *request,
                             int *ret_retry_after_s, struct error *err) MUST_USE;

/* model_host_cancel() for this model; the request is pinned, and stays pinned. */
void scheduler_cancel(struct scheduler *scheduler, struct predict_request *request);

/* Releases the pin of predict_request_pin(). */
void predict_request_unpin(struct predict_request *request);

/* Checks before each step of the work on an image whether a client still waits for it:
 * STATUS_DRAINING (the grace time is over), STATUS_CANCELLED (its client has gone), STATUS_TIMEOUT
 * (its deadline has passed or cannot be met), STATUS_DEVICE (no device is left). */
enum status scheduler_check_wanted(struct scheduler *scheduler, const struct predict_image *image,
                                   struct error *err) MUST_USE;

/* Removes images that no client waits for from a batch that the caller has taken; finishes them. */
void scheduler_drop_unwanted(struct scheduler *scheduler, struct batch *batch);

/* Counts an image whose status, error and results are set. Calls on_done if it was the last of its
 * request. The image must not be touched afterwards. */
void scheduler_finish(struct scheduler *scheduler, struct predict_image *image);

/* --- decode workers, one ticket each --- */

struct scheduler *scheduler_of_source(struct pool_source *source);

/* The next image whose answer must be made; NULL if there is none, or if no further long task may
 * begin. Call scheduler_end_deferred() once it is finished. */
struct predict_image *scheduler_take_deferred(struct scheduler *scheduler);
void scheduler_end_deferred(struct scheduler *scheduler);

/* The next image to prepare; NULL if there is none. Returns false if only large ones wait and the
 * pool runs as many large ones as it allows; the ticket was not used. */
bool scheduler_claim(struct scheduler *scheduler, struct predict_image **ret);

/* The calling thread has finished a large image (batch_item.is_large) that it claimed. */
void scheduler_end_large(struct scheduler *scheduler);

/* A claimed image was finished without a slot. */
void scheduler_drop(struct scheduler *scheduler);

/* Reserves a slot for a claimed image; the worker writes its row of every input (scheduler_row()).
 * Returns false when the grace time is over: the worker must finish and drop the image. */
bool scheduler_reserve(struct scheduler *scheduler, struct predict_image *image,
                       struct batch_slot *ret);

/* The slot is written: the image belongs to its batch. */
void scheduler_commit(struct scheduler *scheduler, struct batch_slot slot);

/* The image was finished although it had a slot. */
void scheduler_abandon(struct scheduler *scheduler, struct batch_slot slot);

/* --- lanes --- */

enum lane_wake {
    LANE_BATCH, /* the lane has a batch, and its turn on the device until device_turn_end() */
    LANE_IDLE,  /* nothing was ready until `until` (clock_now(); INT64_MAX: waits for ever) */
    LANE_END,   /* the lane must end */
};

/* Sleeps until there is a batch for lane `lane` and its turn on the device. */
enum lane_wake scheduler_next_batch(struct scheduler *scheduler, int lane, struct device_turn *turn,
                                    int64_t until, struct batch *ret);

/* True if some image is ready for an idle lane. */
bool scheduler_has_ready(struct scheduler *scheduler);

/* Updates L(b): a forward pass of `images` on this lane took `ns`. */
void scheduler_ran(struct scheduler *scheduler, int lane, int images, int64_t ns);

/* The row of slot `slot` in a buffer for an input; the images of a batch start at slot
 * batch->first. */
void *scheduler_row(struct scheduler *scheduler, int buffer, size_t input, int slot);

/* A lane that has a batch takes the next one (batcher_take_ahead()). It sleeps until `until` at
 * most, when the device is about to be free. Then, with `may_close`, it may also take the forming
 * batch. Returns false if there is no batch, or if other lanes wait for the device. */
bool scheduler_take_ahead(struct scheduler *scheduler, int lane, struct device_turn *turn,
                          int64_t until, bool may_close, struct batch *ret);

/* Marks of a buffer's rows, as session_run.are_pixels. The owner of a slot's memory owns its mark.
 * NULL: all rows are floats. */
uint8_t *scheduler_pixel_marks(struct scheduler *scheduler, int buffer);

/* The lane no longer needs the memory of its batch. */
void scheduler_release(struct scheduler *scheduler, const struct batch *batch);

/* The lane does not run its batch: its other images (batcher_give_back()) go to another lane. */
void scheduler_give_back(struct scheduler *scheduler, const struct batch *batch);

/* Quarantines a lane whose device fails: it does not count in predictions. If it was the last lane,
 * every admitted image fails with STATUS_DEVICE and `reason`, and submit refuses. */
void scheduler_quarantine(struct scheduler *scheduler, int lane, const char *reason);
void scheduler_end_quarantine(struct scheduler *scheduler, int lane);

enum quarantine_event { QUARANTINE_PROBE, QUARANTINE_FAIL, QUARANTINE_END };

/* Waits on behalf of a quarantined lane: sleeps until `probe_at` (QUARANTINE_PROBE). If no lane
 * works, it gets the remaining batches, to fail them (QUARANTINE_FAIL). */
enum quarantine_event scheduler_wait_quarantined(struct scheduler *scheduler, int lane,
                                                 int64_t probe_at, struct batch *ret);

/* True if no lane works. Takes no lock. */
bool scheduler_is_lost(const struct scheduler *scheduler);

/* True if a lane other than `but_lane` (-1: any lane) works. */
bool scheduler_has_lanes(struct scheduler *scheduler, int but_lane);

/* Lets a decode worker make the answer, from copies of the outputs in image->outputs; the scheduler
 * then owns the image. Returns false if as many answers as workers wait or are being made, and the
 * image stays the lane's. In both cases the lane counts the image in its call of
 * scheduler_answered(). */
bool scheduler_defer(struct scheduler *scheduler, struct predict_image *image);

/* `images` of a batch have been finished. */
void scheduler_answered(struct scheduler *scheduler, size_t images);

/* True if the grace time is over: images that are not running yet fail with
 * scheduler_cut_error(). */
bool scheduler_is_cut(const struct scheduler *scheduler);
enum status scheduler_cut_error(struct error *err);

/* --- the model host --- */

/* After scheduler_wait_answered(), without submits: returns when no worker uses the scheduler. */
void scheduler_leave_pool(struct scheduler *scheduler);

/* Submit refuses from now on; admitted images are still answered. */
void scheduler_stop_accepting(struct scheduler *scheduler);

/* Sleeps until every admitted image is answered. Returns false if `until` (clock_now(), INT64_MAX:
 * no limit) came first. */
bool scheduler_wait_answered(struct scheduler *scheduler, int64_t until);

/* Fails the queued images, and makes workers and lanes fail images before their forward pass. */
void scheduler_cut(struct scheduler *scheduler);

/* Makes lanes end at their next scheduler_next_batch(). */
void scheduler_stop(struct scheduler *scheduler);
