/* Private to engine/cpu/: the step of a compiled product, and what Conv, ConvTranspose, Gemm,
 * MatMul and their quantized forms share. */
#pragma once

#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/compiled_product.h"

/* Creates a step that computes the product and the node's epilogue. */
enum status product_step_create(const struct lowering *lowering, const struct product_desc *desc,
                                struct step **ret, struct error *err) MUST_USE;

/* Claims a QLinearMatMul or QGemm with 8-bit activations, constant symmetric int8 weights [k, n],
 * and a result of 8 bits or float32. */
bool qmatmul_claim(const struct node *node, struct kernel_caps *ret);

/* Returns constants, scales and zero points of a node that qmatmul_claim() accepts. */
struct product_desc qmatmul_describe(const struct node *node);

/* Creates a step for a QLinearConv that cpu_quantized_conv has claimed. `desc` has the constants,
 * scales and zero points. *ret stays NULL if the kernel does not fit the node. */
enum status lower_qdepthwise(const struct lowering *lowering, const struct product_desc *desc,
                             struct step **ret, struct error *err);

/* Describes ONNX's weights [M, C / group, K…] as a product's weights, grouped if group > 1. */
struct strided_layout conv_weights(const struct tensor *weights, int64_t group);

/* For a Conv or QLinearConv on channels-last operands: completes *desc and calls
 * product_step_create(). The caller has set the constants, and the scales and zero points of
 * 8-bit tensors. */
enum status conv_product(const struct lowering *lowering, struct product_desc *desc,
                         struct step **ret, struct error *err) MUST_USE;
