/* Relates the extents of operands to those of outputs. Inference functions, passes and kernels all
 * use this file, so they cannot disagree. Every function checks all its arguments. */
#pragma once

#include "engine/op/families.h"

/* ---- matrix products ---- */

/* numpy matmul: a [batch_a …, m, k] times b [batch_b …, k, n]; 1-D operands are promoted. */
struct matmul_shape {
    struct shape out;
    size_t m, n, k;
    int batch_rank;
    size_t batch[TENSOR_MAX_RANK];    /* extents of the batch after broadcasting */
    size_t a_stride[TENSOR_MAX_RANK]; /* in matrices; 0 if `a` is broadcast */
    size_t b_stride[TENSOR_MAX_RANK];
};

/* STATUS_SHAPE names both shapes. */
enum status matmul_shape_init(const struct shape *a, const struct shape *b,
                              struct matmul_shape *ret, struct error *err) MUST_USE;

/* com.microsoft's MatMulNBits: a [..., k] times the transpose of weights [n, k] of `bits` bits.
 * Every `block` weights of a row share a scale. */
struct nbits_shape {
    size_t n, k, bits, block, blocks; /* blocks: number per row */
};

/* Checks the sizes of all operands but `a`. STATUS_SHAPE, STATUS_UNSUPPORTED, STATUS_TOO_LARGE. */
enum status nbits_shape_init(const struct node *node, struct nbits_shape *ret,
                             struct error *err) MUST_USE;

/* Converts the weights to [k, n]. If `zeros` is NULL, zero points are the middle of the range. */
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
    size_t in_channels, out_channels; /* sum over all groups */
    struct shape out;                 /* [N, M, out …] */
};

/* Conv, QLinearConv, ConvInteger, DeformConv: x [N, C, …], w [M, C/group, …]. ConvTranspose: x [N,
 * C, …], w [C, M/group, …], window.in has the extents of x, and window.out has the extents of the
 * result: output position = input position * stride + tap * dilation - pad_begin. */
enum status conv_shape_init(const struct node *node, const struct shape *x, const struct shape *w,
                            struct conv_shape *ret, struct error *err) MUST_USE;

/* Pools with the attribute kernel_shape; x is [N, C, …], or [N, …, C] with `channels_last`. */
enum status pool_window_init(const struct node *node, const struct shape *x, bool channels_last,
                             struct window *ret, struct error *err) MUST_USE;

/* Finds the taps *ret_first … *ret_end - 1 along axis i that read the input, for a window whose
 * first tap is at input position `start`. Returns how many taps lie in the input or the padding;
 * with ceil_mode, taps may lie beyond the padding. */
int64_t window_taps(const struct window *w, int i, int64_t start, int64_t *ret_first,
                    int64_t *ret_end);

/* Computes the shape to which MaxUnpool's indices refer. It is also the output's shape if the
 * operand output_shape is omitted. */
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
    NEAREST_SIMPLE, /* before opset 11: rounds down, or up on an axis that shrinks */
};

struct resize_axis {
    int64_t in, out;
    double scale;      /* as in the node, or out / in */
    bool from_sizes;   /* scale is exactly out / in: coordinates use the ratio */
    double start, end; /* roi, for RESIZE_TF_CROP_AND_RESIZE */
    bool resized;      /* false: the axis is copied unchanged */
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

/* Plans a Resize of an x of this shape. If *ret_known is false, roi, scales or sizes are not known
 * yet, and *ret is not set. Reads roi, scales and sizes from `known` of node->inputs. */
enum status resize_plan_init(const struct node *node, const struct shape *x,
                             struct resize_plan *ret, bool *ret_known, struct error *err) MUST_USE;

/* True if the node resizes only height and width of images, by known factors. *ret then has these
 * factors. It has no extents, because x may be [N, C, H, W] or [N, H, W, C]. */
bool resize_is_spatial(const struct node *node, struct resize_plan *ret);

/* Returns the number of taps (input positions with a weight) per output position: 1, 2 or 4, or
 * more along an antialiased axis that shrinks. */
size_t resize_tap_count(const struct resize_plan *plan, const struct resize_axis *axis);

/* Computes the taps of output position i: index[k] is a position in the axis, and weight[k] its
 * weight. Returns true if position i lies outside of the crop and gets the extrapolation value. */
bool resize_taps(const struct resize_plan *plan, const struct resize_axis *axis, int64_t i,
                 size_t *index, double *weight);
