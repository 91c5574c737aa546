/* Private to scheduler.c and scheduler_lanes.c: a scheduler's state, and functions that both need.
 * scheduler.c documents the locks. */
#pragma once

#include <stdatomic.h>

#include "server/schedule/runtime/scheduler.h"

struct scheduler {
    struct pool_source source; /* guarded by the pool's lock */

    /* immutable after create */
    struct deployment *deployment;
    struct pool *pool;
    struct batch_layout layout;
    int buffer_count;
    void **buffers;
    struct device_id device; /* for which `buffers` were created */
    uint8_t *marks; /* for each row of all buffers: 1 for bytes, 0 for floats; NULL: all floats */

    _Atomic bool cut;
    _Atomic bool is_lost;         /* no lane works */
    _Atomic bool has_large;       /* batcher_has_large(), for reading without the lock */
    _Atomic bool has_deferred;    /* deferred_images is not empty; for reading without the lock */
    size_t workers;               /* immutable */
    _Atomic int64_t shortest_run; /* batcher_shortest_run(), for reading without the lock */

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
    int lanes;
    int lanes_asleep;        /* in wait_ready(); the batcher does not count them as idle */
    int lanes_woken;         /* woken, and about to take a batch */
    int lanes_waiting_ahead; /* in scheduler_take_ahead(): they run a batch and want the next one */
    int lanes_waiting_beside; /* those of lanes_waiting_ahead that run batches in streams */
    int64_t progressed; /* clock_now() when an image was last answered, or the first one admitted */
    int quarantined_count;
    char quarantine_reason[256]; /* of the lane quarantined last */
};

/* Ends a locked section that has changed the batcher: unlocks, offers tickets to the pool, and
 * wakes lanes and scheduler_wait_answered(). */
void scheduler_dispatch_and_unlock(struct scheduler *scheduler);

/* Sets *err to the reason why no lane works, and returns its status; with the lock held. */
enum status scheduler_lost_error_locked(const struct scheduler *scheduler, struct error *err);

/* Removes the queued images and finishes them with this error. Takes the lock. */
void scheduler_empty_queue(struct scheduler *scheduler, const struct error *why);
