/* Runs of a program: inputs in, one launch, results out, two of them in flight.
 *
 *     stream in       copy n+1            copy n+2
 *                          └arrived──▶ waits
 *     stream (compute)     compute n      compute n+1      compute n+2
 *                                └computed──▶ waits
 *     stream out                          copy n           copy n+1
 *                                              └fetched──▶ the caller, in collect
 *
 * Each run in flight has a slot: a place for its inputs (staging) and one for its results in device
 * memory. The run's outputs are copied from the arena to its results before the next run overwrites
 * them. A slot is reused only after its last run was collected, so no other waits are needed.
 * tests/fake_cuda/test_runs.c shows that each wait is needed. Page-locked memory has room for the
 * results of a third run, so that a caller can read them while two other runs are in flight.
 *
 * Results are not copied from the arena to the host, because the next run would have to wait for
 * that copy over the bus. */
#include "engine/cuda/program/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"

#define SPIN (INT64_C(200) * 1000) /* ns */

/* ---- open, close ---- */

static enum status open_slot(struct cuda_backend *backend, struct cuda_slot *slot,
                             struct error *err)
{
    cudaEvent_t *const events[] = {&slot->arrived, &slot->computed, &slot->fetched};
    for (size_t i = 0; i < COUNT_OF(events); i++) {
        /* The host sleeps while it waits for this event, so that decoding can use the core. */
        const unsigned flags =
            cudaEventDisableTiming | (events[i] == &slot->fetched ? cudaEventBlockingSync : 0);
        TRY(cuda_check(cudaEventCreateWithFlags(events[i], flags), backend->device, "an event",
                       err));
    }
    return STATUS_OK;
}

enum status runs_open(struct cuda_backend *backend, struct error *err)
{
    cudaStream_t *const streams[] = {&backend->stream, &backend->in, &backend->out,
                                     &backend->trial};
    const struct session_pixels *pixels = backend->options.pixels;
    int least = 0, greatest = 0;
    TRY(cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), backend->device, "a stream",
                   err));
    for (size_t i = 0; i < COUNT_OF(streams); i++)
        TRY(cuda_check(
            cudaStreamCreateWithPriority(streams[i], cudaStreamNonBlocking,
                                         streams[i] == &backend->trial ? least : greatest),
            backend->device, "a stream", err));
    for (size_t i = 0; i < RUNS; i++)
        TRY(open_slot(backend, &backend->slots[i], err));
    backend->options.pixels = NULL; /* the caller of backend_open() may free it */
    if (!pixels)
        return STATUS_OK;
    backend->pixel_channels = pixels->channels;
    backend->pixels_are_reversed = pixels->is_reversed;
    TRY(device_alloc(backend, sizeof pixels->table, "pixel tables", (void **)&backend->pixel_table,
                     err));
    return device_upload(backend, backend->pixel_table, pixels->table, sizeof pixels->table,
                         "pixel tables", err);
}

void runs_settle(struct cuda_backend *backend)
{
    cudaStream_t const streams[] = {backend->trial, backend->in, backend->stream, backend->out};
    for (size_t i = 0; i < COUNT_OF(streams); i++)
        if (streams[i])
            cuda_ignore(cudaStreamSynchronize(streams[i]));
}

void runs_close(struct cuda_backend *backend)
{
    for (size_t i = 0; i < RUNS; i++) {
        cudaEvent_t const events[] = {backend->slots[i].arrived, backend->slots[i].computed,
                                      backend->slots[i].fetched};
        for (size_t e = 0; e < COUNT_OF(events); e++)
            if (events[e])
                cuda_ignore(cudaEventDestroy(events[e]));
    }
    (void)device_note_batches(backend->device, 0, (int)(backend->submitted - backend->collected));
    cudaStream_t const streams[] = {backend->in, backend->stream, backend->out, backend->trial};
    for (size_t i = 0; i < COUNT_OF(streams); i++)
        if (streams[i])
            cuda_ignore(cudaStreamDestroy(streams[i]));
    if (backend->pinned)
        cuda_ignore(cudaFreeHost(backend->pinned));
}

