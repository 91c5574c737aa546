/* Conditions that kernels of both backends check before they claim a node. */
#pragma once

#include "engine/graph/graph.h"

/* True if input 0 is an image that channels-last kernels can read: float32, or 16 bits wide after
 * the layout pass. The layout of its shape may be ONNX's or channels-last. */
bool claim_reads_image(const struct node *node);

/* Index of the input that is the residual, which product kernels may overwrite; -1 if there is no
 * residual, or if the result has 8 bits. */
int claim_residual(const struct node *node);

/* The first of inputs `first` and `second` that is not constant and has output 0's type and shape,
 * or -1. A kernel that reads each element before it writes it may overwrite that input. */
int claim_in_place(const struct node *node, size_t first, size_t second);

/* True for a Gemm whose alpha is 1 and which has either no C, or beta 1 and a constant vector C. */
bool claim_gemm_is_plain(const struct node *node);

/* Length of a row of a Softmax or normalization; 0 if its rows do not span the last dimensions.
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

/* Reads a scale from operand `at` and its zero point from operand `at + 1`. Returns false unless
 * the scale is a constant float32 scalar (not 0, subnormal, infinite or NaN), and the zero point a
 * constant scalar of `dtype`. For uint8 the zero point may be missing and is then 0. */
bool scale_zero_of(const struct node *node, size_t at, enum dtype dtype, struct scale_zero *ret);

/* Factors of QLinearAdd, a * a_ratio + b * b_ratio + fixed, rounded as by the reference kernel. */
void quantized_sum_factors(const struct scale_zero *a, const struct scale_zero *b,
                           const struct scale_zero *y, float *ret_a_ratio, float *ret_b_ratio,
                           float *ret_fixed);

/* True if scale_zero_of() reads the quantizations of all operands of a QLinearConcat. */
bool claim_quantized_parts(const struct node *node);
/* Makes the table from bytes of part p of a claimed QLinearConcat to bytes of its result. Returns
 * false if no byte changes. */
bool quantized_part_table(const struct node *node, size_t p, uint8_t ret[256]);

/* Returns input p of a Concat or QLinearConcat, output p of a Split, or input p of the Concat that
 * a ScaleShift includes. Returns NULL for an output of Split without readers. */
const struct value *concat_part(const struct node *node, size_t p);
size_t concat_part_count(const struct node *node);
