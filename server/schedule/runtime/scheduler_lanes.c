/* The scheduler's functions for lanes: the next batch, quarantine, and the memory of a batch. */
#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/schedule/runtime/scheduler.h"

bool scheduler_has_ready(struct scheduler *scheduler)
{
    LOCK(&scheduler->lock);
    return batcher_has_ready(scheduler->batcher);
}

bool scheduler_fills_lanes(struct scheduler *scheduler)
{
    LOCK(&scheduler->lock);
    return batcher_fills_lanes(scheduler->batcher);
}

/* Sleeps until an image is ready, at most until `until`. */
static enum lane_wake wait_ready(struct scheduler *scheduler, struct device_turn *turn,
                                 int64_t until)
{
    pthread_mutex_lock(&scheduler->lock);
    if (!scheduler->stopping && !batcher_has_ready(scheduler->batcher)) {
        pthread_mutex_unlock(&scheduler->lock);
        device_turn_end(turn, 0, false); /* the lane may have queued for its next turn */
        pthread_mutex_lock(&scheduler->lock);
    }
    scheduler->lanes_asleep++;
    enum lane_wake wake = LANE_BATCH;
    while (wake == LANE_BATCH && !scheduler->stopping && !batcher_has_ready(scheduler->batcher)) {
        condition_wait(&scheduler->lane_ready, &scheduler->lock, until);
        if (!batcher_has_ready(scheduler->batcher) && clock_now() >= until)
            wake = LANE_IDLE;
    }
    scheduler->lanes_asleep--;
    wake = scheduler->stopping ? LANE_END : wake;
    scheduler->lanes_woken += wake == LANE_BATCH;
    pthread_mutex_unlock(&scheduler->lock);
    return wake;
}

/* Called during the lane's turn on the device: takes a batch, and waits for one whose images are
 * still being written. Returns false if no ready image is left, another lane waits for the device,
 * or the scheduler stops. */
static bool take_batch(struct scheduler *scheduler, int lane, struct device_turn *turn,
                       struct batch *ret)
{
    struct batcher *batcher = scheduler->batcher;
    pthread_mutex_lock(&scheduler->lock);
    scheduler->lanes_woken--;
    batcher_lane_idle(batcher, lane);
    bool taken;
    while (!(taken = batcher_take(batcher, lane, clock_now(), ret)) && !scheduler->stopping &&
           batcher_has_ready(batcher) && !device_turn_is_contended(turn))
        condition_wait(&scheduler->lane_ready, &scheduler->lock, INT64_MAX);
    if (!taken) { /* the first call clears `idle`, the second sets `works` again */
        batcher_lane_works(batcher, lane, false);
        batcher_lane_works(batcher, lane, true);
    }
    scheduler_dispatch_and_unlock(scheduler);
    return taken;
}

enum lane_wake scheduler_next_batch(struct scheduler *scheduler, int lane, struct device_turn *turn,
                                    int64_t until, struct batch *ret)
{
    for (;;) {
        const enum lane_wake wake = wait_ready(scheduler, turn, until);
        if (wake != LANE_BATCH) {
            device_turn_end(turn, 0, false);
            return wake;
        }
        device_turn_begin(turn);
        if (take_batch(scheduler, lane, turn, ret)) {
            if (ret->is_first)
                metric_add(scheduler->deployment->meters.closed[ret->reason], 1);
            return LANE_BATCH;
        }
        device_turn_end(turn, 0, false);
    }
}

