/* The optimizer: rewrites a graph to make it faster on a backend. Passes do not change results
 * (tests run each model with and without passes).
 *
 *     once:            optimize_quantized   QDQ becomes operators on 8-bit integers (int8 only)
 *                      optimize_dynamic     dynamically quantized products (CPU only)
 *                      optimize_weights     f16 → f32, constants, BatchNormalization into Conv
 *                      optimize_recurrent   LSTM, GRU and RNN in two operators
 *     per batch size:  optimize_specialise  concrete input shapes: inference, shape arithmetic
 *     (on a clone)     optimize_split       moves data-dependent nodes to another graph, the tail
 *                      optimize_for_backend     epilogues, channels-last, 16-bit activations
 *
 * All functions change the given graph, which must not be shared. The patterns are those that
 * torch.onnx, tf2onnx and the model zoo emit. */
#pragma once

#include "engine/passes/kernel_caps.h"

struct optimize_options {
    bool fuse; /* fuse biases, residuals and activations into their producers; replace patterns and
                  chains of nodes by one operator, such as OP_ATTENTION */
    /* The backend's kernels. If NULL, passes that need kernels do nothing, and images stay [N, C,
     * spatial…]. */
    kernel_claim_fn claim;
    enum dtype narrow; /* DTYPE_BF16 or DTYPE_F16: the activations' dtype where kernels support it;
                          DTYPE_NONE: all stay float32 */
    bool is_int8;      /* arithmetic on stored integers may replace float32 arithmetic */
};

/* True if the graph stores activations as integers (QuantizeLinear or QLinear… operators), which
 * PRECISION_INT8 requires. QLinear… operators compute in integers at any precision. */
bool optimize_is_quantized(const struct graph *graph);

/* True if the operator only moves or compares numbers of its first operand, so that it can run on
 * quantized numbers, too. */
bool optimize_keeps_numbers(const struct node *node);

/* Replaces DequantizeLinear → operator → QuantizeLinear by the corresponding operator on 8-bit
 * integers. Call it before optimize_weights(), which would widen the weights. Results can differ
 * from the file's float32 arithmetic by one step of the stored type. With multiplies_to_float,
 * products without a QuantizeLinear after them become products of 8-bit integers with a float32
 * result. Errors: STATUS_NO_MEMORY, STATUS_MODEL (a cycle). */
enum status optimize_quantized(struct graph *graph, bool multiplies_to_float,
                               struct error *err) MUST_USE;

/* Replaces DynamicQuantizeLinear, ConvInteger or MatMulInteger, Cast and Mul by Conv or MatMul on
 * rounded activations and real weights. Call it before optimize_weights(), for every precision.
 * Errors: STATUS_NO_MEMORY, STATUS_MODEL (a cycle). */
enum status optimize_dynamic(struct graph *graph, struct error *err) MUST_USE;

/* Rewrites that do not depend on shapes, once per session. Folds constants, removes Identity and
 * Dropout, and folds BatchNormalization and per-channel scales into Conv weights. Promotes float16
 * to float32, because every backend starts from float32; Casts give outputs their declared dtype.
 * Errors: STATUS_NO_MEMORY, STATUS_MODEL (a cycle), and those of inference and kernels. */
enum status optimize_weights(struct graph *graph, struct error *err) MUST_USE;

/* Replaces each LSTM, GRU and RNN with constant W and R by a MatMul of the inputs of all time steps
 * with W, and a Recurrence, which ONNX does not have. Call it after optimize_weights().
 * STATUS_NO_MEMORY. */
enum status optimize_recurrent(struct graph *graph, struct error *err) MUST_USE;

/* Infers the shapes that follow from those of the inputs, which are known. Folds new constants
 * (Shape → Gather → Concat → Reshape …), and rewrites ONNX's functions Attention and
 * RotaryEmbedding in primitives. Values whose shape depends on data stay SHAPE_NONE. */
enum status optimize_specialise(struct graph *graph, struct error *err) MUST_USE;

/* Moves every data-dependent node (see split.c) into a new graph, *ret_tail, which is NULL without
 * such nodes. The tail's inputs, in their order, become outputs of `graph`, after those of its
 * outputs that remain. (*ret_output_of)[i] is the new place of original output i: x >= 0 means
 * output x of `graph`, x < 0 the tail's output -1 - x. The caller frees the tail; *ret_output_of
 * lies in the arena of `graph`. */
enum status optimize_split(struct graph *graph, struct graph **ret_tail, int **ret_output_of,
                           struct error *err) MUST_USE;

/* Rewrites for a backend that depend on shapes; every shape in the graph must be known. */
enum status optimize_for_backend(struct graph *graph, const struct optimize_options *options,
                                 struct error *err) MUST_USE;

/* Sets *ret to the activation that a node applies to its first operand, without a residual. Returns
 * false for other nodes, and for parameters that are not constant. */
bool optimize_activation(const struct node *node, struct epilogue *ret);
