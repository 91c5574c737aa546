/* Registers the series of a model and of its lanes, and counts requests, images and refusals. */
#include "server/schedule/runtime/meters.h"

#include <stdio.h>

#include "engine/base/size.h"

#define SERIES_LABELS 384

static const char images_help[] = "Images answered, by result.";
static const char phase_name[] = "lensd_phase_seconds";
static const char phase_help[] = "Seconds that images and requests spent in each phase.";

static void triton_init(struct triton_meters *triton, struct metrics *metrics, const char *labels)
{
    static const char failure[] = "nv_inference_request_failure",
                      failure_help[] = "Requests that were not answered, by reason.";
    const struct metric_row rows[] = {
        {&triton->success, METRIC_COUNTER, "nv_inference_request_success",
         "Requests that were answered."},
        {&triton->count, METRIC_COUNTER, "nv_inference_count", "Images that were answered."},
        {&triton->exec_count, METRIC_COUNTER, "nv_inference_exec_count", "Forward passes."},
        {&triton->pending, METRIC_GAUGE, "nv_inference_pending_request_count",
         "Images that wait for their forward pass."},
        {&triton->load_seconds, METRIC_GAUGE, "nv_model_load_duration_secs",
         "Seconds that loading the model took."},
        {&triton->request_us, METRIC_COUNTER, "nv_inference_request_duration_us",
         "Microseconds of requests, from the first byte to the answer."},
        {&triton->queue_us, METRIC_COUNTER, "nv_inference_queue_duration_us",
         "Microseconds that requests waited."},
        {&triton->input_us, METRIC_COUNTER, "nv_inference_compute_input_duration_us",
         "Microseconds of decoding and preparing inputs."},
        {&triton->infer_us, METRIC_COUNTER, "nv_inference_compute_infer_duration_us",
         "Microseconds of forward passes."},
        {&triton->output_us, METRIC_COUNTER, "nv_inference_compute_output_duration_us",
         "Microseconds of reading outputs."},
        {&triton->failures[TRITON_REJECTED], METRIC_COUNTER, failure, failure_help, "reason",
         "REJECTED"},
        {&triton->failures[TRITON_CANCELED], METRIC_COUNTER, failure, failure_help, "reason",
         "CANCELED"},
        {&triton->failures[TRITON_BACKEND], METRIC_COUNTER, failure, failure_help, "reason",
         "BACKEND"},
        {&triton->failures[TRITON_OTHER], METRIC_COUNTER, failure, failure_help, "reason", "OTHER"},
    };
    metrics_get_all(metrics, labels, rows, COUNT_OF(rows));
}

static enum triton_failure triton_failure(enum status status)
{
    switch (status) {
    case STATUS_OVERLOADED:
    case STATUS_NOT_READY:
    case STATUS_DRAINING:
    case STATUS_TIMEOUT:
        return TRITON_REJECTED;
    case STATUS_CANCELLED:
        return TRITON_CANCELED;
    case STATUS_MODEL:
    case STATUS_SHAPE:
    case STATUS_NUMERIC:
    case STATUS_NO_MEMORY:
    case STATUS_DEVICE:
    case STATUS_DEVICE_MEMORY:
        return TRITON_BACKEND;
    default:
        return TRITON_OTHER;
    }
}

static void set_labels(struct meters *meters, const char *model)
{
    char escaped[256];
    snprintf(meters->labels, sizeof meters->labels, "model=\"%s\"",
             metrics_escape(model, escaped, sizeof escaped));
}

void meters_init(struct meters *meters, struct metrics *metrics, const char *model,
                 const char *version, bool finds_boxes)
{
    static const double ratios[] = {0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10};
    const struct metric_row rows[] = {
        {&meters->images_ok, METRIC_COUNTER, "lensd_images_total", images_help, "result", "ok"},
        {&meters->phases[PHASE_READ], METRIC_HISTOGRAM, phase_name, phase_help, "phase", "read"},
        {&meters->phases[PHASE_DECODE], METRIC_HISTOGRAM, phase_name, phase_help, "phase",
         "decode"},
        {&meters->phases[PHASE_PREPROCESS], METRIC_HISTOGRAM, phase_name, phase_help, "phase",
         "preprocess"},
        {&meters->phases[PHASE_QUEUE], METRIC_HISTOGRAM, phase_name, phase_help, "phase", "queue"},
        {&meters->phases[PHASE_WRITE], METRIC_HISTOGRAM, phase_name, phase_help, "phase", "write"},
        {&meters->latency, METRIC_HISTOGRAM, "lensd_latency_seconds",
         "Seconds from a request's first byte to its answer."},
        {&meters->predicted, METRIC_HISTOGRAM, "lensd_predicted_seconds",
         "Seconds from admission to the answer, as predicted at admission."},
        {&meters->cache_hits, METRIC_COUNTER, "lensd_response_cache_hits_total",
         "Requests answered from the response cache."},
        {&meters->cache_misses, METRIC_COUNTER, "lensd_response_cache_misses_total",
         "Requests whose answers were not in the response cache."},
        {&meters->queue_images, METRIC_GAUGE, "lensd_queue_images",
         "Images that wait for a decode worker."},
        {&meters->in_flight_images, METRIC_GAUGE, "lensd_in_flight_images",
         "Images between the decode worker and the answer."},
        {&meters->detections, METRIC_COUNTER, "lensd_detections_total", "Boxes in answers."},
    };
    char labels[SERIES_LABELS], escaped[64];
    *meters = (struct meters){.metrics = metrics};
    set_labels(meters, model);
    metrics_get_all(metrics, meters->labels, rows, COUNT_OF(rows) - !finds_boxes);
    for (int i = BATCH_FULL; i < BATCH_CLOSE_REASONS; i++)
        meters->closed[i] = metrics_get_with(metrics, METRIC_COUNTER, "lensd_batches_closed_total",
                                             "Batches closed, by reason.", meters->labels, "reason",
                                             batch_close_name((enum batch_close)i));
    meters->prediction_ratio =
        metrics_histogram(metrics, "lensd_prediction_ratio",
                          "Actual over predicted time from admission to the answer.",
                          meters->labels, ratios, COUNT_OF(ratios));
    snprintf(labels, sizeof labels, "%s,version=\"%s\"", meters->labels,
             metrics_escape(version ? version : "1", escaped, sizeof escaped));
    triton_init(&meters->triton, metrics, labels);
}

