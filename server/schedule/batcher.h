/* The batcher: which image is prepared next, which slot of which batch it gets, when a batch
 * closes.
 *
 * A pure state machine: no thread, no clock, no lock, no pixel. Everything that happens is a call
 * (an event) with an explicit `now` where time matters, so that a test can drive it step by step
 * with a scripted clock. scheduler.c wraps it with a lock and threads.
 *
 *     admit ─▶ queue ──grant──▶ ticket ──claim──▶ preparing ──reserve──▶ slot ──commit──▶ ready
 *                                                     │                    │
 *                                                   give_up             abandon     (the image
 * failed)
 *
 *     FREE ──reserve──▶ FORMING ──close: full, idle device, drain──▶ CLOSED ──take──▶ RUNNING ─┐
 *      ▲                                                                                       │
 *      └──────────────────────────────────────── done ─────────────────────────────────────────┘
 *
 * A buffer is memory for one batch. One buffer at most is FORMING; several may be CLOSED and wait
 * for a lane (a device) or for the slots that are still being written.
 *
 * Tickets are what keeps preparing threads from ever waiting. A thread may decode an image only
 * with a ticket, and tickets are granted only while a slot for each is sure to exist when its
 * decode is over, whatever closes in between (room(), batcher.c). So a reserve never fails and
 * never blocks, a thread that works for one model never waits for that model's device, and
 * back-pressure is felt in the queue, where images are cheap.
 *
 * Not thread-safe; the caller's lock guards all of it. Calls that break the protocol are bugs of
 * the caller (asserted). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BATCHER_MAX_BATCH 256

/* Why a batch was closed. */
enum batch_close {
    BATCH_OPEN,        /* it is not */
    BATCH_FULL,        /* every slot is reserved */
    BATCH_IDLE_DEVICE, /* a device had nothing else to do */
    BATCH_DRAIN,       /* the same, while shutting down: nothing is held back any more */
};

#define BATCH_CLOSE_REASONS 4

/* "full", "idle_device", "drain"; "open" for BATCH_OPEN. */
const char *batch_close_name(enum batch_close reason);

struct batcher_config {
    int max_batch;     /* slots of a buffer, 1 … BATCHER_MAX_BATCH */
    int buffers;       /* at least lanes + 2: one forming, one more to absorb what closes early */
    int lanes;         /* devices that take batches, at least 1 */
    size_t max_images; /* bound of admitted and not answered images, at least 1 */
    int64_t hold_ns;   /* longest time an idle device leaves a ready image in a forming batch that
                          may still grow; 0: not at all */
};

struct batch_slot {
    int buffer, slot;
};

/* A batch that a lane has taken: slots[i] of `buffer` holds items[i]; slots ascend and have gaps
 * where images were abandoned. */
struct batch {
    int buffer;
    int count; /* at least 1 */
    enum batch_close reason;
    int64_t opened, closed; /* when the first slot was reserved, when it closed */
    int slots[BATCHER_MAX_BATCH];
    void *items[BATCHER_MAX_BATCH];
};

/* Copies slot `from` over slot `to`. */
struct batch_move {
    int from, to;
};

struct batcher_counts {
    size_t admitted;  /* admitted, not answered */
    size_t queued;    /* of these: not claimed yet */
    size_t granted;   /* tickets that nobody has used yet */
    size_t preparing; /* claimed, without a slot */
    size_t slots;     /* reserved in forming and closed buffers */
    size_t running;   /* in batches that lanes have taken */
    int idle_lanes;
    int free_buffers, closed_buffers, running_buffers;
};

struct batcher;

/* NULL when out of memory. Free with batcher_free (NULL is fine). */
struct batcher *batcher_create(const struct batcher_config *config);
void batcher_free(struct batcher *batcher);

/* An image is admitted: the caller has seen that counts.admitted < max_images. */
void batcher_admit(struct batcher *batcher, void *item);

/* How many more tickets may be handed to preparing threads now; they count as granted. Ask after
 * every event. */
size_t batcher_grant(struct batcher *batcher);

/* A ticket is used: returns the image whose turn it is, oldest first. NULL when there is none left
 * (the queue was cut); the ticket is then spent. */
void *batcher_claim(struct batcher *batcher);

/* A claimed image ends without a slot (it did not decode, its client has gone). */
void batcher_give_up(struct batcher *batcher);

/* A claimed image gets a slot of the forming batch; never fails. The batch closes when this was its
 * last slot. */
struct batch_slot batcher_reserve(struct batcher *batcher, void *item, int64_t now);

/* The slot is written / will not be written. An abandoned slot of a forming batch is used again. */
void batcher_commit(struct batcher *batcher, struct batch_slot place, int64_t now);
void batcher_abandon(struct batcher *batcher, struct batch_slot place, int64_t now);

/* A lane has nothing to do from now on; it stays so until batcher_take gives it a batch. */
void batcher_lane_idle(struct batcher *batcher, int64_t now);

/* The hold rule: should the forming batch close now, and why? Full: yes. Else only with an idle
 * device that no closed batch is meant for already, and with one image at least that is ready: then
 * at once, or hold_ns after that image became ready (drain: at once). Slots still being written are
 * waited for after the close; that takes no longer than one resize. */
enum batch_close batcher_should_close(const struct batcher *batcher, int64_t now);

/* When batcher_should_close turns by time alone; INT64_MAX: not before the next event. */
int64_t batcher_wake_at(const struct batcher *batcher);

/* Whether batcher_take would give a batch now. */
bool batcher_can_take(const struct batcher *batcher, int64_t now);

/* An idle lane takes the oldest closed batch whose slots are all written, closing the forming one
 * first if the hold rule says so. False when there is none: *ret is then untouched and the lane
 * stays idle. The buffer's memory is the lane's until batcher_done. */
bool batcher_take(struct batcher *batcher, int64_t now, struct batch *ret);

/* The lane needs the memory of buffer `index` no more. (The lane itself is busy until
 * batcher_lane_idle.) */
void batcher_done(struct batcher *batcher, int index);

/* `images` admitted ones have been answered, one way or the other. */
void batcher_answered(struct batcher *batcher, size_t images);

/* From now on nothing is held back. */
void batcher_drain(struct batcher *batcher, int64_t now);

/* Takes the oldest image out of the queue, not to be prepared at all (its time is over); NULL when
 * none is left. It still has to be answered. */
void *batcher_cut(struct batcher *batcher);

struct batcher_counts batcher_counts(const struct batcher *batcher);

/* The moves that close the gaps of a taken batch: afterwards items[i] is meant to lie in slot i for
 * every i < count. At most one move per gap, none overlapping. Returns how many; `moves` holds
 * batch->count. */
int batch_compact(struct batch *batch, struct batch_move *moves);
