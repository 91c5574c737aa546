/* Quantizes a model on photos (engine/quantize/quantizer.h), and
 * finds out how far it then agrees with float32.
 *
 *     photos ─┬─ four of five: ranges; layers that stay in float32
 *             └─ the fifth, held out: the report */
#pragma once

#include "engine/quantize/quantizer.h"
#include "models/folder/model.h"
#include "models/quantize/agreement.h"

/* The fewest photos: one to calibrate with and one to compare on. */
#define QUANTIZE_MIN_PHOTOS 2

struct quantize_layer {
    char *name;
    const char *op;
    bool is_kept;       /* in float32 */
    double error_alone; /* with this layer, and those that read the same tensor, in 8 bits, and the
                           others in float32; 0: not measured */
};

struct quantize_report {
    const char *model, *folder, *target;
    int calibrated, held_out, unreadable; /* photos */
    /* On those held out: */
    bool holds;                 /* the bounds of --precision auto */
    char bound[AGREEMENT_TEXT]; /* the one that fails; "" if they hold */
    bool wants_images;          /* more of them could show that the bounds hold */
    struct agreement agreement;
    double error; /* 1 - correlation of class scores, else the mean */
    bool has_boxes, has_text;
    size_t fp32_boxes, int8_boxes, box_pairs; /* pairs of a class overlap by half or more */
    double overlap;                           /* of the pairs, in the mean */
    size_t lines, same_lines; /* photos in which float32 reads text; int8 reads the same */
    size_t characters, edits; /* of float32's lines; insertions, deletions and substitutions that
                                 turn int8's lines into them */
    uint64_t fp32_bytes, int8_bytes;
    double fp32_ms, int8_ms; /* of one image, the quickest run */
    bool is_faster;          /* int8, by enough for --precision auto */
    struct quantize_layer *layers;
    size_t layer_count, kept;
    bool corrects_biases, is_smoothed;
    double fp32_share; /* the share of the multiply-adds in float32 */
    /* With all layers in 8 bits, on the photos held out; 0 if `kept` is 0. */
    int all_same;
    double all_error, all_ms;
};

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
 * STATUS_UNSUPPORTED (quantizer_create), STATUS_CANCELLED, STATUS_NO_MEMORY, sessions' errors. */
enum status quantize_model(const struct model *model, const struct quantize_options *options,
                           struct graph **ret, struct quantize_report *report,
                           struct error *err) MUST_USE;
void quantize_report_done(struct quantize_report *report);
