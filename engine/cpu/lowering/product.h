/* Private to engine/cpu/: what the oneDNN steps for Conv, Gemm and MatMul share. */
#pragma once

#include "engine/cpu/lowering/lowering.h"

/* dst = activation(src * weights + bias [+ what dst holds]) as one oneDNN primitive. */
struct product_step {
    struct step step;
    dnnl_primitive_t primitive;
    dnnl_memory_t src, weights, bias, dst, scratchpad;
    uint32_t src_value, weights_value, dst_value;
    bool weights_are_values; /* a MatMul of two activations */
    struct residual residual;
};

struct product_desc {
    const void *op_desc; /* dnnl_convolution_desc_t … */
    dnnl_memory_desc_t src, dst;
    struct tensor *weights_constant; /* NULL: an activation, laid out as `weights` says */
    dnnl_memory_desc_t weights;      /* as the constant lies in memory */
    struct tensor *bias_constant;    /* float32 (int32 with scales) vector; NULL: none */
    dnnl_memory_desc_t bias;
    size_t weights_input; /* index in node->inputs */
    const float *scales;  /* 8-bit integers: the sum times scales[output channel], plus dst_zero; */
    size_t scale_count;   /* NULL: floats */
    int32_t src_zero, dst_zero;
    bool beyond; /* some windows lie wholly in the padding */
};

/* Builds the primitive with the node's epilogue, packs weights, fills the step. *ret stays NULL
 * when oneDNN has no fast implementation for it. */
enum status product_create(const struct compile *compile, const struct product_desc *desc,
                           struct step **ret, struct error *err) MUST_USE;

/* Is it a QLinearMatMul or QGemm that oneDNN computes: 8-bit activations, constant symmetric int8
 * weights [k, n], an 8-bit result? */
bool qmatmul_takes(const struct node *node);

/* Constants, scales and zero points of such a node; *ret_scales is the caller's to free once the
 * primitive is made. */
enum status qmatmul_describe(const struct node *node, struct product_desc *ret, float **ret_scales,
                             struct error *err) MUST_USE;

/* A Conv or QLinearConv on channels-last operands: fills src, dst, weights, bias and op_desc of a
 * desc whose constants and weights_input are set, then product_create(). */
enum status conv_product(const struct compile *compile, struct product_desc *desc,
                         struct step **ret, struct error *err) MUST_USE;
