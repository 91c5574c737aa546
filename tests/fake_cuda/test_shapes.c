/* The CUDA backend over the stand-in on shapes at the ends of what there is: single operators on
 * tensors of nothing, and on rows longer than copies of them may be apart, against the interpreter;
 * windows whose numbers do not fit a kernel's. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/fake_cuda/module_cases.h"
#include "tests/unit/axes.h"
#include "tests/unit/random_graph.h"

TestSuite(shapes, .init = find_fake_module, .timeout = 120);

static struct tensor *random_tensor(const struct shape *shape, uint32_t seed)
{
    struct tensor *tensor;
    struct error err;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(shape); i++)
        ((float *)tensor->data)[i] = random_unit(&seed);
    return tensor;
}

/* One node; its operands from `constants_from` on are constants. */
static struct graph *single(enum op op, struct tensor **operands, size_t count,
                            size_t constants_from)
{
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    struct node *node = graph_add_node(graph, op, "node", count, 1);
    node->opset = 13;
    graph->inputs = arena_alloc(graph->arena, count, sizeof *graph->inputs);
    graph->input_count = constants_from;
    for (size_t i = 0; i < count; i++) {
        const struct tensor *t = operands[i];
        node->inputs[i] = i < constants_from
                              ? graph_add_value(graph, i ? "b" : "a", t->dtype, &t->shape)
                              : graph_add_constant(graph, "", operands[i]);
        if (i < constants_from)
            graph->inputs[i] = node->inputs[i];
    }
    node_set_output(node, 0, graph_add_value(graph, "y", DTYPE_NONE, &SHAPE_NONE));
    graph->outputs = arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    graph->outputs[0] = node->outputs[0];
    graph->output_count = 1;
    return graph;
}

static enum status open_session(const struct graph *graph, struct session **ret, struct error *err)
{
    const struct session_options options = {
        .device = {DEVICE_CUDA, 0}, .max_batch = 1, .trial = true, .poison = true};
    return session_create(graph, &options, ret, err);
}

/* The device's answer is the interpreter's, NaN and infinities among it. Frees the graph. */
static void compare(struct graph *graph, struct tensor **operands, const char *name)
{
    struct error err = {0};
    struct graph *reference;
    struct session *session = NULL;
    struct tensor *expected[1] = {NULL};
    const struct tensor *outputs[1];
    const void *inputs[4];
    for (size_t i = 0; i < graph->input_count; i++)
        inputs[i] = operands[i]->data;
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, operands, expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 name, err.message);
    cr_assert_eq(open_session(graph, &session, &err), STATUS_OK, "%s: %s", name, err.message);
    for (int run = 0; run < 2; run++) {
        cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s: %s", name,
                     err.message);
        cr_assert(shape_equal(&outputs[0]->shape, &expected[0]->shape), "%s", name);
        const float *got = outputs[0]->data, *want = expected[0]->data;
        for (size_t i = 0; i < shape_count(&expected[0]->shape); i++)
            cr_assert(got[i] == want[i] || fabsf(got[i] - want[i]) <= 1e-5f ||
                          (isnan(got[i]) && isnan(want[i])),
                      "%s, output %zu: %g, not %g", name, i, (double)got[i], (double)want[i]);
    }
    session_free(session);
    tensor_unref(expected[0]);
    graph_free(reference);
    graph_free(graph);
}

