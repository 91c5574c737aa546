/* The batcher decides which image is prepared next, which slot of which batch it gets, when a batch
 * closes, and how many of its images a lane runs at a time.
 *
 * It is a pure state machine without threads, clock, locks and pixels. Every event is a call, which
 * gets `now` where time matters. So a test can drive the batcher step by step with a scripted
 * clock. scheduler.c wraps it with a lock and threads.
 *
 *     admit ─▶ queue ──grant──▶ ticket ──claim──▶ preparing ──reserve──▶ slot ──commit──▶ ready
 *                │                                    │                    │
 *             remove (its client has gone)           drop               abandon  (the image failed)
 *
 *     FREE ──reserve──▶ FORMING ──close──▶ CLOSED ──take micro-batches ───▶ RUNNING ──┐
 *      ▲                                     ▲  │                                     │
 *      │                                     └──┴────── release with gives_back ◀─────┤
 *      └─────────────────────── release (of its last micro-batch) ◀─────────────────┘
 *
 * A buffer is memory for one batch. At most one buffer is FORMING. Several may be CLOSED and wait
 * for a lane (a device) or for slots that are still being written. A lane takes as many images from
 * a closed buffer as run fastest by L(b) (latency.h): all images, padded up to a compiled size, or
 * some (for example four of five, and the fifth later). The next idle lane takes the rest. The
 * images that a lane takes at once are a `struct batch`.
 *
 * An idle lane takes ready images at once; batches grow while all lanes are busy. A lane that
 * runs batches in streams takes them by batcher_take_ahead() (AHEAD_BESIDE).
 *
 * Tickets keep preparing threads from waiting. A thread may decode an image only with a ticket. A
 * ticket is granted only if a slot is sure to be free when the decode ends, whichever batches close
 * meanwhile (room(), batcher.c). Therefore a reserve never fails and never blocks, and a preparing
 * thread never waits for a device. Under load images wait in the queue, where they are small and
 * where clients take turns. If larger batches gain nothing, there are only as many tickets as keep
 * the lanes busy.
 *
 * Not thread-safe; the caller's lock guards all of it. Calls that break the protocol are bugs of
 * the caller (asserted). No allocation after batcher_create(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/schedule/policy/admission.h"
#include "server/schedule/policy/latency.h"
#include "server/schedule/policy/queue.h"

#define BATCHER_MAX_BATCH LATENCY_MAX_BATCH
#define BATCHER_MAX_DEPTH 9 /* as for sessions */

/* The reason why a batch was closed. */
enum batch_close {
    BATCH_OPEN,        /* none: the batch is open */
    BATCH_FULL,        /* it has max_batch images, or more would gain nothing (latency.h: full) */
    BATCH_IDLE_DEVICE, /* a device was idle or nearly idle, or runs batches in streams */
};

#define BATCH_CLOSE_REASONS 3

/* "full", "idle_device"; "open" for BATCH_OPEN. */
const char *batch_close_name(enum batch_close reason);

struct batcher_config {
    int max_batch; /* slots per buffer, 1 … BATCHER_MAX_BATCH */
    int capacity;  /* images that fit in a buffer's memory, padding included, at least max_batch */
    int buffers;   /* at least lanes * depth + 2: one is forming, and one may have closed early */
    int lanes;     /* devices that take batches, at least 1 */
    int depth;     /* batches that a lane can have at a time, 1 … BATCHER_MAX_DEPTH */
    int workers;   /* threads that prepare images, for predictions; 0: preparation takes no time */
    int larges;    /* most large images that are prepared at a time */
    size_t max_images; /* limit for admitted images without an answer, at least 1 */
};

struct batch_slot {
    int buffer, slot;
};

/* Images that a lane has taken to run in one pass: slots[i] of `buffer` holds items[i]. Slots
 * ascend, with gaps where images were abandoned. batch_compact() computes how to close the gaps.
 * The lane owns the memory of the slots first … end - 1, for the images and for padding up to a
 * compiled size; `end` may exceed max_batch. */
struct batch {
    int lane, buffer, first, end;
    int taken; /* number of images when the lane took them, at least 1 */
    int count; /* number of images in slots[] and items[] now; the lane may remove images */
    enum batch_close reason;
    bool is_first; /* it is the first micro-batch that a lane takes from the buffer */
    int slots[BATCHER_MAX_BATCH];
    struct batch_item *items[BATCHER_MAX_BATCH];
};

/* Copies slot `from` over slot `to`. */
struct batch_move {
    int from, to;
};

/* The states of a buffer. */
enum buffer_state { BUFFER_FREE, BUFFER_FORMING, BUFFER_CLOSED, BUFFER_RUNNING, BUFFER_STATES };

struct batcher_counts {
    size_t admitted;  /* images that were admitted and have no answer yet */
    size_t queued;    /* images in the queue */
    size_t large;     /* large images in the queue */
    size_t bytes;     /* bytes of the images in the queue */
    size_t granted;   /* unused tickets */
    size_t preparing; /* claimed images without a slot */
    size_t slots;     /* images with a slot that no lane has taken */
    size_t running;   /* images in batches that lanes have taken */
    int idle_lanes;
    int buffers[BUFFER_STATES]; /* number of buffers in each state */
};

struct batcher;

/* Returns NULL when out of memory. Free with batcher_free() (NULL is fine). */
struct batcher *batcher_create(const struct batcher_config *config);
void batcher_free(struct batcher *batcher);

