/* Steps along axes of a tensor: reductions, ArgMax, ArgMin, softmax of any axis, TopK. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/base/size.h"
#include "engine/op/resolve.h"

enum { MOST_TOP = 16384 }; /* largest k of TopK: the kernel compares all pairs of chosen elements */

struct axis_step {
    struct cuda_step step;
    enum { AXIS_FOLD, AXIS_EXTREME, AXIS_SOFTMAX, AXIS_TOP } kind;
    uint32_t indices;
    struct cuda_reduce_axes fold;
    struct cuda_axis axis;
    bool is_log, is_least, is_last;
    size_t k;
};

CUDA_RUN(reduce_axes_run)
{
    struct axis_step *s = (struct axis_step *)base;
    cudaStream_t stream = program->backend->stream;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    switch (s->kind) {
    case AXIS_FOLD:
        cuda_fold_axes(stream, x, y, &s->fold);
        break;
    case AXIS_EXTREME:
        cuda_find_extreme(stream, x, y, &s->axis, s->is_least, s->is_last);
        break;
    case AXIS_SOFTMAX:
        cuda_softmax_axis(stream, x, y, &s->axis, s->is_log);
        break;
    case AXIS_TOP:
        cuda_top_k(stream, x, y, program->data[s->indices], &s->axis, s->k, s->is_least,
                   program->backend->arena + program->value_bytes);
        break;
    }
    return cuda_launched(base, program, err);
}

/* Finds the type in which elements are compared and added; false: int64 cannot hold them. */
static bool axes_domain_of(enum dtype dtype, enum cuda_domain *ret)
{
    *ret = is_computed(dtype)      ? CUDA_IN_FLOAT
           : dtype_is_float(dtype) ? CUDA_IN_DOUBLE
                                   : CUDA_IN_WHOLE;
    return dtype != DTYPE_U64;
}

static bool axis_of(const struct node *node, int64_t otherwise, struct cuda_axis *ret)
{
    const struct value *x = node->inputs[0];
    const struct axis_layout layout =
        axis_layout_of(&x->shape, node_axis(node, otherwise, x->shape.rank));
    *ret = (struct cuda_axis){
        layout.outer, layout.extent, layout.inner, (int)x->dtype, (int)dtype_size(x->dtype),
        CUDA_IN_FLOAT};
    return axes_domain_of(x->dtype, &ret->domain);
}

/* ---- classification of nodes ---- */

static bool read_fold(const struct node *node, struct axis_step *s)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    struct cuda_reduce_axes *r = &s->fold;
    struct reduction reduction;
    int64_t steps[TENSOR_MAX_RANK];
    if (y->dtype != x->dtype || !resolve_is_known(node))
        return false;
    if (!axes_domain_of(x->dtype, &r->domain) ||
        resolve_reduction(node, &reduction, NULL) != STATUS_OK)
        return false;
    if (r->domain == CUDA_IN_WHOLE && (r->fold == OP_REDUCE_MEAN || r->fold == OP_REDUCE_L2))
        r->domain = CUDA_IN_DOUBLE;
    r->dtype = (int)x->dtype;
    r->count = r->each = 1;
    cuda_dense_steps(&x->shape, steps);
    for (int d = 0; d < x->shape.rank; d++) {
        const int64_t dim = x->shape.dims[d];
        const bool is_reduced = reduction.axes & 1u << d;
        (void)cuda_map_append(is_reduced ? &r->reduced : &r->kept, dim, steps[d]);
        *(is_reduced ? &r->each : &r->count) *= (size_t)dim;
    }
    return true;
}

static bool read_softmax(const struct node *node, struct axis_step *s)
{
    s->is_log = node->op == OP_LOG_SOFTMAX;
    return is_computed(node->inputs[0]->dtype) && axis_of(node, -1, &s->axis);
}

static bool read_top(const struct node *node, struct axis_step *s)
{
    const struct value *count = node_input(node, 1);
    if (!count || !count->known || shape_count(&count->known->shape) != 1)
        return false;
    const int64_t k = tensor_int(count->known, 0);
    s->is_least = !node_int(node, "largest", 1);
    if (!axis_of(node, -1, &s->axis) || k < 1 || k > MOST_TOP)
        return false;
    s->k = (size_t)k;
    return true;
}

static bool read_extreme(const struct node *node, struct axis_step *s)
{
    s->is_least = node->op == OP_ARG_MIN;
    s->is_last = node_int(node, "select_last_index", 0) != 0;
    return axis_of(node, 0, &s->axis);
}

static const struct {
    enum op op;
    int kind;
    bool (*read)(const struct node *node, struct axis_step *s);
} readers[] = {
    {OP_ARG_MAX, AXIS_EXTREME, read_extreme}, {OP_ARG_MIN, AXIS_EXTREME, read_extreme},
    {OP_SOFTMAX, AXIS_SOFTMAX, read_softmax}, {OP_LOG_SOFTMAX, AXIS_SOFTMAX, read_softmax},
    {OP_TOP_K, AXIS_TOP, read_top},           {OP_REDUCE_SUM, AXIS_FOLD, read_fold},
    {OP_REDUCE_MEAN, AXIS_FOLD, read_fold},   {OP_REDUCE_MAX, AXIS_FOLD, read_fold},
    {OP_REDUCE_MIN, AXIS_FOLD, read_fold},    {OP_REDUCE_L1, AXIS_FOLD, read_fold},
    {OP_REDUCE_L2, AXIS_FOLD, read_fold},     {OP_REDUCE_SUM_SQUARE, AXIS_FOLD, read_fold}};

static bool reduce_axes_classify(const struct node *node, struct axis_step *s)
{
    const struct value *x = node_input(node, 0);
    if (!x || x->known || !shape_count(&x->shape) || node->epilogue.activation ||
        node->epilogue.residual || node->channels_last)
        return false;
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        if (readers[i].op == node->op) {
            s->kind = readers[i].kind;
            s->fold.fold = node->op;
            return (node_output(node, 0) || s->kind == AXIS_TOP) && readers[i].read(node, s);
        }
    return false;
}

KERNEL_CLAIM(reduce_axes_claim)
{
    struct axis_step s = {0};
    if (!reduce_axes_classify(node, &s))
        return false;
    const bool is_smooth = node->op == OP_REDUCE_SUM || node->op == OP_REDUCE_MEAN ||
                           node->op == OP_REDUCE_MAX || node->op == OP_REDUCE_MIN;
    if ((is_smooth && s.fold.domain == CUDA_IN_FLOAT) ||
        (node->op == OP_SOFTMAX && s.axis.inner == 1))
        ret->narrow = NARROW_SAME;
    return true;
}

CUDA_CREATE(lower_reduce_axes)
{
    static const char *const names[] = {"reduce", "extreme", "softmax", "top k"};
    struct axis_step proto = {0};
    (void)reduce_axes_classify(compile->node, &proto);
    struct axis_step *s = cuda_step_create(compile, &proto, sizeof *s, reduce_axes_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = names[s->kind];
    s->indices = cuda_index_of(compile, node_output(compile->node, 1));
    if (s->kind == AXIS_TOP)
        s->step.workspace = cuda_top_k_workspace(&s->axis, s->k);
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_reduce_axes = {{"reduce axes", {OP_NONE}, reduce_axes_claim},
                                                    lower_reduce_axes};
