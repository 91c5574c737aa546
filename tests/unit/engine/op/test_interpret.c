/* The interpreter: lifetimes, limits, state that a run leaves behind, errors. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"

static struct value *add_value(struct graph *graph, const char *name, enum dtype dtype,
                               struct shape shape)
{
    struct value *value = graph_add_value(graph, name, dtype, &shape);
    cr_assert_not_null(value);
    return value;
}

/* output = op(a, b); b may be NULL. */
static struct value *add_node(struct graph *graph, enum op op, const char *name, struct value *a,
                              struct value *b)
{
    struct node *node = graph_add_node(graph, op, name, b ? 2 : 1, 1);
    cr_assert_not_null(node);
    node->inputs[0] = a;
    if (b)
        node->inputs[1] = b;
    struct value *out = add_value(graph, name, DTYPE_NONE, SHAPE_NONE);
    node_set_output(node, 0, out);
    return out;
}

static void set_operands(struct graph *graph, struct value **inputs, size_t input_count,
                         struct value **outputs, size_t output_count)
{
    graph->inputs = inputs;
    graph->input_count = input_count;
    graph->outputs = outputs;
    graph->output_count = output_count;
}

static struct tensor *make_floats(struct memory_budget *budget, int64_t count, float value)
{
    struct tensor *tensor;
    cr_assert_eq(tensor_create(budget, DTYPE_F32, &SHAPE(count), &tensor, NULL), STATUS_OK);
    for (int64_t i = 0; i < count; i++)
        ((float *)tensor->data)[i] = value;
    return tensor;
}

/* y = (x + c) * … repeated `depth` times with the constant c. */
struct chain {
    struct graph *graph;
    struct value *input, *constant, *output;
    struct tensor *one;
};

static void chain_start(struct chain *chain, int depth)
{
    chain->graph = graph_create(NULL);
    cr_assert_not_null(chain->graph);
    chain->graph->opset = 14;
    chain->one = make_floats(NULL, 1, 1);
    chain->input = add_value(chain->graph, "x", DTYPE_F32, (struct shape){1, {DIM_UNKNOWN}});
    chain->constant = graph_add_constant(chain->graph, "c", chain->one);
    chain->output = chain->input;
    for (int i = 0; i < depth; i++)
        chain->output = add_node(chain->graph, OP_ADD, "step", chain->output, chain->constant);
    set_operands(chain->graph, &chain->input, 1, &chain->output, 1);
}

static void chain_end(struct chain *chain)
{
    graph_free(chain->graph);
    tensor_unref(chain->one);
}

/* Nothing of the run is left in the graph. */
static void expect_clean(const struct chain *chain)
{
    for (size_t v = 0; v < chain->graph->value_count; v++) {
        const struct value *value = chain->graph->values[v];
        if (value == chain->constant)
            cr_expect_eq(value->known, chain->one, "the constant was lost");
        else
            cr_expect_null(value->known, "value %zu kept its contents", v);
    }
    cr_expect_eq(chain->input->shape.dims[0], DIM_UNKNOWN, "the declared shape was lost");
    cr_expect_eq(chain->output->shape.rank, SHAPE_UNKNOWN);
}

Test(interpret, runs_one_graph_on_several_shapes)
{
    struct chain chain;
    chain_start(&chain, 3);
    for (int64_t count = 0; count < 4; count++) {
        struct memory_budget budget = {0};
        struct error err = {0};
        struct tensor *x = make_floats(NULL, count, 2), *y = NULL;
        cr_assert_eq(interpret(chain.graph, &x, &y, &budget, NULL, &err), STATUS_OK, "%s",
                     err.message);
        cr_assert(shape_equal(&y->shape, &SHAPE(count)));
        for (int64_t i = 0; i < count; i++)
            cr_expect(((float *)y->data)[i] == 5);
        cr_expect_eq(budget.used, y->bytes, "more than the output is still there");
        expect_clean(&chain);
        tensor_unref(x);
        tensor_unref(y);
        cr_expect_eq(budget.used, 0u);
    }
    chain_end(&chain);
}

