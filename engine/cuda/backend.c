#include "engine/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/cuda/module.h"

#define ARENA_ALIGN 256

enum status cuda_check(cudaError_t result, int device, const char *what, struct error *err)
{
    if (result == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError(); /* a failed allocation is no lasting fault */
    if (result == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        (void)cudaMemGetInfo(&available, &total);
        return error_set(err, STATUS_DEVICE_MEMORY,
                         "cuda:%d is out of memory for %s: %zu of %zu MiB are free; use a smaller "
                         "--max-batch or --precision bf16",
                         device, what, available >> 20, total >> 20);
    }
    return error_set(err, STATUS_DEVICE, "cuda:%d: %s: %s (%s)", device, what,
                     cudaGetErrorString(result), cudaGetErrorName(result));
}

enum status blas_check(cublasStatus_t result, int device, const char *what, struct error *err)
{
    if (result == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    cudaError_t cause = cudaGetLastError(); /* says more, where CUDA itself is what failed */
    if (cause != cudaSuccess)
        return cuda_check(cause, device, what, err);
    return error_set(err,
                     result == CUBLAS_STATUS_ALLOC_FAILED ? STATUS_DEVICE_MEMORY : STATUS_DEVICE,
                     "cuda:%d: %s: cuBLASLt status %d", device, what, (int)result);
}

enum status cuda_launched(const struct step *step, struct program *program, struct error *err)
{
    cudaError_t result = cudaPeekAtLastError();
    return result == cudaSuccess
               ? STATUS_OK
               : cuda_check(cudaGetLastError(), program->backend->device, step->name, err);
}

/* ---- steps ---- */

void *step_create(const struct compile *compile, size_t size,
                  enum status (*run)(struct step *, struct program *, struct error *))
{
    struct step *step = calloc(1, size);
    if (!step)
        return NULL;
    step->name = strdup(compile->node->name);
    if (!step->name) {
        free(step);
        return NULL;
    }
    step->kernel = "cuda";
    step->run = run;
    return step;
}

static void step_free(struct step *step)
{
    if (!step)
        return;
    if (step->free)
        step->free(step);
    free(step->name);
    free(step);
}

/* ---- what may be done to a graph ---- */

static bool is_float_constant(const struct value *value)
{
    return value && value->known && value->known->dtype == DTYPE_F32;
}

static bool takes_channels_last(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || x->dtype != DTYPE_F32 || x->known || !shape_count(&x->shape) ||
        !shape_count(&y->shape) || x->shape.rank < 3)
        return false;
    const struct value *bias = node_bias(node);
    switch (node->op) {
    case OP_CONV:
        return x->shape.rank == 4 && is_float_constant(node_input(node, 1)) &&
               (!bias || is_float_constant(bias));
    case OP_MAX_POOL:
        return x->shape.rank == 4 && !node_output(node, 1);
    case OP_AVERAGE_POOL:
        return x->shape.rank == 4;
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_SCALE_SHIFT:
        return true;
    default:
        return false;
    }
}

static enum bf16_support bf16_support(const struct node *node)
{
    switch (node->op) {
    case OP_CONV:
        return node->channels_last ? BF16_PRODUCT : BF16_NO;
    case OP_GEMM:
    case OP_MATMUL:
        return matmul_takes(node) ? BF16_PRODUCT : BF16_NO;
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_SCALE_SHIFT:
        return node->channels_last ? BF16_SAME : BF16_NO;
    case OP_TRANSPOSE:
    case OP_CONCAT:
    case OP_SPLIT:
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
        return BF16_SAME;
    default:
        return elementwise_takes(node) || rows_takes(node) ? BF16_SAME : BF16_NO;
    }
}

/* Kernels read what they overwrite in the same thread, so any operand of y's shape may be taken. */
static int in_place(const struct node *node)
{
    const struct value *y = node_output(node, 0), *a = node_input(node, 0);
    if (!y || !a || !is_computed(y->dtype))
        return -1;
    if (node->epilogue.residual)
        return (node->op == OP_CONV && node->channels_last) || matmul_takes(node)
                   ? (int)node->input_count - 1
                   : -1;
    if (!elementwise_takes(node))
        return -1;
    for (size_t i = 0; i < node->input_count && i < 2; i++) {
        const struct value *value = node->inputs[i];
        if (value && !value->known && value->dtype == y->dtype &&
            shape_equal(&value->shape, &y->shape))
            return (int)i;
    }
    return -1;
}

/* ---- open, close ---- */

static enum status use_device(const struct backend *backend, struct error *err)
{
    return cuda_check(cudaSetDevice(backend->device), backend->device, "selecting the device", err);
}

static void cuda_close(struct backend *backend)
{
    if (!backend)
        return;
    (void)cudaSetDevice(backend->device);
    if (backend->stream) /* whatever state the device is in: nothing may still read what is freed */
        (void)cudaStreamSynchronize(backend->stream);
    weights_free(backend);
    cudaFree(backend->arena);
    if (backend->blas)
        cublasLtDestroy(backend->blas);
    if (backend->stream)
        cudaStreamDestroy(backend->stream);
    free(backend);
}

static enum status cuda_open(const struct backend_options *options, struct backend **ret,
                             struct error *err)
{
    struct backend *backend = calloc(1, sizeof *backend);
    if (!backend)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    backend->options = *options;
    backend->device = options->device.index;
    struct cudaDeviceProp properties;
    enum status status = use_device(backend, err);
    if (status == STATUS_OK)
        status = cuda_check(cudaGetDeviceProperties(&properties, backend->device), backend->device,
                            "asking what it is", err);
    if (status == STATUS_OK)
        backend->tensor_cores = properties.major >= 8;
    if (status == STATUS_OK)
        status = cuda_check(cudaStreamCreateWithFlags(&backend->stream, cudaStreamNonBlocking),
                            backend->device, "a stream", err);
    if (status == STATUS_OK)
        status = blas_check(cublasLtCreate(&backend->blas), backend->device, "cuBLASLt", err);
    if (status != STATUS_OK) {
        cuda_close(backend);
        return status;
    }
    *ret = backend;
    return STATUS_OK;
}

/* ---- compile ---- */

static void free_program(struct program *program)
{
    if (!program)
        return;
    struct program **link = &program->backend->programs;
    while (*link && *link != program)
        link = &(*link)->next;
    if (*link)
        *link = program->next;
    (void)cudaSetDevice(program->backend->device);
    if (program->captured)
        cudaGraphExecDestroy(program->captured);
    for (size_t i = 0; i < program->step_count; i++)
        step_free(program->steps[i]);
    for (size_t i = 0; program->outputs && i < program->graph->output_count; i++)
        cudaFreeHost(program->outputs[i]);
    plan_done(&program->plan);
    free(program->steps);
    free(program->data);
    free(program->input_offsets);
    free(program->outputs);
    free(program->output_is_constant);
    free(program);
}

static enum status make_step(const struct compile *compile, struct step **ret, struct error *err)
{
    static const step_maker makers[] = {make_conv, make_matmul, make_elementwise,
                                        make_rows, make_move,   make_host};
    *ret = NULL;
    for (size_t m = 0; m < COUNT_OF(makers) && !*ret; m++)
        TRY(makers[m](compile, ret, err));
    return STATUS_OK;
}

static enum status add_steps(struct program *program, struct error *err)
{
    const struct graph *graph = program->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (plan_shares_bytes(&program->plan, node))
            continue;
        struct compile compile = {program->backend, program, node};
        struct step *step = NULL;
        TRY(make_step(&compile, &step, err));
        program->steps[program->step_count++] = step;
        if (step->workspace > program->workspace)
            program->workspace = step->workspace;
        program->has_host_steps |= step->on_host;
    }
    return STATUS_OK;
}

