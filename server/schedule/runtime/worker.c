/* Prepares one image: claims it, decodes it, writes it into its slot and commits it. A worker owns
 * the image from claim to end_claim or finish. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "models/tasks/tensor_copy.h"
#include "server/image/transform.h"
#include "server/schedule/runtime/image_answer.h"
#include "server/schedule/runtime/model_table.h"
#include "server/schedule/runtime/scheduler.h"

#define SMALL_PICTURE ((size_t)48 << 20)

struct worker {
    struct model_host *host;
    struct image_decoder *decoder;
    struct transform *transform;
    struct image_memory memory;
    const struct predict_image *image; /* the image that is being decoded */
};

static enum status take_memory(void *context, size_t bytes, struct error *err)
{
    struct worker *worker = context;
    for (;;) {
        const enum status status = budget_take_picture(&worker->host->budget, bytes, err);
        if (status != STATUS_TIMEOUT)
            return status;
        TRY(scheduler_check_wanted(worker->image->request->deployment->scheduler, worker->image,
                                   err));
    }
}

static void give_memory(void *context, size_t bytes)
{
    const struct worker *worker = context;
    budget_give_picture(&worker->host->budget, bytes);
}

/* Photos up to this size are decoded without asking the budget. All workers together use at most an
 * eighth of the memory for such photos, and a worker at most SMALL_PICTURE. */
static size_t small_picture(int workers)
{
    uint64_t total, available;
    cpu_memory(&total, &available);
    const size_t share = (size_t)(total / 8 / (uint64_t)workers);
    return share < SMALL_PICTURE ? share : SMALL_PICTURE;
}

static void worker_stop(void *state)
{
    struct worker *worker = state;
    transform_free(worker->transform);
    image_decoder_free(worker->decoder);
    free(worker);
}

static void *worker_start(void *host)
{
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->host = host;
    worker->memory = (struct image_memory){.small = small_picture(worker->host->options.workers),
                                           .take = take_memory,
                                           .give = give_memory,
                                           .context = worker};
    worker->decoder = image_decoder_create(&worker->memory);
    worker->transform = transform_create();
    if (!worker->decoder || !worker->transform) {
        worker_stop(worker);
        return NULL;
    }
    return worker;
}

/* Frees this worker's buffers. If no worker has work, also returns malloc()'s free memory to the
 * system. */
static void worker_rest(void *state, bool is_last)
{
    struct worker *worker = state;
    image_decoder_done(worker->decoder, true);
    if (is_last)
        malloc_trim(0);
}

/* Ends a phase of the image: returns the phase's milliseconds and begins the next phase. */
static double end_phase(struct scheduler *scheduler, struct predict_image *image, enum phase phase)
{
    int64_t now = clock_now();
    int64_t spent = now - image->since;
    image->since = now;
    if (phase != PHASE_QUEUE) /* lane_passes.c records the queue phase with the wait for the lane */
        metric_observe(scheduler->deployment->meters.phases[phase], (double)spent * 1e-9);
    return clock_ms(spent);
}

/* Ends an image's wait in the queue. */
static enum status worker_begin(struct scheduler *scheduler, struct predict_image *image)
{
    image->times.queue_ms = end_phase(scheduler, image, PHASE_QUEUE);
    image->times.decode_start = image->since;
    return scheduler_check_wanted(scheduler, image, &image->error);
}

/* Decodes a photo to *ret, whose pixels belong to the decoder or the request. */
static enum status worker_decode(struct worker *worker, struct scheduler *scheduler,
                                 struct predict_image *image, struct image *ret)
{
    struct error *err = &image->error;
    TRY(worker_begin(scheduler, image));
    const struct model_host_options *options = &worker->host->options;
    const struct preprocess *preprocess = &scheduler->deployment->model->preprocess;
    worker->image = image;
    const bool is_whole = image->request->decode_only;
    enum status status = STATUS_OK;
    if (image->pixels)
        *ret = *image->pixels;
    else
        status = image_decode(worker->decoder, image->data, image->size, &options->limits,
                              is_whole ? NULL : preprocess, options->fast_decode, ret, err);
    image->times.decode_ms = end_phase(scheduler, image, PHASE_DECODE);
    TRY(status);
    image->width = ret->info.width;
    image->height = ret->info.height;
    return scheduler_check_wanted(scheduler, image, err);
}

/* Copies the pixels of a photo with decode_only, because they must outlive the decoder's buffer. */
static enum status worker_keep_photo(struct predict_image *image, const struct image *pixels)
{
    const size_t row = (size_t)pixels->width * 3;
    image->photo = alloc_array(pixels->height, row);
    TRY(check_memory(image->photo, "for the pixels of a photo", &image->error));
    for (size_t y = 0; y < pixels->height; y++)
        memcpy(image->photo + y * row, pixels->pixels + y * pixels->stride, row);
    return STATUS_OK;
}

