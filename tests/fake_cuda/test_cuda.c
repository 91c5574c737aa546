/* The CUDA backend over the stand-in: numbers against the interpreter, memory, CUDA graphs, and
 * every kind of failure. What runs here are the backend's own sources; that they are fast, or even
 * right, on a GPU is for ./dev gpu to say. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/fake_cuda/module_cases.h"
#include "tests/unit/operator_graphs.h"
#include "tests/unit/random_graph.h"

enum { HEIGHT = 10, WIDTH = 9, BATCH = 3 };

static const struct device_id gpu = {DEVICE_CUDA, 0};

TestSuite(cuda, .init = find_fake_module, .timeout = 240);

static float *make_images(uint32_t seed, size_t n)
{
    uint32_t state = seed + 7;
    size_t count = n * HEIGHT * WIDTH * 3;
    float *images = malloc(count * sizeof *images);
    for (size_t i = 0; i < count; i++)
        images[i] = random_unit(&state);
    return images;
}

static struct tensor *as_nchw(const float *nhwc)
{
    struct tensor *tensor;
    struct error err;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(BATCH, 3, HEIGHT, WIDTH), &tensor, &err), 0);
    float *to = tensor->data;
    for (size_t n = 0; n < BATCH; n++)
        for (size_t c = 0; c < 3; c++)
            for (size_t p = 0; p < HEIGHT * WIDTH; p++)
                to[(n * 3 + c) * HEIGHT * WIDTH + p] = nhwc[(n * HEIGHT * WIDTH + p) * 3 + c];
    return tensor;
}

static float difference(const struct tensor *expected, const struct tensor *got)
{
    const float *e = expected->data, *g = got->data;
    float largest = 1e-2f, worst = 0;
    for (size_t i = 0; i < shape_count(&expected->shape); i++) {
        float d = fabsf(e[i] - g[i]);
        largest = fmaxf(largest, fabsf(e[i]));
        worst = d <= worst ? worst : d; /* NaN stays */
    }
    return worst / largest;
}

static enum status open_session(const struct graph *graph, enum precision precision,
                                struct device_id device, struct session **ret, struct error *err)
{
    const struct session_options options = {
        .device = device, .precision = precision, .max_batch = 4, .image_layout = IMAGE_NHWC_F32};
    return session_create(graph, &options, ret, err);
}

/* Every step ran on the device. */
static void check_steps(struct session *session, const char *name)
{
    struct session_step *steps;
    struct error err = {0};
    size_t count;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    for (size_t i = 0; i < count; i++)
        cr_assert_str_neq(steps[i].kernel, "host", "%s: step '%s' runs on the host", name,
                          steps[i].name);
    free(steps);
}

/* One operator, in memory that is filled with NaN before each run. */
static void compare_operator(size_t which, enum precision precision, float tolerance)
{
    const char *name = operator_graph_name(which);
    struct error err = {0};
    struct graph *graph = operator_graph(which, (uint32_t)which + 1, HEIGHT, WIDTH), *reference;
    cr_assert_not_null(graph, "%s", name);
    const bool is_single = graph->inputs[0]->shape.dims[0] == 1;
    const int batch = is_single ? 1 : BATCH;
    const struct session_options options = {.device = gpu,
                                            .precision = precision,
                                            .max_batch = batch,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .trial = true,
                                            .poison = true};
    struct session *session = NULL;
    float *images = make_images((uint32_t)which, BATCH);
    struct tensor *input = as_nchw(images), *expected[1] = {NULL};
    const struct tensor *outputs[1];
    const void *inputs[] = {images};
    input->shape.dims[0] = batch;
    input->bytes = shape_count(&input->shape) * sizeof(float);
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 name, err.message);
    for (int run = 0; run < 3; run++) {
        cr_assert_eq(session_run(session, batch, inputs, outputs, &err), STATUS_OK, "%s: %s", name,
                     err.message);
        const float d = difference(expected[0], outputs[0]);
        cr_assert(d <= tolerance, "%s, %s, run %d: relative difference %g", name,
                  precision_name(precision), run, (double)d);
    }
    check_steps(session, name);
    tensor_unref(expected[0]);
    tensor_unref(input);
    graph_free(reference);
    session_free(session);
    graph_free(graph);
    free(images);
}

