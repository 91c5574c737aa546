/* Static quantisation of a float32 graph: from a graph and images like those it will see to the
 * same graph with QuantizeLinear and DequantizeLinear (QDQ).
 *
 * - quantiser_create: folds constants, raises the opset to 13
 * - quantiser_observe: runs the images
 * - quantiser_make: int8 weights by channel, uint8 activations; once for each method and choice of
 *   layers
 *
 * Activations are stored in 8 bits where the products that read and make them then run on integers
 * (quantise_plan.h); numbers that go straight to an output stay float32. */
#pragma once

#include "engine/runtime/session.h"

/* How the range of an activation follows from the numbers seen. */
enum quantise_method {
    QUANTISE_MINMAX,     /* all of them */
    QUANTISE_PERCENTILE, /* all but one in ten thousand */
    QUANTISE_MSE,        /* least square error */
    QUANTISE_ENTROPY,    /* least relative entropy (TensorRT's rule) */
    QUANTISE_METHODS
};

const char *quantise_method_name(enum quantise_method method); /* "minmax" */

/* A Conv, Gemm or MatMul with constant weights. */
struct quantiser_layer {
    const char *name, *op;
    bool is_kept; /* in float32; the caller may change it between calls of quantiser_make() */
};

/* The images to calibrate with. */
struct quantiser_images {
    size_t count;
    /* *ret: image i as the session's image input takes it, valid until the next call. */
    enum status (*read)(void *context, size_t i, const void **ret, struct error *err);
    /* Called after each image: 0 … 1 of the whole. May be NULL. */
    void (*on_progress)(void *context, double fraction);
    void *context;
};

struct quantiser;

/* Whether the graph holds quantised numbers already, statically or dynamically. */
bool quantiser_is_quantised(const struct graph *graph);

/* `graph` is only read; constants are shared with it. Errors: STATUS_UNSUPPORTED (quantised
 * already; an operator that opset 13 computes otherwise; no layers), STATUS_NO_MEMORY, and those of
 * the passes. The caller frees with quantiser_free (NULL is fine). */
enum status quantiser_create(const struct graph *graph, struct quantiser **ret,
                             struct error *err) MUST_USE;
void quantiser_free(struct quantiser *quantiser);

/* The layers in the order in which they run. */
size_t quantiser_layer_count(const struct quantiser *quantiser);
struct quantiser_layer *quantiser_layer(struct quantiser *quantiser, size_t i);

/* Runs the images in float32 and notes the ranges of activations. `options`: of a session on the
 * CPU whose image input is IMAGE_NHWC_F32; its `cancel` ends the call with STATUS_CANCELLED.
 * Tensors of at most `memory` bytes are observed at a time. Errors: those of session_create,
 * session_run and images->read. */
enum status quantiser_observe(struct quantiser *quantiser, const struct session_options *options,
                              const struct quantiser_images *images, size_t memory,
                              struct error *err) MUST_USE;

/* *ret: the quantised graph, the caller's. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantiser_make(const struct quantiser *quantiser, enum quantise_method method,
                           struct graph **ret, struct error *err) MUST_USE;
