/* The CUDA backend: the table of kernels, and backend_ops. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

/* ---- open, close ---- */

static void backend_close(struct backend *base)
{
    struct cuda_backend *backend = (struct cuda_backend *)base;
    if (!backend)
        return;
    cuda_ignore(cudaSetDevice(backend->device));
    runs_settle(backend); /* no run may read memory freed below, even if the device failed */
    cuda_weights_free(backend);
    device_free(backend, backend->arena);
    device_free(backend, backend->pixel_table);
    runs_settle(backend); /* waits until the memory has returned to the pool */
    runs_close(backend);
    if (backend->blas)
        (void)cublasLtDestroy(backend->blas);
    free(backend);
}

static enum status open_device(struct cuda_backend *backend, struct error *err)
{
    struct cudaDeviceProp properties;
    int has_pool = 0;
    TRY(use_device(backend, err));
    device_note_opened(backend->device);
    TRY(cuda_check(cudaGetDeviceProperties(&properties, backend->device), backend->device,
                   "reading its properties", err));
    backend->capability = properties.major * 10 + properties.minor;
    backend->processors = properties.multiProcessorCount;
    backend->shared_limit = properties.sharedMemPerBlockOptin;
    backend->kind = tune_kind(&properties);
    TRY(cuda_check(
        cudaDeviceGetAttribute(&has_pool, cudaDevAttrMemoryPoolsSupported, backend->device),
        backend->device, "reading how much memory it has", err));
    backend->has_pool = has_pool != 0;
    if (backend->options.precision == PRECISION_TF32 && backend->capability < 80)
        return error_set(err, STATUS_DEVICE,
                         "--precision tf32 needs a GPU of compute capability 8.0 or later, and "
                         "cuda:%d has %d.%d; use fp16 or fp32",
                         backend->device, properties.major, properties.minor);
    TRY(runs_open(backend, err));
    return blas_check(cublasLtCreate(&backend->blas), backend->device, "cuBLASLt", err);
}

static enum status backend_open(const struct backend_options *options, struct backend **ret,
                                struct error *err)
{
    struct cuda_backend *backend = calloc(1, sizeof *backend);
    TRY(check_memory(backend, NULL, err));
    backend->options = *options;
    backend->device = options->device.index;
    const enum status status = open_device(backend, err);
    if (status != STATUS_OK) {
        backend_close((struct backend *)backend);
        return status;
    }
    *ret = (struct backend *)backend;
    return STATUS_OK;
}

/* ---- compile ---- */

static const struct cuda_kernel *const kernels[] = {
    &cuda_kernel_conv,           &cuda_kernel_matmul,    &cuda_kernel_int8_product,
    &cuda_kernel_int8_rows,      &cuda_kernel_attention, &cuda_kernel_pointwise,
    &cuda_kernel_row_norms,      &cuda_kernel_pool,      &cuda_kernel_reduce_axes,
    &cuda_kernel_resize,         &cuda_kernel_groups,    &cuda_kernel_conv_transpose,
    &cuda_kernel_grid_sample,    &cuda_kernel_concat,    &cuda_kernel_scaled_parts,
    &cuda_kernel_transpose,      &cuda_kernel_view,      &cuda_kernel_copy,
    &cuda_kernel_gather_scatter, &cuda_kernel_host};

KERNEL_CLAIM(claim)
{
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        if (kernel_claims(&kernels[k]->kernel, node, ret))
            return true;
    return false;
}

CUDA_CREATE(create_step)
{
    struct kernel_caps caps;
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        if (kernel_claims(&kernels[k]->kernel, compile->node, &caps) &&
            kernel_fits_layout(&caps, compile->node)) {
            TRY(kernels[k]->create(compile, ret, err));
            if (*ret)
                return STATUS_OK;
        }
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: the CUDA backend has no kernel for this operator with these operands",
                     NODE_STRING(compile->node));
}

/* True if all outputs of the node are empty: there is nothing to compute. */
static bool is_empty(const struct node *node)
{
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && shape_count(&node->outputs[o]->shape))
            return false;
    return true;
}

static enum status add_steps(struct cuda_program *program, struct error *err)
{
    const struct graph *graph = program->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (plan_shares_bytes(&program->plan, node) || is_empty(node))
            continue;
        struct cuda_lowering compile = {program->backend, program, node};
        struct cuda_step *step = NULL;
        const enum status status = create_step(&compile, &step, err);
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
    TRY(check_memory(program, "while compiling", err));
    program->backend = backend;
    program->graph = graph;
    program->next = backend->programs;
    backend->programs = program;
    program->data = alloc_array(graph->value_count + 1, sizeof *program->data);
    program->steps = alloc_array(graph->node_count, sizeof *program->steps);
    program->input_offsets = alloc_array(graph->input_count, sizeof *program->input_offsets);
    program->result_offsets = alloc_array(graph->output_count, sizeof *program->result_offsets);
    program->constants = alloc_array(graph->output_count, sizeof(struct tensor *));
    enum status status = STATUS_OK;
    if (!program->constants || !program->data || !program->steps || !program->input_offsets ||
        !program->result_offsets)
        status = error_no_memory(err, "while compiling");
    IF_OK(status, plan_create(graph, claim, false, &program->plan, err));
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
    if (use_device((struct cuda_backend *)base, NULL) != STATUS_OK)
        return SIZE_MAX; /* the allocation reports the error */
    const cudaError_t result = cudaMemGetInfo(&available, &total);
    cuda_ignore(result);
    return result == cudaSuccess ? available : SIZE_MAX;
}

/* The memory is page-locked in every context, because any device of a model may run a batch. */
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
    device_use_any(); /* the memory is portable, so any device can free it */
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
