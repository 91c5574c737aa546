/* Adds a lock and memory to a model's batcher, and connects it to clients, workers and lanes.
 *
 * Locks: `lock` guards the batcher and the flags below it in the struct. It is never held together
 * with another lock (tickets are offered to the pool, and threads woken, after it is released),
 * except in session_run_has_ended(), nor during a decode, a forward pass, a copy or a callback.
 * Buffers' memory has no lock: a slot belongs to the worker between reserve and end_claim; the
 * slots of a batch (and those for its padding) belong to the lane between next_batch and release.
 * The lock in these calls orders the accesses. An image in the queue belongs to the scheduler, and
 * then to the thread that takes it out under the lock: a worker (claim), or a thread that cancels
 * the request, calls scheduler_cut() or quarantines the last lane. */
#include "server/schedule/runtime/scheduler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "server/schedule/runtime/lane.h"

/* Allocates the memory of `count` buffers. */
static enum status allocate_buffers(struct scheduler *scheduler, int count, bool takes_pixels,
                                    struct error *err)
{
    const struct batch_layout *layout = &scheduler->layout;
    size_t all;
    uint64_t total, available;
    cpu_memory(&total, &available);
    if (!size_mul(layout->bytes, (size_t)count, &all) || all > available)
        return error_set(err, STATUS_NO_MEMORY,
                         "%d batch buffers of %zu bytes (%zu images each) do not fit into the "
                         "%" PRIu64 " bytes of memory that are free; choose a smaller --max-batch",
                         count, layout->bytes, layout->rows, available);
    if (takes_pixels) {
        scheduler->marks = alloc_array(layout->rows * (size_t)count, 1);
        TRY(check_memory(scheduler->marks, "for a scheduler", err));
    }
    /* The buffers are zeroed, so padding is finite before the first image is written there. */
    return session_buffer_create(scheduler->device, all, &scheduler->buffers, err) == STATUS_OK
               ? STATUS_OK
               : error_prefix(err, "%d batch buffers of %zu bytes (a smaller --max-batch helps)",
                              count, layout->bytes);
}

/* Allocates the buffers and the batcher for the lanes of the deployment. */
static enum status prepare_lanes(struct scheduler *scheduler, int workers, struct error *err)
{
    const struct deployment *deployment = scheduler->deployment;
    const int lanes = (int)deployment->lane_count, max_batch = deployment->max_batch;
    int padded_batch = 1, depth = 1;
    bool takes_pixels = true;
    scheduler->device = deployment->lanes[0]->info.device;
    for (int i = 0; i < lanes; i++) {
        const struct session_info *info = &deployment->lanes[i]->info;
        const int padded = session_batch_for(deployment->lanes[i]->session, max_batch);
        padded_batch = padded > padded_batch ? padded : padded_batch;
        depth = info->depth > depth ? info->depth : depth;
        takes_pixels = takes_pixels && info->takes_pixels;
        if (scheduler->device.kind == DEVICE_CPU)
            scheduler->device = info->device;
    }
    /* As many buffers as the batcher needs, and so many that every worker can hold a ticket while
     * all lanes run and one buffer waits, for any batch size. */
    const int buffers = lanes * depth + 1 + (workers + max_batch - 1) / max_batch;
    TRY(batch_layout_init(deployment->lanes[0]->session, (size_t)padded_batch, &scheduler->layout,
                          err));
    TRY(allocate_buffers(scheduler, buffers, takes_pixels, err));
    scheduler->batcher = batcher_create(
        &(struct batcher_config){.max_batch = max_batch,
                                 .capacity = padded_batch,
                                 .buffers = buffers,
                                 .lanes = lanes,
                                 .depth = depth,
                                 .workers = workers,
                                 .larges = workers,
                                 .max_images = admission_capacity(&scheduler->admission)});
    if (!scheduler->batcher)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a queue of %zu images",
                         scheduler->admission.max_images);
    for (int i = 0; i < lanes; i++) {
        const struct session_info *info = &deployment->lanes[i]->info;
        struct latency *latency = batcher_latency(scheduler->batcher, i);
        latency_init(latency, info->batches, info->batch_count);
        latency->streams = info->streams;
    }
    return STATUS_OK;
}

