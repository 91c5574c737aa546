/* A run keeps its state separate from the graph: how many readers each value still has, for which
 * values the run has set value->known, and the inferred dtypes and shapes. Values that had contents
 * before the run (constants) keep them. Everything else is reset when the run ends, also after an
 * error, so that the next run starts from the same graph.
 *
 *     graph input ──▶ known = input        node ──▶ infer, allocate, kernel ──▶ known = outputs
 *                                            └──▶ last reader of an input: known = NULL */
#include "engine/op/interpret.h"

#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/op/ops.h"

#define DEFAULT_STEPS ((uint64_t)100 * 1000 * 1000)
#define DEFAULT_WORK  3e11 /* a few minutes with the reference kernels */
#define MOST_DEPTH    16   /* nesting of bodies */

struct interpreter {
    struct memory_budget *budget;
    struct interpreter_limits limits;
    uint64_t steps;
    double work;
    int depth;
    const struct run *innermost; /* the run of the innermost running body, or of the graph */
};

/* Shape and dtype that a value had before the run. Inference overwrites them. */
struct declared {
    struct shape shape;
    enum dtype dtype;
};

/* Arrays for the operands of one node. */
struct operands {
    const struct tensor **in;
    struct tensor **out;
    bool *constant; /* NULL: no operand is known to be constant */
};

struct run {
    struct interpreter *interpreter;
    struct graph *graph;
    struct operands operands;
    struct declared *declared; /* [value_count] */
    uint32_t *readers; /* [value_count]: number of reads of the value that are still to come */
    bool *ours;        /* [value_count]: this run has set the value's `known` */
    bool *constant;    /* [value_count]: the value is the same in every run */
    void *memory;      /* the allocation of these arrays and of `operands` */
};

/* ---- one node ---- */

static enum status take_step(struct interpreter *interpreter, struct error *err)
{
    const struct interpreter_limits *limits = &interpreter->limits;
    const uint64_t most = limits->max_steps ? limits->max_steps : DEFAULT_STEPS;
    if (limits->stop && limits->stop(limits->stop_context))
        return error_set(err, STATUS_CANCELLED, "the run was cancelled");
    if (interpreter->steps++ >= most)
        return error_set(err, STATUS_MODEL,
                         "the model was stopped after %llu steps; it may have an endless loop",
                         (unsigned long long)most);
    return STATUS_OK;
}

/* Limits the work of loops. A limit on the number of nodes is not enough, because one node may be
 * large. */
static enum status take_work(struct interpreter *interpreter, const struct node *node,
                             struct error *err)
{
    const double limit = interpreter->limits.max_work, most = limit > 0 ? limit : DEFAULT_WORK;
    if (interpreter->depth == 0)
        return STATUS_OK;
    interpreter->work += node_work(node);
    if (interpreter->work > most)
        return error_set(err, STATUS_MODEL,
                         "the model was stopped: its loops compute more than %.3g elements in a "
                         "pass; it may have an endless loop",
                         most);
    return STATUS_OK;
}

static enum status collect_inputs(const struct node *node, const struct tensor **in,
                                  struct error *err)
{
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        in[i] = value ? value->known : NULL;
        if (value && !value->known)
            return error_set(err, STATUS_MODEL,
                             "input %zu ('%s') has no contents when the node runs; nothing before "
                             "it in the graph makes it",
                             i, value->name);
    }
    return STATUS_OK;
}

/* Creates the outputs whose shape is known. A view operator's output shares input 0's memory. */
static enum status make_outputs(struct interpreter *interpreter, const struct node *node,
                                const struct operands *operands, struct error *err)
{
    const struct op_info *info = op_find(node->op, node->opset);
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *value = node->outputs[i];
        if (!value || !shape_is_known(&value->shape))
            continue;
        struct value *source = node_input(node, 0);
        if (i == 0 && info->traits & OP_VIEW && source && source->known->dtype == value->dtype)
            TRY(tensor_view(source->known, &value->shape, &operands->out[i], err));
        else
            TRY(tensor_create(interpreter->budget, value->dtype, &value->shape, &operands->out[i],
                              err));
    }
    return STATUS_OK;
}

/* Offers a node to the runner, unless an output's shape depends on data (NULL in args->out). */
static enum status offer_to_runner(const struct node_runner *runner, const struct kernel_args *args,
                                   bool *ret_taken, struct error *err)
{
    if (!runner || !args->constant)
        return STATUS_OK;
    for (size_t i = 0; i < args->node->output_count; i++)
        if (args->node->outputs[i] && !args->out[i])
            return STATUS_OK;
    return runner->run(runner->context, args, ret_taken, err);
}

static enum status run_body(struct interpreter *interpreter, struct graph *body,
                            struct tensor *const *inputs, struct tensor **outputs,
                            struct error *err);

