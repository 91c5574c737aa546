/* Matrix products by cuBLASLt, whose algorithm the autotuner chooses.
 *
 * cuBLASLt is column-major, and reads a row-major y = a b as y' = b' a'. So the operands change
 * places, and our m and n are its n and m. float32 is multiplied unchanged, or as TF32 with
 * --precision tf32. Activations that cuBLASLt cannot fuse (all but ReLU and GELU's tanh form) are
 * applied to the rounded sum, as in PyTorch; fused activations are applied to the float32 sum. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>

#include "engine/base/size.h"

enum { MOST_CANDIDATES = 8, WORKSPACE = 32 << 20 };

/* The maximum number of products of a batch per call. Some of cuBLASLt's kernels count them along
 * the grid's z, which is limited to 65535. Tests with the fake CUDA need a lower limit. */
#ifdef LENSD_FAKE_CUDA
enum { MOST_MEMBERS = 1000 };
#else
enum { MOST_MEMBERS = 32768 };
#endif

struct cuda_product_step {
    struct cuda_step step;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t candidates[MOST_CANDIDATES];
    int candidate_count, candidate;
    struct cuda_product product;
    uint32_t right;      /* cuda_index_of() b */
    const void *weights; /* b on the device; NULL if b is a value */
    /* The part of the epilogue that cuBLASLt computes; a separate kernel computes the rest. */
    enum { FUSED_NOTHING, FUSED_SUMS, FUSED_ALL } fused;
    struct cuda_epilogue epilogue;
    size_t rows, columns; /* of y, of all products together */
};

static void product_free(struct cuda_step *base)
{
    struct cuda_product_step *s = (struct cuda_product_step *)base;
    if (s->a)
        cublasLtMatrixLayoutDestroy(s->a);
    if (s->b)
        cublasLtMatrixLayoutDestroy(s->b);
    if (s->c)
        cublasLtMatrixLayoutDestroy(s->c);
    if (s->desc)
        cublasLtMatmulDescDestroy(s->desc);
}

