/* Gemm and MatMul as matrix products. */
#include "engine/cuda/lowering/lowering.h"

/* Returns the product of all but the last two dimensions. */
static int64_t batch_of(const struct shape *shape)
{
    int64_t batch = 1;
    for (int d = 0; d + 2 < shape->rank; d++)
        batch *= shape->dims[d];
    return batch;
}

/* True if the right operand is a single matrix, or if it has y's batch and the left operand has y's
 * batch or is a single matrix. A bias must be a float32 constant. */
static bool matmul_fits(const struct node *node)
{
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[1]->shape;
    const struct shape *y = &node->outputs[0]->shape;
    int64_t ab = batch_of(a), bb = batch_of(b), yb = batch_of(y);
    const struct value *bias = node_bias(node);
    if (bias && !is_f32_constant(bias))
        return false;
    /* Other broadcasts (one operand with some dimensions of 1) run on the host. */
    return bb == 1 || (bb == yb && (ab == yb || ab == 1));
}

KERNEL_CLAIM(matmul_claim)
{
    const struct value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    bool b_fits = b->known ? b->known->dtype == DTYPE_F32 : b->dtype == a->dtype;
    return is_computed(a->dtype) && b_fits && is_computed(y->dtype) && !a->known &&
           shape_count(&a->shape) && shape_count(&b->shape) && a->shape.rank >= 2 &&
           b->shape.rank >= 2 &&
           (node->op == OP_GEMM ? claim_gemm_is_plain(node) : matmul_fits(node));
}

CUDA_CREATE(lower_matmul)
{
    const struct node *node = compile->node;
    const struct value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    const struct shape *as = &a->shape, *bs = &b->shape;
    bool gemm = node->op == OP_GEMM;
    struct cuda_product p = {.trans_a = gemm && node_int(node, "transA", 0),
                             .trans_b = gemm && node_int(node, "transB", 0),
                             .batch = batch_of(&y->shape),
                             .dtype = a->dtype,
                             .y_dtype = y->dtype};
    p.m = as->dims[as->rank - (p.trans_a ? 1 : 2)];
    p.k = as->dims[as->rank - (p.trans_a ? 2 : 1)];
    p.n = bs->dims[bs->rank - (p.trans_b ? 2 : 1)];
    if (batch_of(bs) == 1) { /* b is one matrix for all rows of a */
        p.m *= p.batch;
        p.batch = 1;
    } else {
        p.a_step = batch_of(as) == 1 ? 0 : p.m * p.k;
        p.b_step = p.k * p.n;
    }
    const void *weights = NULL;
    const bool rows = b->known && p.batch == 1 && !p.trans_a && bs->rank == 2 &&
                      has_tensor_cores(compile->backend, a->dtype);
    enum weight_layout layout = WEIGHT_AS_IS;
    if (rows) { /* cuBLASLt and lensd's own kernel read this layout */
        layout = p.trans_b ? WEIGHT_ROWS : WEIGHT_TRANSPOSED;
        p.trans_b = true;
        p.b_row = cuda_weights_row(b->known, layout, a->dtype);
    }
    if (b->known)
        TRY(cuda_weights_get(compile->backend, b->known, layout, a->dtype, &weights, err));
    TRY(cuda_product_create(compile, &p, weights, ret, err));
    return rows ? conv_create_product(compile, &p, weights, ret, err) : STATUS_OK;
}

const struct cuda_kernel cuda_kernel_matmul = {{"matmul", {OP_GEMM, OP_MATMUL}, matmul_claim},
                                               lower_matmul};