/* ---- addresses ---- */

void runs_place(struct cuda_program *program)
{
    const struct graph *graph = program->graph;
    const size_t image = program->backend->options.pixels_input;
    size_t at = 0;
    program->rows = 1;
    if (graph->input_count > 0) {
        const struct shape *shape = &graph->inputs[image < graph->input_count ? image : 0]->shape;
        if (shape->rank > 0 && shape->dims[0] > 0)
            program->rows = (int)shape->dims[0];
    }
    program->value_bytes = size_align(program->plan.arena_bytes, ARENA_ALIGN);
    if (program->backend->pixel_table && image < graph->input_count &&
        graph->inputs[image]->dtype == DTYPE_F32) {
        const struct value *value = graph->inputs[image];
        program->pixels = (struct pixels){program->value_bytes,
                                          shape_count(&value->shape) / (size_t)program->rows};
        program->value_bytes += size_align(value_bytes(value), ARENA_ALIGN);
        at = size_align((size_t)program->rows, ARENA_ALIGN); /* the staging starts with the marks */
    }
    for (size_t i = 0; i < graph->input_count; i++) {
        program->input_offsets[i] = at;
        at += size_align(value_bytes(graph->inputs[i]), ARENA_ALIGN);
    }
    program->staging_bytes = at;
    at = 0;
    for (size_t i = 0; i < graph->output_count; i++) {
        program->result_offsets[i] = at;
        if (graph->outputs[i]->known)
            program->constants[i] = tensor_ref(graph->outputs[i]->known);
        else
            at += size_align(value_bytes(graph->outputs[i]), ARENA_ALIGN);
    }
    program->result_bytes = at;
}

void runs_bytes(const struct cuda_backend *backend, size_t *ret_staging, size_t *ret_results)
{
    *ret_staging = *ret_results = 0;
    for (const struct cuda_program *p = backend->programs; p; p = p->next) {
        if (p->staging_bytes > *ret_staging)
            *ret_staging = p->staging_bytes;
        if (p->result_bytes > *ret_results)
            *ret_results = p->result_bytes;
    }
}

enum status runs_reserve(struct cuda_backend *backend, unsigned char *first, struct error *err)
{
    size_t staging, results, marks = ARENA_ALIGN;
    runs_bytes(backend, &staging, &results);
    for (const struct cuda_program *p = backend->programs; p; p = p->next)
        if ((size_t)p->rows > marks)
            marks = size_align((size_t)p->rows, ARENA_ALIGN);
    const size_t pinned = RESULTS * results + RUNS * marks;
    if (pinned > backend->pinned_bytes) {
        if (backend->pinned)
            cuda_ignore(cudaFreeHost(backend->pinned));
        backend->pinned = NULL;
        backend->pinned_bytes = 0;
        TRY(device_pin(backend->device, pinned, cudaHostAllocDefault, "results",
                       (void **)&backend->pinned, err));
        backend->pinned_bytes = pinned;
    }
    backend->results_bytes = results;
    for (size_t i = 0; i < RUNS; i++) {
        struct cuda_slot *slot = &backend->slots[i];
        slot->staging = first + i * (staging + results);
        slot->results = slot->staging + staging;
        slot->marks = backend->pinned + RESULTS * results + i * marks;
    }
    return STATUS_OK;
}

/* ---- one run on the compute stream ---- */

/* Sets the addresses of inputs and of their views: in the staging memory, or for an input with
 * pixels in the memory of the converted numbers. */
static void point_at_inputs(struct cuda_program *program, const struct cuda_slot *slot)
{
    const struct pixels *pixels = &program->pixels;
    for (size_t v = 0; v < program->plan.value_count; v++) {
        const struct place *place = &program->plan.places[v];
        if (place->kind != PLACE_INPUT)
            continue;
        const bool has_moved =
            pixels->row_count && place->input == program->backend->options.pixels_input;
        program->data[v] = has_moved ? program->backend->arena + pixels->offset
                                     : slot->staging + program->input_offsets[place->input];
    }
}

