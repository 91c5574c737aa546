/* Single layers of the sizes that real networks have, where the backend picks kernels that small
 * random graphs never reach: each instruction set, several thread counts and batch sizes against
 * the interpreter's reference kernels. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

struct layer {
    const char *name;
    int64_t height, width, channels; /* of the image that the layer reads */
    int64_t out, taps, stride, pad, group;
    enum op activation; /* OP_NONE: none */
    bool residual;      /* + what the layer reads, in front of the activation */
    bool scaled;        /* squeeze-and-excite in front: x * sigmoid(mean(x)), x of a depthwise */
    const char *kernel; /* how the profile names what ran it */
    bool also_bf16;
};

static struct value *constant(struct graph *graph, uint32_t *state, struct shape shape, float scale)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, &err), STATUS_OK);
    float *data = tensor->data;
    for (size_t i = 0; i < shape_count(&shape); i++)
        data[i] = random_unit(state) * scale;
    struct value *value = graph_add_constant(graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *append(struct graph *graph, enum op op, struct value *a, struct value *b,
                            struct value *c)
{
    struct node *node = graph_add_node(graph, op, "", c ? 3 : b ? 2 : 1, 1);
    node->opset = op == OP_SILU || op == OP_GELU ? 20 : 17;
    node->inputs[0] = a;
    if (b)
        node->inputs[1] = b;
    if (c)
        node->inputs[2] = c;
    node_set_output(node, 0, graph_add_value(graph, "", DTYPE_NONE, NULL));
    return node->outputs[0];
}

static struct value *append_conv(struct graph *graph, uint32_t *state, const struct layer *l,
                                 struct value *x, int64_t in)
{
    const int64_t pads[4] = {l->pad, l->pad, l->pad, l->pad};
    const int64_t strides[2] = {l->stride, l->stride};
    const float scale = 1.0f / sqrtf((float)(in / l->group * l->taps * l->taps));
    struct value *weights =
        constant(graph, state, SHAPE(l->out, in / l->group, l->taps, l->taps), scale);
    struct value *y = append(graph, OP_CONV, x, weights, constant(graph, state, SHAPE(l->out), 1));
    cr_assert(node_set_ints(graph, y->producer, "pads", pads, 4));
    cr_assert(node_set_ints(graph, y->producer, "strides", strides, 2));
    cr_assert(node_set_int(graph, y->producer, "group", l->group));
    return y;
}

static void set_ends(struct graph *graph, struct value *image, struct value *y)
{
    struct value **ends = arena_alloc(graph->arena, 2, sizeof *ends);
    ends[0] = image;
    ends[1] = y;
    graph->opset = 17;
    graph->inputs = ends;
    graph->input_count = 1;
    graph->outputs = ends + 1;
    graph->output_count = 1;
}

/* image -> a pointwise layer that makes l->channels of 3 -> the layer */
static struct graph *make_graph(const struct layer *l)
{
    uint32_t state = 7;
    struct graph *graph = graph_create(NULL);
    struct shape shape = SHAPE(DIM_UNKNOWN, 3, l->height, l->width);
    struct value *image = graph_add_value(graph, "image", DTYPE_F32, &shape);
    const struct layer first = {.out = l->channels, .taps = 1, .stride = 1, .group = 1};
    struct value *x = append_conv(graph, &state, &first, image, 3), *read = x;
    if (l->scaled) {
        const struct layer depthwise = {
            .out = l->channels, .taps = 3, .stride = 1, .pad = 1, .group = l->channels};
        x = append(graph, OP_HARD_SWISH, append_conv(graph, &state, &depthwise, x, l->channels),
                   NULL, NULL);
        read = append(graph, OP_MUL, x,
                      append(graph, OP_SIGMOID,
                             append(graph, OP_GLOBAL_AVERAGE_POOL, x, NULL, NULL), NULL, NULL),
                      NULL);
    }
    struct value *y = append_conv(graph, &state, l, read, l->channels);
    if (l->residual)
        y = append(graph, OP_ADD, y, x, NULL);
    if (l->activation != OP_NONE)
        y = append(graph, l->activation, y, NULL, NULL);
    set_ends(graph, image, y);
    return graph;
}

static void expect(const struct layer *l, const struct graph *graph, const float *images,
                   const struct tensor *expected, int batch, int threads, enum precision precision)
{
    struct error err = {0};
    struct session *session;
    const struct session_options options = {.threads = threads,
                                            .max_batch = batch,
                                            .image_layout = IMAGE_AS_DECLARED,
                                            .precision = precision};
    const struct tensor *output;
    const void *inputs[1] = {images};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", l->name,
                 err.message);
    for (int run = 0; run < 2; run++) {
        cr_assert_eq(session_run(session, batch, inputs, &output, &err), STATUS_OK);
        const float *e = expected->data, *g = output->data;
        float largest = 0, worst = 0;
        size_t at = 0;
        for (size_t i = 0; i < output->bytes / sizeof *g; i++) {
            const float d = fabsf(e[i] - g[i]);
            largest = fmaxf(largest, fabsf(e[i]));
            if (!(d <= worst)) {
                worst = d;
                at = i;
            }
        }
        cr_assert(worst <= (precision == PRECISION_BF16 ? 2e-2f : 2e-5f) * largest,
                  "%s, %s, batch %d, %d threads, element %zu: %g, not %g", l->name, simd()->name,
                  batch, threads, at, (double)g[at], (double)e[at]);
    }
    struct session_step *steps;
    size_t count, found = 0;
    cr_assert_eq(session_profile(session, batch, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        found += strcmp(steps[i].kernel, l->kernel) == 0;
    cr_assert_gt(found, 0, "%s: no step was run by '%s'", l->name, l->kernel);
    free(steps);
    session_free(session);
}

/* Compares the layer's graph with its reference for `shape`, the images of a batch. Frees it. */
static void check_graph(const struct layer *l, struct graph *graph, struct shape shape)
{
    const int batch = (int)shape.dims[0];
    struct error err = {0};
    struct graph *reference;
    struct tensor *input, *expected;
    uint32_t state = 5;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = random_unit(&state);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 l->name, err.message);
    cpu_prefer_winograd(true);
    const struct simd_kernels *variants[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(variants);
    for (size_t v = 0; v < variant_count; v++) {
        simd_use(variants[v]);
        expect(l, graph, input->data, expected, 1, 1, PRECISION_FP32);
        expect(l, graph, input->data, expected, batch, 2, PRECISION_FP32);
        if (l->also_bf16 && device_cpu_has_bf16())
            expect(l, graph, input->data, expected, batch, 2, PRECISION_BF16);
        if (v == 2)
            expect(l, graph, input->data, expected, 2, 3, PRECISION_FP32);
    }
    simd_use(NULL);
    cpu_prefer_winograd(false);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(graph);
}

static void check_all(const struct layer *layers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_graph(&layers[i], make_graph(&layers[i]),
                    SHAPE(3, 3, layers[i].height, layers[i].width));
}

Test(layers, three_by_three)
{
    static const struct layer layers[] = {
        {"by tiles", 28, 28, 64, 64, 3, 1, 1, 1, OP_RELU, true, false, "winograd"},
        {"partial tiles", 27, 29, 48, 80, 3, 1, 1, 1, OP_NONE, false, false, "winograd"},
        {"without padding", 30, 26, 24, 40, 3, 1, 0, 1, OP_SILU, false, false, "winograd"},
        {"wide padding", 21, 22, 17, 33, 3, 1, 2, 1, OP_RELU, false, false, "winograd"},
        {"by points", 14, 14, 192, 160, 3, 1, 1, 1, OP_RELU, false, false, "winograd"},
        {"by points with a residual", 13, 12, 160, 160, 3, 1, 1, 1, OP_SIGMOID, true, false,
         "winograd"},
    };
    check_all(layers, COUNT_OF(layers));
}

Test(layers, depthwise)
{
    static const struct layer layers[] = {
        {"3x3", 28, 21, 96, 96, 3, 1, 1, 96, OP_RELU, false, false, "depthwise"},
        {"3x3 by two", 29, 28, 40, 40, 3, 2, 1, 40, OP_HARD_SWISH, false, false, "depthwise"},
        {"5x5", 14, 15, 72, 72, 5, 1, 2, 72, OP_SILU, false, false, "depthwise"},
        {"5x5 by two, no padding", 17, 19, 33, 33, 5, 2, 0, 33, OP_NONE, false, false, "depthwise"},
        {"7x7", 14, 14, 50, 50, 7, 1, 3, 50, OP_NONE, false, false, "depthwise"},
        {"7x7 of a small image", 5, 4, 16, 16, 7, 1, 3, 16, OP_RELU, false, false, "depthwise"},
        {"7x7 by two", 20, 9, 24, 24, 7, 2, 3, 24, OP_SIGMOID, false, false, "depthwise"},
        {"one block", 9, 8, 16, 16, 3, 1, 1, 16, OP_RELU, false, false, "depthwise"},
        {"no bigger than the filter", 3, 3, 17, 17, 3, 1, 1, 17, OP_SILU, false, false,
         "depthwise"},
        {"one pixel", 1, 1, 48, 48, 5, 1, 2, 48, OP_HARD_SWISH, false, false, "depthwise"},
        {"one pixel by two", 2, 1, 31, 31, 3, 2, 1, 31, OP_GELU, false, false, "depthwise"},
        {"more padding than taps inside", 4, 5, 20, 20, 5, 1, 4, 20, OP_NONE, false, false,
         "depthwise"},
        {"5x5 by two of many channels", 15, 13, 672, 672, 5, 2, 2, 672, OP_SILU, false, false,
         "depthwise"},
    };
    check_all(layers, COUNT_OF(layers));
}

Test(layers, products)
{
    static const struct layer layers[] = {
        {"pointwise", 28, 28, 40, 144, 1, 1, 0, 1, OP_SILU, false, false, "gemm"},
        {"few rows", 3, 3, 112, 200, 1, 1, 0, 1, OP_GELU, false, false, "gemm"},
        {"one row", 1, 1, 96, 24, 1, 1, 0, 1, OP_SIGMOID, false, false, "gemm"},
        {"with a residual", 15, 13, 48, 48, 1, 1, 0, 1, OP_TANH, true, false, "gemm"},
        {"a long sum in parts", 5, 6, 900, 900, 1, 1, 0, 1, OP_SILU, true, false, "gemm"},
        {"a long sum, clamped", 6, 7, 900, 70, 1, 1, 0, 1, OP_RELU, false, false, "gemm"},
        {"taps gathered", 23, 20, 3, 40, 7, 2, 3, 1, OP_RELU, false, false, "gemm"},
        {"taps gathered, stride two", 15, 14, 40, 24, 3, 2, 1, 1, OP_NONE, false, false, "gemm"},
        {"odd numbers", 9, 7, 17, 19, 1, 1, 0, 1, OP_SILU, false, false, "gemm"},
        {"taps in place, stride two", 41, 45, 3, 32, 3, 2, 1, 1, OP_SILU, false, false, "gemm"},
        {"taps in place, no padding", 19, 31, 5, 20, 3, 1, 0, 1, OP_SILU, false, false, "gemm"},
        {"taps in place, wide padding", 6, 17, 3, 33, 5, 1, 4, 1, OP_SIGMOID, false, false, "gemm"},
        {"taps wider than the image", 3, 20, 3, 16, 7, 1, 3, 1, OP_SILU, false, false, "gemm"},
        {"pointwise, stride two", 29, 33, 24, 40, 1, 2, 0, 1, OP_SILU, false, false, "gemm"},
        {"rows a page apart", 6, 7, 1024, 40, 1, 1, 0, 1, OP_RELU, false, false, "gemm"},
        {"rows a page apart, gathered", 9, 9, 1024, 40, 1, 2, 0, 1, OP_RELU, false, false, "gemm"},
    };
    check_all(layers, COUNT_OF(layers));
}

Test(layers, squeeze_and_excite)
{
    static const struct layer layers[] = {
        {"weights gated", 14, 14, 96, 24, 1, 1, 0, 1, OP_SILU, false, true, "gemm:gated"},
        {"weights gated, with a residual", 15, 14, 40, 40, 1, 1, 0, 1, OP_RELU, true, true,
         "gemm:gated"},
        {"rows gated", 7, 5, 90, 200, 1, 1, 0, 1, OP_NONE, false, true, "gemm:gated"},
        {"one pixel gated", 1, 1, 33, 33, 1, 1, 0, 1, OP_HARD_SWISH, true, true, "gemm:gated"},
        {"the mean comes with the image", 9, 15, 50, 20, 1, 1, 0, 1, OP_NONE, false, true,
         "depthwise:mean"},
        {"a mean over strides", 20, 3, 35, 8, 3, 2, 1, 1, OP_NONE, false, true, "depthwise:mean"},
    };
    check_all(layers, COUNT_OF(layers));
}

/* Winograd's transformed filters would be four times as large. */
Test(layers, winograd_packs_the_filters_alone)
{
    enum { BATCH = 8, CHANNELS = 192 };
    static const struct layer layer = {"by points", 14, 14,      CHANNELS, CHANNELS, 3, 1,
                                       1,           1,  OP_RELU, false,    false,    ""};
    static const struct session_options options = {.threads = 1, .max_batch = BATCH};
    struct error err = {0};
    struct graph *graph = make_graph(&layer);
    struct session *session;
    cpu_prefer_winograd(true);
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cpu_prefer_winograd(false);
    cr_expect_lt(session_info(session)->parameter_bytes, 9 * CHANNELS * CHANNELS * 4 * 5 / 2);
    session_free(session);
    graph_free(graph);
}

/* Two pointwise layers and the image between them are joined, normalised, and read by a third. */
Test(layers, a_normalised_concatenation)
{
    uint32_t state = 9;
    struct graph *graph = graph_create(NULL);
    struct shape any = SHAPE(DIM_UNKNOWN, 3, 13, 11);
    struct value *image = graph_add_value(graph, "image", DTYPE_F32, &any);
    const struct layer l = {.out = 20, .taps = 1, .stride = 1, .group = 1};
    const struct layer m = {.out = 33, .taps = 3, .stride = 1, .pad = 1, .group = 1};
    struct value *a = append_conv(graph, &state, &l, image, 3);
    struct value *b = append_conv(graph, &state, &m, a, 20);
    struct value *joined = append(graph, OP_CONCAT, a, b, a);
    cr_assert(node_set_int(graph, joined->producer, "axis", 1));
    struct node *norm = graph_add_node(graph, OP_BATCH_NORMALIZATION, "", 5, 1);
    norm->opset = 15;
    norm->inputs[0] = joined;
    for (size_t i = 1; i < 5; i++) {
        norm->inputs[i] = constant(graph, &state, SHAPE(73), 1);
        float *data = norm->inputs[i]->known->data;
        for (size_t c = 0; c < 73; c++)
            data[c] = i == 4 ? fabsf(data[c]) + 0.5f : data[c];
    }
    node_set_output(norm, 0, graph_add_value(graph, "", DTYPE_NONE, NULL));
    struct value *y =
        append_conv(graph, &state, &l, append(graph, OP_RELU, norm->outputs[0], NULL, NULL), 73);
    set_ends(graph, image, y);

    check_graph(
        &(struct layer){.name = "a normalised concatenation", .kernel = "scale_shift:parts"}, graph,
        SHAPE(3, 3, 13, 11));
}

/* A pool over one axis runs with the kernel of images: only that needs Transposes. */
Test(layers, pools_of_lines)
{
    for (int is_max = 0; is_max < 2; is_max++) {
        struct graph *graph = graph_create(NULL);
        struct shape any = SHAPE(DIM_UNKNOWN, 19, 37);
        struct value *x = graph_add_value(graph, "lines", DTYPE_F32, &any);
        struct value *y = append(graph, is_max ? OP_MAX_POOL : OP_AVERAGE_POOL, x, NULL, NULL);
        struct node *pool = y->producer;
        cr_assert(node_set_ints(graph, pool, "kernel_shape", (const int64_t[]){4}, 1) &&
                  node_set_ints(graph, pool, "strides", (const int64_t[]){3}, 1) &&
                  node_set_ints(graph, pool, "pads", (const int64_t[]){2, 1}, 2) &&
                  node_set_int(graph, pool, "ceil_mode", 1) &&
                  (is_max ? node_set_ints(graph, pool, "dilations", (const int64_t[]){2}, 1)
                          : node_set_int(graph, pool, "count_include_pad", 1)));
        set_ends(graph, x, y);
        check_graph(&(struct layer){.name = "lines", .kernel = "transpose", .also_bf16 = true},
                    graph, SHAPE(3, 19, 37));
    }
}

/* Bytes that the copies of the graph's Concats read and write for one image. */
static size_t copied_bytes(const struct graph *graph)
{
    static const struct session_options options = {.threads = 1, .max_batch = 1};
    struct error err = {0};
    struct session *session;
    struct session_step *steps;
    size_t count, bytes = 0;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        bytes += strcmp(steps[i].kernel, "copy") == 0 ? steps[i].bytes : 0;
    free(steps);
    session_free(session);
    return bytes;
}

static struct value *join(struct graph *graph, struct value *a, struct value *b, struct value *c)
{
    struct value *y = append(graph, OP_CONCAT, a, b, c);
    cr_assert(node_set_int(graph, y->producer, "axis", 1));
    return y;
}

/* Appends a Resize to twice the sides. */
static struct value *append_resize(struct graph *graph, uint32_t *state, const char *mode,
                                   struct value *x)
{
    struct value *scales = constant(graph, state, SHAPE(4), 1);
    memcpy(scales->known->data, (const float[]){1, 1, 2, 2}, 4 * sizeof(float));
    struct value *y = append(graph, OP_RESIZE, x, NULL, scales);
    cr_assert(node_set_string(graph, y->producer, "mode", mode));
    return y;
}

/* Convolutions, transposed convolutions, pools and resizes write their part of a concatenation in
 * place. Parts of a depthwise convolution, of a convolution with a residual and of another
 * concatenation are copied. */
Test(layers, parts_of_a_concatenation)
{
    enum { HEIGHT = 14, WIDTH = 12 };
    static const struct layer first = {.out = 32, .taps = 1, .stride = 1, .group = 1},
                              square = {.out = 24, .taps = 3, .stride = 1, .pad = 1, .group = 1},
                              grouped = {.out = 20, .taps = 1, .stride = 1, .group = 4},
                              deep = {.out = 32, .taps = 3, .stride = 1, .pad = 1, .group = 32},
                              twenty = {.out = 20, .taps = 1, .stride = 1, .group = 1},
                              half = {.out = 16, .taps = 3, .stride = 2, .pad = 1, .group = 1};
    uint32_t state = 9;
    struct graph *graph = graph_create(NULL);
    struct shape any = SHAPE(DIM_UNKNOWN, 3, HEIGHT, WIDTH);
    struct value *image = graph_add_value(graph, "image", DTYPE_F32, &any);
    struct value *x = append_conv(graph, &state, &first, image, 3);
    struct value *a =
        append(graph, OP_SILU, append_conv(graph, &state, &square, x, 32), NULL, NULL);
    struct value *b =
        append(graph, OP_RELU, append_conv(graph, &state, &grouped, x, 32), NULL, NULL);
    struct value *c = append_conv(graph, &state, &deep, x, 32);
    struct value *joined = join(graph, a, b, c);
    struct value *d = append(graph, OP_ADD, append_conv(graph, &state, &twenty, joined, 76),
                             append_conv(graph, &state, &twenty, x, 32), NULL);
    struct value *small = append_conv(graph, &state, &half, joined, 76);
    struct value *e = append(graph, OP_CONV_TRANSPOSE, small,
                             constant(graph, &state, SHAPE(16, 12, 2, 2), 0.2f), NULL);
    cr_assert(node_set_ints(graph, e->producer, "strides", (const int64_t[]){2, 2}, 2));
    struct value *p = append(graph, OP_MAX_POOL, x, NULL, NULL);
    cr_assert(node_set_ints(graph, p->producer, "kernel_shape", (const int64_t[]){3, 3}, 2));
    cr_assert(node_set_ints(graph, p->producer, "pads", (const int64_t[]){1, 1, 1, 1}, 4));
    struct value *all =
        join(graph, join(graph, d, e, p), append_resize(graph, &state, "nearest", small),
             append_resize(graph, &state, "linear", small));
    set_ends(graph, image, append_conv(graph, &state, &twenty, all, 96));
    cr_expect_eq(copied_bytes(graph), (32 + 20 + 64) * HEIGHT * WIDTH * sizeof(float) * 2);
    check_graph(
        &(struct layer){.name = "parts of a concatenation", .kernel = "copy", .also_bf16 = true},
        graph, SHAPE(3, 3, HEIGHT, WIDTH));
}