enum status scheduler_create(struct deployment *deployment,
                             const struct model_host_options *options, struct pool *pool,
                             struct scheduler **ret, struct error *err)
{
    const struct model *model = deployment->model;
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    TRY(check_memory(scheduler, "for a scheduler", err));
    *ret = scheduler;
    scheduler->deployment = deployment;
    scheduler->pool = pool;
    scheduler->admission = (struct admission){.max_images = options->max_queue,
                                              .max_bytes = options->max_queue_bytes,
                                              .max_wait_ns = options->max_queue_ms * NS_PER_MS};
    scheduler->accepting = true;
    scheduler->workers = (size_t)options->workers;
    STAILQ_INIT(&scheduler->deferred_images);
    pthread_mutex_init(&scheduler->lock, NULL);
    condition_init(&scheduler->lane_ready);
    condition_init(&scheduler->quarantine_event);
    condition_init(&scheduler->all_answered);
    meters_init(&deployment->meters, options->metrics, model->name, model->version,
                task_has_boxes(model->task.kind));
    return prepare_lanes(scheduler, options->workers, err);
}

void scheduler_free(struct scheduler *scheduler)
{
    if (!scheduler)
        return;
    session_buffer_free(scheduler->device, scheduler->buffers);
    free(scheduler->marks);
    batch_layout_done(&scheduler->layout);
    batcher_free(scheduler->batcher);
    pthread_cond_destroy(&scheduler->all_answered);
    pthread_cond_destroy(&scheduler->lane_ready);
    pthread_cond_destroy(&scheduler->quarantine_event);
    pthread_mutex_destroy(&scheduler->lock);
    free(scheduler);
}

void scheduler_ran(struct scheduler *scheduler, int lane, int images, int64_t ns)
{
    LOCK(&scheduler->lock);
    latency_observe(batcher_latency(scheduler->batcher, lane), images, ns);
}

int64_t scheduler_latency(struct scheduler *scheduler, int lane, int images)
{
    LOCK(&scheduler->lock);
    return latency_run(batcher_latency(scheduler->batcher, lane), images);
}

struct batcher_counts scheduler_counts(struct scheduler *scheduler, int64_t *ret_still_ns)
{
    LOCK(&scheduler->lock);
    const struct batcher_counts counts = batcher_counts(scheduler->batcher);
    *ret_still_ns = counts.admitted ? clock_now() - scheduler->progressed : 0;
    return counts;
}

static void answered_locked(struct scheduler *scheduler, size_t images)
{
    batcher_answered(scheduler->batcher, images);
    scheduler->progressed = clock_now();
}

static bool is_answered_locked(const struct scheduler *scheduler)
{
    return batcher_counts(scheduler->batcher).admitted == 0 && scheduler->deferred == 0;
}

/* Ends a locked section that has changed the batcher: unlocks, offers tickets to the pool, and
 * wakes lanes and scheduler_wait_answered(). */
static void dispatch_and_unlock(struct scheduler *scheduler)
{
    struct batcher *batcher = scheduler->batcher;
    size_t tickets = batcher_grant(batcher);
    struct batcher_counts counts = batcher_counts(batcher);
    bool wake_lane = (scheduler->lanes_asleep + scheduler->lanes_waiting_beside > 0 &&
                      batcher_has_ready(batcher)) ||
                     (scheduler->lanes_waiting_ahead > 0 && counts.buffers[BUFFER_CLOSED] > 0) ||
                     batcher_can_take(batcher);
    bool wake_quarantined = scheduler->is_lost;
    bool answered = is_answered_locked(scheduler) && !scheduler->accepting;
    atomic_store_explicit(&scheduler->has_large, counts.large > 0, memory_order_relaxed);
    metric_set(scheduler->deployment->meters.queue_images, (double)counts.queued);
    metric_set(scheduler->deployment->meters.triton.pending,
               (double)(counts.admitted - counts.running));
    metric_set(scheduler->deployment->meters.in_flight_images,
               (double)(counts.admitted - counts.queued));
    pthread_mutex_unlock(&scheduler->lock);
    /* Broadcast, because a signal could wake a lane that cannot take the batch. */
    if (wake_lane)
        pthread_cond_broadcast(&scheduler->lane_ready);
    if (wake_quarantined)
        pthread_cond_broadcast(&scheduler->quarantine_event);
    if (answered)
        pthread_cond_broadcast(&scheduler->all_answered);
    pool_offer(scheduler->pool, &scheduler->source, tickets);
}

