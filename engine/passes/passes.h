/* Private to engine/passes/: the passes of optimize_for_backend(), which calls them in order. All
 * need known shapes and infer none. edit_nodes() calls passes with a parameter *n for each node. */
#pragma once

#include "engine/passes/edit.h"

/* Replaces patterns of primitives from exporters by one operator: Silu, hard swish, GELU (erf
 * form), layer and group norms …. Turns a BatchNormalization that no Conv absorbs into a
 * ScaleShift. Folds a Pad before a Conv into the Conv's pads. */
bool pass_patterns(struct edit *edit, size_t *n);

/* Fuses biases, residual Adds and activations into products (Conv, Gemm, MatMul …) as their
 * epilogue. Fuses activations into Add and ScaleShift, too. */
bool pass_epilogues(struct edit *edit, size_t *n);

/* Fuses a residual Add that reads a product through Reshapes, after pass_strided_copies(). */
bool pass_viewed_residuals(struct edit *edit, size_t *n);

/* Makes operands of image operators channels-last; see layout.c. */
void pass_layout(struct edit *edit);

/* Fuses squeeze-and-excite blocks, after pass_layout(). The global mean becomes a second output of
 * the Conv before the block (outputs[1], [N, 1 …, C]). The multiplication of the image becomes the
 * gate of the Conv after the block. See gates.c. */
bool pass_gates(struct edit *edit, size_t *n);

/* Merges a Concat of channels into a ScaleShift that is its only reader, after pass_layout(); see
 * joins.c. */
bool pass_joins(struct edit *edit, size_t *n);

/* Replaces DequantizeLinear → ScaleShift → QuantizeLinear by a ScaleShift of stored numbers, after
 * pass_joins(); see quantize_scales.c. */
bool pass_stored_scales(struct edit *edit, size_t *n);

/* Fuses residual Adds and lookup tables into products of 8-bit integers, after pass_layout(); see
 * quantize_epilogues.c. */
bool pass_quantized_epilogues(struct edit *edit, size_t *n);

/* Replaces softmax(q k^T) v by OP_ATTENTION; see attention.c. */
bool pass_attention(struct edit *edit, size_t *n);

/* Fuses a QuantizeLinear into its input's producer; see storing.c. */
bool pass_storing(struct edit *edit, size_t *n);

/* Replaces chains of operators that only move elements by one OP_STRIDED_COPY; see
 * strided_copies.c. */
void pass_strided_copies(struct edit *edit);

/* Changes activations to options->narrow, bfloat16 or float16, and inserts Casts before nodes that
 * need the other type. Graph outputs stay float32. Finite constants beyond float16's range become
 * its largest number instead of infinity: a row masked by -1e9 must stay finite, because inf - inf
 * is NaN. */
void pass_narrow(struct edit *edit);

/* True for a BatchNormalization of `channels` channels with constant statistics and parameters.
 * fold_affine_norm() then expresses it as y = x * scale + shift per channel. */
bool fold_is_affine_norm(const struct node *node, int64_t channels);
void fold_affine_norm(const struct node *node, float *scale, float *shift);

/* Computes a node whose inputs are known, or a Shape or Size of an input whose shape is known. The
 * node's outputs become constants, charged to `budget` (NULL: none). Leaves a node of more than 64
 * outputs as it is. Errors: those of interpret_node(). */
enum status fold_node(struct node *node, struct memory_budget *budget, struct error *err) MUST_USE;

/* True for a Shape or Size of an input whose shape is known. */
bool fold_needs_shape_only(const struct node *node);
