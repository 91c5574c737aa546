/* Gemm and MatMul as compiled products. */
#include "engine/cpu/lowering/product_step.h"

/* Transposes the innermost two dims. */
static void transpose(struct strided_layout *operand)
{
    strided_layout_swap(operand, operand->rank - 2, operand->rank - 1);
}

/* Describes a tensor. With `flat`, describes a tensor [a, b, c] as the matrix [a * b, c]. */
static struct strided_layout operand_of(const struct value *value, bool flat)
{
    const struct shape *shape = &value->shape;
    struct strided_layout operand = {.dtype = value->known ? value->known->dtype : value->dtype,
                                     .rank = flat ? 2 : shape->rank};
    const int left_out = shape->rank - operand.rank;
    for (int a = 0; a < operand.rank; a++)
        operand.dims[a] = shape->dims[left_out + a];
    for (int a = 0; a < left_out; a++)
        operand.dims[0] *= shape->dims[a];
    strided_layout_row_major(&operand);
    return operand;
}

static bool float_product(const struct node *node)
{
    const struct value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    bool a_ok = a->dtype == DTYPE_F32 || a->dtype == DTYPE_BF16;
    bool b_ok = b->known ? b->known->dtype == DTYPE_F32 : b->dtype == a->dtype;
    return a_ok && b_ok && (y->dtype == DTYPE_F32 || y->dtype == DTYPE_BF16) &&
           shape_count(&a->shape) && shape_count(&b->shape) && a->shape.rank >= 2 &&
           b->shape.rank >= 2 && !a->known;
}

KERNEL_CLAIM(matmul_claim)
{
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[1]->shape;
    ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    return float_product(node) && (node->op != OP_GEMM || claim_gemm_is_plain(node)) &&
           (b->rank == 2 || b->rank == a->rank);
}

STEP_CREATE(lower_matmul)
{
    const struct node *node = lowering->node;
    const struct value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    /* batched: equal ranks, batch dimensions equal or 1 */
    const bool batched = b->shape.rank != 2;
    struct product_desc desc = {.op = PRODUCT_MATMUL,
                                .weights_constant = b->known,
                                .bias = node_bias(node),
                                .src = operand_of(a, !batched),
                                .weights = operand_of(b, false),
                                .dst = operand_of(y, !batched)};
    if (node->op == OP_GEMM && node_int(node, "transA", 0))
        transpose(&desc.src);
    if (node->op == OP_GEMM && node_int(node, "transB", 0))
        transpose(&desc.weights);
    TRY(product_step_create(lowering, &desc, ret, err));
    (*ret)->flops = 2 * (double)shape_count(&y->shape) * (double)desc.src.dims[desc.src.rank - 1];
    return STATUS_OK;
}

const struct cpu_kernel cpu_matmul = {{"matmul", {OP_GEMM, OP_MATMUL}, matmul_claim}, lower_matmul};

/* Lowers a QLinearMatMul or QGemm with constant symmetric weights: activations times weights [k, n]
 * (QGemm's may be transposed), one scale per output column, int32 bias. */
STEP_CREATE(lower_qmatmul)
{
    const struct node *node = lowering->node;
    struct product_desc desc = qmatmul_describe(node);
    desc.op = PRODUCT_MATMUL;
    desc.src = operand_of(node->inputs[0], true);
    desc.dst = operand_of(node->outputs[0], true);
    desc.weights = operand_of(node->inputs[3], false);
    if (node->op == OP_QGEMM && node_int(node, "transB", 0))
        transpose(&desc.weights);
    return product_step_create(lowering, &desc, ret, err);
}

const struct cpu_kernel cpu_quantized_matmul = {
    {"int8 matmul", {OP_QLINEAR_MATMUL, OP_QGEMM}, qmatmul_claim}, lower_qmatmul};
