/* Private to engine/cpu/: matrix products, convolutions and transposed convolutions of float32,
 * bfloat16 and 8-bit integers, compiled for their shapes. */
#pragma once

#include "engine/cpu/program/packed_layout.h"

enum product_op { PRODUCT_CONV, PRODUCT_DECONV, PRODUCT_MATMUL };

/* dst = activation(src * weights + bias [+ dst]). Dims of images are N, C, spatial …; those of
 * weights are [group,] out, in, spatial …, and in, out for a matrix product. */
struct product_desc {
    enum product_op op;
    struct strided_layout src, dst;
    struct tensor *weights_constant; /* NULL: the weights are an activation */
    struct strided_layout weights;   /* layout of the weights in memory */
    const struct value *bias; /* a constant float32 (with scales int32) vector; NULL: no bias */
    size_t weights_input;     /* index of the weights in node->inputs */
    int64_t stride[3], dilation[3], pad_begin[3]; /* unused by a matrix product */
    const float *scales; /* for 8-bit integers: result = sum * scales[output channel], plus dst_zero
                            for an 8-bit dst; a float32 dst has a float32 residual. NULL: floats */
    size_t scale_count;
    float dst_scale; /* if not 0, the activation's result is divided by it before it is stored */
    int32_t src_zero, dst_zero;
    bool gated; /* the source of a float32 1x1 convolution of stride 1 without padding is first
                   multiplied by a factor per image and channel */
};

struct compiled_product;

/* Keeps no reference to `desc`. threads: maximum number for a run. STATUS_NO_MEMORY. */
enum status compiled_product_create(int threads, const struct product_desc *desc,
                                    const struct epilogue *epilogue, struct compiled_product **ret,
                                    struct error *err) MUST_USE;
void compiled_product_free(struct compiled_product *product); /* NULL is fine */

const char *compiled_product_name(const struct compiled_product *product); /* static text */
size_t compiled_product_scratch(const struct compiled_product *product);   /* bytes for a run */
/* The layout that the weights must have; owned by `product`. */
const struct packed_layout *compiled_product_weights(const struct compiled_product *product);

/* Sets constant operands; call it before the first run. weights: packed by pack_weights(), or NULL
 * if each run passes them. bias: the constant's numbers, or NULL. Both must live as long as the
 * product. */
void compiled_product_bind(struct compiled_product *product, const void *weights, const void *bias);

/* The operands of a run. */
struct product_run {
    const void *src;
    const void *weights; /* NULL if compiled_product_bind() set them */
    const float *gate;   /* [image][channel], of a gated product */
    void *dst;
    void *scratch; /* compiled_product_scratch() bytes, 64-byte aligned */
};

void compiled_product_run(const struct compiled_product *product, const struct product_run *run);
