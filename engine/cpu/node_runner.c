/* Runs products whose shapes are known only at run time (after NonMaxSuppression, in the body of a
 * Loop) with the kernels of compiled programs. Each node and set of shapes gets its own program,
 * which is kept for later runs with the same shapes.
 *
 *     node, shapes ──▶ kept? ──▶ program: [Transpose] product [Transpose] ──▶ out->data
 *                       └─ no ─▶ graph of one node ─ optimize_for_backend ─▶ cpu_compile
 *
 * The number of programs is bounded; the least recently used one is freed. Packed weights stay:
 * they do not depend on the shapes. All programs share one arena for a node's operands. */
#include "engine/op/interpret.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/ops.h"

enum { MOST_PROGRAMS = 128, MOST_OPERANDS = 3 };

/* A larger arena is returned to the system after each node, as malloc() does with blocks of this
 * size: memory for one client's shapes is not kept for the next client. */
#define KEPT_ARENA ((size_t)32 << 20)

/* With fewer operations the reference kernel is as fast as a look-up and two Transposes. */
#define WORTH_FLOPS 1e6

struct node_program {
    struct node_program *next; /* the next less recently used entry */
    const struct node *node;
    struct shape in[MOST_OPERANDS], out;
    struct tensor *constants[MOST_OPERANDS]; /* references to the node's constants */
    size_t inputs[MOST_OPERANDS];            /* [program input i]: index of the node's input */
    struct graph *graph;                     /* has a copy of the node */
    struct program *program;                 /* NULL: the reference kernel runs the node */
    bool in_place; /* the program can write directly into the caller's tensor */
};

static bool is_float(const struct tensor *tensor)
{
    return tensor->dtype == DTYPE_F32;
}

static double flops_of(const struct kernel_args *call)
{
    const struct shape *w = &call->in[1]->shape, *y = &call->out[0]->shape;
    const bool convolves = call->node->op == OP_CONV, spreads = call->node->op == OP_CONV_TRANSPOSE;
    const double each =
        convolves || spreads ? (double)shape_count(w) / (double)w->dims[0]
        : y->rank            ? (double)y->dims[y->rank - 1]
                  : 1; /* multiplications per number of x, or for a Conv per number of y */
    return 2 * (double)shape_count(convolves ? y : &call->in[0]->shape) * each;
}

/* True for a large product for which the backend may have a fast kernel. */
static bool is_candidate(const struct kernel_args *call)
{
    const struct node *node = call->node;
    bool convolution = node->op == OP_CONV || node->op == OP_CONV_TRANSPOSE;
    if (!op_has(node->op, OP_PRODUCT) || node->channels_last || node->epilogue.residual ||
        node->input_count > MOST_OPERANDS || node->output_count != 1)
        return false;
    for (size_t i = 0; i < node->input_count; i++) {
        if (call->in[i] && (!is_float(call->in[i]) || !shape_count(&call->in[i]->shape)))
            return false;
        if (i > 0 && call->in[i] && !call->constant[i] && (convolution || i == 2))
            return false;
    }
    return call->in[0] && call->in[1] && !call->constant[0] && is_float(call->out[0]) &&
           shape_count(&call->out[0]->shape) && flops_of(call) >= WORTH_FLOPS;
}

static bool is_for(const struct node_program *kept, const struct kernel_args *call)
{
    if (kept->node != call->node || !shape_equal(&kept->out, &call->out[0]->shape))
        return false;
    for (size_t i = 0; i < call->node->input_count; i++)
        if (call->in[i] &&
            (call->constant[i]
                 ? kept->constants[i] != call->in[i]
                 : kept->constants[i] || !shape_equal(&kept->in[i], &call->in[i]->shape)))
            return false;
    return true;
}

static void node_program_free(struct node_program *kept)
{
    program_free(kept->program);
    graph_free(kept->graph);
    for (size_t i = 0; i < MOST_OPERANDS; i++)
        tensor_unref(kept->constants[i]);
    free(kept);
}

void node_programs_free(struct backend *backend)
{
    for (struct node_program *kept = backend->node_programs, *next; kept; kept = next) {
        next = kept->next;
        node_program_free(kept);
    }
    backend->node_programs = NULL;
}

/* Fills `graph` with a copy of the node. Constants are shared; other operands are the graph's
 * inputs. The copy borrows the attributes: compile_node() removes them. */
static enum status graph_of(const struct kernel_args *call, struct node_program *kept,
                            struct graph *graph, struct error *err)
{
    const struct node *node = call->node;
    graph->inputs = arena_alloc(graph->arena, MOST_OPERANDS, sizeof *graph->inputs);
    graph->outputs = arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    struct node *copy = graph_add_node(graph, node->op, node->name, node->input_count, 1);
    struct value *y = graph_add_value(graph, "y", DTYPE_F32, &call->out[0]->shape);
    TRY(check_memory(graph->inputs && graph->outputs && copy && y, "while compiling a node", err));
    copy->opset = node->opset;
    copy->attrs = node->attrs;
    copy->attr_count = node->attr_count;
    copy->epilogue = node->epilogue;
    for (size_t i = 0; i < node->input_count; i++) {
        if (!call->in[i])
            continue;
        copy->inputs[i] = call->constant[i]
                              ? graph_add_constant(graph, "", kept->constants[i])
                              : graph_add_value(graph, "", DTYPE_F32, &call->in[i]->shape);
        TRY(check_memory(copy->inputs[i], "while compiling a node", err));
        if (call->constant[i])
            continue;
        kept->inputs[graph->input_count] = i;
        graph->inputs[graph->input_count++] = copy->inputs[i];
    }
    node_set_output(copy, 0, y);
    graph->outputs[graph->output_count++] = y;
    return STATUS_OK;
}