/* A long chain needs no more than an input, an output and what lies between two steps. */
Test(interpret, drops_tensors_after_their_last_reader)
{
    struct chain chain;
    chain_start(&chain, 1000);
    struct memory_budget budget = {.limit = 3 * 4096};
    struct error err = {0};
    struct tensor *x = make_floats(NULL, 1024, 0), *y = NULL;
    cr_assert_eq(interpret(chain.graph, &x, &y, &budget, NULL, &err), STATUS_OK, "%s", err.message);
    cr_expect(((float *)y->data)[1023] == 1000);
    tensor_unref(y);
    budget.limit = 4096;
    y = NULL;
    cr_expect_eq(interpret(chain.graph, &x, &y, &budget, NULL, &err), STATUS_NO_MEMORY);
    cr_expect(strstr(err.message, "'step'"), "%s", err.message);
    cr_expect_null(y, "an output was written although the run failed");
    cr_expect_eq(budget.used, 0u);
    expect_clean(&chain);
    tensor_unref(x);
    chain_end(&chain);
}

Test(interpret, stops_at_its_limits)
{
    struct chain chain;
    chain_start(&chain, 10);
    const struct {
        struct interpreter_limits limits;
        enum status status;
        const char *words;
    } cases[] = {{{.max_steps = 5}, STATUS_MODEL, "after 5 steps"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct tensor *x = make_floats(NULL, 1, 0), *y = NULL;
        cr_expect_eq(interpret(chain.graph, &x, &y, NULL, &cases[i].limits, &err), cases[i].status,
                     "%s", err.message);
        cr_expect(strstr(err.message, cases[i].words), "%s", err.message);
        expect_clean(&chain);
        tensor_unref(x);
    }
    chain_end(&chain);
}

Test(interpret, checks_its_inputs)
{
    struct chain chain;
    chain_start(&chain, 1);
    struct tensor *matrix, *whole, *y = NULL, *missing = NULL;
    struct error err = {0};
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(1, 1), &matrix, NULL), STATUS_OK);
    cr_assert_eq(tensor_create(NULL, DTYPE_I32, &SHAPE(1), &whole, NULL), STATUS_OK);
    cr_expect_eq(interpret(chain.graph, &matrix, &y, NULL, NULL, &err), STATUS_INVALID);
    cr_expect(strstr(err.message, "'x' has shape [1, 1]"), "%s", err.message);
    cr_expect_eq(interpret(chain.graph, &whole, &y, NULL, NULL, &err), STATUS_INVALID);
    cr_expect(strstr(err.message, "int32, expected float32"), "%s", err.message);
    cr_expect_eq(interpret(chain.graph, &missing, &y, NULL, NULL, &err), STATUS_INVALID);
    tensor_unref(matrix);
    tensor_unref(whole);
    chain_end(&chain);
}

