/* Steps of OP_ATTENTION, with or without tensor cores (engine/op/attention.h has the operator). */
#include "engine/op/attention.h"

#include <limits.h>

#include "engine/cuda/lowering/lowering.h"

struct cuda_attention_step {
    struct cuda_step step;
    struct cuda_attention attention;
    bool on_tensor_cores;
    enum dtype dtype;
    struct cuda_operand inputs[3 + ATTENTION_BIASES];
};

CUDA_RUN(attention_run)
{
    struct cuda_attention_step *s = (struct cuda_attention_step *)base;
    const void *in[3 + ATTENTION_BIASES] = {NULL};
    for (int i = 0; i < 3 + s->attention.bias_count; i++)
        in[i] = cuda_operand_at(program, &s->inputs[i]);
    struct cuda_attention_data data = {
        .q = in[0], .k = in[1], .v = in[2], .y = program->data[base->y]};
    for (int b = 0; b < s->attention.bias_count; b++)
        data.bias[b] = in[3 + b];
    cuda_attend(program->backend->stream, (int)s->dtype, s->on_tensor_cores, &data, &s->attention);
    return cuda_launched(base, program, err);
}

static bool convert_group(const struct access_map_group *group, struct cuda_group *ret)
{
    if (group->count > CUDA_GROUP_PARTS)
        return false;
    ret->count = group->count;
    for (int p = 0; p < group->count; p++) {
        const struct access_map_part *part = &group->parts[p];
        if (part->extent > INT_MAX || part->stride > INT_MAX || part->stride < INT_MIN)
            return false;
        ret->extent[p] = (int)part->extent;
        ret->stride[p] = (int)part->stride;
    }
    return true;
}

static bool convert_map(const struct access_map *map, struct cuda_matrices *ret)
{
    int64_t step;
    if (!access_map_is_even(&map->group[2], &step) || step > INT_MAX || step < INT_MIN)
        return false;
    ret->offset = map->offset;
    ret->column_step = (int)step;
    return convert_group(&map->group[0], &ret->batch) && convert_group(&map->group[1], &ret->rows);
}

static bool convert_attention(const struct attention *from, struct cuda_attention *ret)
{
    if (from->batch > INT_MAX || from->rows > INT_MAX || from->keys > INT_MAX ||
        from->depth > INT_MAX || from->width > INT_MAX || from->keys < 1)
        return false;
    *ret = (struct cuda_attention){.batch = (int)from->batch,
                                   .rows = (int)from->rows,
                                   .keys = (int)from->keys,
                                   .depth = (int)from->depth,
                                   .width = (int)from->width,
                                   .scale = from->scale,
                                   .nan_is_zero = from->nan_is_zero,
                                   .bias_count = (int)from->bias_count};
    for (size_t b = 0; b < from->bias_count; b++)
        if (!convert_map(&from->bias[b], &ret->bias[b]))
            return false;
    return convert_map(&from->q, &ret->q) && convert_map(&from->k, &ret->k) &&
           convert_map(&from->v, &ret->v) && convert_map(&from->y, &ret->y);
}

KERNEL_CLAIM(attention_claim)
{
    if (!node_output(node, 0))
        return false;
    ret->narrow = NARROW_SAME;
    const enum dtype dtype = node->outputs[0]->dtype;
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        const enum dtype own = value->known ? value->known->dtype : value->dtype;
        if (own != dtype && !(i >= 3 && own == DTYPE_F32) && !(value->known && own == DTYPE_F32))
            return false;
    }
    return is_computed(dtype) && !node->epilogue.activation && !node->epilogue.residual;
}

CUDA_CREATE(lower_attention)
{
    const struct node *node = compile->node;
    struct cuda_backend *backend = compile->backend;
    struct attention loaded;
    struct cuda_attention_step proto = {.dtype = node->outputs[0]->dtype};
    attention_load(node, &loaded);
    if (!convert_attention(&loaded, &proto.attention))
        return STATUS_OK;
    proto.on_tensor_cores = proto.dtype != DTYPE_F32 && has_tensor_cores(backend, proto.dtype) &&
                            cuda_attention_takes(&proto.attention, true, backend->shared_limit);
    if (!proto.on_tensor_cores &&
        !cuda_attention_takes(&proto.attention, false, backend->shared_limit))
        return STATUS_OK;
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        const enum dtype own = value->known ? value->known->dtype : value->dtype;
        TRY(cuda_operand_of(compile, value, i < 3 ? proto.dtype : own, &proto.inputs[i], err));
        if (i >= 3)
            proto.attention.bias_is_float[i - 3] = own == DTYPE_F32;
    }
    struct cuda_attention_step *s =
        cuda_step_create(compile, &proto, sizeof *s, attention_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = s->on_tensor_cores ? "tensor-core attention" : "attention";
    s->step.flops = 2.0 * (double)loaded.batch * (double)loaded.rows * (double)loaded.keys *
                    (double)(loaded.depth + loaded.width);
    s->step.bytes =
        (size_t)(loaded.batch * (loaded.rows + loaded.keys) * (loaded.depth + loaded.width)) *
        dtype_size(s->dtype);
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_attention = {{"attention", {OP_ATTENTION}, attention_claim},
                                                  lower_attention};
