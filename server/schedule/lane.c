/* Where the session lets runs overlap (info.depth), the lane begins the next pass before the last
 * one has ended, so that its inputs come in and the device goes on without a gap:
 *
 *     take n ─ submit n ─ take n+1 ─ submit n+1 ─ collect n ─ take n+2 ─ submit n+2 ─ answer n …
 *
 * What is full is taken at once; what is still forming only when the device is about to be free,
 * because it could not begin earlier, and might become larger. A pass that fails is run again,
 * whole or in parts, when nothing is under way any more.
 *
 * A lane sets itself aside when its device fails: a pass that ends in STATUS_DEVICE is followed by
 * a probe, a pass of zeros. Where that works the images were at fault, and are run again as halves.
 * Where it fails, too, what is left of the batch goes back to the scheduler for the other lanes,
 * and the lane probes its device from time to time until it works again. An image that two lanes
 * broke over is not moved any further.
 *
 * Locks: `lock` guards the lines for lane_describe_health, and is held for nothing else; the
 * scheduler's and the turns' calls take their own for themselves. The session, the scores buffer
 * and the batch that was taken belong to the lane's thread alone. */
#include "server/schedule/lane.h"

#include <assert.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/observe/log.h"
#include "server/schedule/batch_cap.h"
#include "server/schedule/postprocess.h"
#include "server/schedule/rows.h"
#include "server/schedule/thread.h"

/* A batch between take and answer. */
struct flight {
    struct batch batch;
    size_t taken; /* images, those that were dropped included */
    bool is_submitted;
    enum status status; /* of submitting it */
    struct error error;
    struct session_want want;
    double copy_in_ms;
    int64_t begun;
    const void **inputs; /* input_count */
    bool *wanted;        /* output_count */
};

struct lane {
    /* immutable once created */
    const struct model *model;
    struct session *session;
    struct session_info info;
    size_t input_count;
    struct budget *budget; /* NULL: none, or nothing is booked yet */
    size_t booked;
    struct scheduler *scheduler;
    struct served *served;
    int index; /* of this lane in its scheduler */
    bool started;
    pthread_t thread;
    sem_t warm; /* posted once by the thread */

    pthread_mutex_t lock;
    int64_t aside_since; /* guarded by lock; 0: it works */
    char aside_reason[sizeof((struct lane_health *)0)->reason];

    /* the thread's own */
    struct turn turn;
    int64_t turn_used;             /* of its turn's time */
    struct error device_error;     /* of the last probe that failed */
    const struct tensor **outputs; /* of the last run, session_output_count */
    const void **inputs;           /* of the next run, input_count */
    struct flight flights[BATCHER_MAX_DEPTH];
    int first_flight, flight_count;
    int64_t ended; /* when the last pass did */
    bool has_best; /* the run collected last: only the best classes came back */
    struct scores_buffer scores;
    struct batch_cap cap;
    struct lane_meters meters;
    struct batch_layout aside_layout;
    void *aside; /* a batch of the smallest compiled size: for retries, and to warm up */
    uint8_t *aside_marks;
    const uint8_t *marks; /* of the images at `inputs`; NULL: floats */
    int fed;              /* images there */
};

/* Part of a taken batch: what one forward pass runs. */
struct piece {
    int first, count;
};

/* A split goes on with a part that is a smaller compiled size, or below those half of 256 images at
 * most, and leaves the rest. */
#define MOST_PIECES (SESSION_MAX_BATCHES + 10)

static enum status allocate(struct lane *lane, struct error *err)
{
    size_t padded = (size_t)session_batch_for(lane->session, 1);
    lane->input_count = session_input_count(lane->session);
    TRY(batch_layout_init(lane->session, padded, &lane->aside_layout, err));
    TRY(session_buffer_create(lane->info.device, lane->aside_layout.bytes, &lane->aside, err));
    lane->outputs = alloc_array(session_output_count(lane->session), sizeof *lane->outputs);
    lane->inputs = alloc_array(lane->input_count, sizeof *lane->inputs);
    lane->aside_marks = alloc_array(padded, sizeof *lane->aside_marks);
    bool has_flights = true;
    for (size_t i = 0; i < BATCHER_MAX_DEPTH; i++) {
        struct flight *flight = &lane->flights[i];
        flight->inputs = alloc_array(lane->input_count, sizeof *flight->inputs);
        flight->wanted = alloc_array(session_output_count(lane->session), sizeof *flight->wanted);
        has_flights = has_flights && flight->inputs && flight->wanted;
    }
    if (!lane->outputs || !lane->inputs || !lane->aside_marks || !has_flights)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a device lane");
    return STATUS_OK;
}

