/* For inference functions, passes and kernels: how operands map to outputs, worked out once so
 * that inference and kernels cannot disagree. Every function checks everything it is given. */
#pragma once

#include "engine/op/families.h"

/* ---- matrix products ---- */

/* numpy matmul: a [batch_a …, m, k] times b [batch_b …, k, n]; 1-D operands are promoted. */
struct matmul_shape {
    struct shape out;
    size_t m, n, k;
    int batch_rank;
    size_t batch[TENSOR_MAX_RANK];    /* extents of the broadcast batch */
    size_t a_stride[TENSOR_MAX_RANK]; /* in matrices; 0 where a is broadcast */
    size_t b_stride[TENSOR_MAX_RANK];
};

/* STATUS_SHAPE with both shapes. */
enum status matmul_shape_init(const struct shape *a, const struct shape *b,
                              struct matmul_shape *ret, struct error *err) MUST_USE;

/* com.microsoft's MatMulNBits: a [..., k] times the transpose of weights [n, k] of `bits` bits, of
 * which `block` in a row share a scale. */
struct nbits_shape {
    size_t n, k, bits, block, blocks; /* blocks of a row */
};

/* Checks the sizes of all operands but a. STATUS_SHAPE, STATUS_UNSUPPORTED, STATUS_TOO_LARGE. */
enum status nbits_shape_init(const struct node *node, struct nbits_shape *ret,
                             struct error *err) MUST_USE;

/* Writes the weights as [k, n]. `zeros` may be NULL: the middle. */
void nbits_widen(const struct nbits_shape *shape, const struct tensor *weights,
                 const struct tensor *scales, const struct tensor *zeros, float *dst);

/* Gemm: [m, k] or its transpose times [k, n] or its transpose. */
struct gemm_shape {
    size_t m, n, k;
    bool trans_a, trans_b;
};

enum status gemm_shape_init(const struct node *node, const struct shape *a, const struct shape *b,
                            struct gemm_shape *ret, struct error *err) MUST_USE;

/* ---- convolution ---- */

struct conv_shape {
    struct window window;
    size_t batch, group;
    size_t in_channels, out_channels; /* in all groups together */
    struct shape out;                 /* [N, M, out …] */
};

/* Conv, QLinearConv, ConvInteger: x [N, C, …], w [M, C/group, …]. */
enum status conv_shape_init(const struct node *node, const struct shape *x, const struct shape *w,
                            struct conv_shape *ret, struct error *err) MUST_USE;

/* ConvTranspose: x [N, C, …], w [C, M/group, …]. window.in are the extents of x, window.out those
 * of the result: output position = input position * stride + tap * dilation - pad_begin. */
enum status conv_transpose_shape_init(const struct node *node, const struct shape *x,
                                      const struct shape *w, struct conv_shape *ret,
                                      struct error *err) MUST_USE;

/* Pools, kernel from kernel_shape; x [N, C, …], or [N, …, C] with `channels_last`. */
enum status pool_window_init(const struct node *node, const struct shape *x, bool channels_last,
                             struct window *ret, struct error *err) MUST_USE;

/* MaxUnpool: the shape its indices address (without the input output_shape). */
enum status unpool_shape_init(const struct node *node, const struct shape *x, struct shape *ret,
                              struct error *err) MUST_USE;

/* ---- resize ---- */

enum resize_mode { RESIZE_NEAREST, RESIZE_LINEAR, RESIZE_CUBIC };

enum resize_coordinate {
    RESIZE_HALF_PIXEL,
    RESIZE_HALF_PIXEL_SYMMETRIC,
    RESIZE_PYTORCH_HALF_PIXEL,
    RESIZE_ALIGN_CORNERS,
    RESIZE_ASYMMETRIC,
    RESIZE_TF_HALF_PIXEL_FOR_NN,
    RESIZE_TF_CROP_AND_RESIZE,
};

enum resize_nearest {
    NEAREST_ROUND_PREFER_FLOOR,
    NEAREST_ROUND_PREFER_CEIL,
    NEAREST_FLOOR,
    NEAREST_CEIL,
    NEAREST_SIMPLE, /* before opset 11: below, or above on an axis that shrinks */
};

struct resize_axis {
    int64_t in, out;
    double scale;      /* as given, or out / in */
    bool from_sizes;   /* scale is exactly out / in: coordinates use the ratio */
    double start, end; /* roi, for RESIZE_TF_CROP_AND_RESIZE */
    bool resized;      /* false: copied as it is */
};

struct resize_plan {
    enum resize_mode mode;
    enum resize_coordinate coordinate;
    enum resize_nearest nearest;
    bool antialias, exclude_outside;
    double cubic_a;
    float extrapolation;
    int rank;
    struct resize_axis axis[TENSOR_MAX_RANK];
};

/* Resize of an x of this shape. *ret_known false (and *ret untouched): contents of
 * roi, scales or sizes are not known yet. These operands are taken from node->inputs' `known`. */
enum status resize_plan_init(const struct node *node, const struct shape *x,
                             struct resize_plan *ret, bool *ret_known, struct error *err) MUST_USE;

/* Whether the node resizes only height and width of images, by factors that are known. *ret then
 * has these factors, but no extents: the shape of x may be [N, C, H, W] or [N, H, W, C]. */
bool resize_is_spatial(const struct node *node, struct resize_plan *ret);

/* Taps of each output position along an axis: 1, 2, 4, or more going down with antialias. */
size_t resize_tap_count(const struct resize_plan *plan, const struct resize_axis *axis);

/* Those of output position i: where, inside the axis, and how much. True: it lies outside of the
 * crop and gets the extrapolation value. */
bool resize_taps(const struct resize_plan *plan, const struct resize_axis *axis, int64_t i,
                 size_t *index, double *weight);

/* ---- quantization ---- */

/* Which scale belongs to element [o, i, n] of x seen as [outer, extent, inner]:
 * scale[o * outer_step + (i / block) * block_step + n * inner_step]. */
struct quant_layout {
    size_t outer, extent, inner;
    size_t block, outer_step, block_step, inner_step;
};

/* Per tensor (one scale), per axis (a vector), or blocked (the rank of x): QuantizeLinear and
 * DequantizeLinear of opset 10 to 28. */
enum status quant_layout_init(const struct node *node, const struct shape *x,
                              const struct shape *scale, struct quant_layout *ret,
                              struct error *err) MUST_USE;

/* Which scale or zero point belongs to a row of the left operand or a column of the right one of a
 * quantized matrix product: param[matrix * matrix_step + line * line_step]; `matrix` counts the
 * operand's own matrices. */
struct matmul_param {
    size_t matrix_step, line_step;
};

/* `rows`: the operand is the left one. STATUS_SHAPE. */
enum status matmul_param_init(const struct shape *operand, const struct shape *param, bool rows,
                              const char *name, struct matmul_param *ret,
                              struct error *err) MUST_USE;
