#include "server/schedule/meters.h"

#include <stdio.h>

#include "engine/base/size.h"

#define SERIES_LABELS 384

static const char images_help[] = "Images answered, by result.";

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
    static const char *const phases[PHASE_COUNT] = {"decode", "preprocess", "queue", "forward"};
    static const double sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    *meters = (struct meters){.metrics = metrics};
    metrics_escape(model, meters->model, sizeof meters->model);
    meters->images_ok =
        get(meters, METRIC_COUNTER, "lensd_images_total", images_help, "result", "ok");
    for (int i = 0; i < PHASE_COUNT; i++)
        meters->phases[i] = get(meters, METRIC_HISTOGRAM, "lensd_phase_seconds",
                                "Seconds an image spent in each phase.", "phase", phases[i]);
    char labels[SERIES_LABELS];
    snprintf(labels, sizeof labels, "model=\"%s\"", meters->model);
    meters->batch_size = metrics_get(metrics, METRIC_HISTOGRAM, "lensd_batch_size",
                                     "Images per forward pass.", labels, sizes, COUNT_OF(sizes));
    for (int i = BATCH_FULL; i < BATCH_CLOSE_REASONS; i++)
        meters->closed[i] =
            get(meters, METRIC_COUNTER, "lensd_batches_closed_total", "Batches closed, by reason.",
                "reason", batch_close_name((enum batch_close)i));
    meters->forward_failures = get(meters, METRIC_COUNTER, "lensd_forward_failures_total",
                                   "Forward passes that failed.", NULL, NULL);
    meters->queue_images = get(meters, METRIC_GAUGE, "lensd_queue_images",
                               "Images that wait for a decode worker.", NULL, NULL);
    meters->in_flight_images = get(meters, METRIC_GAUGE, "lensd_in_flight_images",
                                   "Images between the decode worker and the answer.", NULL, NULL);
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
