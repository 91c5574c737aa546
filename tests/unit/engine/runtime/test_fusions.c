/* Patterns that passes make one operator of, and their near misses: the compiled session against
 * the interpreter on the graph as it was, on each instruction set, in float32 and bfloat16, for one
 * image and for several; and which kernel ran how often. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

enum { MOST_ENDS = 4, IMAGES = 3 };

struct build {
    struct graph *graph;
    uint32_t state;
    struct value *inputs[MOST_ENDS], *outputs[MOST_ENDS];
    size_t input_count, output_count;
};

/* `count` steps of the compiled pass are run by `kernel`, none by a reference kernel. */
struct sample {
    const char *name;
    void (*make)(struct build *b, int variant);
    int variant;
    const char *kernel;
    size_t count;
    float spread; /* of the input: its mean is as much further from 0; 0: none */
};

static struct value *f32(struct build *b, struct shape shape, float scale)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)tensor->data)[i] = random_unit(&b->state) * scale;
    struct value *value = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *input(struct build *b, struct shape shape)
{
    struct value *value = graph_add_value(b->graph, "x", DTYPE_F32, &shape);
    b->inputs[b->input_count++] = value;
    return value;
}

static void output(struct build *b, struct value *value)
{
    b->outputs[b->output_count++] = value;
}

static struct value *node(struct build *b, enum op op, struct value *x, struct value *y,
                          struct value *z)
{
    struct node *made = graph_add_node(b->graph, op, "", z ? 3 : y ? 2 : 1, 1);
    made->opset = op == OP_GELU || op == OP_SILU ? 20 : 17;
    made->inputs[0] = x;
    if (y)
        made->inputs[1] = y;
    if (z)
        made->inputs[2] = z;
    node_set_output(made, 0, graph_add_value(b->graph, "", DTYPE_NONE, NULL));
    return made->outputs[0];
}

static void set_int(struct build *b, struct value *of, const char *name, int64_t x)
{
    cr_assert(node_set_int(b->graph, of->producer, name, x));
}

static void set_ints(struct build *b, struct value *of, const char *name, size_t count, int64_t x)
{
    int64_t values[TENSOR_MAX_RANK];
    for (size_t i = 0; i < count; i++)
        values[i] = x;
    cr_assert(node_set_ints(b->graph, of->producer, name, values, count));
}

static struct value *conv(struct build *b, struct value *x, int64_t in, int64_t out, int64_t taps)
{
    struct value *w = f32(b, SHAPE(out, in, taps, taps), 2 / sqrtf((float)(in * taps * taps)));
    struct value *y = node(b, OP_CONV, x, w, f32(b, SHAPE(out), 0.5f));
    set_ints(b, y, "kernel_shape", 2, taps);
    set_ints(b, y, "pads", 4, taps / 2);
    return y;
}

static void close_graph(struct build *b)
{
    struct value **ends = arena_alloc(b->graph->arena, 2 * MOST_ENDS, sizeof *ends);
    memcpy(ends, b->inputs, sizeof b->inputs);
    memcpy(ends + MOST_ENDS, b->outputs, sizeof b->outputs);
    b->graph->opset = 17;
    b->graph->inputs = ends;
    b->graph->input_count = b->input_count;
    b->graph->outputs = ends + MOST_ENDS;
    b->graph->output_count = b->output_count;
}

/* ---- running ---- */

static void compare(const struct sample *s, const char *how, const struct tensor *expected,
                    const struct tensor *got, float tolerance)
{
    const float *e = expected->data, *g = got->data;
    const size_t count = got->bytes / sizeof *g; /* of fewer images, perhaps */
    float largest = 0;
    cr_assert_leq(got->bytes, expected->bytes, "%s", s->name);
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(e[i]));
    cr_assert_gt(largest, 0, "%s", s->name);
    for (size_t i = 0; i < count; i++)
        cr_assert(fabsf(e[i] - g[i]) <= tolerance * largest,
                  "%s, %s, %s, element %zu of %zu: %g, not %g", s->name, how, simd()->name, i,
                  count, (double)g[i], (double)e[i]);
}

