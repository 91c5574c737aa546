/* Turns on a device: the lanes of several models share it by measured time.
 *
 * A forward pass has the device to itself: on the CPU two of them would only fight for the cores.
 * Whose turn is next follows from the time each lane has used: the one that used least. A lane that
 * comes after a while begins where the others are, so nobody saves up time; and a device that
 * nobody else wants is never kept from a lane. So a model whose passes take 100 ms and one whose
 * passes take 10 ms get equal time, not equal numbers of passes, as long as both have work.
 *
 * Thread-safe; a struct device_turn belongs to one lane's thread. Locks: one a device, held for a
 * few instructions, never together with another one. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct device_queue; /* of one device */

/* A lane's place; members are private to device_queue.c and guarded by its lock. */
struct device_turn {
    struct device_queue *queue;
    struct device_turn *next; /* of those that wait */
    int64_t used;             /* nanoseconds, on the device's own scale */
    bool waits, has;
    pthread_cond_t granted;
};

/* NULL when out of memory; device_queue_free takes NULL. */
struct device_queue *device_queue_create(void);
void device_queue_free(struct device_queue *queue);

/* `turns` outlives the turn. */
void device_turn_init(struct device_turn *turn, struct device_queue *queue);
void device_turn_done(struct device_turn *turn);

/* Sleeps until the device is this lane's. */
void device_turn_begin(struct device_turn *turn);

/* Does another lane wait for the device that this one has? Takes no lock. */
bool device_turn_is_contended(struct device_turn *turn);

/* Gives the device back after `used` nanoseconds. With `wants_more` the lane is in line again at
 * once, though it will only come (device_turn_begin, or device_turn_end once more) when it has
 * answered what it ran: so that a lane with many short passes is not behind one with long passes
 * each time. */
void device_turn_end(struct device_turn *turn, int64_t used, bool wants_more);
