/* Private to engine/op/, except struct window: the families of operators, and functions that their
 * inference shares. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

/* X(name): a family of operators, whose records are ops_name[]. */
/* clang-format off */
#define OP_FAMILIES(X)                                                                             \
    X(elementwise) X(unary) X(binary) X(shape) X(pad) X(index) X(sort) X(reduce) X(linear)         \
    X(einsum) X(conv) X(pool) X(norm) X(softmax) X(resize) X(grid) X(detection) X(quantize)        \
    X(quantize_product) X(quantize_ms) X(control) X(attention) X(transformer)                     \
    X(recurrent)
/* clang-format on */
#define OP_FAMILY_EXTERN(name) extern const struct op_info ops_##name[]; /* ends with OP_NONE */
OP_FAMILIES(OP_FAMILY_EXTERN)
#undef OP_FAMILY_EXTERN

/* Reads an attribute of `count` numbers, each low … high, into ret (NULL: only checks it). Without
 * the attribute, all are `otherwise`. STATUS_SHAPE. */
enum status infer_list(const struct node *node, const char *name, size_t count, int64_t low,
                       int64_t high, int64_t otherwise, int64_t *ret, struct error *err) MUST_USE;

/* Attributes of a sliding window. */
#define WINDOW_ATTRS "auto_pad:string dilations:ints kernel_shape:ints pads:ints strides:ints"

/* Number of elements; 0 for NULL or an unknown shape. */
double elements_of(const struct value *value);

/* Functions for op_info.work, which estimate the multiply-adds of a node. */
double work_elements(const struct node *node); /* always 0 */
double work_window(const struct node *node);   /* a window with the attribute kernel_shape */
double work_conv(const struct node *node); /* weights [M, C / group, taps …], also quantized */
double work_conv_transpose(const struct node *node);
double work_product(const struct node *node); /* a matrix product, also a quantized one */
double work_matmul_nbits(const struct node *node);
double work_attention(const struct node *node); /* input 1 is K, [..., keys, depth] */

/* Normalises *axis from -rank … rank-1 to 0 … rank-1. STATUS_SHAPE names an axis out of range. */
enum status infer_axis(int64_t *axis, int rank, struct error *err) MUST_USE;

/* The attribute `axis` (default: `otherwise`) as an axis 0 … rank-1 of input 0. */
enum status infer_attribute_axis(const struct node *node, int64_t otherwise, int64_t *ret,
                                 struct error *err) MUST_USE;

/* numpy broadcasting of two shapes (ONNX Broadcasting.md). STATUS_SHAPE names both shapes. */
enum status infer_broadcast(const struct shape *a, const struct shape *b, struct shape *ret,
                            struct error *err) MUST_USE;

/* Sets output i if it is wanted, and checks the shape with shape_check(). */
enum status infer_output(struct node *node, size_t i, enum dtype dtype, const struct shape *shape,
                         struct error *err) MUST_USE;

/* Sets only the dtype of output i, if the output is wanted: the shape depends on contents and
 * becomes SHAPE_NONE. Always returns STATUS_OK, for the inference function to return. */
enum status infer_unknown(struct node *node, size_t i, enum dtype dtype);

/* Gives output 0 a dtype, and the shape to which all inputs broadcast. infer_binary() uses the
 * dtype of input 0. */
enum status infer_broadcasts(struct node *node, enum dtype dtype, struct error *err) MUST_USE;
enum status infer_binary(struct node *node, struct error *err) MUST_USE;

/* The shape of inputs `first`, first + step … joined along the attribute `axis`. */
enum status infer_joined(const struct node *node, size_t first, size_t step, struct shape *ret,
                         struct error *err) MUST_USE;

/* Output 0 is int64, and its shape depends on contents. */
enum status infer_unknown_i64(struct node *node, struct error *err) MUST_USE;

/* Gives output 0 the dtype and shape of input 0. */
enum status infer_like(struct node *node, struct error *err) MUST_USE;

/* Spatial attributes of Conv, pools …: kernel, strides, pads (begin…, end…), dilations, auto_pad
 * worked out for the given input extents. Inference and all kernels use this struct. */
struct window {
    int spatial; /* 1 … 3 */
    int64_t kernel[3], stride[3], dilation[3], pad_begin[3], pad_end[3];
    int64_t in[3], out[3];
};

/* The values of auto_pad in order of their index; an empty text counts as NOTSET. */
#define AUTO_PADS "NOTSET SAME_UPPER SAME_LOWER VALID"
enum auto_pad { AUTO_PAD_NOTSET, AUTO_PAD_SAME_UPPER, AUTO_PAD_SAME_LOWER, AUTO_PAD_VALID };
int window_auto_pad(const struct node *node); /* -1: unknown value */

/* `in`: spatial extents of the input; `kernel`: extents of the window. Reads auto_pad, dilations,
 * pads, strides and ceil_mode from the node. STATUS_SHAPE or STATUS_MODEL for strides <= 0, wrong
 * list lengths, outputs <= 0, an unknown auto_pad and overflow. Semantics: ONNX Conv-11,
 * MaxPool-12, AveragePool-19 (ceil_mode drops a last window that starts in the end padding). */
enum status window_init(const struct node *node, int spatial, const int64_t *in,
                        const int64_t *kernel, struct window *ret, struct error *err) MUST_USE;