/* An input that is an output too, a value that is two outputs, a node that nobody reads. */
Test(interpret, odd_graphs)
{
    struct graph *graph = graph_create(NULL);
    cr_assert_not_null(graph);
    graph->opset = 14;
    struct value *x = add_value(graph, "x", DTYPE_F32, SHAPE(2));
    struct value *y = add_node(graph, OP_NEG, "y", x, NULL);
    add_node(graph, OP_ABS, "unread", y, NULL);
    struct value *outputs[] = {x, y, y};
    set_operands(graph, &x, 1, outputs, 3);
    struct memory_budget budget = {0};
    struct error err = {0};
    struct tensor *in = make_floats(NULL, 2, 3), *out[3] = {NULL};
    cr_assert_eq(interpret(graph, &in, out, &budget, NULL, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(out[0], in);
    cr_expect_eq(out[1], out[2]);
    cr_expect(((float *)out[1]->data)[1] == -3);
    for (int i = 0; i < 3; i++)
        tensor_unref(out[i]);
    cr_expect_eq(budget.used, 0u);
    tensor_unref(in);
    graph_free(graph);
}

/* A node whose input nothing makes; a node whose outputs are constants already. */
Test(interpret, unsorted_and_folded_nodes)
{
    struct chain chain;
    chain_start(&chain, 2);
    struct node *first = chain.graph->nodes[0];
    chain.graph->nodes[0] = chain.graph->nodes[1];
    chain.graph->nodes[1] = first;
    struct error err = {0};
    struct tensor *x = make_floats(NULL, 1, 0), *y = NULL;
    cr_expect_eq(interpret(chain.graph, &x, &y, NULL, NULL, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "no contents"), "%s", err.message);
    expect_clean(&chain);
    /* The first node's output becomes a constant: its node is not run, and order does not matter.
     */
    first->outputs[0]->known = make_floats(NULL, 1, 40);
    first->outputs[0]->shape = SHAPE(1);
    first->outputs[0]->dtype = DTYPE_F32;
    cr_assert_eq(interpret(chain.graph, &x, &y, NULL, NULL, &err), STATUS_OK, "%s", err.message);
    cr_expect(((float *)y->data)[0] == 41);
    cr_expect_not_null(first->outputs[0]->known, "the folded constant was dropped");
    tensor_unref(x);
    tensor_unref(y);
    chain_end(&chain);
}

/* If inside If inside …, every body reading a value of the outermost graph. */
static struct graph *nest(struct graph *outer, struct value *outer_condition, struct value *outer_x,
                          int depth)
{
    struct graph *body = graph_create(NULL);
    cr_assert_not_null(body);
    body->opset = 16;
    body->parent = outer;
    struct value *x = add_value(body, "x", DTYPE_F32, SHAPE_NONE);
    x->outer = outer_x;
    struct value **outputs = arena_alloc(body->arena, 1, sizeof *outputs);
    if (depth == 0) {
        outputs[0] = add_node(body, OP_NEG, "innermost", x, NULL);
    } else {
        struct value *condition = add_value(body, "condition", DTYPE_BOOL, SHAPE_NONE);
        condition->outer = outer_condition;
        outputs[0] = add_node(body, OP_IF, "nested", condition, NULL);
        struct node *node = body->nodes[0];
        struct attr *attrs = arena_alloc(body->arena, 2, sizeof *attrs);
        attrs[0] = (struct attr){
            .name = "then_branch", .kind = ATTR_GRAPH, .g = nest(body, condition, x, depth - 1)};
        attrs[1] = (struct attr){
            .name = "else_branch", .kind = ATTR_GRAPH, .g = nest(body, condition, x, 0)};
        node->attrs = attrs;
        node->attr_count = 2;
        node->captures = arena_alloc(body->arena, 2, sizeof *node->captures);
        node->captures[0] = x;
        node->captures[1] = condition;
        node->capture_count = 2;
    }
    set_operands(body, NULL, 0, outputs, 1);
    return body;
}

Test(interpret, captures_reach_through_bodies_up_to_the_depth_limit)
{
    for (int depth = 2; depth <= 20; depth += 18) {
        struct graph *graph = graph_create(NULL);
        cr_assert_not_null(graph);
        graph->opset = 16;
        struct value *inputs[] = {add_value(graph, "condition", DTYPE_BOOL, SHAPE_SCALAR),
                                  add_value(graph, "x", DTYPE_F32, SHAPE(1))};
        struct value *y = add_node(graph, OP_IF, "outermost", inputs[0], NULL);
        struct node *node = graph->nodes[0];
        struct attr attrs[] = {
            {.name = "then_branch",
             .kind = ATTR_GRAPH,
             .g = nest(graph, inputs[0], inputs[1], depth)},
            {.name = "else_branch", .kind = ATTR_GRAPH, .g = nest(graph, inputs[0], inputs[1], 0)}};
        node->attrs = attrs;
        node->attr_count = 2;
        node->captures = inputs;
        node->capture_count = 2;
        set_operands(graph, inputs, 2, &y, 1);
        struct memory_budget budget = {0};
        struct error err = {0};
        struct tensor *in[2], *out = NULL;
        cr_assert_eq(tensor_create(NULL, DTYPE_BOOL, &SHAPE_SCALAR, &in[0], NULL), STATUS_OK);
        *(uint8_t *)in[0]->data = 1;
        in[1] = make_floats(NULL, 1, 7);
        enum status status = interpret(graph, in, &out, &budget, NULL, &err);
        if (depth < 16) {
            cr_assert_eq(status, STATUS_OK, "%s", err.message);
            cr_expect(((float *)out->data)[0] == -7);
        } else {
            cr_expect_eq(status, STATUS_MODEL, "%s", err.message);
            cr_expect(strstr(err.message, "deeper than 16"), "%s", err.message);
        }
        tensor_unref(out);
        cr_expect_eq(budget.used, 0u);
        tensor_unref(in[0]);
        tensor_unref(in[1]);
        graph_free(graph);
    }
}

/* ---- runners ---- */

struct taken {
    int adds, others;
    bool first_constant, second_constant;
    bool refuse;
};

/* Takes every Add, and gives 100 for it. */
static enum status take_adds(void *context, const struct kernel_args *call, bool *ret_taken,
                             struct error *err)
{
    struct taken *taken = context;
    if (call->node->op != OP_ADD) {
        taken->others++;
        return STATUS_OK;
    }
    if (taken->refuse)
        return error_set(err, STATUS_DEVICE, "the device is gone");
    taken->adds++;
    taken->first_constant = call->constant[0];
    taken->second_constant = call->constant[1];
    cr_expect_eq(call->in[0]->bytes, call->out[0]->bytes);
    ((float *)call->out[0]->data)[0] = 100;
    *ret_taken = true;
    return STATUS_OK;
}

Test(interpret, runners_are_asked_first)
{
    struct chain chain;
    chain_start(&chain, 2);
    struct value *y = add_node(chain.graph, OP_NEG, "last", chain.output, NULL);
    set_operands(chain.graph, &chain.input, 1, &y, 1);
    struct taken taken = {0};
    struct node_runner runner = {take_adds, &taken};
    struct interpreter_limits limits = {.runner = &runner};
    struct error err = {0};
    struct tensor *x = make_floats(NULL, 1, 3), *out = NULL;
    cr_assert_eq(interpret(chain.graph, &x, &out, NULL, &limits, &err), STATUS_OK, "%s",
                 err.message);
    cr_expect(((float *)out->data)[0] == -100);
    cr_expect_eq(taken.adds, 2);
    cr_expect_eq(taken.others, 1);
    cr_expect(!taken.first_constant && taken.second_constant);
    tensor_unref(out);
    taken.refuse = true;
    struct memory_budget budget = {0};
    cr_expect_eq(interpret(chain.graph, &x, &out, &budget, &limits, &err), STATUS_DEVICE);
    cr_expect(strstr(err.message, "Add 'step'") && strstr(err.message, "the device is gone"), "%s",
              err.message);
    cr_expect_eq(budget.used, 0u);
    tensor_unref(x);
    expect_clean(&chain);
    chain_end(&chain);
}

/* What a body reads of the enclosing graph is constant where it is there. */
Test(interpret, constants_stay_constant_in_bodies)
{
    struct graph *graph = graph_create(NULL);
    cr_assert_not_null(graph);
    graph->opset = 16;
    struct tensor *one = make_floats(NULL, 1, 1);
    struct value *inputs[] = {add_value(graph, "condition", DTYPE_BOOL, SHAPE_SCALAR),
                              add_value(graph, "x", DTYPE_F32, SHAPE(1))};
    struct value *constant = graph_add_constant(graph, "c", one);
    struct graph *bodies[2];
    struct value *results[2];
    for (int i = 0; i < 2; i++) {
        bodies[i] = graph_create(NULL);
        bodies[i]->opset = 16;
        bodies[i]->parent = graph;
        struct value *x = add_value(bodies[i], "x", DTYPE_F32, SHAPE_NONE);
        struct value *c = add_value(bodies[i], "c", DTYPE_F32, SHAPE_NONE);
        x->outer = inputs[1];
        c->outer = constant;
        results[i] = add_node(bodies[i], OP_ADD, "sum", i ? x : c, i ? c : x);
        set_operands(bodies[i], NULL, 0, &results[i], 1);
    }
    struct value *y = add_node(graph, OP_IF, "if", inputs[0], NULL);
    struct node *node = graph->nodes[0];
    struct attr attrs[] = {{.name = "then_branch", .kind = ATTR_GRAPH, .g = bodies[0]},
                           {.name = "else_branch", .kind = ATTR_GRAPH, .g = bodies[1]}};
    node->attrs = attrs;
    node->attr_count = 2;
    node->captures = (struct value *[]){inputs[1], constant};
    node->capture_count = 2;
    set_operands(graph, inputs, 2, &y, 1);
    struct tensor *in[2], *out = NULL;
    struct error err = {0};
    cr_assert_eq(tensor_create(NULL, DTYPE_BOOL, &SHAPE_SCALAR, &in[0], NULL), STATUS_OK);
    in[1] = make_floats(NULL, 1, 7);
    for (int i = 0; i < 2; i++) {
        struct taken taken = {0};
        struct node_runner runner = {take_adds, &taken};
        struct interpreter_limits limits = {.runner = &runner};
        *(uint8_t *)in[0]->data = i == 0;
        cr_assert_eq(interpret(graph, in, &out, NULL, &limits, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(taken.adds, 1);
        cr_expect_eq(taken.first_constant, i == 0);
        cr_expect_eq(taken.second_constant, i == 1);
        tensor_unref(out);
    }
    tensor_unref(in[0]);
    tensor_unref(in[1]);
    tensor_unref(one);
    graph_free(graph);
}
