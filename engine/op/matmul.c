/* Shapes of matrix products. */
#include "engine/op/geometry.h"
#include "engine/op/strided.h"

static enum status mismatch(const struct shape *a, const struct shape *b, struct error *err)
{
    return error_set(err, STATUS_SHAPE,
                     "shapes %s and %s cannot be multiplied (need [..., m, k] and [..., k, n])",
                     SHAPE_STRING(a), SHAPE_STRING(b));
}

/* Returns the dimensions before the last two. */
static struct shape batch_of(const struct shape *operand)
{
    struct shape batch = *operand;
    batch.rank = operand->rank > 2 ? operand->rank - 2 : 0;
    return batch;
}

enum status matmul_shape_init(const struct shape *a, const struct shape *b,
                              struct matmul_shape *ret, struct error *err)
{
    if (a->rank < 1 || b->rank < 1)
        return mismatch(a, b, err);
    struct matmul_shape shape = {0};
    int64_t m = a->rank > 1 ? a->dims[a->rank - 2] : 1, k = a->dims[a->rank - 1];
    int64_t n = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    const struct shape a_batch = batch_of(a), b_batch = batch_of(b);
    if (k != b->dims[b->rank > 1 ? b->rank - 2 : 0] ||
        infer_broadcast(&a_batch, &b_batch, &shape.out, NULL) != STATUS_OK)
        return mismatch(a, b, err);
    broadcast_steps(&shape.out, &a_batch, shape.a_stride);
    broadcast_steps(&shape.out, &b_batch, shape.b_stride);
    shape.batch_rank = shape.out.rank;
    for (int i = 0; i < shape.batch_rank; i++)
        shape.batch[i] = (size_t)shape.out.dims[i];
    shape.m = (size_t)m;
    shape.k = (size_t)k;
    shape.n = (size_t)n;
    if (a->rank > 1)
        shape.out.dims[shape.out.rank++] = m;
    if (b->rank > 1)
        shape.out.dims[shape.out.rank++] = n;
    *ret = shape;
    return STATUS_OK;
}

enum status gemm_shape_init(const struct node *node, const struct shape *a, const struct shape *b,
                            struct gemm_shape *ret, struct error *err)
{
    if (a->rank != 2 || b->rank != 2)
        return error_set(err, STATUS_SHAPE, "A is %s and B is %s, expected two matrices",
                         SHAPE_STRING(a), SHAPE_STRING(b));
    bool trans_a = node_int(node, "transA", 0) != 0, trans_b = node_int(node, "transB", 0) != 0;
    int64_t k = a->dims[trans_a ? 0 : 1];
    if (k != b->dims[trans_b ? 1 : 0])
        return error_set(err, STATUS_SHAPE, "A is %s%s and B is %s%s (need A.cols == B.rows)",
                         SHAPE_STRING(a), trans_a ? " transposed" : "", SHAPE_STRING(b),
                         trans_b ? " transposed" : "");
    *ret = (struct gemm_shape){.m = (size_t)a->dims[trans_a ? 1 : 0],
                               .n = (size_t)b->dims[trans_b ? 0 : 1],
                               .k = (size_t)k,
                               .trans_a = trans_a,
                               .trans_b = trans_b};
    return STATUS_OK;
}
