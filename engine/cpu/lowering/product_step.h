/* Private to engine/cpu/: shared by oneDNN's steps for Conv, ConvTranspose, Gemm and MatMul. */
#pragma once

#include "engine/cpu/lowering/lowering.h"

/* Creates a step of the product and the node's epilogue; *ret stays NULL if oneDNN has none. */
enum status product_create(const struct lowering *lowering, const struct product_desc *desc,
                           struct step **ret, struct error *err) MUST_USE;

/* Claims a QLinearMatMul or QGemm that oneDNN can compute: 8-bit activations, constant symmetric
 * int8 weights [k, n], a result of 8 bits or float32. */
bool qmatmul_claim(const struct node *node, struct kernel_caps *ret);

/* Fills *ret with constants, scales and zero points of such a node. Free *ret_scales after creating
 * the primitive. */
enum status qmatmul_describe(const struct node *node, struct product_desc *ret, float **ret_scales,
                             struct error *err) MUST_USE;

/* For a Conv or QLinearConv on channels-last operands: completes *desc and calls product_create().
 * The caller has set the constants, weights_input, and the scales and zero points of 8 bits. */
enum status conv_product(const struct lowering *lowering, struct product_desc *desc,
                         struct step **ret, struct error *err) MUST_USE;
