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

/* `inputs` starts at the input that is left. */
static enum status run_session(struct session *session, const struct graph *graph,
                               struct tensor *const *inputs, struct tensor **outputs,
                               struct error *err)
{
    const void **data = alloc_array(1, sizeof *data);
    const struct tensor **results = alloc_array(graph->output_count, sizeof *results);
    enum status status =
        data && results ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status == STATUS_OK && session_input_count(session))
        data[0] = inputs[0]->data;
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

/* A session warms up with made-up contents, which shapes, axes and indices do not bear: all inputs
 * but the largest of floats become constants, as they are in the models people serve. Returns the
 * position of the one that is left (0 where none is: a graph of constants). */
static size_t freeze_inputs(struct graph *graph, struct tensor *const *inputs)
{
    size_t kept = graph->input_count;
    for (size_t i = 0; i < graph->input_count; i++)
        if (dtype_is_float(inputs[i]->dtype) &&
            (kept == graph->input_count || inputs[i]->bytes > inputs[kept]->bytes))
            kept = i;
    for (size_t i = 0; i < graph->input_count; i++) {
        graph->inputs[i]->shape = inputs[i]->shape;
        if (i != kept)
            graph->inputs[i]->known = tensor_ref(inputs[i]);
    }
    if (kept == graph->input_count) {
        graph->input_count = 0;
        return 0;
    }
    graph->inputs[0] = graph->inputs[kept];
    graph->input_count = 1;
    return kept;
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
    size_t kept = freeze_inputs(copy, inputs);
    enum status status = session_create(copy, &options, &session, err);
    if (status == STATUS_OK)
        status = run_session(session, graph, inputs + kept, outputs, err);
    session_free(session);
    graph_free(copy);
    return status;
}
