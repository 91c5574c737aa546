/* Private to engine/cuda/: how nodes become steps. A lowering knows one family of operators; it
 * uses program.h, and the lowerings it builds on, never the table in backend.c that lists them all.
 */
#pragma once

#include "engine/cuda/program.h"

/* *ret stays NULL when the maker does not take the node. */
typedef enum status (*cuda_lower_fn)(const struct cuda_compile *compile, struct cuda_step **ret,
                                     struct error *err);
enum status cuda_lower_conv(const struct cuda_compile *compile, struct cuda_step **ret,
                            struct error *err);
enum status cuda_lower_matmul(const struct cuda_compile *compile, struct cuda_step **ret,
                              struct error *err);
enum status cuda_lower_attention(const struct cuda_compile *compile, struct cuda_step **ret,
                                 struct error *err);
enum status cuda_lower_elementwise(const struct cuda_compile *compile, struct cuda_step **ret,
                                   struct error *err);
enum status cuda_lower_rows(const struct cuda_compile *compile, struct cuda_step **ret,
                            struct error *err);
enum status cuda_lower_numbers(const struct cuda_compile *compile, struct cuda_step **ret,
                               struct error *err);
enum status cuda_lower_axes(const struct cuda_compile *compile, struct cuda_step **ret,
                            struct error *err);
enum status cuda_lower_picks(const struct cuda_compile *compile, struct cuda_step **ret,
                             struct error *err);
enum status cuda_lower_image(const struct cuda_compile *compile, struct cuda_step **ret,
                             struct error *err);
enum status cuda_lower_move(const struct cuda_compile *compile, struct cuda_step **ret,
                            struct error *err);
enum status cuda_lower_quantised_product(const struct cuda_compile *compile, struct cuda_step **ret,
                                         struct error *err);
enum status cuda_lower_quantised_rows(const struct cuda_compile *compile, struct cuda_step **ret,
                                      struct error *err);
enum status cuda_lower_host(const struct cuda_compile *compile, struct cuda_step **ret,
                            struct error *err);

bool cuda_takes_attention(const struct node *node);
bool cuda_takes_matmul(const struct node *node);
bool cuda_takes_elementwise(const struct node *node);
bool cuda_takes_rows(const struct node *node);
/* Of 8-bit integers; images may be in either layout. */
bool cuda_takes_quantised_product(const struct node *node);
bool cuda_takes_quantised_epilogue(const struct node *node); /* takes_quantised_epilogue */
bool cuda_takes_quantised_rows(const struct node *node);
bool cuda_takes_quantised_pool(const struct node *node); /* a pool, channels-last */
bool cuda_takes_numbers(const struct node *node);
bool cuda_numbers_may_be_narrow(
    const struct node *node); /* it is taken, and loses little in 16 bits */
bool cuda_image_takes_channels_last(const struct node *node);

/* ---- matrix products (product.c) ---- */

struct cuda_product {
    int64_t m, n, k;       /* y [m, n] = a [m, k] b [k, n], row-major */
    bool trans_a, trans_b; /* a is stored [k, m], b [n, k] */
    int64_t b_row;         /* of a stored row of b; 0: as long as it is */
    int64_t batch;         /* with these steps between its members, elements; 0: shared */
    int64_t a_step, b_step;
    enum dtype dtype, y_dtype; /* of a and b; of y */
};

/* A step y = epilogue(a b): `weights` is an uploaded b, or NULL when b is a value. */
enum status cuda_product_create(const struct cuda_compile *compile,
                                const struct cuda_product *product, uint32_t a, uint32_t b,
                                const void *weights, const float *bias, struct cuda_step **ret,
                                struct error *err);

/* ---- windows (window.c) ---- */

/* A convolution of a node's first input and output, [N, H, W, C]; STATUS_UNSUPPORTED where its
 * numbers do not fit. row: as many as a window reads. */
struct window;
enum status window_of_conv(const struct node *node, const struct window *window, int64_t groups,
                           struct cuda_conv *ret, struct error *err) MUST_USE;
/* A pool, whose kernel_shape has two numbers. */
enum status window_of_pool(const struct node *node, struct cuda_pool *ret,
                           struct error *err) MUST_USE;
/* y [rows, n] of a matrix [rows, k] as images of one pixel; all of them are ints. */
struct cuda_conv window_of_rows(int64_t rows, int64_t n, int64_t k);

/* ---- convolutions (conv.c) ---- */

/* Keeps those of `count` candidates that do not need much memory for sums; how many these are, and
 * the most bytes that one of them needs. */
int conv_keep_candidates(const struct cuda_conv *conv, struct cuda_conv_candidate *candidates,
                         int count, size_t *ret_workspace);

/* All that the time of a step on tensor cores depends on; no padding, so that it can be compared as
 * bytes. */
struct conv_key {
    struct cuda_conv conv;
    int32_t x_dtype, y_dtype, has_residual, activation, unpadded, has_product;
};
_Static_assert(sizeof(struct conv_key) == sizeof(struct cuda_conv) + 6 * sizeof(int32_t), "a gap");

/* *ret, a step of y = epilogue(x weights') for a matrix x of `rows` rows, becomes a step that also
 * has the candidates of a convolution of 1 x 1 on tensor cores, where there are any. weights: [n,
 * row] of x's dtype, row: k in whole eights. */
enum status conv_create_product(const struct cuda_compile *compile, int64_t rows, int64_t n,
                                int64_t k, const void *weights, const float *bias,
                                struct cuda_step **ret, struct error *err);

/* ---- what integers a run may compute (bounds.c) ---- */

struct bounds {
    int64_t low, high;
};

/* False: not known. */
bool value_bounds(const struct value *value, struct bounds *ret);
/* int32 or int64 indices, all between -extent and extent - 1. */
bool indices_stay_within(const struct value *indices, int64_t extent);
