/* What claims of both backends ask about a node. */
#pragma once

#include "engine/graph/graph.h"

/* Is input 0 an image, float32 or after the layout pass also 16 bits wide, that kernels may read
 * channels-last? Its shape is as ONNX has it, or as that pass has made it. */
bool claim_reads_image(const struct node *node);

/* The residual, which kernels of products may overwrite; -1: none. */
int claim_residual(const struct node *node);

/* The first of inputs `first`, `second` that has output 0's type and shape, and so may be
 * overwritten by kernels that read an element before they write it; -1: none. */
int claim_in_place(const struct node *node, size_t first, size_t second);

/* Is a Gemm a fully connected layer: alpha = beta = 1, and C a constant over the columns? */
bool claim_gemm_is_plain(const struct node *node);

/* Elements of a row of a Softmax or of a normalization of rows; 0: the node does not work
 * on whole trailing rows. Is `value` a float32 constant that fits such a row? */
size_t claim_row_length(const struct node *node);
bool claim_is_row(const struct node *node, const struct value *value);

/* Are scale and bias of a GroupNormalization or InstanceNormalization constants of one length? */
bool claim_group_parameters(const struct node *node);

/* A quantized tensor holds 8-bit integers that stand for (stored - zero) * scale. */
struct scale_zero {
    float scale;
    int zero;
};

bool is_8bit(enum dtype dtype);

/* Operands `at` and `at + 1`: a float32 constant of one number, and a zero point of `dtype`, which
 * a uint8 tensor may leave out; false when they are something else. */
bool scale_zero_of(const struct node *node, size_t at, enum dtype dtype, struct scale_zero *ret);

/* The parts of a Concat, QLinearConcat or Split, and those that a ScaleShift joins; NULL for an
 * output of Split that nobody reads. */
const struct value *concat_part(const struct node *node, size_t p);
size_t concat_part_count(const struct node *node);
