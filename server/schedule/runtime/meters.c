/* Registers the series of a model and of its lanes, and adds to them what a request, an image or a
 * refusal counts for. */
#include "server/schedule/runtime/meters.h"

#include <math.h>
#include <stdio.h>

#include "engine/base/size.h"
#include "server/schedule/runtime/model_host.h"

#define SERIES_LABELS 384

static const char images_help[] = "Images answered, by result.";
static const char phase_help[] = "Seconds that images and requests spent in each phase.";

/* The series of a model with one more label, or none (key NULL). */
static struct metric *meter_get(const struct meters *meters, enum metric_kind kind,
                                const char *name, const char *help, const char *key,
                                const char *value)
{
    char labels[SERIES_LABELS];
    if (key)
        snprintf(labels, sizeof labels, "model=\"%s\",%s=\"%s\"", meters->model, key, value);
    else
        snprintf(labels, sizeof labels, "model=\"%s\"", meters->model);
    return metrics_get(meters->metrics, kind, name, help, labels, NULL, 0);
}

/* ---- Triton's names ---- */

static void triton_init(struct triton_meters *triton, struct metrics *metrics, const char *labels)
{
    static const char *const reasons[TRITON_FAILURES] = {"REJECTED", "CANCELED", "BACKEND",
                                                         "OTHER"};
    const struct {
        struct metric **series;
        enum metric_kind kind;
        const char *name, *help;
    } families[] = {
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
    };
    for (size_t i = 0; i < COUNT_OF(families); i++)
        *families[i].series = metrics_get(metrics, families[i].kind, families[i].name,
                                          families[i].help, labels, NULL, 0);
    for (int i = 0; i < TRITON_FAILURES; i++) {
        char with_reason[SERIES_LABELS + 32];
        snprintf(with_reason, sizeof with_reason, "%s,reason=\"%s\"", labels, reasons[i]);
        triton->failures[i] =
            metrics_get(metrics, METRIC_COUNTER, "nv_inference_request_failure",
                        "Requests that were not answered, by reason.", with_reason, NULL, 0);
    }
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

/* ---- a model's ---- */

void meters_init(struct meters *meters, struct metrics *metrics, const char *model,
                 const char *version, bool finds_boxes)
{
    static const char *const phases[PHASE_COUNT] = {"read", "decode", "preprocess", "queue",
                                                    "write"};
    static const double ratios[] = {0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10};
    *meters = (struct meters){.metrics = metrics};
    metrics_escape(model, meters->model, sizeof meters->model);
    meters->images_ok =
        meter_get(meters, METRIC_COUNTER, "lensd_images_total", images_help, "result", "ok");
    if (finds_boxes)
        meters->detections = meter_get(meters, METRIC_COUNTER, "lensd_detections_total",
                                       "Boxes in answers.", NULL, NULL);
    for (int i = 0; i < PHASE_COUNT; i++)
        meters->phases[i] = meter_get(meters, METRIC_HISTOGRAM, "lensd_phase_seconds", phase_help,
                                      "phase", phases[i]);
    meters->latency = meter_get(meters, METRIC_HISTOGRAM, "lensd_latency_seconds",
                                "Seconds from a request's first byte to its answer.", NULL, NULL);
    meters->predicted =
        meter_get(meters, METRIC_HISTOGRAM, "lensd_predicted_seconds",
                  "Seconds from admission to the answer, as predicted at admission.", NULL, NULL);
    meters->cache_hits = meter_get(meters, METRIC_COUNTER, "lensd_response_cache_hits_total",
                                   "Requests answered from the response cache.", NULL, NULL);
    meters->cache_misses =
        meter_get(meters, METRIC_COUNTER, "lensd_response_cache_misses_total",
                  "Requests whose answers were not in the response cache.", NULL, NULL);
    for (int i = BATCH_FULL; i < BATCH_CLOSE_REASONS; i++)
        meters->closed[i] = meter_get(meters, METRIC_COUNTER, "lensd_batches_closed_total",
                                      "Batches closed, by reason.", "reason",
                                      batch_close_name((enum batch_close)i));
    meters->queue_images = meter_get(meters, METRIC_GAUGE, "lensd_queue_images",
                                     "Images that wait for a decode worker.", NULL, NULL);
    meters->in_flight_images =
        meter_get(meters, METRIC_GAUGE, "lensd_in_flight_images",
                  "Images between the decode worker and the answer.", NULL, NULL);
    char labels[SERIES_LABELS], escaped[64];
    snprintf(labels, sizeof labels, "model=\"%s\"", meters->model);
    meters->prediction_ratio =
        metrics_get(metrics, METRIC_HISTOGRAM, "lensd_prediction_ratio",
                    "Actual over predicted time from admission to the answer.", labels, ratios,
                    COUNT_OF(ratios));
    snprintf(labels, sizeof labels, "model=\"%s\",version=\"%s\"", meters->model,
             metrics_escape(version ? version : "1", escaped, sizeof escaped));
    triton_init(&meters->triton, metrics, labels);
}

void meters_image(struct meters *meters, enum status status)
{
    /* Failures are rare enough to look their series up, and few statuses ever occur. */
    struct metric *series = status == STATUS_OK
                                ? meters->images_ok
                                : meter_get(meters, METRIC_COUNTER, "lensd_images_total",
                                            images_help, "result", status_word(status));
    metric_add(series, 1);
    if (status == STATUS_OK)
        metric_add(meters->triton.count, 1);
}

void meters_request(struct meters *meters, const struct predict_request *request, int64_t now)
{
    const struct triton_meters *triton = &meters->triton;
    const struct predict_image *failed = NULL;
    double queue_ms = 0, input_ms = 0, infer_ms = 0, output_ms = 0;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        if (image->status != STATUS_OK && !failed)
            failed = image;
        queue_ms = fmax(queue_ms, image->queue_ms);
        input_ms = fmax(input_ms, image->decode_ms + image->preprocess_ms);
        infer_ms = fmax(infer_ms, image->forward_ms);
        output_ms = fmax(output_ms, image->output_ms);
    }
    double seconds = (double)(now - request->started) * 1e-9;
    metric_observe(meters->latency, seconds);
    if (failed) {
        metric_add(triton->failures[triton_failure(failed->status)], 1);
        return;
    }
    metric_add(triton->success, 1);
    metric_add(triton->request_us, seconds * 1e6);
    metric_add(triton->queue_us, queue_ms * 1e3);
    metric_add(triton->input_us, input_ms * 1e3);
    metric_add(triton->infer_us, infer_ms * 1e3);
    metric_add(triton->output_us, output_ms * 1e3);
}