/* A device is set aside when so many passes in a row fail after the one that raised the doubt. */
#define PROBES 2

#define SECOND      INT64_C(1000000000)
#define FIRST_PAUSE (SECOND / 2) /* before a device that was set aside is tried again */
#define MOST_PAUSE  (30 * SECOND)

/* What the session takes of its device: as its limit was checked. */
static size_t booked_bytes(const struct lane *lane, const struct session_options *options)
{
    size_t rows = (size_t)lane_padded_batch(lane, lane_max_batch(lane)), row_bytes = 0;
    rows = rows * options->input_batches + options->input_images;
    for (size_t k = 0; k < lane->input_count; k++)
        row_bytes += lane->aside_layout.row_bytes[k];
    return lane->info.parameter_bytes + lane->info.activation_bytes + rows * row_bytes;
}

enum status lane_create(const struct model *model, const struct session_options *options,
                        struct budget *budget, struct turns *turns, struct lane **ret,
                        struct error *err)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a device lane");
    lane->model = model;
    turn_init(&lane->turn, turns);
    pthread_mutex_init(&lane->lock, NULL);
    sem_init(&lane->warm, 0, 0);
    lane->info.device = options->device;
    enum status status = session_create(model->graph, options, &lane->session, err);
    if (status == STATUS_OK) {
        lane->info = *session_info(lane->session);
        status = allocate(lane, err);
    }
    if (status != STATUS_OK) {
        lane_free(lane);
        return status;
    }
    lane->cap = batch_cap_begin(lane_max_batch(lane));
    lane->budget = budget;
    lane->booked = booked_bytes(lane, options);
    if (budget)
        budget_take(budget, lane->info.device, lane->booked);
    *ret = lane;
    return STATUS_OK;
}

const struct session *lane_session(const struct lane *lane)
{
    return lane->session;
}

const struct session_info *lane_info(const struct lane *lane)
{
    return &lane->info;
}

int lane_max_batch(const struct lane *lane)
{
    return lane->info.batched ? lane->info.batches[lane->info.batch_count - 1].size : 1;
}

int lane_padded_batch(const struct lane *lane, int batch)
{
    return session_batch_for(lane->session, batch);
}

/* Takes the images that nobody waits for any more out of the batch and finishes them. */
static void drop_unwanted(struct lane *lane, struct batch *batch)
{
    int kept = 0;
    for (int i = 0; i < batch->count; i++) {
        struct predict_image *image = batch->items[i];
        image->status = scheduler_check_wanted(lane->scheduler, image, &image->error);
        if (image->status == STATUS_OK) {
            batch->slots[kept] = batch->slots[i];
            batch->items[kept++] = image;
            continue;
        }
        scheduler_finish(lane->scheduler, image);
    }
    batch->count = kept;
}

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

/* A forward pass of `count` images has ended, `took` nanoseconds after it could begin. */
static void note_pass(struct lane *lane, int count, int64_t took, enum status status,
                      const struct error *err)
{
    metric_observe(lane->meters.batch_size, count);
    lane->turn_used += took;
    metric_add(lane->meters.device_seconds, (double)took * 1e-9);
    metric_add(scheduler_meters(lane->scheduler)->triton.exec_count, 1);
    if (status == STATUS_OK) {
        scheduler_ran(lane->scheduler, lane->index, count, took);
        return;
    }
    metric_add(lane->meters.forward_failures, 1);
    char device[DEVICE_TEXT];
    log_event(LOG_WARN, "forward pass failed", LOG_STR("model", lane->model->name),
              LOG_STR("device", device_text(lane->info.device, device)), LOG_INT("batch", count),
              LOG_STR("error", err->message));
}

