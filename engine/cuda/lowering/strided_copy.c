/* Steps that copy or convert elements: Transpose, Slice, Expand, Cast, OP_STRIDED_COPY, views. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/base/size.h"
#include "engine/op/access_map.h"
#include "engine/op/resolve.h"

struct cuda_copy_step {
    struct cuda_step step;
    enum { MOVE_MAP, MOVE_CONVERT, MOVE_BYTES } kind;
    struct cuda_access_map map;
    int size;
    enum dtype from, to;
    size_t count, bytes;
};

CUDA_RUN(move_run)
{
    struct cuda_copy_step *s = (struct cuda_copy_step *)base;
    cudaStream_t stream = program->backend->stream;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    switch (s->kind) {
    case MOVE_MAP:
        cuda_copy_strided(stream, s->size, x, y, &s->map);
        break;
    case MOVE_CONVERT:
        cuda_convert(stream, (int)s->from, x, (int)s->to, y, s->count);
        break;
    case MOVE_BYTES:
        return x == y
                   ? STATUS_OK
                   : cuda_check(cudaMemcpyAsync(y, x, s->bytes, cudaMemcpyDeviceToDevice, stream),
                                program->backend->device, base->name, err);
    }
    return cuda_launched(base, program, err);
}

static bool transpose_map(const struct node *node, struct cuda_access_map *map)
{
    const struct shape *x = &node->inputs[0]->shape;
    int64_t steps[TENSOR_MAX_RANK];
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    cuda_dense_steps(x, steps);
    for (int d = 0; d < x->rank; d++) {
        const int64_t from = perm ? perm[d] : x->rank - 1 - d;
        if (!cuda_map_append(map, x->dims[from], (const int64_t[CUDA_OPERANDS]){steps[from]}))
            return false;
    }
    return true;
}

static bool expand_map(const struct node *node, struct cuda_access_map *map)
{
    *map = cuda_map_broadcast(&node->outputs[0]->shape, &node->inputs[0]->shape, 1);
    return true;
}

static bool slice_map(const struct node *node, struct cuda_access_map *map)
{
    const struct shape *x = &node->inputs[0]->shape, *y = &node->outputs[0]->shape;
    struct slice slice;
    int64_t dense[TENSOR_MAX_RANK];
    if (!resolve_is_known(node) || resolve_slice(node, &slice, NULL) != STATUS_OK)
        return false;
    cuda_dense_steps(x, dense);
    for (int d = 0; d < y->rank; d++) {
        map->offset += slice.start[d] * dense[d];
        if (!cuda_map_append(map, y->dims[d],
                             (const int64_t[CUDA_OPERANDS]){slice.step[d] * dense[d]}))
            return false;
    }
    return true;
}

static enum status move_create(const struct cuda_lowering *compile,
                               const struct cuda_copy_step *proto, const char *kernel,
                               struct cuda_step **ret, struct error *err)
{
    struct cuda_copy_step *s = cuda_step_create(compile, proto, sizeof *s, move_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = kernel;
    return STATUS_OK;
}

CUDA_CREATE(lower_map)
{
    const struct node *node = compile->node;
    struct cuda_copy_step s = {.kind = MOVE_MAP};
    s.size = (int)dtype_size(node->inputs[0]->dtype);
    if (!(node->op == OP_TRANSPOSE ? transpose_map
          : node->op == OP_SLICE   ? slice_map
                                   : expand_map)(node, &s.map))
        return STATUS_OK;
    return move_create(compile, &s, "copy", ret, err);
}

/* Lowers OP_STRIDED_COPY: Transpose, Slice … that a pass has merged (engine/op/access_map.h). */
CUDA_CREATE(lower_chain)
{
    const struct value *x = compile->node->inputs[0];
    struct cuda_copy_step s = {.kind = MOVE_MAP, .size = (int)dtype_size(x->dtype)};
    const struct access_map walk = access_map_load(compile->node, "map", 1, shape_count(&x->shape));
    const struct access_map_group *group = &walk.group[0];
    s.map.offset = walk.offset;
    for (int p = 0; p < group->count; p++)
        if (!cuda_map_append(&s.map, group->parts[p].extent,
                             (const int64_t[CUDA_OPERANDS]){group->parts[p].stride}))
            return STATUS_OK;
    return move_create(compile, &s, "copy", ret, err);
}

CUDA_CREATE(lower_convert)
{
    const struct value *x = compile->node->inputs[0], *y = compile->node->outputs[0];
    bool same = x->dtype == y->dtype;
    bool floats = (x->dtype == DTYPE_F32 || x->dtype == DTYPE_BF16 || x->dtype == DTYPE_F16) &&
                  (y->dtype == DTYPE_F32 || y->dtype == DTYPE_BF16 || y->dtype == DTYPE_F16);
    if ((!same && !floats) || shape_count(&x->shape) != shape_count(&y->shape))
        return STATUS_OK;
    struct cuda_copy_step s = {.kind = same ? MOVE_BYTES : MOVE_CONVERT,
                               .from = x->dtype,
                               .to = y->dtype,
                               .count = shape_count(&x->shape),
                               .bytes = shape_count(&x->shape) * dtype_size(x->dtype)};
    return move_create(compile, &s, same ? "copy" : "convert", ret, err);
}

KERNEL_CLAIM(convert_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    return x && y && !x->known && shape_count(&x->shape) && shape_count(&y->shape) &&
           !node->epilogue.activation && !node->epilogue.residual;
}

KERNEL_CLAIM(move_claim)
{
    ret->narrow = NARROW_SAME;
    return convert_claim(node, ret);
}

const struct cuda_kernel cuda_kernel_transpose = {{"transpose", {OP_TRANSPOSE}, move_claim},
                                                  lower_map};
const struct cuda_kernel cuda_kernel_strided_copy = {{"move", {OP_STRIDED_COPY}, move_claim},
                                                     lower_chain};
const struct cuda_kernel cuda_kernel_view = {
    {"view", {OP_RESHAPE, OP_FLATTEN, OP_SQUEEZE, OP_UNSQUEEZE}, move_claim}, lower_convert};
const struct cuda_kernel cuda_kernel_slice = {{"slice", {OP_EXPAND, OP_SLICE}, convert_claim},
                                              lower_map};
const struct cuda_kernel cuda_kernel_convert = {{"convert", {OP_IDENTITY, OP_CAST}, convert_claim},
                                                lower_convert};
