/* The metrics of one model's scheduler and lanes. meters.c has their names and help texts. Metrics
 * whose names begin with nv_ are Triton's, with the labels model and version, for dashboards made
 * for Triton.
 *
 * Phases (lensd_phase_seconds) of a request: read (first byte to admission), write (answer ready to
 * last byte sent). Phases of an image: decode, preprocess, queue, and with the label device copy_in
 * and forward (the times of its batch) and copy_out (end of the pass to the image's answer). A hit
 * in the response cache counts in lensd_latency_seconds, but not as an image. A split for the cause
 * "memory" (lensd_batch_splits_total) also lowered the cap.
 *
 * For Triton's metrics a request is one HTTP request. It fails if one of its images fails; its
 * times are those of its slowest image.
 *
 * Thread-safe (metrics.h). Once a model is loaded, successful requests take no lock and allocate
 * nothing here; failed images and refused requests look up their series. */
#pragma once

#include "engine/base/status.h"
#include "engine/tensor/device.h"
#include "server/observe/metrics.h"
#include "server/schedule/policy/batcher.h"

enum phase { PHASE_READ, PHASE_DECODE, PHASE_PREPROCESS, PHASE_QUEUE, PHASE_WRITE };

#define PHASE_COUNT 5

/* Reasons of nv_inference_request_failure. */
enum triton_failure { TRITON_REJECTED, TRITON_CANCELED, TRITON_BACKEND, TRITON_OTHER };

#define TRITON_FAILURES 4

struct triton_meters {
    struct metric *success, *failures[TRITON_FAILURES];
    struct metric *count, *exec_count, *pending, *load_seconds;
    struct metric *request_us, *queue_us, *input_us, *infer_us, *output_us;
};

struct meters {
    struct metrics *metrics; /* borrowed; NULL: nothing is counted */
    char labels[272];        /* model="…" */
    struct metric *images_ok;
    struct metric *detections; /* for a detector; otherwise NULL */
    struct metric *phases[PHASE_COUNT];
    struct metric *latency, *predicted, *prediction_ratio;
    struct metric *cache_hits, *cache_misses;
    struct metric *closed[BATCH_CLOSE_REASONS];
    struct metric *queue_images, *in_flight_images;
    struct triton_meters triton;
};

/* Registers the series of a model. `finds_boxes`: the model's answers are boxes, which are counted.
 * `metrics` is borrowed. `version` NULL means "1". */
void meters_init(struct meters *meters, struct metrics *metrics, const char *model,
                 const char *version, bool finds_boxes);

/* The series of a lane. Lanes of a model on the same device share them. */
struct lane_meters {
    struct metric *copy_in, *forward, *copy_out; /* phases */
    struct metric *batch_size;
    struct metric *forward_failures;
    struct metric *failure_splits, *memory_splits;
    struct metric *batch_cap;
    struct metric *device_seconds;
    struct metric *quarantined;
};

void lane_meters_init(struct lane_meters *lane, const struct meters *meters,
                      struct device_id device);

/* Counts an image that was answered with `status`. */
void meters_image(struct meters *meters, enum status status);

/* Milliseconds. `total`: of the request; other members: of its slowest image in each phase. */
struct request_times {
    double total, queue, input, infer, output;
};

/* Counts a request; call it before on_done. `status` is that of the first failed image. */
void meters_request(struct meters *meters, enum status status, const struct request_times *times);

/* Records that an admitted image was answered after `actual` nanoseconds, and that `predicted` were
 * expected (0: there was no prediction; then nothing is recorded). */
void meters_prediction(struct meters *meters, int64_t predicted, int64_t actual);

/* Counts a request for `images` that the model's scheduler refused. */
void meters_refusal(struct meters *meters, enum status cause, size_t images);

/* Counts, with an empty model name, a request for `images` that was refused before its model was
 * found. */
void meters_refused_unknown(struct metrics *metrics, enum status cause, size_t images);
