/* Steps that copy elements: Transpose, OP_STRIDED_COPY, Identity, and views that need a copy. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/base/size.h"
#include "engine/op/access_map.h"

struct cuda_copy_step {
    struct cuda_step step;
    struct cuda_access_map map;
    int size;
};

CUDA_RUN(map_run)
{
    struct cuda_copy_step *s = (struct cuda_copy_step *)base;
    cuda_copy_strided(program->backend->stream, s->size, program->data[base->x],
                      program->data[base->y], &s->map);
    return cuda_launched(base, program, err);
}

CUDA_CREATE(lower_copy)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0];
    struct cuda_copy_step s = {.step.kernel = "copy", .size = (int)dtype_size(x->dtype)};
    struct access_map walk = {.groups = 1, .group[0] = {1, {{(int64_t)shape_count(&x->shape), 1}}}};
    if (node->op == OP_TRANSPOSE || node->op == OP_STRIDED_COPY)
        walk = access_map_of_copy(node);
    s.map.offset = walk.offset;
    for (int p = 0; p < walk.group[0].count; p++)
        if (!cuda_map_append(&s.map, walk.group[0].parts[p].extent, walk.group[0].parts[p].stride))
            return STATUS_OK;
    return cuda_step_create(compile, &s, sizeof s, map_run, ret, err) ? STATUS_OK
                                                                      : STATUS_NO_MEMORY;
}

KERNEL_CLAIM(copy_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    return x && y && !x->known && shape_count(&x->shape) && shape_count(&y->shape) &&
           !node->epilogue.activation && !node->epilogue.residual;
}

KERNEL_CLAIM(move_claim)
{
    ret->narrow = NARROW_SAME;
    return copy_claim(node, ret);
}

const struct cuda_kernel cuda_kernel_transpose = {
    {"transpose", {OP_TRANSPOSE, OP_STRIDED_COPY}, move_claim}, lower_copy};
const struct cuda_kernel cuda_kernel_view = {
    {"view", {OP_RESHAPE, OP_FLATTEN, OP_SQUEEZE, OP_UNSQUEEZE}, move_claim}, lower_copy};
const struct cuda_kernel cuda_kernel_copy = {{"copy", {OP_IDENTITY}, copy_claim}, lower_copy};
