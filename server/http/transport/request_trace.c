/* Records a request as spans: read, queue, decode, preprocess, queue, forward, answer, write. */
#include "server/http/transport/request_trace.h"

#include <stdio.h>

#include "engine/base/clock.h"

/* Leaves out phases that took no time, such as the decoding of tensors. */
static void add(struct trace_record *record, const char *name, int64_t begin, int64_t end)
{
    if (end > begin)
        record->phases[record->phase_count++] = (struct trace_phase){name, begin, end};
}

void request_trace(const struct exchange *x)
{
    struct trace_exporter *exporter = x->server->options.traces;
    if (!exporter || !(x->trace.flags & TRACE_SAMPLED) || !x->route || !x->route->takes_body)
        return;
    const struct exchange_times *times = &x->times;
    const char *client = exchange_address(x);
    struct trace_record record = {.route = x->route->path,
                                  .status = x->answer.status,
                                  .code = x->answer.code,
                                  .cache = x->is_cached ? "hit" : NULL,
                                  .images = (int64_t)x->image_count,
                                  .batch = times->batch,
                                  .bytes_in = (int64_t)x->bytes_in,
                                  .bytes_out = (int64_t)x->answer.size,
                                  .begin = x->started,
                                  .end = clock_now()};
    snprintf(record.trace, sizeof record.trace, "%s", x->trace.id);
    snprintf(record.span, sizeof record.span, "%s", x->trace.span);
    snprintf(record.parent, sizeof record.parent, "%s", x->trace.parent);
    snprintf(record.method, sizeof record.method, "%s", x->method);
    snprintf(record.client, sizeof record.client, "%s", client ? client : "");
    snprintf(record.id, sizeof record.id, "%.63s", x->request_id);
    snprintf(record.model, sizeof record.model, "%s", x->model);
    if (times->batch) {
        (void)device_text(times->device, record.device);
        add(&record, "read", x->started, times->submitted);
        add(&record, "queue", times->submitted, times->decode_start);
        add(&record, "decode", times->decode_start, times->decode_end);
        add(&record, "preprocess", times->decode_end, times->prepared);
        add(&record, "queue", times->prepared, times->forward_start);
        add(&record, "forward", times->forward_start, times->forward_end);
        if (x->answered)
            add(&record, "answer", times->forward_end, x->answered);
    }
    if (x->answered)
        add(&record, "write", x->answered, record.end);
    trace_exporter_put(exporter, &record);
}
