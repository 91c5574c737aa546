#include "engine/cpu/cpu.h"
#include "engine/cpu/parallel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "engine/base/forkjoin.h"
#include "engine/base/size.h"

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
    step->kernel = "cpu";
    step->run = run;
    return step;
}

void step_free(struct step *step)
{
    if (!step)
        return;
    if (step->free)
        step->free(step);
    free((void *)(uintptr_t)step->name);
    free(step);
}

enum status program_keep_constant(struct program *program, const struct value *value,
                                  struct error *err)
{
    if (program->data[value->index])
        return STATUS_OK;
    if (program->constant_count == program->constant_capacity) {
        size_t capacity = program->constant_capacity * 2 + 32;
        struct tensor **bigger =
            reallocarray(program->constants, capacity, sizeof(struct tensor *));
        if (!bigger)
            return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
        program->constants = bigger;
        program->constant_capacity = capacity;
    }
    program->constants[program->constant_count++] = tensor_ref(value->known);
    program->data[value->index] = value->known->data;
    return STATUS_OK;
}

/* ---- what may be done to a graph ---- */

static bool is_f32_constant(const struct value *value)
{
    return value && value->known && value->known->dtype == DTYPE_F32;
}

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
    case OP_RESIZE:
    case OP_UPSAMPLE:
    case OP_SCALE_SHIFT:
        return node->channels_last ? BF16_SAME : BF16_NO;
    case OP_ATTENTION:
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
        return elementwise_takes(node) || norm_takes(node) ? BF16_SAME : BF16_NO;
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
        return node->op == OP_CONV || node->op == OP_GEMM || node->op == OP_MATMUL
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

/* ---- open, close ---- */

_Thread_local bool parallel_is_even;

static bool prefer_own_kernels;

void cpu_prefer_own_kernels(bool prefer)
{
    prefer_own_kernels = prefer;
}

/* The team of this thread, before anything is split over it: oneDNN's kernels count on all the
 * members they were made for, some wait for each other. */
static enum status take_threads(int threads, struct error *err)
{
    errno = 0;
    const int there = forkjoin_prepare(threads);
    if (there >= threads || forkjoin_is_inside())
        return STATUS_OK;
    return error_set(
        err, STATUS_NO_MEMORY,
        "of the %d threads of a forward pass the system starts only %d (%s); lower "
        "--threads, or raise the limit of threads (ulimit -u, a container's pids limit)",
        threads, there, strerror(errno ? errno : EAGAIN));
}

static double cpu_time_ms(const struct backend *backend)
{
    int64_t times[PARALLEL_SHARES], sum = 0;
    const int there = forkjoin_cpu_times(times, PARALLEL_SHARES);
    const int counted = there < backend->options.threads ? there : backend->options.threads;
    for (int i = 0; i < counted; i++)
        sum += times[i];
    return clock_ms(sum) / counted;
}

static enum status cpu_enter(struct backend *backend, struct error *err)
{
    return take_threads(backend->options.threads, err);
}

static enum status cpu_open(const struct backend_options *options, struct backend **ret,
                            struct error *err)
{
    struct backend *backend = calloc(1, sizeof *backend);
    if (!backend)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    backend->options = *options;
    backend->own_kernels = prefer_own_kernels;
    if (backend->options.threads < 1)
        backend->options.threads = device_cpu_threads();
    forkjoin_set_threads(backend->options.threads);
    enum status status = take_threads(backend->options.threads, err);
    if (status == STATUS_OK)
        status = dnnl_check(dnnl_engine_create(&backend->engine, dnnl_cpu, 0), "engine", err);
    if (status == STATUS_OK)
        status = dnnl_check(
            dnnl_stream_create(&backend->stream, backend->engine, dnnl_stream_default_flags),
            "stream", err);
    if (status != STATUS_OK) {
        dnnl_engine_destroy(backend->engine);
        free(backend);
        return status;
    }
    *ret = backend;
    return STATUS_OK;
}

