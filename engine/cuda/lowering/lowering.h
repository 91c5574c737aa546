/* Private to engine/cuda/: how nodes become steps. A lowering handles one family of operators, and
 * never uses backend.c's table of all lowerings. */
#pragma once

#include "engine/backend/kernel_table.h"
#include "engine/cuda/program/program.h"

/* A row of the backend's table. create() makes the step of a node that the kernel has claimed. If
 * create() cannot make a step, it leaves *ret NULL, and another kernel may try. */
struct cuda_kernel {
    struct kernel kernel;
    enum status (*create)(const struct cuda_lowering *compile, struct cuda_step **ret,
                          struct error *err);
};

/* Define create() of a row, and the function that runs its step. */
#define CUDA_CREATE(name)                                                                          \
    static enum status name(const struct cuda_lowering *compile, struct cuda_step **ret,           \
                            struct error *err)
#define CUDA_RUN(name)                                                                             \
    static enum status name(struct cuda_step *base, struct cuda_program *program, struct error *err)

extern const struct cuda_kernel cuda_kernel_conv, cuda_kernel_conv_transpose, cuda_kernel_matmul,
    cuda_kernel_attention, cuda_kernel_int8_product, cuda_kernel_int8_rows, cuda_kernel_pointwise,
    cuda_kernel_row_norms, cuda_kernel_pool, cuda_kernel_reduce_axes, cuda_kernel_resize,
    cuda_kernel_groups, cuda_kernel_grid_sample, cuda_kernel_concat, cuda_kernel_scaled_parts,
    cuda_kernel_transpose, cuda_kernel_view, cuda_kernel_copy, cuda_kernel_gather_scatter,
    cuda_kernel_host;

/* ---- matrix products (product.c) ---- */

struct cuda_product {
    int64_t m, n, k; /* y [m, n] = a [m, k] b [k, n], row-major */
    int64_t b_row;   /* elements between stored rows of b; 0: dense */
    int64_t y_row;   /* elements between rows of y; 0: dense; must be 0 for batches and residuals */
    int64_t batch;   /* number of products */
    int64_t a_step, b_step; /* elements between the operands of two products; 0: all products share
                               the operand */
    int32_t trans_a, trans_b;  /* 1: a is stored as [k, m], b as [n, k] */
    enum dtype dtype, y_dtype; /* dtype: of a and b */
};

/* Creates a step y = epilogue(a b) of the node's inputs a and b. `weights` is an uploaded b, or
 * NULL when b is a value. */
enum status cuda_product_create(const struct cuda_lowering *compile,
                                const struct cuda_product *product, const void *weights,
                                struct cuda_step **ret, struct error *err);

/* ---- strided access maps (access_map.c) ---- */

/* Sets steps[d] to the number of elements between adjacent indices of d in a dense tensor. */
void cuda_dense_steps(const struct shape *shape, int64_t steps[TENSOR_MAX_RANK]);
/* Appends an inner dimension of the only operand, and merges it with the last one if the operand is
 * contiguous across both. Returns false if the map has too many dimensions. */
bool cuda_map_append(struct cuda_access_map *map, int64_t dim, int64_t step);
/* Returns the map of `count` dense operands that broadcast to y as in numpy. */
struct cuda_access_map cuda_map_broadcast(const struct shape *y,
                                          const struct shape *const *operands, int count);

/* ---- windows (window.c) ---- */

/* True if every dimension fits an int, also after padding to a multiple of 16. */
bool window_fits_shape(const struct shape *shape);
/* Describes the convolution from a node's first input to its first output, [N, H, W, C]. ret->row
 * is the number of elements that a window reads. STATUS_UNSUPPORTED: a member exceeds an int. */
struct window;
enum status window_of_conv(const struct node *node, const struct window *window, int64_t groups,
                           struct cuda_conv *ret, struct error *err) MUST_USE;
/* Describes a pool, without scales. The node's kernel_shape must have two numbers. */
enum status window_of_pool(const struct node *node, struct cuda_pool *ret,
                           struct error *err) MUST_USE;
/* Describes y [rows, n] = x [rows, k] weights as a convolution of 1-pixel images. Returns false if
 * a size does not fit an int. */
bool window_of_rows(int64_t rows, int64_t n, int64_t k, struct cuda_conv *ret);

/* ---- convolutions (conv.c) ---- */

/* False for groups of so few channels that they would leave most of a tile empty. */
bool conv_is_for_tiles(const struct cuda_conv *conv);

enum { CONV_CANDIDATES = 14 };

/* How a convolution can run on tensor cores. */
struct conv_tiles {
    int unpadded;                   /* channels of x before padding; 0: no padding */
    size_t padded_bytes, workspace; /* bytes of the padded x, and of it and the sums */
    struct cuda_conv_candidate candidates[CONV_CANDIDATES];
    int count;
};
/* Pads conv->c to an even number (for 8-bit integers: to a multiple of four), and lists candidates
 * that do not need too much memory for sums. Returns false without changing conv->c if there are no
 * candidates. conv->row must be that of the padded weights. */
bool conv_find_tiles(const struct cuda_backend *backend, enum dtype dtype, struct cuda_conv *conv,
                     struct conv_tiles *ret);
/* Copies x, which has numbers of `size` bytes, with padded channels to *workspace, and moves
 * *workspace behind the copy. Returns the copy, or x itself if no padding is needed. */
const void *conv_pad_channels(cudaStream_t stream, const struct conv_tiles *tiles,
                              const struct cuda_conv *conv, size_t size, const void *x,
                              unsigned char **workspace);

/* All properties that decide the time of a step on tensor cores; hashed, so without padding. */
struct conv_key {
    struct cuda_conv conv;
    int32_t x_dtype, y_dtype, has_residual, activation, unpadded, has_product;
};
_Static_assert(sizeof(struct conv_key) == sizeof(struct cuda_conv) + 6 * sizeof(int32_t), "a gap");

/* On entry, *ret is a step from cuda_product_create() for these arguments. If tensor cores can run
 * the product as a 1 x 1 convolution, *ret becomes a step that chooses between the two and owns the
 * old one. weights: [n, k rounded up to a multiple of 8] of x's dtype. */
enum status conv_create_product(const struct cuda_lowering *compile,
                                const struct cuda_product *product, const void *weights,
                                struct cuda_step **ret, struct error *err);

/* ---- ranges of integers (bounds.c) ---- */

struct bounds {
    int64_t low, high;
};

/* Returns false if the bounds are unknown. */
bool value_bounds(const struct value *value, struct bounds *ret);
/* True for int32 or int64 indices that are all between -extent and extent - 1. */
bool indices_stay_within(const struct value *indices, int64_t extent);
