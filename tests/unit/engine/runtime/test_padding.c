/* Windows that lie wholly in the padding (pads as wide as the filter and wider, at one end or at
 * both): every kernel that a session may pick, in every number type, against the interpreter. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/random_graph.h"

enum { IMAGES = 2, HEIGHT = 9, WIDTH = 13 };

#define STEP 0.04f /* of stored numbers */

struct window_case {
    int64_t taps[2], pads[4], stride, dilation;
};

static const struct window_case windows[] = {
    {{1, 1}, {1, 0, 1, 0}, 1, 1}, {{1, 1}, {0, 2, 0, 1}, 1, 1}, {{1, 1}, {2, 1, 0, 3}, 2, 1},
    {{3, 3}, {0, 1, 3, 1}, 1, 1}, {{3, 3}, {3, 3, 3, 3}, 1, 1}, {{3, 3}, {4, 0, 0, 5}, 2, 1},
    {{5, 3}, {6, 1, 4, 1}, 3, 1}, {{3, 3}, {7, 2, 1, 7}, 1, 2}, {{2, 2}, {2, 2, 2, 2}, 1, 3},
    {{1, 3}, {9, 4, 2, 0}, 1, 1}, {{3, 1}, {1, 0, 5, 0}, 1, 1}, {{7, 7}, {8, 3, 8, 9}, 2, 1},
};

struct maker {
    struct graph *graph;
    uint32_t state;
    bool stored; /* 8-bit integers between operators */
};