static void worker_write_row(struct scheduler *scheduler, const struct predict_image *image,
                             struct batch_slot slot)
{
    const struct deployment *deployment = scheduler->deployment;
    size_t row = (size_t)(image - image->request->images);
    for (size_t i = 0; i < deployment->input_count; i++) {
        const char *rows = image->request->tensors[i];
        tensor_copy_in(&deployment->inputs[i], i == deployment->image_input,
                       deployment->model->input_channels_last,
                       rows + row * deployment->inputs[i].bytes,
                       scheduler_row(scheduler, slot.buffer, i, slot.slot));
    }
}

/* Writes the image's row of every input into its slot. */
static enum status worker_write_slot(struct worker *worker, struct scheduler *scheduler,
                                     struct predict_image *image, const struct image *pixels,
                                     struct batch_slot slot)
{
    uint8_t *marks = scheduler_pixel_marks(scheduler, slot.buffer);
    if (marks)
        marks[slot.slot] = !image->request->tensors;
    if (image->request->tensors) {
        worker_write_row(scheduler, image, slot);
        return STATUS_OK;
    }
    const struct deployment *deployment = scheduler->deployment;
    const struct preprocess *preprocess = &deployment->model->preprocess;
    for (size_t i = 0; i < deployment->input_count; i++)
        if (i != deployment->image_input)
            memcpy(scheduler_row(scheduler, slot.buffer, i, slot.slot),
                   image->request->words->rows[i], deployment->inputs[i].bytes);
    void *row = scheduler_row(scheduler, slot.buffer, deployment->image_input, slot.slot);
    return marks ? transform_bytes(worker->transform, pixels, preprocess, row, &image->error)
                 : transform_numbers(worker->transform, pixels, preprocess, row, &image->error);
}

static void worker_prepare(struct worker *worker, struct scheduler *scheduler,
                           struct predict_image *image)
{
    const bool is_large = image->entry.is_large; /* the image may be freed before the end */
    struct image pixels = {0};
    struct batch_slot slot;
    bool has_slot = false;
    image->status = image->request->tensors ? worker_begin(scheduler, image)
                                            : worker_decode(worker, scheduler, image, &pixels);
    if (image->status == STATUS_OK && image->request->decode_only) {
        image->status = worker_keep_photo(image, &pixels);
    } else if (image->status == STATUS_OK) {
        has_slot = scheduler_reserve(scheduler, image, &slot);
        image->status = has_slot ? worker_write_slot(worker, scheduler, image, &pixels, slot)
                                 : scheduler_cut_error(&image->error);
    }
    image_decoder_done(worker->decoder, false);
    if (has_slot)
        image->times.preprocess_ms = end_phase(scheduler, image, PHASE_PREPROCESS);
    const bool is_written = has_slot && image->status == STATUS_OK;
    if (!is_written)
        scheduler_finish(scheduler, image);
    scheduler_end_claim(scheduler, has_slot ? &slot : NULL, is_written, is_large);
}

/* Makes the answer of a deferred image (scheduler_defer()). */
static void worker_answer(struct scheduler *scheduler, struct predict_image *image)
{
    struct task_buffer buffers[TASK_MAX_OUTPUTS] = {{0}};
    image->status =
        image_answer_of(scheduler->deployment->model, (const struct tensor *const *)image->outputs,
                        1, 0, buffers, image);
    for (size_t i = 0; i < TASK_MAX_OUTPUTS; i++)
        task_buffer_done(&buffers[i]);
    tensor_copies_free(image->outputs, scheduler->deployment->output_count);
    image->outputs = NULL;
    image->times.output_ms = clock_ms(clock_now() - image->since);
    scheduler_finish(scheduler, image);
    scheduler_end_deferred(scheduler);
}

static bool worker_run(void *state, struct pool_source *source)
{
    struct worker *worker = state;
    struct scheduler *scheduler = (struct scheduler *)source;
    struct predict_image *image = scheduler_take_deferred(scheduler);
    if (image) {
        worker_answer(scheduler, image);
        return true;
    }
    if (!scheduler_claim(scheduler, &image))
        return false;
    if (image)
        worker_prepare(worker, scheduler, image);
    return true;
}

enum status worker_create_pool(struct model_host *host, struct error *err)
{
    return pool_create(&(struct pool_options){.threads = host->options.workers,
                                              .start = worker_start,
                                              .begin = host->options.worker_begin,
                                              .run = worker_run,
                                              .rest = worker_rest,
                                              .stop = worker_stop,
                                              .context = host},
                       &host->pool, err);
}
