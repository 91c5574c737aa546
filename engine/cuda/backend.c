#include "engine/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cuda/module.h"

/* "1.5 GiB" */
static const char *bytes_text(size_t bytes, char text[static 24])
{
    const double mib = (double)bytes / (1 << 20);
    if (mib >= 1024)
        snprintf(text, 24, "%.1f GiB", mib / 1024);
    else
        snprintf(text, 24, "%.1f MiB", mib);
    return text;
}

enum status cuda_check(cudaError_t result, int device, const char *what, struct error *err)
{
    if (result == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError(); /* a failed allocation is no lasting fault */
    if (result == cudaErrorMemoryAllocation) {
        char have[24], all[24];
        size_t available = 0, total = 0;
        cuda_ignore(cudaMemGetInfo(&available, &total));
        return error_set(err, STATUS_DEVICE_MEMORY,
                         "cuda:%d is out of memory for %s: %s of %s are free; use a smaller "
                         "--max-batch or --precision bf16",
                         device, what, bytes_text(available, have), bytes_text(total, all));
    }
    device_note_error(device, result);
    return error_set(err, STATUS_DEVICE, "cuda:%d: %s: %s (%s)%s", device, what,
                     cudaGetErrorString(result), cudaGetErrorName(result),
                     device_is_broken(device) ? "; lensd has to be restarted to use it again" : "");
}

enum status device_alloc(const struct backend *backend, size_t bytes, const char *what, void **ret,
                         struct error *err)
{
    cudaError_t result = cudaMalloc(ret, bytes ? bytes : 1);
    if (result != cudaErrorMemoryAllocation)
        return cuda_check(result, backend->device, what, err);
    char wanted[24], have[24], missing[24];
    size_t available = 0, total = 0;
    (void)cudaGetLastError();
    cuda_ignore(cudaMemGetInfo(&available, &total));
    return error_set(err, STATUS_DEVICE_MEMORY,
                     "cuda:%d is out of memory: %s take %s and %s are free, %s are missing; use a "
                     "smaller --max-batch, --precision fp16, or serve fewer models there",
                     backend->device, what, bytes_text(bytes, wanted), bytes_text(available, have),
                     bytes_text(bytes > available ? bytes - available : 0, missing));
}

/* Not cudaMemcpy: that uses the legacy default stream, which streams made as non-blocking do not
 * wait for, and from pageable memory it may return before the bytes have arrived. */
enum status device_upload(const struct backend *backend, void *to, const void *from, size_t bytes,
                          const char *what, struct error *err)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, backend->stream),
                   backend->device, what, err));
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, what, err);
}

enum status device_copy_rows(const struct backend *backend, const struct pitched *copy,
                             enum cudaMemcpyKind kind, cudaStream_t stream, const char *what,
                             struct error *err)
{
    const unsigned char *from = copy->from;
    unsigned char *to = copy->to;
    if (copy->rows > 1 && copy->to_pitch <= backend->pitch_limit &&
        copy->from_pitch <= backend->pitch_limit)
        return cuda_check(cudaMemcpy2DAsync(to, copy->to_pitch, from, copy->from_pitch, copy->width,
                                            copy->rows, kind, stream),
                          backend->device, what, err);
    for (size_t r = 0; r < copy->rows; r++) /* one, or some of gigabytes */
        TRY(cuda_check(cudaMemcpyAsync(to + r * copy->to_pitch, from + r * copy->from_pitch,
                                       copy->width, kind, stream),
                       backend->device, what, err));
    return STATUS_OK;
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

void step_free(struct step *step)
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
    if (node->op == OP_QLINEAR_CONV || node->op == OP_CONV_INTEGER)
        return quantised_product_takes(node);
    if (quantised_pool_takes(node))
        return true;
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
        return image_takes_channels_last(node);
    }
}

