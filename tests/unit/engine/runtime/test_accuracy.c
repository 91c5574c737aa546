/* Sums of many numbers, and means that are much greater than what is left without them: sessions
 * against the same arithmetic in float64. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

/* One operator, perhaps with vectors behind its input, perhaps with a second in front of it. */
struct sample {
    const char *name;
    enum op op;
    struct shape shape;
    float mean, spread; /* of the input */
    const char *kernel;
};

static struct value *vector(struct graph *graph, struct shape shape, float x)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)tensor->data)[i] = x;
    struct value *value = graph_add_constant(graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *append(struct graph *graph, enum op op, struct value *x, struct value *scale,
                            struct value *bias)
{
    struct node *node = graph_add_node(graph, op, "", scale ? 3 : 1, 1);
    node->opset = 17;
    node->inputs[0] = x;
    if (scale) {
        node->inputs[1] = scale;
        node->inputs[2] = bias;
    }
    node_set_output(node, 0, graph_add_value(graph, "", DTYPE_NONE, NULL));
    return node->outputs[0];
}

/* A depthwise convolution whose only tap is its middle: x, and its mean beside it. */
static struct value *same_by_depthwise(struct graph *graph, struct value *x)
{
    const int64_t channels = x->shape.dims[1], ones[] = {1, 1, 1, 1}, taps[] = {3, 3};
    struct value *weights = vector(graph, SHAPE(channels, 1, 3, 3), 0);
    for (int64_t c = 0; c < channels; c++)
        ((float *)weights->known->data)[c * 9 + 4] = 1;
    struct value *y = append(graph, OP_CONV, x, weights, vector(graph, SHAPE(channels), 0));
    cr_assert(node_set_int(graph, y->producer, "group", channels));
    cr_assert(node_set_ints(graph, y->producer, "pads", ones, 4));
    cr_assert(node_set_ints(graph, y->producer, "kernel_shape", taps, 2));
    return y;
}

static struct graph *make_graph(const struct sample *s, bool depthwise)
{
    struct graph *graph = graph_create(NULL);
    struct value **ends = arena_alloc(graph->arena, 3, sizeof *ends);
    struct value *x = graph_add_value(graph, "x", DTYPE_F32, &s->shape);
    const int64_t last = s->shape.dims[s->shape.rank - 1], channels = s->shape.dims[1];
    ends[0] = x;
    graph->output_count = 1;
    if (depthwise) {
        x = same_by_depthwise(graph, x);
        ends[2] = append(graph, OP_RELU, x, NULL, NULL); /* somebody else reads the image */
        graph->output_count = 2;
    }
    if (s->op == OP_GLOBAL_AVERAGE_POOL)
        ends[1] = append(graph, s->op, x, NULL, NULL);
    else
        ends[1] =
            append(graph, s->op, x,
                   vector(graph, SHAPE(s->op == OP_LAYER_NORMALIZATION ? last : channels), 1.5f),
                   vector(graph, SHAPE(s->op == OP_LAYER_NORMALIZATION ? last : channels), 0.25f));
    graph->opset = 17;
    graph->inputs = ends;
    graph->input_count = 1;
    graph->outputs = ends + 1;
    return graph;
}

/* The rows of which there is a mean: as they lie in the file's layout. */
static double worst_difference(const struct sample *s, const float *x, const float *y)
{
    const size_t count = shape_count(&s->shape);
    const size_t row = s->op == OP_LAYER_NORMALIZATION
                           ? (size_t)s->shape.dims[s->shape.rank - 1]
                           : (size_t)(s->shape.dims[2] * s->shape.dims[3]);
    double worst = 0;
    for (size_t r = 0; r < count / row; r++, x += row) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < row; i++)
            mean += (double)x[i] / (double)row;
        for (size_t i = 0; i < row; i++)
            variance += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)row;
        if (s->op == OP_GLOBAL_AVERAGE_POOL) {
            worst = fmax(worst, fabs(mean - (double)y[r]) / fabs(mean));
            continue;
        }
        for (size_t i = 0; i < row; i++) {
            const double z = ((double)x[i] - mean) / sqrt(variance + (double)1e-5f) * 1.5 + 0.25;
            worst = fmax(worst, fabs(z - (double)y[r * row + i]));
        }
    }
    return worst;
}

