/* Quantizes a model on the photos of its folder calibration/ (engine/quantize/quantizer.h), and
 * finds out how far it then agrees with float32.
 *
 *     photos ─┬─ four of five: ranges; choice of the method; layers that stay in float32
 *             └─ the fifth, held out: the report
 */
#pragma once

#include "engine/quantize/quantizer.h"
#include "models/folder/model.h"
#include "server/image/image.h"
#include "server/precision/agreement.h"

/* At least so many photos: one to calibrate with and one to compare on. */
#define QUANTIZE_MIN_PHOTOS 2

struct quantize_options {
    enum quantize_method method; /* QUANTIZE_METHODS: the one with the least error */
    const struct image_limits *limits;
    int threads;               /* as session_options.threads */
    const _Atomic int *cancel; /* 1: end with STATUS_CANCELLED; or NULL */
    double cpu_deadline_ms;    /* CPU time of this thread after which nothing more is tried, and
                                  calibrating ends with STATUS_TIMEOUT; 0: none */
    /* What it does ("calibrating"), and how much of that is done, 0 … 1; or NULL. */
    void (*on_progress)(void *context, const char *phase, double fraction);
    void *context;
};

/* Boxes on the photos held out: in float32, in 8 bits, and pairs of one class that overlap by half
 * or more (intersection over union). */
struct quantized_boxes {
    size_t fp32, int8, pairs;
    double overlap; /* of the pairs, in the mean */
};

struct quantized_layer {
    char *name;
    const char *op;
    bool is_kept;         /* in float32 */
    double error_without; /* the error of the quantized model if this layer were in float32; 0: not
                       measured */
};

/* Errors are 1 - correlation of class scores, or else the relative error of all outputs, in the
 * mean over photos. */
struct quantize_report {
    enum quantize_method method;
    double errors[QUANTIZE_METHODS]; /* of the methods tried; 0: not tried */
    int photos, calibrated, held_out, unreadable;
    struct agreement agreement;   /* on the photos held out */
    struct quantized_boxes boxes; /* of detectors */
    double error;            /* on those that chose method and layers, as quantized in the end */
    bool holds;              /* the bounds of agreement.h hold on these photos */
    double fp32_ms, int8_ms; /* of one image on this machine */
    struct quantized_layer *layers;
    size_t layer_count, kept;
};

/* `model` has its graph, and `calibration` set. *ret: the quantized graph, the caller's; so is
 * *report, to be freed with quantize_report_done() (fine on zeroes). Errors: STATUS_INVALID (too
 * few photos; a model without one image input), STATUS_UNSUPPORTED (quantizer_create),
 * STATUS_CANCELLED, STATUS_NO_MEMORY and those of sessions. */
enum status quantize_model(const struct model *model, const struct quantize_options *options,
                           struct graph **ret, struct quantize_report *report,
                           struct error *err) MUST_USE;
void quantize_report_done(struct quantize_report *report);