void predict_request_unpin(struct predict_request *request)
{
    /* acq_rel: on_done sees the writes of other threads to their images. */
    if (atomic_fetch_sub_explicit(&request->pending, 1, memory_order_acq_rel) != 1)
        return;
    /* A request without a deployment has only waited for a load. A request that only decodes a
     * photo is not counted, but the request that predicts from the photo's pixels is. */
    if (request->deployment && (!request->decode_only || !request->images[0].photo))
        deployment_note_request(request->deployment, request);
    request->on_done(request);
}

void scheduler_finish(struct scheduler *scheduler, struct predict_image *image)
{
    if (!image->photo)
        meters_image(&scheduler->deployment->meters, image->status);
    if (image->status == STATUS_OK && !image->photo)
        meters_prediction(&scheduler->deployment->meters, image->entry.predicted,
                          clock_now() - image->entry.admitted);
    predict_request_unpin(image->request);
}

/* --- admission, cancellation, deadlines --- */

/* Sets *err to the reason why no lane works, and returns its status. */
static enum status lost_error_locked(const struct scheduler *scheduler, struct error *err)
{
    return error_set(err, STATUS_DEVICE,
                     "no device of model '%s' works: %s; lensd tries them again from time to time",
                     scheduler->deployment->model->name, scheduler->quarantine_reason);
}

static enum status check_locked(struct scheduler *scheduler, const struct predict_request *request,
                                size_t images, size_t bytes, int64_t *ret_predicted,
                                struct error *err)
{
    int64_t now = clock_now();
    if (!scheduler->accepting) {
        return error_set(err, STATUS_DRAINING,
                         "the server is shutting down; send the request to another one");
    }
    if (scheduler->is_lost) {
        return lost_error_locked(scheduler, err);
    }
    if (images == 0)
        return STATUS_OK;
    struct model_load load;
    const struct admission_request asked = {.images = images,
                                            .bytes = bytes,
                                            .time_left = request->deadline ? request->deadline - now
                                                                           : INT64_MAX,
                                            .kind = request->admission,
                                            .model = scheduler->deployment->model->name};
    batcher_load(scheduler->batcher, request->client, request->priority, now, &load);
    return admission_check(&scheduler->admission, &load, &asked, ret_predicted, err);
}

enum status scheduler_would_admit(struct scheduler *scheduler,
                                  const struct predict_request *request, size_t images,
                                  size_t bytes, struct error *err)
{
    LOCK(&scheduler->lock);
    return check_locked(scheduler, request, images, bytes, NULL, err);
}

/* Admits all images of a request that have no error yet (predict_image.preset), or none of them. */
static enum status admit(struct scheduler *scheduler, struct predict_request *request,
                         size_t images, size_t bytes, struct error *err)
{
    int64_t predicted = 0, now = clock_now();
    pthread_mutex_lock(&scheduler->lock);
    enum status status = check_locked(scheduler, request, images, bytes, &predicted, err);
    if (status == STATUS_OK) {
        if (batcher_counts(scheduler->batcher).admitted == 0)
            scheduler->progressed = now;
        request->used_model = scheduler->deployment->model;
        request->write_seconds = scheduler->deployment->meters.phases[PHASE_WRITE];
        /* The 1 is for scheduler_submit(): it keeps the request alive until the images with an
         * error are counted. `pending` is set only after admission, because a value above 0 lets
         * other threads pin the request. */
        atomic_store(&request->pending, images + 1);
    }
    for (size_t i = 0; status == STATUS_OK && i < request->image_count; i++)
        if (request->images[i].preset.status == STATUS_OK)
            batcher_admit(scheduler->batcher, &request->images[i].entry, predicted, now);
    dispatch_and_unlock(scheduler);
    return status;
}

