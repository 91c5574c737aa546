/* Quarantines a lane whose device fails. After a pass that ends in STATUS_DEVICE the lane probes
 * the device with passes of zeros. If a probe succeeds, the images were the cause and are retried
 * in sub-batches. If all probes fail, the rest of the batch returns to the scheduler for the other
 * lanes, and the lane probes its device periodically until it works again. An image moves to
 * another lane only once.
 *
 * Also tells when a lane is stuck, because a pass takes far too long. */
#include "server/schedule/runtime/lane.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/observe/log.h"

/* A device is quarantined if this number of probes fail after a failed pass. */
#define PROBES 2

#define SECOND      INT64_C(1000000000)
#define FIRST_PAUSE (SECOND / 2) /* before the first probe of a quarantined device */
#define MOST_PAUSE  (30 * SECOND)

/* A pass is stuck if it takes STUCK_PASSES times its prediction, and at least STUCK_LEAST. It is
 * also stuck if it ignores a stop and runs until STUCK_LATE after the last deadline of its images.
 * Nanoseconds. */
#define STUCK_PASSES 100
#define STUCK_LEAST  (60 * SECOND)
#define STUCK_LATE   (10 * SECOND)

/* Runs one pass of zeros. Called during the lane's turn on the device. */
static enum status probe(struct lane *lane, struct error *err)
{
    for (size_t k = 0; k < lane->info.input_count; k++) {
        char *retry = batch_layout_row(&lane->retry_layout, lane->retry_rows, k, 0);
        memset(retry, 0,
               (size_t)session_batch_for(lane->session, 1) * lane->retry_layout.row_bytes[k]);
        lane->inputs[k] = retry;
    }
    return session_run(lane->session, 1, lane->inputs, lane->outputs, err);
}

bool lane_device_is_well(struct lane *lane)
{
    for (int attempt = 0; attempt < PROBES; attempt++)
        if (probe(lane, &lane->device_error) != STATUS_DEVICE)
            return true;
    return false;
}

int64_t lane_stuck_time(const struct lane *lane, const struct batch *batch)
{
    const int64_t now = clock_now(),
                  pass =
                      STUCK_PASSES * scheduler_latency(lane->scheduler, lane->index, batch->count);
    int64_t last = 0;
    for (int i = 0; i < batch->count; i++) {
        const struct predict_image *image = batch->items[i]->owner;
        const int64_t deadline = image->request->deadline ? image->request->deadline : INT64_MAX;
        last = deadline > last ? deadline : last;
    }
    const int64_t late = last < INT64_MAX - STUCK_LATE ? last + STUCK_LATE : INT64_MAX;
    const int64_t slow = pass > 0 ? now + (pass > STUCK_LEAST ? pass : STUCK_LEAST) : INT64_MAX;
    return late < slow ? late : slow;
}

bool lane_is_stuck(const struct lane *lane)
{
    const int64_t at = lane->stuck_at;
    return at && (lane->scheduler->cut || clock_now() >= at);
}

void lane_describe_health(struct lane *lane, struct lane_health *ret)
{
    *ret = (struct lane_health){0};
    pthread_mutex_lock(&lane->lock);
    ret->is_quarantined = lane->quarantined_since != 0;
    if (ret->is_quarantined) {
        memcpy(ret->reason, lane->quarantine_reason, sizeof ret->reason);
        ret->quarantined_s = clock_ms(clock_now() - lane->quarantined_since) / 1000;
    }
    pthread_mutex_unlock(&lane->lock);
    ret->is_stuck = !ret->is_quarantined && lane_is_stuck(lane);
    if (ret->is_stuck) {
        snprintf(ret->reason, sizeof ret->reason,
                 "%s: a pass has run far longer than predicted, or long past the deadlines of its "
                 "images",
                 DEVICE_STRING(lane->info.device));
    }
}

static void quarantine(struct lane *lane, const char *reason)
{
    char device[DEVICE_TEXT], text[sizeof lane->quarantine_reason];
    device_text(lane->info.device, device);
    snprintf(text, sizeof text, "%s: %.200s", device, reason);
    metric_add(lane->meters.quarantined, 1);
    pthread_mutex_lock(&lane->lock);
    lane->quarantined_since = clock_now();
    memcpy(lane->quarantine_reason, text, sizeof text);
    pthread_mutex_unlock(&lane->lock);
    log_event(LOG_ERROR, "device quarantined", LOG_STR("model", lane->model->name),
              LOG_STR("device", device), LOG_STR("error", reason));
    scheduler_quarantine(lane->scheduler, lane->index, text);
}

/* Informs the scheduler first: a client that reads that the lane works can send images. */
static void end_quarantine(struct lane *lane)
{
    scheduler_end_quarantine(lane->scheduler, lane->index);
    metric_add(lane->meters.quarantined, -1);
    pthread_mutex_lock(&lane->lock);
    double seconds = clock_ms(clock_now() - lane->quarantined_since) / 1000;
    lane->quarantined_since = 0;
    pthread_mutex_unlock(&lane->lock);
    log_event(LOG_INFO, "device works again", LOG_STR("model", lane->model->name),
              LOG_STR("device", DEVICE_STRING(lane->info.device)), LOG_REAL("after_s", seconds));
}

int lane_give_up_device(struct lane *lane, struct batch *batch, int answered)
{
    const int images = batch->count;
    const struct error *failure = &lane->device_error;
    device_turn_end(&lane->turn, lane->turn_used, false);
    lane->turn_used = 0;
    if (!lane->quarantined_since) /* another batch in flight may have quarantined it */
        quarantine(lane, failure->message);
    const bool has_others = !lane->scheduler->is_lost;
    batch->count = 0;
    for (int i = answered; i < images; i++) {
        struct predict_image *image = batch->items[i]->owner;
        if (has_others && !image->has_moved) {
            image->has_moved = true;
            batch->slots[batch->count] = batch->slots[i];
            batch->items[batch->count++] = &image->entry;
            continue;
        }
        image->times.device = lane->info.device;
        image->status = failure->status;
        image->error = *failure;
        scheduler_finish(lane->scheduler, image);
    }
    const int left = batch->count;
    scheduler_release(lane->scheduler, batch, true);
    return images - left;
}

bool lane_stay_quarantined(struct lane *lane)
{
    struct batch batch;
    int64_t pause = FIRST_PAUSE, probe_at = clock_now() + pause;
    for (;;) {
        switch (scheduler_wait_quarantined(lane->scheduler, lane->index, probe_at, &batch)) {
        case QUARANTINE_END:
            return false;
        case QUARANTINE_FAIL:
            scheduler_drop_unwanted(lane->scheduler,
                                    &batch); /* drops all images, because no lane works */
            scheduler_release(lane->scheduler, &batch, true);
            scheduler_answered(lane->scheduler, (size_t)(batch.taken - batch.count));
            break;
        case QUARANTINE_PROBE: {
            device_turn_begin(&lane->turn);
            pthread_mutex_lock(&lane->session_lock);
            bool is_well = lane_device_is_well(lane);
            pthread_mutex_unlock(&lane->session_lock);
            device_turn_end(&lane->turn, 0, false);
            if (is_well) {
                end_quarantine(lane);
                return true;
            }
            pause = pause < MOST_PAUSE / 2 ? 2 * pause : MOST_PAUSE;
            probe_at = clock_now() + pause;
            break;
        }
        }
    }
}
