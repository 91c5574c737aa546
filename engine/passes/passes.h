/* Private to engine/passes/: the passes of optimize_for_backend(), which has their order. All need
 * known shapes; none re-infers them. Those with *n are called by edit_nodes() for each node. */
#pragma once

#include "engine/passes/edit.h"

/* Patterns that exporters write out in primitives become one operator: Sigmoid·Mul → Silu,
 * hard swish, GELU (erf), layer norms; BatchNormalization that no Conv absorbs → ScaleShift;
 * Pad in front of a Conv becomes its pads. */
bool pass_patterns(struct edit *edit, size_t *n);

/* Bias, residual Add and activation become the epilogue of Conv, ConvTranspose, Gemm, MatMul;
 * activation that of Add and ScaleShift. */
bool pass_epilogues(struct edit *edit, size_t *n);

/* A residual Add that reads a product through views becomes its epilogue; after
 * pass_strided_copies. */
bool pass_viewed_residuals(struct edit *edit, size_t *n);

/* Channels-last operands for image operators, see layout.c. */
void pass_layout(struct edit *edit);

/* Fuses squeeze-and-excite blocks, after pass_layout: the global mean becomes a second output of
 * the Conv before the block (outputs[1], [N, 1 …, C]), the multiplication of the image becomes the
 * gate of the Conv after it. See gates.c. */
bool pass_gates(struct edit *edit, size_t *n);

/* If only a ScaleShift reads a Concat of channels, merges the Concat into it. The inputs become:
 * first part, scale, shift, further parts. Runs after pass_layout; see joins.c. */
bool pass_joins(struct edit *edit, size_t *n);

/* DequantizeLinear → ScaleShift → QuantizeLinear becomes a ScaleShift of stored numbers, after
 * pass_joins; see quantize_scales.c. */
bool pass_stored_scales(struct edit *edit, size_t *n);

/* Fuses residual Adds and lookup tables into products of 8-bit integers, after pass_layout; see
 * quantize_epilogues.c. */
bool pass_quantized_epilogues(struct edit *edit, size_t *n);

/* softmax(q k^T) v becomes OP_ATTENTION, see attention.c. */
bool pass_attention(struct edit *edit, size_t *n);

/* A QuantizeLinear becomes part of the node that makes its number, see storing.c. */
bool pass_storing(struct edit *edit, size_t *n);

/* Chains of operators that only move elements become one OP_STRIDED_COPY, see strided_copies.c. */
void pass_strided_copies(struct edit *edit);

/* Activations in options->narrow, bfloat16 or float16, with Casts where a node or a graph output
 * wants float32. Finite constants beyond float16 become its greatest number, not infinite: a mask
 * of -1e9 stays one that can be subtracted. */
void pass_narrow(struct edit *edit);

/* True for a BatchNormalization of `channels` channels with constant statistics and parameters.
 * fold_affine_norm() then gives y = x * scale + shift for each channel. */
bool fold_is_affine_norm(const struct node *node, int64_t channels);
void fold_affine_norm(const struct node *node, float *scale, float *shift);

/* interpret_node() that also runs Shape and Size of an input whose shape alone is known. */
enum status fold_interpret(struct node *node, struct memory_budget *budget, struct tensor **outputs,
                           struct error *err) MUST_USE;

/* Whether the node is a Shape or Size. */
bool fold_needs_shape_only(const struct node *node);
