/* Linear algebra: Gemm, MatMul, Einsum. */
#include "engine/base/size.h"
#include "engine/ops/geometry.h"
#include "engine/ops/operands.h"
#include "engine/ops/ops.h"

static enum status infer_gemm(struct node *node, struct error *err)
{
    const struct value *a = node->inputs[0], *b = node->inputs[1];
    struct gemm_shape gemm;
    TRY(operand_dtype(node, 0, "A", DTYPES_NUMBER, err));
    TRY(operand_same_dtype(node, 1, "B", err));
    TRY(operand_same_dtype(node, 2, "C", err));
    TRY(gemm_shape_init(node, &a->shape, &b->shape, &gemm, err));
    struct shape out = SHAPE((int64_t)gemm.m, (int64_t)gemm.n);
    TRY(operand_broadcasts(node, 2, "C", &out, err));
    return infer_output(node, 0, a->dtype, &out, err);
}

static enum status infer_matmul(struct node *node, struct error *err)
{
    struct matmul_shape matmul;
    TRY(operand_dtype(node, 0, "A", DTYPES_NUMBER, err));
    TRY(operand_same_dtype(node, 1, "B", err));
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[1]->shape, &matmul, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &matmul.out, err);
}

static enum status infer_einsum(struct node *node, struct error *err)
{
    const struct shape *shapes[EINSUM_MAX_OPERANDS];
    struct einsum_plan plan;
    TRY(operand_dtype(node, 0, "input 0", DTYPES_NUMBER, err));
    for (size_t i = 0; i < node->input_count && i < EINSUM_MAX_OPERANDS; i++) {
        TRY(operand_present(node, i, "an operand", err));
        TRY(operand_same_dtype(node, i, "an operand", err));
        shapes[i] = &node->inputs[i]->shape;
    }
    TRY(einsum_plan_init(node, shapes, node->input_count, &plan, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &plan.out, err);
}

static const struct op_info entries[] = {
    {OP_GEMM, 1, 0, 2, 3, 1, 1, 0, "alpha:float beta:float transA:int transB:int broadcast:int",
     infer_gemm},
    {OP_MATMUL, 1, 0, 2, 2, 1, 1, 0, NULL, infer_matmul},
    {OP_EINSUM, 12, 0, 1, OP_VARIADIC, 1, 1, 0, "equation:string", infer_einsum},
};

const struct op_family ops_linear = {entries, COUNT_OF(entries)};
