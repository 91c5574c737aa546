/* LayerNormalization, RMSNormalization, pools. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/op/families.h"

struct row_norms_step {
    struct cuda_step step;
    enum { ROWS_LAYER_NORM, ROWS_POOL, ROWS_POOL_GLOBAL } kind;
    struct cuda_pool pool;
    enum dtype dtype;
    size_t rows, row;                   /* of normalizations: rows, elements of a row */
    size_t images, positions, channels; /* of global pools */
    const void *scale, *bias;           /* float32 */
    float epsilon;
    bool is_rms; /* RMSNormalization: the mean counts as 0 */
    bool is_max;
};

CUDA_RUN(row_norms_run)
{
    struct row_norms_step *s = (struct row_norms_step *)base;
    cudaStream_t stream = program->backend->stream;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    int dtype = (int)s->dtype;
    switch (s->kind) {
    case ROWS_LAYER_NORM:
        cuda_norm_rows(stream, dtype, x, s->scale, s->bias, y, s->rows, s->row, s->epsilon,
                       s->is_rms);
        break;
    case ROWS_POOL:
        cuda_pool2d(stream, dtype, x, y, &s->pool);
        break;
    case ROWS_POOL_GLOBAL:
        cuda_pool_global(stream, dtype, x, y, s->images, s->positions, s->channels, s->is_max,
                         &s->pool.scales);
        break;
    }
    return cuda_launched(base, program, err);
}

/* True if operand and result have one type, and nothing is fused. */
static bool rows_fit(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    return x && y && !x->known && x->dtype == y->dtype && shape_count(&x->shape) &&
           shape_count(&y->shape) && !node->epilogue.activation && !node->epilogue.residual;
}

/* Reads normalizations. Each read_…() sets all members that depend only on the node. */
static bool read_rows(const struct node *node, struct row_norms_step *s)
{
    const struct value *bias = node_input(node, 2);
    s->kind = ROWS_LAYER_NORM;
    s->is_rms = node->op == OP_RMS_NORMALIZATION;
    s->row = claim_row_length(node);
    s->rows = s->row ? shape_count(&node->inputs[0]->shape) / s->row : 0;
    s->epsilon = node_float(node, "epsilon", 1e-5f);
    return s->row && s->rows <= INT32_MAX && !node_output(node, 1) && !node_output(node, 2) &&
           claim_is_row(node, node->inputs[1]) && (!bias || claim_is_row(node, bias));
}

static bool read_pool(const struct node *node, struct row_norms_step *s)
{
    const struct shape *x = &node->inputs[0]->shape;
    const enum dtype dtype = node->inputs[0]->dtype;
    struct scale_zero from, to;
    if (node->op == OP_QLINEAR_AVERAGE_POOL || node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL) {
        if (node_int(node, "channels_last", 0) || !scale_zero_of(node, 1, dtype, &from) ||
            !scale_zero_of(node, 3, dtype, &to))
            return false;
        s->pool.scales = (struct cuda_scales){from.scale, to.scale, from.zero, to.zero};
    } else if (!is_computed(dtype) && (node->op != OP_MAX_POOL || !dtype_is_8bit(dtype))) {
        return false;
    }
    s->is_max = node->op == OP_GLOBAL_MAX_POOL;
    s->kind = s->is_max || node->op == OP_GLOBAL_AVERAGE_POOL ||
                      node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL
                  ? ROWS_POOL_GLOBAL
                  : ROWS_POOL;
    s->images = (size_t)x->dims[0];
    s->channels = (size_t)x->dims[x->rank - 1];
    s->positions = shape_count(x) / shape_count(&node->outputs[0]->shape);
    if (s->kind == ROWS_POOL_GLOBAL)
        return is_computed(dtype) || s->positions <= CUDA_MEAN_MOST;
    return x->rank == 4 && !node_output(node, 1);
}

KERNEL_CLAIM(rows_claim)
{
    struct row_norms_step ignored = {0};
    ret->narrow = NARROW_SAME;
    return rows_fit(node) && is_computed(node->inputs[0]->dtype) && read_rows(node, &ignored);
}

KERNEL_CLAIM(rows_pool_claim)
{
    struct row_norms_step ignored = {0};
    if (!rows_fit(node) || node->inputs[0]->shape.rank < 3 || !read_pool(node, &ignored))
        return false;
    ret->can = KERNEL_CHANNELS_LAST;
    if (!is_computed(node->inputs[0]->dtype))
        return true;
    ret->narrow = NARROW_SAME;
    return claim_reads_image(node);
}

static enum status create_rows(const struct cuda_lowering *compile,
                               const struct row_norms_step *proto, struct cuda_step **ret,
                               struct error *err)
{
    struct row_norms_step *s = cuda_step_create(compile, proto, sizeof *s, row_norms_run, ret, err);
    TRY(allocated(s));
    s->dtype = compile->node->inputs[0]->dtype;
    s->step.kernel = "rows";
    return STATUS_OK;
}

CUDA_CREATE(lower_row_norms)
{
    const struct node *node = compile->node;
    struct row_norms_step proto = {0};
    (void)read_rows(node, &proto);
    TRY(cuda_weights_of(compile->backend, node->inputs[1], DTYPE_F32, &proto.scale, err));
    TRY(cuda_weights_of(compile->backend, node_input(node, 2), DTYPE_F32, &proto.bias, err));
    return create_rows(compile, &proto, ret, err);
}

CUDA_CREATE(lower_pool)
{
    struct row_norms_step proto = {0};
    (void)read_pool(compile->node, &proto);
    if (proto.kind == ROWS_POOL)
        TRY(window_of_pool(compile->node, &proto.pool, err));
    return create_rows(compile, &proto, ret, err);
}

const struct cuda_kernel cuda_kernel_row_norms = {
    {"row norms", {OP_LAYER_NORMALIZATION, OP_RMS_NORMALIZATION}, rows_claim}, lower_row_norms};
const struct cuda_kernel cuda_kernel_pool = {
    {"pool",
     {OP_GLOBAL_AVERAGE_POOL, OP_GLOBAL_MAX_POOL, OP_MAX_POOL, OP_AVERAGE_POOL,
      OP_QLINEAR_AVERAGE_POOL, OP_QLINEAR_GLOBAL_AVERAGE_POOL},
     rows_pool_claim},
    lower_pool};
