/* Running a session: on its lane's thread, without allocating. */
#include "engine/cpu/interpret.h"
#include "engine/session_internal.h"

void compiled_drop_tail_outputs(struct session *session, struct compiled *c)
{
    for (size_t i = 0; c->tail && c->tail_outputs && i < c->tail->output_count; i++) {
        tensor_unref(c->tail_outputs[i]);
        c->tail_outputs[i] = NULL;
    }
    if (session->last == c)
        session->last = NULL;
}

static enum status run_tail(struct session *session, struct compiled *c, struct error *err)
{
    size_t first = c->graph->output_count - c->crossing;
    for (size_t i = 0; i < c->crossing; i++)
        c->tail_inputs[i]->data = (void *)(uintptr_t)c->static_data[first + i];
    struct node_runner runner = {session->ops->run_node, session->tail_backend};
    struct interpreter_limits limits = {.runner = session->tail_backend ? &runner : NULL};
    TRY(interpret(c->tail, c->tail_inputs, c->tail_outputs, &session->tail_budget, &limits, err));
    session->last = c;
    for (size_t i = 0; i < session->output_count; i++)
        if (c->output_of[i] < 0)
            c->tensors[i] = c->tail_outputs[-1 - c->output_of[i]];
    return STATUS_OK;
}

enum status compiled_run(struct session *session, struct compiled *c, int batch,
                         const void *const *inputs, const struct tensor **outputs,
                         struct error *err)
{
    if (session->last)
        compiled_drop_tail_outputs(session, session->last);
    TRY(session->ops->run(c->program, inputs, c->static_data, err));
    if (c->tail)
        TRY(run_tail(session, c, err));
    for (size_t i = 0; i < session->output_count; i++) {
        struct tensor *tensor = c->tensors[i];
        if (c->output_of[i] >= 0) {
            tensor->data = (void *)(uintptr_t)c->static_data[c->output_of[i]];
            /* A batch of one is whole: its first dimension may be anything, also 0. */
            if (session->info.batched && c->size > 1 && tensor->shape.rank > 0) {
                size_t each = tensor->bytes / (size_t)tensor->shape.dims[0];
                tensor->shape.dims[0] = batch;
                tensor->bytes = each * (size_t)batch;
            }
        }
        outputs[i] = tensor;
    }
    return STATUS_OK;
}

struct compiled *compiled_for(struct session *session, int n)
{
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].size >= n)
            return &session->compiled[i];
    return NULL;
}

enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err)
{
    if (batch < 1 || batch > session->largest)
        return error_set(err, STATUS_INTERNAL, "a batch of %d; the largest is %d", batch,
                         session->largest);
    int size = batch;
    if (session->piece) {
        size = session->padded[batch];
        if (session->piece[size] != size)
            return session_run_pieces(session, batch, inputs, outputs, err);
    }
    return compiled_run(session, compiled_for(session, size), batch, inputs, outputs, err);
}

int session_batch_for(const struct session *session, int n)
{
    if (n > session->largest)
        return 0;
    if (session->padded && n > 0)
        return session->padded[n];
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].size >= n)
            return session->compiled[i].size;
    return 0;
}
