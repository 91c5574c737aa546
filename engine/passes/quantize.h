/* Private to engine/passes/: what the passes over quantized models share. */
#pragma once

#include "engine/passes/edit.h"

/* A DequantizeLinear of one scale (or one per channel of a constant), or a QuantizeLinear of one.
 */
struct ends {
    struct value *stored; /* the 8-bit side */
    struct value *scale, *zero;
};

bool quantize_is_8bit(enum dtype dtype);

bool quantize_is_one(const struct value *value); /* one known number */

/* The DequantizeLinear that makes `value`: constant float32 scale and constant zero point, not in
 * blocks. */
bool quantize_read_dequantize(const struct value *value, struct ends *ret);

/* An activation: 8 bits, one scale, one zero point of the same type, stored at run time. */
bool quantize_read_activation(const struct value *value, struct ends *ret);

/* A QuantizeLinear of one scale and zero point to 8 bits. */
bool quantize_read_quantize(const struct node *node, struct ends *ret);

/* `quantize` now computes what `producer` and itself did: op, with the producer's name and
 * attributes. */
bool quantize_become(struct edit *edit, struct node *quantize, const struct node *producer,
                     enum op op, int opset, struct value *const *inputs, size_t count);

/* The QuantizeLinear after a Conv, Gemm or MatMul becomes QLinearConv, QGemm or
 * QLinearMatMul, where source and weights are stored in 8 bits and the weights are symmetric. With
 * `to` NULL the product itself (which is `quantize`, too) becomes one whose result is float32. */
bool quantize_conv(struct edit *edit, struct node *quantize, const struct node *conv,
                   const struct ends *to);
bool quantize_gemm(struct edit *edit, struct node *quantize, const struct node *gemm,
                   const struct ends *to);

/* The same of a product that no QuantizeLinear follows, where the backend multiplies so
 * (optimize_quantized). */
bool quantize_product(struct edit *edit, struct node *product);

/* Is it a product of 8-bit integers whose result is float32? */
bool quantize_makes_float(const struct node *node);

/* `bias`, a float32 or stored constant, for such a QLinearMatMul: in units of source scale x weight
 * scale, int32. NULL where it does not fit. */
struct value *quantize_bias(struct edit *edit, const struct node *matmul, const struct value *bias);

/* Where what `node` stores in 8 bits depends, element by element, on one other 8-bit tensor alone
 * (DequantizeLinear → any chain of elementwise operators and constants → QuantizeLinear,
 * QLinearAdd …, also through an OP_LOOKUP made before), it becomes an OP_LOOKUP of that tensor,
 * or an Identity. The table is what the reference kernels answer for all 256 numbers, so that
 * nothing is rounded differently. Nodes before `node` that nobody reads any more stay for
 * edit_sweep(). */
bool quantize_table(struct edit *edit, struct node *node);

/* An OP_LOOKUP node's table as a constant: [256], of the result's type, indexed by the stored byte.
 */
struct value *quantize_add_table(struct edit *edit, enum dtype dtype, const uint8_t table[256]);
