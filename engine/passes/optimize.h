/* The optimizer: rewrites a graph so that a backend has less to do. Every pass keeps the meaning of
 * the graph (tests run each model with and without).
 *
 *     once:            optimize_quantized   QDQ becomes operators on 8-bit integers (int8 only)
 *                      optimize_dynamic     dynamically quantized products (CPU only)
 *                      optimize_weights     f16 → f32, constants, BatchNormalization into Conv
 *     per batch size:  optimize_specialise  concrete input shapes: inference, shape arithmetic
 *     (on a clone)     optimize_split       moves data-dependent nodes to another graph, the tail
 *                      optimize_for_backend     epilogues, channels-last, 16-bit activations
 *
 * All functions change the graph they are given, which must belong to the caller alone. Sources for
 * the patterns: what torch.onnx, tf2onnx and the model zoo emit.
 */
#pragma once

#include "engine/passes/kernel_caps.h"

struct optimize_options {
    bool fuse; /* fold activations, residuals, BatchNormalization into their producers; make
                  OP_ATTENTION and OP_STRIDED_COPY (engine/op/attention.h) of chains of nodes */
    /* The backend's kernels. NULL: passes that need to know them do nothing, and images stay
     * [N, C, spatial…]. */
    kernel_claim_fn claim;
    enum dtype narrow; /* DTYPE_BF16 or DTYPE_F16: activations where kernels support it; DTYPE_NONE:
                          all stay float32 */
    bool is_int8;      /* arithmetic on stored numbers may replace that on float32 */
};

/* Does the graph store activations in integers (QuantizeLinear or QLinear… operators)? */
bool optimize_is_quantized(const struct graph *graph);

/* True if the operator moves or compares the numbers of its first operand without changing them, so
 * that it can run on quantized ones, too. */
bool optimize_keeps_numbers(const struct node *node);

/* What is written as DequantizeLinear → operator → QuantizeLinear becomes the operator on 8-bit
 * integers that it stands for; before optimize_weights, which would widen the weights. Results
 * differ from the file's float32 arithmetic by one step of the stored type where a number lies
 * between two. A product of 8-bit integers whose result is float32 is computed in integers, too,
 * if multiplies_to_float. Errors: STATUS_NO_MEMORY, STATUS_MODEL (a cycle). */
enum status optimize_quantized(struct graph *graph, bool multiplies_to_float,
                               struct error *err) MUST_USE;

/* Replaces DynamicQuantizeLinear, ConvInteger or MatMulInteger, Cast and Mul by Conv or MatMul on
 * rounded activations and real weights. Call it before optimize_weights, in every precision.
 * Errors: STATUS_NO_MEMORY, STATUS_MODEL (a cycle). */
enum status optimize_dynamic(struct graph *graph, struct error *err) MUST_USE;

/* Shape-independent rewrites, once per session: constants folded, Identity and Dropout removed,
 * float16 promoted to float32 (every backend starts from float32; outputs keep their declared dtype
 * through a Cast), BatchNormalization and per-channel scales folded into Conv
 * weights. Errors: STATUS_NO_MEMORY, STATUS_MODEL / STATUS_SHAPE from folding. */
enum status optimize_weights(struct graph *graph, struct error *err) MUST_USE;

/* Gives graph->inputs[i] the shape shapes[i] (wholly known), infers every shape that follows, folds
 * what becomes constant (Shape → Gather → Concat → Reshape …), writes out function operators
 * (Attention, RotaryEmbedding) in primitives. Values whose shape depends on data
 * stay SHAPE_NONE. */
enum status optimize_specialise(struct graph *graph, const struct shape *shapes,
                                struct error *err) MUST_USE;

/* Moves every node that is data-dependent (an operand or result without a known shape) into a new
 * graph: *ret_tail, NULL when there is none. The tail's inputs are values of `graph` that were made
 * its additional outputs, in order, after the outputs that stayed; *ret_output_of[i] says for
 * original output i where it is now: >= 0 an output of graph, < 0 the tail's output -1 - x.
 * Both arrays are in graph's arena. */
enum status optimize_split(struct graph *graph, struct graph **ret_tail, int **ret_output_of,
                           struct error *err) MUST_USE;

/* Shape-dependent rewrites for a backend; every shape in the graph must be known. */
enum status optimize_for_backend(struct graph *graph, const struct optimize_options *options,
                                 struct error *err) MUST_USE;

/* The activation that a node computes of its first operand, as an epilogue without a residual;
 * false when it computes none, or one whose parameters only a run knows. */
bool optimize_activation(const struct node *node, struct epilogue *ret);