/* Sets how many members of the batch the next call multiplies. */
static enum status set_members(struct cuda_product_step *s, const struct cuda_backend *backend,
                               int count, struct error *err)
{
    const cublasLtMatrixLayout_t layouts[] = {s->a, s->b, s->c};
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        TRY(blas_check(cublasLtMatrixLayoutSetAttribute(
                           layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                       backend->device, s->step.name, err));
    return STATUS_OK;
}

/* Multiplies members of the batch from `first` on. */
static enum status multiply_some(struct cuda_product_step *s, struct cuda_program *program,
                                 int64_t first, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const struct cuda_product *p = &s->product;
    const size_t size = dtype_size(p->dtype);
    const size_t at = (size_t)(first * p->m * p->n) * dtype_size(p->y_dtype);
    const unsigned char *a = program->data[s->step.x], *residual = program->data[s->step.residual];
    const unsigned char *b = s->weights ? s->weights : program->data[s->right];
    unsigned char *y = (unsigned char *)program->data[s->step.y] + at;
    const float one = 1, zero = 0;
    residual = residual && s->fused ? residual + at : NULL;
    return blas_check(
        cublasLtMatmul(backend->blas, s->desc, &one, b + (size_t)(first * p->b_step) * size, s->b,
                       a + (size_t)(first * p->a_step) * size, s->a, residual ? &one : &zero,
                       residual ? residual : y, s->c, y, s->c, &s->candidates[s->candidate].algo,
                       backend->arena + program->value_bytes, WORKSPACE, backend->stream),
        backend->device, s->step.name, err);
}

static enum status multiply(struct cuda_product_step *s, struct cuda_program *program,
                            struct error *err)
{
    const int64_t batch = s->product.batch;
    for (int64_t first = 0; first < batch; first += MOST_MEMBERS) {
        const int64_t left = batch - first;
        if (batch > MOST_MEMBERS)
            TRY(set_members(s, program->backend, (int)(left < MOST_MEMBERS ? left : MOST_MEMBERS),
                            err));
        TRY(multiply_some(s, program, first, err));
    }
    return STATUS_OK;
}

CUDA_RUN(product_run)
{
    struct cuda_product_step *s = (struct cuda_product_step *)base;
    struct cuda_backend *backend = program->backend;
    void *y = program->data[base->y];
    const void *residual = program->data[base->residual];
    if (!s->fused && residual == y) {
        /* The product would overwrite the residual, so it is copied to memory after the product's
         * workspace. */
        void *kept = backend->arena + program->value_bytes + WORKSPACE;
        size_t bytes = s->rows * s->columns * dtype_size(s->product.y_dtype);
        TRY(cuda_check(cudaMemcpyAsync(kept, y, bytes, cudaMemcpyDeviceToDevice, backend->stream),
                       backend->device, base->name, err));
        residual = kept;
    }
    TRY(multiply(s, program, err));
    struct cuda_epilogue epilogue = s->epilogue;
    epilogue.residual = residual;
    if (s->fused == FUSED_SUMS) {
        epilogue.bias = NULL;
        epilogue.residual = NULL;
    }
    if (s->fused != FUSED_ALL)
        cuda_apply_epilogue(backend->stream, y, s->rows, s->columns,
                            s->product.y_row ? (size_t)s->product.y_row : s->columns, &epilogue);
    return cuda_launched(base, program, err);
}

CUDA_RUN(product_tune)
{
    struct cuda_product_step *s = (struct cuda_product_step *)base;
    /* All properties that decide how long a product takes; hashed, so without padding. */
    const struct {
        struct cuda_product product;
        int32_t on_tensor_cores, activation, has_bias, has_residual;
    } key = {s->product, has_tensor_cores(program->backend, s->product.dtype),
             s->epilogue.activation, s->epilogue.bias != NULL,
             program->data[base->residual] != NULL};
    _Static_assert(sizeof key == 8 * sizeof(int64_t) + 8 * sizeof(int32_t), "a gap");
    return tune_step(base, program, &s->candidate, s->candidate_count, &key, sizeof key, err);
}

static cudaDataType_t data_type(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Describes a row-major matrix [rows, columns], which cuBLASLt reads as column-major [columns,
 * rows]. `row`: elements between the starts of adjacent rows. */
static enum status product_layout(const struct cuda_backend *backend, enum dtype dtype,
                                  int64_t rows, int64_t columns, int64_t row, int64_t batch,
                                  int64_t step, cublasLtMatrixLayout_t *ret, struct error *err)
{
    int count = (int)(batch < MOST_MEMBERS ? batch : MOST_MEMBERS);
    TRY(blas_check(
        cublasLtMatrixLayoutCreate(ret, data_type(dtype), (uint64_t)columns, (uint64_t)rows, row),
        backend->device, "a matrix layout", err));
    if (batch == 1)
        return STATUS_OK;
    TRY(blas_check(cublasLtMatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                    &count, sizeof count),
                   backend->device, "a matrix layout", err));
    return blas_check(cublasLtMatrixLayoutSetAttribute(
                          *ret, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
                      backend->device, "a matrix layout", err);
}

/* Returns cuBLASLt's name for an epilogue; its GELU is the tanh form. */
static cublasLtEpilogue_t fused_epilogue(bool bias, int activation)
{
    if (activation == ACTIVATION_RELU)
        return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    if (activation == ACTIVATION_GELU_TANH)
        return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static bool can_fuse(int activation)
{
    return activation == ACTIVATION_NONE || activation == ACTIVATION_RELU ||
           activation == ACTIVATION_GELU_TANH;
}

/* Describes the product to cuBLASLt, which requires that `bias` has the result's dtype. */
static enum status product_describe(const struct cuda_backend *backend,
                                    const struct cuda_product *p, const void *bias, int activation,
                                    struct cuda_product_step *s, struct error *err)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = fused_epilogue(bias != NULL, activation);
    cudaDataType_t bias_type = data_type(p->y_dtype);
    const int64_t a_columns = p->trans_a ? p->m : p->k, b_columns = p->trans_b ? p->k : p->n;
    const cublasComputeType_t compute =
        p->dtype == DTYPE_F32 && has_tensor_cores(backend, DTYPE_F32) ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                      : CUBLAS_COMPUTE_32F;
    TRY(blas_check(cublasLtMatmulDescCreate(&s->desc, compute, CUDA_R_32F), backend->device,
                   "a matrix product", err));
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t size;
        bool applies;
    } settings[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed, p->trans_b},
                    {CUBLASLT_MATMUL_DESC_TRANSB, &transposed, sizeof transposed, p->trans_a},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue,
                     epilogue != CUBLASLT_EPILOGUE_DEFAULT},
                    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, bias},
                    {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type, bias}};
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        if (settings[i].applies)
            TRY(blas_check(cublasLtMatmulDescSetAttribute(s->desc, settings[i].attribute,
                                                          settings[i].value, settings[i].size),
                           backend->device, "a matrix product", err));
    TRY(product_layout(backend, p->dtype, p->trans_a ? p->k : p->m, a_columns, a_columns, p->batch,
                       p->a_step, &s->a, err));
    TRY(product_layout(backend, p->dtype, p->trans_b ? p->n : p->k, b_columns,
                       p->b_row ? p->b_row : b_columns, p->batch, p->b_step, &s->b, err));
    return product_layout(backend, p->y_dtype, p->m, p->n, p->y_row ? p->y_row : p->n, p->batch,
                          p->m * p->n, &s->c, err);
}

