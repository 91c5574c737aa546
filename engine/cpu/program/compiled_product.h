/* Private to engine/cpu/: computes products with oneDNN 2.6 or later. Only onednn.c includes
 * oneDNN's header. onednn_version.h hides the differences between versions 2 and 3. A build without
 * oneDNN uses without_onednn.c instead. */
#pragma once

#include "engine/graph/graph.h"

/* Strides of a tensor's elements in memory. */
struct strided_layout {
    enum dtype dtype;
    int rank;
    int64_t dims[TENSOR_MAX_RANK], strides[TENSOR_MAX_RANK]; /* strides in elements */
};

/* ---- the library ---- */

struct onednn; /* oneDNN on the CPU; belongs to one backend */

enum status onednn_open(struct onednn **ret, struct error *err) MUST_USE;
void onednn_close(struct onednn *onednn); /* NULL is fine; first free all objects made with it */

/* Empties oneDNN's cache of unused primitives: 10 MB of rejected candidates after loading a
 * ResNet-50. Any thread. */
void onednn_drop_unused(void);

/* True if oneDNN adds unsigned x signed 8-bit products in pairs that saturate at 16 bits. */
bool onednn_pairs_saturate(void);

/* True if oneDNN computes exact sums of `src` (uint8 or int8) times these constant int8 weights.
 * lensd's own kernels compute other products. */
bool onednn_sums_fit(const struct tensor *weights, enum dtype src);

/* ---- layouts of packed weights ---- */

struct packed_layout; /* a layout that a product chose */

/* Returns NULL when out of memory. */
struct packed_layout *packed_layout_clone(const struct packed_layout *layout);
void packed_layout_free(struct packed_layout *layout); /* NULL is fine */
size_t packed_layout_bytes(const struct packed_layout *layout);
bool packed_layouts_equal(const struct packed_layout *a, const struct packed_layout *b);
bool packed_layout_is(const struct packed_layout *packed, const struct strided_layout *layout);

/* Copies the tensor at `from` in layout `given` to `to` in layout `wanted`. */
enum status onednn_reorder(const struct onednn *onednn, const struct strided_layout *given,
                           void *from, const struct packed_layout *wanted, void *to,
                           struct error *err) MUST_USE;

/* ---- products ---- */

enum product_op { PRODUCT_CONV, PRODUCT_DECONV, PRODUCT_MATMUL };

/* dst = activation(src * weights + bias [+ dst]). Dims of images are N, C, spatial …; those of
 * weights are [group,] out, in, spatial …, and in, out for a matrix product. */
struct product_desc {
    enum product_op op;
    struct strided_layout src, dst;
    struct tensor *weights_constant; /* NULL: an activation with the layout `weights` */
    struct strided_layout weights;   /* layout of the constant in memory */
    enum dtype packed;               /* dtype of the packed constant: f32, bf16, i8 */
    struct tensor *bias_constant;    /* float32 (int32 with scales) vector; NULL: no bias */
    struct strided_layout bias;
    size_t weights_input;                                     /* index in node->inputs */
    int64_t stride[3], dilation[3], pad_begin[3], pad_end[3]; /* not for a matrix product */
    const float *scales; /* for 8-bit integers: result = sum * scales[output channel], plus dst_zero
                            for an 8-bit dst; a float32 dst has a float32 residual. NULL: floats */
    size_t scale_count;
    float dst_scale; /* if not 0, the activation's result is divided by it before it is stored */
    int32_t src_zero, dst_zero;
    bool beyond; /* some windows lie entirely in the padding */
    bool own;    /* use lensd's kernels; *ret stays NULL in a build that has no others */
};

struct onednn_product; /* a compiled product; must not run concurrently */

/* Compiles oneDNN's preferred implementation of the product. *ret stays NULL if there is none.
 * Keeps no reference to `desc`. */
enum status onednn_product_create(const struct onednn *onednn, const struct product_desc *desc,
                                  const struct epilogue *epilogue, struct onednn_product **ret,
                                  struct error *err) MUST_USE;
void onednn_product_free(struct onednn_product *product); /* NULL is fine */

const char *onednn_product_name(const struct onednn_product *product); /* owned by `product` */
size_t onednn_product_scratch(const struct onednn_product *product);   /* bytes that a run needs */
const struct packed_layout *onednn_product_weights(const struct onednn_product *product);

/* Sets constant operands; call it before the first run. weights: in the layout of
 * onednn_product_weights(), or NULL if each run passes them. bias: the constant's bytes, or NULL.
 * Both must live as long as the product. */
enum status onednn_product_bind(struct onednn_product *product, void *weights, void *bias,
                                struct error *err) MUST_USE;

/* Runs the product. weights: NULL if onednn_product_bind() set them. scratch:
 * onednn_product_scratch() bytes, 64-byte aligned. */
enum status onednn_product_run(const struct onednn_product *product, void *src, void *weights,
                               void *dst, void *scratch, struct error *err) MUST_USE;
