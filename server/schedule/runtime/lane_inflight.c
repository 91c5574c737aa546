/* Keeps batches in flight. If the session lets runs overlap (info.depth), the lane submits the next
 * pass before the last one has ended, so that the device runs without a gap:
 *
 *     take n ─ submit n ─ take n+1 ─ submit n+1 ─ collect n ─ answer n ─ take n+2 ─ submit n+2 …
 *
 * Closed batches are taken at once. The forming batch is taken only when the device is about to be
 * free: it could not run earlier, and may still grow. With streams (info.streams) passes run at
 * the same time: while there are images for all streams, ready images are taken at once, too. A
 * batch whose pass has failed runs again, complete or in parts, when no other pass is in flight. */
#include "server/schedule/runtime/lane.h"

#include <string.h>

#include "engine/base/clock.h"

/* Moves images into the gaps that failed and dropped images have left. */
static void close_gaps(struct lane *lane, struct batch *batch)
{
    struct batch_move moves[BATCHER_MAX_BATCH];
    uint8_t *marks = scheduler_pixel_marks(lane->scheduler, batch->buffer);
    int count = batch_compact(batch, moves);
    for (int i = 0; marks && i < count; i++)
        marks[moves[i].to] = marks[moves[i].from];
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < lane->info.input_count; k++)
            memcpy(scheduler_row(lane->scheduler, batch->buffer, k, moves[i].to),
                   scheduler_row(lane->scheduler, batch->buffer, k, moves[i].from),
                   lane->retry_layout.row_bytes[k]);
}

static struct lane_pass *inflight_at(struct lane *lane, int i)
{
    return &lane->inflight[(lane->first_inflight + i) % BATCHER_MAX_DEPTH];
}

/* Starts the pass of a taken batch's images that are still wanted, unless they exceed the cap. */
static void inflight_begin(struct lane *lane, const struct batch *taken)
{
    struct lane_pass *inflight = inflight_at(lane, lane->inflight_count);
    struct batch *batch = &inflight->batch;
    *batch = *taken;
    inflight->status = STATUS_OK;
    inflight->is_submitted = inflight->has_ended = false;
    scheduler_drop_unwanted(lane->scheduler, batch);
    if (batch->count == 0) {
        scheduler_release(lane->scheduler, batch, false);
        scheduler_answered(lane->scheduler, (size_t)batch->taken);
        return;
    }
    inflight->begun = clock_now();
    for (int i = 0; i < batch->count; i++) {
        struct predict_image *image = batch->items[i]->owner;
        image->times.queue_ms += clock_ms(inflight->begun - image->since);
        image->since = image->times.forward_start = inflight->begun;
    }
    close_gaps(lane, batch);
    lane->inflight_count++;
    if (batch->count <= lane_batch_cap(lane))
        lane_submit(lane, inflight, false);
}

/* The time when the device has nearly finished the oldest batch in flight and needs the next. */
static int64_t nearly_free(struct lane *lane)
{
    static const int64_t at_least = 100000, share = 8, look = 1000000000;
    if (lane->info.streams) /* the end of a run wakes the lane before this time */
        return clock_now() + look;
    const struct lane_pass *inflight = inflight_at(lane, 0);
    const int64_t pass = scheduler_latency(lane->scheduler, lane->index, inflight->batch.count);
    const int64_t begun = inflight->begun > lane->ended ? inflight->begun : lane->ended;
    return begun + pass - pass / share - at_least;
}

/* Takes batches to run after the current one: closed batches, and the forming one when the device
 * is nearly free. With streams: any batch, to run at the same time, if all streams have images. */
static void inflight_fill(struct lane *lane)
{
    struct batch batch;
    while (lane->inflight_count > 0 && session_may_submit(lane->session)) {
        for (int i = 0; i < lane->inflight_count; i++)
            if (!inflight_at(lane, i)->is_submitted)
                return; /* it runs alone */
        if (!scheduler_take_ahead(lane->scheduler, lane->index, &lane->turn, nearly_free(lane),
                                  lane->info.streams ? lane->session : NULL, &batch))
            return;
        inflight_begin(lane, &batch);
    }
}

static struct lane_pass *inflight_pop(struct lane *lane)
{
    struct lane_pass *inflight = inflight_at(lane, 0);
    lane->first_inflight = (lane->first_inflight + 1) % BATCHER_MAX_DEPTH;
    lane->inflight_count--;
    return inflight;
}

/* Answers a batch whose pass has succeeded. If there is a next batch, it has been submitted. */
static void inflight_answer(struct lane *lane, const struct lane_pass *inflight)
{
    scheduler_release(lane->scheduler, &inflight->batch, false);
    if (lane->inflight_count == 0)
        lane_end_turn(lane);
    lane_answer_images(lane, inflight);
    scheduler_answered(lane->scheduler, (size_t)inflight->batch.taken);
}

/* Runs a batch while nothing else is in flight, whole or in sub-batches. If the device fails, the
 * images without an answer go to other lanes. */
static void inflight_run_alone(struct lane *lane, struct lane_pass *inflight)
{
    struct batch *batch = &inflight->batch;
    int dropped = batch->taken - batch->count;
    int answered = lane->quarantined_since ? 0 : lane_run_sub_batches(lane, inflight);
    if (answered < batch->count)
        answered = lane_give_up_device(lane, batch, answered);
    scheduler_answered(lane->scheduler, (size_t)(dropped + answered));
}

/* True for a batch above the cap, which runs in sub-batches instead of being submitted. */
static bool exceeds_cap(const struct lane_pass *inflight)
{
    return !inflight->is_submitted && inflight->status == STATUS_OK;
}

/* Called when the pass of the oldest batch has failed. Collects the other batches in flight, and
 * then runs the failed ones again. */
static void inflight_recover(struct lane *lane, struct lane_pass *failed)
{
    struct lane_pass *again[BATCHER_MAX_DEPTH] = {failed};
    int count = 1;
    while (lane->inflight_count > 0) {
        struct lane_pass *next = inflight_pop(lane);
        if (!exceeds_cap(next))
            lane_collect(lane, next);
        if (next->has_ended && next->status == STATUS_OK) {
            lane->inflight_count++; /* so that the lane keeps its turn */
            inflight_answer(lane, next);
            lane->inflight_count--;
        } else {
            again[count++] = next;
        }
    }
    for (int i = 0; i < count; i++) {
        lane->inflight_count = count - 1 - i; /* still to run: lane_end_turn() reads it */
        inflight_run_alone(lane, again[i]);
    }
    lane->inflight_count = 0;
}

void lane_serve(struct lane *lane, const struct batch *first)
{
    inflight_begin(lane, first);
    if (lane->inflight_count == 0)
        lane_end_turn(lane);
    while (lane->inflight_count > 0) {
        inflight_fill(lane);
        struct lane_pass *inflight = inflight_pop(lane);
        if (exceeds_cap(inflight)) {
            inflight_run_alone(lane, inflight);
            continue;
        }
        lane_collect(lane, inflight);
        if (inflight->status == STATUS_OK)
            inflight_answer(lane, inflight);
        else
            inflight_recover(lane, inflight);
    }
}
