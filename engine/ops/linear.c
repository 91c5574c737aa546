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

/* ---- batches ---- */

static int gemm_axis(const struct node *node, const int *axes)
{
    return batch_of_first(node, axes) == (node_int(node, "transA", 0) ? 1 : 0) ? 0 : BATCH_MIXES;
}

static int gemm_beside(const struct node *node, size_t i, int axis)
{
    return i == 2 ? batch_aligned(node, i, axis) : BATCH_OTHER;
}

static const struct batch_rule gemm_rule = {gemm_axis, gemm_beside};

/* The images are on the same letter of all operands that have them, and of the result. No free
 * operand has that letter. */
static int einsum_axis(const struct node *node, const int *axes)
{
    const char *text = node_string(node, "equation", "");
    char letter = 0;
    int operand = 0, at = 0, to = BATCH_MIXES;
    bool is_result = false, mixes = false;
    for (int pass = 0; pass < 2; pass++, operand = at = 0, is_result = false) {
        for (const char *c = text; *c; c++) {
            if (*c == ' ')
                continue;
            if (*c == ',' || *c == '-') {
                operand++;
                at = 0;
                is_result = *c == '-';
                c += is_result;
                continue;
            }
            const bool is_images =
                !is_result && (size_t)operand < node->input_count && axes[operand] == at;
            if (*c == '.' || (pass == 0 && is_images && letter && *c != letter))
                return BATCH_MIXES;
            if (pass == 0 && is_images)
                letter = *c;
            else if (pass == 1 && *c == letter && is_result)
                to = at;
            else if (pass == 1 && !is_result)
                mixes = mixes || (*c == letter) != is_images;
            at++;
        }
    }
    return mixes ? BATCH_MIXES : to;
}

static const struct batch_rule einsum_rule = {einsum_axis, NULL};

/* ---- the table ---- */

static const struct op_info entries[] = {
    {OP_GEMM, 1, 0, 2, 3, 1, 1, OP_PRODUCT | OP_HEAVY,
     "alpha:float beta:float transA:int transB:int broadcast:int", infer_gemm, &gemm_rule,
     work_product},
    {OP_MATMUL, 1, 0, 2, 2, 1, 1, OP_PRODUCT | OP_HEAVY, NULL, infer_matmul, &batch_matmul,
     work_product},
    {OP_EINSUM, 12, 0, 1, OP_VARIADIC, 1, 1, OP_HEAVY, "equation:string", infer_einsum,
     &einsum_rule, work_product},
};

const struct op_family ops_linear = {entries, COUNT_OF(entries)};
