/* The CUDA backend: the table of lowerings, what they say of a graph, and backend_ops. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

/* ---- what may be done to a graph ---- */

static bool takes_channels_last(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (node->op == OP_QLINEAR_CONV || node->op == OP_CONV_INTEGER)
        return cuda_takes_quantized_product(node);
    if (cuda_takes_quantized_pool(node))
        return true;
    if (!x || !y || x->dtype != DTYPE_F32 || x->known || !shape_count(&x->shape) ||
        !shape_count(&y->shape) || x->shape.rank < 3)
        return false;
    const struct value *bias = node_bias(node);
    switch (node->op) {
    case OP_CONV:
        return x->shape.rank == 4 && is_f32_constant(node_input(node, 1)) &&
               (!bias || is_f32_constant(bias));
    case OP_MAX_POOL:
        return x->shape.rank == 4 && !node_output(node, 1);
    case OP_AVERAGE_POOL:
        return x->shape.rank == 4;
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_SCALE_SHIFT:
        return true;
    default:
        return cuda_image_takes_channels_last(node);
    }
}

static enum narrow_support narrow_support(const struct node *node)
{
    switch (node->op) {
    case OP_CONV:
        return node->channels_last ? NARROW_PRODUCT : NARROW_NO;
    case OP_CONV_TRANSPOSE:
        return node->channels_last ? NARROW_PRODUCT : NARROW_NO;
    case OP_GEMM:
    case OP_MATMUL:
        return cuda_takes_matmul(node) ? NARROW_PRODUCT : NARROW_NO;
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_SCALE_SHIFT:
    case OP_RESIZE:
    case OP_UPSAMPLE:
    case OP_GROUP_NORMALIZATION:
    case OP_INSTANCE_NORMALIZATION:
    case OP_LRN:
        return node->channels_last ? NARROW_SAME : NARROW_NO;
    case OP_ATTENTION:
        return cuda_takes_attention(node) ? NARROW_SAME : NARROW_NO;
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
        return cuda_takes_elementwise(node) || cuda_takes_rows(node) ||
                       cuda_numbers_may_be_narrow(node)
                   ? NARROW_SAME
                   : NARROW_NO;
    }
}

/* The operand that a sum or product of 8-bit integers may overwrite; -1: none. */
static int overwritten_term(const struct node *node)
{
    const struct value *y = node->outputs[0];
    for (size_t i = 0; i <= 3 && cuda_takes_quantized_rows(node); i += 3) {
        const struct value *value = node->inputs[i];
        if (!value->known && value->dtype == y->dtype && shape_equal(&value->shape, &y->shape))
            return (int)i;
    }
    return -1;
}

/* Each thread reads an element before it overwrites it, so y may take the place of any operand of
 * its shape. */
static int in_place(const struct node *node)
{
    const struct value *y = node_output(node, 0), *a = node_input(node, 0);
    if (y && a && (node->op == OP_QLINEAR_ADD || node->op == OP_QLINEAR_MUL))
        return overwritten_term(node);
    if (y && a && node_input(node, QUANTIZED_RESIDUAL) && cuda_takes_quantized_product(node))
        return QUANTIZED_RESIDUAL;
    if (y && a && node->op == OP_LOOKUP)
        return a->known ? -1 : 0;
    if (!y || !a || !is_computed(y->dtype))
        return -1;
    if (node->epilogue.residual)
        return (node->op == OP_CONV && node->channels_last) || cuda_takes_matmul(node)
                   ? (int)node->input_count - 1
                   : -1;
    if (!cuda_takes_elementwise(node) && !cuda_takes_scaled_parts(node))
        return -1;
    for (size_t i = 0; i < node->input_count && i < 2; i++) {
        const struct value *value = node->inputs[i];
        if (value && !value->known && value->dtype == y->dtype &&
            shape_equal(&value->shape, &y->shape))
            return (int)i;
    }
    return -1;
}

static bool claim(const struct node *node, struct kernel_caps *ret)
{
    *ret = (struct kernel_caps){.narrow = narrow_support(node), .in_place = in_place(node)};
    if (takes_channels_last(node))
        ret->can |= KERNEL_CHANNELS_LAST;
    if (cuda_takes_scaled_parts(node))
        ret->can |= KERNEL_CONCAT;
    if (cuda_takes_quantized_epilogue(node))
        ret->can |= KERNEL_STORED_EPILOGUE;
    return true;
}