static struct value *constant(struct maker *m, enum dtype dtype, struct shape shape, float scale,
                              float number)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++) {
        const float x = number + (scale > 0 ? random_unit(&m->state) * scale : 0);
        if (dtype == DTYPE_F32)
            ((float *)tensor->data)[i] = x;
        else
            ((int8_t *)tensor->data)[i] = (int8_t)x;
    }
    struct value *value = graph_add_constant(m->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *append(struct maker *m, enum op op, size_t count, struct value *const *inputs)
{
    struct node *node = graph_add_node(m->graph, op, "", count, 1);
    node->opset = 17;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node_set_output(node, 0, graph_add_value(m->graph, "", DTYPE_NONE, NULL));
    return node->outputs[0];
}

static struct value *through(struct maker *m, struct value *x)
{
    struct value *terms[3] = {x, constant(m, DTYPE_F32, SHAPE_SCALAR, 0, STEP),
                              constant(m, DTYPE_I8, SHAPE_SCALAR, 0, -5)};
    if (!m->stored)
        return x;
    terms[0] = append(m, OP_QUANTIZE_LINEAR, 3, terms);
    return append(m, OP_DEQUANTIZE_LINEAR, 3, terms);
}

static struct value *weights_of(struct maker *m, struct shape shape)
{
    const int64_t sums = shape.dims[1] * shape.dims[2] * shape.dims[3];
    const float scale = 1 / sqrtf((float)sums);
    if (!m->stored)
        return constant(m, DTYPE_F32, shape, scale, 0);
    struct value *terms[3] = {constant(m, DTYPE_I8, shape, 60, 0),
                              constant(m, DTYPE_F32, SHAPE_SCALAR, 0, scale / 60),
                              constant(m, DTYPE_I8, SHAPE_SCALAR, 0, 0)};
    return append(m, OP_DEQUANTIZE_LINEAR, 3, terms);
}

static void set_window(struct maker *m, struct value *y, const struct window_case *w)
{
    struct node *node = y->producer;
    const int64_t strides[2] = {w->stride, w->stride}, dilations[2] = {w->dilation, w->dilation};
    cr_assert(node_set_ints(m->graph, node, "pads", w->pads, 4));
    cr_assert(node_set_ints(m->graph, node, "strides", strides, 2));
    cr_assert(node_set_ints(m->graph, node, "dilations", dilations, 2));
}

static struct value *conv(struct maker *m, struct value *x, int64_t in, int64_t out, int64_t group,
                          const struct window_case *w)
{
    struct value *inputs[3] = {x, weights_of(m, SHAPE(out, in / group, w->taps[0], w->taps[1])),
                               constant(m, DTYPE_F32, SHAPE(out), 1, 0)};
    struct value *y = append(m, OP_CONV, 3, inputs);
    set_window(m, y, w);
    cr_assert(node_set_int(m->graph, y->producer, "group", group));
    return y;
}

enum kind { DENSE, GROUPED, DEPTHWISE, TRANSPOSED, KINDS };
static const char *const kind_names[KINDS] = {"dense", "grouped", "depthwise", "transposed"};

static struct value *layer(struct maker *m, enum kind kind, struct value *x, int64_t channels,
                           const struct window_case *w)
{
    if (kind == TRANSPOSED) {
        struct value *inputs[2] = {
            x, weights_of(m, SHAPE(channels, channels, w->taps[0], w->taps[1]))};
        struct value *y = append(m, OP_CONV_TRANSPOSE, 2, inputs);
        set_window(m, y, w);
        return y;
    }
    const int64_t group = kind == DENSE ? 1 : kind == GROUPED ? 4 : channels;
    return conv(m, x, channels, channels, group, w);
}

/* image → 1x1 → layer, and beside it another layer of the same → their sum → activation */
static struct graph *make_graph(enum kind kind, const struct window_case *w, int64_t channels,
                                bool stored, bool residual, enum op activation)
{
    static const struct window_case point = {{1, 1}, {0, 0, 0, 0}, 1, 1};
    struct maker m = {graph_create(NULL), 11, stored};
    struct shape shape = SHAPE(DIM_UNKNOWN, 3, HEIGHT, WIDTH);
    struct value *image = graph_add_value(m.graph, "image", DTYPE_F32, &shape);
    struct value *x = through(&m, conv(&m, through(&m, image), 3, channels, 1, &point));
    struct value *y = layer(&m, kind, x, channels, w);
    if (residual) {
        struct value *terms[2] = {y, layer(&m, kind, x, channels, w)};
        if (stored) {
            terms[0] = through(&m, terms[0]);
            terms[1] = through(&m, terms[1]);
        }
        y = append(&m, OP_ADD, 2, terms);
    }
    if (activation != OP_NONE)
        y = append(&m, activation, 1, &y);
    y = through(&m, y);
    struct value **ends = arena_alloc(m.graph->arena, 2, sizeof *ends);
    ends[0] = image;
    ends[1] = y;
    m.graph->opset = 17;
    m.graph->inputs = ends;
    m.graph->input_count = 1;
    m.graph->outputs = ends + 1;
    m.graph->output_count = 1;
    return m.graph;
}

static void expect(const struct graph *graph, const struct tensor *input,
                   const struct tensor *expected, enum precision precision, float tolerance,
                   const char *name)
{
    struct error err = {0};
    struct session *session;
    const struct session_options options = {.threads = 1,
                                            .max_batch = IMAGES,
                                            .precision = precision,
                                            .image_layout = IMAGE_AS_DECLARED};
    const struct tensor *output;
    const void *inputs[1] = {input->data};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    cr_assert_eq(session_run(session, IMAGES, inputs, &output, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    const float *e = expected->data, *g = output->data;
    float largest = 0;
    for (size_t i = 0; i < expected->bytes / sizeof *e; i++)
        largest = fmaxf(largest, isinf(e[i]) ? 0 : fabsf(e[i]));
    if (precision == PRECISION_INT8)
        largest = 1; /* the tolerance is of stored steps */
    for (size_t i = 0; i < expected->bytes / sizeof *e; i++)
        cr_assert(e[i] == g[i] || fabsf(e[i] - g[i]) <= tolerance * largest,
                  "%s, %s: element %zu is %g, not %g", name, precision_name(precision), i,
                  (double)g[i], (double)e[i]);
    session_free(session);
}

static void check(enum kind kind, const struct window_case *w, int64_t channels, bool residual,
                  enum op activation)
{
    struct error err = {0};
    char name[160];
    struct shape shape = SHAPE(IMAGES, 3, HEIGHT, WIDTH);
    struct tensor *input, *expected;
    uint32_t state = 5;
    snprintf(name, sizeof name,
             "%s %dx%d, pads %d %d %d %d, stride %d, dilation %d, %d channels%s, %s",
             kind_names[kind], (int)w->taps[0], (int)w->taps[1], (int)w->pads[0], (int)w->pads[1],
             (int)w->pads[2], (int)w->pads[3], (int)w->stride, (int)w->dilation, (int)channels,
             residual ? ", a residual" : "", op_name(activation));
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = random_unit(&state);
    for (int stored = 0; stored < 2; stored++) {
        struct graph *graph = make_graph(kind, w, channels, stored, residual, activation);
        struct graph *reference;
        cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
        cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                     name, err.message);
        if (stored) {
            expect(graph, input, expected, PRECISION_INT8, 2.1f * STEP, name);
        } else {
            expect(graph, input, expected, PRECISION_FP32, 2e-5f, name);
            if (device_cpu_has_bf16())
                expect(graph, input, expected, PRECISION_BF16, 3e-2f, name);
        }
        tensor_unref(expected);
        graph_free(reference);
        graph_free(graph);
    }
    tensor_unref(input);
}

/* A transposed convolution's pads cut its result, of which something has to be left. */
static bool is_empty(const struct window_case *w, int64_t in, int axis)
{
    return (in - 1) * w->stride + (w->taps[axis] - 1) * w->dilation + 1 - w->pads[axis] -
               w->pads[axis + 2] <=
           0;
}

static void check_all(enum kind kind, int64_t channels)
{
    for (size_t i = 0; i < COUNT_OF(windows); i++) {
        if (kind == TRANSPOSED &&
            (is_empty(&windows[i], HEIGHT, 0) || is_empty(&windows[i], WIDTH, 1)))
            continue;
        check(kind, &windows[i], channels, true, OP_RELU);
        check(kind, &windows[i], channels, i % 2, i % 3 ? OP_SIGMOID : OP_NONE);
    }
}

Test(padding, dense)
{
    check_all(DENSE, 8);
    check_all(DENSE, 33);
    cpu_prefer_winograd(true);
    check_all(DENSE, 48);
    cpu_prefer_winograd(false);
}

Test(padding, grouped)
{
    check_all(GROUPED, 32);
    check_all(GROUPED, 20);
}

Test(padding, depthwise)
{
    check_all(DEPTHWISE, 32);
    cpu_prefer_winograd(true);
    check_all(DEPTHWISE, 17);
    cpu_prefer_winograd(false);
}

Test(padding, transposed)
{
    check_all(TRANSPOSED, 16);
    check_all(TRANSPOSED, 9);
}
