/* Compiles a graph: the table of lowerings, and what the optimizer asks about them. */
#include <stdlib.h>

#include "engine/base/forkjoin.h"
#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/lowering/product.h"

/* ---- what may be done to a graph ---- */

static bool takes_channels_last(const struct node *node)
{
    enum { MOST_TAPS = 256 };
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (qconv_takes(node) || qrows_take_channels_last(node) || resize_takes_8bit(node))
        return true;
    if (!x || !y || x->dtype != DTYPE_F32 || x->shape.rank < 3 || x->shape.rank > 5 ||
        !shape_count(&x->shape) || !shape_count(&y->shape) || x->known)
        return false;
    size_t count = 0, taps = 1;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    for (size_t i = 0; i < count; i++)
        taps *= kernel[i] > 0 && kernel[i] <= MOST_TAPS ? (size_t)kernel[i] : MOST_TAPS + 1;
    switch (node->op) {
    case OP_CONV: {
        const struct value *bias = node_bias(node);
        return is_f32_constant(node_input(node, 1)) && (!bias || is_f32_constant(bias));
    }
    case OP_CONV_TRANSPOSE:
        return deconv_takes(node);
    case OP_GROUP_NORMALIZATION:
    case OP_INSTANCE_NORMALIZATION:
    case OP_LRN:
        return groups_take(node);
    case OP_MAX_POOL:
        return x->shape.rank <= 4 && !node_output(node, 1) && taps <= MOST_TAPS;
    case OP_AVERAGE_POOL:
        return x->shape.rank <= 4 && taps <= MOST_TAPS;
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_SCALE_SHIFT:
        return true;
    case OP_RESIZE:
    case OP_UPSAMPLE:
        return resize_takes(node);
    default:
        return false;
    }
}

static bool stores_result(const struct node *node)
{
    switch (node->op) {
    case OP_LAYER_NORMALIZATION:
    case OP_RMS_NORMALIZATION:
        return norm_takes(node);
    case OP_ATTENTION:
        return true;
    default:
        return quantized_stores_result(node);
    }
}

static enum narrow_support narrow_support(const struct node *node)
{
    switch (node->op) {
    case OP_CONV:
        return node->channels_last ? NARROW_PRODUCT : NARROW_NO;
    case OP_GEMM:
    case OP_MATMUL:
        return matmul_takes(node) ? NARROW_PRODUCT : NARROW_NO;
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_RESIZE:
    case OP_UPSAMPLE:
    case OP_SCALE_SHIFT:
        return node->channels_last ? NARROW_SAME : NARROW_NO;
    case OP_ATTENTION:
    case OP_MOVE:
    case OP_TRANSPOSE:
    case OP_CONCAT:
    case OP_SPLIT:
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
        return NARROW_SAME;
    default:
        return elementwise_takes(node) || norm_takes(node) ? NARROW_SAME : NARROW_NO;
    }
}

int cpu_in_place(const struct node *node)
{
    const struct value *y = node_output(node, 0), *a = node_input(node, 0);
    if (y && a && node->op == OP_LOOKUP)
        return 0;
    if (!y || !a || (y->dtype != DTYPE_F32 && y->dtype != DTYPE_BF16))
        return -1;
    if (node->epilogue.residual)
        return node->op == OP_CONV || node->op == OP_GEMM || node->op == OP_MATMUL ||
                       qconv_takes(node) || qmatmul_takes(node)
                   ? (int)node->input_count - 1
                   : -1;
    switch (node->op) {
    case OP_RELU:
    case OP_LEAKY_RELU:
    case OP_SIGMOID:
    case OP_HARD_SIGMOID:
    case OP_HARD_SWISH:
    case OP_SILU:
    case OP_GELU:
    case OP_TANH:
    case OP_ELU:
        return a->dtype == y->dtype ? 0 : -1;
    case OP_SCALE_SHIFT:
        return node->channels_last && node->input_count == 3 && a->dtype == y->dtype ? 0 : -1;
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_DIV:
        if (node->input_count != 2 || node->inputs[0]->dtype != y->dtype ||
            node->inputs[1]->dtype != y->dtype)
            return -1;
        if (!node->inputs[0]->known && shape_equal(&node->inputs[0]->shape, &y->shape))
            return 0;
        return shape_equal(&node->inputs[1]->shape, &y->shape) ? 1 : -1;
    default:
        return -1;
    }
}