/* Photos that are run again come as what they were: bytes or floats. */
static const uint8_t *marks_of(const struct lane *lane, const struct batch *batch, int first)
{
    const uint8_t *marks = scheduler_pixel_marks(lane->scheduler, batch->buffer);
    return marks ? marks + batch->first + first : NULL;
}

/* A forward pass of `count` images at lane->inputs, with nothing else under way; the inputs hold as
 * many as it is padded to. */
static enum status run(struct lane *lane, int count, double *ret_ms, struct error *err)
{
    const struct session_run run = {
        .batch = count, .inputs = lane->inputs, .are_pixels = lane->marks, .fed = lane->fed};
    int64_t start = clock_now();
    enum status status = lane->marks ? session_submit(lane->session, &run, err) : STATUS_OK;
    if (status == STATUS_OK)
        status = lane->marks ? session_collect(lane->session, lane->outputs, err)
                             : session_run(lane->session, count, lane->inputs, lane->outputs, err);
    lane->has_best = false;
    lane->ended = clock_now();
    *ret_ms = clock_ms(lane->ended - start);
    note_pass(lane, count, lane->ended - start, status, err);
    return status;
}

/* Scores of one image to its predictions. */
static enum status classify(struct lane *lane, int batch, int row, struct predict_image *image)
{
    const float *scores;
    size_t count;
    if (lane->has_best)
        return scores_from_best(session_best_of(lane->session, row), lane->served->class_count,
                                lane->model->has_probabilities, &lane->model->labels,
                                (size_t)image->request->top_k, &image->predictions,
                                &image->prediction_count, &image->error);
    TRY(scores_of_image(lane->outputs[lane->served->output], batch, row, &lane->scores, &scores,
                        &count, &image->error));
    return scores_top_k(scores, count, lane->model->has_probabilities, &lane->model->labels,
                        (size_t)image->request->top_k, &image->predictions,
                        &image->prediction_count, &image->error);
}

/* What the client gets of row `row` of a run. */
static enum status take_outputs(struct lane *lane, int batch, int row, struct predict_image *image)
{
    if (!image->request->raw_outputs)
        return classify(lane, batch, row, image);
    return rows_copy(lane->outputs, lane->served->output_count, image->request->wanted_outputs,
                     batch, row, &image->outputs, &image->error);
}

/* A run of a batch that has ended. */
struct outcome {
    int batch;
    double copy_in_ms, forward_ms;
    int64_t ended;
    enum status status;
    struct error failure;
};

/* Row `row` of a run was this image: finishes it. */
static void answer(struct lane *lane, struct predict_image *image, int row,
                   const struct outcome *outcome)
{
    struct meters *meters = scheduler_meters(lane->scheduler);
    image->batch = outcome->batch;
    image->device = lane->info.device;
    image->forward_ms = outcome->forward_ms;
    metric_observe(meters->phases[PHASE_QUEUE], image->queue_ms * 1e-3);
    metric_observe(lane->meters.forward, outcome->forward_ms * 1e-3);
    if (outcome->status == STATUS_OK) {
        image->status = take_outputs(lane, outcome->batch, row, image);
    } else {
        image->status = outcome->status;
        image->error = outcome->failure;
    }
    image->output_ms = clock_ms(clock_now() - outcome->ended);
    metric_observe(lane->meters.copy_in, outcome->copy_in_ms * 1e-3);
    metric_observe(lane->meters.copy_out, image->output_ms * 1e-3);
    scheduler_finish(lane->scheduler, image);
}

/* The largest number of images below `count` that runs without padding; half, where all of them are
 * padded. `count` is at least 2. */
static int smaller_batch(const struct lane *lane, int count)
{
    for (size_t i = lane->info.batch_count; i-- > 0;)
        if (lane->info.batches[i].size < count)
            return lane->info.batches[i].size;
    return (count + 1) / 2;
}

static bool is_out_of_memory(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY;
}

