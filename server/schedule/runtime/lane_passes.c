/* Runs a batch, splits it down to the images that fail, and makes the images' answers. */
#include "server/schedule/runtime/lane_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "models/tasks/tensor_copy.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/image_answer.h"

/* The most parts of a batch that wait at a time. A split adds one: a part of the next smaller
 * compiled size runs, and the rest waits. Below the smallest size parts are halved, at most eight
 * times (256 images). */
#define MAX_SUB_BATCHES (SESSION_MAX_BATCHES + 10)

/* True if a pass failed because of its requests, not its model or device: an operator refused a
 * value in a client's tensor, or the memory for the tensors of one run was short. */
static bool is_refusal(const struct lane *lane, enum status status)
{
    if (status == STATUS_SHORT_OF_MEMORY)
        return true;
    if (!lane->running || (status != STATUS_INVALID && status != STATUS_SHAPE &&
                           status != STATUS_MODEL && status != STATUS_UNSUPPORTED))
        return false;
    for (int i = 0; i < lane->part.count; i++) {
        const struct predict_image *image = lane->running->items[lane->part.first + i];
        if (!image->request->tensors)
            return false;
    }
    return true;
}

enum status lane_note_pass(struct lane *lane, int count, int64_t took, enum status status,
                           struct error *err)
{
    metric_observe(lane->meters.batch_size, count);
    lane->turn_used += took;
    metric_add(lane->meters.device_seconds, (double)took * 1e-9);
    metric_add(lane->deployment->meters.triton.exec_count, 1);
    if (status == STATUS_OK) {
        scheduler_ran(lane->scheduler, lane->index, count, took);
        return status;
    }
    if (status == STATUS_CANCELLED)
        return status;
    if (is_refusal(lane, status)) {
        if (status != STATUS_SHORT_OF_MEMORY)
            err->status = STATUS_INVALID;
        log_event(LOG_DEBUG, "forward pass refused", LOG_STR("model", lane->model->name),
                  LOG_INT("batch", count), LOG_STR("error", err->message));
        return err->status;
    }
    metric_add(lane->meters.forward_failures, 1);
    log_event(LOG_WARN, "forward pass failed", LOG_STR("model", lane->model->name),
              LOG_STR("device", DEVICE_STRING(lane->info.device)), LOG_INT("batch", count),
              LOG_STR("error", err->message));
    return status;
}

static bool is_waited_for(const struct predict_image *image, int64_t now)
{
    const struct predict_request *request = image->request;
    return !atomic_load_explicit(&request->cancelled, memory_order_relaxed) &&
           (request->deadline == 0 || now < request->deadline);
}

bool lane_is_unwanted(void *argument)
{
    const struct lane *lane = argument;
    if (scheduler_is_cut(lane->scheduler))
        return true;
    if (!lane->running)
        return false;
    const int64_t now = clock_now();
    for (int i = 0; i < lane->part.count; i++)
        if (is_waited_for(lane->running->items[lane->part.first + i], now))
            return false;
    return true;
}

const uint8_t *lane_marks_of(const struct lane *lane, const struct batch *batch, int first)
{
    const uint8_t *marks = scheduler_pixel_marks(lane->scheduler, batch->buffer);
    return marks ? marks + batch->first + first : NULL;
}

/* Runs a forward pass of `count` images at lane->inputs, with no other in flight; the inputs have
 * room for padding. */
static enum status lane_run(struct lane *lane, int count, double *ret_ms, struct error *err)
{
    const struct session_request run = {.batch = count,
                                        .inputs = lane->inputs,
                                        .are_pixels = lane->marks,
                                        .valid_rows = lane->valid_rows};
    int64_t start = clock_now();
    enum status status = session_submit(lane->session, &run, err);
    IF_OK(status, session_collect(lane->session, lane->outputs, err));
    lane->has_best = false;
    lane->ended = clock_now();
    *ret_ms = clock_ms(lane->ended - start);
    return lane_note_pass(lane, count, lane->ended - start, status, err);
}