static void arena_release(struct backend *backend)
{
    if (backend->arena)
        munmap(backend->arena, backend->arena_bytes);
    backend->arena = NULL;
    backend->arena_bytes = 0;
}

static void cpu_close(struct backend *backend)
{
    if (!backend)
        return;
    node_programs_free(backend);
    weights_free(backend);
    arena_release(backend);
    dnnl_stream_destroy(backend->stream);
    dnnl_engine_destroy(backend->engine);
    free(backend);
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
    for (size_t i = 0; i < program->step_count; i++)
        step_free(program->steps[i]);
    for (size_t i = 0; i < program->constant_count; i++)
        tensor_unref(program->constants[i]);
    plan_done(&program->plan);
    free(program->steps);
    free(program->constants);
    free(program->data);
    free(program->input_values);
    free(program->input_of);
    free(program->output_values);
    free(program);
}

static enum status make_step(const struct compile *compile, struct step **ret, struct error *err)
{
    static const step_maker makers[] = {
        make_qdepthwise, make_qconv,  make_qmatmul, make_qrows, make_dynamic_round, make_qconcat,
        make_candidate,  make_join,   make_deconv,  make_pool,  make_elementwise,   make_norm,
        make_attention,  make_resize, make_groups,  make_copy,  make_generic};
    *ret = NULL;
    enum status status = STATUS_OK;
    for (size_t m = 0; m < COUNT_OF(makers) && status == STATUS_OK && !*ret; m++)
        status = makers[m](compile, ret, err);
    return status;
}