/* A pass of `count` images ran out of memory: the next ones are smaller for a while. */
static void lower_cap(struct lane *lane, int count)
{
    int padded = lane_padded_batch(lane, count);
    batch_cap_lower(&lane->cap, padded > 1 ? smaller_batch(lane, padded) : 1, clock_now());
    metric_set(lane->meters.batch_cap, lane->cap.cap);
    char device[DEVICE_TEXT];
    log_event(LOG_WARN, "batches made smaller: out of memory", LOG_STR("model", lane->model->name),
              LOG_STR("device", device_text(lane->info.device, device)), LOG_INT("batch", padded),
              LOG_INT("cap", lane->cap.cap));
}

/* Points lane->inputs at the images of a piece, where a pass may read them. A retry must not read
 * its neighbours, nor what an earlier batch left in the slots behind it, as padding: they may be
 * what made it fail. */
static void place(struct lane *lane, const struct batch *batch, struct piece piece, bool is_retry)
{
    size_t padded = (size_t)lane_padded_batch(lane, piece.count), count = (size_t)piece.count;
    lane->marks = marks_of(lane, batch, piece.first);
    lane->fed = piece.count;
    if (is_retry && padded != count && lane->marks) {
        memset(lane->aside_marks, 0, padded);
        memcpy(lane->aside_marks, lane->marks, count);
        lane->marks = lane->aside_marks;
        lane->fed = (int)padded;
    }
    for (size_t k = 0; k < lane->input_count; k++) {
        const void *rows =
            scheduler_row(lane->scheduler, batch->buffer, k, batch->first + piece.first);
        lane->inputs[k] = rows;
        if (!is_retry || padded == count)
            continue;
        size_t each = lane->aside_layout.row_bytes[k];
        char *aside = batch_layout_row(&lane->aside_layout, lane->aside, k, 0);
        memcpy(aside, rows, count * each);
        memset(aside + count * each, 0, (padded - count) * each);
        lane->inputs[k] = aside;
    }
}

/* Whether a retry of that many images would need padding that `aside` has no room for. */
static bool is_awkward(const struct lane *lane, int count)
{
    return lane_padded_batch(lane, count) != count && count > lane_padded_batch(lane, 1);
}

/* Milliseconds of the image that took longest to prepare. */
static double slowest_input(const struct batch *batch, struct piece piece)
{
    double slowest = 0;
    for (int i = 0; i < piece.count; i++) {
        const struct predict_image *image = batch->items[piece.first + i];
        double ms = image->decode_ms + image->preprocess_ms;
        slowest = ms > slowest ? ms : slowest;
    }
    return slowest;
}

static void answer_piece(struct lane *lane, const struct batch *batch, struct piece piece,
                         const struct outcome *outcome)
{
    bool good = outcome->status == STATUS_OK;
    if (good)
        served_note_run(lane->served, piece.count, slowest_input(batch, piece),
                        outcome->forward_ms);
    for (int i = 0; i < piece.count; i++)
        answer(lane, batch->items[piece.first + i], i, outcome);
    if (good)
        served_note_output(lane->served, piece.count, clock_ms(clock_now() - outcome->ended));
}

/* Lets others have the device. In line again at once if there is more to run: not only when what
 * was run has been answered. */
static void end_turn(struct lane *lane)
{
    turn_end(&lane->turn, lane->turn_used, scheduler_has_ready(lane->scheduler));
    lane->turn_used = 0;
}

/* One pass of zeros, with the device in hand. */
static enum status probe(struct lane *lane, struct error *err)
{
    for (size_t k = 0; k < lane->input_count; k++) {
        char *aside = batch_layout_row(&lane->aside_layout, lane->aside, k, 0);
        memset(aside, 0, (size_t)lane_padded_batch(lane, 1) * lane->aside_layout.row_bytes[k]);
        lane->inputs[k] = aside;
    }
    return session_run(lane->session, 1, lane->inputs, lane->outputs, err);
}

/* Zeros may be what a model cannot work with; only a failure of the device counts. */
static bool device_is_well(struct lane *lane)
{
    for (int attempt = 0; attempt < PROBES; attempt++)
        if (probe(lane, &lane->device_error) != STATUS_DEVICE)
            return true;
    return false;
}

