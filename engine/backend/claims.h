/* Conditions that kernels of both backends check before they claim a node. */
#pragma once

#include "engine/graph/graph.h"

/* True if input 0 is an image that channels-last kernels can read: float32, or 16 bits wide after
 * the layout pass. Its shape is ONNX's, or the one that the pass has set. */
bool claim_reads_image(const struct node *node);

/* Index of the residual, which product kernels may overwrite; -1 without a residual, or if the
 * result has 8 bits. */
int claim_residual(const struct node *node);

/* The first of inputs `first` and `second` that is not constant and has output 0's type and shape,
 * or -1. A kernel that reads each element before it writes it may overwrite that input. */
int claim_in_place(const struct node *node, size_t first, size_t second);

/* True for a Gemm with alpha 1, and with beta 1 and a constant vector C, or without C. */
bool claim_gemm_is_plain(const struct node *node);

/* Row length of a Softmax or a normalization of rows; 0 if it is not over the last dimensions.
 * claim_is_row(): true if `value` is a float32 constant with the shape of such a row. */
size_t claim_row_length(const struct node *node);
bool claim_is_row(const struct node *node, const struct value *value);

/* True if scale and bias of a Group- or InstanceNormalization are constants of equal length. */
bool claim_group_parameters(const struct node *node);

/* A quantized tensor stores 8-bit integers that represent (stored - zero) * scale. */
struct scale_zero {
    float scale;
    int zero;
};

/* Reads operand `at`, a scalar float32 constant and normal number, and operand `at + 1`, a scalar
 * constant zero point of `dtype`, which is optional for uint8. Returns false for other operands. */
bool scale_zero_of(const struct node *node, size_t at, enum dtype dtype, struct scale_zero *ret);

/* Returns part p of a Concat, QLinearConcat or Split, or of the image that a ScaleShift joins; NULL
 * for an output of Split without readers. */
const struct value *concat_part(const struct node *node, size_t p);
size_t concat_part_count(const struct node *node);
