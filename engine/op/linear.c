/* Gemm and MatMul. */
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"
#include "engine/op/quant.h"

static enum status infer_gemm(struct node *node, struct error *err)
{
    const struct value *a = node->inputs[0], *b = node->inputs[1];
    struct gemm_shape gemm;
    TRY(gemm_shape_init(node, &a->shape, &b->shape, &gemm, err));
    struct shape out = SHAPE((int64_t)gemm.m, (int64_t)gemm.n);
    TRY(operand_broadcasts(node, 2, "C", &out, err));
    return infer_output(node, 0, a->dtype, &out, err);
}

static enum status infer_matmul(struct node *node, struct error *err)
{
    struct matmul_shape matmul;
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[1]->shape, &matmul, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &matmul.out, err);
}

/* ---- Gemm ---- */

/* c[m, n] += a[m, k] * b[k, n], a few rows of c at a time. */
static enum status multiply_rows(const struct kernel_args *args, const struct gemm_shape *gemm,
                                 enum dtype working, const char *a, size_t a_row, size_t a_col,
                                 const void *b, char *c, struct error *err)
{
    const size_t n = gemm->n, k = gemm->k, size = dtype_size(working);
    const double most = 8.0 * KERNEL_ASKS / ((double)n * (double)k + 1);
    const size_t step = most < 32 ? 32 : (size_t)most; /* fewer rows would reuse b too rarely */
    for (size_t i = 0; i < gemm->m; i += step) {
        const size_t rows = gemm->m - i < step ? gemm->m - i : step;
        const char *left = a + i * a_row * size;
        TRY(kernel_goes_on(args, rows == step ? KERNEL_ASKS : rows * (n + k), err));
        gemm_nn(working, rows, n, k, left, a_row, a_col, b, n, c + i * n * size, n);
    }
    return STATUS_OK;
}

void *transposed(const struct kernel_args *args, const void *matrix, size_t rows, size_t columns,
                 size_t size, struct error *err)
{
    void *made = kernel_scratch(args, rows * columns, size, err);
    struct copy_dim dims[] = {{columns, (ptrdiff_t)(rows * size), (ptrdiff_t)size},
                              {rows, (ptrdiff_t)size, (ptrdiff_t)(columns * size)}};
    if (made)
        copy_strided(made, matrix, size, dims, 2);
    return made;
}

/* A transposed `a` is read in place. */
enum status gemm_product(const struct kernel_args *args, const struct gemm_shape *gemm,
                         enum dtype working, const void *a, const void *b, void *y,
                         struct error *err)
{
    const size_t m = gemm->m, k = gemm->k;
    if (gemm->trans_b && !(b = transposed(args, b, gemm->n, k, dtype_size(working), err)))
        return STATUS_NO_MEMORY;
    return multiply_rows(args, gemm, working, a, gemm->trans_a ? 1 : k, gemm->trans_a ? m : 1, b, y,
                         err);
}

/* y = alpha * y + beta * c, in double; c broadcasts to y. */
static void scale_and_add(const struct shape *shape, enum dtype dtype, void *y, double alpha,
                          double beta, const struct tensor *c)
{
    const struct shape *const shapes[] = {c ? &c->shape : &SHAPE_SCALAR};
    double values[BLOCK], bias[BLOCK] = {0};
    struct broadcast at;
    broadcast_start(&at, shape, shapes, 1);
    do {
        FOR_BLOCKS(j, count, at.row) {
            void *to = element_at(y, dtype, at.done + j);
            const size_t from = at.rows.offset[0] + (at.moves[0] ? j : 0);
            load_doubles(to, dtype, values, count);
            if (c)
                load_doubles(element(c->data, c->dtype, from), c->dtype, bias,
                             at.moves[0] ? count : 1);
            for (size_t x = 0; x < count; x++)
                values[x] = alpha * values[x] + beta * bias[at.moves[0] ? x : 0];
            store_doubles(values, dtype, to, count);
        }
    } while (broadcast_next(&at));
}

