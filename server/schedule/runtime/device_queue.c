/* Start-time fair queueing with one server. `clock` is the device's virtual time: `used` of the
 * lane with the last turn. `used` of a lane that was idle is raised to `clock`.
 *
 * device_turn_end() passes the device directly to the next lane, so that no third lane can take it
 * in between. */
#include "server/schedule/runtime/device_queue.h"

#include <assert.h>

#include "engine/base/thread.h"

void device_queue_init(struct device_queue *queue)
{
    *queue = (struct device_queue){.turns = TAILQ_HEAD_INITIALIZER(queue->turns)};
    shared_arena_init(&queue->arena);
    pthread_mutex_init(&queue->lock, NULL);
}

void device_queue_done(struct device_queue *queue)
{
    assert(!queue->owner && TAILQ_EMPTY(&queue->turns));
    shared_arena_done(&queue->arena);
    pthread_mutex_destroy(&queue->lock);
}

void device_turn_init(struct device_turn *turn, struct device_queue *queue)
{
    *turn = (struct device_turn){.queue = queue};
    condition_init(&turn->granted);
}

static void queue_remove_turn_locked(struct device_queue *queue, struct device_turn *turn)
{
    TAILQ_REMOVE(&queue->turns, turn, entry);
    turn->waits = false;
    queue->waiting--;
}

static void queue_append_turn_locked(struct device_queue *queue, struct device_turn *turn)
{
    if (turn->used < queue->clock)
        turn->used = queue->clock;
    turn->waits = true;
    TAILQ_INSERT_TAIL(&queue->turns, turn, entry);
    queue->waiting++;
}

/* Gives a free device to the lane that has used the least time; on a tie, to the first one. */
static void queue_pass_on_locked(struct device_queue *queue)
{
    struct device_turn *next = TAILQ_FIRST(&queue->turns), *turn;
    TAILQ_FOREACH(turn, &queue->turns, entry)
    if (turn->used < next->used)
        next = turn;
    queue->owner = next;
    if (!next)
        return;
    queue_remove_turn_locked(queue, next);
    queue->clock = next->used;
    next->has = true;
    pthread_cond_signal(&next->granted);
}

void device_turn_done(struct device_turn *turn)
{
    struct device_queue *queue = turn->queue;
    pthread_mutex_lock(&queue->lock);
    if (turn->waits)
        queue_remove_turn_locked(queue, turn);
    if (turn->has) {
        turn->has = false;
        queue_pass_on_locked(queue);
    }
    pthread_mutex_unlock(&queue->lock);
    pthread_cond_destroy(&turn->granted);
}

void device_turn_begin(struct device_turn *turn)
{
    struct device_queue *queue = turn->queue;
    LOCK(&queue->lock);
    if (!turn->has && !turn->waits) {
        queue_append_turn_locked(queue, turn);
        if (!queue->owner)
            queue_pass_on_locked(queue);
    }
    while (!turn->has)
        condition_wait(&turn->granted, &queue->lock, INT64_MAX);
}

bool device_turn_is_contended(struct device_turn *turn)
{
    return turn->queue->waiting > 0;
}

void device_turn_end(struct device_turn *turn, int64_t used, bool wants_more)
{
    struct device_queue *queue = turn->queue;
    LOCK(&queue->lock);
    if (turn->has) {
        turn->has = false;
        turn->used += used;
        if (wants_more)
            queue_append_turn_locked(queue, turn);
        queue_pass_on_locked(queue);
    } else if (turn->waits && !wants_more) {
        queue_remove_turn_locked(queue, turn);
    }
}