static enum bf16_support bf16_support(const struct node *node)
{
    switch (node->op) {
    case OP_CONV:
        return node->channels_last ? BF16_PRODUCT : BF16_NO;
    case OP_CONV_TRANSPOSE:
        return node->channels_last ? BF16_PRODUCT : BF16_NO;
    case OP_GEMM:
    case OP_MATMUL:
        return matmul_takes(node) ? BF16_PRODUCT : BF16_NO;
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
        return node->channels_last ? BF16_SAME : BF16_NO;
    case OP_ATTENTION:
        return attention_takes(node) ? BF16_SAME : BF16_NO;
    case OP_MOVE:
    case OP_TRANSPOSE:
    case OP_CONCAT:
    case OP_SPLIT:
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
        return BF16_SAME;
    default:
        return elementwise_takes(node) || rows_takes(node) || numbers_may_be_narrow(node)
                   ? BF16_SAME
                   : BF16_NO;
    }
}

/* Of a sum or product of 8-bit integers. */
static int overwritten_term(const struct node *node)
{
    const struct value *y = node->outputs[0];
    for (size_t i = 0; i <= 3 && quantised_rows_take(node); i += 3) {
        const struct value *value = node->inputs[i];
        if (!value->known && value->dtype == y->dtype && shape_equal(&value->shape, &y->shape))
            return (int)i;
    }
    return -1;
}

/* Kernels read what they overwrite in the same thread, so any operand of y's shape may be taken. */
static int in_place(const struct node *node)
{
    const struct value *y = node_output(node, 0), *a = node_input(node, 0);
    if (y && a && (node->op == OP_QLINEAR_ADD || node->op == OP_QLINEAR_MUL))
        return overwritten_term(node);
    if (y && a && node_input(node, QUANTISED_RESIDUAL) && quantised_product_takes(node))
        return QUANTISED_RESIDUAL;
    if (y && a && node->op == OP_LOOKUP)
        return a->known ? -1 : 0;
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

enum status use_device(const struct backend *backend, struct error *err)
{
    return cuda_check(cudaSetDevice(backend->device), backend->device, "selecting the device", err);
}

static void cuda_close(struct backend *backend)
{
    if (!backend)
        return;
    cuda_ignore(cudaSetDevice(backend->device));
    runs_close(backend); /* whatever state the device is in: nothing may still read what is freed */
    weights_free(backend);
    cuda_ignore(cudaFree(backend->arena));
    if (backend->blas)
        (void)cublasLtDestroy(backend->blas);
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
    }
    if (status == STATUS_OK)
        status = runs_open(backend, err);
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
    cuda_ignore(cudaSetDevice(program->backend->device));
    runs_forget(program);
    for (size_t i = 0; i < program->step_count; i++)
        step_free(program->steps[i]);
    for (size_t i = 0; program->constants && i < program->graph->output_count; i++)
        tensor_unref(program->constants[i]);
    plan_done(&program->plan);
    free(program->steps);
    free(program->data);
    free(program->input_offsets);
    free(program->result_offsets);
    free(program->constants);
    free(program);
}

static enum status run_nothing(struct step *step, struct program *program, struct error *err)
{
    (void)step, (void)program, (void)err;
    return STATUS_OK;
}

/* Where nothing comes out there is nothing to do. */
static enum status make_nothing(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && shape_count(&node->outputs[o]->shape))
            return STATUS_OK;
    *ret = step_create(compile, sizeof **ret, run_nothing);
    return *ret ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
}

static enum status make_step(const struct compile *compile, struct step **ret, struct error *err)
{
    static const step_maker makers[] = {
        make_nothing,        make_conv,      make_matmul,      make_quantised_product,
        make_quantised_rows, make_attention, make_elementwise, make_numbers,
        make_rows,           make_axes,      make_image,       make_move,
        make_picks,          make_host};
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
        if (plan_shares_bytes(&program->plan, node) || node == program->pixels.cast)
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
    program->result_offsets = alloc_array(graph->output_count, sizeof *program->result_offsets);
    program->constants = alloc_array(graph->output_count, sizeof(struct tensor *));
    enum status status = STATUS_OK;
    if (!program->constants || !program->data || !program->steps || !program->input_offsets ||
        !program->result_offsets)
        status = error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    if (status == STATUS_OK)
        status = plan_create(graph, in_place, &program->plan, err);
    if (status == STATUS_OK) {
        runs_place(program);
        status = add_steps(program, err);
    }
    if (status != STATUS_OK) {
        free_program(program);
        return status;
    }
    *ret = program;
    return STATUS_OK;
}

