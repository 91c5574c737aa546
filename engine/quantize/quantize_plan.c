/* Decides in several passes over the nodes which tensors are stored in 8 bits. quantize_plan_make()
 * has the order of the passes. */
#include "engine/quantize/quantize_plan.h"

#include "engine/op/ops.h"

/* ---- kinds ---- */

static bool is_row(const struct value *value, int64_t count)
{
    return !value || (is_f32_constant(value) && value->known->shape.rank == 1 &&
                      value->known->shape.dims[0] == count);
}

static bool is_quantizable_layer(const struct node *node)
{
    const struct value *x = node_input(node, 0), *weights = node_input(node, 1);
    if (!x || x->known || !is_f32_constant(weights))
        return false;
    const struct shape *shape = &weights->known->shape;
    switch (node->op) {
    case OP_CONV:
        return shape->rank >= 3 && is_row(node_input(node, 2), shape->dims[0]);
    case OP_GEMM:
        return shape->rank == 2 && !node_int(node, "transA", 0) &&
               node_float(node, "alpha", 1) == 1 && node_float(node, "beta", 1) == 1 &&
               is_row(node_input(node, 2), shape->dims[node_int(node, "transB", 0) ? 0 : 1]);
    case OP_MATMUL:
        return shape->rank == 2;
    default:
        return false;
    }
}

/* True if the node reads one activation, perhaps several times, and otherwise only constants of one
 * number. */
static bool has_one_activation(const struct node *node)
{
    const struct value *activation = NULL;
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *input = node->inputs[i];
        if (!input || (input->known && shape_count(&input->known->shape) == 1))
            continue;
        if (input->known || (activation && activation != input))
            return false;
        activation = input;
    }
    return activation != NULL;
}

/* True if each result depends on only one number of one activation. */
static bool is_unary(const struct node *node)
{
    return op_has(node->op, OP_UNARY | OP_BROADCAST) && !op_has(node->op, OP_PREDICATE) &&
           node->op != OP_CAST && node->op != OP_WHERE && has_one_activation(node);
}

static bool is_spatial_mean(const struct node *node)
{
    int64_t axes[2];
    size_t count;
    return node->op == OP_REDUCE_MEAN && node_int(node, "keepdims", 1) &&
           edit_integers(node, 1, axes, 2, &count) && count == 2 &&
           (axes[0] + axes[1] == 5 || axes[0] + axes[1] == -3);
}

enum quantize_kind quantize_kind_of(const struct node *node)
{
    float low, high;
    if (!node->output_count || !node->outputs[0] || !node->input_count || !node->inputs[0])
        return QUANTIZE_OTHER;
    if (is_quantizable_layer(node))
        return QUANTIZE_LAYER;
    if (node->op == OP_RELU || (node->op == OP_CLIP && edit_clip_limits(node, &low, &high)))
        return QUANTIZE_CLAMP;
    if (node->inputs[0]->known)
        return QUANTIZE_OTHER;
    if (is_unary(node))
        return QUANTIZE_UNARY;
    if ((node->op == OP_ADD || node->op == OP_MUL) && !node->inputs[1]->known)
        return QUANTIZE_JOIN;
    if (node->op == OP_CONCAT)
        return QUANTIZE_CONCAT;
    if (optimize_keeps_numbers(node))
        return QUANTIZE_MOVE;
    if (node->op == OP_AVERAGE_POOL || node->op == OP_GLOBAL_AVERAGE_POOL || is_spatial_mean(node))
        return QUANTIZE_POOL;
    return QUANTIZE_OTHER;
}

/* ---- tensors and their producers ---- */

static enum quantize_kind kind_of_producer(const struct quantize_plan *plan,
                                           const struct value *value)
{
    return value->producer ? plan->kinds[edit_position(plan->edit.graph, value->producer)]
                           : QUANTIZE_OTHER;
}

const struct value *quantize_before_clamp(const struct quantize_plan *plan,
                                          const struct value *value)
{
    while (kind_of_producer(plan, value) == QUANTIZE_CLAMP &&
           edit_single_reader(&plan->edit, value->producer->inputs[0]))
        value = value->producer->inputs[0];
    return value;
}

/* Returns the tensor at the beginning of the chain of elementwise operators that computes `value`.
 * A stored tensor begins a chain. */