Test(shapes, rows_longer_than_a_pitch_are_joined_and_parted)
{
    enum { LONG = 1200000 }; /* floats: two of them are more than the stand-in's pitch */
    struct tensor *parts[] = {random_tensor(&SHAPE(1, 2, LONG), 1),
                              random_tensor(&SHAPE(1, 2, LONG), 2)};
    for (int axis = 1; axis < 3; axis++) {
        struct graph *graph = single(OP_CONCAT, parts, 2, 2);
        cr_assert(node_set_int(graph, graph->nodes[0], "axis", axis));
        compare(graph, parts, axis == 2 ? "Concat of columns" : "Concat of rows");
    }
    tensor_unref(parts[0]);
    tensor_unref(parts[1]);
    parts[0] = random_tensor(&SHAPE(1, 2, 2 * LONG), 3);
    struct graph *graph = single(OP_IDENTITY, parts, 1, 1);
    struct node *split = graph_add_node(graph, OP_SPLIT, "split", 1, 2);
    split->opset = 13;
    split->inputs[0] = graph->nodes[0]->outputs[0];
    cr_assert(node_set_int(graph, split, "axis", 2));
    for (size_t i = 0; i < 2; i++)
        node_set_output(split, i, graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE));
    graph->outputs[0] = split->outputs[1];
    compare(graph, parts, "Split");
    tensor_unref(parts[0]);
}

/* Operations of a run of a Concat of so many inputs. */
static size_t operations_of_concat(size_t count)
{
    struct tensor *parts[40];
    const struct tensor *outputs[1];
    const void *inputs[COUNT_OF(parts)];
    struct session *session = NULL;
    struct error err = {0};
    for (size_t i = 0; i < count; i++) {
        parts[i] = random_tensor(&SHAPE(1, 4, 8), (uint32_t)i);
        inputs[i] = parts[i]->data;
    }
    struct graph *graph = single(OP_CONCAT, parts, count, count);
    cr_assert(node_set_int(graph, graph->nodes[0], "axis", 2));
    cr_assert_eq(open_session(graph, &session, &err), STATUS_OK, "%s", err.message);
    const size_t before = fake.operations();
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    const size_t taken = fake.operations() - before - count; /* each input is copied in */
    const float *got = outputs[0]->data;
    for (size_t i = 0; i < count * 32; i++)
        cr_assert_eq(got[i], ((float *)parts[i / 8 % count]->data)[i / 8 / count * 8 + i % 8]);
    session_free(session);
    graph_free(graph);
    for (size_t i = 0; i < count; i++)
        tensor_unref(parts[i]);
    return taken;
}

Test(shapes, parts_of_a_concatenation_share_a_launch)
{
    const size_t two = operations_of_concat(2);
    cr_assert_eq(operations_of_concat(24), two);
    cr_assert_eq(operations_of_concat(40), two + 1);
}

/* Steps are timed in one graph, which is launched twice; the host's time is no part of it. */
Test(shapes, steps_are_profiled_as_a_graph)
{
    struct graph *graph = small_classifier(3, 8, 8, 16, 12);
    const struct session_options options = {
        .device = {DEVICE_CUDA, 0}, .max_batch = 1, .trial = true};
    struct session *session = NULL;
    struct session_step *steps;
    struct error err = {0};
    double sum = 0;
    size_t count;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    const size_t launches = fake.graph_launches();
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq((fake.graph_launches() - launches) % 2, 0);
    cr_assert_gt(fake.graph_launches(), launches);
    cr_assert_geq(count, 3);
    for (size_t i = 0; i < count; i++) {
        cr_assert_geq(steps[i].milliseconds, 0);
        sum += steps[i].milliseconds;
    }
    cr_assert_gt(sum, 0);
    free(steps);
    session_free(session);
    graph_free(graph);
}