/* Of the arena while this program alone is there. */
static size_t activation_bytes(const struct program *program)
{
    return program->value_bytes + size_align(program->workspace, ARENA_ALIGN) +
           RUNS * (program->staging_bytes + program->result_bytes);
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
            program->data[v] = backend->slots[0].staging + program->input_offsets[place->input];
    }
    runs_forget(program);
}

static enum status take_arena(struct backend *backend, struct error *err)
{
    size_t values = ARENA_ALIGN, staging, results;
    for (const struct program *p = backend->programs; p; p = p->next)
        if (p->value_bytes + size_align(p->workspace, ARENA_ALIGN) > values)
            values = p->value_bytes + size_align(p->workspace, ARENA_ALIGN);
    runs_bytes(backend, &staging, &results);
    const size_t bytes = values + RUNS * (staging + results);
    if (bytes > backend->arena_bytes) {
        cuda_ignore(cudaFree(backend->arena));
        backend->arena = NULL;
        backend->arena_bytes = 0;
        TRY(device_alloc(backend, bytes, "activations", (void **)&backend->arena, err));
        backend->arena_bytes = bytes;
    }
    TRY(cuda_check(cudaMemsetAsync(backend->arena, 0, bytes, backend->stream), backend->device,
                   "activations", err));
    return runs_reserve(backend, backend->arena + values, err);
}

static enum status cuda_reserve(struct backend *backend, struct error *err)
{
    TRY(use_device(backend, err));
    weights_settle(backend);
    TRY(take_arena(backend, err));
    for (struct program *program = backend->programs; program; program = program->next) {
        place_values(program);
        for (size_t i = 0; i < program->step_count; i++)
            if (program->steps[i]->tune)
                TRY(program->steps[i]->tune(program->steps[i], program, err));
        TRY(runs_capture(program, err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "activations", err);
}

static size_t reserved_bytes(const struct backend *backend)
{
    return backend->arena_bytes;
}

static size_t available_bytes(struct backend *backend)
{
    size_t available = 0, total = 0;
    struct error ignored;
    if (use_device(backend, &ignored) != STATUS_OK)
        return SIZE_MAX; /* whatever is wrong shows when it is taken */
    const cudaError_t result = cudaMemGetInfo(&available, &total);
    cuda_ignore(result);
    return result == cudaSuccess ? available : SIZE_MAX;
}

/* Page-locked in every context: a batch may be run by any of a model's devices. */
static enum status host_alloc(struct device_id device, size_t bytes, void **ret, struct error *err)
{
    void *data;
    TRY(cuda_check(cudaSetDevice(device.index), device.index, "selecting the device", err));
    device_note_opened(device.index);
    cudaError_t result = cudaHostAlloc(&data, bytes ? bytes : 1, cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(err, STATUS_NO_MEMORY,
                         "no page-locked memory for %zu bytes of inputs; choose a smaller "
                         "--max-batch, or raise the memory (memlock) limit of the container",
                         bytes);
    }
    TRY(cuda_check(result, device.index, "page-locked memory for inputs", err));
    memset(data, 0, bytes);
    *ret = data;
    return STATUS_OK;
}

static void host_free(void *data)
{
    if (!data)
        return;
    device_use_any(); /* portable: any of them */
    cuda_ignore(cudaFreeHost(data));
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
    .takes_quantised_epilogue = quantised_epilogue_takes,
    .walks = true,
    .bf16 = bf16_support,
    .compile = cuda_compile,
    .free_program = free_program,
    .reserve = cuda_reserve,
    .depth = RUNS,
    .takes_pixels = true,
    .best = MOST_BEST,
    .submit = runs_submit,
    .collect = runs_collect,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .activation_bytes = activation_bytes,
    .weight_bytes = weight_bytes,
    .available_bytes = available_bytes,
    .reserved_bytes = reserved_bytes,
    .profile = runs_profile,
    .time = runs_time,
};
