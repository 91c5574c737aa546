/* If, Loop, Scan: graphs made by hand, run by the interpreter. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"

#define MAX_VALUES 8

/* A graph with one control node that reads inputs and gives outputs of its own. */
struct world {
    struct graph *graph;
    struct node *node;
    struct attr attrs[8];
    struct tensor *in[MAX_VALUES], *out[MAX_VALUES];
    struct memory_budget budget;
    struct interpreter_limits limits;
    struct error err;
};

static void add_to(struct graph *graph, struct value ***list, size_t *count, struct value *value)
{
    struct value **longer = arena_alloc(graph->arena, *count + 1, sizeof *longer);
    cr_assert_not_null(longer);
    if (*count)
        memcpy(longer, *list, *count * sizeof *longer);
    longer[(*count)++] = value;
    *list = longer;
}

static struct value *add_value(struct graph *graph, enum dtype dtype, struct shape shape)
{
    struct value *value = graph_add_value(graph, "value", dtype, &shape);
    cr_assert_not_null(value);
    return value;
}

static struct value *add_input(struct graph *graph, enum dtype dtype)
{
    struct value *value = add_value(graph, dtype, SHAPE_NONE);
    add_to(graph, &graph->inputs, &graph->input_count, value);
    return value;
}

static void add_output(struct graph *graph, struct value *value)
{
    add_to(graph, &graph->outputs, &graph->output_count, value);
}

/* op(a, b), b may be NULL. */
static struct value *add_node(struct graph *graph, enum op op, struct value *a, struct value *b,
                              enum dtype dtype)
{
    struct node *node = graph_add_node(graph, op, "inner", b ? 2 : 1, 1);
    cr_assert_not_null(node);
    node->inputs[0] = a;
    if (b)
        node->inputs[1] = b;
    struct value *out = add_value(graph, dtype, SHAPE_NONE);
    node_set_output(node, 0, out);
    return out;
}

static struct graph *make_body(struct world *w)
{
    struct graph *body = graph_create(&w->budget);
    cr_assert_not_null(body);
    body->opset = w->graph->opset;
    body->parent = w->graph;
    return body;
}

/* The value of a body that stands for a value around it. */
static struct value *capture(struct world *w, struct graph *body, struct value *outer)
{
    struct value *value = add_value(body, outer->dtype, SHAPE_NONE);
    value->outer = outer;
    add_to(w->graph, &w->node->captures, &w->node->capture_count, outer);
    return value;
}

static void start(struct world *w, enum op op, int opset, size_t inputs, size_t outputs)
{
    memset(w, 0, sizeof *w);
    w->graph = graph_create(NULL);
    cr_assert_not_null(w->graph);
    w->graph->opset = opset;
    w->node = graph_add_node(w->graph, op, "control", inputs, outputs);
    cr_assert_not_null(w->node);
    w->node->attrs = w->attrs;
    for (size_t i = 0; i < outputs; i++) {
        struct value *value = add_value(w->graph, DTYPE_NONE, SHAPE_NONE);
        node_set_output(w->node, i, value);
        add_output(w->graph, value);
    }
}

static void set_graph(struct world *w, const char *name, struct graph *body)
{
    w->attrs[w->node->attr_count++] = (struct attr){.name = name, .kind = ATTR_GRAPH, .g = body};
}

static void set_int(struct world *w, const char *name, int64_t value)
{
    w->attrs[w->node->attr_count++] = (struct attr){.name = name, .kind = ATTR_INT, .i = value};
}

static void set_ints(struct world *w, const char *name, const int64_t *values, size_t count)
{
    w->attrs[w->node->attr_count++] =
        (struct attr){.name = name, .kind = ATTR_INTS, .count = count, .ints = values};
}

/* An input of the graph that is operand i of the control node, too. */
static struct value *feed(struct world *w, size_t i, enum dtype dtype, struct shape shape,
                          const void *data)
{
    struct value *value = add_input(w->graph, dtype);
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, NULL), STATUS_OK);
    if (tensor->bytes)
        memcpy(tensor->data, data, tensor->bytes);
    w->in[w->graph->input_count - 1] = tensor;
    if (i < w->node->input_count)
        w->node->inputs[i] = value;
    return value;
}