/* The bytes of a row of a raw-tensor request; 0 for photos. */
static size_t row_bytes(const struct scheduler *scheduler, const struct predict_request *request)
{
    const struct deployment *deployment = scheduler->deployment;
    size_t bytes = 0;
    for (size_t i = 0; request->tensors && i < deployment->input_count; i++)
        bytes = size_sum(bytes, deployment->inputs[i].bytes);
    return bytes;
}

enum status scheduler_submit(struct scheduler *scheduler, struct predict_request *request,
                             struct error *err)
{
    size_t images = 0, bytes = 0, row = row_bytes(scheduler, request);
    int64_t now = clock_now();
    for (size_t i = 0; i < request->image_count; i++) {
        struct predict_image *image = &request->images[i];
        size_t size = request->tensors ? row : image->size;
        image->request = request;
        image->since = now;
        image->entry = (struct batch_item){.owner = image,
                                           .client = request->client,
                                           .priority = request->priority,
                                           .bytes = size,
                                           .is_large = (!request->tensors || request->place) &&
                                                       image_is_large(image->data, image->size)};
        if (image->preset.status != STATUS_OK) {
            image->status = image->preset.status;
            image->error = image->preset;
            continue;
        }
        images++;
        bytes = size_sum(bytes, size);
    }
    enum status status = admit(scheduler, request, images, bytes, err);
    if (status != STATUS_OK) {
        meters_refusal(&scheduler->deployment->meters, status, request->image_count);
        return status;
    }
    metric_observe(scheduler->deployment->meters.phases[PHASE_READ],
                   (double)(now - request->started) * 1e-9);
    for (size_t i = 0; i < request->image_count; i++)
        if (request->images[i].preset.status != STATUS_OK)
            meters_image(&scheduler->deployment->meters, request->images[i].preset.status);
    /* The client hung up before the request could be pinned. */
    if (atomic_load(&request->cancelled))
        scheduler_cancel(scheduler, request);
    predict_request_unpin(request);
    return STATUS_OK;
}

bool predict_request_pin(struct predict_request *request)
{
    size_t pending = atomic_load(&request->pending);
    while (pending > 0)
        if (atomic_compare_exchange_weak_explicit(&request->pending, &pending, pending + 1,
                                                  memory_order_acq_rel, memory_order_acquire))
            return true;
    return false;
}

void scheduler_cancel(struct scheduler *scheduler, struct predict_request *request)
{
    for (size_t i = 0; i < request->image_count; i++) {
        struct predict_image *image = &request->images[i];
        if (image->preset.status != STATUS_OK)
            continue;
        pthread_mutex_lock(&scheduler->lock);
        /* This thread now owns the image: no other thread can claim it. */
        bool removed = batcher_remove(scheduler->batcher, &image->entry);
        if (removed)
            answered_locked(scheduler, 1);
        dispatch_and_unlock(scheduler);
        if (!removed)
            continue;
        image->status = error_set(&image->error, STATUS_CANCELLED, "the client has gone");
        scheduler_finish(scheduler, image);
    }
}

static enum status late_error(const struct predict_image *image, int64_t now, struct error *err)
{
    const struct predict_request *request = image->request;
    return error_set(err, STATUS_TIMEOUT,
                     "the image had no answer after %.0f ms, and none would come within the "
                     "request's time limit of %.0f ms; allow it more time, or send less at a time",
                     clock_ms(now - image->entry.admitted),
                     clock_ms(request->deadline - request->started));
}

enum status scheduler_check_wanted(struct scheduler *scheduler, const struct predict_image *image,
                                   struct error *err)
{
    const struct predict_request *request = image->request;
    if (scheduler->cut)
        return scheduler_cut_error(err);
    if (atomic_load_explicit(&request->cancelled, memory_order_relaxed))
        return error_set(err, STATUS_CANCELLED, "the client has gone");
    if (scheduler->is_lost) {
        LOCK(&scheduler->lock);
        return lost_error_locked(scheduler, err);
    }
    if (request->deadline == 0)
        return STATUS_OK;
    int64_t now = clock_now();
    LOCK(&scheduler->lock);
    return now + batcher_shortest_run(scheduler->batcher) < request->deadline
               ? STATUS_OK
               : late_error(image, now, err);
}

