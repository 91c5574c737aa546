/* Small functions of a session that the other session files share. */
#include "engine/runtime/session_internal.h"

const char *precision_name(enum precision precision)
{
    static const char *const names[] = {
        [PRECISION_FP32] = "fp32", [PRECISION_TF32] = "tf32", [PRECISION_BF16] = "bf16",
        [PRECISION_FP16] = "fp16", [PRECISION_INT8] = "int8", [PRECISION_AUTO] = "auto"};
    return names[precision];
}

const struct session_info *session_info(const struct session *session)
{
    return &session->info;
}

bool session_is_stopped(void *session)
{
    const struct session *s = session;
    return s->stop && s->stop(s->stop_context);
}

void session_set_run_ended(struct session *session, void (*ended)(void *context), void *context)
{
    session->run_ended = ended;
    session->run_ended_context = context;
}

void session_run_ended(void *session)
{
    const struct session *s = session;
    if (s->run_ended)
        s->run_ended(s->run_ended_context);
}

struct compiled_size *compiled_for(struct session *session, int n)
{
    for (size_t i = 0; n >= 1 && i < session->compiled_count; i++)
        if (session->compiled[i].size >= n)
            return &session->compiled[i];
    return NULL;
}

int session_batch_for(const struct session *session, int n)
{
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].size >= n)
            return session->compiled[i].size;
    return 0;
}

void compiled_drop_tail_outputs(struct session *session, struct compiled_size *c)
{
    for (size_t i = 0; c->tail && c->tail_outputs && i < c->tail->output_count; i++) {
        tensor_unref(c->tail_outputs[i]);
        c->tail_outputs[i] = NULL;
    }
    if (session->last == c)
        session->last = NULL;
}