static void check_session(const struct sample *s, const struct graph *graph, void *const *inputs,
                          struct tensor *const *expected, enum precision precision, int threads,
                          int images)
{
    struct error err = {0};
    struct session *session;
    const bool narrow = precision == PRECISION_BF16;
    const struct session_options options = {.precision = precision,
                                            .threads = threads,
                                            .max_batch = images,
                                            .image_input = SIZE_MAX,
                                            .image_layout = IMAGE_AS_DECLARED};
    const struct tensor *outputs[MOST_ENDS];
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", s->name,
                 err.message);
    for (int run = 0; run < 2; run++) {
        cr_assert_eq(session_run(session, images, (const void *const *)inputs, outputs, &err),
                     STATUS_OK);
        for (size_t i = 0; i < graph->output_count; i++)
            compare(s, narrow ? "bf16" : "fp32", expected[i], outputs[i], narrow ? 4e-2f : 2e-5f);
    }
    struct session_step *steps;
    size_t count, found = 0;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        found += !strcmp(steps[i].kernel, s->kernel);
        cr_assert(strcmp(steps[i].kernel, "reference") != 0,
                  "%s: %s is run by its reference kernel", s->name, steps[i].name);
    }
    cr_assert_eq(found, s->count, "%s, %s: %zu steps by '%s', not %zu", s->name,
                 narrow ? "bf16" : "fp32", found, s->kernel, s->count);
    free(steps);
    session_free(session);
}

static void check(const struct sample *s)
{
    struct error err = {0};
    struct build b = {.graph = graph_create(NULL), .state = 11};
    struct tensor *inputs[MOST_ENDS], *expected[MOST_ENDS];
    void *data[MOST_ENDS];
    struct graph *plain;
    uint32_t state = 5;
    s->make(&b, s->variant);
    close_graph(&b);
    for (size_t i = 0; i < b.input_count; i++) {
        struct shape shape = b.inputs[i]->shape;
        shape.dims[0] = IMAGES;
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &inputs[i], &err), STATUS_OK);
        data[i] = inputs[i]->data;
        for (size_t k = 0; k < inputs[i]->bytes / sizeof(float); k++)
            ((float *)data[i])[k] = random_unit(&state) + s->spread;
    }
    cr_assert_eq(graph_clone(b.graph, &plain, &err), STATUS_OK);
    cr_assert_eq(interpret(plain, inputs, expected, NULL, NULL, &err), STATUS_OK, "%s: %s", s->name,
                 err.message);
    const struct simd_kernels *variants[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(variants);
    for (size_t v = 0; v < variant_count; v++) {
        simd_use(variants[v]);
        check_session(s, b.graph, data, expected, PRECISION_FP32, 1 + (int)v, v ? IMAGES : 1);
        if (device_cpu_has_bf16())
            check_session(s, b.graph, data, expected, PRECISION_BF16, 1 + (int)v, v ? 1 : IMAGES);
    }
    simd_use(NULL);
    for (size_t i = 0; i < b.input_count; i++)
        tensor_unref(inputs[i]);
    for (size_t i = 0; i < b.output_count; i++)
        tensor_unref(expected[i]);
    graph_free(plain);
    graph_free(b.graph);
}

static void check_all(const struct sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check(&samples[i]);
}

/* ---- concatenations that a normalisation reads ---- */

enum join {
    JOIN_RELU,
    JOIN_PLAIN,  /* no activation */
    JOIN_SILU,   /* one that is no clamp */
    JOIN_READ,   /* something else reads the concatenation */
    JOIN_OUTPUT, /* it is an output of the graph */
    JOIN_HEIGHT, /* images below each other */
};

static struct value *normalise(struct build *b, struct value *x, int64_t channels)
{
    struct node *norm = graph_add_node(b->graph, OP_BATCH_NORMALIZATION, "", 5, 1);
    norm->opset = 15;
    norm->inputs[0] = x;
    for (size_t i = 1; i < 5; i++) {
        norm->inputs[i] = f32(b, SHAPE(channels), 1);
        float *data = norm->inputs[i]->known->data;
        for (int64_t c = 0; i == 4 && c < channels; c++)
            data[c] = fabsf(data[c]) + 0.5f;
    }
    node_set_output(norm, 0, graph_add_value(b->graph, "", DTYPE_NONE, NULL));
    return norm->outputs[0];
}