/* Sets the image's predictions: the best classes. */
static enum status find_classes(struct lane *lane, int batch, int row, struct predict_image *image)
{
    const float *scores;
    size_t count;
    if (lane->has_best)
        return scores_from_best(session_best_of(lane->session, row), lane->deployment->class_count,
                                lane->model->has_probabilities, (size_t)image->request->top_k,
                                &image->predictions, &image->prediction_count, &image->error);
    TRY(scores_of_image(lane->outputs[lane->deployment->output], batch, row, &lane->buffers[0],
                        &scores, &count, &image->error));
    return scores_top_k(scores, count, lane->model->has_probabilities,
                        (size_t)image->request->top_k, &image->predictions,
                        &image->prediction_count, &image->error);
}

/* Sets the image's predictions: the texts whose vectors are nearest to its vector. */
static enum status answer_texts(struct lane *lane, int batch, int row, struct predict_image *image)
{
    const struct zero_shot *texts =
        image->request->texts ? image->request->texts : &lane->model->texts;
    float *scores;
    TRY(image_answer_of(lane->model, lane->outputs, batch, row, lane->buffers, image));
    TRY(zero_shot_scores(texts, &image->answer.embedding, &scores, &image->error));
    const enum status status =
        scores_top_k(scores, texts->count, true, (size_t)image->request->top_k, &image->predictions,
                     &image->prediction_count, &image->error);
    free(scores);
    embedding_done(&image->answer.embedding);
    return status;
}

static struct memory_budget *run_memory(const struct lane *lane)
{
    return lane->budget ? budget_run_memory(lane->budget) : NULL;
}

/* Makes the image's answer, or copies its raw outputs, from row `row` of a run. */
static enum status take_outputs(struct lane *lane, int batch, int row, struct predict_image *image)
{
    if (image->request->raw_outputs)
        return tensor_copy_out(lane->outputs, lane->deployment->output_count,
                               image->request->wanted_outputs, batch, row, run_memory(lane),
                               &image->outputs, &image->error);
    TRY(lane->model->task.kind == TASK_CLASSIFICATION ? find_classes(lane, batch, row, image)
        : lane->model->task.kind == TASK_ZERO_SHOT || image->request->texts
            ? answer_texts(lane, batch, row, image)
            : image_answer_of(lane->model, lane->outputs, batch, row, lane->buffers, image));
    for (size_t i = 0; i < image->prediction_count; i++) {
        struct prediction *found = &image->predictions[i];
        found->label = predict_class_name(image->request, found->index);
    }
    return STATUS_OK;
}

/* Gives a copy of the outputs to a decode worker if the answer takes long: masks of a large photo.
 * Returns false if the lane must make the answer. */
static bool defer_answer(struct lane *lane, int batch, int row, struct predict_image *image,
                         int64_t ended)
{
    const enum task_kind kind = lane->model->task.kind;
    if (image->request->raw_outputs || !image->entry.is_large ||
        (kind != TASK_SEGMENTATION && kind != TASK_INSTANCES && kind != TASK_MASKS) ||
        tensor_copy_out(lane->outputs, lane->deployment->output_count, NULL, batch, row,
                        run_memory(lane), &image->outputs, &image->error) != STATUS_OK)
        return false;
    image->since = ended;
    if (scheduler_defer(lane->scheduler, image))
        return true;
    tensor_copies_free(image->outputs, lane->deployment->output_count);
    image->outputs = NULL;
    return false;
}

/* Answers an image from row `row` of a run, or fails it. */
static void answer_image(struct lane *lane, struct predict_image *image, int row,
                         const struct outcome *outcome)
{
    struct meters *meters = &lane->deployment->meters;
    const bool is_good = outcome->status == STATUS_OK;
    image->batch = outcome->batch;
    image->device = lane->info.device;
    image->forward_ms = outcome->forward_ms;
    metric_observe(meters->phases[PHASE_QUEUE], image->queue_ms * 1e-3);
    metric_observe(lane->meters.forward, outcome->forward_ms * 1e-3);
    if (is_good && is_waited_for(image, outcome->ended)) {
        if (defer_answer(lane, outcome->batch, row, image, outcome->ended))
            return;
        image->status = take_outputs(lane, outcome->batch, row, image);
        if (image->status == STATUS_OK && image->answer.detections.count)
            metric_add(meters->detections, (double)image->answer.detections.count);
    } else if (is_good || outcome->status == STATUS_CANCELLED) {
        /* Fails an image that no client waits for. If no client waits for any image of the run, the
         * run stops. Each image fails for its own reason, such as a deadline. */
        image->status = scheduler_check_wanted(lane->scheduler, image, &image->error);
    } else {
        image->status = outcome->status;
        image->error = outcome->failure;
    }
    image->output_ms = clock_ms(clock_now() - outcome->ended);
    metric_observe(lane->meters.copy_in, outcome->copy_in_ms * 1e-3);
    metric_observe(lane->meters.copy_out, image->output_ms * 1e-3);
    scheduler_finish(lane->scheduler, image);
}

