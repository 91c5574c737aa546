/* Private to the reference kernels of quantized operators: scales, zero points, rounding. */
#pragma once

#include <math.h>

#include "engine/op/nn.h"
#include "engine/op/strided.h"

/* real = (stored - zero) * scale, for a tensor with a single scale. */
struct quant {
    double scale;
    int64_t zero;
    int64_t low, high; /* range of the stored type */
};

/* Declarations for operands_check(): of a stored operand with its scale and zero point, and of the
 * result's scale and zero point. If `must` is "", passes may omit those of the result. */
#define QUANTIZED_OPERAND(x, dims)                                                                 \
#x ":8bit" dims "! " #x "_scale:float[1]! " #x "_zero_point:8bit[1] "
#define QUANTIZED_RESULT(must) "y_scale:float[1]" must " y_zero_point:8bit[1] "

/* Sets the range of an integer dtype of 8 or 16 bits, or of int32. */
void quant_range(enum dtype dtype, int64_t *ret_low, int64_t *ret_high);

/* Reads operands `scale` and `scale + 1` (the zero point, default 0) of the node, for a tensor of
 * `dtype`. Inference has checked that each is a scalar. */
struct quant quant_read(const struct kernel_args *args, size_t scale, enum dtype dtype);

/* Rounds `shifted` (real / scale + zero) half to even to a stored number; NaN becomes `low`. */
static inline int64_t quant_round_shifted(const struct quant *q, double shifted)
{
    double value = rint(shifted);
    if (!(value > (double)q->low))
        return q->low;
    return value < (double)q->high ? (int64_t)value : q->high;
}

/* Rounds `divided` (real / scale) half to even and then adds the zero point, as ONNX does. With an
 * odd zero point, ties differ from quant_round_shifted(). */
static inline int64_t quant_round(const struct quant *q, double divided)
{
    return quant_round_shifted(q, rint(divided) + (double)q->zero);
}

/* y[m, n] += a * b as in Gemm; y contains the initial sums. */
enum status gemm_product(const struct kernel_args *args, const struct gemm_shape *gemm,
                         enum dtype working, const void *a, const void *b, void *y,
                         struct error *err) MUST_USE;

/* Multiplies all matrices of the batch; y starts as zeros. */
enum status multiply_batches(const struct kernel_args *args, const struct matmul_shape *shape,
                             enum dtype working, const void *a, const void *b, void *y,
                             struct error *err) MUST_USE;

/* The dtype of a quantized output: the dtype of its zero point, or `otherwise` without a zero
 * point. */
enum dtype quantized_dtype(const struct node *node, size_t zero_point, enum dtype otherwise);

/* These functions infer pools. A pool of 8-bit tensors has its output's zero point in operand 4. */
enum status infer_pool(struct node *node, struct error *err) MUST_USE;
enum status infer_global_pool(struct node *node, struct error *err) MUST_USE;