/* What became of a piece. */
enum piece_end { PIECE_ANSWERED, PIECE_AGAIN, PIECE_DEVICE };

/* The first attempt of a piece, or another one. */
static void attempt(struct lane *lane, const struct batch *batch, struct piece piece, bool is_retry,
                    struct outcome *ret)
{
    int64_t start = clock_now();
    *ret = (struct outcome){.batch = piece.count};
    place(lane, batch, piece, is_retry);
    ret->copy_in_ms = clock_ms(clock_now() - start);
    ret->status = run(lane, piece.count, &ret->forward_ms, &ret->failure);
    ret->ended = lane->ended;
}

/* Runs one piece, unless `ran` says how that went, and answers it, unless it is to be run again in
 * parts, or the device is the one to blame. `*has_probed`: whether the device has been tried since
 * the batch was taken. */
static enum piece_end run_piece(struct lane *lane, const struct batch *batch, struct piece piece,
                                const struct outcome *ran, bool is_retry, bool is_last,
                                bool *has_probed)
{
    struct outcome outcome;
    if (ran)
        outcome = *ran;
    else
        attempt(lane, batch, piece, is_retry, &outcome);
    enum status status = outcome.status;
    if (status == STATUS_DEVICE && !*has_probed) {
        *has_probed = true;
        if (!device_is_well(lane))
            return PIECE_DEVICE;
    }
    bool may_recover = piece.count > 1 || (!is_retry && lane_padded_batch(lane, 1) > 1);
    if (is_out_of_memory(status))
        lower_cap(lane, piece.count);
    if (status != STATUS_OK && may_recover) {
        metric_add(
            is_out_of_memory(status) ? lane->meters.memory_splits : lane->meters.failure_splits, 1);
        return PIECE_AGAIN;
    }
    /* The outputs are the session's own: the buffer may fill again meanwhile. */
    if (is_last) {
        scheduler_release(lane->scheduler, batch);
        if (lane->flight_count == 0)
            end_turn(lane);
    }
    answer_piece(lane, batch, piece, &outcome);
    return PIECE_ANSWERED;
}

/* The whole batch in one pass, if that works (`ran`: it has been tried, and did not). What fails is
 * split, down to the images that fail by themselves; and what is larger than the cap is split at
 * once. Returns how many images, from the first on, were answered: all of them, unless the device
 * fails. */
static int run_pieces(struct lane *lane, const struct batch *batch, const struct outcome *ran)
{
    struct piece pieces[MOST_PIECES] = {{0, batch->count}};
    int count = 1;
    bool is_retry = false, has_probed = false;
    while (count > 0) {
        struct piece piece = pieces[--count];
        int cap = batch_cap_now(&lane->cap, clock_now());
        bool too_large = piece.count > cap || (is_retry && is_awkward(lane, piece.count));
        if (!too_large || ran) {
            enum piece_end end =
                run_piece(lane, batch, piece, ran, is_retry, count == 0, &has_probed);
            ran = NULL;
            if (end == PIECE_DEVICE)
                return piece.first;
            if (end == PIECE_ANSWERED)
                continue;
            is_retry = true;
        }
        if (piece.count == 1) { /* again, beside zeros */
            pieces[count++] = piece;
            continue;
        }
        int part = smaller_batch(lane, piece.count);
        if (part > cap)
            part = smaller_batch(lane, cap + 1);
        assert(count + 2 <= MOST_PIECES);
        pieces[count++] = (struct piece){piece.first + part, piece.count - part};
        pieces[count++] = (struct piece){piece.first, part};
    }
    return batch->count;
}

/* ---- a device that fails ---- */

void lane_describe_health(struct lane *lane, struct lane_health *ret)
{
    *ret = (struct lane_health){0};
    pthread_mutex_lock(&lane->lock);
    ret->is_aside = lane->aside_since != 0;
    if (ret->is_aside) {
        memcpy(ret->reason, lane->aside_reason, sizeof ret->reason);
        ret->aside_s = clock_ms(clock_now() - lane->aside_since) / 1000;
    }
    pthread_mutex_unlock(&lane->lock);
}

