/* Private to engine/op/ but for struct window: the families, and what their inference shares. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

/* X(name): the records of engine/op/name.c. */
/* clang-format off */
#define OP_FAMILIES(X)                                                                             \
    X(elementwise) X(unary) X(binary) X(shape) X(pad) X(index) X(sort) X(reduce) X(linear)         \
    X(einsum) X(conv) X(pool) X(norm) X(softmax) X(resize) X(grid) X(detection) X(quantize)        \
    X(quantize_product) X(quantize_ms) X(control) X(attention) X(transformer)                     \
    X(recurrent)
/* clang-format on */
#define OP_FAMILY_EXTERN(name) extern const struct op_info ops_##name[]; /* up to OP_NONE */
OP_FAMILIES(OP_FAMILY_EXTERN)
#undef OP_FAMILY_EXTERN

/* Attributes of a sliding window. */
#define WINDOW_ATTRS "auto_pad:string dilations:ints kernel_shape:ints pads:ints strides:ints"

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

/* The attribute `axis` (`otherwise` without it) as an axis 0 … rank-1 of input 0. */
enum status infer_attribute_axis(const struct node *node, int64_t otherwise, int64_t *ret,
                                 struct error *err) MUST_USE;

/* numpy broadcasting of two shapes (ONNX Broadcasting.md); STATUS_SHAPE with both shapes. */
enum status infer_broadcast(const struct shape *a, const struct shape *b, struct shape *ret,
                            struct error *err) MUST_USE;

/* Sets output i when it is wanted; checks the shape with shape_check(). */
enum status infer_output(struct node *node, size_t i, enum dtype dtype, const struct shape *shape,
                         struct error *err) MUST_USE;

/* Output i is wanted but its shape depends on contents: dtype set, shape SHAPE_NONE.
 * Always STATUS_OK, which an inference function then returns. */
enum status infer_unknown(struct node *node, size_t i, enum dtype dtype);

/* Output 0 has the dtype and shape of input 0, whose dtype is one of `dtypes` (operands.h). */
enum status infer_like(struct node *node, unsigned dtypes, struct error *err) MUST_USE;

/* Reads the contents of integer input i (axes, shape, pads, …) into ret[max].
 * *ret_known false: the input's contents are not known yet. *ret_count 0 with known true: input
 * left out or empty. STATUS_SHAPE when it is no integer tensor of rank <= 1 or longer than max. */
enum status infer_ints(const struct node *node, size_t i, int64_t *ret, size_t max,
                       size_t *ret_count, bool *ret_known, struct error *err) MUST_USE;

/* Spatial attributes of Conv, pools …: kernel, strides, pads (begin…, end…), dilations, auto_pad
 * worked out for the given input extents. Inference and all kernels share them. */
struct window {
    int spatial; /* 1 … 3 */
    int64_t kernel[3], stride[3], dilation[3], pad_begin[3], pad_end[3];
    int64_t in[3], out[3];
};

/* The words of auto_pad, and their places in the list; an empty text counts as NOTSET. */
#define AUTO_PADS "NOTSET SAME_UPPER SAME_LOWER VALID"
enum auto_pad { AUTO_PAD_NOTSET, AUTO_PAD_SAME_UPPER, AUTO_PAD_SAME_LOWER, AUTO_PAD_VALID };
int window_auto_pad(const struct node *node); /* -1: none of them */

/* in: spatial extents; kernel: extents of the window. Reads auto_pad, dilations, pads, strides,
 * ceil_mode from the node. STATUS_SHAPE / STATUS_MODEL on zero or negative strides, lengths that do
 * not fit, outputs <= 0, overflow. Semantics: ONNX Conv-11, MaxPool-12,
 * AveragePool-19 (ceil_mode drops a last window that starts in the end padding). */
enum status window_init(const struct node *node, int spatial, const int64_t *in,
                        const int64_t *kernel, struct window *ret, struct error *err) MUST_USE;