static enum status stage_inputs(struct cuda_program *program, const struct cuda_slot *slot,
                                struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const struct pixels *pixels = &program->pixels;
    point_at_inputs(program, slot);
    if (!pixels->row_count)
        return STATUS_OK;
    const void *arrived = slot->staging + program->input_offsets[backend->options.pixels_input];
    const struct cuda_pixels how = {.rows = (size_t)program->rows,
                                    .row = pixels->row_count,
                                    .channels = backend->pixel_channels,
                                    .is_reversed = backend->pixels_are_reversed};
    cuda_pixels(backend->stream, arrived, slot->staging, backend->pixel_table,
                (float *)(void *)(backend->arena + pixels->offset), &how);
    return cuda_check(cudaGetLastError(), backend->device, "pixels to numbers", err);
}

/* Argument of enqueue(). */
struct enqueued {
    struct cuda_program *program;
    const struct cuda_slot *slot;
    cudaEvent_t *events; /* recorded before each step, and after the last step; NULL: none */
    unsigned flags;      /* flags of the events' recording */
};

static enum status run_steps(const struct enqueued *what, struct error *err)
{
    struct cuda_program *program = what->program;
    for (size_t i = 0; i <= program->step_count; i++) {
        if (what->events)
            TRY(cuda_check(
                cudaEventRecordWithFlags(what->events[i], program->backend->stream, what->flags),
                program->backend->device, "profiling", err));
        if (i < program->step_count)
            TRY(program->steps[i]->run(program->steps[i], program, err));
    }
    return STATUS_OK;
}

/* Copies results out of the arena, which the next run overwrites. */
static enum status keep_results(struct cuda_program *program, const struct cuda_slot *slot,
                                struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const struct graph *graph = program->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        const struct value *value = graph->outputs[i];
        const size_t bytes = value_bytes(value);
        if (bytes && !program->constants[i])
            TRY(cuda_check(cudaMemcpyAsync(slot->results + program->result_offsets[i],
                                           program->data[value->index], bytes,
                                           cudaMemcpyDeviceToDevice, backend->stream),
                           backend->device, "keeping the outputs", err));
    }
    return STATUS_OK;
}

static enum status enqueue(void *context, struct error *err)
{
    const struct enqueued *what = context;
    TRY(stage_inputs(what->program, what->slot, err));
    TRY(run_steps(what, err));
    return keep_results(what->program, what->slot, err);
}

/* ---- recording ---- */

void runs_forget(struct cuda_program *program)
{
    for (size_t i = 0; i < RUNS; i++) {
        if (program->captured[i])
            cuda_ignore(cudaGraphExecDestroy(program->captured[i]));
        program->captured[i] = NULL;
    }
}

enum status runs_record(struct cuda_backend *backend,
                        enum status (*launch)(void *context, struct error *err), void *context,
                        cudaGraphExec_t *ret, struct error *err)
{
    cudaGraph_t graph = NULL;
    TRY(cuda_check(cudaStreamBeginCapture(backend->stream, cudaStreamCaptureModeThreadLocal),
                   backend->device, "recording a CUDA graph", err));
    enum status status = launch(context, err);
    cudaError_t ended = cudaStreamEndCapture(backend->stream, &graph);
    if (status != STATUS_OK)
        cuda_ignore(ended); /* the earlier error is more precise */
    else
        status = cuda_check(ended, backend->device, "recording a CUDA graph", err);
    IF_OK(status, cuda_check(cudaGraphInstantiate(ret, graph, 0), backend->device,
                             "instantiating a CUDA graph", err));
    if (graph)
        cuda_ignore(cudaGraphDestroy(graph));
    return status;
}

/* LENSD_CUDA_GRAPHS=off helps profilers, and to find out whether recording causes a fault. */
bool runs_records(void)
{
    const char *wish = getenv("LENSD_CUDA_GRAPHS");
    return !wish || strcmp(wish, "off") != 0;
}

/* The first run is not recorded, because libraries and kernels load code in it. A recording does
 * not allow that. A graph is uploaded to the device at its first launch; this function uploads it
 * now, so that the first batch does not wait. */
