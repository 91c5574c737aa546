/* Private to engine/op/, but for struct window: the families of the operator table and what their
 * inference functions share. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

extern const struct op_family ops_elementwise;
extern const struct op_family ops_shape;
extern const struct op_family ops_index;
extern const struct op_family ops_reduce;
extern const struct op_family ops_linear;
extern const struct op_family ops_convolution;
extern const struct op_family ops_norm;
extern const struct op_family ops_resample;
extern const struct op_family ops_quantize;
extern const struct op_family ops_control;
extern const struct op_family ops_attention;
extern const struct op_family ops_transformer;

/* The multiply-adds beyond reading and writing each element once, for the records. */
double work_elements(const struct node *node); /* none */
double work_window(const struct node *node);   /* a window of the attribute kernel_shape */
double work_conv(const struct node *node);     /* weights [M, C / group, taps …] are input 1 */
double work_conv_transpose(const struct node *node);
double work_qlinear_conv(const struct node *node);    /* weights are input 3 */
double work_product(const struct node *node);         /* a matrix product of inputs 0 and 1 */
double work_qlinear_product(const struct node *node); /* of 0 and 3 */
double work_matmul_nbits(const struct node *node);
double
work_attention(const struct node *node); /* rows and keys are the dimension before the last */

/* *axis in -rank … rank-1 becomes 0 … rank-1; STATUS_SHAPE naming it otherwise. */
enum status infer_axis(int64_t *axis, int rank, struct error *err) MUST_USE;

/* numpy broadcasting of two shapes (ONNX Broadcasting.md); STATUS_SHAPE with both shapes. */
enum status infer_broadcast(const struct shape *a, const struct shape *b, struct shape *ret,
                            struct error *err) MUST_USE;

/* Sets output i when it is wanted; checks the shape with shape_check(). */
enum status infer_output(struct node *node, size_t i, enum dtype dtype, const struct shape *shape,
                         struct error *err) MUST_USE;

/* Output i is wanted but its shape depends on contents: dtype set, shape SHAPE_NONE.
 * Always STATUS_OK, which an inference function then returns. */
enum status infer_unknown(struct node *node, size_t i, enum dtype dtype);

/* Reads the contents of integer input i (axes, shape, pads, …) into ret[max].
 * *ret_known false: the input's contents are not known yet. *ret_count 0 with known true: input
 * left out or empty. STATUS_SHAPE when it is no integer tensor of rank <= 1 or longer than max. */
enum status infer_ints(const struct node *node, size_t i, int64_t *ret, size_t max,
                       size_t *ret_count, bool *ret_known, struct error *err) MUST_USE;

/* Spatial attributes of Conv, pools …: kernel, strides, pads (begin…, end…), dilations, auto_pad
 * worked out for the given input extents. Shared by inference and by every kernel, so that they
 * cannot disagree. */
struct window {
    int spatial; /* 1 … 3 */
    int64_t kernel[3], stride[3], dilation[3], pad_begin[3], pad_end[3];
    int64_t in[3], out[3];
};

/* in: spatial extents; kernel: extents of the window. Reads auto_pad, dilations, pads, strides,
 * ceil_mode from the node. STATUS_SHAPE / STATUS_MODEL on zero or negative strides, lengths that do
 * not fit, outputs <= 0, overflow. Semantics: ONNX Conv-11, MaxPool-12,
 * AveragePool-19 (ceil_mode drops a last window that starts in the end padding). */
enum status window_init(const struct node *node, int spatial, const int64_t *in,
                        const int64_t *kernel, struct window *ret, struct error *err) MUST_USE;
