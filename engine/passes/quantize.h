/* Private to engine/passes/: functions that the passes over quantized models share. */
#pragma once

#include "engine/passes/edit.h"

/* What a DequantizeLinear reads, or a QuantizeLinear writes: stored numbers, their scale or scales,
 * and their zero point or points. */
struct ends {
    struct value *stored; /* the tensor of integers */
    struct value *scale, *zero;
};

bool quantize_is_one(const struct value *value); /* a constant scalar */

/* Reads the DequantizeLinear that makes `value`. Returns false unless its float32 scale and its
 * zero point are constants, and not per block. */
bool quantize_read_dequantize(const struct value *value, struct ends *ret);

/* Reads the DequantizeLinear that makes an activation. Returns false unless the stored numbers have
 * 8 bits, one scale and one zero point, and are not constant. */
bool quantize_read_activation(const struct value *value, struct ends *ret);

/* Reads a QuantizeLinear to 8 bits with one scale and zero point. */
bool quantize_read_quantize(const struct node *node, struct ends *ret);

/* Turns the node `quantize` into operator `op`, which computes both `producer` and `quantize`.
 * The node gets the producer's name and attributes. */
bool quantize_become(struct edit *edit, struct node *quantize, const struct node *producer,
                     enum op op, int opset, struct value *const *inputs, size_t count);

/* Turns `quantize`, the QuantizeLinear after `product`, into QLinearConv, QGemm or QLinearMatMul.
 * The product is a Conv, a MatMul, or a Gemm with alpha 1, beta 1 and transA 0. Its activation and
 * weights must be stored in 8 bits, and the weights constant and symmetric. Without a
 * QuantizeLinear, `to` is NULL and `quantize` is the product itself; then the new operator's result
 * is float32. */
bool quantize_product(struct edit *edit, struct node *quantize, const struct node *product,
                      const struct ends *to);

/* True for a product of 8-bit integers with a float32 result. */
bool quantize_makes_float(const struct node *node);

/* Converts `bias`, a float32 or stored constant, to int32 in units of activation scale x weight
 * scale, for a QLinearMatMul with a float32 result. Returns NULL if the bias does not fit, or
 * rounding changes the bias too much. */
struct value *quantize_bias(struct edit *edit, const struct node *matmul, const struct value *bias);

/* If the 8-bit result of `node` depends, element by element, only on one other 8-bit tensor,
 * replaces it by an OP_LOOKUP of that tensor, or an Identity. Examples are QLinearAdd, and
 * DequantizeLinear → any chain of elementwise operators, constants and earlier OP_LOOKUPs →
 * QuantizeLinear. The reference kernels compute the table for all 256 numbers, so rounding does not
 * change. edit_sweep() later removes nodes without readers. */
bool quantize_table(struct edit *edit, struct node *node);
