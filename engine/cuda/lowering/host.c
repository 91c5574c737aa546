/* Nodes without a kernel on the GPU: a step copies their operands to the host, runs the reference
 * kernel, and copies the results back. This is slow but always right; `lensd inspect --profile`
 * shows such steps as "host". */
#include "engine/cuda/lowering/lowering.h"

#include "engine/op/bound_kernel.h"

struct host_step {
    struct cuda_step step;
    struct bound_kernel bound;
    struct cuda_epilogue epilogue; /* computed on the device */
};

static void host_free(struct cuda_step *base)
{
    bound_kernel_free(&((struct host_step *)base)->bound);
}

static enum status copy_down(struct host_step *s, struct cuda_program *program, struct error *err)
{
    const struct bound_kernel *bound = &s->bound;
    struct cuda_backend *backend = program->backend;
    for (size_t i = 0; i < bound->node.input_count; i++) {
        const struct value *value = bound->node.inputs[i];
        if (value && !bound->constant[i] && bound->in[i]->bytes)
            TRY(cuda_check(cudaMemcpyAsync(bound->in[i]->data, program->data[value->index],
                                           bound->in[i]->bytes, cudaMemcpyDeviceToHost,
                                           backend->stream),
                           backend->device, s->step.name, err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, s->step.name, err);
}

static enum status copy_up(struct host_step *s, struct cuda_program *program, struct error *err)
{
    const struct bound_kernel *bound = &s->bound;
    struct cuda_backend *backend = program->backend;
    for (size_t i = 0; i < bound->node.output_count; i++)
        if (bound->out[i] && bound->out[i]->bytes)
            TRY(cuda_check(cudaMemcpyAsync(program->data[bound->node.outputs[i]->index],
                                           bound->out[i]->data, bound->out[i]->bytes,
                                           cudaMemcpyHostToDevice, backend->stream),
                           backend->device, s->step.name, err));
    if (bound_kernel_has_more(bound)) {
        const struct shape *y = &bound->out[0]->shape;
        const size_t columns = y->rank ? (size_t)y->dims[y->rank - 1] : 1;
        struct cuda_epilogue epilogue = s->epilogue;
        epilogue.residual = program->data[s->step.residual];
        cuda_apply_epilogue(backend->stream, program->data[bound->node.outputs[0]->index],
                            shape_count(y) / columns, columns, columns, &epilogue);
        TRY(cuda_launched(&s->step, program, err));
    }
    /* Waits, because the next run overwrites the host tensors. */
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, s->step.name, err);
}

CUDA_RUN(host_run)
{
    struct host_step *s = (struct host_step *)base;
    TRY(copy_down(s, program, err));
    const struct backend_options *options = &program->backend->options;
    TRY(bound_kernel_run(&s->bound, options->is_stopped, options->context, err));
    return copy_up(s, program, err);
}

KERNEL_CLAIM(host_claim)
{
    return kernel_find(node->op) && !node->channels_last;
}

CUDA_CREATE(lower_host)
{
    const struct node *node = compile->node;
    struct host_step *s = cuda_step_create(compile, NULL, sizeof *s, host_run, ret, err);
    TRY(allocated(s));
    s->step.free = host_free;
    s->step.kernel = "host";
    s->step.on_host = true;
    s->step.bytes = 0;
    TRY(bound_kernel_create(node, true, &s->bound, err));
    for (size_t i = 0; i < node->output_count; i++)
        s->step.bytes += s->bound.out[i] ? s->bound.out[i]->bytes : 0;
    if (bound_kernel_has_more(&s->bound) && !is_computed(node->outputs[0]->dtype))
        return error_set(err, STATUS_UNSUPPORTED, "%s: the CUDA backend does not compute in %s",
                         NODE_STRING(node), dtype_name(node->outputs[0]->dtype));
    if (!bound_kernel_has_more(&s->bound))
        return STATUS_OK;
    return cuda_epilogue_of(compile, s->bound.bias, &s->epilogue, err);
}

const struct cuda_kernel cuda_kernel_host = {{"host", {OP_NONE}, host_claim}, lower_host};