static enum status product_find_candidates(const struct cuda_backend *backend,
                                           struct cuda_product_step *s, struct error *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    size_t workspace = WORKSPACE;
    TRY(blas_check(cublasLtMatmulPreferenceCreate(&preference), backend->device, "a matrix product",
                   err));
    cublasStatus_t result = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    /* The arena aligns values to 64 bytes, results within a Concat to 16; cuBLASLt assumes 256. */
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t aligned[] = {64, 64, s->product.y_row ? 16 : 64, s->product.y_row ? 16 : 64};
    /* Partial sums are added as float32, never in the 16 bits of the result. */
    const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (result == CUBLAS_STATUS_SUCCESS)
        result = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums);
    for (size_t i = 0; i < COUNT_OF(alignments) && result == CUBLAS_STATUS_SUCCESS; i++)
        result = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &aligned[i],
                                                      sizeof aligned[i]);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = cublasLtMatmulAlgoGetHeuristic(backend->blas, s->desc, s->b, s->a, s->c, s->c,
                                                preference, MOST_CANDIDATES, s->candidates,
                                                &s->candidate_count);
    cublasLtMatmulPreferenceDestroy(preference);
    const int proposed = result == CUBLAS_STATUS_SUCCESS ? s->candidate_count : 0;
    s->candidate_count = 0;
    for (int i = 0; i < proposed; i++) /* an entry that failed has only its state */
        if (s->candidates[i].state == CUBLAS_STATUS_SUCCESS &&
            s->candidates[i].workspaceSize <= WORKSPACE)
            s->candidates[s->candidate_count++] = s->candidates[i];
    return STATUS_OK;
}

enum status cuda_product_create(const struct cuda_lowering *compile,
                                const struct cuda_product *product, const void *weights,
                                struct cuda_step **ret, struct error *err)
{
    const struct node *node = compile->node;
    const int activation = (int)node->epilogue.activation;
    struct cuda_product_step *s = cuda_step_create(compile, NULL, sizeof *s, product_run, ret, err);
    TRY(allocated(s));
    s->step.free = product_free;
    s->step.kernel = "cublasLt";
    s->step.tune = product_tune;
    s->right = node->inputs[1]->index;
    s->weights = weights;
    TRY(cuda_epilogue_of(compile, node_bias(node), &s->epilogue, err));
    s->rows = (size_t)(product->m * product->batch);
    s->columns = (size_t)product->n;
    s->product = *product;
    s->step.flops = 2.0 * (double)s->rows * (double)product->n * (double)product->k;
    s->step.bytes =
        dtype_size(product->dtype) * ((size_t)product->k * (s->rows + (size_t)product->n)) +
        s->rows * s->columns * dtype_size(product->y_dtype);
    const void *own_bias = NULL;
    TRY(cuda_weights_of(compile->backend, node_bias(node), product->y_dtype, &own_bias, err));
    s->fused = can_fuse(activation) ? FUSED_ALL : FUSED_SUMS;
    for (;;) {
        TRY(product_describe(compile->backend, product, s->fused ? own_bias : NULL,
                             s->fused == FUSED_ALL ? activation : ACTIVATION_NONE, s, err));
        TRY(product_find_candidates(compile->backend, s, err));
        if (s->candidate_count || !s->fused)
            break;
        product_free(&s->step); /* cuBLASLt has no algorithm with this epilogue: fuse less */
        s->a = s->b = s->c = NULL;
        s->desc = NULL;
        s->fused--;
    }
    s->step.workspace = WORKSPACE;
    if (!s->fused && node->epilogue.residual)
        s->step.workspace += s->rows * s->columns * dtype_size(product->y_dtype);
    return s->candidate_count
               ? STATUS_OK
               : error_set(err, STATUS_UNSUPPORTED, "%s: cuBLASLt has no algorithm for it",
                           NODE_STRING(node));
}