void meters_image(struct meters *meters, enum status status)
{
    /* Failures are rare, so looking up their series each time is cheap. */
    struct metric *series =
        status == STATUS_OK
            ? meters->images_ok
            : metrics_get_with(meters->metrics, METRIC_COUNTER, "lensd_images_total", images_help,
                               meters->labels, "result", status_word(status));
    metric_add(series, 1);
    if (status == STATUS_OK)
        metric_add(meters->triton.count, 1);
}

void meters_request(struct meters *meters, enum status status, const struct request_times *times)
{
    const struct triton_meters *triton = &meters->triton;
    metric_observe(meters->latency, times->total * 1e-3);
    if (status != STATUS_OK) {
        metric_add(triton->failures[triton_failure(status)], 1);
        return;
    }
    metric_add(triton->success, 1);
    metric_add(triton->request_us, times->total * 1e3);
    metric_add(triton->queue_us, times->queue * 1e3);
    metric_add(triton->input_us, times->input * 1e3);
    metric_add(triton->infer_us, times->infer * 1e3);
    metric_add(triton->output_us, times->output * 1e3);
}

void meters_prediction(struct meters *meters, int64_t predicted, int64_t actual)
{
    if (predicted <= 0)
        return;
    metric_observe(meters->predicted, (double)predicted * 1e-9);
    metric_observe(meters->prediction_ratio, (double)actual / (double)predicted);
}

void meters_refusal(struct meters *meters, enum status cause, size_t images)
{
    metric_add(meters->triton.failures[triton_failure(cause)], 1);
    metric_add(metrics_get_with(meters->metrics, METRIC_COUNTER, "lensd_refused_total",
                                "Images that were not admitted, by cause.", meters->labels, "cause",
                                status_word(cause)),
               (double)images);
}

void meters_refused_unknown(struct metrics *metrics, enum status cause, size_t images)
{
    struct meters meters = {.metrics = metrics};
    set_labels(&meters, "");
    meters_refusal(&meters, cause, images);
}

void lane_meters_init(struct lane_meters *lane, const struct meters *meters,
                      struct device_id device)
{
    static const double sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const char splits[] = "lensd_batch_splits_total",
                      splits_help[] = "Batches that failed and were run again in parts, by cause.";
    const struct metric_row rows[] = {
        {&lane->copy_in, METRIC_HISTOGRAM, phase_name, phase_help, "phase", "copy_in"},
        {&lane->forward, METRIC_HISTOGRAM, phase_name, phase_help, "phase", "forward"},
        {&lane->copy_out, METRIC_HISTOGRAM, phase_name, phase_help, "phase", "copy_out"},
        {&lane->forward_failures, METRIC_COUNTER, "lensd_forward_failures_total",
         "Forward passes that failed, retries included."},
        {&lane->failure_splits, METRIC_COUNTER, splits, splits_help, "cause", "failure"},
        {&lane->memory_splits, METRIC_COUNTER, splits, splits_help, "cause", "memory"},
        {&lane->batch_cap, METRIC_GAUGE, "lensd_batch_cap",
         "Maximum number of images run together; lower while the device is short of memory."},
        {&lane->device_seconds, METRIC_COUNTER, "lensd_device_seconds_total",
         "Seconds that the device spent on forward passes."},
        {&lane->quarantined, METRIC_GAUGE, "lensd_device_quarantined",
         "Lanes quarantined because their device fails."},
    };
    char labels[SERIES_LABELS];
    snprintf(labels, sizeof labels, "%s,device=\"%s\"", meters->labels, DEVICE_STRING(device));
    metrics_get_all(meters->metrics, labels, rows, COUNT_OF(rows));
    lane->batch_size =
        metrics_histogram(meters->metrics, "lensd_batch_size", "Images per forward pass.", labels,
                          sizes, COUNT_OF(sizes));
}