static bool lane_is_set_aside(struct lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    bool is_aside = lane->aside_since != 0;
    pthread_mutex_unlock(&lane->lock);
    return is_aside;
}

static void set_aside(struct lane *lane, const char *reason)
{
    char device[DEVICE_TEXT], text[sizeof lane->aside_reason];
    device_text(lane->info.device, device);
    snprintf(text, sizeof text, "%s: %.200s", device, reason);
    pthread_mutex_lock(&lane->lock);
    lane->aside_since = clock_now();
    memcpy(lane->aside_reason, text, sizeof text);
    pthread_mutex_unlock(&lane->lock);
    metric_add(lane->meters.quarantined, 1);
    log_event(LOG_ERROR, "device set aside", LOG_STR("model", lane->model->name),
              LOG_STR("device", device), LOG_STR("error", reason));
    scheduler_set_aside(lane->scheduler, lane->index, text);
}

static void take_back(struct lane *lane)
{
    char device[DEVICE_TEXT];
    pthread_mutex_lock(&lane->lock);
    double seconds = clock_ms(clock_now() - lane->aside_since) / 1000;
    lane->aside_since = 0;
    pthread_mutex_unlock(&lane->lock);
    metric_add(lane->meters.quarantined, -1);
    log_event(LOG_INFO, "device works again", LOG_STR("model", lane->model->name),
              LOG_STR("device", device_text(lane->info.device, device)),
              LOG_REAL("after_s", seconds));
    scheduler_take_back(lane->scheduler, lane->index);
}

/* Fails the images that may not move to another lane; returns how many are left in the batch. */
static int fail_moved(struct lane *lane, struct batch *batch, const struct error *failure)
{
    bool has_others = scheduler_has_lanes(lane->scheduler, lane->index);
    int kept = 0;
    for (int i = 0; i < batch->count; i++) {
        struct predict_image *image = batch->items[i];
        if (has_others && !image->has_moved) {
            image->has_moved = true;
            batch->slots[kept] = batch->slots[i];
            batch->items[kept++] = image;
            continue;
        }
        image->device = lane->info.device;
        image->status = failure->status;
        image->error = *failure;
        scheduler_finish(lane->scheduler, image);
    }
    batch->count = kept;
    return kept;
}

/* The device fails: of the batch the images from `answered` on go to other lanes, or fail where
 * there are none. Returns how many of the batch were finished. */
static int give_up_device(struct lane *lane, struct batch *batch, int answered)
{
    int images = batch->count;
    turn_end(&lane->turn, lane->turn_used, false);
    lane->turn_used = 0;
    for (int i = answered; i < batch->count; i++) {
        batch->items[i - answered] = batch->items[i];
        batch->slots[i - answered] = batch->slots[i];
    }
    batch->count -= answered;
    if (!lane_is_set_aside(lane)) /* of two batches the first one did it */
        set_aside(lane, lane->device_error.message);
    int left = fail_moved(lane, batch, &lane->device_error);
    scheduler_give_back(lane->scheduler, batch);
    return images - left;
}

/* Until the device works again; false: the lane shall end. */
static bool stay_aside(struct lane *lane)
{
    struct batch batch;
    int64_t pause = FIRST_PAUSE, probe_at = clock_now() + pause;
    for (;;) {
        switch (scheduler_wait_aside(lane->scheduler, lane->index, probe_at, &batch)) {
        case ASIDE_END:
            return false;
        case ASIDE_FAIL: {
            size_t images = (size_t)batch.count;
            drop_unwanted(lane, &batch); /* all of them: no lane is left */
            int left = batch.count;
            scheduler_give_back(lane->scheduler, &batch);
            scheduler_answered(lane->scheduler, images - (size_t)left);
            break;
        }
        case ASIDE_PROBE: {
            turn_begin(&lane->turn);
            bool is_well = device_is_well(lane);
            turn_end(&lane->turn, 0, false);
            if (is_well) {
                take_back(lane);
                return true;
            }
            pause = pause < MOST_PAUSE / 2 ? 2 * pause : MOST_PAUSE;
            probe_at = clock_now() + pause;
            break;
        }
        }
    }
}