static enum status run(struct world *w)
{
    return interpret(w->graph, w->in, w->out, &w->budget, &w->limits, &w->err);
}

static void run_ok(struct world *w)
{
    cr_assert_eq(run(w), STATUS_OK, "%s", w->err.message);
}

static void fails(struct world *w, enum status status, const char *words)
{
    enum status got = run(w);
    cr_expect_eq(got, status, "status %s, expected %s (%s)", status_word(got), status_word(status),
                 w->err.message);
    cr_expect(strstr(w->err.message, words), "the error does not say '%s': %s", words,
              w->err.message);
}

static void expect(const struct world *w, size_t i, struct shape shape, const double *expected)
{
    cr_assert_not_null(w->out[i]);
    cr_assert(shape_equal(&w->out[i]->shape, &shape), "output %zu is %s, expected %s", i,
              SHAPE_STRING(&w->out[i]->shape), SHAPE_STRING(&shape));
    for (size_t k = 0; k < shape_count(&shape); k++)
        cr_expect_eq(tensor_number(w->out[i], k), expected[k], "output %zu, element %zu is %g", i,
                     k, tensor_number(w->out[i], k));
}

static void end(struct world *w)
{
    for (size_t i = 0; i < MAX_VALUES; i++) {
        tensor_unref(w->in[i]);
        tensor_unref(w->out[i]);
    }
    graph_free(w->graph);
    cr_expect_eq(w->budget.used, 0u, "%zu bytes leaked", (size_t)w->budget.used);
}

/* ---- If ---- */

/* cond ? x + x : shape(x); the branches differ in type of work and in shape. */
static void make_if(struct world *w, uint8_t cond)
{
    const float x[] = {1, 2, 3};
    start(w, OP_IF, 16, 1, 1);
    feed(w, 0, DTYPE_BOOL, SHAPE_SCALAR, &cond);
    struct value *outer = feed(w, SIZE_MAX, DTYPE_F32, SHAPE(3), x);
    struct graph *yes = make_body(w), *no = make_body(w);
    struct value *seen = capture(w, yes, outer);
    add_output(yes, add_node(yes, OP_ADD, seen, seen, DTYPE_F32));
    struct value *whole = capture(w, no, outer);
    struct value *axis = add_node(no, OP_REDUCE_SUM, whole, NULL, DTYPE_F32);
    add_output(no, axis);
    set_graph(w, "then_branch", yes);
    set_graph(w, "else_branch", no);
}

Test(ops_control, branches_read_the_values_around_them)
{
    struct world w;
    make_if(&w, 1);
    run_ok(&w);
    expect(&w, 0, SHAPE(3), (const double[]){2, 4, 6});
    end(&w);
    make_if(&w, 0);
    run_ok(&w);
    expect(&w, 0, SHAPE(1), (const double[]){6});
    end(&w);
}

Test(ops_control, if_refuses_what_it_cannot_choose_by)
{
    struct world w;
    const float one = 1;
    const uint8_t both[] = {1, 0};
    start(&w, OP_IF, 16, 1, 1);
    feed(&w, 0, DTYPE_F32, SHAPE_SCALAR, &one);
    fails(&w, STATUS_MODEL, "cond");
    end(&w);
    start(&w, OP_IF, 16, 1, 1);
    feed(&w, 0, DTYPE_BOOL, SHAPE(2), both);
    fails(&w, STATUS_SHAPE, "one number");
    end(&w);
    start(&w, OP_IF, 16, 1, 1);
    feed(&w, 0, DTYPE_BOOL, SHAPE(1), both);
    set_graph(&w, "then_branch", make_body(&w));
    fails(&w, STATUS_MODEL, "else_branch is missing");
    end(&w);
    start(&w, OP_IF, 16, 1, 1);
    feed(&w, 0, DTYPE_BOOL, SHAPE(1), both);
    set_graph(&w, "then_branch", make_body(&w));
    set_graph(&w, "else_branch", make_body(&w));
    fails(&w, STATUS_MODEL, "1 outputs are requested");
    end(&w);
}

/* ---- Loop ---- */

enum condition { CONDITION_NONE, CONDITION_TRUE, CONDITION_FALSE };

