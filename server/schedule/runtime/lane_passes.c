/* Runs a batch, splits it down to the images that fail, and makes the images' answers. */
#include "server/schedule/runtime/lane.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "models/tasks/tensor_copy.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/image_answer.h"

/* The most parts of a batch that wait at a time. After each split a part of the next smaller
 * compiled size runs, and the rest waits. A part below the smallest compiled size is halved, at
 * most eight times (256 images). */
#define MAX_SUB_BATCHES (SESSION_MAX_BATCHES + 10)

/* The images of a batch that run in one forward pass: all, or a sub-batch. */
struct image_range {
    int first, count;
};

/* True if a pass failed because of its requests, not its model or device: an operator refused a
 * value in a client's tensor, or the memory for the tensors of one run was short. */
static bool is_refusal(const struct lane_pass *pass)
{
    const enum status status = pass->status;
    if (status == STATUS_SHORT_OF_MEMORY)
        return true;
    if (status != STATUS_INVALID && status != STATUS_SHAPE && status != STATUS_MODEL &&
        status != STATUS_UNSUPPORTED)
        return false;
    for (int i = 0; i < pass->batch.count; i++) {
        const struct predict_image *image = pass->batch.items[i]->owner;
        if (!image->request->tensors)
            return false;
    }
    return true;
}

/* Counts and logs a pass that has used the device for `took` nanoseconds. */
static void note_pass(struct lane *lane, struct lane_pass *pass, int64_t took)
{
    const int count = pass->batch.count;
    metric_observe(lane->meters.batch_size, count);
    lane->turn_used += took;
    metric_add(lane->meters.device_seconds, (double)took * 1e-9);
    metric_add(lane->deployment->meters.triton.exec_count, 1);
    if (pass->status == STATUS_OK)
        scheduler_ran(lane->scheduler, lane->index, count, took);
    if (pass->status == STATUS_OK || pass->status == STATUS_CANCELLED)
        return;
    if (is_refusal(pass)) {
        if (pass->status != STATUS_SHORT_OF_MEMORY)
            pass->status = pass->error.status = STATUS_INVALID;
        log_event(LOG_DEBUG, "forward pass refused", LOG_STR("model", lane->model->name),
                  LOG_INT("batch", count), LOG_STR("error", pass->error.message));
        return;
    }
    metric_add(lane->meters.forward_failures, 1);
    log_event(LOG_WARN, "forward pass failed", LOG_STR("model", lane->model->name),
              LOG_STR("device", DEVICE_STRING(lane->info.device)), LOG_INT("batch", count),
              LOG_STR("error", pass->error.message));
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
    if (lane->scheduler->cut)
        return true;
    if (!lane->running)
        return false;
    const int64_t now = clock_now();
    for (int i = 0; i < lane->running->count; i++)
        if (is_waited_for(lane->running->items[i]->owner, now))
            return false;
    return true;
}

/* Marks the outputs that a batch's images need. */
static void mark_wanted(struct lane *lane, const struct batch *batch)
{
    const struct deployment *deployment = lane->deployment;
    bool *wanted = lane->wanted;
    memset(wanted, 0, deployment->output_count * sizeof *wanted);
    for (int i = 0; i < batch->count; i++) {
        const struct predict_request *request =
            ((const struct predict_image *)batch->items[i]->owner)->request;
        if (!request->raw_outputs) {
            wanted[deployment->output] = true;
            for (size_t k = 0; k < deployment->model->task.output_count; k++)
                wanted[deployment->model->task.outputs[k]] = true;
            continue;
        }
        for (size_t k = 0; k < deployment->output_count; k++)
            wanted[k] = wanted[k] || !request->wanted_outputs || request->wanted_outputs[k];
    }
}

/* Copies the inputs of a retry to `retry_rows`. The padding of a retry must be zeros: other images
 * or old data in the slots after its images may have caused the failure. */
static void pad_inputs(struct lane *lane, int padded, const void **inputs,
                       struct session_request *run)
{
    const size_t count = (size_t)run->batch, more = (size_t)padded - count;
    for (size_t k = 0; k < lane->info.input_count; k++) {
        const size_t each = lane->retry_layout.row_bytes[k];
        char *retry = batch_layout_row(&lane->retry_layout, lane->retry_rows, k, 0);
        memcpy(retry, inputs[k], count * each);
        memset(retry + count * each, 0, more * each);
        inputs[k] = retry;
    }
    if (run->are_pixels) {
        memcpy(lane->retry_marks, run->are_pixels, count);
        memset(lane->retry_marks + count, 0, more);
        run->are_pixels = lane->retry_marks;
    }
    run->valid_rows = padded;
}