static enum status call_kernel(struct interpreter *interpreter, const struct node *node,
                               const struct operands *operands, struct error *err)
{
    kernel_fn kernel = kernel_find(node->op);
    if (!kernel || node->channels_last)
        return error_set(err, STATUS_UNSUPPORTED, "no reference kernel runs this operator%s",
                         node->channels_last ? " in channels-last layout" : "");
    TRY(make_outputs(interpreter, node, operands, err));
    const struct kernel_args args = {.node = node,
                                     .in = operands->in,
                                     .out = operands->out,
                                     .budget = interpreter->budget,
                                     .run_body = run_body,
                                     .interpreter = interpreter,
                                     .constant = operands->constant,
                                     .stop = interpreter->limits.stop,
                                     .stop_context = interpreter->limits.stop_context};
    bool taken = false;
    TRY(offer_to_runner(interpreter->limits.runner, &args, &taken, err));
    if (taken)
        return STATUS_OK;
    TRY(kernel_call(kernel, &args, err));
    for (size_t i = 0; i < node->output_count; i++)
        if (node->outputs[i] && !operands->out[i])
            return error_set(err, STATUS_INTERNAL, "output %zu was not computed", i);
    return STATUS_OK;
}

/* Runs a node on its inputs' contents. On success operands->out holds one reference to each wanted
 * output, on failure nothing. Errors name the node. */
static enum status execute(struct interpreter *interpreter, struct node *node,
                           const struct operands *operands, struct error *err)
{
    for (size_t i = 0; i < node->output_count; i++)
        operands->out[i] = NULL;
    enum status status = take_step(interpreter, err);
    IF_OK(status, collect_inputs(node, operands->in, err));
    if (status != STATUS_OK)
        return error_prefix(err, "%s", NODE_STRING(node));
    TRY(graph_infer_node(node, err));
    status = take_work(interpreter, node, err);
    IF_OK(status, call_kernel(interpreter, node, operands, err));
    if (status == STATUS_OK)
        return STATUS_OK;
    for (size_t i = 0; i < node->output_count; i++) {
        tensor_unref(operands->out[i]);
        operands->out[i] = NULL;
    }
    return error_prefix(err, "%s", NODE_STRING(node));
}

/* ---- a graph ---- */

static void widest_node(const struct graph *graph, size_t *ret_inputs, size_t *ret_outputs)
{
    *ret_inputs = *ret_outputs = 0;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        *ret_inputs = node->input_count > *ret_inputs ? node->input_count : *ret_inputs;
        *ret_outputs = node->output_count > *ret_outputs ? node->output_count : *ret_outputs;
    }
}

/* One allocation for everything; the counts are those of existing arrays, so no size overflows. */
static enum status run_start(struct run *run, struct interpreter *interpreter, struct graph *graph,
                             struct error *err)
{
    size_t values = graph->value_count, inputs, outputs;
    widest_node(graph, &inputs, &outputs);
    size_t pointers = inputs + outputs;
    void *memory = alloc_array(1, values * sizeof(struct declared) + pointers * sizeof(void *) +
                                      values * sizeof(uint32_t) + 2 * values * sizeof(bool) +
                                      inputs * sizeof(bool));
    TRY(check_memory(memory, "while starting a run", err));
    *run = (struct run){.interpreter = interpreter, .graph = graph, .memory = memory};
    run->declared = memory;
    run->operands.in = (void *)(run->declared + values);
    run->operands.out = (void *)(run->operands.in + inputs);
    run->readers = (void *)(run->operands.out + outputs);
    run->ours = (void *)(run->readers + values);
    run->constant = run->ours + values;
    run->operands.constant = run->constant + values;
    for (size_t v = 0; v < values; v++) {
        run->declared[v] = (struct declared){graph->values[v]->shape, graph->values[v]->dtype};
        run->constant[v] = graph->values[v]->known != NULL;
    }
    graph_count_readers(graph, run->readers);
    return STATUS_OK;
}

/* Sets value->known, unless the value is constant or has no readers. Takes over the reference. */
static void set_known(struct run *run, struct value *value, struct tensor *tensor)
{
    if (value->known || run->readers[value->index] == 0) {
        tensor_unref(tensor);
        return;
    }
    value->known = tensor;
    value->dtype = tensor->dtype;
    value->shape = tensor->shape;
    run->ours[value->index] = true;
}

static void drop(struct run *run, struct value *value)
{
    if (--run->readers[value->index] || !run->ours[value->index])
        return;
    tensor_unref(value->known);
    value->known = NULL;
    run->ours[value->index] = false;
}

static void run_end(struct run *run)
{
    for (size_t v = 0; v < run->graph->value_count; v++) {
        struct value *value = run->graph->values[v];
        if (run->ours[v]) {
            tensor_unref(value->known);
            value->known = NULL;
        }
        value->shape = run->declared[v].shape;
        value->dtype = run->declared[v].dtype;
    }
    free(run->memory);
}

/* True if the node need not run, because its outputs are constants. */
static bool is_folded(const struct node *node)
{
    bool folded = false;
    for (size_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] && !node->outputs[i]->known)
            return false;
        folded = folded || node->outputs[i];
    }
    return folded;
}