static enum status add_steps(struct program *program, const struct graph *graph, struct error *err)
{
    const struct backend_options *options = &program->backend->options;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (options->on_node)
            options->on_node(options->node_context, n, graph->node_count);
        if (plan_shares_bytes(&program->plan, node))
            continue;
        struct compile compile = {program->backend, program, graph, node,
                                  program->backend->own_kernels};
        struct step *step;
        enum status status = make_step(&compile, &step, err);
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

static enum status cpu_compile(struct backend *backend, const struct graph *graph,
                               struct program **ret, struct error *err)
{
    forkjoin_set_threads(backend->options.threads);
    struct program *program = calloc(1, sizeof *program);
    if (!program)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
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
        status = error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    if (status == STATUS_OK)
        status = plan_create(graph, cpu_in_place, &program->plan, err);
    if (status == STATUS_OK)
        status = add_steps(program, graph, err);
    if (status == STATUS_OK)
        status = bind_ends(program, graph, err);
    if (status != STATUS_OK) {
        free_program(program);
        return status;
    }
    *ret = program;
    return STATUS_OK;
}

static size_t activation_bytes(const struct program *program)
{
    return size_align(program->plan.arena_bytes, 4096) + size_align(program->scratch_bytes, 4096);
}

static size_t largest_arena(const struct backend *backend)
{
    size_t bytes = 0;
    for (const struct program *program = backend->programs; program; program = program->next)
        if (activation_bytes(program) > bytes)
            bytes = activation_bytes(program);
    return bytes;
}

/* One arena, touched once here so that no request pays for page faults, on huge pages where the
 * system has them. */
enum status cpu_place(struct backend *backend, struct error *err)
{
    const size_t bytes = largest_arena(backend);
    if (bytes > backend->arena_bytes) {
        arena_release(backend);
        void *arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (arena == MAP_FAILED)
            return error_set(err, STATUS_NO_MEMORY,
                             "out of memory: %zu bytes of activations on the CPU (%s)", bytes,
                             strerror(errno));
        madvise(arena, bytes, MADV_HUGEPAGE);
        memset(arena, 0, bytes);
        backend->arena = arena;
        backend->arena_bytes = bytes;
    }
    /* Without an arena nothing has a place in it: a graph of constants, or one without nodes. */
    for (struct program *program = backend->arena ? backend->programs : NULL; program;
         program = program->next) {
        for (size_t v = 0; v < program->value_count; v++)
            if (program->plan.places[v].kind == PLACE_ARENA)
                program->data[v] = backend->arena + program->plan.places[v].offset;
        program->scratch = backend->arena + size_align(program->plan.arena_bytes, 4096);
    }
    return STATUS_OK;
}

static enum status cpu_reserve(struct backend *backend, struct error *err)
{
    if (backend->arena_bytes > largest_arena(backend)) /* programs have been freed since */
        arena_release(backend);
    TRY(cpu_place(backend, err));
    weights_seal(backend);
    return STATUS_OK;
}

/* Nothing in the arena outlives a run. */
static void release_pages(struct backend *backend)
{
    if (backend->arena)
        madvise(backend->arena, backend->arena_bytes, MADV_DONTNEED);
}

/* ---- run ---- */

static void bind_inputs(struct program *program, const void *const *inputs)
{
    forkjoin_set_threads(program->backend->options.threads);
    for (size_t i = 0; i < program->input_value_count; i++)
        program->data[program->input_values[i]] = (void *)(uintptr_t)inputs[program->input_of[i]];
}

enum status program_run(struct program *program, const void *const *inputs, const void **outputs,
                        struct error *err)
{
    bind_inputs(program, inputs);
    for (size_t i = 0; i < program->step_count; i++)
        TRY(program->steps[i]->run(program->steps[i], program, err));
    for (size_t i = 0; i < program->output_count; i++)
        outputs[i] = program->data[program->output_values[i]];
    return STATUS_OK;
}

static enum status cpu_submit(struct program *program, const struct run_request *request,
                              struct error *err)
{
    (void)err;
    assert(!program->backend->submitted);
    program->backend->submitted = program;
    program->backend->submitted_inputs = request->inputs;
    return STATUS_OK;
}

static enum status cpu_collect(struct backend *backend, struct run_result *ret, struct error *err)
{
    struct program *program = backend->submitted;
    backend->submitted = NULL;
    return program_run(program, backend->submitted_inputs, ret->outputs, err);
}

static enum status cpu_profile(struct program *program, const void *const *inputs,
                               struct session_step *ret, size_t max, size_t *ret_count,
                               struct error *err)
{
    bind_inputs(program, inputs);
    size_t count = 0;
    for (size_t i = 0; i < program->step_count; i++) {
        struct step *step = program->steps[i];
        int64_t start = clock_now();
        TRY(step->run(step, program, err));
        if (count < max)
            ret[count++] = (struct session_step){.name = step->name,
                                                 .kernel = step->kernel,
                                                 .tried = step->tried,
                                                 .milliseconds = clock_ms(clock_now() - start),
                                                 .gflop = step->flops * 1e-9,
                                                 .bytes = step->bytes};
    }
    *ret_count = count;
    return STATUS_OK;
}

/* Does a program behind `program` in the list hold this constant too? */
static bool is_held_elsewhere(const struct program *program, const struct tensor *constant)
{
    for (const struct program *p = program->next; p; p = p->next)
        for (size_t i = 0; i < p->constant_count; i++)
            if (p->constants[i] == constant)
                return true;
    return false;
}

static size_t weight_bytes(const struct backend *backend)
{
    size_t bytes = backend->weight_bytes;
    for (const struct program *p = backend->programs; p; p = p->next)
        for (size_t i = 0; i < p->constant_count; i++)
            if (!is_held_elsewhere(p, p->constants[i]))
                bytes += p->constants[i]->bytes;
    return bytes;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .enter = cpu_enter,
    .cpu_ms = cpu_time_ms,
    .close = cpu_close,
    .takes_channels_last = takes_channels_last,
    .takes_gate = dense_takes_gate,
    .makes_mean = depthwise_makes_mean,
    .takes_parts = join_takes_parts,
    .walks = true,
    .rounds_dynamically = true,
    .bf16 = bf16_support,
    .compile = cpu_compile,
    .free_program = free_program,
    .reserve = cpu_reserve,
    .release_pages = release_pages,
    .depth = 1,
    .submit = cpu_submit,
    .collect = cpu_collect,
    .run_node = cpu_run_node,
    .activation_bytes = activation_bytes,
    .weight_bytes = weight_bytes,
    .profile = cpu_profile,
};