Test(cuda, every_operator_has_a_kernel_that_agrees)
{
    for (size_t i = 0; i < operator_graph_count(); i++)
        compare_operator(i, PRECISION_FP32, 1e-4f);
}

Test(cuda, operators_agree_in_16_bits)
{
    for (size_t i = 0; i < operator_graph_count(); i++) {
        if (!operator_graph_is_smooth(i))
            continue;
        compare_operator(i, PRECISION_FP16, 0.02f);
        compare_operator(i, PRECISION_BF16, 0.08f);
    }
}

static void compare(uint32_t seed, enum precision precision, float tolerance)
{
    struct error err = {0};
    struct graph *graph = random_graph(seed, HEIGHT, WIDTH), *reference;
    struct session *session = NULL;
    float *images = make_images(seed, 4);
    struct tensor *input = as_nchw(images), *expected[RANDOM_GRAPH_OUTPUTS] = {NULL};
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const void *inputs[] = {images};
    cr_assert_eq(open_session(graph, precision, gpu, &session, &err), STATUS_OK, "seed %u: %s",
                 seed, err.message);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, expected, NULL, NULL, &err), STATUS_OK);
    /* Step by step, recorded, and the recording played: nothing may linger in the arena. */
    for (int run = 0; run < 3; run++) {
        cr_assert_eq(session_run(session, BATCH, inputs, outputs, &err), STATUS_OK, "seed %u: %s",
                     seed, err.message);
        for (size_t o = 0; o < graph->output_count; o++) {
            float d = difference(expected[o], outputs[o]);
            cr_assert(d <= tolerance, "seed %u, output %zu, run %d: relative difference %g", seed,
                      o, run, (double)d);
        }
    }
    for (size_t o = 0; o < RANDOM_GRAPH_OUTPUTS; o++)
        tensor_unref(expected[o]);
    tensor_unref(input);
    graph_free(reference);
    session_free(session);
    graph_free(graph);
    free(images);
    cr_assert_eq(fake.used(0), 0, "seed %u leaves %zu bytes on the device", seed, fake.used(0));
}

/* Like float16, whose fraction has as many bits, but for its range. */
Test(cuda, operators_agree_in_tf32)
{
    for (size_t i = 0; i < operator_graph_count(); i++)
        if (operator_graph_is_smooth(i))
            compare_operator(i, PRECISION_TF32, 0.02f);
}

Test(cuda, agrees_with_the_interpreter)
{
    for (uint32_t seed = 1; seed <= 24; seed++)
        compare(seed, PRECISION_FP32, 1e-4f);
}

Test(cuda, computes_in_bfloat16)
{
    for (uint32_t seed = 300; seed < 308; seed++)
        compare(seed, PRECISION_BF16, 0.08f);
}

Test(cuda, computes_in_float16)
{
    for (uint32_t seed = 300; seed < 312; seed++)
        compare(seed, PRECISION_FP16, 0.03f);
}

Test(cuda, computes_in_tf32)
{
    for (uint32_t seed = 300; seed < 308; seed++)
        compare(seed, PRECISION_TF32, 0.02f);
}

/* Measures nothing: the only runs are the test's. */
static enum status open_unmeasured(const struct graph *graph, bool poison, struct session **ret,
                                   struct error *err)
{
    const struct session_options options = {.device = gpu,
                                            .max_batch = 4,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .trial = true,
                                            .poison = poison};
    return session_create(graph, &options, ret, err);
}

