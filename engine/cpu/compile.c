/* The table of the CPU's kernels. Compiles a graph: creates a step for each node. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/lowering/lowering.h"

static const struct cpu_kernel *const kernels[] = {&cpu_quantized_rows,
                                                   &cpu_dynamic_round,
                                                   &cpu_quantized_concat,
                                                   &cpu_quantized_conv,
                                                   &cpu_quantized_matmul,
                                                   &cpu_conv,
                                                   &cpu_matmul,
                                                   &cpu_scaled_parts,
                                                   &cpu_deconv,
                                                   &cpu_pool,
                                                   &cpu_elementwise,
                                                   &cpu_norm,
                                                   &cpu_attention,
                                                   &cpu_recurrent,
                                                   &cpu_resize,
                                                   &cpu_groups,
                                                   &cpu_transpose,
                                                   &cpu_concat,
                                                   &cpu_view,
                                                   &cpu_cast,
                                                   &cpu_reference};

bool cpu_claim(const struct node *node, struct kernel_caps *ret)
{
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        if (kernel_claims(&kernels[k]->kernel, node, ret))
            return true;
    return false;
}

STEP_CREATE(create_step)
{
    struct kernel_caps caps;
    *ret = NULL;
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        if (kernel_claims(&kernels[k]->kernel, lowering->node, &caps) &&
            kernel_fits_layout(&caps, lowering->node)) {
            const enum status status = kernels[k]->create(lowering, ret, err);
            if (status != STATUS_OK || *ret)
                return status;
        }
    return error_set(err, STATUS_UNSUPPORTED, "%s: the CPU backend has no kernel for this operator",
                     NODE_STRING(lowering->node));
}

static enum precision precision_of(const struct node *node)
{
    const struct value *x = node_input(node, 0);
    if (x && dtype_is_8bit(x->dtype))
        return PRECISION_INT8;
    return x && x->dtype == DTYPE_BF16 ? PRECISION_BF16 : PRECISION_FP32;
}

static enum status add_steps(struct program *program, const struct graph *graph, struct error *err)
{
    const struct backend_options *options = &program->backend->options;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (options->on_node && !program->is_stream &&
            !options->on_node(options->context, n, graph->node_count))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        if (plan_shares_bytes(&program->plan, node))
            continue;
        struct lowering lowering = {program->backend, program, node};
        struct step *step;
        enum status status = create_step(&lowering, &step, err);
        if (step)
            program->steps[program->step_count++] = step;
        TRY(status);
        step->precision = precision_of(node);
        if (step->scratch > program->scratch_bytes)
            program->scratch_bytes = step->scratch;
        for (size_t i = 0; !step->packs_constants && i < node->input_count; i++)
            if (node->inputs[i] && node->inputs[i]->known)
                TRY(program_keep_constant(program, node->inputs[i], err));
    }
    for (size_t i = 0; i < graph->output_count; i++)
        if (graph->outputs[i]->known)
            TRY(program_keep_constant(program, graph->outputs[i], err));
    return STATUS_OK;
}

static enum status compile(struct backend *backend, const struct graph *graph, int threads,
                           bool is_stream, struct program **ret, struct error *err)
{
    struct program *program = calloc(1, sizeof *program);
    TRY(check_memory(program, "while compiling", err));
    program->backend = backend;
    program->graph = graph;
    program->threads = threads;
    program->is_stream = is_stream;
    program->next = backend->programs;
    program->weights_before = backend->weights;
    backend->programs = program;
    program->data = alloc_array(graph->value_count, sizeof *program->data);
    program->steps = alloc_array(graph->node_count, sizeof *program->steps);
    enum status status = STATUS_OK;
    if (!program->data || !program->steps)
        status = error_no_memory(err, "while compiling");
    IF_OK(status, plan_create(graph, cpu_claim, true, &program->plan, err));
    IF_OK(status, add_steps(program, graph, err));
    if (status != STATUS_OK) {
        program_free(program);
        return status;
    }
    *ret = program;
    return STATUS_OK;
}

enum status cpu_compile(struct backend *backend, const struct graph *graph, struct program **ret,
                        struct error *err)
{
    return compile(backend, graph, backend->options.threads, false, ret, err);
}

bool program_is_fast(const struct program *program)
{
    for (size_t i = 0; i < program->step_count; i++)
        if (program->steps[i]->is_reference)
            return false;
    return program->step_count > 0;
}

/* Bytes of one image's outputs. A model with larger outputs (a detector) has no streams: with
 * streams YOLO26n answered 5 to 18 % fewer requests (docs/measurements/threads.md). */
#define MOST_STREAM_OUTPUTS ((size_t)128 << 10)

enum status cpu_compile_streams(struct backend *backend, struct error *err)
{
    const struct program *single = backend->programs;
    const int each = (single->threads + STREAMS_MOST - 1) / STREAMS_MOST; /* threads of a stream */
    const int count = single->threads / each;
    if (count < 2 || !program_is_fast(single) || program_output_bytes(single) > MOST_STREAM_OUTPUTS)
        return STATUS_OK;
    for (size_t i = 0; i < single->graph->output_count; i++) /* streams write only to the arena */
        if (single->plan.places[single->graph->outputs[i]->index].kind != PLACE_ARENA)
            return STATUS_OK;
    const enum status status = streams_create(backend, single, count, compile, err);
    if (status != STATUS_OK)
        streams_free(backend);
    return status == STATUS_NO_MEMORY ? STATUS_OK : status;
}
