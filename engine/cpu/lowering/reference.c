/* A step that runs a node's reference kernel on the planned memory. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/op/bound_kernel.h"

struct generic_step {
    struct step step;
    struct bound_kernel bound;
    size_t y_count;
};

static void generic_free(struct step *base)
{
    bound_kernel_free(&((struct generic_step *)base)->bound);
}

/* Computes y = activation(y + bias + residual) after kernels without an epilogue. */
static void apply_epilogue(const struct generic_step *s, struct program *program)
{
    const struct epilogue *e = &s->bound.epilogue;
    const struct value *bias = s->bound.bias;
    float *y = s->bound.out[0]->data;
    size_t row = bias ? shape_count(&bias->shape) : 0;
    for (size_t at = 0; bias && at < s->y_count; at += row)
        simd()->binary(BINARY_ADD, y + at, 1, program->data[bias->index], 1, y + at, row);
    if (e->residual)
        simd()->binary(BINARY_ADD, y, 1, program->data[e->residual->index], 1, y, s->y_count);
    if (e->activation)
        simd()->activate(y, y, s->y_count, e->activation, e->alpha, e->beta);
}

STEP_RUN(generic_run)
{
    struct generic_step *s = (struct generic_step *)base;
    const struct bound_kernel *bound = &s->bound;
    for (size_t i = 0; i < bound->node.input_count; i++)
        if (bound->in[i] && !bound->constant[i])
            bound->in[i]->data = program->data[bound->node.inputs[i]->index];
    for (size_t i = 0; i < bound->node.output_count; i++)
        if (bound->out[i])
            bound->out[i]->data = program->data[bound->node.outputs[i]->index];
    const struct backend_options *options = &program->backend->options;
    TRY(bound_kernel_run(&s->bound, options->is_stopped, options->context, err));
    if (bound_kernel_has_more(bound))
        apply_epilogue(s, program);
    return STATUS_OK;
}

KERNEL_CLAIM(reference_claim)
{
    return kernel_find(node->op) && !node->channels_last;
}

STEP_CREATE(lower_reference)
{
    const struct node *node = lowering->node;
    struct generic_step *step = step_create(lowering, sizeof *step, generic_run, ret, err);
    TRY(allocated(step));
    step->step.free = generic_free;
    step->step.kernel = "reference";
    step->step.is_reference = true;
    const struct bound_kernel *bound = &step->bound;
    TRY(bound_kernel_create(node, false, &step->bound, err));
    if (bound_kernel_has_more(bound) && node->outputs[0]->dtype != DTYPE_F32)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: the CPU backend has no kernel for this operator in %s; use "
                         "--precision fp32",
                         NODE_STRING(node), dtype_name(node->outputs[0]->dtype));
    step->y_count = bound->out[0] ? shape_count(&bound->out[0]->shape) : 0; /* 0: omitted */
    return STATUS_OK;
}

const struct cpu_kernel cpu_reference = {{"reference", {OP_NONE}, reference_claim},
                                         lower_reference};
