/* The batcher: which image is prepared next, which slot of which batch it gets, when a batch
 * closes, and how many of its images a lane runs at a time.
 *
 * A pure state machine: no thread, no clock, no lock, no pixel. Everything that happens is a call
 * (an event) with an explicit `now` where time matters, so that a test can drive it step by step
 * with a scripted clock. scheduler.c wraps it with a lock and threads.
 *
 *     admit ─▶ queue ──grant──▶ ticket ──claim──▶ preparing ──reserve──▶ slot ──commit──▶ ready
 *                │                                    │                    │
 *             remove (its client has gone)         give_up              abandon  (the image failed)
 *
 *     FREE ──reserve──▶ FORMING ──close──▶ CLOSED ──take micro-batches ───▶ RUNNING ──┐
 *      ▲                                     ▲  │                                     │
 *      │                                     └──┴───────────── give_back ◀────────────┤
 *      └──────────────────────────────────────── done (the last of it) ◀──────────────┘
 *
 * A buffer is memory for one batch. One buffer at most is FORMING; several may be CLOSED and wait
 * for a lane (a device) or for the slots that are still being written. A lane takes of a closed
 * buffer what L(b) says is fastest: all of it, padded up to a compiled size, or a part (5 as 4 and
 * 1), the rest being there for the next idle lane. Each taken part is a `struct batch`.
 *
 * An idle lane takes what is ready at once; batches grow while all lanes are busy.
 *
 * Tickets are what keeps preparing threads from ever waiting. A thread may decode an image only
 * with a ticket, and tickets are granted only while a slot for each is sure to exist when its
 * decode is over, whatever closes in between (room(), batcher.c). So a reserve never fails and
 * never blocks, a thread that works for one model never waits for that model's device, and
 * back-pressure is felt in the queue, where images are cheap.
 *
 * Locks: none. Not thread-safe; the caller's lock guards all of it. Calls that break the protocol
 * are bugs of the caller (asserted). No allocation after batcher_create. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/schedule/policy/admission.h"
#include "server/schedule/policy/latency.h"
#include "server/schedule/policy/queue.h"

#define BATCHER_MAX_BATCH LATENCY_MAX_BATCH
#define BATCHER_MAX_DEPTH 2

/* Why a batch was closed. */
enum batch_close {
    BATCH_OPEN,        /* it is not */
    BATCH_FULL,        /* more slots would gain nothing by L(b) */
    BATCH_IDLE_DEVICE, /* a device had nothing else to do */
};

#define BATCH_CLOSE_REASONS 3

/* "full", "idle_device"; "open" for BATCH_OPEN. */
const char *batch_close_name(enum batch_close reason);

struct batcher_config {
    int max_batch;     /* slots of a buffer, 1 … BATCHER_MAX_BATCH */
    int capacity;      /* images that a buffer has memory for, padding included; 0: max_batch */
    int buffers;       /* at least lanes * depth + 2: one forming, one more to absorb what closes
                          early */
    int lanes;         /* devices that take batches, at least 1 */
    int depth;         /* batches that a lane may have at a time, 1 … BATCHER_MAX_DEPTH; 0: 1 */
    int workers;       /* threads that prepare images, for predictions; 0: they cost nothing */
    int larges;        /* most large images that are prepared at a time; 0: any number */
    size_t max_images; /* bound of admitted and not answered images, at least 1 */
};

struct batch_slot {
    int buffer, slot;
};

/* Images that a lane has taken to run in one pass: slots[i] of `buffer` holds items[i]; slots
 * ascend, and have gaps where images were abandoned. They are to lie from slot `first` on
 * (batch_compact), where there is memory for them and for padding up to the next compiled size. */
struct batch {
    int lane, buffer, first;
    int count; /* at least 1 */
    enum batch_close reason;
    bool is_first;          /* that is taken of what closed for this reason */
    int64_t opened, closed; /* when the buffer's first slot was reserved, when it closed */
    int slots[BATCHER_MAX_BATCH];
    void *items[BATCHER_MAX_BATCH]; /* the owners of their batch_items */
};

/* Copies slot `from` over slot `to`. */
struct batch_move {
    int from, to;
};

struct batcher_counts {
    uint64_t answered; /* since it was made: what stands still while images wait is stuck */
    size_t admitted;   /* admitted, not answered */
    size_t queued;     /* of these: not claimed yet */
    size_t bytes;      /* of the queued */
    size_t granted;    /* tickets that nobody has used yet */
    size_t preparing;  /* claimed, without a slot */
    size_t slots;      /* reserved in forming and closed buffers, not taken */
    size_t running;    /* in batches that lanes have taken */
    int idle_lanes;
    int free_buffers, closed_buffers, running_buffers;
};

struct batcher;

/* NULL when out of memory. Free with batcher_free (NULL is fine). */
struct batcher *batcher_create(const struct batcher_config *config);
void batcher_free(struct batcher *batcher);

/* L(b) of a lane, to be filled with latency_init before its first batch; without it the lane runs
 * what is there, unpadded. Alive as long as the batcher. */
struct latency *batcher_latency(struct batcher *batcher, int lane);