/* x += 1 for up to `trips` iterations; the sums are collected. The body goes on while x < limit. */
static void make_loop(struct world *w, const int64_t *trips, enum condition condition, float limit)
{
    const uint8_t cond = condition == CONDITION_TRUE;
    const float zero = 0, one = 1;
    start(w, OP_LOOP, 16, 3, 2);
    if (trips)
        feed(w, 0, DTYPE_I64, SHAPE_SCALAR, trips);
    if (condition != CONDITION_NONE)
        feed(w, 1, DTYPE_BOOL, SHAPE_SCALAR, &cond);
    feed(w, 2, DTYPE_F32, SHAPE_SCALAR, &zero);
    struct value *step = feed(w, SIZE_MAX, DTYPE_F32, SHAPE_SCALAR, &one);
    struct value *most = feed(w, SIZE_MAX, DTYPE_F32, SHAPE_SCALAR, &limit);
    struct graph *body = make_body(w);
    add_input(body, DTYPE_I64);
    add_input(body, DTYPE_BOOL);
    struct value *x = add_input(body, DTYPE_F32);
    struct value *sum = add_node(body, OP_ADD, x, capture(w, body, step), DTYPE_F32);
    add_output(body, add_node(body, OP_LESS, sum, capture(w, body, most), DTYPE_BOOL));
    add_output(body, sum);
    add_output(body, sum);
    set_graph(w, "body", body);
}

Test(ops_control, loops_end_by_count_and_by_condition)
{
    struct world w;
    const int64_t three = 3, negative = -1;
    make_loop(&w, &three, CONDITION_TRUE, 100);
    run_ok(&w);
    expect(&w, 0, SHAPE_SCALAR, (const double[]){3});
    expect(&w, 1, SHAPE(3), (const double[]){1, 2, 3});
    end(&w);
    make_loop(&w, NULL, CONDITION_TRUE, 2);
    run_ok(&w);
    expect(&w, 0, SHAPE_SCALAR, (const double[]){2});
    end(&w);
    /* without the input cond, what the body says is ignored */
    make_loop(&w, &three, CONDITION_NONE, 0);
    run_ok(&w);
    expect(&w, 0, SHAPE_SCALAR, (const double[]){3});
    end(&w);
    make_loop(&w, &negative, CONDITION_TRUE, 100);
    run_ok(&w);
    expect(&w, 0, SHAPE_SCALAR, (const double[]){0});
    expect(&w, 1, SHAPE(0), NULL);
    end(&w);
    make_loop(&w, &three, CONDITION_FALSE, 100);
    run_ok(&w);
    expect(&w, 1, SHAPE(0), NULL);
    end(&w);
}

Test(ops_control, endless_loops_are_stopped)
{
    static const int64_t for_ever = INT64_MAX;
    struct world w;
    make_loop(&w, &for_ever, CONDITION_NONE, 0);
    w.limits.max_steps = 1000;
    fails(&w, STATUS_MODEL, "1000 steps");
    end(&w);
    /* a body without a single node */
    const float zero = 0;
    start(&w, OP_LOOP, 16, 3, 1);
    feed(&w, 0, DTYPE_I64, SHAPE_SCALAR, &for_ever);
    feed(&w, 2, DTYPE_F32, SHAPE_SCALAR, &zero);
    struct graph *body = make_body(&w);
    add_input(body, DTYPE_I64);
    add_output(body, add_input(body, DTYPE_BOOL));
    add_output(body, add_input(body, DTYPE_F32));
    set_graph(&w, "body", body);
    w.limits.max_steps = 1000;
    fails(&w, STATUS_MODEL, "1000 steps");
    end(&w);
}

static bool stop_at_the_third(void *asked)
{
    return ++*(int *)asked == 3;
}

Test(ops_control, loops_can_be_cancelled)
{
    static const int64_t for_ever = INT64_MAX;
    int asked = 0;
    struct world w;
    make_loop(&w, &for_ever, CONDITION_NONE, 0);
    w.limits.stop = stop_at_the_third;
    w.limits.stop_context = &asked;
    fails(&w, STATUS_CANCELLED, "cancelled");
    cr_expect_eq(asked, 3);
    end(&w);
}

