/* Gemm and MatMul. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/reference/convert.h"
#include "engine/reference/copy.h"
#include "engine/reference/nn.h"
#include "engine/reference/quant.h"

/* ---- Gemm ---- */

/* Transposed operands are read in place where the products can, else transposed first. */
enum status gemm_product(const struct kernel_args *args, const struct gemm_shape *gemm,
                         enum arithmetic arithmetic, const void *a, const void *b, void *y,
                         struct error *err)
{
    size_t m = gemm->m, n = gemm->n, k = gemm->k, size = arithmetic_size(arithmetic);
    if (!gemm->trans_b) {
        gemm_nn(arithmetic, m, n, k, a, gemm->trans_a ? 1 : k, gemm->trans_a ? m : 1, b, n, y, n);
        return STATUS_OK;
    }
    if (!gemm->trans_a) {
        gemm_nt(arithmetic, m, n, k, a, k, b, k, y, n);
        return STATUS_OK;
    }
    void *transposed = kernel_scratch(args, m * k, size, err); /* as many as a has */
    if (!transposed)
        return STATUS_NO_MEMORY;
    struct copy_dim dims[] = {{m, (ptrdiff_t)(k * size), (ptrdiff_t)size},
                              {k, (ptrdiff_t)size, (ptrdiff_t)(m * size)}};
    copy_strided(transposed, a, size, dims, 2);
    gemm_nt(arithmetic, m, n, k, transposed, k, b, k, y, n);
    free(transposed);
    return STATUS_OK;
}

void bias_steps(const struct shape *shape, size_t *ret_row, size_t *ret_column)
{
    size_t n = shape->rank > 0 ? (size_t)shape->dims[shape->rank - 1] : 1;
    size_t m = shape->rank > 1 ? (size_t)shape->dims[shape->rank - 2] : 1;
    *ret_column = n > 1;
    *ret_row = m > 1 ? n : 0;
}

/* y = alpha * y + beta * c, in double. */
static void scale_and_add(const struct gemm_shape *gemm, enum dtype dtype, void *y, double alpha,
                          double beta, const struct tensor *c)
{
    size_t row = 0, column = 0;
    double values[BLOCK], bias[BLOCK] = {0};
    if (c)
        bias_steps(&c->shape, &row, &column);
    for (size_t i = 0; i < gemm->m; i++) {
        for (size_t j = 0; j < gemm->n; j += BLOCK) {
            size_t count = gemm->n - j < BLOCK ? gemm->n - j : BLOCK;
            void *at = element_at(y, dtype, i * gemm->n + j);
            load_doubles(at, dtype, values, count);
            if (c)
                load_doubles(element(c->data, c->dtype, i * row + j * column), c->dtype, bias,
                             column ? count : 1);
            for (size_t x = 0; x < count; x++)
                values[x] = alpha * values[x] + beta * bias[column ? x : 0];
            store_doubles(values, dtype, at, count);
        }
    }
}

static enum dtype arithmetic_dtype(enum arithmetic arithmetic, enum dtype dtype)
{
    return arithmetic == ARITHMETIC_F32   ? DTYPE_F32
           : arithmetic == ARITHMETIC_F64 ? DTYPE_F64
           : dtype_size(dtype) == 4       ? dtype
                                          : DTYPE_I64;
}

/* Integers with alpha = beta = 1: C is where the sum starts, exactly. */
static void start_with_bias(const struct gemm_shape *gemm, enum dtype dtype, void *y,
                            const struct tensor *c)
{
    size_t row, column;
    bias_steps(&c->shape, &row, &column);
    for (size_t i = 0; i < gemm->m; i++)
        for (size_t j = 0; j < gemm->n; j++)
            convert_row(element(c->data, c->dtype, i * row + j * column), c->dtype,
                        element_at(y, dtype, i * gemm->n + j), dtype, 1);
}

