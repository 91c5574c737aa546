#include "server/schedule/meters.h"

#include <stdio.h>

#include "engine/base/size.h"

#define SERIES_LABELS 384

static const char images_help[] = "Images answered, by result.";
static const char phase_help[] = "Seconds an image spent in each phase.";

/* The series of a model with one more label, or none (key NULL). */
static struct metric *get(const struct meters *meters, enum metric_kind kind, const char *name,
                          const char *help, const char *key, const char *value)
{
    char labels[SERIES_LABELS];
    if (key)
        snprintf(labels, sizeof labels, "model=\"%s\",%s=\"%s\"", meters->model, key, value);
    else
        snprintf(labels, sizeof labels, "model=\"%s\"", meters->model);
    return metrics_get(meters->metrics, kind, name, help, labels, NULL, 0);
}

void meters_init(struct meters *meters, struct metrics *metrics, const char *model)
{
    static const char *const phases[PHASE_COUNT] = {"decode", "preprocess", "queue"};
    *meters = (struct meters){.metrics = metrics};
    metrics_escape(model, meters->model, sizeof meters->model);
    meters->images_ok =
        get(meters, METRIC_COUNTER, "lensd_images_total", images_help, "result", "ok");
    for (int i = 0; i < PHASE_COUNT; i++)
        meters->phases[i] =
            get(meters, METRIC_HISTOGRAM, "lensd_phase_seconds", phase_help, "phase", phases[i]);
    for (int i = BATCH_FULL; i < BATCH_CLOSE_REASONS; i++)
        meters->closed[i] =
            get(meters, METRIC_COUNTER, "lensd_batches_closed_total", "Batches closed, by reason.",
                "reason", batch_close_name((enum batch_close)i));
    meters->queue_images = get(meters, METRIC_GAUGE, "lensd_queue_images",
                               "Images that wait for a decode worker.", NULL, NULL);
    meters->in_flight_images = get(meters, METRIC_GAUGE, "lensd_in_flight_images",
                                   "Images between the decode worker and the answer.", NULL, NULL);
}

void lane_meters_init(struct lane_meters *lane, const struct meters *meters,
                      struct device_id device)
{
    static const double sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const char splits[] = "lensd_batch_splits_total",
                      splits_help[] = "Batches that failed and were run again in parts, by cause.";
    char labels[SERIES_LABELS], name[DEVICE_TEXT];
    device_text(device, name);
    const char *head = labels;
    struct metrics *metrics = meters->metrics;

    snprintf(labels, sizeof labels, "model=\"%s\",phase=\"forward\",device=\"%s\"", meters->model,
             name);
    lane->forward =
        metrics_get(metrics, METRIC_HISTOGRAM, "lensd_phase_seconds", phase_help, head, NULL, 0);
    snprintf(labels, sizeof labels, "model=\"%s\",device=\"%s\",cause=\"failure\"", meters->model,
             name);
    lane->failure_splits = metrics_get(metrics, METRIC_COUNTER, splits, splits_help, head, NULL, 0);
    snprintf(labels, sizeof labels, "model=\"%s\",device=\"%s\",cause=\"memory\"", meters->model,
             name);
    lane->memory_splits = metrics_get(metrics, METRIC_COUNTER, splits, splits_help, head, NULL, 0);
    snprintf(labels, sizeof labels, "model=\"%s\",device=\"%s\"", meters->model, name);
    lane->batch_size = metrics_get(metrics, METRIC_HISTOGRAM, "lensd_batch_size",
                                   "Images per forward pass.", head, sizes, COUNT_OF(sizes));
    lane->forward_failures =
        metrics_get(metrics, METRIC_COUNTER, "lensd_forward_failures_total",
                    "Forward passes that failed, retries included.", head, NULL, 0);
    lane->batch_cap = metrics_get(
        metrics, METRIC_GAUGE, "lensd_batch_cap",
        "Images run together at most; lower while the device is short of memory.", head, NULL, 0);
}

void meters_image(struct meters *meters, enum status status)
{
    /* Failures are rare enough to look their series up, and few statuses ever occur. */
    struct metric *series = status == STATUS_OK ? meters->images_ok
                                                : get(meters, METRIC_COUNTER, "lensd_images_total",
                                                      images_help, "result", status_word(status));
    metric_add(series, 1);
}

void meters_refused(struct metrics *metrics, const char *model, enum status cause, size_t images)
{
    struct meters meters = {.metrics = metrics};
    metrics_escape(model, meters.model, sizeof meters.model);
    metric_add(get(&meters, METRIC_COUNTER, "lensd_refused_total",
                   "Images that were not let in, by cause.", "cause", status_word(cause)),
               (double)images);
}