/* A few steps, of which each is a large product. */
Test(ops_control, heavy_loops_are_stopped)
{
    static const int64_t for_ever = INT64_MAX;
    static float square[100 * 100];
    struct world w;
    start(&w, OP_LOOP, 16, 3, 1);
    feed(&w, 0, DTYPE_I64, SHAPE_SCALAR, &for_ever);
    feed(&w, 2, DTYPE_F32, SHAPE(100, 100), square);
    struct graph *body = make_body(&w);
    add_input(body, DTYPE_I64);
    add_output(body, add_input(body, DTYPE_BOOL));
    struct value *x = add_input(body, DTYPE_F32);
    add_output(body, add_node(body, OP_MATMUL, x, x, DTYPE_F32));
    set_graph(&w, "body", body);
    w.limits.max_work = 5e6; /* a million multiply-adds an iteration */
    w.limits.max_steps = 100;
    fails(&w, STATUS_MODEL, "more than 5e+06 elements");
    end(&w);
}

Test(ops_control, growing_collections_meet_the_memory_limit)
{
    static const int64_t for_ever = INT64_MAX;
    static float big[1 << 14];
    struct world w;
    start(&w, OP_LOOP, 16, 3, 2);
    w.budget.limit = 1 << 22;
    feed(&w, 0, DTYPE_I64, SHAPE_SCALAR, &for_ever);
    feed(&w, 2, DTYPE_F32, SHAPE(1 << 14), big);
    struct graph *body = make_body(&w);
    add_input(body, DTYPE_I64);
    add_output(body, add_input(body, DTYPE_BOOL));
    struct value *x = add_input(body, DTYPE_F32);
    add_output(body, x);
    add_output(body, x);
    set_graph(&w, "body", body);
    fails(&w, STATUS_NO_MEMORY, "would exceed the memory limit of 4194304 bytes");
    end(&w);
}

Test(ops_control, collected_values_must_keep_their_shape)
{
    /* state and collection double in every iteration */
    const int64_t three = 3;
    const float x[] = {1};
    struct world w;
    start(&w, OP_LOOP, 16, 3, 2);
    feed(&w, 0, DTYPE_I64, SHAPE(1), &three);
    feed(&w, 2, DTYPE_F32, SHAPE(1), x);
    struct graph *body = make_body(&w);
    add_input(body, DTYPE_I64);
    add_output(body, add_input(body, DTYPE_BOOL));
    struct value *state = add_input(body, DTYPE_F32);
    struct value *both = add_node(body, OP_CONCAT, state, state, DTYPE_F32);
    static const struct attr axis = {.name = "axis", .kind = ATTR_INT, .i = 0};
    both->producer->attrs = &axis;
    both->producer->attr_count = 1;
    add_output(body, both);
    add_output(body, both);
    set_graph(&w, "body", body);
    fails(&w, STATUS_SHAPE, "between iterations");
    end(&w);
}

Test(ops_control, bodies_of_another_arity)
{
    static const struct {
        size_t inputs, outputs;
        const char *words;
    } cases[] = {{2, 2, "2 inputs, expected 3"},
                 {4, 2, "4 inputs, expected 3"},
                 {3, 1, "1 outputs, expected at least 2"},
                 {3, 2, "2 outputs are requested"}};
    const int64_t three = 3;
    const float zero = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct world w;
        start(&w, OP_LOOP, 16, 3, 2);
        feed(&w, 0, DTYPE_I64, SHAPE_SCALAR, &three);
        feed(&w, 2, DTYPE_F32, SHAPE_SCALAR, &zero);
        struct graph *body = make_body(&w);
        for (size_t k = 0; k < cases[i].inputs; k++)
            add_input(body, DTYPE_F32);
        for (size_t k = 0; k < cases[i].outputs; k++)
            add_output(body, body->inputs[0]);
        set_graph(&w, "body", body);
        fails(&w, STATUS_MODEL, cases[i].words);
        end(&w);
    }
}

/* ---- Scan ---- */

/* A running sum: state += item, and the state is collected. */
static struct graph *make_sum_body(struct world *w)
{
    struct graph *body = make_body(w);
    struct value *state = add_input(body, DTYPE_F32), *item = add_input(body, DTYPE_F32);
    struct value *sum = add_node(body, OP_ADD, state, item, DTYPE_F32);
    add_output(body, sum);
    add_output(body, add_node(body, OP_IDENTITY, sum, NULL, DTYPE_F32));
    return body;
}

