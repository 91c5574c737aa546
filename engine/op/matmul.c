/* Shapes of matrix products. */
#include "engine/op/geometry.h"

static enum status mismatch(const struct shape *a, const struct shape *b, struct error *err)
{
    return error_set(err, STATUS_SHAPE,
                     "shapes %s and %s cannot be multiplied (need [..., m, k] and [..., k, n])",
                     SHAPE_STRING(a), SHAPE_STRING(b));
}

/* Sets batch extents and strides, from the last batch dimension to the first. */
static bool broadcast_batches(const struct shape *a, const struct shape *b,
                              struct matmul_shape *shape)
{
    int a_batch = a->rank > 2 ? a->rank - 2 : 0, b_batch = b->rank > 2 ? b->rank - 2 : 0;
    int rank = a_batch > b_batch ? a_batch : b_batch;
    size_t a_step = 1, b_step = 1;
    shape->batch_rank = rank;
    for (int i = 1; i <= rank; i++) {
        int64_t x = i <= a_batch ? a->dims[a_batch - i] : 1;
        int64_t y = i <= b_batch ? b->dims[b_batch - i] : 1;
        if (x != y && x != 1 && y != 1)
            return false;
        int64_t extent = x == 1 ? y : x;
        shape->batch[rank - i] = (size_t)extent;
        shape->a_stride[rank - i] = x == 1 ? 0 : a_step;
        shape->b_stride[rank - i] = y == 1 ? 0 : b_step;
        shape->out.dims[rank - i] = extent;
        a_step *= (size_t)x;
        b_step *= (size_t)y;
    }
    return true;
}

enum status matmul_shape_init(const struct shape *a, const struct shape *b,
                              struct matmul_shape *ret, struct error *err)
{
    if (a->rank < 1 || b->rank < 1)
        return mismatch(a, b, err);
    struct matmul_shape shape = {0};
    int64_t m = a->rank > 1 ? a->dims[a->rank - 2] : 1, k = a->dims[a->rank - 1];
    int64_t n = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    if (k != b->dims[b->rank > 1 ? b->rank - 2 : 0] || !broadcast_batches(a, b, &shape))
        return mismatch(a, b, err);
    shape.m = (size_t)m;
    shape.k = (size_t)k;
    shape.n = (size_t)n;
    shape.out.rank = shape.batch_rank;
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