KERNEL(kernel_gemm)
{
    const struct tensor *a = args->in[0], *b = args->in[1];
    const struct tensor *residual = epilogue_residual(args);
    const struct tensor *c = args->node->input_count > 2 ? args->in[2] : NULL;
    struct tensor *y = *args->out[0];
    enum arithmetic arithmetic = arithmetic_for(a->dtype);
    enum dtype working = arithmetic_dtype(arithmetic, a->dtype);
    float alpha = node_float(args->node, "alpha", 1), beta = node_float(args->node, "beta", 1);
    struct gemm_shape gemm;
    struct gemm_operand left = {0}, right = {0}, extra = {0};
    struct result out = {0};
    TRY(gemm_shape_init(args->node, &a->shape, &b->shape, &gemm, err));
    if (residual && args->node->input_count == 3)
        c = NULL;
    bool exact = arithmetic == ARITHMETIC_U32 || arithmetic == ARITHMETIC_U64;
    bool plain = alpha == 1 && beta == 1;
    enum status status = operand_open(args, a, arithmetic, &left, err);
    if (status == STATUS_OK)
        status = operand_open(args, b, arithmetic, &right, err);
    if (status == STATUS_OK && residual)
        status = operand_open(args, residual, arithmetic, &extra, err);
    if (status == STATUS_OK)
        status = result_open(args, y, arithmetic, &out, err);
    if (status != STATUS_OK)
        goto done;
    zero_bytes(out.data, gemm.m * gemm.n * arithmetic_size(arithmetic));
    if (exact && plain && c)
        start_with_bias(&gemm, working, out.data, c);
    status = gemm_product(args, &gemm, arithmetic, left.data, right.data, out.data, err);
    if (status != STATUS_OK)
        goto done;
    if (alpha != 1 || (c && !(exact && plain)))
        scale_and_add(&gemm, working, out.data, alpha, beta, c);
    if (!exact)
        epilogue_apply(&args->node->epilogue, arithmetic, out.data, extra.data, gemm.m * gemm.n);
    result_store(&out);
done:
    operand_close(&left);
    operand_close(&right);
    operand_close(&extra);
    result_close(&out);
    return status;
}

/* ---- MatMul ---- */

bool batch_next(const struct matmul_shape *shape, struct batch_walk *walk)
{
    for (int i = shape->batch_rank - 1; i >= 0; i--) {
        walk->a += shape->a_stride[i];
        walk->b += shape->b_stride[i];
        if (++walk->at[i] < shape->batch[i])
            return true;
        walk->a -= shape->a_stride[i] * walk->at[i];
        walk->b -= shape->b_stride[i] * walk->at[i];
        walk->at[i] = 0;
    }
    return false;
}

void multiply_batches(const struct matmul_shape *shape, enum arithmetic arithmetic, const void *a,
                      const void *b, void *y)
{
    struct batch_walk walk = {0};
    size_t size = arithmetic_size(arithmetic), done = 0;
    size_t a_bytes = shape->m * shape->k * size, b_bytes = shape->k * shape->n * size;
    size_t y_bytes = shape->m * shape->n * size;
    bool empty = !a_bytes || !b_bytes || !y_bytes;
    for (int i = 0; i < shape->batch_rank; i++)
        empty = empty || !shape->batch[i];
    if (empty)
        return;
    do
        gemm_nn(arithmetic, shape->m, shape->n, shape->k, (const char *)a + walk.a * a_bytes,
                shape->k, 1, (const char *)b + walk.b * b_bytes, shape->n,
                (char *)y + done++ * y_bytes, shape->n);
    while (batch_next(shape, &walk));
}

KERNEL(kernel_matmul)
{
    const struct tensor *a = args->in[0], *b = args->in[1];
    const struct tensor *residual = epilogue_residual(args);
    struct tensor *y = *args->out[0];
    enum arithmetic arithmetic = arithmetic_for(a->dtype);
    struct matmul_shape shape;
    struct gemm_operand left = {0}, right = {0}, extra = {0};
    struct result out = {0};
    TRY(matmul_shape_init(&a->shape, &b->shape, &shape, err));
    enum status status = operand_open(args, a, arithmetic, &left, err);
    if (status == STATUS_OK)
        status = operand_open(args, b, arithmetic, &right, err);
    if (status == STATUS_OK && residual)
        status = operand_open(args, residual, arithmetic, &extra, err);
    if (status == STATUS_OK)
        status = result_open(args, y, arithmetic, &out, err);
    if (status == STATUS_OK) {
        size_t count = shape_count(&y->shape);
        zero_bytes(out.data, count * arithmetic_size(arithmetic));
        multiply_batches(&shape, arithmetic, left.data, right.data, out.data);
        if (arithmetic == ARITHMETIC_F32 || arithmetic == ARITHMETIC_F64)
            epilogue_apply(&args->node->epilogue, arithmetic, out.data, extra.data, count);
        result_store(&out);
    }
    operand_close(&left);
    operand_close(&right);
    operand_close(&extra);
    result_close(&out);
    return status;
}

static const struct kernel_entry entries[] = {
    {OP_GEMM, kernel_gemm},
    {OP_MATMUL, kernel_matmul},
    {OP_EINSUM, kernel_einsum},
};

const struct kernel_family kernels_linear = {entries, COUNT_OF(entries)};
