/* Gives the lanes of several models their turns on one device, by measured time.
 *
 * Start-time fair queueing with one server. `clock` is the device's virtual time: what the lane had
 * used that got the device last. A lane that was away continues from there, not from its own past.
 *
 * The device passes directly from one lane to the next, in turn_end: a third one cannot snatch it
 * in between. */
#include "server/schedule/turns.h"

#include <assert.h>
#include <stdlib.h>

#include "server/schedule/thread.h"

struct turns {
    pthread_mutex_t lock;
    struct turn *first, **last; /* those that wait, in the order they came; guarded by lock */
    _Atomic int waiting;        /* how many; changes under the lock */
    struct turn *owner;         /* guarded by lock, as all below */
    int64_t clock;
};

struct turns *turns_create(void)
{
    struct turns *turns = calloc(1, sizeof *turns);
    if (!turns)
        return NULL;
    pthread_mutex_init(&turns->lock, NULL);
    turns->last = &turns->first;
    return turns;
}

void turns_free(struct turns *turns)
{
    if (!turns)
        return;
    assert(!turns->owner && !turns->first);
    pthread_mutex_destroy(&turns->lock);
    free(turns);
}

void turn_init(struct turn *turn, struct turns *turns)
{
    *turn = (struct turn){.turns = turns};
    condition_init(&turn->granted);
}

static void remove_locked(struct turns *turns, struct turn *turn)
{
    struct turn **at = &turns->first;
    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    if (!*at)
        turns->last = at;
    turn->waits = false;
    turns->waiting--;
}

static void append_locked(struct turns *turns, struct turn *turn)
{
    if (turn->used < turns->clock)
        turn->used = turns->clock;
    turn->next = NULL;
    turn->waits = true;
    *turns->last = turn;
    turns->last = &turn->next;
    turns->waiting++;
}

static void grant_locked(struct turns *turns, struct turn *turn)
{
    turns->owner = turn;
    turns->clock = turn->used;
    turn->has = true;
}

/* Gives a free device to the one that has used least; of equals, to the one that came first. */
static void pass_on_locked(struct turns *turns)
{
    struct turn *next = turns->first;
    for (struct turn *turn = next; turn; turn = turn->next)
        if (turn->used < next->used)
            next = turn;
    turns->owner = NULL;
    if (!next)
        return;
    remove_locked(turns, next);
    grant_locked(turns, next);
    pthread_cond_signal(&next->granted);
}

void turn_done(struct turn *turn)
{
    struct turns *turns = turn->turns;
    if (!turns)
        return;
    pthread_mutex_lock(&turns->lock);
    if (turn->waits)
        remove_locked(turns, turn);
    if (turn->has) {
        turn->has = false;
        pass_on_locked(turns);
    }
    pthread_mutex_unlock(&turns->lock);
    pthread_cond_destroy(&turn->granted);
    turn->turns = NULL;
}

void turn_begin(struct turn *turn)
{
    struct turns *turns = turn->turns;
    pthread_mutex_lock(&turns->lock);
    if (!turn->has && !turn->waits) {
        append_locked(turns, turn);
        if (!turns->owner)
            pass_on_locked(turns);
    }
    while (!turn->has)
        condition_wait(&turn->granted, &turns->lock, INT64_MAX);
    pthread_mutex_unlock(&turns->lock);
}

bool turn_is_contended(struct turn *turn)
{
    return turn->turns->waiting > 0;
}

void turn_end(struct turn *turn, int64_t used, bool wants_more)
{
    struct turns *turns = turn->turns;
    pthread_mutex_lock(&turns->lock);
    if (turn->has) {
        turn->has = false;
        turn->used += used;
        if (wants_more)
            append_locked(turns, turn);
        pass_on_locked(turns);
    } else if (turn->waits && !wants_more) {
        remove_locked(turns, turn);
    }
    pthread_mutex_unlock(&turns->lock);
}
