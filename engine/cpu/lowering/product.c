/* One step for every product that oneDNN computes: the primitive, its packed weights, its epilogue.
 */
#include "engine/cpu/lowering/product.h"

#include <stdlib.h>
#include <string.h>

static enum status product_run(struct step *base, struct program *program, struct error *err)
{
    struct product_step *step = (struct product_step *)base;
    void *dst = program->data[step->dst_value];
    residual_begin(&step->residual, program, dst);
    dnnl_memory_set_data_handle(step->src, program->data[step->src_value]);
    dnnl_memory_set_data_handle(step->dst, dst);
    if (step->weights_are_values)
        dnnl_memory_set_data_handle(step->weights, program->data[step->weights_value]);
    dnnl_exec_arg_t args[5] = {
        {DNNL_ARG_SRC, step->src}, {DNNL_ARG_WEIGHTS, step->weights}, {DNNL_ARG_DST, step->dst}};
    int count = 3;
    if (step->bias)
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, step->bias};
    if (step->scratchpad) {
        dnnl_memory_set_data_handle(step->scratchpad, program->scratch);
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, step->scratchpad};
    }
    return dnnl_check(
        dnnl_primitive_execute(step->primitive, program->backend->stream, count, args), base->name,
        err);
}

static void product_free(struct step *base)
{
    struct product_step *step = (struct product_step *)base;
    dnnl_primitive_destroy(step->primitive);
    dnnl_memory_destroy(step->src);
    dnnl_memory_destroy(step->weights);
    dnnl_memory_destroy(step->bias);
    dnnl_memory_destroy(step->dst);
    dnnl_memory_destroy(step->scratchpad);
}

static enum status make_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *desc, void *data,
                               dnnl_memory_t *ret, struct error *err)
{
    return dnnl_check(dnnl_memory_create(ret, desc, engine, data ? data : DNNL_MEMORY_NONE),
                      "memory", err);
}

/* What 8-bit integers need in addition: the scale of each output channel, zero points. */
static enum status set_quantised(dnnl_primitive_attr_t attr, const struct product_desc *desc,
                                 struct error *err)
{
    enum { PER_CHANNEL = 1 << 1 };
    TRY(dnnl_check(dnnl_primitive_attr_set_output_scales(attr, (dnnl_dim_t)desc->scale_count,
                                                         PER_CHANNEL, desc->scales),
                   "scales", err));
    if (desc->src_zero)
        TRY(dnnl_check(
            dnnl_primitive_attr_set_zero_points(attr, DNNL_ARG_SRC, 1, 0, &desc->src_zero),
            "zero point", err));
    if (desc->dst_zero)
        TRY(dnnl_check(
            dnnl_primitive_attr_set_zero_points(attr, DNNL_ARG_DST, 1, 0, &desc->dst_zero),
            "zero point", err));
    return STATUS_OK;
}

static enum status make_attr(const struct node *node, const struct product_desc *desc,
                             dnnl_primitive_attr_t *ret, struct error *err)
{
    dnnl_post_ops_t ops = NULL;
    TRY(dnnl_check(dnnl_primitive_attr_create(ret), "attributes", err));
    TRY(dnnl_check(dnnl_primitive_attr_set_scratchpad_mode(*ret, dnnl_scratchpad_mode_user),
                   "attributes", err));
    if (desc->scales)
        TRY(set_quantised(*ret, desc, err));
    TRY(dnnl_check(dnnl_post_ops_create(&ops), "post-ops", err));
    enum status status = STATUS_OK;
    if (node->epilogue.residual)
        status = dnnl_check(dnnl_post_ops_append_sum(ops, 1.0f), "residual", err);
    if (status == STATUS_OK && !dnnl_append_activation(ops, &node->epilogue))
        status = error_set(err, STATUS_UNSUPPORTED, "oneDNN: activation %d",
                           (int)node->epilogue.activation);
    if (status == STATUS_OK)
        status = dnnl_check(dnnl_primitive_attr_set_post_ops(*ret, ops), "post-ops", err);
    dnnl_post_ops_destroy(ops);
    return status;
}

