/* Static quantization of a float32 graph: adds QuantizeLinear and DequantizeLinear (QDQ), based on
 * typical images.
 *
 * quantizer_create() folds constants. quantizer_observe() runs the images, and raises the opset to
 * at least 13. quantizer_make() makes a graph for one choice of layers, with int8 weights, scaled
 * per channel, and uint8 activations in the range with the least square error.
 *
 * An activation is stored in 8 bits if the products that make and read it can then compute with
 * integers (quantize_plan.h). Numbers that go directly to an output stay float32. */
#pragma once

#include "engine/runtime/session.h"

/* A Conv, Gemm or MatMul with constant weights. */
struct quantizer_layer {
    const struct node *node; /* input 0 is an activation, which layers may share */
    double work;             /* multiply-adds per image; 0 before quantizer_observe() */
    /* The caller may change these members, which are zero at first: */
    bool is_kept;       /* stays float32 */
    double error_alone; /* error if only this layer, and other layers that read the same tensor,
                           use 8 bits; 0: not measured */
};

/* Images for calibration. */
struct quantizer_images {
    size_t count;
    /* Sets *ret to image i in the format of the image input, valid until the next call. */
    enum status (*read)(void *context, size_t i, const void **ret, struct error *err);
    /* Called after each image with the finished share, 0 … 1. May be NULL. */
    void (*on_progress)(void *context, double fraction);
    void *context;
};

struct quantizer;

/* True if the graph is already quantized, statically or dynamically. */
bool quantizer_is_quantized(const struct graph *graph);

/* The largest 8-bit weight. Other runtimes add pairs of products in 16 bits on CPUs without VNNI
 * (vpmaddubsw); such a sum saturates for weights above 64. lensd adds in 32 bits everywhere. */
enum { QUANTIZER_WEIGHT_MAX = 127, QUANTIZER_WEIGHT_MAX_AVX2 = 64 };

/* Reads `graph` and shares its constants. `weight_max` is one of the constants above. Errors:
 * STATUS_UNSUPPORTED (already quantized; no layers), STATUS_NO_MEMORY, and those of the passes. The
 * caller frees with quantizer_free() (NULL: fine). */
enum status quantizer_create(const struct graph *graph, int weight_max, struct quantizer **ret,
                             struct error *err) MUST_USE;
void quantizer_free(struct quantizer *quantizer);

/* Returns the layers, in the order in which they run; the quantizer owns them. */
struct quantizer_layer *quantizer_layers(struct quantizer *quantizer, size_t *ret_count);

/* Runs the images in float32 and records the ranges of activations. `options` are for a session on
 * the CPU whose image input is IMAGE_NHWC_F32; options->cancel ends the call with STATUS_CANCELLED.
 * One pass observes tensors of at most `memory` bytes, or a single larger one. Errors: those of
 * session_create(), session_run() and images->read(). */
enum status quantizer_observe(struct quantizer *quantizer, const struct session_options *options,
                              const struct quantizer_images *images, size_t memory,
                              struct error *err) MUST_USE;

/* Sets *ret to a quantizer of the same layers after smoothing (quantize_smooth.h), based on the
 * ranges that `from` has observed. Call quantizer_observe() for *ret, too. *ret is NULL if nothing
 * can be smoothed. STATUS_NO_MEMORY. */
enum status quantizer_smooth(const struct quantizer *from, struct quantizer **ret,
                             struct error *err) MUST_USE;

/* Sets *ret to the quantized graph, which the caller owns. With `keeps`, layers with `is_kept` stay
 * in float32. With `corrects_biases`, biases are corrected by the mean error from rounding the
 * weights. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantizer_make(const struct quantizer *quantizer, bool keeps, bool corrects_biases,
                           struct graph **ret, struct error *err) MUST_USE;