KERNEL(kernel_gemm)
{
    const struct tensor *a = args->in[0], *c = kernel_input(args, 2);
    enum dtype working = working_dtype(a->dtype);
    bool exact = !dtype_is_float(working);
    /* scale_and_add() reads the sums as signed numbers, unless A is uint32 */
    enum dtype stored = working == DTYPE_U64 ? DTYPE_I64 : exact ? a->dtype : working;
    float alpha = node_float(args->node, "alpha", 1), beta = node_float(args->node, "beta", 1);
    bool plain = alpha == 1 && beta == 1;
    struct gemm_shape gemm;
    const void *left, *right, *bias;
    void *dst;
    TRY(gemm_shape_init(args->node, &a->shape, &args->in[1]->shape, &gemm, err));
    TRY(operand_open(args, 0, working, &left, err));
    TRY(operand_open(args, 1, working, &right, err));
    TRY(result_open(args, 0, working, &dst, err));
    zero_bytes(dst, gemm.m * gemm.n * dtype_size(working));
    if (exact && plain && c) { /* the sums start with C, exactly */
        TRY(operand_open(args, 2, working, &bias, err));
        copy_broadcast(dst, &args->out[0]->shape, bias, &c->shape, dtype_size(working));
    }
    TRY(gemm_product(args, &gemm, working, left, right, dst, err));
    if (alpha != 1 || (c && !(exact && plain)))
        scale_and_add(&args->out[0]->shape, stored, dst, alpha, beta, c);
    return STATUS_OK;
}

/* ---- MatMul ---- */

enum status multiply_batches(const struct kernel_args *args, const struct matmul_shape *shape,
                             enum dtype working, const void *a, const void *b, void *y,
                             struct error *err)
{
    const struct gemm_shape gemm = {.m = shape->m, .n = shape->n, .k = shape->k};
    struct strided_iterator matrix = {.rank = shape->batch_rank};
    memcpy(matrix.extent, shape->batch, sizeof matrix.extent);
    memcpy(matrix.step[0], shape->a_stride, sizeof matrix.step[0]);
    memcpy(matrix.step[1], shape->b_stride, sizeof matrix.step[1]);
    size_t size = dtype_size(working), done = 0;
    size_t a_bytes = shape->m * shape->k * size, b_bytes = shape->k * shape->n * size;
    size_t y_bytes = shape->m * shape->n * size;
    bool empty = !a_bytes || !b_bytes || !y_bytes;
    for (int i = 0; i < shape->batch_rank; i++)
        empty = empty || !shape->batch[i];
    if (empty)
        return STATUS_OK;
    do
        TRY(multiply_rows(args, &gemm, working, (const char *)a + matrix.offset[0] * a_bytes,
                          shape->k, 1, (const char *)b + matrix.offset[1] * b_bytes,
                          (char *)y + done++ * y_bytes, err));
    while (strided_next(&matrix, 2));
    return STATUS_OK;
}

KERNEL(kernel_matmul)
{
    const struct tensor *a = args->in[0], *b = args->in[1];
    size_t count = shape_count(&args->out[0]->shape);
    enum dtype working = working_dtype(a->dtype);
    struct matmul_shape shape;
    const void *left, *right;
    void *dst;
    TRY(matmul_shape_init(&a->shape, &b->shape, &shape, err));
    TRY(operand_open(args, 0, working, &left, err));
    TRY(operand_open(args, 1, working, &right, err));
    TRY(result_open(args, 0, working, &dst, err));
    zero_bytes(dst, count * dtype_size(working));
    return multiply_batches(args, &shape, working, left, right, dst, err);
}

const struct op_info ops_linear[] = {
    {OP_GEMM, 1, 0, 2, 3, 1, 1, "A:number B:= C:=", OP_PRODUCT | OP_HEAVY,
     "alpha:float beta:float transA:int transB:int broadcast:int", infer_gemm, &batch_gemm,
     work_product, kernel_gemm},
    {OP_MATMUL, 1, 0, 2, 2, 1, 1, "A:number B:=", OP_PRODUCT | OP_HEAVY, NULL, infer_matmul,
     &batch_matmul, work_product, kernel_matmul},
    {0},
};
