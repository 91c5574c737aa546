/* Where the session lets runs overlap (info.depth), the lane begins the next pass before the last
 * one has ended, so that its inputs come in and the device goes on without a gap:
 *
 *     take n ─ submit n ─ take n+1 ─ submit n+1 ─ collect n ─ take n+2 ─ submit n+2 ─ answer n …
 *
 * What is full is taken at once; what is still forming only when the device is about to be free,
 * because it could not begin earlier, and might become larger. A pass that fails is run again,
 * whole or in parts, when nothing is under way any more. */
#include "server/schedule/lane_state.h"

#include <string.h>

#include "engine/base/clock.h"

static bool has_deadlines(const struct batch *batch)
{
    for (int i = 0; i < batch->count; i++) {
        const struct predict_image *image = batch->items[i];
        if (image->request->deadline)
            return true;
    }
    return false;
}

/* Of images that would be late in a pass of all of them, some are given up where that saves the
 * others: an answer that comes too late helps nobody. */
static void drop_late(struct lane *lane, struct batch *batch)
{
    struct latency latency;
    int64_t time_left[BATCHER_MAX_BATCH], needed, now = clock_now();
    if (!has_deadlines(batch))
        return;
    scheduler_latency(lane->scheduler, lane->index, &latency);
    for (int i = 0; i < batch->count; i++) {
        const struct predict_image *image = batch->items[i];
        time_left[i] = image->request->deadline ? image->request->deadline - now : INT64_MAX;
    }
    int in_time = latency_in_time(&latency, time_left, batch->count, &needed), kept = 0;
    int late = batch->count - in_time;
    for (int i = 0; i < batch->count; i++) {
        struct predict_image *image = batch->items[i];
        if (late > 0 && (time_left[i] < needed || batch->count - i <= late)) {
            late--;
            image->status = scheduler_late_error(image, now, &image->error);
            scheduler_finish(lane->scheduler, image);
            continue;
        }
        batch->slots[kept] = batch->slots[i];
        batch->items[kept++] = image;
    }
    batch->count = kept;
}

/* Images that failed or were dropped leave gaps; the forward pass wants none. */
static void close_gaps(struct lane *lane, struct batch *batch)
{
    const struct batch_layout *layout = scheduler_layout(lane->scheduler);
    struct batch_move moves[BATCHER_MAX_BATCH];
    uint8_t *marks = scheduler_pixel_marks(lane->scheduler, batch->buffer);
    int count = batch_compact(batch, moves);
    for (int i = 0; marks && i < count; i++)
        marks[moves[i].to] = marks[moves[i].from];
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < lane->input_count; k++)
            memcpy(scheduler_row(lane->scheduler, batch->buffer, k, moves[i].to),
                   scheduler_row(lane->scheduler, batch->buffer, k, moves[i].from),
                   layout->row_bytes[k]);
}

static struct flight *flight_at(struct lane *lane, int i)
{
    return &lane->flights[(lane->first_flight + i) % BATCHER_MAX_DEPTH];
}

/* What of the outputs the images of a batch want: the best classes alone, where that is all. */
static struct session_want want_of(const struct lane *lane, const struct batch *batch, bool *wanted)
{
    const struct served *served = lane->served;
    struct session_want want = {.scores = served->output};
    bool is_only_best = served->class_count > 0;
    memset(wanted, 0, served->output_count * sizeof *wanted);
    for (int i = 0; i < batch->count; i++) {
        const struct predict_request *request =
            ((const struct predict_image *)batch->items[i])->request;
        if (!request->raw_outputs) {
            want.best = request->top_k > want.best ? request->top_k : want.best;
            wanted[served->output] = true;
            continue;
        }
        is_only_best = false;
        for (size_t k = 0; k < served->output_count; k++)
            wanted[k] = wanted[k] || !request->wanted_outputs || request->wanted_outputs[k];
    }
    if (!is_only_best || want.best > lane->info.best)
        want.best = 0;
    want.outputs = want.best ? NULL : wanted;
    return want;
}

static void submit(struct lane *lane, struct flight *flight)
{
    const struct batch *batch = &flight->batch;
    for (size_t k = 0; k < lane->input_count; k++)
        flight->inputs[k] = scheduler_row(lane->scheduler, batch->buffer, k, batch->first);
    flight->want = want_of(lane, batch, flight->wanted);
    const struct session_run run = {.batch = batch->count,
                                    .inputs = flight->inputs,
                                    .are_pixels = lane_marks_of(lane, batch, 0),
                                    .fed = batch->count,
                                    .want = flight->want};
    flight->status = session_submit(lane->session, &run, &flight->error);
    flight->is_submitted = flight->status == STATUS_OK;
}

/* A batch that was taken: what is still wanted of it begins its pass, unless it is too large for
 * that at the moment. */
static void begin_flight(struct lane *lane, const struct batch *taken)
{
    struct flight *flight = flight_at(lane, lane->flight_count);
    struct batch *batch = &flight->batch;
    *batch = *taken;
    flight->taken = (size_t)batch->count;
    flight->status = STATUS_OK;
    flight->is_submitted = false;
    scheduler_drop_unwanted(lane->scheduler, batch);
    drop_late(lane, batch);
    if (batch->count == 0) {
        scheduler_release(lane->scheduler, batch);
        scheduler_answered(lane->scheduler, flight->taken);
        return;
    }
    flight->begun = clock_now();
    for (int i = 0; i < batch->count; i++) {
        struct predict_image *image = batch->items[i];
        image->queue_ms += clock_ms(flight->begun - image->since);
        image->since = flight->begun;
    }
    close_gaps(lane, batch);
    lane->flight_count++;
    if (batch->count <= batch_cap_now(&lane->cap, clock_now()))
        submit(lane, flight);
    flight->copy_in_ms = clock_ms(clock_now() - flight->begun);
}