static const struct value *root_of(const struct quantize_plan *plan, const struct value *value)
{
    enum { MOST = 64 };
    for (int i = 0; i < MOST && !plan->is_stored[value->index]; i++) {
        const enum quantize_kind kind = kind_of_producer(plan, value);
        const struct value *next = NULL;
        if (kind != QUANTIZE_UNARY && kind != QUANTIZE_CLAMP)
            break;
        for (size_t k = 0; k < value->producer->input_count && !next; k++)
            if (value->producer->inputs[k] && !value->producer->inputs[k]->known)
                next = value->producer->inputs[k];
        value = next;
    }
    return value;
}

/* True if an Add or Mul depends on one tensor only, as x * sigmoid(x) does. */
static bool is_of_one(const struct quantize_plan *plan, const struct node *join)
{
    return root_of(plan, join->inputs[0]) == root_of(plan, join->inputs[1]);
}

/* True if `flags`, by value->index, is set for each tensor that the node reads, and no such tensor
 * is a constant. */
static bool all_inputs(const struct node *node, const bool *flags)
{
    const size_t count =
        node->op == OP_CONCAT || node->op == OP_ADD || node->op == OP_MUL ? node->input_count : 1;
    for (size_t i = 0; i < count; i++)
        if (!node->inputs[i] || node->inputs[i]->known || !flags[node->inputs[i]->index])
            return false;
    return true;
}

/* ---- the passes ---- */

/* True if the node's inputs belong to the answer (is_answer) if one of its outputs does. */
static bool passes_answers(const struct quantize_plan *plan, size_t n)
{
    return !op_has(plan->edit.graph->nodes[n]->op, OP_PRODUCT | OP_NORMALIZATION) &&
           plan->kinds[n] != QUANTIZE_POOL;
}

static void find_answers(struct quantize_plan *plan)
{
    const struct graph *graph = plan->edit.graph;
    for (size_t i = 0; i < graph->output_count; i++)
        plan->is_answer[graph->outputs[i]->index] = true;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        bool is_answer = false;
        for (size_t o = 0; o < node->output_count; o++)
            is_answer = is_answer || (node->outputs[o] && plan->is_answer[node->outputs[o]->index]);
        if (!is_answer || !passes_answers(plan, n))
            continue;
        for (size_t i = 0; i < node->input_count; i++)
            if (node->inputs[i])
                plan->is_answer[node->inputs[i]->index] = true;
    }
}

/* Follows `value` through Relus and Clips that are the only readers of their inputs. Returns the
 * result of the last one, or `value` if there is none. */
static const struct value *behind_clamp(const struct quantize_plan *plan, const struct value *value)
{
    const struct node *reader;
    while ((reader = edit_only_reader(&plan->edit, value)) && reader->inputs[0] == value &&
           plan->kinds[edit_position(plan->edit.graph, reader)] == QUANTIZE_CLAMP)
        value = reader->outputs[0];
    return value;
}

static void want_layers(struct quantize_plan *plan, const bool *is_float)
{
    const struct graph *graph = plan->edit.graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (plan->kinds[n] != QUANTIZE_LAYER)
            continue;
        plan->is_stored[node->inputs[0]->index] = true;
        const struct value *result = behind_clamp(plan, node->outputs[0]);
        if (node->op == OP_CONV && !plan->is_answer[result->index] && is_float[result->index])
            plan->is_stored[result->index] = true;
    }
}

/* True if a node that is no layer computes on integers, given that the tensors in `flags` (by
 * value->index) are stored. `from`: for a clamp or unary operator, the value whose chain must begin
 * at such a tensor (root_of()). */
static bool runs_on(const struct quantize_plan *plan, const struct node *node,
                    enum quantize_kind kind, const bool *flags, const struct value *from)
{
    if (kind == QUANTIZE_CLAMP || kind == QUANTIZE_UNARY)
        return flags[root_of(plan, from)->index];
    return kind >= QUANTIZE_JOIN &&
           (all_inputs(node, flags) || (kind == QUANTIZE_JOIN && is_of_one(plan, node) &&
                                        flags[root_of(plan, node->inputs[0])->index]));
}

static bool producer_can_store(const struct quantize_plan *plan, size_t n)
{
    const struct node *node = plan->edit.graph->nodes[n];
    if (plan->kinds[n] == QUANTIZE_LAYER)
        return node->op == OP_CONV;
    return runs_on(plan, node, plan->kinds[n], plan->can_store, node->outputs[0]);
}

static void find_storable(struct quantize_plan *plan, const bool *is_float)
{
    const struct graph *graph = plan->edit.graph;
    for (size_t v = 0; v < graph->value_count; v++)
        plan->can_store[v] = plan->is_stored[v];
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t o = 0; o < node->output_count; o++) {
            const struct value *value = node->outputs[o];
            if (value && is_float[value->index] && !plan->is_answer[value->index])
                plan->can_store[value->index] =
                    plan->can_store[value->index] || producer_can_store(plan, n);
        }
    }
}

