/* Compiled graphs and their steps: creating and freeing them, placing them in the arena, running
 * them. Steps come from the lowerings (lowering.h). */
#include "engine/cpu/program/program.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/forkjoin.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "engine/op/ops.h"

void *step_create(const struct lowering *lowering, size_t size, step_run_fn run, struct step **ret,
                  struct error *err)
{
    struct step *step = calloc(1, size);
    char *name = strdup(lowering->node->name);
    if (!step || !name) {
        FREE_ALL(step, name);
        (void)error_no_memory(err, "while compiling");
        return NULL;
    }
    const struct node *node = lowering->node;
    const struct op_info *info = op_record(node->op);
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    *step = (struct step){.name = name,
                          .kernel = "cpu",
                          .flops = info ? 2 * info->work(node) : 0,
                          .run = run,
                          .x_value = x ? x->index : 0,
                          .y_value = y ? y->index : 0};
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !node->inputs[i]->known)
            step->bytes += value_bytes(node->inputs[i]);
    for (size_t i = 0; i < node->output_count; i++)
        step->bytes += node->outputs[i] ? value_bytes(node->outputs[i]) : 0;
    *ret = step;
    return step;
}

void step_free(struct step *step)
{
    if (!step)
        return;
    if (step->free)
        step->free(step);
    FREE_ALL((void *)(uintptr_t)step->name, step);
}

size_t pixel_pitch(const struct lowering *lowering, const struct value *image)
{
    const size_t pitch = lowering->program->plan.places[image->index].pitch;
    return pitch ? pitch / dtype_size(image->dtype)
                 : (size_t)image->shape.dims[image->shape.rank - 1];
}

enum status program_keep_constant(struct program *program, const struct value *value,
                                  struct error *err)
{
    if (program->data[value->index])
        return STATUS_OK;
    TRY(check_memory(array_reserve(&program->constants, &program->constant_capacity,
                                   program->constant_count + 1, sizeof(struct tensor *)),
                     "while compiling", err));
    program->constants[program->constant_count++] = tensor_ref(value->known);
    program->data[value->index] = value->known->data;
    return STATUS_OK;
}

void program_free(struct program *program)
{
    if (!program)
        return;
    struct program **link = &program->backend->programs;
    while (*link && *link != program)
        link = &(*link)->next;
    const bool is_newest = link == &program->backend->programs;
    if (*link)
        *link = program->next;
    for (size_t i = 0; i < program->step_count; i++)
        step_free(program->steps[i]);
    if (is_newest) /* no other program reads the weights that were packed for it */
        weights_free_since(program->backend, program->weights_before);
    for (size_t i = 0; i < program->constant_count; i++)
        tensor_unref(program->constants[i]);
    plan_done(&program->plan);
    FREE_ALL(program->steps, program->constants, program->data, program);
}

/* ---- the arena ---- */

size_t program_output_bytes(const struct program *program)
{
    return program->plan.arena_bytes - program->plan.outputs_at;
}

/* Bytes of the values, except outputs, and of the scratch memory. */
static size_t program_arena_bytes(const struct program *program)
{
    return size_align(program->plan.outputs_at, 4096) + size_align(program->scratch_bytes, 4096);
}

/* One run more than streams, so that no stream waits until the next run is submitted. Each run has
 * its own outputs. */
static size_t runs_in_flight(const struct backend *backend)
{
    return backend->stream_count ? (size_t)backend->stream_count + 1 : 1;
}

static size_t stream_bytes(const struct program *program)
{
    return program_arena_bytes(program) + size_align(program_output_bytes(program), 4096);
}

/* Streams that need more bytes than this are freed; arena_bytes is what the largest batch needs.
 * Eight streams need up to 1.4 times the bytes of a batch of 8 (GoogLeNet with 16 threads). */
static size_t streams_most_bytes(size_t arena_bytes)
{
    return arena_bytes + arena_bytes / 2;
}

size_t program_activation_bytes(const struct program *program)
{
    const size_t alone = program_arena_bytes(program), most = streams_most_bytes(alone);
    size_t streams = 0;
    for (const struct program *p = program->backend->programs; p; p = p->next)
        streams += p->is_stream ? stream_bytes(p) : 0;
    const size_t arena = streams < most ? streams : most;
    return (arena > alone ? arena : alone) +
           runs_in_flight(program->backend) * size_align(program_output_bytes(program), 4096);
}

/* Sets the addresses of the program's values. There is no arena if no value needs it: for a graph
 * of constants, or without nodes. */
static void place(struct program *program)
{
    const struct plan *plan = &program->plan;
    unsigned char *base = program->backend->arena->base, *outputs = program->backend->outputs;
    program->base = base;
    if (program->is_stream) {
        base += program->at;
        outputs = base + program_arena_bytes(program);
    }
    for (size_t v = 0; v < plan->value_count; v++) {
        const size_t offset = plan->places[v].offset;
        if (plan->places[v].kind != PLACE_ARENA)
            continue;
        if (offset >= plan->outputs_at)
            program->data[v] = outputs + (offset - plan->outputs_at);
        else if (base)
            program->data[v] = base + offset;
    }
    program->scratch = base ? base + size_align(plan->outputs_at, 4096) : NULL;
}

