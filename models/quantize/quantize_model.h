/* Quantizes a model on photos (engine/quantize/quantizer.h), and
 * finds out how far it then agrees with float32.
 *
 *     photos ─┬─ four of five: ranges; layers that stay in float32
 *             └─ the fifth, held out: the report
 */
#pragma once

#include "engine/quantize/quantizer.h"
#include "models/folder/model.h"
#include "proto/answers.h"

/* At least so many photos: one to calibrate with and one to compare on. */
#define QUANTIZE_MIN_PHOTOS 2

/* The photos to quantize on. Only the calling thread calls `read`. */
struct quantize_photos {
    const char *folder; /* for errors */
    size_t count;
    /* Writes photo i as the model's preprocessing makes it: [height, width, channels]. */
    enum status (*read)(void *context, size_t i, float *dst, struct error *err);
    const char *(*name)(void *context, size_t i); /* for errors */
    void *context;
};

struct quantize_options {
    struct quantize_photos photos;
    int threads;               /* as session_options.threads */
    int weight_max;            /* as quantizer_create() takes it */
    const _Atomic int *cancel; /* 1: end with STATUS_CANCELLED; or NULL */
    bool has_report;           /* fill in all of the report, not only its layers and photos */
    double cpu_deadline_ms;    /* CPU time of this thread after which nothing more is tried, and
                                  calibrating ends with STATUS_TIMEOUT; 0: none */
    /* What it does ("calibrating"), and how much of that is done, 0 … 1; or NULL. */
    void (*on_progress)(void *context, const char *phase, double fraction);
    void *context;
};

/* `model` has its graph. *ret: the quantized graph, the caller's; so is
 * *report, without its folder and bytes, to be freed with quantize_report_done() (fine on zeroes).
 * Layers stay in float32 until the bounds of agreement.h hold on photos of the calibration, up to a
 * share of the work. Errors: STATUS_INVALID (too few photos; a model without one image input),
 * STATUS_UNSUPPORTED (quantizer_create), STATUS_CANCELLED, STATUS_NO_MEMORY and those of sessions.
 */
enum status quantize_model(const struct model *model, const struct quantize_options *options,
                           struct graph **ret, struct quantize_answer *report,
                           struct error *err) MUST_USE;
void quantize_report_done(struct quantize_answer *report);