/* ---- open, close ---- */

static void backend_close(struct backend *base)
{
    struct cuda_backend *backend = (struct cuda_backend *)base;
    if (!backend)
        return;
    cuda_ignore(cudaSetDevice(backend->device));
    runs_settle(backend); /* whatever state the device is in: nothing may read what is freed next */
    cuda_weights_free(backend);
    device_free(backend, backend->arena);
    device_free(backend, backend->pixel_table);
    runs_settle(backend); /* the pool gives back what is freed */
    runs_close(backend);
    if (backend->blas)
        (void)cublasLtDestroy(backend->blas);
    free(backend);
}

static enum status backend_open(const struct backend_options *options, struct backend **ret,
                                struct error *err)
{
    struct cuda_backend *backend = calloc(1, sizeof *backend);
    if (!backend)
        return error_no_memory(err, NULL);
    backend->options = *options;
    backend->device = options->device.index;
    struct cudaDeviceProp properties;
    enum status status = use_device(backend, err);
    if (status == STATUS_OK)
        device_note_opened(backend->device);
    if (status == STATUS_OK)
        status = cuda_check(cudaGetDeviceProperties(&properties, backend->device), backend->device,
                            "asking what it is", err);
    if (status == STATUS_OK) {
        backend->capability = properties.major * 10 + properties.minor;
        backend->processors = properties.multiProcessorCount;
        backend->shared_limit = properties.sharedMemPerBlockOptin;
        backend->pitch_limit = properties.memPitch;
        backend->kind = tune_kind(backend->device);
        int has_pool = 0;
        status = cuda_check(
            cudaDeviceGetAttribute(&has_pool, cudaDevAttrMemoryPoolsSupported, backend->device),
            backend->device, "asking for its memory", err);
        backend->has_pool = has_pool != 0;
    }
    if (status == STATUS_OK && options->precision == PRECISION_TF32 && backend->capability < 80)
        status = error_set(err, STATUS_DEVICE,
                           "--precision tf32 needs a GPU of compute capability 8.0 or later, and "
                           "cuda:%d has %d.%d; use fp16 or fp32",
                           backend->device, properties.major, properties.minor);
    if (status == STATUS_OK)
        status = runs_open(backend, err);
    if (status == STATUS_OK)
        status = blas_check(cublasLtCreate(&backend->blas), backend->device, "cuBLASLt", err);
    if (status != STATUS_OK) {
        backend_close((struct backend *)backend);
        return status;
    }
    *ret = (struct backend *)backend;
    return STATUS_OK;
}

/* ---- compile ---- */

static enum status run_nothing(struct cuda_step *step, struct cuda_program *program,
                               struct error *err)
{
    (void)step, (void)program, (void)err;
    return STATUS_OK;
}

/* A node whose outputs are empty has nothing to do. */
static enum status lower_nothing(const struct cuda_lowering *compile, struct cuda_step **ret,
                                 struct error *err)
{
    const struct node *node = compile->node;
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && shape_count(&node->outputs[o]->shape))
            return STATUS_OK;
    return cuda_step_create(compile, NULL, sizeof **ret, run_nothing, ret, err) ? STATUS_OK
                                                                                : STATUS_NO_MEMORY;
}

static enum status lower_node(const struct cuda_lowering *compile, struct cuda_step **ret,
                              struct error *err)
{
    static cuda_lower_fn *const lowerings[] = {lower_nothing,
                                               cuda_lower_conv,
                                               cuda_lower_matmul,
                                               cuda_lower_quantized_product,
                                               cuda_lower_quantized_rows,
                                               cuda_lower_attention,
                                               cuda_lower_elementwise,
                                               cuda_lower_numbers,
                                               cuda_lower_rows,
                                               cuda_lower_axes,
                                               cuda_lower_image,
                                               cuda_lower_parts,
                                               cuda_lower_move,
                                               cuda_lower_picks,
                                               cuda_lower_host};
    for (size_t m = 0; m < COUNT_OF(lowerings) && !*ret; m++)
        TRY(lowerings[m](compile, ret, err));
    return STATUS_OK;
}