enum status programs_place(struct backend *backend, void (*free_streams)(struct backend *backend),
                           struct error *err)
{
    size_t most = 0, arena = 0, streams = 0;
    for (struct program *program = backend->programs; program; program = program->next) {
        const size_t outputs = program_output_bytes(program), bytes = program_arena_bytes(program);
        if (program->is_stream) {
            program->at = streams;
            streams += stream_bytes(program);
            continue;
        }
        most = outputs > most ? outputs : most;
        arena = bytes > arena ? bytes : arena;
    }
    if (streams > streams_most_bytes(arena)) {
        free_streams(backend);
        streams = 0;
    }
    most = size_align(most, 4096);
    backend->arena_bytes = streams > arena ? streams : arena;
    backend->output_bytes = most;
    const size_t all = most * runs_in_flight(backend);
    if (!arena_fit(backend->arena) || !pages_resize(&backend->outputs, backend->output_room, all))
        return error_set(err, STATUS_NO_MEMORY,
                         "out of memory: %zu bytes of activations on the CPU (%s)",
                         backend->arena_bytes + all, strerror(errno));
    backend->output_room = all;
    for (struct program *program = backend->programs; program; program = program->next)
        place(program);
    return STATUS_OK;
}

/* ---- run ---- */

void program_bind(struct program *program, const void *const *inputs, int image)
{
    /* Another session may have made the arena grow and move. */
    if (program->base != program->backend->arena->base)
        place(program);
    for (size_t v = 0; v < program->plan.value_count; v++) {
        const size_t i = program->plan.places[v].input;
        if (program->plan.places[v].kind != PLACE_INPUT)
            continue;
        const size_t offset = image ? (size_t)image * value_bytes(program->graph->inputs[i]) : 0;
        program->data[v] = (unsigned char *)(uintptr_t)inputs[i] + offset;
    }
}

enum status backend_check_stop(const struct backend *backend, struct error *err)
{
    const struct backend_options *options = &backend->options;
    if (options->is_stopped && options->is_stopped(options->context))
        return error_set(err, STATUS_CANCELLED, "the run was cancelled");
    return STATUS_OK;
}

enum status program_step(struct program *program, struct step *step, struct error *err)
{
    step->x = program->data[step->x_value];
    step->y = program->data[step->y_value];
    step->memory = program->scratch;
    return step->run(step, program, err);
}

/* Runs all steps, and writes the times of the first `max` steps to ret[]. */
static enum status run_steps(struct program *program, const void *const *inputs,
                             struct session_step *ret, size_t max, struct error *err)
{
    LOCK(&program->backend->arena->lock);
    program_bind(program, inputs, 0);
    const uint64_t mode = cpu_flush_subnormals();
    enum status status = STATUS_OK;
    for (size_t i = 0; i < program->step_count && status == STATUS_OK; i++) {
        struct step *step = program->steps[i];
        const int64_t start = i < max ? clock_now() : 0;
        status = backend_check_stop(program->backend, err);
        IF_OK(status, program_step(program, step, err));
        if (i < max)
            ret[i] = (struct session_step){.name = step->name,
                                           .kernel = step->kernel,
                                           .precision = step->precision,
                                           .milliseconds = clock_ms(clock_now() - start),
                                           .gflop = step->flops * 1e-9,
                                           .bytes = step->bytes};
    }
    cpu_set_float_mode(mode);
    program->backend->arena->last = program->backend;
    return status;
}

enum status program_run(struct program *program, const void *const *inputs, const void **outputs,
                        struct error *err)
{
    TRY(run_steps(program, inputs, NULL, 0, err));
    for (size_t i = 0; i < program->graph->output_count; i++)
        outputs[i] = program->data[program->graph->outputs[i]->index];
    return STATUS_OK;
}

enum status program_profile(struct program *program, const void *const *inputs,
                            struct session_step *ret, size_t max, size_t *ret_count,
                            struct error *err)
{
    *ret_count = program->step_count < max ? program->step_count : max;
    return run_steps(program, inputs, ret, max, err);
}

/* ---- epilogues ---- */

struct residual residual_of(const struct lowering *lowering)
{
    const struct value *residual = lowering->node->epilogue.residual;
    if (!residual)
        return (struct residual){0};
    struct program *program = lowering->program;
    const struct place *places = program->plan.places;
    const struct place *from = &places[residual->index];
    const struct place *to = &places[lowering->node->outputs[0]->index];
    const bool in_place = from->kind == PLACE_ARENA && from->offset == to->offset;
    return (struct residual){.copied = in_place ? NULL : &program->data[residual->index],
                             .bytes = value_bytes(residual)};
}

void residual_begin(const struct residual *residual, void *dst)
{
    if (residual->copied)
        memcpy(dst, *residual->copied, residual->bytes);
}

struct epilogue epilogue_with_clip(const struct epilogue *epilogue)
{
    struct epilogue e = *epilogue;
    if (e.activation == ACTIVATION_RELU)
        e = (struct epilogue){.activation = ACTIVATION_CLIP, .beta = INFINITY};
    return e;
}

/* ---- weights ---- */

/* True if a later program in the list holds this constant, too. */
static bool is_held_elsewhere(const struct program *program, const struct tensor *constant)
{
    for (const struct program *p = program->next; p; p = p->next)
        for (size_t i = 0; i < p->constant_count; i++)
            if (p->constants[i] == constant)
                return true;
    return false;
}

size_t programs_weight_bytes(const struct backend *backend)
{
    size_t bytes = backend->weight_bytes;
    for (const struct program *p = backend->programs; p; p = p->next)
        for (size_t i = 0; i < p->constant_count; i++)
            if (!is_held_elsewhere(p, p->constants[i]))
                bytes += p->constants[i]->bytes;
    return bytes;
}