/* The largest compiled size below `count`; half of `count`, rounded up, if there is none. `count`
 * is at least 2. */
static int smaller_batch(const struct lane *lane, int count)
{
    for (size_t i = lane->info.batch_count; i-- > 0;)
        if (lane->info.batches[i].size < count)
            return lane->info.batches[i].size;
    return (count + 1) / 2;
}

/* A pass of `count` images ran out of memory: limits the size of the next passes for a while. */
static void lower_cap(struct lane *lane, int count)
{
    int padded = lane_padded_batch(lane, count);
    batch_cap_lower(&lane->cap, padded > 1 ? smaller_batch(lane, padded) : 1, clock_now());
    metric_set(lane->meters.batch_cap, lane->cap.cap);
    log_event(LOG_WARN, "batches made smaller: out of memory", LOG_STR("model", lane->model->name),
              LOG_STR("device", DEVICE_STRING(lane->info.device)), LOG_INT("batch", padded),
              LOG_INT("cap", lane->cap.cap));
}

/* Points lane->inputs at the images of a sub-batch. The padding of a retry must be zeros, not other
 * images or old data in the slots behind, which may have caused the failure. */
static void place_inputs(struct lane *lane, const struct batch *batch, struct image_range part,
                         bool is_retry)
{
    size_t padded = (size_t)lane_padded_batch(lane, part.count), count = (size_t)part.count;
    lane->marks = lane_marks_of(lane, batch, part.first);
    lane->valid_rows = part.count;
    const bool is_padded = is_retry && padded != count;
    if (is_padded)
        lane->valid_rows = (int)padded;
    if (is_padded && lane->marks) {
        memset(lane->retry_marks, 0, padded);
        memcpy(lane->retry_marks, lane->marks, count);
        lane->marks = lane->retry_marks;
    }
    for (size_t k = 0; k < lane->input_count; k++) {
        const void *rows =
            scheduler_row(lane->scheduler, batch->buffer, k, batch->first + part.first);
        lane->inputs[k] = rows;
        if (!is_padded)
            continue;
        size_t each = lane->retry_layout.row_bytes[k];
        char *retry = batch_layout_row(&lane->retry_layout, lane->retry_rows, k, 0);
        memcpy(retry, rows, count * each);
        memset(retry + count * each, 0, (padded - count) * each);
        lane->inputs[k] = retry;
    }
}

/* True if a retry of `count` images needs padding and does not fit into `retry_rows`. */
static bool is_awkward(const struct lane *lane, int count)
{
    return lane_padded_batch(lane, count) != count && count > lane_padded_batch(lane, 1);
}

/* The milliseconds to prepare the slowest image. */
static double slowest_input(const struct batch *batch, struct image_range part)
{
    double slowest = 0;
    for (int i = 0; i < part.count; i++) {
        const struct predict_image *image = batch->items[part.first + i];
        double ms = image->decode_ms + image->preprocess_ms;
        slowest = ms > slowest ? ms : slowest;
    }
    return slowest;
}

void lane_answer_images(struct lane *lane, const struct batch *batch, struct image_range part,
                        const struct outcome *outcome)
{
    bool good = outcome->status == STATUS_OK;
    if (good)
        deployment_note_run(lane->deployment, part.count, slowest_input(batch, part),
                            outcome->forward_ms);
    for (int i = 0; i < part.count; i++)
        answer_image(lane, batch->items[part.first + i], i, outcome);
    session_drop_outputs(lane->session);
    if (good)
        deployment_note_output(lane->deployment, part.count,
                               clock_ms(clock_now() - outcome->ended));
}

