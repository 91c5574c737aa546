/* The step of a product that oneDNN computes: the product, its packed weights, its residual. */
#include "engine/cpu/lowering/product.h"

struct product_step {
    struct step step;
    struct onednn_product *product;
    uint32_t src_value, weights_value, dst_value;
    bool weights_are_values; /* a MatMul of two activations */
    struct residual residual;
};

STEP_RUN(product_run)
{
    struct product_step *step = (struct product_step *)base;
    void *dst = program->data[step->dst_value];
    residual_begin(&step->residual, program, dst);
    const enum status status =
        onednn_product_run(step->product, program->data[step->src_value],
                           step->weights_are_values ? program->data[step->weights_value] : NULL,
                           dst, program->scratch, err);
    return status == STATUS_OK ? status : error_prefix(err, "%s", base->name);
}

static void product_free(struct step *base)
{
    onednn_product_free(((struct product_step *)base)->product);
}

static enum status product_fill(const struct lowering *lowering, const struct product_desc *desc,
                                struct product_step *step, struct error *err)
{
    struct backend *backend = lowering->backend;
    const struct node *node = lowering->node;
    const struct packed_layout *weights = onednn_product_weights(step->product);
    void *packed = NULL, *bias = NULL;
    if (desc->weights_constant)
        TRY(weights_get(backend, desc->weights_constant, &desc->weights, weights, &packed, err));
    if (desc->bias_constant)
        TRY(weights_get(backend, desc->bias_constant, &desc->bias, NULL, &bias, err));
    TRY(onednn_product_bind(step->product, packed, bias, err));
    step->weights_are_values = !desc->weights_constant;
    step->src_value = node->inputs[0]->index;
    step->weights_value = node->inputs[desc->weights_input]->index;
    step->dst_value = node->outputs[0]->index;
    step->residual = residual_of(lowering);
    step->step.scratch = onednn_product_scratch(step->product);
    step->step.bytes = value_bytes(node->inputs[0]) + value_bytes(node->outputs[0]) +
                       packed_layout_bytes(weights) + step->residual.bytes;
    return STATUS_OK;
}

enum status product_create(const struct lowering *lowering, const struct product_desc *desc,
                           struct step **ret, struct error *err)
{
    struct onednn_product *product = NULL;
    if (onednn_product_create(lowering->backend->onednn, desc, &lowering->node->epilogue, &product,
                              err) != STATUS_OK)
        return error_prefix(err, "%s", lowering->node->name);
    if (!product)
        return STATUS_OK; /* another lowering may take the node */
    struct product_step *step = step_create(lowering, sizeof *step, product_run, ret, err);
    if (!step) {
        onednn_product_free(product);
        return STATUS_NO_MEMORY;
    }
    step->product = product;
    step->step.free = product_free;
    step->step.packs_constants = true;
    step->step.kernel = onednn_product_name(product);
    return product_fill(lowering, desc, step, err);
}