static void check(const struct sample *s, bool depthwise, enum precision precision, int threads,
                  double allowed)
{
    struct error err = {0};
    struct graph *graph = make_graph(s, depthwise);
    struct session *session;
    const struct session_options options = {.precision = precision,
                                            .threads = threads,
                                            .max_batch = 1,
                                            .trial = true,
                                            .image_input = SIZE_MAX,
                                            .image_layout = IMAGE_AS_DECLARED};
    const size_t count = shape_count(&s->shape);
    float *x = alloc_array(count, sizeof *x);
    uint32_t state = 3;
    cr_assert_not_null(x);
    for (size_t i = 0; i < count; i++) {
        x[i] = s->mean + s->spread * random_unit(&state);
        if (precision == PRECISION_BF16) { /* what it can hold, so that the sum alone is judged */
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits &= 0xffff0000;
            memcpy(&x[i], &bits, sizeof bits);
        }
    }
    const void *inputs[1] = {x};
    const struct tensor *outputs[2];
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK);
    const double worst = worst_difference(s, x, outputs[0]->data);
    cr_assert(worst <= allowed, "%s, %s, %d threads: %g, not up to %g", s->name, simd()->name,
              threads, worst, allowed);
    struct session_step *steps;
    size_t step_count, found = 0;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &step_count, &err), STATUS_OK);
    for (size_t i = 0; i < step_count && s->kernel; i++)
        found += !strcmp(steps[i].kernel, s->kernel);
    cr_assert(!s->kernel || found == 1, "%s: not run by '%s'", s->name, s->kernel);
    free(steps);
    free(x);
    session_free(session);
    graph_free(graph);
}

static void check_all(const struct sample *s, bool depthwise, double allowed)
{
    const struct simd_kernels *variants[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(variants);
    for (size_t v = 0; v < variant_count; v++) {
        simd_use(variants[v]);
        check(s, depthwise, PRECISION_FP32, 1 + (int)v, allowed);
    }
    simd_use(NULL);
}

Test(accuracy, means_of_large_images)
{
    static const struct sample even = {
        "an even grey", OP_GLOBAL_AVERAGE_POOL, SHAPE(1, 3, 1024, 1024), 0.1f, 0, NULL};
    static const struct sample noise = {
        "noise", OP_GLOBAL_AVERAGE_POOL, SHAPE(1, 5, 1024, 1024), 0.5f, 0.4f, NULL};
    static const struct sample beside = {
        "beside a convolution", OP_GLOBAL_AVERAGE_POOL, SHAPE(1, 17, 700, 512), 0.1f, 0,
        "depthwise:mean"};
    check_all(&even, false, 1e-6);
    check_all(&noise, false, 1e-6);
    check_all(&beside, true, 5e-6);
}

/* The answer is bfloat16: half a step of it, and what the sum is off by. */
Test(accuracy, means_of_large_images_in_bfloat16)
{
    if (!device_cpu_has_bf16())
        cr_skip("this CPU has no bfloat16 instructions");
    static const struct sample even = {
        "an even grey in bfloat16", OP_GLOBAL_AVERAGE_POOL, SHAPE(1, 16, 1024, 1024), 1, 0, NULL};
    check(&even, false, PRECISION_BF16, 1, 1e-6);
    check(&even, true, PRECISION_BF16, 2, 1e-6);
}

Test(accuracy, means_far_above_the_deviation)
{
    static const struct sample instance = {
        "instances", OP_INSTANCE_NORMALIZATION, SHAPE(1, 7, 61, 50), 1000, 1, "groups"};
    static const struct sample large = {
        "large instances", OP_INSTANCE_NORMALIZATION, SHAPE(1, 3, 400, 300), -3000, 2, "groups"};
    static const struct sample rows = {"rows", OP_LAYER_NORMALIZATION, SHAPE(1, 5, 777), 1000, 1,
                                       NULL};
    static const struct sample odd = {"odd rows", OP_LAYER_NORMALIZATION, SHAPE(1, 9, 35), -2000, 1,
                                      NULL};
    check_all(&instance, false, 1e-5);
    check_all(&large, false, 1e-5);
    check_all(&rows, false, 1e-5);
    check_all(&odd, false, 1e-5);
}

/* Everything the same: nothing is left but the bias. */
Test(accuracy, no_deviation)
{
    static const struct sample instance = {
        "an even instance", OP_INSTANCE_NORMALIZATION, SHAPE(1, 4, 33, 31), 1000.1f, 0, "groups"};
    static const struct sample rows = {
        "an even row", OP_LAYER_NORMALIZATION, SHAPE(1, 2, 513), 1000.1f, 0, NULL};
    check_all(&instance, false, 1e-4);
    check_all(&rows, false, 1e-4);
}
