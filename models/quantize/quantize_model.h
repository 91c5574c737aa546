/* Quantizes a model with photos (engine/quantize/quantizer.h), and measures its agreement with
 * float32.
 *
 *     photos ─┬─ four of five determine the ranges, and the layers that stay in float32
 *             └─ every fifth is held out for the report */
#pragma once

#include "engine/quantize/quantizer.h"
#include "models/folder/model.h"
#include "models/quantize/agreement.h"

/* The minimum is one photo to calibrate with and one to compare. */
#define QUANTIZE_MIN_PHOTOS 2

struct quantize_report {
    int calibrated, held_out, unreadable; /* numbers of photos */
    /* Results on the photos held out: */
    bool holds;                 /* the bounds of --precision auto hold */
    char bound[AGREEMENT_TEXT]; /* the failed bound; "" if all hold */
    struct agreement agreement;
    double error; /* 1 - correlation of class scores, otherwise agreement.mean */
    bool has_boxes, has_text;
    size_t fp32_boxes, int8_boxes, box_pairs; /* pairs of one class that overlap by half or more */
    double overlap;                           /* mean overlap of the pairs */
    size_t lines, same_lines; /* photos in which float32 reads text, and in how many of these int8
                                 reads the same text */
    size_t characters, edits; /* characters in float32's lines, and edits (insertions, deletions,
                                 substitutions) from them to int8's lines */
    double fp32_ms, int8_ms;  /* per image, the fastest run */
    bool is_faster;           /* int8 is faster by enough for --precision auto */
    struct quantizer *quantizer; /* owns the layers */
    struct quantizer_layer *layers;
    size_t layer_count, kept;
    bool corrects_biases, is_smoothed;
    double fp32_share; /* share of the multiply-adds that run in float32 */
    /* Results with all layers in 8 bits; 0 if `kept` is 0. */
    int all_same;
    double all_error, all_ms;
};

/* Photos for calibration and comparison. `read` is called by the thread that calls
 * quantize_model(). */
struct quantize_photos {
    const char *folder; /* for errors */
    size_t count;
    /* Writes photo i after the model's preprocessing: [height, width, channels]. */
    enum status (*read)(void *context, size_t i, float *dst, struct error *err);
    const char *(*name)(void *context, size_t i); /* for errors */
    void *context;
};

struct quantize_options {
    struct quantize_photos photos;
    int threads;               /* threads of each session (session_options.threads) */
    int weight_max;            /* QUANTIZER_WEIGHT_MAX or QUANTIZER_WEIGHT_MAX_AVX2 */
    const _Atomic int *cancel; /* 1 ends the call with STATUS_CANCELLED; may be NULL */
    bool has_report;           /* fill in the whole report, not only its layers and photos */
    double cpu_deadline_ms; /* limit for this thread's CPU time: then no more layers are tried, and
                               calibration ends with STATUS_TIMEOUT; 0: none */
    /* Reports the phase ("calibrating") and the share of it that is done, 0 … 1. May be NULL. */
    void (*on_progress)(void *context, const char *phase, double fraction);
    void *context;
};

/* `model` must still have its graph. The caller owns *ret, the quantized graph, and *report, which
 * it frees with quantize_report_done() (zeroes are fine). Sensitive layers stay in float32, up to a
 * share of the work, until the bounds of agreement.h hold on calibration photos. Errors:
 * STATUS_INVALID (too few photos; a model without one image input), STATUS_UNSUPPORTED
 * (quantizer_create()), STATUS_CANCELLED, STATUS_TIMEOUT (cpu_deadline_ms), STATUS_NO_MEMORY,
 * errors of sessions. */
enum status quantize_model(const struct model *model, const struct quantize_options *options,
                           struct graph **ret, struct quantize_report *report,
                           struct error *err) MUST_USE;
void quantize_report_done(struct quantize_report *report);
