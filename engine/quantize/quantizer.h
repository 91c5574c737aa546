/* Static quantization of a float32 graph: from a graph and images like those it will see to the
 * same graph with QuantizeLinear and DequantizeLinear (QDQ).
 *
 * - quantizer_create: folds constants, raises the opset to 13
 * - quantizer_observe: runs the images
 * - quantizer_make: int8 weights by channel, uint8 activations in the range with the least square
 *   error; once for each choice of layers
 *
 * Activations are stored in 8 bits where the products that read and make them then run on integers
 * (quantize_plan.h); numbers that go straight to an output stay float32. */
#pragma once

#include "engine/runtime/session.h"

/* A Conv, Gemm or MatMul with constant weights. */
struct quantizer_layer {
    const char *name, *op;
    const struct value *input; /* what it reads; layers may share it */
    double work;               /* multiply-adds of an image; 0 before quantizer_observe() */
    bool is_kept; /* in float32; the caller may change it between calls of quantizer_make() */
};

/* The images to calibrate with. */
struct quantizer_images {
    size_t count;
    /* *ret: image i as the session's image input takes it, valid until the next call. */
    enum status (*read)(void *context, size_t i, const void **ret, struct error *err);
    /* Called after each image: 0 … 1 of the whole. May be NULL. */
    void (*on_progress)(void *context, double fraction);
    void *context;
};

struct quantizer;

/* Whether the graph holds quantized numbers already, statically or dynamically. */
bool quantizer_is_quantized(const struct graph *graph);

/* The greatest 8-bit weight. AVX2 adds pairs of products in 16 bits (vpmaddubsw), which saturate
 * above 64; VNNI and arm64's dot product add them in 32 bits. */
enum { QUANTIZER_WEIGHT_MAX = 127, QUANTIZER_WEIGHT_MAX_AVX2 = 64 };

/* The one for this machine's CPU. */
int quantizer_weight_max(void);

/* `graph` is only read; constants are shared with it. `weight_max`: one of the above. Errors:
 * STATUS_UNSUPPORTED (quantized already; an operator that opset 13 computes otherwise; no layers),
 * STATUS_NO_MEMORY, and those of the passes. The caller frees with quantizer_free (NULL is fine).
 */
enum status quantizer_create(const struct graph *graph, int weight_max, struct quantizer **ret,
                             struct error *err) MUST_USE;
void quantizer_free(struct quantizer *quantizer);

/* The layers in the order in which they run. */
size_t quantizer_layer_count(const struct quantizer *quantizer);
struct quantizer_layer *quantizer_layer(struct quantizer *quantizer, size_t i);

/* Runs the images in float32 and notes the ranges of activations. `options`: of a session on the
 * CPU whose image input is IMAGE_NHWC_F32; its `cancel` ends the call with STATUS_CANCELLED.
 * Tensors of at most `memory` bytes are observed at a time. Errors: those of session_create,
 * session_run and images->read. */
enum status quantizer_observe(struct quantizer *quantizer, const struct session_options *options,
                              const struct quantizer_images *images, size_t memory,
                              struct error *err) MUST_USE;

/* *ret: a quantizer of the same layers after smoothing (quantize_smooth.h), by the ranges that
 * `from` has observed; it has to observe, too. NULL: nothing can be smoothed. STATUS_NO_MEMORY. */
enum status quantizer_smooth(const struct quantizer *from, struct quantizer **ret,
                             struct error *err) MUST_USE;

/* *ret: the quantized graph, the caller's. `corrects_biases`: by the mean error that rounding the
 * weights adds. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantizer_make(const struct quantizer *quantizer, bool corrects_biases,
                           struct graph **ret, struct error *err) MUST_USE;