enum status runs_capture(struct cuda_program *program, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    runs_forget(program);
    if (program->has_host_steps) /* host steps may reject the zeros in the inputs */
        return STATUS_OK;
    TRY(enqueue(&(struct enqueued){.program = program, .slot = &backend->slots[0]}, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "the first run", err));
    for (size_t i = 0; i < RUNS && runs_records(); i++) {
        cudaGraphExec_t *captured = &program->captured[i];
        struct enqueued what = {.program = program, .slot = &backend->slots[i]};
        TRY(runs_record(backend, enqueue, &what, captured, err));
        TRY(cuda_check(cudaGraphUpload(*captured, backend->stream), backend->device,
                       "uploading a CUDA graph", err));
        TRY(cuda_check(cudaGraphLaunch(*captured, backend->stream), backend->device,
                       "the first launch", err));
    }
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "the first launch",
                      err);
}

/* ---- submit ---- */

/* Copies the rows of the image input, and slot->marks. A row of 8-bit pixels has a byte per number.
 */
static enum status copy_image_rows(struct cuda_program *program, const struct cuda_slot *slot,
                                   const char *from, int valid_rows, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const size_t input = backend->options.pixels_input;
    const size_t count = program->pixels.row_count, pitch = count * sizeof(float);
    unsigned char *to = slot->staging + program->input_offsets[input];
    for (int r = 0; r < valid_rows; r++, from += pitch, to += pitch)
        TRY(cuda_check(cudaMemcpyAsync(to, from, slot->marks[r] ? count : pitch,
                                       cudaMemcpyHostToDevice, backend->in),
                       backend->device, "copying the images", err));
    return cuda_check(cudaMemcpyAsync(slot->staging, slot->marks, (size_t)program->rows,
                                      cudaMemcpyHostToDevice, backend->in),
                      backend->device, "copying the images", err);
}

static enum status copy_in(struct cuda_program *program, struct cuda_slot *slot,
                           const struct run_request *request, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const struct graph *graph = program->graph;
    const int valid_rows = request->valid_rows ? request->valid_rows : program->rows;
    const struct pixels *pixels = &program->pixels;
    for (int i = 0; pixels->row_count && i < program->rows; i++)
        slot->marks[i] = request->are_pixels && i < valid_rows ? request->are_pixels[i] : 0;
    for (size_t i = 0; i < graph->input_count; i++) {
        size_t bytes = value_bytes(graph->inputs[i]);
        const struct shape *shape = &graph->inputs[i]->shape;
        if (bytes == 0)
            continue;
        if (pixels->row_count && i == backend->options.pixels_input) {
            TRY(copy_image_rows(program, slot, request->inputs[i], valid_rows, err));
            continue;
        }
        if (shape->rank > 0 && shape->dims[0] == program->rows)
            bytes = bytes / (size_t)program->rows * (size_t)valid_rows;
        TRY(cuda_check(cudaMemcpyAsync(slot->staging + program->input_offsets[i],
                                       request->inputs[i], bytes, cudaMemcpyHostToDevice,
                                       backend->in),
                       backend->device, "copying the inputs", err));
    }
    return cuda_check(cudaEventRecord(slot->arrived, backend->in), backend->device,
                      "copying the inputs", err);
}

/* Fills memory with NaN (0xff in all bytes), which shows elements that no kernel writes. */
static enum status poison(struct cuda_backend *backend, const struct cuda_slot *slot,
                          struct error *err)
{
    const size_t values = (size_t)(backend->slots[0].staging - backend->arena);
    memset(slot->host, 0xff, backend->results_bytes);
    TRY(cuda_check(cudaMemsetAsync(backend->arena, 0xff, values, backend->stream), backend->device,
                   "poisoning the activations", err));
    return cuda_check(cudaMemsetAsync(slot->results, 0xff, backend->results_bytes, backend->stream),
                      backend->device, "poisoning the results", err);
}

static enum status launch(struct cuda_program *program, const struct cuda_slot *slot,
                          struct error *err)
{
    struct cuda_backend *backend = program->backend;
    cudaGraphExec_t captured = program->captured[slot - backend->slots];
    if (!captured)
        return enqueue(&(struct enqueued){.program = program, .slot = slot}, err);
    return cuda_check(cudaGraphLaunch(captured, backend->stream), backend->device,
                      "launching a batch", err);
}