static enum status compile_node(struct backend *backend, const struct kernel_args *call,
                                struct node_program *kept, struct error *err)
{
    const struct optimize_options optimize = {.claim = cpu_claim};
    struct graph *graph = kept->graph = graph_create(NULL);
    TRY(check_memory(graph, "while compiling a node", err));
    enum status status = graph_of(call, kept, graph, err);
    IF_OK(status, optimize_for_backend(graph, &optimize, err));
    IF_OK(status, cpu_compile(backend, graph, &kept->program, err));
    if (status == STATUS_OK) {
        const struct node *last = graph->outputs[0]->producer;
        struct kernel_caps caps;
        kept->in_place = last && !plan_shares_bytes(&kept->program->plan, last) &&
                         cpu_claim(last, &caps) && caps.in_place < 0;
    }
    /* graph_free() must not free the attributes that the copy of the node borrows. */
    for (size_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n]->attrs == call->node->attrs)
            graph->nodes[n]->attr_count = 0;
    if (status == STATUS_OK && !program_is_fast(kept->program)) {
        program_free(kept->program);
        kept->program = NULL;
    }
    return status;
}

/* True if the program's operands and the weights packed so far fit the budget. Otherwise the
 * reference kernel, which needs neither, runs the node. */
static bool fits_budget(const struct backend *backend, const struct program *program,
                        struct memory_budget *budget)
{
    size_t activations = program_activation_bytes(program), wanted;
    if (activations < backend->arena->bytes)
        activations = backend->arena->bytes;
    if (!size_add(activations, backend->weight_bytes, &wanted) ||
        memory_charge(budget, wanted, NULL) != STATUS_OK)
        return false;
    memory_uncharge(budget, wanted);
    return true;
}

/* Adds an entry at the list's front. Its program is NULL if none could be made; later calls then
 * find the entry and do not try again. */
static enum status add(struct backend *backend, const struct kernel_args *call,
                       struct node_program **ret, struct error *err)
{
    struct node_program *kept = calloc(1, sizeof *kept);
    struct error reason;
    TRY(check_memory(kept, "while compiling a node", err));
    kept->node = call->node;
    kept->out = call->out[0]->shape;
    for (size_t i = 0; i < call->node->input_count; i++) {
        if (call->in[i] && call->constant[i])
            kept->constants[i] = tensor_ref((struct tensor *)(uintptr_t)call->in[i]);
        else if (call->in[i])
            kept->in[i] = call->in[i]->shape;
    }
    if (compile_node(backend, call, kept, &reason) == STATUS_OK && kept->program &&
        (!fits_budget(backend, kept->program, call->budget) ||
         programs_place(backend, streams_free, &reason) != STATUS_OK)) {
        program_free(kept->program);
        kept->program = NULL;
    }
    kept->next = backend->node_programs;
    backend->node_programs = kept;
    *ret = kept;
    return STATUS_OK;
}

/* Finds the entry and moves it to the front; drops the last entry if there are too many. */
static struct node_program *find(struct backend *backend, const struct kernel_args *call)
{
    size_t count = 0;
    for (struct node_program **link = &backend->node_programs, *kept; (kept = *link);
         link = &kept->next) {
        if (is_for(kept, call)) {
            *link = kept->next;
            kept->next = backend->node_programs;
            backend->node_programs = kept;
            return kept;
        }
        if (++count == MOST_PROGRAMS) {
            *link = NULL;
            node_program_free(kept);
            break;
        }
    }
    return NULL;
}

enum status cpu_run_node(void *context, const struct kernel_args *call, bool *ret_taken,
                         struct error *err)
{
    struct backend *backend = context;
    *ret_taken = false;
    if (!is_candidate(call))
        return STATUS_OK;
    struct node_program *kept = find(backend, call);
    if (!kept)
        TRY(add(backend, call, &kept, err));
    struct program *program = kept->program;
    if (!program)
        return STATUS_OK;
    const void *inputs[MOST_OPERANDS], *output;
    for (size_t i = 0; i < MOST_OPERANDS; i++)
        inputs[i] = call->in[kept->inputs[i]] ? call->in[kept->inputs[i]]->data : NULL;
    const size_t arena = backend->arena->bytes;
    if (memory_charge(call->budget, arena, NULL) != STATUS_OK)
        return STATUS_OK;
    if (kept->in_place)
        program->data[program->graph->outputs[0]->index] = call->out[0]->data;
    const enum status status = program_run(program, inputs, &output, err);
    if (status == STATUS_OK && !kept->in_place)
        memcpy(call->out[0]->data, output, call->out[0]->bytes);
    memory_uncharge(call->budget, arena);
    if (arena > KEPT_ARENA)
        madvise(backend->arena->base, arena, MADV_DONTNEED);
    *ret_taken = true;
    return status;
}