/* x [1, 8] * w + bias, and then the identity, so that the sums are stored in 16 bits. */
static float sum_with_bias(const char *candidate, float x, float bias)
{
    struct tensor *operands[] = {random_tensor(&SHAPE(1, 8), 1), random_tensor(&SHAPE(8, 8), 2),
                                 random_tensor(&SHAPE(8), 3)};
    const struct session_options options = {
        .device = {DEVICE_CUDA, 0}, .precision = PRECISION_FP16, .max_batch = 1, .trial = true};
    struct session *session = NULL;
    struct error err = {0};
    const struct tensor *outputs[1];
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++)
            ((float *)operands[1]->data)[i * 8 + k] = i == k;
    for (int i = 0; i < 8; i++) {
        ((float *)operands[0]->data)[i] = x;
        ((float *)operands[2]->data)[i] = bias;
    }
    struct graph *graph = single(OP_GEMM, operands, 3, 1);
    struct node *again = graph_add_node(graph, OP_GEMM, "again", 2, 1);
    again->opset = 13;
    again->inputs[0] = graph->nodes[0]->outputs[0];
    again->inputs[1] = graph_add_constant(graph, "", operands[1]);
    node_set_output(again, 0, graph_add_value(graph, "z", DTYPE_NONE, &SHAPE_NONE));
    graph->outputs[0] = again->outputs[0];
    setenv("LENSD_CUDA_TUNING", candidate, 1);
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    const void *inputs[] = {operands[0]->data};
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    const float sum = ((const float *)outputs[0]->data)[0];
    session_free(session);
    graph_free(graph);
    for (size_t i = 0; i < 3; i++)
        tensor_unref(operands[i]);
    return sum;
}

/* 2^-11 + (1 + 2^-12) is 1 + 2^-10 in float16; with the bias rounded to float16, it is 1. */
Test(shapes, a_bias_is_rounded_alike_by_all_candidates)
{
    static const char *const candidates[] = {"off", "1", "2", "3"};
    for (size_t i = 0; i < COUNT_OF(candidates); i++)
        cr_assert_eq(sum_with_bias(candidates[i], 0x1p-11f, 1 + 0x1p-12f), 1, "candidate %s",
                     candidates[i]);
}

Test(shapes, batches_of_many_products)
{
    enum { MANY = 2100 }; /* three calls of cuBLASLt's */
    struct tensor *operands[] = {random_tensor(&SHAPE(1, MANY, 2, 3), 1),
                                 random_tensor(&SHAPE(1, MANY, 3, 4), 2)};
    compare(single(OP_MATMUL, operands, 2, 2), operands, "a batch of products");
    compare(single(OP_MATMUL, operands, 2, 1), operands, "a batch of products by constants");
    tensor_unref(operands[0]);
    operands[0] = random_tensor(&SHAPE(1, 1, 2, 3), 3);
    compare(single(OP_MATMUL, operands, 2, 2), operands, "one matrix by many");
    tensor_unref(operands[0]);
    tensor_unref(operands[1]);
}

static struct node *add_node(struct graph *graph, enum op op, struct value *a, struct value *b)
{
    struct node *node = graph_add_node(graph, op, op_name(op), b ? 2 : 1, 1);
    node->opset = 13;
    node->inputs[0] = a;
    if (b)
        node->inputs[1] = b;
    node_set_output(node, 0, graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE));
    graph->outputs[0] = node->outputs[0];
    return node;
}

/* The last call of a batch writes no more than what is left: not into what lies behind its result.
 */
Test(shapes, batches_of_many_products_end_where_they_should)
{
    enum { MANY = 2100 };
    struct tensor *operands[] = {random_tensor(&SHAPE(1, MANY, 2, 3), 1),
                                 random_tensor(&SHAPE(1, MANY, 3, 4), 2)};
    struct tensor *more = random_tensor(&SHAPE(1, MANY, 3, 4), 3);
    struct graph *graph = single(OP_MATMUL, operands, 2, 2);
    struct value *first = graph->nodes[0]->outputs[0];
    struct value *kept = add_node(graph, OP_EXP, first, NULL)->outputs[0];
    const int64_t last = 3;
    struct node *greatest = add_node(graph, OP_REDUCE_MAX, first, NULL);
    cr_assert(set_axes(graph, greatest, &last, 1));
    struct value *also = greatest->outputs[0];
    struct value *constant = graph_add_constant(graph, "", more);
    struct value *second = add_node(graph, OP_MATMUL, graph->inputs[0], constant)->outputs[0];
    second = add_node(graph, OP_TANH, second, NULL)->outputs[0];
    kept = add_node(graph, OP_SUB, kept, also)->outputs[0];
    (void)add_node(graph, OP_MUL, kept, second);
    compare(graph, operands, "products beside what is kept");
    tensor_unref(operands[0]);
    tensor_unref(operands[1]);
    tensor_unref(more);
}