/* Constants that a step reads where they lie, inputs behind the planned values, and page-locked
 * memory for what comes back. */
static enum status place_ends(struct program *program, struct error *err)
{
    const struct graph *graph = program->graph;
    size_t at = size_align(program->plan.arena_bytes, ARENA_ALIGN);
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct value *value = graph->inputs[i];
        program->input_offsets[i] = at;
        at += size_align(shape_count(&value->shape) * dtype_size(value->dtype), ARENA_ALIGN);
    }
    program->value_bytes = at;
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *value = graph->outputs[i];
        size_t bytes = shape_count(&value->shape) * dtype_size(value->dtype);
        TRY(cuda_check(cudaHostAlloc(&program->outputs[i], bytes ? bytes : 1, cudaHostAllocDefault),
                       program->backend->device, "page-locked outputs", err));
        program->output_is_constant[i] = value->known != NULL;
        if (value->known)
            memcpy(program->outputs[i], value->known->data, bytes);
    }
    return STATUS_OK;
}

static enum status cuda_compile(struct backend *backend, const struct graph *graph,
                                struct program **ret, struct error *err)
{
    TRY(use_device(backend, err));
    struct program *program = calloc(1, sizeof *program);
    if (!program)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    program->backend = backend;
    program->graph = graph;
    program->next = backend->programs;
    backend->programs = program;
    program->data = alloc_array(graph->value_count, sizeof *program->data);
    program->steps = alloc_array(graph->node_count, sizeof *program->steps);
    program->input_offsets = alloc_array(graph->input_count, sizeof *program->input_offsets);
    program->outputs = alloc_array(graph->output_count, sizeof *program->outputs);
    program->output_is_constant =
        alloc_array(graph->output_count, sizeof *program->output_is_constant);
    enum status status = STATUS_OK;
    if (!program->output_is_constant || !program->data || !program->steps ||
        !program->input_offsets || !program->outputs)
        status = error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    if (status == STATUS_OK)
        status = plan_create(graph, in_place, &program->plan, err);
    if (status == STATUS_OK)
        status = add_steps(program, err);
    if (status == STATUS_OK)
        status = place_ends(program, err);
    if (status != STATUS_OK) {
        free_program(program);
        return status;
    }
    *ret = program;
    return STATUS_OK;
}

