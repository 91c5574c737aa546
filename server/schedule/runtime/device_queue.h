/* The fair queue of a device: lanes of several models share it by measured time.
 *
 * One lane uses a device at a time; on a CPU two would compete for the cores. The next turn goes to
 * the waiting lane that has used the least time. A lane that was idle starts with the used time
 * of the lane that had the last turn, so it cannot save up time. A lane gets a free device at once.
 * So two models with passes of 100 ms and 10 ms get equal time while both have work.
 *
 * Thread-safe; a struct device_turn belongs to one lane's thread. One lock per device, held for a
 * few instructions, never together with another one. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/backend/shared_arena.h"

TAILQ_HEAD(device_turns, device_turn);

/* The queue of one device. */
struct device_queue {
    /* The arena of the sessions that take turns on this device; outlives these sessions. */
    struct shared_arena arena;

    /* private to device_queue.c */
    pthread_mutex_t lock;
    struct device_turns turns; /* turns that wait, in order of arrival; guarded by lock */
    _Atomic int waiting;       /* the length of `turns`; changes under the lock */
    struct device_turn *owner; /* guarded by lock, as `clock` */
    int64_t clock;
};

/* A lane's place in a device's queue. The members are private to device_queue.c; the queue's lock
 * guards them. */
struct device_turn {
    struct device_queue *queue;
    TAILQ_ENTRY(device_turn) entry; /* in the list of turns, while `waits` */
    int64_t used;                   /* nanoseconds, relative to the device's other lanes */
    bool waits, has;                /* the lane waits for the device; the lane has the device */
    pthread_cond_t granted;
};

void device_queue_init(struct device_queue *queue);
void device_queue_done(struct device_queue *queue);

/* `queue` must outlive the turn. */
void device_turn_init(struct device_turn *turn, struct device_queue *queue);
void device_turn_done(struct device_turn *turn);

/* Sleeps until it is this lane's turn. */
void device_turn_begin(struct device_turn *turn);

/* True if another lane waits for its turn. Takes no lock. */
bool device_turn_is_contended(struct device_turn *turn);

/* Gives the device back after `used` nanoseconds. With `wants_more` it also queues the lane for its
 * next turn; the lane answers its images, and then calls device_turn_begin() (or device_turn_end()
 * without `wants_more`). If lanes queued only after their answers, a lane with short passes
 * would wait for each pass of a lane with long passes. */
void device_turn_end(struct device_turn *turn, int64_t used, bool wants_more);