/* What is added to a product: one cuBLASLt has the activation fused (Relu), one is a pass behind
 * it. */
Test(shapes, batches_of_many_products_are_added_to)
{
    enum { MANY = 2100 };
    static const enum op activations[] = {OP_RELU, OP_SIGMOID};
    struct tensor *operands[] = {random_tensor(&SHAPE(1, MANY, 2, 3), 1),
                                 random_tensor(&SHAPE(1, MANY, 3, 4), 2)};
    struct tensor *more = random_tensor(&SHAPE(1, MANY, 3, 4), 3),
                  *bias = random_tensor(&SHAPE(4), 4);
    for (int i = 0; i < 4; i++) {
        struct graph *graph = single(OP_MATMUL, operands, 2, 2);
        struct value *product = graph->nodes[0]->outputs[0], *added;
        if (i % 2) {
            struct value *other = add_node(graph, OP_EXP, product, NULL)->outputs[0];
            added =
                add_node(graph, OP_MATMUL, graph->inputs[0], graph_add_constant(graph, "", more))
                    ->outputs[0];
            added = add_node(graph, OP_ADD, added, other)->outputs[0];
        } else {
            added =
                add_node(graph, OP_ADD, product, graph_add_constant(graph, "", bias))->outputs[0];
        }
        (void)add_node(graph, activations[i / 2], added, NULL);
        compare(graph, operands, i % 2 ? "products and a residual" : "products and a bias");
    }
    tensor_unref(operands[0]);
    tensor_unref(operands[1]);
    tensor_unref(more);
    tensor_unref(bias);
}

static bool runs_on_the_host(const struct graph *graph)
{
    struct session *session = NULL;
    struct session_step *steps;
    struct error err = {0};
    size_t count;
    bool found = false;
    cr_assert_eq(open_session(graph, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK, "%s",
                 err.message);
    for (size_t i = 0; i < count; i++)
        found = found || strcmp(steps[i].kernel, "host") == 0;
    free(steps);
    session_free(session);
    return found;
}

/* Products of batches that broadcast both ways have no kernel; what follows them runs on the
 * device.
 */
Test(shapes, what_has_no_kernel_runs_on_the_host)
{
    struct tensor *operands[] = {random_tensor(&SHAPE(1, 2, 1, 3, 4), 1),
                                 random_tensor(&SHAPE(1, 1, 5, 4, 6), 2)};
    struct tensor *bias = random_tensor(&SHAPE(6), 3),
                  *more = random_tensor(&SHAPE(1, 1, 5, 4, 6), 4);
    for (int with_residual = 0; with_residual < 2; with_residual++) {
        struct graph *graph = single(OP_MATMUL, operands, 2, 2);
        struct value *product = graph->nodes[0]->outputs[0];
        struct value *added =
            add_node(graph, OP_ADD, product, graph_add_constant(graph, "", bias))->outputs[0];
        if (with_residual) {
            struct value *constant = graph_add_constant(graph, "", more);
            struct value *other =
                add_node(graph, OP_MATMUL, graph->inputs[0], constant)->outputs[0];
            added = add_node(graph, OP_ADD, other, added)->outputs[0];
        }
        (void)add_node(graph, OP_RELU, added, NULL);
        cr_assert(runs_on_the_host(graph));
        compare(graph, operands, with_residual ? "host and a residual" : "host and a bias");
    }
    tensor_unref(operands[0]);
    tensor_unref(operands[1]);
    tensor_unref(bias);
    tensor_unref(more);
}

Test(shapes, nothing_folds_to_what_the_interpreter_says)
{
    static const enum op ops[] = {OP_REDUCE_SUM, OP_REDUCE_MEAN,    OP_REDUCE_MAX,
                                  OP_REDUCE_MIN, OP_REDUCE_PROD,    OP_REDUCE_L2,
                                  OP_REDUCE_L1,  OP_REDUCE_LOG_SUM, OP_REDUCE_LOG_SUM_EXP};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        for (int64_t axis = 1; axis < 4; axis++) {
            struct tensor *x = random_tensor(&SHAPE(1, 2, 0, 3), 1), *axes;
            struct error err;
            cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE(1), &axes, &err), STATUS_OK);
            *(int64_t *)axes->data = axis;
            struct tensor *operands[] = {x, axes};
            struct graph *graph = single(ops[i], operands, 2, 1);
            compare(graph, operands, op_name(ops[i]));
            tensor_unref(x);
            tensor_unref(axes);
        }
    }
}