Test(ops_control, scans_run_along_any_axis_in_both_directions)
{
    static const int64_t axis[] = {-1}, backwards[] = {1};
    const float start_at[] = {0, 0}, items[] = {1, 2, 3, 10, 20, 30};
    struct world w;
    start(&w, OP_SCAN, 11, 2, 2);
    feed(&w, 0, DTYPE_F32, SHAPE(2), start_at);
    feed(&w, 1, DTYPE_F32, SHAPE(2, 3), items);
    set_graph(&w, "body", make_sum_body(&w));
    set_int(&w, "num_scan_inputs", 1);
    set_ints(&w, "scan_input_axes", axis, 1);
    set_ints(&w, "scan_output_axes", axis, 1);
    set_ints(&w, "scan_input_directions", backwards, 1);
    set_ints(&w, "scan_output_directions", backwards, 1);
    run_ok(&w);
    expect(&w, 0, SHAPE(2), (const double[]){6, 60});
    /* sums of 3, 3 + 2, 3 + 2 + 1, put in front of each other along the last axis */
    expect(&w, 1, SHAPE(2, 3), (const double[]){6, 5, 3, 60, 50, 30});
    end(&w);
}

Test(ops_control, scan_8_has_a_batch_and_lengths)
{
    const int64_t lengths[] = {3, 1};
    const float states[] = {0, 100}, items[] = {1, 2, 3, 10, 20, 30};
    struct world w;
    start(&w, OP_SCAN, 8, 3, 2);
    feed(&w, 0, DTYPE_I64, SHAPE(2), lengths);
    feed(&w, 1, DTYPE_F32, SHAPE(2, 1), states);
    feed(&w, 2, DTYPE_F32, SHAPE(2, 3, 1), items);
    set_graph(&w, "body", make_sum_body(&w));
    set_int(&w, "num_scan_inputs", 1);
    run_ok(&w);
    expect(&w, 0, SHAPE(2, 1), (const double[]){6, 110});
    expect(&w, 1, SHAPE(2, 3, 1), (const double[]){1, 3, 6, 110, 0, 0});
    end(&w);
}

Test(ops_control, scan_8_works_without_lengths_and_refuses_wrong_ones)
{
    const int64_t lengths[] = {4, 1};
    const float states[] = {0, 100}, items[] = {1, 2, 3, 10, 20, 30};
    struct world w;
    for (int given = 0; given < 2; given++) {
        start(&w, OP_SCAN, 8, 3, 1);
        if (given)
            feed(&w, 0, DTYPE_I64, SHAPE(2), lengths);
        feed(&w, 1, DTYPE_F32, SHAPE(2, 1), states);
        feed(&w, 2, DTYPE_F32, SHAPE(2, 3, 1), items);
        set_graph(&w, "body", make_sum_body(&w));
        set_int(&w, "num_scan_inputs", 1);
        if (given) {
            fails(&w, STATUS_INVALID, "sequence_lens");
        } else {
            run_ok(&w);
            expect(&w, 0, SHAPE(2, 1), (const double[]){6, 160});
        }
        end(&w);
    }
}

Test(ops_control, scans_refuse_what_does_not_fit)
{
    static const int64_t outside[] = {2};
    static const struct {
        int64_t inputs;
        const int64_t *axes;
        const char *words;
    } cases[] = {
        {0, NULL, "num_scan_inputs"}, {3, NULL, "num_scan_inputs"}, {1, outside, "out of range"}};
    const float start_at[] = {0, 0}, items[] = {1, 2, 3, 10, 20, 30};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct world w;
        start(&w, OP_SCAN, 11, 2, 2);
        feed(&w, 0, DTYPE_F32, SHAPE(2), start_at);
        feed(&w, 1, DTYPE_F32, SHAPE(2, 3), items);
        set_graph(&w, "body", make_sum_body(&w));
        set_int(&w, "num_scan_inputs", cases[i].inputs);
        if (cases[i].axes)
            set_ints(&w, "scan_input_axes", cases[i].axes, 1);
        fails(&w, cases[i].axes ? STATUS_SHAPE : STATUS_MODEL, cases[i].words);
        end(&w);
    }
}
