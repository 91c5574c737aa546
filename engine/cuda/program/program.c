/* Programs, and the arena that all programs of a backend share. */

#include "engine/cuda/program/program.h"
#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"

void cuda_program_free(struct program *base)
{
    struct cuda_program *program = (struct cuda_program *)base;
    if (!program)
        return;
    struct cuda_program **link = &program->backend->programs;
    while (*link && *link != program)
        link = &(*link)->next;
    if (*link)
        *link = program->next;
    cuda_ignore(cudaSetDevice(program->backend->device));
    runs_forget(program);
    for (size_t i = 0; i < program->step_count; i++)
        cuda_step_free(program->steps[i]);
    for (size_t i = 0; program->constants && i < program->graph->output_count; i++)
        tensor_unref(program->constants[i]);
    plan_done(&program->plan);
    FREE_ALL(program->steps, program->data, program->input_offsets, program->result_offsets,
             program->constants, program);
}

size_t cuda_program_activation_bytes(const struct program *base)
{
    const struct cuda_program *program = (const struct cuda_program *)base;
    return program->value_bytes + size_align(program->workspace, ARENA_ALIGN) +
           RUNS * (program->staging_bytes + program->result_bytes);
}

/* Sets the values' addresses after the arena may have moved, and discards the recordings. */
static void place_values(struct cuda_program *program)
{
    struct cuda_backend *backend = program->backend;
    for (size_t v = 0; v < program->plan.value_count; v++) {
        const struct place *place = &program->plan.places[v];
        if (place->kind == PLACE_ARENA)
            program->data[v] = backend->arena + place->offset;
        else if (place->kind == PLACE_INPUT)
            program->data[v] = backend->slots[0].staging + program->input_offsets[place->input];
    }
    runs_forget(program);
}

static enum status allocate_arena(struct cuda_backend *backend, struct error *err)
{
    size_t values = ARENA_ALIGN, staging, results;
    for (const struct cuda_program *p = backend->programs; p; p = p->next)
        if (p->value_bytes + size_align(p->workspace, ARENA_ALIGN) > values)
            values = p->value_bytes + size_align(p->workspace, ARENA_ALIGN);
    runs_bytes(backend, &staging, &results);
    const size_t bytes = values + RUNS * (staging + results);
    if (bytes > backend->arena_bytes) {
        device_free(backend, backend->arena);
        backend->arena = NULL;
        backend->arena_bytes = 0;
        TRY(device_alloc(backend, bytes, "activations", (void **)&backend->arena, err));
        backend->arena_bytes = bytes;
    }
    TRY(cuda_check(cudaMemsetAsync(backend->arena, 0, bytes, backend->stream), backend->device,
                   "activations", err));
    return runs_reserve(backend, backend->arena + values, err);
}

/* The number of steps of all programs that are tuned so far, and of all steps. */
struct tuned {
    size_t done, count;
};

/* During the measurements backend->stream is the trial stream, so that other models' batches go
 * first. */
static enum status tune_steps(struct cuda_program *program, struct tuned *tuned, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const struct backend_options *options = &backend->options;
    cudaStream_t const own = backend->stream;
    enum status status =
        cuda_check(cudaStreamSynchronize(own), backend->device, "activations", err);
    backend->stream = backend->trial;
    for (size_t i = 0; i < program->step_count && status == STATUS_OK; i++) {
        struct cuda_step *step = program->steps[i];
        if (options->on_node && !options->on_node(options->context, tuned->done++, tuned->count))
            status = error_set(err, STATUS_CANCELLED, "loading was cancelled");
        else if (step->tune)
            status = step->tune(step, program, err);
    }
    backend->stream = own;
    tuning_save();
    return status;
}

enum status cuda_programs_reserve(struct backend *base, struct error *err)
{
    struct cuda_backend *backend = (struct cuda_backend *)base;
    struct tuned tuned = {0, 1};
    TRY(use_device(backend, err));
    for (const struct cuda_program *program = backend->programs; program; program = program->next)
        tuned.count += program->step_count;
    cuda_weights_settle(backend);
    TRY(allocate_arena(backend, err));
    for (struct cuda_program *program = backend->programs; program; program = program->next) {
        place_values(program);
        TRY(tune_steps(program, &tuned, err));
        TRY(runs_capture(program, err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "activations", err);
}
