/* Nodes without a kernel on the GPU: their operands are copied to the host, the reference kernel
 * runs, and the results are copied back. This is slow but always right; `lensd inspect --profile`
 * shows such steps as "host". */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "engine/reference/kernel.h"

struct host_step {
    struct cuda_step step;
    kernel_fn kernel;
    struct node node;
    struct tensor **in, **out, ***out_slots;
    bool *constant; /* by input: in[i] holds a reference, as the graph may release its constants */
    bool *lent;
    /* The node's epilogue, which runs on the device. */
    bool has_epilogue, has_residual;
    struct cuda_epilogue epilogue;
    uint32_t residual;
};

static void host_free(struct cuda_step *base)
{
    struct host_step *s = (struct host_step *)base;
    for (size_t i = 0; s->in && i < s->node.input_count; i++)
        tensor_unref(s->in[i]);
    for (size_t i = 0; s->out && i < s->node.output_count; i++)
        tensor_unref(s->out[i]);
    free(s->in);
    free(s->out);
    free(s->out_slots);
    free(s->lent);
    free(s->constant);
}

static enum status copy_down(struct host_step *s, struct cuda_program *program, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    for (size_t i = 0; i < s->node.input_count; i++) {
        const struct value *value = s->node.inputs[i];
        if (value && !s->constant[i] && s->in[i]->bytes)
            TRY(cuda_check(cudaMemcpyAsync(s->in[i]->data, program->data[value->index],
                                           s->in[i]->bytes, cudaMemcpyDeviceToHost,
                                           backend->stream),
                           backend->device, s->step.name, err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, s->step.name, err);
}

static enum status copy_up(struct host_step *s, struct cuda_program *program, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    for (size_t i = 0; i < s->node.output_count; i++)
        if (s->out[i] && s->out[i]->bytes)
            TRY(cuda_check(cudaMemcpyAsync(program->data[s->node.outputs[i]->index],
                                           s->out[i]->data, s->out[i]->bytes,
                                           cudaMemcpyHostToDevice, backend->stream),
                           backend->device, s->step.name, err));
    if (s->has_epilogue) {
        const struct shape *y = &s->out[0]->shape;
        size_t columns = y->rank ? (size_t)y->dims[y->rank - 1] : 1;
        struct cuda_epilogue epilogue = s->epilogue;
        epilogue.residual = s->has_residual ? program->data[s->residual] : NULL;
        cuda_apply_epilogue(backend->stream, (int)s->out[0]->dtype,
                            program->data[s->node.outputs[0]->index], shape_count(y) / columns,
                            columns, columns, &epilogue);
        TRY(cuda_launched(&s->step, program, err));
    }
    /* Waits, because the next run overwrites the host tensors. */
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, s->step.name, err);
}

static enum status host_run(struct cuda_step *base, struct cuda_program *program, struct error *err)
{
    struct host_step *s = (struct host_step *)base;
    TRY(copy_down(s, program, err));
    for (size_t i = 0; i < s->node.input_count; i++) {
        struct value *value = s->node.inputs[i];
        s->lent[i] = value && !value->known;
        if (s->lent[i])
            value->known = s->in[i];
    }
    struct kernel_args args = {.node = &s->node,
                               .in = (const struct tensor *const *)s->in,
                               .out = (struct tensor * *const *)s->out_slots};
    enum status status = kernel_call(s->kernel, &args, err);
    for (size_t i = 0; i < s->node.input_count; i++)
        if (s->lent[i])
            s->node.inputs[i]->known = NULL;
    if (status != STATUS_OK) {
        char text[NODE_TEXT];
        return error_prefix(err, "%s", node_text(&s->node, text));
    }
    return copy_up(s, program, err);
}

static enum status make_tensors(const struct cuda_lowering *compile, struct host_step *s,
                                struct error *err)
{
    const struct node *node = compile->node;
    s->in = calloc(node->input_count + 1, sizeof(struct tensor *));
    s->out = calloc(node->output_count + 1, sizeof(struct tensor *));
    s->out_slots = calloc(node->output_count + 1, sizeof(struct tensor **));
    s->lent = calloc(node->input_count + 1, sizeof *s->lent);
    s->constant = calloc(node->input_count + 1, sizeof *s->constant);
    if (!s->in || !s->out || !s->out_slots || !s->lent || !s->constant)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    for (size_t i = 0; i < s->node.input_count; i++) {
        struct value *value = node->inputs[i];
        s->constant[i] = value && value->known;
        if (s->constant[i])
            s->in[i] = tensor_ref(value->known);
        else if (value)
            TRY(tensor_create(NULL, value->dtype, &value->shape, &s->in[i], err));
    }
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *value = node->outputs[i];
        if (!value)
            continue;
        TRY(tensor_create(NULL, value->dtype, &value->shape, &s->out[i], err));
        s->out_slots[i] = &s->out[i];
        s->step.bytes += s->out[i]->bytes;
    }
    return STATUS_OK;
}

/* The reference kernel has no residual, no activation, and no bias of a MatMul: these run on the
 * device. */
static enum status take_epilogue(const struct cuda_lowering *compile, struct host_step *s,
                                 struct error *err)
{
    const struct node *node = compile->node;
    const struct epilogue *e = &node->epilogue;
    const void *bias = NULL;
    if (e->residual) {
        s->has_residual = true;
        s->residual = e->residual->index;
        s->node.input_count--;
    }
    if (node->op == OP_MATMUL && s->node.input_count > 2) {
        TRY(cuda_bias_of(compile->backend, node->inputs[2], node->outputs[0]->dtype, &bias, err));
        s->node.input_count = 2;
    }
    s->epilogue = (struct cuda_epilogue){bias, NULL, (int)e->activation, e->alpha, e->beta};
    s->has_epilogue = bias || e->residual || e->activation;
    if (s->has_epilogue && !is_computed(node->outputs[0]->dtype)) {
        char text[NODE_TEXT];
        return error_set(err, STATUS_UNSUPPORTED, "%s: the CUDA backend does not compute in %s",
                         node_text(node, text), dtype_name(node->outputs[0]->dtype));
    }
    return STATUS_OK;
}

enum status cuda_lower_host(const struct cuda_lowering *compile, struct cuda_step **ret,
                            struct error *err)
{
    const struct node *node = compile->node;
    char text[NODE_TEXT];
    kernel_fn kernel = kernel_find(node->op);
    if (!kernel || node->channels_last)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: the CUDA backend has no kernel for this operator with these operands",
                         node_text(node, text));
    struct host_step *s = cuda_step_create(compile, NULL, sizeof *s, host_run, ret, err);
    if (!s)
        return STATUS_NO_MEMORY;
    s->step.free = host_free;
    s->step.kernel = "host";
    s->step.on_host = true;
    s->kernel = kernel;
    s->node = *node;
    s->node.epilogue = (struct epilogue){0};
    TRY(take_epilogue(compile, s, err));
    return make_tensors(compile, s, err);
}