bool cpu_claim(const struct node *node, struct kernel_caps *ret)
{
    const bool is_conv = node->op == OP_CONV;
    *ret = (struct kernel_caps){.narrow = narrow_support(node), .in_place = cpu_in_place(node)};
    if (takes_channels_last(node))
        ret->can |= KERNEL_CHANNELS_LAST;
    if (is_conv && dense_takes_gate(node))
        ret->can |= KERNEL_GATE;
    if (is_conv && depthwise_makes_mean(node))
        ret->can |= KERNEL_MEAN;
    if (node->op == OP_SCALE_SHIFT && join_takes_parts(node))
        ret->can |= KERNEL_CONCAT | KERNEL_STORED_SCALE;
    if (qconv_takes(node) || qmatmul_takes(node))
        ret->can |= KERNEL_FLOAT_EPILOGUE;
    if (stores_result(node))
        ret->can |= KERNEL_STORED_RESULT;
    return true;
}

/* ---- compile ---- */

static enum status lower_node(const struct lowering *lowering, struct step **ret, struct error *err)
{
    static const lowering_fn lowerings[] = {
        lower_qdepthwise,  lower_qconv,    lower_qmatmul,   lower_qrows,  lower_dynamic_round,
        lower_qconcat,     lower_product,  lower_join,      lower_deconv, lower_pool,
        lower_elementwise, lower_norm,     lower_attention, lower_resize, lower_groups,
        lower_copy,        lower_reference};
    *ret = NULL;
    enum status status = STATUS_OK;
    for (size_t m = 0; m < COUNT_OF(lowerings) && status == STATUS_OK && !*ret; m++)
        status = lowerings[m](lowering, ret, err);
    return status;
}

static enum status add_steps(struct program *program, const struct graph *graph, struct error *err)
{
    const struct backend_options *options = &program->backend->options;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (options->on_node && !options->on_node(options->context, n, graph->node_count))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        if (plan_shares_bytes(&program->plan, node))
            continue;
        struct lowering lowering = {program->backend, program, node, program->backend->own_kernels};
        struct step *step;
        enum status status = lower_node(&lowering, &step, err);
        if (step)
            program->steps[program->step_count++] = step;
        TRY(status);
        if (step->scratch > program->scratch_bytes)
            program->scratch_bytes = step->scratch;
        for (size_t i = 0; !step->packs_constants && i < node->input_count; i++)
            if (node->inputs[i] && node->inputs[i]->known)
                TRY(program_keep_constant(program, node->inputs[i], err));
    }
    return STATUS_OK;
}

static enum status bind_ends(struct program *program, const struct graph *graph, struct error *err)
{
    for (size_t v = 0; v < graph->value_count; v++) {
        if (program->plan.places[v].kind != PLACE_INPUT)
            continue;
        program->input_values[program->input_value_count] = (uint32_t)v;
        program->input_of[program->input_value_count++] = program->plan.places[v].input;
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *value = graph->outputs[i];
        program->output_values[i] = value->index;
        if (value->known)
            TRY(program_keep_constant(program, value, err));
    }
    program->output_count = graph->output_count;
    return STATUS_OK;
}

enum status cpu_compile(struct backend *backend, const struct graph *graph, struct program **ret,
                        struct error *err)
{
    forkjoin_set_threads(backend->options.threads);
    struct program *program = calloc(1, sizeof *program);
    if (!program)
        return error_no_memory(err, "while compiling");
    program->backend = backend;
    program->next = backend->programs;
    backend->programs = program;
    program->value_count = graph->value_count;
    program->data = alloc_array(graph->value_count, sizeof *program->data);
    program->steps = alloc_array(graph->node_count, sizeof *program->steps);
    program->input_values = alloc_array(graph->value_count, sizeof *program->input_values);
    program->input_of = alloc_array(graph->value_count, sizeof *program->input_of);
    program->output_values = alloc_array(graph->output_count, sizeof *program->output_values);
    enum status status = STATUS_OK;
    if (!program->data || !program->steps || !program->input_values || !program->input_of ||
        !program->output_values)
        status = error_no_memory(err, "while compiling");
    if (status == STATUS_OK)
        status = plan_create(graph, cpu_in_place, NULL, &program->plan, err);
    if (status == STATUS_OK)
        status = add_steps(program, graph, err);
    if (status == STATUS_OK)
        status = bind_ends(program, graph, err);
    if (status != STATUS_OK) {
        program_free(program);
        return status;
    }
    *ret = program;
    return STATUS_OK;
}