void scheduler_drop_unwanted(struct scheduler *scheduler, struct batch *batch)
{
    int kept = 0;
    for (int i = 0; i < batch->count; i++) {
        struct predict_image *image = batch->items[i]->owner;
        image->status = scheduler_check_wanted(scheduler, image, &image->error);
        if (image->status == STATUS_OK) {
            batch->slots[kept] = batch->slots[i];
            batch->items[kept++] = &image->entry;
            continue;
        }
        scheduler_finish(scheduler, image);
    }
    batch->count = kept;
}

/* --- decode workers --- */

struct predict_image *scheduler_take_deferred(struct scheduler *scheduler)
{
    if (!atomic_load_explicit(&scheduler->has_deferred, memory_order_relaxed) ||
        !pool_begin_long(scheduler->pool))
        return NULL;
    pthread_mutex_lock(&scheduler->lock);
    struct predict_image *image = STAILQ_FIRST(&scheduler->deferred_images);
    if (image)
        STAILQ_REMOVE_HEAD(&scheduler->deferred_images, deferred);
    atomic_store_explicit(&scheduler->has_deferred, !STAILQ_EMPTY(&scheduler->deferred_images),
                          memory_order_relaxed);
    pthread_mutex_unlock(&scheduler->lock);
    if (!image)
        pool_end_long(scheduler->pool);
    return image;
}

void scheduler_end_deferred(struct scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->deferred--;
    dispatch_and_unlock(scheduler);
    pool_end_long(scheduler->pool);
}

bool scheduler_claim(struct scheduler *scheduler, struct predict_image **ret)
{
    struct predict_image *image = NULL;
    const bool may_be_large = atomic_load_explicit(&scheduler->has_large, memory_order_relaxed) &&
                              pool_begin_long(scheduler->pool);
    pthread_mutex_lock(&scheduler->lock);
    /* If the batcher has granted no ticket, this ticket is for a deferred image, which cannot begin
     * yet. */
    const bool has_ticket = batcher_counts(scheduler->batcher).granted > 0;
    if (has_ticket)
        image = batcher_claim(scheduler->batcher, may_be_large, clock_now());
    const bool is_used =
        has_ticket && (image || may_be_large || !batcher_counts(scheduler->batcher).large);
    dispatch_and_unlock(scheduler);
    if (may_be_large && !(image && image->entry.is_large))
        pool_end_long(scheduler->pool);
    *ret = image;
    return is_used;
}

bool scheduler_reserve(struct scheduler *scheduler, struct predict_image *image,
                       struct batch_slot *ret)
{
    pthread_mutex_lock(&scheduler->lock);
    if (scheduler->cut) {
        pthread_mutex_unlock(&scheduler->lock);
        return false;
    }
    *ret = batcher_reserve(scheduler->batcher, &image->entry);
    dispatch_and_unlock(scheduler);
    return true;
}

void scheduler_end_claim(struct scheduler *scheduler, const struct batch_slot *slot,
                         bool is_written, bool is_large)
{
    pthread_mutex_lock(&scheduler->lock);
    if (is_written)
        batcher_commit(scheduler->batcher, *slot, clock_now());
    else if (slot)
        batcher_abandon(scheduler->batcher, *slot);
    else
        batcher_drop(scheduler->batcher);
    if (!is_written)
        answered_locked(scheduler, 1);
    if (is_large)
        batcher_end_large(scheduler->batcher);
    dispatch_and_unlock(scheduler);
    if (is_large)
        pool_end_long(scheduler->pool);
}