void lane_end_turn(struct lane *lane)
{
    device_turn_end(&lane->turn, lane->turn_used, scheduler_has_ready(lane->scheduler));
    lane->turn_used = 0;
}

/* What to do after a sub-batch: nothing, because it is answered; split it or run it again; or give
 * up the device. */
enum sub_batch_end { SUB_BATCH_ANSWERED, SUB_BATCH_AGAIN, SUB_BATCH_DEVICE };

/* Runs a sub-batch, for the first time or as a retry. */
static void lane_attempt(struct lane *lane, const struct batch *batch, struct image_range part,
                         bool is_retry, struct outcome *ret)
{
    int64_t start = clock_now();
    *ret = (struct outcome){.batch = part.count};
    place_inputs(lane, batch, part, is_retry);
    ret->copy_in_ms = clock_ms(clock_now() - start);
    lane_begin_pass(lane, batch, part);
    ret->status = lane_run(lane, part.count, &ret->forward_ms, &ret->failure);
    lane_end_pass(lane);
    ret->ended = lane->ended;
}

/* Runs one sub-batch, or uses the outcome `ran`. Answers it, unless it must be split or the device
 * has failed. *has_probed becomes true when the device is probed, which happens once per batch. */
static enum sub_batch_end run_sub_batch(struct lane *lane, const struct batch *batch,
                                        struct image_range part, const struct outcome *ran,
                                        bool is_retry, bool is_last, bool *has_probed)
{
    struct outcome outcome;
    if (ran)
        outcome = *ran;
    else
        lane_attempt(lane, batch, part, is_retry, &outcome);
    enum status status = outcome.status;
    if (status == STATUS_DEVICE && !*has_probed) {
        *has_probed = true;
        if (!lane_device_is_well(lane))
            return SUB_BATCH_DEVICE;
    }
    bool may_recover = status != STATUS_CANCELLED &&
                       (part.count > 1 || (!is_retry && lane_padded_batch(lane, 1) > 1));
    if (status_lacks_memory(status))
        lower_cap(lane, part.count);
    if (status != STATUS_OK && may_recover) {
        metric_add(status_lacks_memory(status) ? lane->meters.memory_splits
                                               : lane->meters.failure_splits,
                   1);
        return SUB_BATCH_AGAIN;
    }
    /* The outputs are in other memory, so the batch's buffer is released before the answers. */
    if (is_last) {
        scheduler_release(lane->scheduler, batch);
        if (lane->inflight_count == 0)
            lane_end_turn(lane);
    }
    lane_answer_images(lane, batch, part, &outcome);
    return SUB_BATCH_ANSWERED;
}

int lane_batch_cap(struct lane *lane)
{
    int cap = batch_cap_now(&lane->cap, clock_now());
    metric_set(lane->meters.batch_cap, cap);
    return cap;
}

int lane_run_sub_batches(struct lane *lane, const struct batch *batch, const struct outcome *ran)
{
    struct image_range parts[MAX_SUB_BATCHES] = {{0, batch->count}};
    int count = 1;
    bool is_retry = false, has_probed = false;
    while (count > 0) {
        struct image_range part = parts[--count];
        int cap = lane_batch_cap(lane);
        bool too_large = part.count > cap || (is_retry && is_awkward(lane, part.count));
        if (!too_large || ran) {
            enum sub_batch_end end =
                run_sub_batch(lane, batch, part, ran, is_retry, count == 0, &has_probed);
            ran = NULL;
            if (end == SUB_BATCH_DEVICE)
                return part.first;
            if (end == SUB_BATCH_ANSWERED)
                continue;
            is_retry = true;
        }
        if (part.count == 1) { /* run it again, padded with zeros */
            parts[count++] = part;
            continue;
        }
        int fewer = smaller_batch(lane, part.count);
        if (fewer > cap)
            fewer = smaller_batch(lane, cap + 1);
        assert(count + 2 <= MAX_SUB_BATCHES);
        parts[count++] = (struct image_range){part.first + fewer, part.count - fewer};
        parts[count++] = (struct image_range){part.first, fewer};
    }
    return batch->count;
}