void meters_cache_hit(struct meters *meters, double ms)
{
    metric_observe(meters->latency, ms * 1e-3);
    metric_add(meters->triton.success, 1);
    metric_add(meters->triton.request_us, ms * 1e3);
    metric_add(meters->cache_hits, 1);
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
    metric_add(meter_get(meters, METRIC_COUNTER, "lensd_refused_total",
                         "Images that were not let in, by cause.", "cause", status_word(cause)),
               (double)images);
}

void meters_refused_unknown(struct metrics *metrics, const char *model, enum status cause,
                            size_t images)
{
    struct meters meters = {.metrics = metrics};
    metrics_escape(model, meters.model, sizeof meters.model);
    meters_refusal(&meters, cause, images);
}

/* ---- a lane's ---- */

/* What names a lane's series: "model","device". */
struct lane_labels {
    const struct meters *meters;
    char device[DEVICE_TEXT];
};

static struct metric *lane_get(const struct lane_labels *labels, enum metric_kind kind,
                               const char *name, const char *help, const char *key,
                               const char *value)
{
    char text[SERIES_LABELS], further[48] = "";
    if (key)
        snprintf(further, sizeof further, ",%s=\"%s\"", key, value);
    snprintf(text, sizeof text, "model=\"%s\",device=\"%s\"%s", labels->meters->model,
             labels->device, further);
    return metrics_get(labels->meters->metrics, kind, name, help, text, NULL, 0);
}

void lane_meters_init(struct lane_meters *lane, const struct meters *meters,
                      struct device_id device)
{
    static const double sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const char splits[] = "lensd_batch_splits_total",
                      splits_help[] = "Batches that failed and were run again in parts, by cause.";
    struct lane_labels labels = {.meters = meters};
    device_text(device, labels.device);
    const struct {
        struct metric **series;
        enum metric_kind kind;
        const char *name, *help, *key, *value;
    } families[] = {
        {&lane->copy_in, METRIC_HISTOGRAM, "lensd_phase_seconds", phase_help, "phase", "copy_in"},
        {&lane->forward, METRIC_HISTOGRAM, "lensd_phase_seconds", phase_help, "phase", "forward"},
        {&lane->copy_out, METRIC_HISTOGRAM, "lensd_phase_seconds", phase_help, "phase", "copy_out"},
        {&lane->forward_failures, METRIC_COUNTER, "lensd_forward_failures_total",
         "Forward passes that failed, retries included.", NULL, NULL},
        {&lane->failure_splits, METRIC_COUNTER, splits, splits_help, "cause", "failure"},
        {&lane->memory_splits, METRIC_COUNTER, splits, splits_help, "cause", "memory"},
        {&lane->batch_cap, METRIC_GAUGE, "lensd_batch_cap",
         "Images run together at most; lower while the device is short of memory.", NULL, NULL},
        {&lane->device_seconds, METRIC_COUNTER, "lensd_device_seconds_total",
         "Seconds that the device spent on forward passes.", NULL, NULL},
        {&lane->quarantined, METRIC_GAUGE, "lensd_device_quarantined",
         "Lanes quarantined because their device fails.", NULL, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(families); i++)
        *families[i].series = lane_get(&labels, families[i].kind, families[i].name,
                                       families[i].help, families[i].key, families[i].value);
    char text[SERIES_LABELS];
    snprintf(text, sizeof text, "model=\"%s\",device=\"%s\"", meters->model, labels.device);
    lane->batch_size = metrics_get(meters->metrics, METRIC_HISTOGRAM, "lensd_batch_size",
                                   "Images per forward pass.", text, sizes, COUNT_OF(sizes));
}