static size_t activation_bytes(const struct program *program)
{
    return program->value_bytes + size_align(program->workspace, ARENA_ALIGN);
}

/* The arena may have moved: addresses, and what was captured with them, are made anew. */
static void place_values(struct program *program)
{
    struct backend *backend = program->backend;
    for (size_t v = 0; v < program->plan.value_count; v++) {
        const struct place *place = &program->plan.places[v];
        if (place->kind == PLACE_ARENA)
            program->data[v] = backend->arena + place->offset;
        else if (place->kind == PLACE_INPUT)
            program->data[v] = backend->arena + program->input_offsets[place->input];
    }
    if (program->captured)
        cudaGraphExecDestroy(program->captured);
    program->captured = NULL;
    program->runs = 0;
}

static enum status cuda_reserve(struct backend *backend, struct error *err)
{
    size_t bytes = ARENA_ALIGN;
    TRY(use_device(backend, err));
    for (const struct program *program = backend->programs; program; program = program->next)
        if (activation_bytes(program) > bytes)
            bytes = activation_bytes(program);
    if (bytes > backend->arena_bytes) {
        cudaFree(backend->arena);
        backend->arena = NULL;
        backend->arena_bytes = 0;
        TRY(cuda_check(cudaMalloc((void **)&backend->arena, bytes), backend->device, "activations",
                       err));
        backend->arena_bytes = bytes;
        TRY(cuda_check(cudaMemsetAsync(backend->arena, 0, bytes, backend->stream), backend->device,
                       "activations", err));
    }
    for (struct program *program = backend->programs; program; program = program->next) {
        place_values(program);
        for (size_t i = 0; i < program->step_count; i++)
            if (program->steps[i]->tune)
                TRY(program->steps[i]->tune(program->steps[i], program, err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "activations", err);
}

/* ---- run ---- */

static enum status copy_in(struct program *program, const void *const *inputs, struct error *err)
{
    const struct graph *graph = program->graph;
    struct backend *backend = program->backend;
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct value *value = graph->inputs[i];
        size_t bytes = shape_count(&value->shape) * dtype_size(value->dtype);
        if (bytes)
            TRY(cuda_check(cudaMemcpyAsync(backend->arena + program->input_offsets[i], inputs[i],
                                           bytes, cudaMemcpyHostToDevice, backend->stream),
                           backend->device, "copying the inputs", err));
    }
    return STATUS_OK;
}

static enum status run_steps(struct program *program, struct error *err)
{
    for (size_t i = 0; i < program->step_count; i++)
        TRY(program->steps[i]->run(program->steps[i], program, err));
    return STATUS_OK;
}

/* The second run's launches, recorded: from then on a batch is one launch. A program that cannot
 * be recorded runs step by step for good. */
static enum status capture(struct program *program, struct error *err)
{
    struct backend *backend = program->backend;
    cudaGraph_t graph = NULL;
    TRY(cuda_check(cudaStreamBeginCapture(backend->stream, cudaStreamCaptureModeThreadLocal),
                   backend->device, "recording a CUDA graph", err));
    enum status status = run_steps(program, err);
    cudaError_t ended = cudaStreamEndCapture(backend->stream, &graph);
    if (status == STATUS_OK)
        status = cuda_check(ended, backend->device, "recording a CUDA graph", err);
    if (status == STATUS_OK)
        status = cuda_check(cudaGraphInstantiate(&program->captured, graph, 0), backend->device,
                            "instantiating a CUDA graph", err);
    if (graph)
        cudaGraphDestroy(graph);
    return status;
}

static enum status execute(struct program *program, struct error *err)
{
    struct backend *backend = program->backend;
    if (!program->captured && !program->has_host_steps && program->step_count && program->runs)
        TRY(capture(program, err));
    program->runs = 1;
    if (!program->captured)
        return run_steps(program, err);
    return cuda_check(cudaGraphLaunch(program->captured, backend->stream), backend->device,
                      "launching a batch", err);
}

static enum status copy_out(struct program *program, const void **outputs, struct error *err)
{
    const struct graph *graph = program->graph;
    struct backend *backend = program->backend;
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *value = graph->outputs[i];
        size_t bytes = shape_count(&value->shape) * dtype_size(value->dtype);
        outputs[i] = program->outputs[i];
        if (!program->output_is_constant[i] && bytes)
            TRY(cuda_check(cudaMemcpyAsync(program->outputs[i], program->data[value->index], bytes,
                                           cudaMemcpyDeviceToHost, backend->stream),
                           backend->device, "copying the outputs", err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "the forward pass",
                      err);
}

/* All bits set is NaN in every float: what a kernel leaves out shows. */
static enum status poison(struct program *program, struct error *err)
{
    const struct graph *graph = program->graph;
    struct backend *backend = program->backend;
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *value = graph->outputs[i];
        if (!program->output_is_constant[i])
            memset(program->outputs[i], 0xff,
                   shape_count(&value->shape) * dtype_size(value->dtype));
    }
    return cuda_check(cudaMemsetAsync(backend->arena, 0xff, backend->arena_bytes, backend->stream),
                      backend->device, "poisoning the activations", err);
}

static enum status cuda_run(struct program *program, const void *const *inputs,
                            const void **outputs, struct error *err)
{
    TRY(use_device(program->backend, err));
    enum status status = program->backend->options.poison ? poison(program, err) : STATUS_OK;
    if (status == STATUS_OK)
        status = copy_in(program, inputs, err);
    if (status == STATUS_OK)
        status = execute(program, err);
    if (status == STATUS_OK)
        status = copy_out(program, outputs, err);
    if (status != STATUS_OK) /* the caller's memory is its own again */
        (void)cudaStreamSynchronize(program->backend->stream);
    return status;
}

static enum status cuda_profile(struct program *program, const void *const *inputs,
                                struct session_step *ret, size_t max, size_t *ret_count,
                                struct error *err)
{
    struct backend *backend = program->backend;
    size_t count = 0;
    TRY(use_device(backend, err));
    TRY(copy_in(program, inputs, err));
    for (size_t i = 0; i < program->step_count; i++) {
        struct step *step = program->steps[i];
        TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "profiling", err));
        int64_t start = clock_now();
        TRY(step->run(step, program, err));
        TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, step->name, err));
        if (count < max)
            ret[count++] = (struct session_step){.name = step->name,
                                                 .kernel = step->kernel,
                                                 .milliseconds = clock_ms(clock_now() - start),
                                                 .gflop = step->flops * 1e-9,
                                                 .bytes = step->bytes};
    }
    *ret_count = count;
    return STATUS_OK;
}

static enum status cuda_time(struct program *program, const void *const *inputs, int runs,
                             double *ret_ms, struct error *err)
{
    struct backend *backend = program->backend;
    TRY(use_device(backend, err));
    TRY(copy_in(program, inputs, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "measuring", err));
    int64_t start = clock_now();
    for (int run = 0; run < runs; run++)
        TRY(execute(program, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "measuring", err));
    *ret_ms = clock_ms(clock_now() - start);
    return STATUS_OK;
}

static size_t weight_bytes(const struct backend *backend)
{
    return backend->weight_bytes;
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .takes_channels_last = takes_channels_last,
    .bf16 = bf16_support,
    .compile = cuda_compile,
    .free_program = free_program,
    .reserve = cuda_reserve,
    .run = cuda_run,
    .activation_bytes = activation_bytes,
    .weight_bytes = weight_bytes,
    .profile = cuda_profile,
    .time = cuda_time,
};
