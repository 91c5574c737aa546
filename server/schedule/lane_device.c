/* A lane sets itself aside when its device fails: a pass that ends in STATUS_DEVICE is followed by
 * a probe, a pass of zeros. Where that works the images were at fault, and are run again as halves.
 * Where it fails, too, what is left of the batch goes back to the scheduler for the other lanes,
 * and the lane probes its device from time to time until it works again. An image that two lanes
 * broke over is not moved any further. */
#include "server/schedule/lane_state.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/observe/log.h"

/* A device is set aside when so many passes in a row fail after the one that raised the doubt. */
#define PROBES 2

#define SECOND      INT64_C(1000000000)
#define FIRST_PAUSE (SECOND / 2) /* before a device that was set aside is tried again */
#define MOST_PAUSE  (30 * SECOND)

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

bool lane_device_is_well(struct lane *lane)
{
    for (int attempt = 0; attempt < PROBES; attempt++)
        if (probe(lane, &lane->device_error) != STATUS_DEVICE)
            return true;
    return false;
}

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

bool lane_is_set_aside(struct lane *lane)
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

int lane_give_up_device(struct lane *lane, struct batch *batch, int answered)
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

bool lane_stay_aside(struct lane *lane)
{
    struct batch batch;
    int64_t pause = FIRST_PAUSE, probe_at = clock_now() + pause;
    for (;;) {
        switch (scheduler_wait_aside(lane->scheduler, lane->index, probe_at, &batch)) {
        case ASIDE_END:
            return false;
        case ASIDE_FAIL: {
            size_t images = (size_t)batch.count;
            scheduler_drop_unwanted(lane->scheduler, &batch); /* all of them: no lane is left */
            int left = batch.count;
            scheduler_give_back(lane->scheduler, &batch);
            scheduler_answered(lane->scheduler, images - (size_t)left);
            break;
        }
        case ASIDE_PROBE: {
            turn_begin(&lane->turn);
            bool is_well = lane_device_is_well(lane);
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
