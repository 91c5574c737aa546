/* Computes a case with the reference interpreter, or with a compiled session. */
#include "tests/conformance/runner.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"

#define MEMORY_LIMIT ((size_t)8 << 30)

static enum status copy_tensor(const struct tensor *from, struct tensor **ret, struct error *err)
{
    TRY(tensor_create(NULL, from->dtype, &from->shape, ret, err));
    if (from->bytes)
        memcpy((*ret)->data, from->data, from->bytes);
    return STATUS_OK;
}

enum status run_interpreted(struct graph *graph, struct tensor *const *inputs,
                            struct tensor **outputs, struct error *err)
{
    struct memory_budget budget = {.limit = MEMORY_LIMIT};
    struct tensor **results = alloc_array(graph->output_count, sizeof *results);
    if (!results)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    enum status status = interpret(graph, inputs, results, &budget, NULL, err);
    /* The budget ends here: hand out copies. */
    for (size_t i = 0; i < graph->output_count && results[i]; i++) {
        if (status == STATUS_OK)
            status = copy_tensor(results[i], &outputs[i], err);
        tensor_unref(results[i]);
    }
    free(results);
    return status;
}

/* `inputs`: those that freeze_inputs() has not made constants. */
static enum status run_session(struct session *session, const struct graph *graph,
                               struct tensor *const *inputs, struct tensor **outputs,
                               struct error *err)
{
    const size_t count = session_info(session)->input_count;
    const void **data = alloc_array(count ? count : 1, sizeof *data);
    const struct tensor **results = alloc_array(graph->output_count, sizeof *results);
    enum status status =
        data && results ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; status == STATUS_OK && i < count; i++)
        data[i] = inputs[i]->data;
    if (status == STATUS_OK)
        status = session_run(session, 1, data, results, err);
    for (size_t i = 0; status == STATUS_OK && i < graph->output_count; i++)
        status = copy_tensor(results[i], &outputs[i], err);
    free(data);
    free(results);
    return status;
}

static enum status check_inputs(const struct graph *graph, struct tensor *const *inputs,
                                struct error *err)
{
    for (size_t i = 0; i < graph->input_count; i++)
        if (graph->inputs[i]->dtype != inputs[i]->dtype)
            return error_set(err, STATUS_INVALID, "input '%s' is %s, the file declares %s",
                             graph->inputs[i]->name, dtype_name(inputs[i]->dtype),
                             dtype_name(graph->inputs[i]->dtype));
    return STATUS_OK;
}

/* A session warms up with made-up inputs, which are invalid as shapes, axes or indices. So all
 * inputs become constants, as in models that people serve, except the largest float input and the
 * masks. Fills `left` with these. */
static void freeze_inputs(struct graph *graph, struct tensor *const *inputs, struct tensor **left)
{
    size_t kept = graph->input_count, count = 0;
    for (size_t i = 0; i < graph->input_count; i++)
        if (dtype_is_float(inputs[i]->dtype) &&
            (kept == graph->input_count || inputs[i]->bytes > inputs[kept]->bytes))
            kept = i;
    for (size_t i = 0; i < graph->input_count; i++) {
        struct value *value = graph->inputs[i];
        const bool is_mask = inputs[i]->dtype == DTYPE_BOOL && inputs[i]->bytes > 1;
        value->shape = inputs[i]->shape;
        if (i == kept || is_mask) {
            graph->inputs[count] = value;
            left[count++] = inputs[i];
        } else {
            value->known = tensor_ref(inputs[i]);
        }
    }
    graph->input_count = count;
}

static struct device_id device = {DEVICE_CPU, 0};

void run_compiled_on_cuda(void)
{
    device.kind = DEVICE_CUDA;
}

enum status run_compiled(struct graph *graph, struct tensor *const *inputs, struct tensor **outputs,
                         struct error *err)
{
    struct graph *copy;
    struct session *session = NULL;
    const struct session_options options = {
        .device = device, .max_batch = 1, .image_input = SIZE_MAX};
    TRY(check_inputs(graph, inputs, err));
    TRY(graph_clone(graph, &copy, err));
    struct tensor **left = alloc_array(graph->input_count + 1, sizeof *left);
    enum status status = check_memory(left, "for a case", err);
    if (status == STATUS_OK)
        freeze_inputs(copy, inputs, left);
    if (status == STATUS_OK)
        status = session_create(copy, &options, &session, err);
    if (status == STATUS_OK)
        status = run_session(session, graph, left, outputs, err);
    session_free(session);
    graph_free(copy);
    free(left);
    return status;
}
