/* Private to engine/passes/: the passes of optimize_kernels(), which has their order. All need
 * known shapes; none re-infers them. */
#pragma once

#include "engine/passes/edit.h"

/* Patterns that exporters write out in primitives become one operator: Sigmoid·Mul → Silu,
 * HardSwish, GELU (erf), LayerNormalization; BatchNormalization that no Conv absorbs → ScaleShift;
 * Pad in front of a Conv becomes its pads. */
enum status pass_patterns(struct edit *edit, struct error *err) MUST_USE;

/* Bias, residual Add and activation become the epilogue of Conv, ConvTranspose, Gemm, MatMul;
 * activation that of Add and ScaleShift. */
enum status pass_epilogues(struct edit *edit, struct error *err) MUST_USE;

/* Channels-last operands for image operators, see layout.c. */
enum status pass_layout(struct graph *graph, const struct optimize_options *options,
                        struct error *err) MUST_USE;

/* What stands around a squeeze-and-excite block, after pass_layout: the global mean becomes a
 * second output of the Conv in front (outputs[1], [N, 1 …, C]), the multiplication of the image
 * becomes the gate of the Conv behind. See gates.c. */
enum status pass_gates(struct graph *graph, const struct optimize_options *options,
                       struct error *err) MUST_USE;

/* Sums and tables behind products of 8-bit integers become part of them, after pass_layout; see
 * quantise_epilogues.c. */
enum status pass_quantised_epilogues(struct graph *graph, const struct optimize_options *options,
                                     struct error *err) MUST_USE;

/* softmax(q k^T) v becomes OP_ATTENTION, see attention.c. */
enum status pass_attention(struct edit *edit, struct error *err) MUST_USE;

/* Chains of operators that only move elements become one OP_MOVE, see moves.c. */
enum status pass_moves(struct edit *edit, struct error *err) MUST_USE;

/* A Concat of channels that only a ScaleShift reads becomes inputs of it: part, scale, shift,
 * further parts. After pass_layout; see joins.c. */
enum status pass_joins(struct graph *graph, const struct optimize_options *options,
                       struct error *err) MUST_USE;

/* Activations in options->narrow, bfloat16 or float16, with Casts where a node or a graph output
 * wants float32. Finite constants beyond float16 become its greatest number, not infinite: a mask
 * of -1e9 stays one that can be subtracted. */
enum status pass_bf16(struct graph *graph, const struct optimize_options *options,
                      struct error *err) MUST_USE;