static enum status compute(struct cuda_program *program, const struct cuda_slot *slot,
                           struct error *err)
{
    struct cuda_backend *backend = program->backend;
    TRY(cuda_check(cudaStreamWaitEvent(backend->stream, slot->arrived, 0), backend->device,
                   "waiting for the inputs", err));
    TRY(launch(program, slot, err));
    return cuda_check(cudaEventRecord(slot->computed, backend->stream), backend->device,
                      "the forward pass", err);
}

static enum status copy_out(struct cuda_program *program, const struct cuda_slot *slot,
                            const struct run_request *request, struct error *err)
{
    struct cuda_backend *backend = program->backend;
    const struct graph *graph = program->graph;
    TRY(cuda_check(cudaStreamWaitEvent(backend->out, slot->computed, 0), backend->device,
                   "waiting for the outputs", err));
    for (size_t i = 0; i < graph->output_count; i++) {
        size_t bytes = value_bytes(graph->outputs[i]);
        if (!bytes || program->constants[i] || (request->wanted && !request->wanted[i]))
            continue;
        if (request->rows) /* only the rows of the request's images */
            bytes = bytes / (size_t)program->rows * (size_t)request->rows;
        const size_t at = program->result_offsets[i];
        TRY(cuda_check(cudaMemcpyAsync(slot->host + at, slot->results + at, bytes,
                                       cudaMemcpyDeviceToHost, backend->out),
                       backend->device, "copying the outputs", err));
    }
    return cuda_check(cudaEventRecord(slot->fetched, backend->out), backend->device,
                      "copying the outputs", err);
}

enum status runs_submit(struct program *base, const struct run_request *request, struct error *err)
{
    struct cuda_program *program = (struct cuda_program *)base;
    struct cuda_backend *backend = program->backend;
    assert(backend->submitted - backend->collected < RUNS);
    struct cuda_slot *slot = &backend->slots[backend->submitted % RUNS];
    TRY(use_device(backend, err));
    slot->program = program;
    slot->host = backend->pinned + backend->submitted % RESULTS * backend->results_bytes;
    enum status status = backend->options.poison ? poison(backend, slot, err) : STATUS_OK;
    IF_OK(status, copy_in(program, slot, request, err));
    IF_OK(status, compute(program, slot, err));
    IF_OK(status, copy_out(program, slot, request, err));
    if (status != STATUS_OK) {
        runs_settle(backend); /* waits until the device no longer uses the caller's memory */
        slot->program = NULL;
        return status;
    }
    backend->submitted++;
    (void)device_note_batches(backend->device, 1, 0);
    return STATUS_OK;
}

/* ---- collect ---- */

/* Spins until the event, but at most for SPIN, because waking up takes longer than a short pass. */
static void spin_until(cudaEvent_t event)
{
    const int64_t end = clock_now() + SPIN;
    while (cudaEventQuery(event) == cudaErrorNotReady && clock_now() < end)
        __builtin_ia32_pause();
    (void)cudaGetLastError(); /* clears cudaErrorNotReady; other errors are reported again */
}

enum status runs_collect(struct backend *base, const void **outputs, struct error *err)
{
    struct cuda_backend *backend = (struct cuda_backend *)base;
    assert(backend->submitted > backend->collected);
    struct cuda_slot *slot = &backend->slots[backend->collected % RUNS];
    const struct cuda_program *program = slot->program;
    enum status status = use_device(backend, err);
    if (status == STATUS_OK) {
        spin_until(slot->fetched);
        status = cuda_check(cudaEventSynchronize(slot->fetched), backend->device,
                            "the forward pass", err);
    }
    if (status == STATUS_OK)
        device_note_success(backend->device);
    else
        runs_settle(backend);
    backend->collected++;
    (void)device_note_batches(backend->device, 0, 1);
    slot->program = NULL;
    TRY(status);
    for (size_t i = 0; i < program->graph->output_count; i++)
        outputs[i] = program->constants[i] ? program->constants[i]->data
                                           : slot->host + program->result_offsets[i];
    return STATUS_OK;
}

