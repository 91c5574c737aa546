/* A quantized network as exporters write it (QDQ), in integers: against the interpreter, which
 * computes it in float32 between its QuantizeLinear. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/op/interpret.h"
#include "engine/passes/optimize.h"
#include "engine/runtime/session.h"
#include "tests/unit/random_graph.h"

#define SCALE 0.05f

struct network {
    struct graph *graph;
    uint32_t state;
    enum dtype dtype; /* of activations */
    struct value *scale, *zero, *low_zero;
};

static struct value *constant(struct network *n, enum dtype dtype, struct shape shape,
                              float (*number)(uint32_t *state))
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++) {
        const float x = number(&n->state);
        if (dtype == DTYPE_F32)
            ((float *)tensor->data)[i] = x;
        else if (dtype == DTYPE_I32)
            ((int32_t *)tensor->data)[i] = (int32_t)x;
        else
            ((uint8_t *)tensor->data)[i] = (uint8_t)(int)x;
    }
    struct value *value = graph_add_constant(n->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static float activation_scale(uint32_t *state)
{
    (void)state;
    return SCALE;
}
static float weight_scale(uint32_t *state)
{
    return 0.001f + 0.0005f * fabsf(random_unit(state));
}
static float bias_scale(uint32_t *state)
{
    return SCALE * weight_scale(state);
}
static float weight(uint32_t *state)
{
    return 100 * random_unit(state);
}
static float bias(uint32_t *state)
{
    return 3000 * random_unit(state);
}
static float large_bias(uint32_t *state)
{
    return 30000 * random_unit(state);
}
static float nothing(uint32_t *state)
{
    (void)state;
    return 0;
}
static float middle_unsigned(uint32_t *state)
{
    (void)state;
    return 117;
}
static float middle_signed(uint32_t *state)
{
    (void)state;
    return 5;
}
static float lowest_signed(uint32_t *state)
{
    (void)state;
    return -128;
}

static struct value *append(struct network *n, enum op op, size_t count,
                            struct value *const *inputs)
{
    struct node *node = graph_add_node(n->graph, op, "", count, 1);
    node->opset = 17;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node_set_output(node, 0, graph_add_value(n->graph, "", DTYPE_NONE, NULL));
    return node->outputs[0];
}

static struct value *quantize(struct network *n, struct value *x, struct value *zero)
{
    return append(n, OP_QUANTIZE_LINEAR, 3, (struct value *[]){x, n->scale, zero});
}

static struct value *dequantize(struct network *n, struct value *x, struct value *scale,
                                struct value *zero)
{
    return append(n, OP_DEQUANTIZE_LINEAR, 3, (struct value *[]){x, scale, zero});
}

/* x stored and read back. */
static struct value *through(struct network *n, struct value *x, struct value *zero)
{
    return dequantize(n, quantize(n, x, zero), n->scale, zero);
}

static struct value *conv(struct network *n, struct value *x, int64_t in, int64_t out, int64_t taps,
                          int64_t stride)
{
    const int64_t pads[4] = {taps / 2, taps / 2, taps / 2, taps / 2}, strides[2] = {stride, stride};
    struct value *w = dequantize(n, constant(n, DTYPE_I8, SHAPE(out, in, taps, taps), weight),
                                 constant(n, DTYPE_F32, SHAPE(out), weight_scale),
                                 constant(n, DTYPE_I8, SHAPE(out), nothing));
    cr_assert(node_set_int(n->graph, w->producer, "axis", 0));
    struct value *b = dequantize(n, constant(n, DTYPE_I32, SHAPE(out), bias),
                                 constant(n, DTYPE_F32, SHAPE(out), bias_scale),
                                 constant(n, DTYPE_I32, SHAPE(out), nothing));
    cr_assert(node_set_int(n->graph, b->producer, "axis", 0));
    struct value *y = append(n, OP_CONV, 3, (struct value *[]){x, w, b});
    cr_assert(node_set_ints(n->graph, y->producer, "pads", pads, 4));
    cr_assert(node_set_ints(n->graph, y->producer, "strides", strides, 2));
    return y;
}

/* Activations x [N, in] through a fully connected layer with a scale an output column. */
static struct value *fully_connected(struct network *n, struct value *x, int64_t in, int64_t out,
                                     bool transposed)
{
    struct shape shape = transposed ? SHAPE(out, in) : SHAPE(in, out);
    struct value *w = dequantize(n, constant(n, DTYPE_I8, shape, weight),
                                 constant(n, DTYPE_F32, SHAPE(out), weight_scale),
                                 constant(n, DTYPE_I8, SHAPE(out), nothing));
    cr_assert(node_set_int(n->graph, w->producer, "axis", !transposed));
    struct value *b = dequantize(n, constant(n, DTYPE_I32, SHAPE(out), large_bias),
                                 constant(n, DTYPE_F32, SHAPE(out), bias_scale),
                                 constant(n, DTYPE_I32, SHAPE(out), nothing));
    cr_assert(node_set_int(n->graph, b->producer, "axis", 0));
    struct value *y = append(n, OP_GEMM, 3, (struct value *[]){x, w, b});
    cr_assert(node_set_int(n->graph, y->producer, "transB", transposed));
    return y;
}

/* The same without a bias, as a MatMul. */
static struct value *matrix_product(struct network *n, struct value *x, int64_t in, int64_t out)
{
    struct value *w = dequantize(n, constant(n, DTYPE_I8, SHAPE(in, out), weight),
                                 constant(n, DTYPE_F32, SHAPE(out), weight_scale),
                                 constant(n, DTYPE_I8, SHAPE(out), nothing));
    cr_assert(node_set_int(n->graph, w->producer, "axis", 1));
    return append(n, OP_MATMUL, 2, (struct value *[]){x, w});
}

/* image → conv + Relu → conv (stride 2) ─┬─ + ─ Relu → MaxPool → mean
 *                      └─ conv 1x1 ──────┘       → MatMul → Gemm + Relu → Gemm */
static struct network make_network(enum dtype dtype)
{
    struct network n = {.graph = graph_create(NULL), .state = 11, .dtype = dtype};
    const bool is_signed = dtype == DTYPE_I8;
    const int64_t two[2] = {2, 2};
    struct shape shape = SHAPE(DIM_UNKNOWN, 3, 15, 13);
    struct value *image = graph_add_value(n.graph, "image", DTYPE_F32, &shape);
    n.scale = constant(&n, DTYPE_F32, (struct shape){0}, activation_scale);
    n.zero = constant(&n, dtype, (struct shape){0}, is_signed ? middle_signed : middle_unsigned);
    n.low_zero = constant(&n, dtype, (struct shape){0}, is_signed ? lowest_signed : nothing);
    struct value *x = through(&n, image, n.zero);
    x = append(&n, OP_RELU, 1, (struct value *[]){conv(&n, x, 3, 24, 3, 1)});
    x = through(&n, x, n.low_zero);
    struct value *a = through(&n, conv(&n, x, 24, 40, 3, 2), n.zero);
    struct value *b = through(&n, conv(&n, x, 24, 40, 1, 2), n.zero);
    x = append(&n, OP_ADD, 2, (struct value *[]){a, b});
    x = through(&n, append(&n, OP_RELU, 1, &x), n.low_zero);
    x = append(&n, OP_MAX_POOL, 1, &x);
    cr_assert(node_set_ints(n.graph, x->producer, "kernel_shape", two, 2));
    x = through(&n, x, n.low_zero);
    x = append(&n, OP_GLOBAL_AVERAGE_POOL, 1, &x);
    x = through(&n, x, n.low_zero);
    x = through(&n, append(&n, OP_FLATTEN, 1, &x), n.low_zero);
    x = through(&n, matrix_product(&n, x, 40, 18), n.zero);
    x = fully_connected(&n, x, 18, 21, true);
    x = through(&n, append(&n, OP_RELU, 1, &x), n.low_zero);
    x = through(&n, fully_connected(&n, x, 21, 33, false), n.zero);
    struct value **ends = arena_alloc(n.graph->arena, 2, sizeof *ends);
    ends[0] = image;
    ends[1] = x;
    n.graph->opset = 17;
    n.graph->inputs = ends;
    n.graph->input_count = 1;
    n.graph->outputs = ends + 1;
    n.graph->output_count = 1;
    return n;
}

static void expect_integers(struct session *session, struct error *err)
{
    struct session_step *steps;
    size_t count;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        cr_expect(strcmp(steps[i].kernel, "reference") != 0, "step %zu is not a fast one", i);
    cr_expect_leq(count, 14, "%zu steps: not everything became integers", count);
    free(steps);
}

static void compare(enum dtype dtype, const struct simd_kernels *kernels)
{
    enum { BATCH = 3 };
    struct error err = {0};
    struct network n = make_network(dtype);
    struct shape shape = SHAPE(BATCH, 3, 15, 13);
    struct tensor *input, *expected;
    uint32_t state = 3;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = 4 * random_unit(&state);
    struct graph *reference;
    cr_assert_eq(graph_clone(n.graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s",
                 err.message);
    simd_use(kernels);
    struct session *session;
    const struct session_options options = {.precision = PRECISION_INT8,
                                            .threads = 2,
                                            .max_batch = BATCH,
                                            .image_layout = IMAGE_AS_DECLARED};
    const void *inputs[1] = {input->data};
    const struct tensor *output;
    cr_assert(optimize_is_quantized(n.graph));
    cr_assert_eq(session_create(n.graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, BATCH, inputs, &output, &err), STATUS_OK, "%s", err.message);
    cr_assert(shape_equal(&output->shape, &expected->shape));
    const float *e = expected->data, *g = output->data;
    float sum = 0;
    for (size_t i = 0; i < shape_count(&output->shape); i++) {
        sum += fabsf(e[i]);
        /* a number between two steps may be rounded either way, here and in a layer before */
        cr_assert(fabsf(e[i] - g[i]) <= 1.01f * SCALE, "%s element %zu: %g, not %g", simd()->name,
                  i, (double)g[i], (double)e[i]);
    }
    cr_assert_gt(sum, 100 * SCALE, "the network says nothing: %g", (double)sum);
    expect_integers(session, &err);
    simd_use(NULL);
    session_free(session);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(n.graph);
}

Test(quantized, agrees_with_float_between_quantize_linear)
{
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const enum dtype dtype = is_signed ? DTYPE_I8 : DTYPE_U8;
        for (size_t v = 0; simd_at(v); v++)
            compare(dtype, simd_at(v));
    }
}

Test(quantized, int8_needs_a_quantized_file)
{
    struct error err = {0};
    struct graph *graph = random_graph(1, 9, 9);
    struct session *session = NULL;
    const struct session_options options = {.precision = PRECISION_INT8, .max_batch = 1};
    cr_assert_not(optimize_is_quantized(graph));
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_UNSUPPORTED);
    cr_assert(strstr(err.message, "int8"));
    graph_free(graph);
}

/* lensd quantize refuses them, too: the advice must not send there. */
Test(quantized, int8_needs_more_than_quantized_weights)
{
    static const enum op ops[] = {OP_DEQUANTIZE_LINEAR, OP_MATMUL_NBITS};
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        struct error err = {0};
        struct graph *graph = random_graph(1, 9, 9);
        struct session *session = NULL;
        const struct session_options options = {.precision = PRECISION_INT8, .max_batch = 1};
        cr_assert(graph_add_node(graph, ops[i], "weights", 3, 1));
        cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_UNSUPPORTED);
        cr_expect(strstr(err.message, "only the weights"), "%s", err.message);
        cr_expect(strstr(err.message, op_name(ops[i])), "%s", err.message);
        cr_expect_not(strstr(err.message, "lensd quantize"), "%s", err.message);
        graph_free(graph);
    }
}
