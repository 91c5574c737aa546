/* Runs reference kernels as steps of compiled programs. The tensors are created once; a run lets
 * value->known point to them. */
#include "engine/op/bound_kernel.h"

#include <stdlib.h>

#include "engine/base/size.h"

static enum status bind(const struct value *value, bool own_memory, struct tensor **ret,
                        struct error *err)
{
    return own_memory ? tensor_create(NULL, value->dtype, &value->shape, ret, err)
                      : tensor_wrap(value->dtype, &value->shape, NULL, NULL, NULL, ret, err);
}

enum status bound_kernel_create(const struct node *node, bool own_memory, struct bound_kernel *ret,
                                struct error *err)
{
    *ret = (struct bound_kernel){
        .kernel = kernel_find(node->op), .node = *node, .epilogue = node->epilogue};
    ret->node.epilogue = (struct epilogue){0};
    if (node->epilogue.residual)
        ret->node.input_count--;
    if (node->op == OP_MATMUL && ret->node.input_count > 2) {
        ret->bias = node->inputs[2];
        ret->node.input_count = 2;
    }
    ret->in = calloc(node->input_count + 1, sizeof(struct tensor *));
    ret->out = calloc(node->output_count + 1, sizeof(struct tensor *));
    ret->lent = calloc(node->input_count + 1, sizeof *ret->lent);
    ret->constant = calloc(node->input_count + 1, sizeof *ret->constant);
    TRY(check_memory(ret->in && ret->out && ret->lent && ret->constant, "while compiling", err));
    for (size_t i = 0; i < ret->node.input_count; i++) {
        const struct value *value = node->inputs[i];
        ret->constant[i] = value && value->known;
        if (ret->constant[i])
            ret->in[i] = tensor_ref(value->known);
        else if (value)
            TRY(bind(value, own_memory, &ret->in[i], err));
    }
    for (size_t i = 0; i < node->output_count; i++)
        if (node->outputs[i])
            TRY(bind(node->outputs[i], own_memory, &ret->out[i], err));
    return STATUS_OK;
}

void bound_kernel_free(struct bound_kernel *bound)
{
    for (size_t i = 0; bound->in && i < bound->node.input_count; i++)
        tensor_unref(bound->in[i]);
    for (size_t i = 0; bound->out && i < bound->node.output_count; i++)
        tensor_unref(bound->out[i]);
    FREE_ALL(bound->in, bound->out, bound->lent, bound->constant);
}

enum status bound_kernel_run(struct bound_kernel *bound, bool (*stop)(void *context),
                             void *stop_context, struct error *err)
{
    const struct kernel_args args = {.node = &bound->node,
                                     .in = (const struct tensor *const *)bound->in,
                                     .out = bound->out,
                                     .stop = stop,
                                     .stop_context = stop_context};
    for (size_t i = 0; i < bound->node.input_count; i++) {
        struct value *value = bound->node.inputs[i];
        bound->lent[i] = value && !value->known;
        if (bound->lent[i])
            value->known = bound->in[i];
    }
    const enum status status = kernel_call(bound->kernel, &args, err);
    for (size_t i = 0; i < bound->node.input_count; i++)
        if (bound->lent[i])
            bound->node.inputs[i]->known = NULL;
    return status == STATUS_OK ? STATUS_OK : error_prefix(err, "%s", NODE_STRING(&bound->node));
}