/* Returns L(b) of a lane, valid as long as the batcher exists. Fill it with latency_init() before
 * the lane's first batch; until then the lane runs all ready images, unpadded. Update it with
 * latency_observe() after each pass. */
struct latency *batcher_latency(struct batcher *batcher, int lane);

/* Admits an image; the caller has checked that fewer than max_images are admitted. The item must
 * stay valid until the image is answered. `predicted`: nanoseconds until its answer
 * (admission_check()), 0 if unknown. */
void batcher_admit(struct batcher *batcher, struct batch_item *item, int64_t predicted,
                   int64_t now);

/* A snapshot for the admission of a new image with this client and priority (0: the default). */
void batcher_load(const struct batcher *batcher, uint64_t client, int priority, int64_t now,
                  struct model_load *ret);

/* Grants tickets: returns how many more the caller may give to preparing threads now. Call it after
 * every event. */
size_t batcher_grant(struct batcher *batcher);

/* Uses a ticket: returns the owner of the next image (queue.h), a large one only if `may_be_large`.
 * NULL if the queue has no such image; this uses up the ticket, too, except if large images wait
 * and `may_be_large` is false. Call batcher_end_large() when the thread has finished a large image,
 * also after a failure. */
void *batcher_claim(struct batcher *batcher, bool may_be_large, int64_t now);
void batcher_end_large(struct batcher *batcher);

/* Removes an unclaimed image from the queue; the caller must still answer it. Returns false and
 * does nothing if it is no longer in the queue. */
bool batcher_remove(struct batcher *batcher, struct batch_item *item);

/* Call it when a claimed image gets no slot: it could not be decoded, or its client has gone. */
void batcher_drop(struct batcher *batcher);

/* Gives a claimed image a slot of the forming batch; never fails. The last slot closes the
 * batch. */
struct batch_slot batcher_reserve(struct batcher *batcher, struct batch_item *item);

/* Commit: the slot has been written. Abandon: the slot will not be written, because its image
 * failed. Abandoned slots of a forming batch are reused. */
void batcher_commit(struct batcher *batcher, struct batch_slot place, int64_t now);
void batcher_abandon(struct batcher *batcher, struct batch_slot place);

/* Nine tenths of the shortest pass of one image, in nanoseconds: an image whose deadline is nearer
 * cannot meet it. 0 if a lane has not been measured. */
int64_t batcher_shortest_run(const struct batcher *batcher);

/* Lane `lane` (0 … lanes - 1) is idle from now on, until batcher_take() gives it a batch. */
void batcher_lane_idle(struct batcher *batcher, int lane);

/* Sets whether a lane works; initially all do. A quarantined lane does not count in predictions and
 * is never idle. */
void batcher_lane_works(struct batcher *batcher, int lane, bool works);

/* Decides whether the forming batch should close now, and why. It closes when full: at max_batch
 * images, or at fewer if more are not faster by L(b). It also closes when an image is ready and a
 * device without a closed batch is idle. Slots that are still being written then delay the batch by
 * at most one resize. Every event closes batches that are due. */
enum batch_close batcher_should_close(const struct batcher *batcher);

/* True if the slot of an image is written and no lane has taken the image. */
bool batcher_has_ready(const struct batcher *batcher);

/* True if enough images run or have a slot that each stream of each lane has one. */
bool batcher_fills_lanes(const struct batcher *batcher);

/* True if batcher_take() can probably give a batch now. (It gives none if the padding has no room
 * beside another lane's images.) */
bool batcher_can_take(const struct batcher *batcher);

/* An idle lane takes images from the oldest closed batch whose slots are all written; the forming
 * batch is closed first if it is due. L(b) of this lane decides how many. Returns false when there
 * is no batch: *ret does not change and the lane stays idle. The lane owns the batch's memory until
 * batcher_release(). */
bool batcher_take(struct batcher *batcher, int lane, int64_t now, struct batch *ret);

/* What a lane that has a batch may take. */
enum ahead {
    AHEAD_CLOSED, /* images of a closed batch */
    AHEAD_READY,  /* also the forming batch, if its slots are written; for a device that is nearly
                     free */
    AHEAD_BESIDE, /* if batcher_fills_lanes(), also ready images of the forming batch, because
                     streams without images are idle; otherwise nothing */
};

/* A lane that has fewer than `depth` batches, but at least one, takes the next batch, to run it
 * right after its other batches or, in streams, at the same time. Returns false while another lane
 * has no batch. Otherwise works like batcher_take(). */
bool batcher_take_ahead(struct batcher *batcher, int lane, enum ahead ahead, int64_t now,
                        struct batch *ret);

/* The lane no longer needs the memory of this batch. The lane itself is busy until
 * batcher_lane_idle(). With `gives_back` the images that are left in `batch` have no answer, and go
 * to the next idle lane, before other batches. */
void batcher_release(struct batcher *batcher, const struct batch *batch, bool gives_back);

/* `images` admitted images have been answered, successfully or not. */
void batcher_answered(struct batcher *batcher, size_t images);

/* Removes the next image from the queue without preparing it, to answer it with an error; NULL if
 * the queue is empty. */
void *batcher_pop(struct batcher *batcher);

struct batcher_counts batcher_counts(const struct batcher *batcher);

/* Computes the moves that close the gaps of a taken batch: afterwards items[i] belongs in slot
 * first + i for every i < count. At most one move per gap, without overlaps. Returns their number;
 * `moves` has room for batch->count. */
int batch_compact(struct batch *batch, struct batch_move *moves);