bool scheduler_take_ahead(struct scheduler *scheduler, int lane, struct device_turn *turn,
                          int64_t until, const struct session *beside, struct batch *ret)
{
    bool taken = false;
    pthread_mutex_lock(&scheduler->lock);
    scheduler->lanes_waiting_ahead++;
    scheduler->lanes_waiting_beside += beside != NULL;
    for (;;) {
        if (scheduler->stopping || device_turn_is_contended(turn))
            break;
        const int64_t now = clock_now();
        const bool at_last = now >= until || (beside && session_run_has_ended(beside));
        const enum ahead ahead = beside ? AHEAD_BESIDE : at_last ? AHEAD_READY : AHEAD_CLOSED;
        const bool others_are_free = scheduler->lanes_asleep + scheduler->lanes_woken > 0;
        taken = !others_are_free && batcher_take_ahead(scheduler->batcher, lane, ahead, now, ret);
        if (taken || at_last)
            break;
        condition_wait(&scheduler->lane_ready, &scheduler->lock, until);
    }
    scheduler->lanes_waiting_ahead--;
    scheduler->lanes_waiting_beside -= beside != NULL;
    scheduler_dispatch_and_unlock(scheduler);
    if (taken && ret->is_first)
        metric_add(scheduler->deployment->meters.closed[ret->reason], 1);
    return taken;
}

void scheduler_wake_lanes(void *argument)
{
    struct scheduler *scheduler = argument;
    LOCK(&scheduler->lock);
    if (scheduler->lanes_waiting_beside > 0)
        pthread_cond_broadcast(&scheduler->lane_ready);
}

void scheduler_quarantine(struct scheduler *scheduler, int lane, const char *reason)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->quarantined_count++;
    snprintf(scheduler->quarantine_reason, sizeof scheduler->quarantine_reason, "%s", reason);
    bool is_lost = scheduler->quarantined_count == scheduler->deployment->lane_count;
    struct error why;
    (void)scheduler_lost_error_locked(scheduler, &why);
    scheduler->is_lost = is_lost;
    batcher_lane_works(scheduler->batcher, lane, false);
    scheduler_dispatch_and_unlock(scheduler);
    if (is_lost)
        scheduler_empty_queue(scheduler, &why);
}

void scheduler_end_quarantine(struct scheduler *scheduler, int lane)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->quarantined_count--;
    scheduler->is_lost = false;
    batcher_lane_works(scheduler->batcher, lane, true);
    scheduler_dispatch_and_unlock(scheduler);
}

enum quarantine_event scheduler_wait_quarantined(struct scheduler *scheduler, int lane,
                                                 int64_t probe_at, struct batch *ret)
{
    struct batcher *batcher = scheduler->batcher;
    enum quarantine_event event = QUARANTINE_PROBE;
    pthread_mutex_lock(&scheduler->lock);
    while (!scheduler->stopping && clock_now() < probe_at) {
        if (scheduler->is_lost && batcher_has_ready(batcher)) {
            batcher_lane_idle(batcher, lane);
            bool taken = batcher_take(batcher, lane, clock_now(), ret);
            batcher_lane_works(batcher, lane, false);
            if (taken) {
                event = QUARANTINE_FAIL;
                break;
            }
        }
        /* No image of a batch can be taken while a slot of the batch is being written. */
        bool soon = scheduler->is_lost && batcher_has_ready(batcher);
        condition_wait(&scheduler->quarantine_event, &scheduler->lock,
                       soon ? clock_now() + 1000000 : probe_at);
    }
    if (scheduler->stopping && event == QUARANTINE_PROBE)
        event = QUARANTINE_END;
    scheduler_dispatch_and_unlock(scheduler);
    return event;
}

void *scheduler_row(struct scheduler *scheduler, int buffer, size_t input, int slot)
{
    return batch_layout_row(&scheduler->layout, scheduler->buffers[buffer], input, (size_t)slot);
}

uint8_t *scheduler_pixel_marks(struct scheduler *scheduler, int buffer)
{
    return scheduler->marks ? scheduler->marks + (size_t)buffer * scheduler->layout.rows : NULL;
}

void scheduler_release(struct scheduler *scheduler, const struct batch *batch)
{
    pthread_mutex_lock(&scheduler->lock);
    batcher_release(scheduler->batcher, batch);
    scheduler_dispatch_and_unlock(scheduler);
}

void scheduler_give_back(struct scheduler *scheduler, const struct batch *batch)
{
    pthread_mutex_lock(&scheduler->lock);
    batcher_give_back(scheduler->batcher, batch);
    scheduler_dispatch_and_unlock(scheduler);
}
