/* The step of a compiled product: the product, its packed weights, its residual. */
#include "engine/cpu/lowering/product_step.h"

struct product_step {
    struct step step;
    struct compiled_product *product;
    void **weights; /* address in program->data; NULL: the weights are constant */
    void **gate;    /* address in program->data; NULL: there is no gate */
    struct residual residual;
};

struct strided_layout conv_weights(const struct tensor *weights, int64_t group)
{
    struct strided_layout layout = {.dtype = weights->dtype};
    if (group > 1)
        layout.dims[layout.rank++] = group;
    layout.dims[layout.rank++] = weights->shape.dims[0] / group;
    for (int a = 1; a < weights->shape.rank; a++)
        layout.dims[layout.rank++] = weights->shape.dims[a];
    strided_layout_row_major(&layout);
    return layout;
}

STEP_RUN(product_step_run)
{
    struct product_step *step = (struct product_step *)base;
    residual_begin(&step->residual, base->y);
    compiled_product_run((struct product_run){.product = step->product,
                                              .src = base->x,
                                              .weights = step->weights ? *step->weights : NULL,
                                              .gate = step->gate ? *step->gate : NULL,
                                              .dst = base->y,
                                              .scratch = base->memory});
    return STATUS_OK;
}

static void product_step_free(struct step *base)
{
    compiled_product_free(((struct product_step *)base)->product);
}

static enum status product_fill(const struct lowering *lowering, const struct product_desc *desc,
                                struct product_step *step, struct error *err)
{
    const struct node *node = lowering->node;
    const struct packed_layout *weights = &step->product->weights;
    void **data = lowering->program->data;
    const void *packed = NULL;
    if (desc->weights_constant)
        TRY(weights_get(lowering->backend, desc->weights_constant, &desc->weights, weights, &packed,
                        err));
    if (desc->bias)
        TRY(program_keep_constant(lowering->program, desc->bias, err));
    compiled_product_bind(step->product, packed, desc->bias ? desc->bias->known->data : NULL);
    step->weights = desc->weights_constant ? NULL : &data[node->inputs[1]->index];
    step->gate = desc->gated ? &data[node->gate->index] : NULL;
    step->residual = residual_of(lowering);
    step->step.scratch = step->product->scratch;
    step->step.bytes += desc->weights_constant ? packed_layout_bytes(weights) : 0;
    return STATUS_OK;
}

enum status product_step_create(const struct lowering *lowering, const struct product_desc *desc,
                                struct step **ret, struct error *err)
{
    struct compiled_product *product;
    TRY(compiled_product_create(lowering->program->threads, desc, &lowering->node->epilogue,
                                &product, err));
    struct product_step *step = step_create(lowering, sizeof *step, product_step_run, ret, err);
    if (!step) {
        compiled_product_free(product);
        return STATUS_NO_MEMORY;
    }
    step->product = product;
    step->step.free = product_step_free;
    step->step.packs_constants = true;
    step->step.kernel = compiled_product_name(product);
    return product_fill(lowering, desc, step, err);
}
