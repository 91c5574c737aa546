/* Runs a session on the thread that owns it. Only a data-dependent tail allocates memory. */
#include <assert.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session_internal.h"

static enum status run_tail(struct session *session, struct compiled_size *c, struct error *err)
{
    struct tensor *const *inputs = c->results + c->graph->output_count - c->crossing;
    struct node_runner runner = {session->ops->run_node, session->tail_backend};
    struct interpreter_limits limits = {.stop = session->stop,
                                        .stop_context = session->stop_context,
                                        .runner = session->tail_backend ? &runner : NULL};
    TRY(interpret(c->tail, inputs, c->tail_outputs, &session->tail_budget, &limits, err));
    session->last = c;
    return STATUS_OK;
}

/* Sets outputs[] from c->static_data, the results of the static part, and from the tail. */
static enum status wrap(struct session *session, struct compiled_size *c, int batch,
                        const struct tensor **outputs, struct error *err)
{
    for (size_t i = 0; i < c->graph->output_count; i++)
        c->results[i]->data = (void *)(uintptr_t)c->static_data[i];
    if (c->tail)
        TRY(run_tail(session, c, err));
    for (size_t i = 0; i < session->info.output_count; i++) {
        const int at = c->output_of[i];
        struct tensor *tensor = at >= 0 ? c->results[at] : c->tail_outputs[-1 - at];
        /* At size 1 no row is cut off, and the first dimension may be anything, even 0. */
        if (at >= 0 && session->info.batched && c->size > 1 && tensor->shape.rank > 0) {
            size_t each = tensor->bytes / (size_t)tensor->shape.dims[0];
            tensor->shape.dims[0] = batch;
            tensor->bytes = each * (size_t)batch;
        }
        outputs[i] = tensor;
    }
    return STATUS_OK;
}

/* True if a caller may pass 8-bit pixels for the image input: the caller has described their
 * format, the backend converts them, and the input is float32 with as many channels as the pixels.
 */
static bool can_take_pixels(const struct session *session)
{
    const struct session_options *options = &session->options;
    const struct graph *graph = session->compiled[0].graph;
    if (!options->pixels || !session->ops->takes_pixels ||
        options->image_input >= graph->input_count)
        return false;
    const struct value *image = graph->inputs[options->image_input];
    return image->dtype == DTYPE_F32 && image->shape.rank == 4 &&
           image->shape.dims[3] == options->pixels->channels;
}

enum status session_prepare_runs(struct session *session, struct error *err)
{
    const int most = session->compiled[session->compiled_count - 1].size;
    size_t outputs = 0;
    bool overlaps = session->ops->depth > 1;
    for (size_t i = 0; i < session->compiled_count; i++) {
        const struct compiled_size *c = &session->compiled[i];
        outputs = c->graph->output_count > outputs ? c->graph->output_count : outputs;
        overlaps = overlaps && !c->tail;
    }
    session->info.depth = overlaps ? session->ops->depth : 1;
    session->info.takes_pixels = can_take_pixels(session);
    session->wanted = alloc_array(outputs, sizeof *session->wanted);
    if (session->info.takes_pixels)
        session->all_pixels = alloc_array((size_t)most, sizeof *session->all_pixels);
    TRY(check_memory(session->wanted && (!session->info.takes_pixels || session->all_pixels),
                     "while creating a session", err));
    if (session->all_pixels)
        memset(session->all_pixels, 1, (size_t)most);
    assert(session->info.depth <= SESSION_MOST_DEPTH);
    return STATUS_OK;
}

static int under_way(const struct session *session)
{
    return (int)(session->submitted - session->collected);
}

/* Makes the backend's request. A tail reads whole batches, so it needs all rows of all outputs. */
static struct run_request request_of(struct session *session, const struct compiled_size *c,
                                     const struct session_request *run)
{
    const bool has_rows = session->info.batched && c->size > 1 && !c->tail;
    const bool in_streams = session->info.streams && (run->in_streams || under_way(session) > 0);
    struct run_request request = {.inputs = run->inputs,
                                  .rows = has_rows || in_streams ? run->batch : 0,
                                  .in_streams = in_streams,
                                  .valid_rows = c->size > 1 ? run->valid_rows : 0,
                                  .are_pixels = run->are_pixels};
    if (!run->wanted || c->tail)
        return request;
    for (size_t i = 0; i < session->info.output_count; i++)
        session->wanted[c->output_of[i]] = run->wanted[i];
    request.wanted = session->wanted;
    return request;
}

bool session_may_submit(const struct session *session)
{
    return under_way(session) == 0 ||
           (under_way(session) < session->info.depth &&
            (!session->ops->may_submit || session->ops->may_submit(session->backend)));
}

bool session_run_has_ended(const struct session *session)
{
    return session->ops->run_has_ended(session->backend);
}

enum status session_submit(struct session *session, const struct session_request *run,
                           struct error *err)
{
    struct compiled_size *c = compiled_for(session, run->batch);
    assert(under_way(session) < session->info.depth);
    if (!c)
        return error_set(err, STATUS_INTERNAL, "a batch of %d; the largest is %d", run->batch,
                         session->compiled[session->compiled_count - 1].size);
    const struct run_request request = request_of(session, c, run);
    TRY(session->ops->submit(c->program, &request, err));
    session->runs[session->submitted++ % SESSION_MOST_DEPTH] =
        (struct submitted_run){c, run->batch};
    return STATUS_OK;
}

void session_drop_outputs(struct session *session)
{
    if (session->last)
        compiled_drop_tail_outputs(session, session->last);
}

enum status session_collect(struct session *session, const struct tensor **outputs,
                            struct error *err)
{
    assert(under_way(session) > 0);
    const struct submitted_run *run = &session->runs[session->collected++ % SESSION_MOST_DEPTH];
    session_drop_outputs(session);
    TRY(session->ops->collect(session->backend, run->c->static_data, err));
    return wrap(session, run->c, run->batch, outputs, err);
}

enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err)
{
    const struct session_request run = {
        .batch = batch, .inputs = inputs, .valid_rows = session_batch_for(session, batch)};
    TRY(session_submit(session, &run, err));
    return session_collect(session, outputs, err);
}
