/* A step that runs a node's reference kernel on the planned memory: whatever no faster step takes.
 *
 * Kernels see ordinary tensors. While the step runs, node->inputs[i]->known names them too, as it
 * does in the interpreter; the graph belongs to the session and is only used by its thread. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/reference/kernel.h"

#include <stdlib.h>
#include <string.h>

struct generic_step {
    struct step step;
    kernel_fn kernel;
    struct node node; /* a copy without the epilogue */
    struct tensor **in, **out, ***out_slots;
    bool *constant;           /* in[i] is a constant */
    bool *lent;               /* known was set by this run, and must be taken back */
    const struct value *bias; /* of a MatMul: over the last dimension; NULL without */
    struct epilogue epilogue;
    bool
        residual_in_y; /* the plan put the result over the residual: copy it to the scratch first */
    size_t y_count;
};

static void generic_free(struct step *base)
{
    struct generic_step *s = (struct generic_step *)base;
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

/* y = activation(y + bias + residual) where no kernel has an epilogue of its own. */
static void apply_epilogue(const struct generic_step *s, struct program *program)
{
    const struct epilogue *e = &s->epilogue;
    if (!s->out[0]) /* a Split whose first part nobody reads; it has no epilogue */
        return;
    float *y = s->out[0]->data;
    size_t row = s->bias ? shape_count(&s->bias->shape) : 0;
    for (size_t at = 0; s->bias && at < s->y_count; at += row)
        simd()->accumulate(program->data[s->bias->index], y + at, row);
    if (e->residual)
        simd()->accumulate(s->residual_in_y ? (const float *)(const void *)program->scratch
                                            : program->data[e->residual->index],
                           y, s->y_count);
    if (e->activation)
        simd()->activate(y, y, s->y_count, e->activation, e->alpha, e->beta);
}

static enum status generic_run(struct step *base, struct program *program, struct error *err)
{
    struct generic_step *s = (struct generic_step *)base;
    for (size_t i = 0; i < s->node.input_count; i++) {
        struct value *value = s->node.inputs[i];
        if (!value)
            continue;
        if (!s->constant[i])
            s->in[i]->data = program->data[value->index];
        s->lent[i] = !value->known;
        if (s->lent[i])
            value->known = s->in[i];
    }
    if (s->residual_in_y)
        memcpy(program->scratch, program->data[s->epilogue.residual->index],
               s->y_count * sizeof(float));
    for (size_t i = 0; i < s->node.output_count; i++)
        if (s->out[i])
            s->out[i]->data = program->data[s->node.outputs[i]->index];
    struct kernel_args args = {.node = &s->node,
                               .in = (const struct tensor *const *)s->in,
                               .out = (struct tensor * *const *)s->out_slots};
    enum status status = kernel_call(s->kernel, &args, err);
    for (size_t i = 0; i < s->node.input_count; i++)
        if (s->node.inputs[i] && s->lent[i])
            s->node.inputs[i]->known = NULL;
    if (status != STATUS_OK) {
        char text[NODE_TEXT];
        return error_prefix(err, "%s", node_text(&s->node, text));
    }
    if (s->out[0]) /* a node's first output may be left out */
        apply_epilogue(s, program);
    return STATUS_OK;
}

enum status lower_reference(const struct lowering *lowering, struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    char text[NODE_TEXT];
    kernel_fn kernel = kernel_find(node->op);
    if (!kernel || node->channels_last)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: the CPU backend has no kernel for this operator",
                         node_text(node, text));
    struct generic_step *step = step_create(lowering, sizeof *step, generic_run, ret, err);
    if (!step)
        return STATUS_NO_MEMORY;
    step->step.free = generic_free;
    step->step.kernel = "reference";
    step->step.is_reference = true;
    step->kernel = kernel;
    step->node = *node;
    step->epilogue = node->epilogue;
    step->node.epilogue = (struct epilogue){0};
    bool has_epilogue = node->epilogue.residual || node->epilogue.activation;
    if (node->epilogue.residual)
        step->node.input_count--;
    if (node->op == OP_MATMUL && step->node.input_count > 2) {
        step->node.input_count = 2;
        step->bias = node->inputs[2];
        has_epilogue = true;
    }
    if (has_epilogue && node->outputs[0]->dtype != DTYPE_F32)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: the CPU backend has no kernel for this operator in %s; use "
                         "--precision fp32",
                         node_text(node, text), dtype_name(node->outputs[0]->dtype));
    step->in = calloc(step->node.input_count + 1, sizeof(struct tensor *));
    step->out = calloc(node->output_count + 1, sizeof(struct tensor *));
    step->out_slots = calloc(node->output_count + 1, sizeof(struct tensor **));
    step->lent = calloc(step->node.input_count + 1, sizeof *step->lent);
    step->constant = calloc(step->node.input_count + 1, sizeof *step->constant);
    if (!step->lent || !step->constant || !step->in || !step->out || !step->out_slots)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    for (size_t i = 0; i < step->node.input_count; i++) {
        struct value *value = node->inputs[i];
        if (!value)
            continue;
        step->constant[i] = value->known != NULL;
        if (value->known)
            step->in[i] = tensor_ref(value->known);
        else
            TRY(tensor_wrap(value->dtype, &value->shape, DEVICE_HOST, NULL, NULL, NULL,
                            &step->in[i], err));
        step->step.bytes += step->in[i]->bytes;
    }
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *value = node->outputs[i];
        if (!value)
            continue;
        TRY(tensor_wrap(value->dtype, &value->shape, DEVICE_HOST, NULL, NULL, NULL, &step->out[i],
                        err));
        step->out_slots[i] = &step->out[i];
        step->step.bytes += step->out[i]->bytes;
    }
    step->y_count = step->out[0] ? shape_count(&step->out[0]->shape) : 0;
    if (node->epilogue.residual) {
        step->residual_in_y = !residual_of(lowering).copy;
        if (step->residual_in_y)
            step->step.scratch = step->y_count * sizeof(float);
    }
    return STATUS_OK;
}
