/* Private to scheduler.c and scheduler_lanes.c: a scheduler's state, and what both files need.
 * scheduler.c says which lock guards what. */
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
    struct device_id device; /* whose memory they are */
    uint8_t *marks;          /* of all rows of all buffers: bytes, not floats; NULL: none is */

    _Atomic bool cut;
    _Atomic bool is_lost;         /* no lane works */
    _Atomic bool has_large;       /* batcher_has_large, to be read without the lock */
    _Atomic bool has_deferred;    /* first_deferred is there, likewise */
    size_t workers;               /* immutable */
    _Atomic int64_t shortest_run; /* batcher_shortest_run, to be read without the lock */

    pthread_mutex_t lock;
    pthread_cond_t lane_ready;       /* a lane may find a batch, or shall end */
    pthread_cond_t quarantine_event; /* the same, for quarantined lanes */
    pthread_cond_t all_answered;
    struct batcher *batcher;
    struct admission admission;
    /* Images whose answers decode workers make; their tickets are not the batcher's. */
    struct predict_image *first_deferred, **last_deferred;
    size_t deferred; /* those that are being made, too */
    bool accepting, stopping;
    int lanes;
    int lanes_asleep;        /* in wait_ready(); the batcher does not count them as idle */
    int lanes_woken;         /* have seen work and are about to take it */
    int lanes_waiting_ahead; /* in scheduler_take_ahead(): run a batch, want the one after it */
    bool is_quarantined[DEVICE_MAX];
    int quarantined_count;
    char quarantine_reason[256]; /* of the lane quarantined last */
};

/* The end of every locked section that changed the batcher: hands out what the change made possible
 * (tickets, a batch, the end of a drain), after the lock is released. */
void scheduler_dispatch_and_unlock(struct scheduler *scheduler);

/* Sets *err to why no lane works, and returns its status; with the lock held. */
enum status scheduler_lost_error_locked(const struct scheduler *scheduler, struct error *err);

/* Takes what waits in the queue out of it and finishes it with what `refuse` says. */
void scheduler_empty_queue(struct scheduler *scheduler,
                           enum status (*refuse)(struct scheduler *scheduler, struct error *err));