Test(shapes, operators_take_operands_of_nothing)
{
    struct tensor *some = random_tensor(&SHAPE(1, 2, 3), 1),
                  *none = random_tensor(&SHAPE(1, 2, 0), 2);
    struct tensor *rows = random_tensor(&SHAPE(1, 0, 3), 3), *wide = random_tensor(&SHAPE(0, 5), 4);
    struct tensor *pairs[][2] = {{none, rows}, {rows, some}, {some, none}, {none, wide}};
    compare(single(OP_MATMUL, pairs[0], 2, 2), pairs[0], "a product of no depth");
    compare(single(OP_MATMUL, pairs[3], 2, 1), pairs[3], "a product of no depth, by a constant");
    struct graph *graph = single(OP_CONCAT, pairs[1], 2, 2);
    cr_assert(node_set_int(graph, graph->nodes[0], "axis", 1));
    compare(graph, pairs[1], "rows behind nothing");
    graph = single(OP_CONCAT, pairs[2], 2, 2);
    cr_assert(node_set_int(graph, graph->nodes[0], "axis", 2));
    compare(graph, pairs[2], "nothing behind columns");
    static const enum op ops[] = {OP_RELU, OP_EXP, OP_SOFTMAX, OP_IDENTITY};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        compare(single(ops[i], &none, 1, 1), &none, op_name(ops[i]));
    tensor_unref(some);
    tensor_unref(none);
    tensor_unref(rows);
    tensor_unref(wide);
}

/* Strides, dilations and pads are 64 bits in a file, and ints in kernels. */
static void expect_refusal(enum op op, const char *attribute, int64_t number)
{
    struct tensor *operands[] = {random_tensor(&SHAPE(1, 2, 3, 3), 1),
                                 random_tensor(&SHAPE(2, 2, 1, 1), 2)};
    const int64_t kernel[] = {1, 1}, numbers[] = {number, number, number, number};
    struct graph *graph = single(op, operands, op == OP_CONV ? 2 : 1, 1);
    struct session *session = NULL;
    struct error err = {0};
    cr_assert(node_set_ints(graph, graph->nodes[0], "kernel_shape", kernel, 2));
    cr_assert(node_set_ints(graph, graph->nodes[0], attribute, numbers,
                            strcmp(attribute, "pads") ? 2 : 4));
    cr_assert_eq(open_session(graph, &session, &err), STATUS_UNSUPPORTED, "%s: %s", attribute,
                 err.message);
    cr_assert(strstr(err.message, "2^30 elements"), "%s", err.message);
    graph_free(graph);
    tensor_unref(operands[0]);
    tensor_unref(operands[1]);
}

Test(shapes, windows_beyond_a_kernels_numbers_are_refused)
{
    static const enum op ops[] = {OP_CONV, OP_MAX_POOL, OP_AVERAGE_POOL};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        expect_refusal(ops[i], "strides", INT64_C(1) << 32);
        expect_refusal(ops[i], "strides", INT64_C(3) << 30);
        if (ops[i] != OP_AVERAGE_POOL)
            expect_refusal(ops[i], "dilations", INT64_C(1) << 33);
    }
}