enum status runs_time(struct program *base, const void *const *inputs, int runs, double *ret_ms,
                      struct error *err)
{
    struct cuda_program *program = (struct cuda_program *)base;
    struct cuda_backend *backend = program->backend;
    const size_t i = backend->submitted % RUNS;
    const struct run_request request = {.inputs = inputs};
    TRY(use_device(backend, err));
    TRY(copy_in(program, &backend->slots[i], &request, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->in), backend->device, "measuring", err));
    /* Only the second turn counts. During the first an idle device raises its clock rate. */
    int64_t start = 0;
    for (int turn = 0; turn < 2; turn++) {
        start = clock_now();
        for (int run = 0; run < runs; run++)
            TRY(launch(program, &backend->slots[i], err));
        TRY(cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "measuring", err));
    }
    *ret_ms = clock_ms(clock_now() - start);
    return STATUS_OK;
}

/* ---- profile ---- */

/* Runs the program. If it can be recorded, runs it twice as one graph, because a single launch may
 * take longer than its kernel; the events then have the times of the second run. */
static enum status run_profiled(struct enqueued *p, struct error *err)
{
    struct cuda_backend *backend = p->program->backend;
    cudaGraphExec_t recorded = NULL;
    enum status status;
    if (p->program->has_host_steps || !runs_records()) {
        status = enqueue(p, err);
    } else {
        p->flags = cudaEventRecordExternal;
        status = runs_record(backend, enqueue, p, &recorded, err);
        for (int i = 0; i < 2 && status == STATUS_OK; i++)
            status = cuda_check(cudaGraphLaunch(recorded, backend->stream), backend->device,
                                "profiling", err);
    }
    IF_OK(status,
          cuda_check(cudaStreamSynchronize(backend->stream), backend->device, "profiling", err));
    if (recorded)
        cuda_ignore(cudaGraphExecDestroy(recorded));
    return status;
}

static enum status read_profile(const struct enqueued *p, struct session_step *ret, size_t max,
                                size_t *ret_count, struct error *err)
{
    const struct cuda_program *program = p->program;
    size_t count = 0;
    for (; count < program->step_count && count < max; count++) {
        const struct cuda_step *step = program->steps[count];
        float ms;
        TRY(cuda_check(cudaEventElapsedTime(&ms, p->events[count], p->events[count + 1]),
                       program->backend->device, "profiling", err));
        ret[count] = (struct session_step){.name = step->name,
                                           .kernel = step->kernel,
                                           .milliseconds = (double)ms,
                                           .gflop = step->flops * 1e-9,
                                           .bytes = step->bytes};
    }
    *ret_count = count;
    return STATUS_OK;
}

enum status runs_profile(struct program *base, const void *const *inputs, struct session_step *ret,
                         size_t max, size_t *ret_count, struct error *err)
{
    struct cuda_program *program = (struct cuda_program *)base;
    struct cuda_backend *backend = program->backend;
    struct cuda_slot *slot = &backend->slots[backend->submitted % RUNS];
    struct enqueued p = {.program = program, .slot = slot};
    const struct run_request request = {.inputs = inputs};
    TRY(use_device(backend, err));
    TRY(copy_in(program, slot, &request, err));
    TRY(cuda_check(cudaStreamSynchronize(backend->in), backend->device, "profiling", err));
    p.events = calloc(program->step_count + 1, sizeof(cudaEvent_t));
    TRY(check_memory(p.events, "while profiling", err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i <= program->step_count && status == STATUS_OK; i++)
        status =
            cuda_check(cudaEventCreateWithFlags(&p.events[i], 0), backend->device, "an event", err);
    IF_OK(status, run_profiled(&p, err));
    IF_OK(status, read_profile(&p, ret, max, ret_count, err));
    for (size_t i = 0; i <= program->step_count; i++)
        if (p.events[i])
            cuda_ignore(cudaEventDestroy(p.events[i]));
    free(p.events);
    return status;
}