static enum status run_nodes(struct run *run, struct error *err)
{
    struct graph *graph = run->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        if (!is_folded(node)) {
            for (size_t i = 0; i < node->input_count; i++)
                run->operands.constant[i] =
                    node->inputs[i] && run->constant[node->inputs[i]->index];
            TRY(execute(run->interpreter, node, &run->operands, err));
            for (size_t i = 0; i < node->output_count; i++)
                if (node->outputs[i])
                    set_known(run, node->outputs[i], run->operands.out[i]);
        }
        for (size_t i = 0; i < node->input_count; i++)
            if (node->inputs[i])
                drop(run, node->inputs[i]);
        for (size_t i = 0; i < node->capture_count; i++)
            drop(run, node->captures[i]);
    }
    for (size_t i = 0; i < graph->output_count; i++)
        if (!graph->outputs[i]->known)
            return error_set(err, STATUS_MODEL, "output '%s' was never computed",
                             graph->outputs[i]->name);
    return STATUS_OK;
}

static enum status run_graph(struct interpreter *interpreter, struct graph *graph,
                             struct tensor *const *inputs, struct tensor **outputs,
                             struct error *err)
{
    struct run run;
    const struct run *enclosing = interpreter->innermost;
    /* A body without nodes counts as a step, too. */
    TRY(take_step(interpreter, err));
    TRY(run_start(&run, interpreter, graph, err));
    for (size_t i = 0; i < graph->input_count; i++)
        set_known(&run, graph->inputs[i], tensor_ref(inputs[i]));
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct value *outer = graph->values[v]->outer;
        if (!outer || !outer->known)
            continue;
        run.constant[v] =
            enclosing && enclosing->graph == graph->parent && enclosing->constant[outer->index];
        set_known(&run, graph->values[v], tensor_ref(outer->known));
    }
    interpreter->innermost = &run;
    enum status status = run_nodes(&run, err);
    interpreter->innermost = enclosing;
    for (size_t i = 0; status == STATUS_OK && i < graph->output_count; i++)
        outputs[i] = tensor_ref(graph->outputs[i]->known);
    run_end(&run);
    return status;
}

/* ---- public functions ---- */

static enum status check_inputs(const struct graph *graph, struct tensor *const *inputs,
                                bool check_rank, struct error *err)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct value *value = graph->inputs[i];
        const struct tensor *tensor = inputs[i];
        if (!tensor)
            return error_set(err, STATUS_INVALID, "input '%s' is missing", value->name);
        if (value->dtype != DTYPE_NONE && value->dtype != tensor->dtype)
            return error_set(err, STATUS_INVALID, "input '%s' is %s, expected %s", value->name,
                             dtype_name(tensor->dtype), dtype_name(value->dtype));
        if (check_rank && value->shape.rank != SHAPE_UNKNOWN &&
            value->shape.rank != tensor->shape.rank)
            return error_set(err, STATUS_INVALID, "input '%s' has shape %s, expected %s",
                             value->name, SHAPE_STRING(&tensor->shape),
                             SHAPE_STRING(&value->shape));
    }
    return STATUS_OK;
}

enum status interpret(struct graph *graph, struct tensor *const *inputs, struct tensor **outputs,
                      struct memory_budget *budget, const struct interpreter_limits *limits,
                      struct error *err)
{
    struct interpreter interpreter = {.budget = budget};
    if (limits)
        interpreter.limits = *limits;
    TRY(check_inputs(graph, inputs, true, err));
    return run_graph(&interpreter, graph, inputs, outputs, err);
}

/* Exporters often declare wrong shapes for body inputs, and a state may change its shape between
 * iterations, so only dtypes are checked. */
static enum status run_body(struct interpreter *interpreter, struct graph *body,
                            struct tensor *const *inputs, struct tensor **outputs,
                            struct error *err)
{
    if (interpreter->depth >= MOST_DEPTH)
        return error_set(err, STATUS_MODEL, "bodies of If, Loop and Scan are nested deeper than %d",
                         MOST_DEPTH);
    TRY(check_inputs(body, inputs, false, err));
    interpreter->depth++;
    enum status status = run_graph(interpreter, body, inputs, outputs, err);
    interpreter->depth--;
    return status;
}

enum status interpret_node(struct node *node, struct memory_budget *budget, struct tensor **outputs,
                           struct error *err)
{
    struct interpreter interpreter = {.budget = budget};
    struct operands operands = {
        .in = alloc_array(node->input_count, sizeof *operands.in),
        .out = alloc_array(node->output_count, sizeof *operands.out),
    };
    enum status status;
    if (operands.in && operands.out)
        status = execute(&interpreter, node, &operands, err);
    else
        status = error_no_memory(err, "while folding a constant");
    for (size_t i = 0; status == STATUS_OK && i < node->output_count; i++)
        outputs[i] = operands.out[i];
    FREE_ALL(operands.in, operands.out);
    return status;
}