/* Two layers and the image between them, one of them twice, and a layer behind. */
static void make_join_graph(struct build *b, int variant)
{
    struct value *image = input(b, SHAPE(DIM_UNKNOWN, 3, 13, 11));
    struct value *x = conv(b, image, 3, 20, 3),
                 *y = conv(b, x, 20, variant == JOIN_HEIGHT ? 20 : 33, 3);
    struct node *concat = graph_add_node(b->graph, OP_CONCAT, "", 3, 1);
    concat->opset = 13;
    concat->inputs[0] = x;
    concat->inputs[1] = y;
    concat->inputs[2] = x;
    cr_assert(node_set_int(b->graph, concat, "axis", variant == JOIN_HEIGHT ? 2 : 1));
    node_set_output(concat, 0, graph_add_value(b->graph, "", DTYPE_NONE, NULL));
    const int64_t channels = variant == JOIN_HEIGHT ? 20 : 73;
    struct value *joined = concat->outputs[0], *n = normalise(b, joined, channels);
    if (variant == JOIN_SILU)
        n = node(b, OP_MUL, n, node(b, OP_SIGMOID, n, NULL, NULL), NULL);
    else if (variant != JOIN_PLAIN)
        n = node(b, OP_RELU, n, NULL, NULL);
    output(b, conv(b, n, channels, 17, 1));
    if (variant == JOIN_READ)
        output(b, conv(b, joined, channels, 5, 1));
    if (variant == JOIN_OUTPUT)
        output(b, joined);
}

Test(fusions, a_normalised_concatenation)
{
    static const char parts[] = "scale_shift:parts";
    static const struct sample samples[] = {
        {"with ReLU", make_join_graph, JOIN_RELU, parts, 1, 0},
        {"with nothing", make_join_graph, JOIN_PLAIN, parts, 1, 0},
        {"with SiLU", make_join_graph, JOIN_SILU, parts, 1, 0},
        {"read twice", make_join_graph, JOIN_READ, parts, 0, 0},
        {"an output of the graph", make_join_graph, JOIN_OUTPUT, parts, 0, 0},
        {"along the height", make_join_graph, JOIN_HEIGHT, parts, 0, 0},
    };
    check_all(samples, COUNT_OF(samples));
}

/* ---- means of pointwise convolutions ---- */

enum pooled {
    POOLED,
    POOLED_GLOBAL,
    POOLED_OVERLAP, /* 3x3 windows, two apart, all inside */
    POOLED_PADDED,
    POOLED_CEIL, /* a last window that is cut off */
    POOLED_RELU,
    POOLED_READ,
    POOLED_3X3,
    POOLED_STRIDE_1,
    POOLED_MAX,
    POOLED_WIDE, /* many more channels in front than behind */
};

static void make_pooled(struct build *b, int variant)
{
    const int64_t in = variant == POOLED_WIDE ? 40 : 12;
    struct value *x = input(b, SHAPE(DIM_UNKNOWN, in, 13, 14));
    struct value *between =
        conv(b, node(b, OP_RELU, x, NULL, NULL), in, 8, variant == POOLED_3X3 ? 3 : 1);
    between->producer->name = "product";
    if (variant == POOLED_READ)
        output(b, node(b, OP_SIGMOID, between, NULL, NULL));
    struct value *front = variant == POOLED_RELU ? node(b, OP_RELU, between, NULL, NULL) : between;
    struct value *y = node(b,
                           variant == POOLED_MAX      ? OP_MAX_POOL
                           : variant == POOLED_GLOBAL ? OP_GLOBAL_AVERAGE_POOL
                                                      : OP_AVERAGE_POOL,
                           front, NULL, NULL);
    if (variant != POOLED_GLOBAL) {
        set_ints(b, y, "kernel_shape", 2,
                 variant == POOLED_OVERLAP || variant == POOLED_PADDED ? 3 : 2);
        set_ints(b, y, "strides", 2, variant == POOLED_STRIDE_1 ? 1 : 2);
    }
    if (variant == POOLED_PADDED) {
        set_ints(b, y, "pads", 4, 1);
        set_int(b, y, "count_include_pad", 1);
    }
    if (variant == POOLED_CEIL)
        set_int(b, y, "ceil_mode", 1);
    output(b, y);
}

/* Which layer a pool reads is seen by how many products the passes leave it: a product of a quarter
 * of the pixels. */