static enum status product_fill(const struct compile *compile, const struct product_desc *desc,
                                const_dnnl_primitive_desc_t primitive, struct product_step *step,
                                struct error *err)
{
    struct backend *backend = compile->backend;
    const struct node *node = compile->node;
    const dnnl_memory_desc_t *weights =
        dnnl_primitive_desc_query_md(primitive, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *scratchpad =
        dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
    void *packed = NULL, *bias = NULL;
    if (desc->weights_constant)
        TRY(weights_get(backend, desc->weights_constant, &desc->weights, weights, &packed, err));
    step->weights_are_values = !desc->weights_constant;
    TRY(make_memory(backend->engine, weights, packed, &step->weights, err));
    TRY(make_memory(backend->engine, &desc->src, NULL, &step->src, err));
    TRY(make_memory(backend->engine, &desc->dst, NULL, &step->dst, err));
    if (desc->bias_constant) {
        TRY(weights_get(backend, desc->bias_constant, &desc->bias, &desc->bias, &bias, err));
        TRY(make_memory(backend->engine, &desc->bias, bias, &step->bias, err));
    }
    step->step.scratch = dnnl_memory_desc_get_size(scratchpad);
    if (step->step.scratch)
        TRY(make_memory(backend->engine, scratchpad, NULL, &step->scratchpad, err));
    step->src_value = node->inputs[0]->index;
    step->weights_value = node->inputs[desc->weights_input]->index;
    step->dst_value = node->outputs[0]->index;
    step->step.bytes = dnnl_memory_desc_get_size(&desc->src) +
                       dnnl_memory_desc_get_size(&desc->dst) + dnnl_memory_desc_get_size(weights);
    step->residual = residual_of(compile);
    step->step.bytes += step->residual.bytes;
    return STATUS_OK;
}

/* Does this kind of primitive run what `desc` says? oneDNN's "brgconv" convolutions (2.6.3) access
 * memory out of bounds where a window lies wholly in the padding and the result is added to what
 * dst holds. */
static bool is_sound(const struct product_desc *desc, const_dnnl_primitive_desc_t kind)
{
    const char *name = NULL;
    return !desc->beyond || (dnnl_primitive_desc_query(kind, dnnl_query_impl_info_str, 0,
                                                       (void *)&name) == dnnl_success &&
                             strncmp(name, "brg", 3) != 0);
}

/* The quickest primitive that oneDNN has for it; *ret stays NULL when it has none. Skips an
 * implementation that claims support and then fails to generate its code, as some do for grouped
 * and dilated convolutions. */
static enum status product_pick(const struct product_desc *desc, const_dnnl_primitive_attr_t attr,
                                dnnl_engine_t engine, const char *name, dnnl_primitive_t *ret,
                                struct error *err)
{
    dnnl_primitive_desc_iterator_t kinds = NULL;
    dnnl_status_t status = dnnl_success;
    if (dnnl_primitive_desc_iterator_create(&kinds, desc->op_desc, attr, engine, NULL) !=
        dnnl_success)
        return STATUS_OK;
    do {
        dnnl_primitive_desc_t kind = dnnl_primitive_desc_iterator_fetch(kinds);
        if (kind && is_sound(desc, kind))
            status = dnnl_primitive_create(ret, kind);
        dnnl_primitive_desc_destroy(kind);
    } while (!*ret && status != dnnl_out_of_memory &&
             dnnl_primitive_desc_iterator_next(kinds) == dnnl_success);
    dnnl_primitive_desc_iterator_destroy(kinds);
    return status == dnnl_out_of_memory ? dnnl_check(status, name, err) : STATUS_OK;
}

enum status product_create(const struct compile *compile, const struct product_desc *desc,
                           struct step **ret, struct error *err)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_t primitive = NULL;
    const_dnnl_primitive_desc_t kind = NULL;
    const char *implementation = NULL;
    enum status status = make_attr(compile->node, desc, &attr, err);
    if (status == STATUS_OK)
        status = product_pick(desc, attr, compile->backend->engine, compile->node->name, &primitive,
                              err);
    dnnl_primitive_attr_destroy(attr);
    if (status != STATUS_OK || !primitive)
        return status; /* without a primitive the reference kernel takes the node */
    struct product_step *step = step_create(compile, sizeof *step, product_run, ret, err);
    if (!step) {
        dnnl_primitive_destroy(primitive);
        return STATUS_NO_MEMORY;
    }
    step->step.free = product_free;
    step->step.packs_constants = true;
    step->primitive = primitive;
    TRY(dnnl_check(dnnl_primitive_get_primitive_desc(primitive, &kind), compile->node->name, err));
    TRY(product_fill(compile, desc, kind, step, err));
    if (dnnl_primitive_desc_query(kind, dnnl_query_impl_info_str, 0, (void *)&implementation) ==
        dnnl_success)
        step->step.kernel = implementation;
    return STATUS_OK;
}