/* True if each stream will have an image, of this batch of `images` or of another batch. With fewer
 * images some threads would be idle. */
static bool fills_streams(struct lane *lane, int images)
{
    return images >= lane->info.streams ||
           (!device_turn_is_contended(&lane->turn) && scheduler_fills_lanes(lane->scheduler));
}

void lane_submit(struct lane *lane, struct lane_pass *pass, bool is_retry)
{
    const struct batch *batch = &pass->batch;
    const int padded = session_batch_for(lane->session, batch->count);
    const uint8_t *marks = scheduler_pixel_marks(lane->scheduler, batch->buffer);
    for (size_t k = 0; k < lane->info.input_count; k++)
        pass->inputs[k] = scheduler_row(lane->scheduler, batch->buffer, k, batch->first);
    mark_wanted(lane, batch);
    struct session_request run = {.batch = batch->count,
                                  .inputs = pass->inputs,
                                  .are_pixels = marks ? marks + batch->first : NULL,
                                  .valid_rows = batch->count,
                                  .wanted = lane->wanted,
                                  .in_streams =
                                      lane->info.streams && fills_streams(lane, batch->count)};
    if (is_retry && padded != batch->count)
        pad_inputs(lane, padded, pass->inputs, &run);
    pass->status = session_submit(lane->session, &run, &pass->error);
    pass->is_submitted = pass->status == STATUS_OK;
    pass->copy_in_ms = clock_ms(clock_now() - pass->begun);
}

void lane_collect(struct lane *lane, struct lane_pass *pass)
{
    lane->running = &pass->batch;
    lane->stuck_at = lane_stuck_time(lane, &pass->batch);
    if (pass->is_submitted)
        pass->status = session_collect(lane->session, lane->outputs, &pass->error);
    const int64_t begun = pass->begun > lane->ended ? pass->begun : lane->ended;
    lane->ended = pass->ended = clock_now();
    pass->has_ended = true;
    pass->forward_ms = clock_ms(pass->ended - (lane->info.streams ? pass->begun : begun));
    note_pass(lane, pass, pass->ended - begun);
    lane->running = NULL;
    lane->stuck_at = 0;
}

/* Sets the image's predictions: the best classes. */
static enum status find_classes(struct lane *lane, int batch, int row, struct predict_image *image)
{
    const float *scores;
    size_t count;
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

/* Makes the image's answer, or copies its raw outputs, from row `row` of a run. */
static enum status take_outputs(struct lane *lane, int batch, int row, struct predict_image *image)
{
    if (image->request->raw_outputs)
        return tensor_copy_out(lane->outputs, lane->deployment->output_count,
                               image->request->wanted_outputs, batch, row, &lane->budget->run,
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
                        &lane->budget->run, &image->outputs, &image->error) != STATUS_OK)
        return false;
    image->since = ended;
    if (scheduler_defer(lane->scheduler, image))
        return true;
    tensor_copies_free(image->outputs, lane->deployment->output_count);
    image->outputs = NULL;
    return false;
}

/* Answers an image from row `row` of a pass, or fails it. */
static void answer_image(struct lane *lane, struct predict_image *image, int row,
                         const struct lane_pass *pass)
{
    struct meters *meters = &lane->deployment->meters;
    const bool is_good = pass->status == STATUS_OK;
    image->times.batch = pass->batch.count;
    image->times.device = lane->info.device;
    image->times.forward_ms = pass->forward_ms;
    metric_observe(meters->phases[PHASE_QUEUE], image->times.queue_ms * 1e-3);
    metric_observe(lane->meters.forward, pass->forward_ms * 1e-3);
    if (is_good && is_waited_for(image, pass->ended)) {
        if (defer_answer(lane, image->times.batch, row, image, pass->ended))
            return;
        image->status = take_outputs(lane, image->times.batch, row, image);
        if (image->status == STATUS_OK && image->answer.detections.count)
            metric_add(meters->detections, (double)image->answer.detections.count);
    } else if (is_good || pass->status == STATUS_CANCELLED) {
        /* Fails an image that no client waits for. If no client waits for any image of the run, the
         * run stops. Each image fails for its own reason, such as a deadline. */
        image->status = scheduler_check_wanted(lane->scheduler, image, &image->error);
    } else {
        image->status = pass->status;
        image->error = pass->error;
    }
    image->times.output_ms = clock_ms(clock_now() - pass->ended);
    metric_observe(lane->meters.copy_in, pass->copy_in_ms * 1e-3);
    metric_observe(lane->meters.copy_out, image->times.output_ms * 1e-3);
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
    int padded = session_batch_for(lane->session, count);
    batch_cap_lower(&lane->cap, padded > 1 ? smaller_batch(lane, padded) : 1, clock_now());
    metric_set(lane->meters.batch_cap, lane->cap.cap);
    log_event(LOG_WARN, "batches made smaller: out of memory", LOG_STR("model", lane->model->name),
              LOG_STR("device", DEVICE_STRING(lane->info.device)), LOG_INT("batch", padded),
              LOG_INT("cap", lane->cap.cap));
}