static void check_pooled(int variant, double share)
{
    struct error err = {0};
    struct build b = {.graph = graph_create(NULL), .state = 11};
    struct session *session;
    const struct session_options options = {
        .threads = 1, .max_batch = 1, .image_input = SIZE_MAX, .image_layout = IMAGE_AS_DECLARED};
    struct session_step *steps;
    size_t count;
    double gflop = 0;
    const double taps = variant == POOLED_3X3 ? 9 : 1, in = variant == POOLED_WIDE ? 40 : 12;
    make_pooled(&b, variant);
    close_graph(&b);
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        gflop += strcmp(steps[i].name, "product") == 0 ? steps[i].gflop : 0;
    cr_assert_float_eq(gflop * 1e9, 2 * in * 8 * taps * share, 1, "variant %d: %g", variant,
                       gflop * 1e9);
    free(steps);
    session_free(session);
    graph_free(b.graph);
}

Test(fusions, the_mean_of_a_pointwise_convolution)
{
    const double all = 13 * 14;
    for (int variant = POOLED; variant <= POOLED_WIDE; variant++) {
        const struct sample s = {"pooled", make_pooled, variant, "none", 0, 0};
        check(&s);
    }
    check_pooled(POOLED, 6 * 7);
    check_pooled(POOLED_GLOBAL, 1);
    check_pooled(POOLED_OVERLAP, 6 * 6);
    for (int variant = POOLED_PADDED; variant <= POOLED_WIDE; variant++)
        check_pooled(variant, all);
}

/* ---- rows that meet one vector, and depthwise convolutions with their mean, in both precisions
 * ---- */

enum gate {
    GATE,          /* squeeze-and-excite: x times the sigmoid of its mean */
    GATE_FIRST,    /* the other way round */
    GATE_RELU,     /* with an activation behind */
    GATE_PIXELS,   /* a number for each pixel instead */
    GATE_ROW,      /* one for each channel and column */
    GATE_CONSTANT, /* + a constant for each channel */
    GATE_WIDE,     /* more channels than are taken at a time */
    GATE_LIMIT,
};

static struct value *depthwise(struct build *b, struct value *x, int64_t channels)
{
    struct value *y =
        node(b, OP_CONV, x, f32(b, SHAPE(channels, 1, 3, 3), 0.7f), f32(b, SHAPE(channels), 0.5f));
    set_int(b, y, "group", channels);
    set_ints(b, y, "kernel_shape", 2, 3);
    set_ints(b, y, "pads", 4, 1);
    return node(b, OP_RELU, y, NULL, NULL);
}

static void make_gate(struct build *b, int variant)
{
    const int64_t channels = variant == GATE_WIDE ? 1100 : 36;
    struct value *image = input(b, SHAPE(DIM_UNKNOWN, channels, 7, 9));
    struct value *x = depthwise(b, image, channels);
    struct value *gate = node(b, OP_GLOBAL_AVERAGE_POOL, x, NULL, NULL);
    if (variant == GATE_PIXELS)
        gate = conv(b, x, channels, 1, 1);
    if (variant == GATE_ROW)
        gate = f32(b, SHAPE(1, channels, 1, 9), 1);
    if (variant == GATE_CONSTANT)
        gate = f32(b, SHAPE(channels, 1, 1), 1);
    else
        gate = node(b, OP_SIGMOID, gate, NULL, NULL);
    struct value *y =
        node(b, variant == GATE_CONSTANT ? OP_ADD : OP_MUL, variant == GATE_FIRST ? gate : x,
             variant == GATE_FIRST ? x : gate, NULL);
    if (variant == GATE_RELU)
        y = node(b, OP_RELU, node(b, OP_ADD, y, f32(b, SHAPE(channels, 1, 1), 1), NULL), NULL,
                 NULL);
    output(b, node(b, OP_SIGMOID, y, NULL, NULL));
    output(b, conv(b, y, channels, 5, 3));
}

Test(fusions, gates)
{
    for (int variant = GATE; variant < GATE_LIMIT; variant++) {
        const bool mean = variant != GATE_PIXELS && variant != GATE_ROW && variant != GATE_CONSTANT;
        const struct sample s = {"gate", make_gate, variant, "depthwise:mean", mean, 0};
        check(&s);
    }
}
