/* Steps that copy elements: Transpose, OP_STRIDED_COPY, Identity, and views that need a copy. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/base/size.h"
#include "engine/op/access_map.h"

struct cuda_copy_step {
    struct cuda_step step;
    struct cuda_access_map map;
    int size;
    size_t bytes;
};

CUDA_RUN(map_run)
{
    struct cuda_copy_step *s = (struct cuda_copy_step *)base;
    cuda_copy_strided(program->backend->stream, s->size, program->data[base->x],
                      program->data[base->y], &s->map);
    return cuda_launched(base, program, err);
}

CUDA_RUN(bytes_run)
{
    struct cuda_copy_step *s = (struct cuda_copy_step *)base;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    return x == y ? STATUS_OK
                  : cuda_check(cudaMemcpyAsync(y, x, s->bytes, cudaMemcpyDeviceToDevice,
                                               program->backend->stream),
                               program->backend->device, base->name, err);
}

static enum status copy_create(const struct cuda_lowering *compile,
                               const struct cuda_copy_step *proto, cuda_step_fn run,
                               struct cuda_step **ret, struct error *err)
{
    struct cuda_copy_step *s = cuda_step_create(compile, proto, sizeof *s, run, ret, err);
    TRY(allocated(s));
    s->step.kernel = "copy";
    return STATUS_OK;
}

CUDA_CREATE(lower_map)
{
    struct cuda_copy_step s = {.size = (int)dtype_size(compile->node->inputs[0]->dtype)};
    const struct access_map walk = access_map_of_copy(compile->node);
    const struct access_map_group *group = &walk.group[0];
    s.map.offset = walk.offset;
    for (int p = 0; p < group->count; p++)
        if (!cuda_map_append(&s.map, group->parts[p].extent,
                             (const int64_t[CUDA_OPERANDS]){group->parts[p].stride}))
            return STATUS_OK;
    return copy_create(compile, &s, map_run, ret, err);
}

CUDA_CREATE(lower_bytes)
{
    const struct cuda_copy_step s = {.bytes = value_bytes(compile->node->inputs[0])};
    return copy_create(compile, &s, bytes_run, ret, err);
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
    {"transpose", {OP_TRANSPOSE, OP_STRIDED_COPY}, move_claim}, lower_map};
const struct cuda_kernel cuda_kernel_view = {
    {"view", {OP_RESHAPE, OP_FLATTEN, OP_SQUEEZE, OP_UNSQUEEZE}, move_claim}, lower_bytes};
const struct cuda_kernel cuda_kernel_copy = {{"copy", {OP_IDENTITY}, copy_claim}, lower_bytes};