/* Removes the queued images and finishes them with this error. Takes the lock. */
static void empty_queue(struct scheduler *scheduler, const struct error *why)
{
    for (;;) {
        pthread_mutex_lock(&scheduler->lock);
        struct predict_image *image = batcher_pop(scheduler->batcher);
        pthread_mutex_unlock(&scheduler->lock);
        if (!image)
            return;
        image->status = why->status;
        image->error = *why;
        scheduler_finish(scheduler, image);
        scheduler_answered(scheduler, 1);
    }
}

bool scheduler_defer(struct scheduler *scheduler, struct predict_image *image)
{
    pthread_mutex_lock(&scheduler->lock);
    const bool may_defer = scheduler->deferred < scheduler->workers;
    if (may_defer) {
        STAILQ_INSERT_TAIL(&scheduler->deferred_images, image, deferred);
        scheduler->deferred++;
        atomic_store_explicit(&scheduler->has_deferred, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&scheduler->lock);
    if (may_defer)
        pool_offer(scheduler->pool, &scheduler->source, 1);
    return may_defer;
}

void scheduler_answered(struct scheduler *scheduler, size_t images)
{
    pthread_mutex_lock(&scheduler->lock);
    answered_locked(scheduler, images);
    dispatch_and_unlock(scheduler);
}

enum status scheduler_cut_error(struct error *err)
{
    return error_set(err, STATUS_DRAINING,
                     "the server shut down before this image's turn came; send it again to "
                     "another one");
}

void scheduler_stop_accepting(struct scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->accepting = false;
    dispatch_and_unlock(scheduler);
}

bool scheduler_wait_answered(struct scheduler *scheduler, int64_t until)
{
    LOCK(&scheduler->lock);
    while (!is_answered_locked(scheduler) && clock_now() < until)
        condition_wait(&scheduler->all_answered, &scheduler->lock, until);
    return is_answered_locked(scheduler);
}

void scheduler_cut(struct scheduler *scheduler)
{
    struct error why;
    scheduler->cut = true;
    (void)scheduler_cut_error(&why);
    empty_queue(scheduler, &why);
}

void scheduler_stop(struct scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->stopping = true;
    pthread_mutex_unlock(&scheduler->lock);
    pthread_cond_broadcast(&scheduler->lane_ready);
    pthread_cond_broadcast(&scheduler->quarantine_event);
}

/* --- lanes --- */

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
        device_turn_end(turn, 0, false); /* withdraws the lane if it is queued for its next turn */
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

/* Takes a batch during the lane's turn on the device; waits while its images are being written.
 * Returns false if no ready image is left, another lane waits for the device, or the scheduler
 * stops. */
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
    if (!taken) { /* the first call clears `idle` and `works`, the second sets `works` again */
        batcher_lane_works(batcher, lane, false);
        batcher_lane_works(batcher, lane, true);
    }
    dispatch_and_unlock(scheduler);
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
    dispatch_and_unlock(scheduler);
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
    (void)lost_error_locked(scheduler, &why);
    scheduler->is_lost = is_lost;
    batcher_lane_works(scheduler->batcher, lane, false);
    dispatch_and_unlock(scheduler);
    if (is_lost)
        empty_queue(scheduler, &why);
}

void scheduler_end_quarantine(struct scheduler *scheduler, int lane)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->quarantined_count--;
    scheduler->is_lost = false;
    batcher_lane_works(scheduler->batcher, lane, true);
    dispatch_and_unlock(scheduler);
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
    dispatch_and_unlock(scheduler);
    return event;
}

void *scheduler_row(struct scheduler *scheduler, int buffer, size_t input, int slot)
{
    char *begin = (char *)scheduler->buffers + (size_t)buffer * scheduler->layout.bytes;
    return batch_layout_row(&scheduler->layout, begin, input, (size_t)slot);
}

uint8_t *scheduler_pixel_marks(struct scheduler *scheduler, int buffer)
{
    return scheduler->marks ? scheduler->marks + (size_t)buffer * scheduler->layout.rows : NULL;
}

void scheduler_release(struct scheduler *scheduler, const struct batch *batch, bool gives_back)
{
    pthread_mutex_lock(&scheduler->lock);
    batcher_release(scheduler->batcher, batch, gives_back);
    dispatch_and_unlock(scheduler);
}