static enum status add_steps(struct cuda_program *program, struct error *err)
{
    const struct graph *graph = program->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (plan_shares_bytes(&program->plan, node) || node == program->pixels.cast)
            continue;
        struct cuda_lowering compile = {program->backend, program, node};
        struct cuda_step *step = NULL;
        const enum status status = lower_node(&compile, &step, err);
        if (step)
            program->steps[program->step_count++] = step;
        TRY(status);
        if (step->workspace > program->workspace)
            program->workspace = step->workspace;
        program->has_host_steps |= step->on_host;
    }
    return STATUS_OK;
}

static enum status compile_graph(struct backend *base, const struct graph *graph,
                                 struct program **ret, struct error *err)
{
    struct cuda_backend *backend = (struct cuda_backend *)base;
    TRY(use_device(backend, err));
    struct cuda_program *program = calloc(1, sizeof *program);
    if (!program)
        return error_no_memory(err, "while compiling");
    program->backend = backend;
    program->graph = graph;
    program->next = backend->programs;
    backend->programs = program;
    program->data = alloc_array(graph->value_count, sizeof *program->data);
    program->steps = alloc_array(graph->node_count, sizeof *program->steps);
    program->input_offsets = alloc_array(graph->input_count, sizeof *program->input_offsets);
    program->result_offsets = alloc_array(graph->output_count, sizeof *program->result_offsets);
    program->constants = alloc_array(graph->output_count, sizeof(struct tensor *));
    enum status status = STATUS_OK;
    if (!program->constants || !program->data || !program->steps || !program->input_offsets ||
        !program->result_offsets)
        status = error_no_memory(err, "while compiling");
    if (status == STATUS_OK)
        status = plan_create(graph, in_place, cuda_conv_writes_rows, &program->plan, err);
    if (status == STATUS_OK) {
        runs_place(program);
        status = add_steps(program, err);
    }
    if (status != STATUS_OK) {
        cuda_program_free((struct program *)program);
        return status;
    }
    *ret = (struct program *)program;
    return STATUS_OK;
}

static size_t reserved_bytes(const struct backend *base)
{
    return ((const struct cuda_backend *)base)->arena_bytes;
}

static size_t available_bytes(struct backend *base)
{
    size_t available = 0, total = 0;
    struct error ignored;
    if (use_device((struct cuda_backend *)base, &ignored) != STATUS_OK)
        return SIZE_MAX; /* the allocation reports what is wrong */
    const cudaError_t result = cudaMemGetInfo(&available, &total);
    cuda_ignore(result);
    return result == cudaSuccess ? available : SIZE_MAX;
}

/* Page-locked in every context: a batch may be run by any of a model's devices. */
static enum status pinned_alloc(struct device_id device, size_t bytes, void **ret,
                                struct error *err)
{
    void *data;
    TRY(cuda_check(cudaSetDevice(device.index), device.index, "selecting the device", err));
    device_note_opened(device.index);
    TRY(device_pin(device.index, bytes, cudaHostAllocPortable, "inputs", &data, err));
    memset(data, 0, bytes);
    *ret = data;
    return STATUS_OK;
}

static void pinned_free(void *data)
{
    if (!data)
        return;
    device_use_any(); /* portable: any of them */
    cuda_ignore(cudaFreeHost(data));
}

static size_t weight_bytes(const struct backend *base)
{
    return ((const struct cuda_backend *)base)->weight_bytes;
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .open = backend_open,
    .close = backend_close,
    .claim = claim,
    .compile = compile_graph,
    .free_program = cuda_program_free,
    .reserve = cuda_programs_reserve,
    .depth = RUNS,
    .takes_pixels = true,
    .best = MOST_BEST,
    .submit = runs_submit,
    .collect = runs_collect,
    .host_alloc = pinned_alloc,
    .host_free = pinned_free,
    .activation_bytes = cuda_program_activation_bytes,
    .weight_bytes = weight_bytes,
    .available_bytes = available_bytes,
    .reserved_bytes = reserved_bytes,
    .profile = runs_profile,
    .time = runs_time,
};