/* ---- flights ---- */

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
                                    .are_pixels = marks_of(lane, batch, 0),
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
    drop_unwanted(lane, batch);
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
    lane->has_best = flight->want.best > 0 && lane->info.depth > 1;
    outcome.forward_ms = clock_ms(outcome.ended - begun);
    note_pass(lane, outcome.batch, outcome.ended - begun, outcome.status, &outcome.failure);
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
        end_turn(lane);
    answer_piece(lane, &flight->batch, (struct piece){0, flight->batch.count}, outcome);
    scheduler_answered(lane->scheduler, flight->taken);
}

/* The batch of a flight, with nothing under way: whole, in parts, or given up with the device. */
static void run_alone(struct lane *lane, struct flight *flight, const struct outcome *ran)
{
    struct batch *batch = &flight->batch;
    size_t dropped = flight->taken - (size_t)batch->count;
    int answered = lane_is_set_aside(lane) ? 0 : run_pieces(lane, batch, ran);
    if (answered < batch->count)
        answered = give_up_device(lane, batch, answered);
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

/* ---- the thread ---- */

/* A batch, and those that follow without a gap; with the device in hand, which it gives back. */
static void serve(struct lane *lane, const struct batch *first)
{
    begin_flight(lane, first);
    if (lane->flight_count == 0)
        end_turn(lane);
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

/* OpenMP makes its threads for each thread that enters a parallel loop: the first pass of this one
 * pays for them here, not in a client's request. Should it fail, the request will say why. */
static void warm_up(struct lane *lane)
{
    for (size_t k = 0; k < lane->input_count; k++)
        lane->inputs[k] = batch_layout_row(&lane->aside_layout, lane->aside, k, 0);
    struct error ignored;
    turn_begin(&lane->turn);
    (void)!session_run(lane->session, 1, lane->inputs, lane->outputs, &ignored);
    turn_end(&lane->turn, 0, false);
    sem_post(&lane->warm);
}

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    struct batch batch;
    bool goes_on = true;
    warm_up(lane);
    while (goes_on && scheduler_next_batch(lane->scheduler, lane->index, &lane->turn, &batch)) {
        serve(lane, &batch);
        if (lane_is_set_aside(lane))
            goes_on = stay_aside(lane);
    }
    return NULL;
}

enum status lane_start(struct lane *lane, struct scheduler *scheduler, int index, struct error *err)
{
    char name[64], device[DEVICE_TEXT];
    snprintf(name, sizeof name, "%s-%s", device_text(lane->info.device, device), lane->model->name);
    lane->scheduler = scheduler;
    lane->served = scheduler_served(scheduler);
    lane->index = index;
    scheduler_set_latency(scheduler, index, &lane->info);
    lane_meters_init(&lane->meters, scheduler_meters(scheduler), lane->info.device);
    metric_set(lane->meters.batch_cap, lane->cap.cap);
    lane->started = thread_start(&lane->thread, name, lane_main, lane);
    if (!lane->started)
        return error_set(err, STATUS_NO_MEMORY, "the thread of device %s could not be started",
                         device);
    while (sem_wait(&lane->warm) != 0) {
        /* interrupted by a signal: wait on */
    }
    return STATUS_OK;
}

void lane_free(struct lane *lane)
{
    if (!lane)
        return;
    if (lane->started)
        pthread_join(lane->thread, NULL);
    turn_done(&lane->turn);
    pthread_mutex_destroy(&lane->lock);
    sem_destroy(&lane->warm);
    scores_buffer_done(&lane->scores);
    batch_layout_done(&lane->aside_layout);
    session_buffer_free(lane->info.device, lane->aside);
    for (size_t i = 0; i < BATCHER_MAX_DEPTH; i++) {
        free(lane->flights[i].inputs);
        free(lane->flights[i].wanted);
    }
    free(lane->aside_marks);
    free(lane->inputs);
    free(lane->outputs);
    session_free(lane->session);
    if (lane->budget)
        budget_return(lane->budget, lane->info.device, lane->booked);
    free(lane);
}