/* image [?, 3, h, w] → Conv 3×3, ReLU → Conv 1×1 → GlobalAveragePool: kernels throughout. */
static struct graph *small_network(void)
{
    struct graph *graph = graph_create(NULL);
    struct error err;
    graph->opset = 13;
    struct value *x =
        graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 3, HEIGHT, WIDTH));
    graph->inputs = arena_alloc(graph->arena, 1, sizeof *graph->inputs);
    graph->inputs[0] = x;
    graph->input_count = 1;
    const struct shape shapes[] = {SHAPE(70, 3, 3, 3), SHAPE(5, 70, 1, 1)};
    uint32_t state = 5;
    for (size_t i = 0; i < 2; i++) {
        struct tensor *weights;
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shapes[i], &weights, &err), STATUS_OK);
        for (size_t k = 0; k < shape_count(&shapes[i]); k++)
            ((float *)weights->data)[k] = random_unit(&state);
        struct node *conv = graph_add_node(graph, OP_CONV, i ? "second" : "first", 2, 1);
        conv->opset = 13;
        conv->inputs[0] = x;
        conv->inputs[1] = graph_add_constant(graph, i ? "w2" : "w1", weights);
        x = graph_add_value(graph, i ? "c2" : "c1", DTYPE_NONE, &SHAPE_NONE);
        node_set_output(conv, 0, x);
        struct node *relu = graph_add_node(graph, OP_RELU, i ? "relu2" : "relu1", 1, 1);
        relu->opset = 13;
        relu->inputs[0] = x;
        x = graph_add_value(graph, i ? "r2" : "r1", DTYPE_NONE, &SHAPE_NONE);
        node_set_output(relu, 0, x);
    }
    struct node *pool = graph_add_node(graph, OP_GLOBAL_AVERAGE_POOL, "pool", 1, 1);
    pool->opset = 13;
    pool->inputs[0] = x;
    x = graph_add_value(graph, "scores", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 5, 1, 1));
    node_set_output(pool, 0, x);
    graph->outputs = arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    graph->outputs[0] = x;
    graph->output_count = 1;
    return graph;
}

/* What computes the first convolution, and how far the answers are from the interpreter's. */
static const char *first_kernel(enum precision precision, float *ret_difference)
{
    struct graph *graph = small_network(), *reference;
    struct session *session = NULL;
    struct session_step *steps;
    struct error err = {0};
    float *images = make_images(4, 4);
    struct tensor *input = as_nchw(images), *expected;
    const struct tensor *output;
    const void *inputs[] = {images};
    size_t count;
    cr_assert_eq(open_session(graph, precision, gpu, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_profile(session, BATCH, 1, &steps, &count, &err), STATUS_OK);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK);
    cr_assert_eq(session_run(session, BATCH, inputs, &output, &err), STATUS_OK, "%s", err.message);
    *ret_difference = difference(expected, output);
    const char *kernel = steps[0].kernel; /* static text */
    free(steps);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    session_free(session);
    graph_free(graph);
    free(images);
    return kernel;
}

/* fp32 is strict: only tf32 rounds operands. */
Test(cuda, tf32_only_where_it_is_asked_for)
{
    float strict, rounded;
    cr_expect_str_eq(first_kernel(PRECISION_FP32, &strict), "conv");
    cr_expect_str_eq(first_kernel(PRECISION_TF32, &rounded), "tensor-core conv");
    cr_expect_lt(strict, 1e-6f);
    cr_expect(rounded > 1e-5f && rounded < 1e-3f, "%g", (double)rounded);
}

Test(cuda, tf32_needs_its_tensor_cores)
{
    struct graph *graph = small_network();
    struct session *session = NULL;
    struct error err = {0};
    fake.capability(75);
    cr_expect_eq(open_session(graph, PRECISION_TF32, gpu, &session, &err), STATUS_DEVICE);
    cr_expect(strstr(err.message, "compute capability 8.0"), "%s", err.message);
    fake.capability(90);
    const struct device_id cpu = {DEVICE_CPU, 0};
    cr_expect_eq(open_session(graph, PRECISION_TF32, cpu, &session, &err), STATUS_UNSUPPORTED);
    cr_expect_str_eq(err.message, "the precision tf32 is for GPUs; use fp32 or bf16 on a CPU");
    graph_free(graph);
}