/* When the device is about to be free of the first flight, so that what follows has to be there. */
static int64_t nearly_free(struct lane *lane)
{
    static const int64_t at_least = 100000, share = 8;
    const struct flight *flight = flight_at(lane, 0);
    struct latency latency;
    scheduler_latency(lane->scheduler, lane->index, &latency);
    const int64_t pass = latency_run(&latency, flight->batch.count);
    const int64_t begun = flight->begun > lane->ended ? flight->begun : lane->ended;
    return begun + pass - pass / share - at_least;
}

/* Fills the device's line: with `waits` until it is nearly free, else with what is closed. */
static void begin_ahead(struct lane *lane, bool waits)
{
    struct batch batch;
    while (lane->flight_count > 0 && lane->flight_count < lane->info.depth) {
        for (int i = 0; i < lane->flight_count; i++)
            if (!flight_at(lane, i)->is_submitted)
                return; /* it runs alone */
        if (!scheduler_take_ahead(lane->scheduler, lane->index, &lane->turn,
                                  waits ? nearly_free(lane) : 0, waits, &batch))
            return;
        begin_flight(lane, &batch);
    }
}

/* Waits for a flight's pass, the oldest under way. */
static struct outcome collect(struct lane *lane, struct flight *flight)
{
    struct outcome outcome = {.batch = flight->batch.count,
                              .copy_in_ms = flight->copy_in_ms,
                              .status = flight->status,
                              .failure = flight->error};
    if (flight->is_submitted)
        outcome.status = session_collect(lane->session, lane->outputs, &outcome.failure);
    const int64_t begun = flight->begun > lane->ended ? flight->begun : lane->ended;
    lane->ended = outcome.ended = clock_now();
    lane->has_best = flight->want.best > 0;
    outcome.forward_ms = clock_ms(outcome.ended - begun);
    lane_note_pass(lane, outcome.batch, outcome.ended - begun, outcome.status, &outcome.failure);
    return outcome;
}

static struct flight *end_flight(struct lane *lane)
{
    struct flight *flight = flight_at(lane, 0);
    lane->first_flight = (lane->first_flight + 1) % BATCHER_MAX_DEPTH;
    lane->flight_count--;
    return flight;
}

/* A flight's pass has ended well; what follows it begins before it is answered. */
static void land(struct lane *lane, struct flight *flight, const struct outcome *outcome)
{
    scheduler_release(lane->scheduler, &flight->batch);
    if (lane->flight_count == 0)
        lane_end_turn(lane);
    lane_answer_piece(lane, &flight->batch, (struct piece){0, flight->batch.count}, outcome);
    scheduler_answered(lane->scheduler, flight->taken);
}

/* The batch of a flight, with nothing under way: whole, in parts, or given up with the device. */
static void run_alone(struct lane *lane, struct flight *flight, const struct outcome *ran)
{
    struct batch *batch = &flight->batch;
    size_t dropped = flight->taken - (size_t)batch->count;
    int answered = lane_is_set_aside(lane) ? 0 : lane_run_pieces(lane, batch, ran);
    if (answered < batch->count)
        answered = lane_give_up_device(lane, batch, answered);
    scheduler_answered(lane->scheduler, dropped + (size_t)answered);
}

/* Larger than the cap, so that it waits for a pass of its own parts. */
static bool is_held_back(const struct flight *flight)
{
    return !flight->is_submitted && flight->status == STATUS_OK;
}

/* The first flight did not go well: the others land or fail, too, before anything is run again. */
static void recover(struct lane *lane, struct flight *flight, const struct outcome *outcome)
{
    struct flight *again[BATCHER_MAX_DEPTH] = {flight};
    struct outcome outcomes[BATCHER_MAX_DEPTH] = {*outcome};
    const struct outcome *ran[BATCHER_MAX_DEPTH] = {&outcomes[0]};
    int count = 1;
    while (lane->flight_count > 0) {
        struct flight *next = end_flight(lane);
        again[count] = next;
        ran[count] = NULL;
        if (!is_held_back(next)) {
            outcomes[count] = collect(lane, next);
            ran[count] = &outcomes[count];
        }
        if (ran[count] && ran[count]->status == STATUS_OK) {
            lane->flight_count++; /* the device is still needed */
            land(lane, next, ran[count]);
            lane->flight_count--;
        } else {
            count++;
        }
    }
    for (int i = 0; i < count; i++) {
        lane->flight_count = count - 1 - i; /* those whose turn comes, for end_turn */
        run_alone(lane, again[i], ran[i]);
    }
    lane->flight_count = 0;
}

void lane_serve(struct lane *lane, const struct batch *first)
{
    begin_flight(lane, first);
    if (lane->flight_count == 0)
        lane_end_turn(lane);
    while (lane->flight_count > 0) {
        begin_ahead(lane, true);
        struct flight *flight = end_flight(lane);
        if (is_held_back(flight)) {
            run_alone(lane, flight, NULL);
            continue;
        }
        struct outcome outcome = collect(lane, flight);
        if (outcome.status != STATUS_OK) {
            recover(lane, flight, &outcome);
            continue;
        }
        begin_ahead(lane, false);
        land(lane, flight, &outcome);
    }
}