/* True if a retry of `count` images needs padding and does not fit into `retry_rows`. */
static bool is_awkward(const struct lane *lane, int count)
{
    return session_batch_for(lane->session, count) != count &&
           count > session_batch_for(lane->session, 1);
}

/* The milliseconds to prepare the slowest image. */
static double slowest_input(const struct batch *batch)
{
    double slowest = 0;
    for (int i = 0; i < batch->count; i++) {
        const struct predict_image *image = batch->items[i]->owner;
        double ms = image->times.decode_ms + image->times.preprocess_ms;
        slowest = ms > slowest ? ms : slowest;
    }
    return slowest;
}

void lane_answer_images(struct lane *lane, const struct lane_pass *pass)
{
    const struct batch *batch = &pass->batch;
    bool good = pass->status == STATUS_OK;
    if (good)
        deployment_note_run(lane->deployment, batch->count, slowest_input(batch), pass->forward_ms);
    for (int i = 0; i < batch->count; i++)
        answer_image(lane, batch->items[i]->owner, i, pass);
    session_drop_outputs(lane->session);
    if (good)
        deployment_note_output(lane->deployment, batch->count, clock_ms(clock_now() - pass->ended));
}

void lane_end_turn(struct lane *lane)
{
    device_turn_end(&lane->turn, lane->turn_used, scheduler_has_ready(lane->scheduler));
    lane->turn_used = 0;
}

/* What to do after a sub-batch: nothing, because it is answered; split it or run it again; or give
 * up the device. */
enum sub_batch_end { SUB_BATCH_ANSWERED, SUB_BATCH_AGAIN, SUB_BATCH_DEVICE };

/* Runs the images `part` of `whole` and answers them, unless they must be split or the device has
 * failed. With `has_run` their pass has already ended, and `whole` is that pass. *has_probed
 * becomes true when the device is probed, which happens once per batch. */
static enum sub_batch_end run_sub_batch(struct lane *lane, const struct lane_pass *whole,
                                        struct image_range part, bool has_run, bool is_retry,
                                        bool is_last, bool *has_probed)
{
    struct lane_pass pass = *whole;
    if (!has_run) {
        pass.batch.first += part.first;
        pass.batch.count = part.count;
        memcpy(pass.batch.items, whole->batch.items + part.first,
               (size_t)part.count * sizeof *pass.batch.items);
        pass.begun = clock_now();
        lane_submit(lane, &pass, is_retry);
        lane_collect(lane, &pass);
    }
    const enum status status = pass.status;
    if (status == STATUS_DEVICE && !*has_probed) {
        *has_probed = true;
        if (!lane_device_is_well(lane))
            return SUB_BATCH_DEVICE;
    }
    bool may_recover = status != STATUS_CANCELLED &&
                       (part.count > 1 || (!is_retry && session_batch_for(lane->session, 1) > 1));
    if (status_lacks_memory(status))
        lower_cap(lane, part.count);
    if (status != STATUS_OK && may_recover) {
        metric_add(status_lacks_memory(status) ? lane->meters.memory_splits
                                               : lane->meters.failure_splits,
                   1);
        return SUB_BATCH_AGAIN;
    }
    /* The outputs are not in the batch's buffer, so release the buffer before the answers. */
    if (is_last) {
        scheduler_release(lane->scheduler, &whole->batch, false);
        if (lane->inflight_count == 0)
            lane_end_turn(lane);
    }
    lane_answer_images(lane, &pass);
    return SUB_BATCH_ANSWERED;
}

int lane_batch_cap(struct lane *lane)
{
    int cap = batch_cap_now(&lane->cap, clock_now());
    metric_set(lane->meters.batch_cap, cap);
    return cap;
}

int lane_run_sub_batches(struct lane *lane, const struct lane_pass *pass)
{
    struct image_range parts[MAX_SUB_BATCHES] = {{0, pass->batch.count}};
    int count = 1;
    bool has_run = pass->has_ended, is_retry = false, has_probed = false;
    while (count > 0) {
        struct image_range part = parts[--count];
        int cap = lane_batch_cap(lane);
        bool too_large = part.count > cap || (is_retry && is_awkward(lane, part.count));
        if (!too_large || has_run) {
            enum sub_batch_end end =
                run_sub_batch(lane, pass, part, has_run, is_retry, count == 0, &has_probed);
            has_run = false;
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
    return pass->batch.count;
}