Test(cuda, a_batch_is_one_launch_from_the_second_run_on)
{
    struct graph *graph = small_network();
    struct session *session;
    struct error err = {0};
    float *images = make_images(1, 4);
    const void *inputs[] = {images};
    const struct tensor *outputs[1];
    cr_assert_eq(open_unmeasured(graph, false, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, 2, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, 2, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    size_t before = fake.graph_launches();
    for (int i = 0; i < 5; i++)
        cr_assert_eq(session_run(session, 2, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(fake.graph_launches(), before + 5);
    session_free(session);
    graph_free(graph);
    free(images);
}

/* No batch has to wait for the upload of its graph, in either slot. */
Test(cuda, graphs_are_launched_before_the_first_batch)
{
    struct graph *graph = small_network();
    struct session *session;
    struct error err = {0};
    float *images = make_images(1, 4);
    const void *inputs[] = {images};
    const struct tensor *outputs[1];
    const size_t cold = fake.count(FAKE_CUDA_COLD_LAUNCHES, 0);
    cr_assert_eq(open_unmeasured(graph, false, &session, &err), STATUS_OK, "%s", err.message);
    const size_t first = fake.count(FAKE_CUDA_FIRST_LAUNCHES, 0);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(session_run(session, 2, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(fake.count(FAKE_CUDA_FIRST_LAUNCHES, 0), first);
    cr_assert_eq(fake.count(FAKE_CUDA_COLD_LAUNCHES, 0), cold);
    session_free(session);
    graph_free(graph);
    free(images);
}

/* What is timed is the program alone: kernels run, nothing is copied to or from the host. */
Test(cuda, passes_are_timed_without_their_copies)
{
    struct graph *graph = small_network();
    struct session *session;
    struct error err = {0};
    double ms = 0;
    cr_assert_eq(open_unmeasured(graph, false, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_time(session, 4, 2, &ms, &err), STATUS_OK, "%s", err.message);
    size_t before = fake.graph_launches();
    cr_assert_eq(session_time(session, 4, 5, &ms, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(fake.graph_launches(), before + 2 * 5); /* as many before those that are counted */
    cr_assert_gt(ms, 0);
    cr_assert_eq(session_time(session, 5, 1, &ms, &err), STATUS_INVALID);
    session_free(session);
    cr_assert_eq(open_session(graph, PRECISION_FP32, DEVICE_HOST, &session, &err), STATUS_OK);
    cr_assert_eq(session_time(session, 4, 1, &ms, &err), STATUS_UNSUPPORTED);
    session_free(session);
    graph_free(graph);
}

/* Every element of the outputs is written in every run, and nothing is read that was not. */
Test(cuda, poisoned_memory_changes_no_answer)
{
    for (uint32_t seed = 40; seed < 42; seed++) {
        struct error err = {0};
        struct graph *graph = random_graph(seed, HEIGHT, WIDTH);
        struct session *plain = NULL, *poisoned = NULL;
        float *images = make_images(seed, 4);
        const struct tensor *a[RANDOM_GRAPH_OUTPUTS], *b[RANDOM_GRAPH_OUTPUTS];
        const void *inputs[] = {images};
        cr_assert_eq(open_unmeasured(graph, false, &plain, &err), STATUS_OK);
        cr_assert_eq(open_unmeasured(graph, true, &poisoned, &err), STATUS_OK);
        for (int run = 0; run < 3; run++) {
            cr_assert_eq(session_run(plain, BATCH, inputs, a, &err), STATUS_OK);
            cr_assert_eq(session_run(poisoned, BATCH, inputs, b, &err), STATUS_OK);
            for (size_t o = 0; o < graph->output_count; o++)
                cr_assert_eq(memcmp(a[o]->data, b[o]->data, a[o]->bytes), 0,
                             "seed %u, output %zu, run %d", seed, o, run);
        }
        session_free(plain);
        session_free(poisoned);
        graph_free(graph);
        free(images);
    }
}

Test(cuda, the_second_device_has_memory_of_its_own)
{
    struct graph *graph = small_network();
    struct session *session;
    struct error err = {0};
    cr_assert_eq(
        open_session(graph, PRECISION_FP32, (struct device_id){DEVICE_CUDA, 1}, &session, &err),
        STATUS_OK, "%s", err.message);
    cr_assert_eq(fake.used(0), 0);
    cr_assert_gt(fake.used(1), session_info(session)->parameter_bytes);
    session_free(session);
    cr_assert_eq(fake.used(1), 0);
    cr_assert_eq(
        open_session(graph, PRECISION_FP32, (struct device_id){DEVICE_CUDA, 2}, &session, &err),
        STATUS_DEVICE);
    cr_assert(strstr(err.message, "cuda:2"), "%s", err.message);
    graph_free(graph);
}

Test(cuda, running_out_of_memory_at_load_is_said)
{
    struct graph *graph = small_network();
    struct session *session = NULL;
    struct error err = {0};
    fake.reset(1, 64 << 10);
    cr_assert_eq(open_session(graph, PRECISION_FP32, gpu, &session, &err), STATUS_NO_MEMORY, "%s",
                 err.message);
    cr_assert(strstr(err.message, "on cuda:0") && strstr(err.message, "are missing"), "%s",
              err.message);
    cr_assert_eq(fake.used(0), 0);
    graph_free(graph);
}

/* Whatever call of CUDA fails while a session is made: an error, nothing left behind. */
Test(cuda, every_call_may_fail_at_load)
{
    struct graph *graph = small_network();
    int failed = 0;
    for (int after = 0; after < 2000; after += 1 + after / 8) {
        struct session *session = NULL;
        struct error err = {0};
        fake.reset(1, (size_t)1 << 30);
        fake.fail(after, cudaErrorUnknown, 0);
        enum status status = open_session(graph, PRECISION_FP32, gpu, &session, &err);
        if (status == STATUS_OK) {
            session_free(session);
        } else {
            failed++;
            cr_assert_eq(status, STATUS_DEVICE, "call %d: %s", after, err.message);
            cr_assert(strstr(err.message, "cuda:0"), "call %d: %s", after, err.message);
        }
        cr_assert_eq(fake.used(0), 0, "call %d", after);
    }
    cr_assert_gt(failed, 15);
    graph_free(graph);
}

Test(cuda, a_lost_device_is_an_error_of_every_run)
{
    struct graph *graph = small_network();
    struct session *session;
    struct error err = {0};
    float *images = make_images(1, 4);
    const void *inputs[] = {images};
    const struct tensor *outputs[1];
    cr_assert_eq(open_session(graph, PRECISION_FP32, gpu, &session, &err), STATUS_OK, "%s",
                 err.message);
    fake.fail(3, cudaErrorIllegalAddress, 1);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_DEVICE);
        cr_assert(strstr(err.message, "illegal memory access"), "%s", err.message);
    }
    session_free(session);
    graph_free(graph);
    free(images);
}

/* ---- indices that a run computes ---- */

/* What an operator makes of x, or of x and y. */
static struct value *chained(struct graph *graph, enum op op, struct value *x, struct value *y)
{
    struct node *node = graph_add_node(graph, op, "", y ? 2 : 1, 1);
    node->opset = 13;
    node->inputs[0] = x;
    if (y)
        node->inputs[1] = y;
    struct value *out = graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE);
    node_set_output(node, 0, out);
    return out;
}

static struct value *number(struct graph *graph, enum dtype dtype, int64_t x)
{
    struct tensor *tensor;
    struct error err;
    cr_assert_eq(tensor_create(NULL, dtype, &SHAPE(1), &tensor, &err), STATUS_OK);
    if (dtype == DTYPE_F32)
        *(float *)tensor->data = (float)x;
    else
        memcpy(tensor->data, &x, dtype_size(dtype)); /* little-endian */
    struct value *value = graph_add_constant(graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

struct arithmetic {
    enum op op;
    int64_t operand;
};

/* image → GatherElements along its width by (image > 0 ? most : 0), of `dtype`, that `steps` work
 * on, as int64. */
static struct graph *gather_by_arithmetic(enum dtype dtype, int64_t most,
                                          const struct arithmetic *steps, size_t count)
{
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    struct value *image =
        graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 3, HEIGHT, WIDTH));
    graph->inputs = arena_alloc(graph->arena, 1, sizeof *graph->inputs);
    graph->inputs[0] = image;
    graph->input_count = 1;
    struct value *is_positive = chained(graph, OP_GREATER, image, number(graph, DTYPE_F32, 0));
    struct node *where = graph_add_node(graph, OP_WHERE, "", 3, 1);
    where->opset = 13;
    where->inputs[0] = is_positive;
    where->inputs[1] = number(graph, dtype, most);
    where->inputs[2] = number(graph, dtype, 0);
    struct value *x = graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE);
    node_set_output(where, 0, x);
    for (size_t i = 0; i < count; i++)
        x = chained(graph, steps[i].op, x, number(graph, dtype, steps[i].operand));
    x = chained(graph, OP_CAST, x, NULL);
    cr_assert(node_set_int(graph, x->producer, "to", DTYPE_I64));
    x = chained(graph, OP_GATHER_ELEMENTS, image, x);
    cr_assert(node_set_int(graph, x->producer, "axis", 3));
    graph->outputs = arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    graph->outputs[0] = x;
    graph->output_count = 1;
    return graph;
}

/* The session answers as the interpreter does: with an error, or with its numbers, from the device.
 */
static void compare_indices(struct graph *graph, const char *name, bool is_within)
{
    struct error err = {0}, expected_err = {0};
    struct graph *reference;
    struct session *session = NULL;
    float *images = make_images(9, 4);
    struct tensor *input = as_nchw(images), *expected[1] = {NULL};
    const struct tensor *outputs[1];
    const void *inputs[] = {images};
    input->shape.dims[0] = 1;
    input->bytes = shape_count(&input->shape) * sizeof(float);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    const enum status status = interpret(reference, &input, expected, NULL, NULL, &expected_err);
    cr_assert_eq(status == STATUS_OK, is_within, "%s: %s", name, expected_err.message);
    /* The zeros of a session's first run may be as bad as the image. */
    enum status got = open_unmeasured(graph, false, &session, &err);
    for (int run = 0; run < 3 && (got == STATUS_OK || run > 0); run++) {
        got = session_run(session, 1, inputs, outputs, &err);
        cr_assert_eq(got, status, "%s, run %d: %s", name, run, err.message);
        if (is_within)
            cr_assert_eq(memcmp(outputs[0]->data, expected[0]->data, expected[0]->bytes), 0, "%s",
                         name);
    }
    cr_assert_eq(got, status, "%s: %s", name, err.message);
    cr_assert(is_within || strstr(err.message, "out of range"), "%s: %s", name, err.message);
    if (is_within)
        check_steps(session, name);
    tensor_unref(expected[0]);
    tensor_unref(input);
    graph_free(reference);
    session_free(session);
    graph_free(graph);
    free(images);
}

#define BY(dtype, most, ...)                                                                       \
    gather_by_arithmetic(dtype, most, (const struct arithmetic[]){__VA_ARGS__},                    \
                         sizeof((const struct arithmetic[]){__VA_ARGS__}) /                        \
                             sizeof(struct arithmetic))

Test(cuda, indices_whose_sums_wrap_are_looked_at)
{
    compare_indices(BY(DTYPE_U8, 1, {OP_SUB, 1}), "uint8 0 - 1", false);
    compare_indices(BY(DTYPE_I32, INT32_MAX, {OP_ADD, 1}, {OP_DIV, 1 << 28}, {OP_SUB, 2}),
                    "int32, divided", false);
    compare_indices(BY(DTYPE_I64, INT64_MAX, {OP_ADD, 1}, {OP_DIV, INT64_C(1) << 60}, {OP_SUB, 2}),
                    "int64, divided", false);
    compare_indices(BY(DTYPE_I32, 7, {OP_ADD, 1}, {OP_MUL, 2}, {OP_DIV, 2}), "int32 that fits",
                    true);
}

Test(cuda, devices_are_named)
{
    struct device_id ids[DEVICE_MAX];
    struct error err = {0};
    char fallback[256];
    size_t count = 0;
    cr_assert_eq(device_parse("all", ids, &count, fallback, sizeof fallback, &err), STATUS_OK);
    cr_assert_eq(count, 2);
    cr_assert_eq(device_parse("auto", ids, &count, fallback, sizeof fallback, &err), STATUS_OK);
    cr_assert(count == 1 && ids[0].kind == DEVICE_CUDA && !fallback[0]);
    cr_assert_eq(device_parse("cuda:7", ids, &count, fallback, sizeof fallback, &err),
                 STATUS_DEVICE);
    cr_assert(strstr(err.message, "cpu, cuda:0, cuda:1"), "%s", err.message);
}
