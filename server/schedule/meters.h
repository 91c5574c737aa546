/* What one model's scheduler and its lanes count. The families:
 *
 *     lensd_images_total{model,result}          images answered; result: "ok" or a status word
 *     lensd_phase_seconds{model,phase}          histogram, one observation an image and phase
 *     lensd_phase_seconds{model,phase,device}   the same for what a device does: forward
 *     lensd_batch_size{model,device}            histogram, images per forward pass
 *     lensd_batches_closed_total{model,reason}  why batches closed
 *     lensd_forward_failures_total{model,device}  forward passes that failed, retries included
 *     lensd_batch_splits_total{model,device,cause}  batches run again as halves; cause: "failure"
 *                                               or "memory", where the cap was lowered as well
 *     lensd_batch_cap{model,device}             gauge: images a lane runs together now
 *     lensd_refused_total{model,cause}          images not let in; cause: a status word
 *     lensd_queue_images{model}                 gauge: admitted, waiting for a decode worker
 *     lensd_in_flight_images{model}             gauge: admitted, past that
 *
 * Thread-safe (metrics.h). */
#pragma once

#include "engine/base/status.h"
#include "engine/device.h"
#include "server/observe/metrics.h"
#include "server/schedule/batcher.h"

enum phase { PHASE_DECODE, PHASE_PREPROCESS, PHASE_QUEUE };

#define PHASE_COUNT 3

struct meters {
    struct metrics *metrics; /* borrowed; may be NULL: then nothing is counted */
    char model[256];         /* escaped for labels */
    struct metric *images_ok;
    struct metric *phases[PHASE_COUNT];
    struct metric *closed[BATCH_CLOSE_REASONS];
    struct metric *queue_images, *in_flight_images;
};

void meters_init(struct meters *meters, struct metrics *metrics, const char *model);

/* What a lane counts; lanes of a model on the same device share the series. */
struct lane_meters {
    struct metric *forward; /* phase */
    struct metric *batch_size;
    struct metric *forward_failures;
    struct metric *failure_splits, *memory_splits;
    struct metric *batch_cap;
};

void lane_meters_init(struct lane_meters *lane, const struct meters *meters,
                      struct device_id device);

/* An image was answered with `status`. */
void meters_image(struct meters *meters, enum status status);

/* `images` were refused; `model` "" where the request's model is not one of ours. */
void meters_refused(struct metrics *metrics, const char *model, enum status cause, size_t images);
