/* Private to engine/cuda/: how a graph becomes steps on a GPU.
 *
 * As on the CPU, plan_create() gives every value a place in one arena and each node becomes a step;
 * here the arena is device memory, a step enqueues work on the backend's stream, and constants are
 * uploaded once per backend in the layout and number type that their step reads. Nodes for which
 * there is no kernel run on the host through their reference kernel, between copies: right
 * everywhere, fast where kernels exist.
 *
 * A program without host steps is captured into a CUDA graph when it has run once, so that a batch
 * is one launch. One thread at a time per backend (engine/backend.h). */
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/kernels.h"
#include "engine/plan.h"

struct step;

struct backend {
    struct backend_options options;
    int device;
    bool tensor_cores; /* for bfloat16 */
    cudaStream_t stream;
    cublasLtHandle_t blas;
    struct weight *weights; /* uploaded constants: weights.c */
    size_t weight_bytes;
    unsigned char *arena; /* device memory: values, inputs, the products' workspace */
    size_t arena_bytes;
    struct program *programs;
};

struct program {
    struct backend *backend;
    struct program *next;
    struct plan plan;
    const struct graph *graph; /* alive as long as the program */
    void **data;               /* device addresses by value index */
    struct step **steps;
    size_t step_count;
    size_t *input_offsets; /* of the inputs, behind the plan's values; by graph input */
    size_t value_bytes;    /* values and inputs */
    size_t workspace;      /* largest the steps ask for, behind them */
    void **outputs;        /* page-locked host memory, by graph output */
    bool *output_is_constant;
    bool has_host_steps;
    int runs;
    cudaGraphExec_t captured; /* NULL: not yet, or not possible */
};

/* A compiled node. Implementations embed it first. */
struct step {
    char *name;
    const char *kernel; /* static text */
    double flops;
    size_t bytes;
    size_t workspace;
    bool on_host; /* waits for the stream: cannot be captured */
    enum status (*run)(struct step *step, struct program *program, struct error *err);
    /* Chooses the fastest of several ways by timing; may be NULL. The arena is there, its contents
     * are anything. */
    enum status (*tune)(struct step *step, struct program *program, struct error *err);
    void (*free)(struct step *step);
};

struct compile {
    struct backend *backend;
    struct program *program;
    const struct node *node;
};

/* *ret stays NULL when the maker does not take the node. */
typedef enum status (*step_maker)(const struct compile *compile, struct step **ret,
                                  struct error *err);
enum status make_conv(const struct compile *compile, struct step **ret, struct error *err);
enum status make_matmul(const struct compile *compile, struct step **ret, struct error *err);
enum status make_elementwise(const struct compile *compile, struct step **ret, struct error *err);
enum status make_rows(const struct compile *compile, struct step **ret, struct error *err);
enum status make_move(const struct compile *compile, struct step **ret, struct error *err);
enum status make_host(const struct compile *compile, struct step **ret, struct error *err);

bool matmul_takes(const struct node *node);
bool elementwise_takes(const struct node *node);
bool rows_takes(const struct node *node);

/* A zeroed step of `size` bytes with name and run set; NULL when out of memory. */
void *step_create(const struct compile *compile, size_t size,
                  enum status (*run)(struct step *, struct program *, struct error *));

/* STATUS_OK, or the status that fits with "cuda:0: what: CUDA's words": STATUS_DEVICE_MEMORY when
 * memory ran out, STATUS_DEVICE for the rest. */
enum status cuda_check(cudaError_t result, int device, const char *what,
                       struct error *err) MUST_USE;
enum status blas_check(cublasStatus_t result, int device, const char *what,
                       struct error *err) MUST_USE;
/* The last launch was accepted. */
enum status cuda_launched(const struct step *step, struct program *program,
                          struct error *err) MUST_USE;

/* Is this a dtype the kernels compute in? */
static inline bool is_computed(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16;
}

/* ---- matrix products (matmul.c) ---- */

struct product {
    int64_t m, n, k;       /* y [m, n] = a [m, k] b [k, n], row-major */
    bool trans_a, trans_b; /* a is stored [k, m], b [n, k] */
    int64_t batch;         /* with these steps between its members, elements; 0: shared */
    int64_t a_step, b_step;
    enum dtype dtype, y_dtype; /* of a and b; of y */
};

/* A step y = epilogue(a b): `weights` is an uploaded b, or NULL when b is a value. */
enum status product_create(const struct compile *compile, const struct product *product, uint32_t a,
                           uint32_t b, const void *weights, const float *bias, struct step **ret,
                           struct error *err);

/* ---- constants on the device (weights.c) ---- */

enum weight_layout {
    WEIGHT_AS_IS,
    WEIGHT_CONV, /* [m, c, kh, kw] as [m, kh, kw, c] */
};

/* The constant in device memory, converted to `dtype` (a float constant to a float dtype; else its
 * own), uploaded once per (constant, layout, dtype) and backend, owned by the backend. */
enum status weights_get(struct backend *backend, struct tensor *constant, enum weight_layout layout,
                        enum dtype dtype, void **ret, struct error *err) MUST_USE;
void weights_free(struct backend *backend);