/* A Gemm stores its result if only elementwise operators lie between it and a stored tensor, such
 * as the activation between two layers of a head. */
static void want_gemm(struct quantize_plan *plan, const struct node *node, enum quantize_kind kind)
{
    if (kind != QUANTIZE_UNARY && (kind != QUANTIZE_JOIN || !is_of_one(plan, node)))
        return;
    const struct value *root = root_of(plan, node->inputs[0]);
    if (kind_of_producer(plan, root) == QUANTIZE_LAYER && root->producer->op == OP_GEMM)
        plan->is_stored[root->index] = true;
}

/* Stores the inputs of each Add, Mul, Concat, move or pool whose result is stored, if all its
 * inputs can be stored. */
static void want_between(struct quantize_plan *plan)
{
    const struct graph *graph = plan->edit.graph;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        const enum quantize_kind kind = plan->kinds[n];
        bool is_wanted = false;
        for (size_t o = 0; o < node->output_count; o++)
            is_wanted = is_wanted || (node->outputs[o] &&
                                      plan->is_stored[behind_clamp(plan, node->outputs[o])->index]);
        if (is_wanted)
            want_gemm(plan, node, kind);
        if (!is_wanted || kind < QUANTIZE_JOIN || !all_inputs(node, plan->can_store) ||
            (kind == QUANTIZE_JOIN && is_of_one(plan, node)))
            continue;
        const size_t count =
            kind == QUANTIZE_JOIN || kind == QUANTIZE_CONCAT ? node->input_count : 1;
        for (size_t i = 0; i < count; i++)
            plan->is_stored[node->inputs[i]->index] = true;
    }
}

static bool producer_is_integer(const struct quantize_plan *plan, const struct value *value)
{
    const struct value *made = quantize_before_clamp(plan, value);
    const enum quantize_kind kind = kind_of_producer(plan, made);
    const struct node *node = made->producer;
    const struct value *x = node ? node_input(node, 0) : NULL;
    return kind == QUANTIZE_LAYER ||
           (node && runs_on(plan, node, kind, plan->is_stored, x && !x->known ? x : made));
}

static void find_integers(struct quantize_plan *plan)
{
    const struct graph *graph = plan->edit.graph;
    for (size_t v = 0; v < graph->value_count; v++)
        plan->is_integer[v] = plan->is_stored[v] && !plan->is_answer[v] &&
                              producer_is_integer(plan, graph->values[v]);
}

enum status quantize_plan_make(struct graph *graph, const bool *is_kept, const bool *is_float,
                               struct arena *arena, struct quantize_plan *ret, struct error *err)
{
    const size_t values = graph->value_count;
    *ret = (struct quantize_plan){
        .edit = {.graph = graph, .readers = arena_alloc(arena, values, sizeof(uint32_t))},
        .kinds = arena_alloc(arena, graph->node_count, sizeof *ret->kinds),
        .is_answer = arena_alloc(arena, values, sizeof(bool)),
        .can_store = arena_alloc(arena, values, sizeof(bool)),
        .is_stored = arena_alloc(arena, values, sizeof(bool)),
        .is_integer = arena_alloc(arena, values, sizeof(bool))};
    TRY(check_memory(ret->edit.readers && ret->kinds && ret->is_answer && ret->can_store &&
                         ret->is_stored && ret->is_integer,
                     "while planning 8-bit numbers", err));
    graph_count_readers(graph, ret->edit.readers);
    for (size_t n = 0; n < graph->node_count; n++) {
        ret->kinds[n] = quantize_kind_of(graph->nodes[n]);
        if (ret->kinds[n] == QUANTIZE_LAYER &&
            (is_kept[n] || !is_float[graph->nodes[n]->inputs[0]->index]))
            ret->kinds[n] = QUANTIZE_OTHER;
    }
    find_answers(ret);
    want_layers(ret, is_float);
    find_storable(ret, is_float);
    want_between(ret);
    find_integers(ret);
    return STATUS_OK;
}

bool quantize_reads_stored(const struct quantize_plan *plan, size_t n, const struct value *value)
{
    const struct node *node = plan->edit.graph->nodes[n];
    if (!plan->is_stored[value->index])
        return false;
    if (plan->is_integer[value->index])
        return true;
    if (plan->kinds[n] == QUANTIZE_LAYER)
        return node->inputs[0] == value;
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && plan->is_integer[behind_clamp(plan, node->outputs[o])->index])
            return true;
    return false;
}