/* An image is admitted: the caller has seen that counts.admitted < max_images. The item is the
 * batcher's until claim or remove give it back; its owner goes on through the batch. `predicted`:
 * nanoseconds until its answer (admission_check), 0 when not known. */
void batcher_admit(struct batcher *batcher, struct batch_item *item, int64_t predicted,
                   int64_t now);

/* A snapshot for admission: how a new image of this client and priority (0: the default) stands. */
void batcher_load(const struct batcher *batcher, uint64_t client, int priority, int64_t now,
                  struct model_load *ret);

/* How many more tickets may be handed to preparing threads now; they count as granted. Ask after
 * every event. */
size_t batcher_grant(struct batcher *batcher);

/* Whether a large image waits. */
bool batcher_has_large(const struct batcher *batcher);

/* A ticket is used: returns the owner of the image whose turn it is (queue.h), a large one only if
 * `may_be_large`. NULL when there is none left (it was removed, or the queue was cut); the ticket
 * is then spent, unless only large ones wait and it may not be one of them. Call
 * batcher_end_large() when the thread has finished with a large image, also after a failure. */
void *batcher_claim(struct batcher *batcher, bool may_be_large, int64_t now);
void batcher_end_large(struct batcher *batcher);

/* Takes an image that has not been claimed out of the queue; it still has to be answered. False,
 * and nothing happens, when it is not in the queue any more. */
bool batcher_remove(struct batcher *batcher, struct batch_item *item);

/* A claimed image ends without a slot (it did not decode, its client has gone). */
void batcher_drop(struct batcher *batcher);

/* A claimed image gets a slot of the forming batch; never fails. The batch closes when this was its
 * last slot. */
struct batch_slot batcher_reserve(struct batcher *batcher, struct batch_item *item, int64_t now);

/* The slot is written / will not be written. An abandoned slot of a forming batch is used again. */
void batcher_commit(struct batcher *batcher, struct batch_slot place, int64_t now);
void batcher_abandon(struct batcher *batcher, struct batch_slot place, int64_t now);

/* The shortest pass of one image there is, less a tenth: an image whose deadline is nearer than
 * that cannot meet it any more. 0 when not known. */
int64_t batcher_shortest_run(const struct batcher *batcher);

/* Lane `lane` (0 … lanes - 1) has nothing to do from now on; it stays so until batcher_take gives
 * it a batch. */
void batcher_lane_idle(struct batcher *batcher, int lane, int64_t now);

/* Whether a lane works. Predictions leave a quarantined one out, and it is not idle. All work at
 * first. */
void batcher_lane_works(struct batcher *batcher, int lane, bool works, int64_t now);

/* Whether the forming batch should close now, and why. A full one (max_batch images, or
 * fewer where L(b) says that more are no faster): yes. Otherwise it takes an idle
 * device that no closed batch is meant for, and at least one ready image. Slots still being written
 * are waited for after the close: no longer than one resize. Every event closes what is due. */
enum batch_close batcher_should_close(const struct batcher *batcher);

/* Whether anything is ready that an idle lane could run. */
bool batcher_has_ready(const struct batcher *batcher);

/* Whether batcher_take would give a batch now. */
bool batcher_can_take(const struct batcher *batcher);

/* An idle lane takes from the oldest closed batch whose slots are all written, closing the forming
 * one first if it is due. How many: as L(b) of this lane says. False when there is none: *ret is
 * then untouched and the lane stays idle. The memory of the batch is the lane's until
 * batcher_release or batcher_give_back. */
bool batcher_take(struct batcher *batcher, int lane, int64_t now, struct batch *ret);

/* A lane that has a batch, and room for another one (depth), takes what shall follow without a gap:
 * of a closed batch; or, with `at_last` (its device is about to be free), of the forming one once
 * its images are ready. Never while another lane has nothing under way. Else as batcher_take. */
bool batcher_take_ahead(struct batcher *batcher, int lane, bool at_last, int64_t now,
                        struct batch *ret);

/* A forward pass of `images` on this lane took `ns`: keeps L(b) current. */
void batcher_ran(struct batcher *batcher, int lane, int images, int64_t ns);

/* The lane no longer needs the memory of this batch. (The lane itself is busy until
 * batcher_lane_idle.) */
void batcher_release(struct batcher *batcher, const struct batch *batch);

/* The lane does not run its batch after all: the images that are still in `batch` (in the slots it
 * names; the others of what was taken have been answered) go to the next idle lane, before anything
 * else. */
void batcher_give_back(struct batcher *batcher, const struct batch *batch, int64_t now);

/* `images` admitted ones have been answered, one way or the other. */
void batcher_answered(struct batcher *batcher, size_t images);

/* Takes the image whose turn it is out of the queue, not to be prepared at all (its time is over);
 * NULL when none is left. It still has to be answered. */
void *batcher_pop(struct batcher *batcher);

struct batcher_counts batcher_counts(const struct batcher *batcher);

/* The moves that close the gaps of a taken batch: afterwards items[i] is meant to lie in slot
 * first + i for every i < count. At most one move per gap, none overlapping. Returns how many;
 * `moves` holds batch->count. */
int batch_compact(struct batch *batch, struct batch_move *moves);
