/* Builds random small quantized image graphs. */
#include "tests/unit/random_quantized.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/random_graph.h"

/* Stored numbers [?, c, h, w] (or [?, c]), and what they stand for. */
struct stored {
    struct value *value, *scale, *zero;
    float step;
    int64_t c, h, w;
};

struct maker {
    struct graph *graph;
    uint32_t state;
    enum dtype dtype; /* of activations */
    bool operators_only;
};

static int64_t between(struct maker *m, int64_t low, int64_t high)
{
    return low + (int64_t)random_below(&m->state, (uint32_t)(high - low + 1));
}

static bool one_in(struct maker *m, uint32_t n)
{
    return random_below(&m->state, n) == 0;
}

/* `count` numbers of a constant; rank 0 for one alone. */
static struct value *constant(struct maker *m, enum dtype dtype, struct shape shape,
                              const double *numbers)
{
    struct tensor *tensor;
    if (tensor_create(NULL, dtype, &shape, &tensor, NULL) != STATUS_OK)
        abort();
    for (size_t i = 0; i < shape_count(&shape); i++) {
        if (dtype == DTYPE_F32)
            ((float *)tensor->data)[i] = (float)numbers[i];
        else if (dtype == DTYPE_I32)
            ((int32_t *)tensor->data)[i] = (int32_t)numbers[i];
        else
            ((uint8_t *)tensor->data)[i] = (uint8_t)(int)numbers[i];
    }
    struct value *value = graph_add_constant(m->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *number(struct maker *m, enum dtype dtype, double x)
{
    return constant(m, dtype, (struct shape){0}, &x);
}

/* `count` random numbers of [low, high], whole ones for integers. */
static struct value *numbers(struct maker *m, enum dtype dtype, struct shape shape, double low,
                             double high)
{
    const size_t count = shape_count(&shape);
    double *all = calloc(count + 1, sizeof *all);
    for (size_t i = 0; all && i < count; i++) {
        const double x = low + (high - low) * (0.5 + 0.5 * (double)random_unit(&m->state));
        all[i] = dtype == DTYPE_F32 ? x : rint(x);
    }
    struct value *value = constant(m, dtype, shape, all);
    free(all);
    return value;
}

static struct node *append(struct maker *m, enum op op, int opset, struct value *const *inputs,
                           size_t count, size_t outputs)
{
    struct node *node = graph_add_node(m->graph, op, op_name(op), count, outputs);
    node->opset = opset;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    for (size_t i = 0; i < outputs; i++)
        node_set_output(node, i, graph_add_value(m->graph, "", DTYPE_NONE, NULL));
    return node;
}

static struct value *unary(struct maker *m, enum op op, struct value *x)
{
    return append(m, op, 13, &x, 1, 1)->outputs[0];
}

/* Terms for numbers whose real ones go from about -range to range. */
static struct stored terms(struct maker *m, double range, int64_t c, int64_t h, int64_t w)
{
    const int64_t middle = m->dtype == DTYPE_I8 ? 0 : 128;
    struct stored s = {.step = (float)(range / 120), .c = c, .h = h, .w = w};
    s.scale = number(m, DTYPE_F32, (double)s.step);
    s.zero = number(m, m->dtype, (double)(middle + between(m, -30, 30)));
    return s;
}

static struct value *dequantize(struct maker *m, const struct stored *x)
{
    struct value *inputs[] = {x->value, x->scale, x->zero};
    return append(m, OP_DEQUANTIZE_LINEAR, 13, inputs, 3, 1)->outputs[0];
}

static void quantize(struct maker *m, struct value *x, struct stored *to)
{
    struct value *inputs[] = {x, to->scale, to->zero};
    to->value = append(m, OP_QUANTIZE_LINEAR, 13, inputs, 3, 1)->outputs[0];
}

/* ---- convolutions ---- */

struct conv {
    struct value *weights, *scale, *zero, *bias, *bias_scale;
    int64_t groups, out, kernel[2], stride[2], dilation[2], pads[4];
    double step, depth; /* about what a stored weight stands for; products of a sum */
    bool per_channel;
};

static int64_t extent(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pads)
{
    return (in + pads - (kernel - 1) * dilation - 1) / stride + 1;
}

static void window(struct maker *m, const struct stored *x, struct conv *conv)
{
    const int64_t in[2] = {x->h, x->w};
    for (int d = 0; d < 2; d++) {
        conv->kernel[d] = between(m, 1, 3);
        conv->stride[d] = in[d] > 6 ? between(m, 1, 2) : 1;
        conv->dilation[d] = between(m, 1, 2);
        const int64_t reach = (conv->kernel[d] - 1) * conv->dilation[d];
        conv->pads[d] = between(m, 0, reach / 2 + 1);
        conv->pads[2 + d] = reach > conv->pads[d] ? reach - conv->pads[d] : 0;
        if (in[d] + conv->pads[d] + conv->pads[2 + d] <= reach)
            conv->pads[2 + d] = reach;
    }
}

static struct conv random_conv(struct maker *m, const struct stored *x, int64_t out)
{
    struct conv conv = {.groups = 1, .out = out, .per_channel = !one_in(m, 3)};
    window(m, x, &conv);
    if (one_in(m, 4)) {
        conv.groups = x->c;
        conv.out = x->c;
    } else if (x->c % 2 == 0 && out % 2 == 0 && one_in(m, 3)) {
        conv.groups = 2;
    }
    /* QDQ weights are signed and symmetric where integers compute them; operators take all. */
    const bool is_unsigned = m->operators_only && one_in(m, 4);
    const enum dtype dtype = is_unsigned ? DTYPE_U8 : DTYPE_I8;
    const struct shape one = {0}, many = SHAPE(conv.out);
    const struct shape each = conv.per_channel ? many : one;
    conv.depth = (double)(x->c / conv.groups * conv.kernel[0] * conv.kernel[1]);
    conv.step = 0.01;
    conv.weights =
        numbers(m, dtype, SHAPE(conv.out, x->c / conv.groups, conv.kernel[0], conv.kernel[1]),
                is_unsigned ? 0 : -127, is_unsigned ? 255 : 127);
    conv.scale = numbers(m, DTYPE_F32, each, 0.008, 0.012);
    conv.zero = is_unsigned ? numbers(m, dtype, each, 128, one_in(m, 2) ? 128 : 150)
                            : numbers(m, dtype, each, 0, 0);
    if (!one_in(m, 4))
        conv.bias = numbers(m, DTYPE_I32, many, -3000, 3000);
    return conv;
}

static void set_window(struct maker *m, struct node *node, const struct conv *conv)
{
    node_set_ints(m->graph, node, "kernel_shape", conv->kernel, 2);
    node_set_ints(m->graph, node, "strides", conv->stride, 2);
    node_set_ints(m->graph, node, "dilations", conv->dilation, 2);
    node_set_ints(m->graph, node, "pads", conv->pads, 4);
    if (conv->groups != 1)
        node_set_int(m->graph, node, "group", conv->groups);
}

static struct stored conv_terms(struct maker *m, const struct stored *x, const struct conv *conv)
{
    const double range = 120 * (double)x->step * conv->step * 75 * sqrt(conv->depth);
    return terms(m, range, conv->out,
                 extent(x->h, conv->kernel[0], conv->stride[0], conv->dilation[0],
                        conv->pads[0] + conv->pads[2]),
                 extent(x->w, conv->kernel[1], conv->stride[1], conv->dilation[1],
                        conv->pads[1] + conv->pads[3]));
}

static struct stored stored_conv(struct maker *m, const struct stored *x, int64_t out)
{
    const struct conv conv = random_conv(m, x, out);
    struct stored y = conv_terms(m, x, &conv);
    struct value *inputs[9] = {x->value,  x->scale, x->zero, conv.weights, conv.scale,
                               conv.zero, y.scale,  y.zero,  conv.bias};
    struct node *node = append(m, OP_QLINEAR_CONV, 10, inputs, conv.bias ? 9 : 8, 1);
    set_window(m, node, &conv);
    y.value = node->outputs[0];
    return y;
}

static struct stored qdq_conv(struct maker *m, const struct stored *x, int64_t out)
{
    const struct conv conv = random_conv(m, x, out);
    struct stored y = conv_terms(m, x, &conv);
    struct value *w_inputs[] = {conv.weights, conv.scale, conv.zero};
    struct node *w = append(m, OP_DEQUANTIZE_LINEAR, 13, w_inputs, 3, 1);
    node_set_int(m->graph, w, "axis", 0);
    struct value *inputs[3] = {dequantize(m, x), w->outputs[0], NULL};
    if (conv.bias)
        inputs[2] =
            numbers(m, DTYPE_F32, SHAPE(conv.out), -20 * (double)x->step, 20 * (double)x->step);
    struct node *node = append(m, OP_CONV, 13, inputs, conv.bias ? 3 : 2, 1);
    set_window(m, node, &conv);
    quantize(m, node->outputs[0], &y);
    return y;
}

/* Scales that only a run knows: DynamicQuantizeLinear, ConvInteger, and back by float factors. */
static struct stored dynamic_conv(struct maker *m, const struct stored *x, int64_t out)
{
    const struct conv conv = random_conv(m, x, out);
    struct stored y = conv_terms(m, x, &conv);
    struct value *real = dequantize(m, x);
    const struct node *dynamic = append(m, OP_DYNAMIC_QUANTIZE_LINEAR, 11, &real, 1, 3);
    struct value *inputs[] = {dynamic->outputs[0], conv.weights, dynamic->outputs[2], conv.zero};
    struct node *node = append(m, OP_CONV_INTEGER, 10, inputs, 4, 1);
    set_window(m, node, &conv);
    struct node *cast = append(m, OP_CAST, 13, &node->outputs[0], 1, 1);
    node_set_int(m->graph, cast, "to", 1);
    struct value *scales[] = {dynamic->outputs[1], number(m, DTYPE_F32, conv.step)};
    struct value *factors[] = {cast->outputs[0], append(m, OP_MUL, 13, scales, 2, 1)->outputs[0]};
    quantize(m, append(m, OP_MUL, 13, factors, 2, 1)->outputs[0], &y);
    return y;
}

static struct stored any_conv(struct maker *m, const struct stored *x, int64_t out)
{
    if (m->operators_only)
        return stored_conv(m, x, out);
    switch (random_below(&m->state, 5)) {
    case 0:
        return stored_conv(m, x, out);
    case 1:
        return dynamic_conv(m, x, out);
    default:
        return qdq_conv(m, x, out);
    }
}

/* ---- between convolutions ---- */

static struct stored binary(struct maker *m, enum op op, const struct stored *a,
                            const struct stored *b)
{
    const double range = op == OP_QLINEAR_ADD ? 120 * (double)(a->step + b->step)
                                              : 120 * (double)a->step * 80 * (double)b->step;
    struct stored y = terms(m, range, a->c, a->h, a->w);
    struct value *inputs[] = {a->value, a->scale, a->zero, b->value,
                              b->scale, b->zero,  y.scale, y.zero};
    y.value = append(m, op, 1, inputs, 8, 1)->outputs[0];
    return y;
}

static struct stored table(struct maker *m, enum op op, const struct stored *x)
{
    struct stored y = terms(m, op == OP_SIGMOID ? 1.2 : 120 * (double)x->step, x->c, x->h, x->w);
    struct value *real = unary(m, op, dequantize(m, x));
    if (op == OP_LEAKY_RELU)
        node_set_float(m->graph, real->producer, "alpha", 0.2f);
    quantize(m, real, &y);
    return y;
}

static struct stored mean(struct maker *m, const struct stored *x)
{
    struct stored y = terms(m, 60 * (double)x->step, x->c, 1, 1);
    struct value *inputs[] = {x->value, x->scale, x->zero, y.scale, y.zero};
    y.value = append(m, OP_QLINEAR_GLOBAL_AVERAGE_POOL, 1, inputs, 5, 1)->outputs[0];
    return y;
}

static struct stored pool(struct maker *m, const struct stored *x, bool is_max)
{
    struct conv conv = {.groups = 1};
    struct stored y = *x;
    window(m, x, &conv);
    for (int d = 0; d < 2; d++) { /* pads are smaller than the window */
        conv.dilation[d] = 1;
        conv.pads[d] = between(m, 0, conv.kernel[d] - 1);
        conv.pads[2 + d] = between(m, 0, conv.kernel[d] - 1);
    }
    if (!is_max)
        y = terms(m, 100 * (double)x->step, x->c, 0, 0);
    y.h = extent(x->h, conv.kernel[0], conv.stride[0], 1, conv.pads[0] + conv.pads[2]);
    y.w = extent(x->w, conv.kernel[1], conv.stride[1], 1, conv.pads[1] + conv.pads[3]);
    struct value *inputs[] = {x->value, x->scale, x->zero, y.scale, y.zero};
    struct node *node = is_max ? append(m, OP_MAX_POOL, 12, inputs, 1, 1)
                               : append(m, OP_QLINEAR_AVERAGE_POOL, 1, inputs, 5, 1);
    node_set_ints(m->graph, node, "kernel_shape", conv.kernel, 2);
    node_set_ints(m->graph, node, "strides", conv.stride, 2);
    node_set_ints(m->graph, node, "pads", conv.pads, 4);
    if (!is_max && one_in(m, 2))
        node_set_int(m->graph, node, "count_include_pad", 1);
    y.value = node->outputs[0];
    return y;
}

static struct stored concat(struct maker *m, const struct stored *a, const struct stored *b)
{
    struct stored y = terms(m, 130 * (double)fmaxf(a->step, b->step), a->c + b->c, a->h, a->w);
    struct value *inputs[] = {y.scale, y.zero,   a->value, a->scale,
                              a->zero, b->value, b->scale, b->zero};
    struct node *node = append(m, OP_QLINEAR_CONCAT, 1, inputs, 8, 1);
    node_set_int(m->graph, node, "axis", 1);
    y.value = node->outputs[0];
    return y;
}

/* A product of two, of which one has a number a channel. */
static struct stored gated(struct maker *m, const struct stored *x)
{
    const struct stored narrow = mean(m, x), gate = table(m, OP_SIGMOID, &narrow);
    return binary(m, OP_QLINEAR_MUL, x, &gate);
}

/* The same convolution's windows twice: one without padding or stride. */
static struct stored residual(struct maker *m, const struct stored *x)
{
    const uint32_t before = m->state;
    const struct stored a = any_conv(m, x, x->c);
    if (a.h != x->h || a.w != x->w) {
        m->state = before + 1;
        return a;
    }
    return one_in(m, 2) ? binary(m, OP_QLINEAR_ADD, &a, x) : binary(m, OP_QLINEAR_ADD, x, &a);
}

static struct stored layer(struct maker *m, const struct stored *x)
{
    switch (random_below(&m->state, 10)) {
    case 0:
        return x->h > 3 && x->w > 3 ? pool(m, x, true) : any_conv(m, x, 12);
    case 1:
        return x->h > 3 && x->w > 3 ? pool(m, x, false) : any_conv(m, x, 20);
    case 2:
        return table(m, one_in(m, 2) ? OP_SIGMOID : OP_LEAKY_RELU, x);
    case 3:
        return gated(m, x);
    case 4:
    case 5:
        return residual(m, x);
    case 6: {
        const struct stored other = table(m, OP_LEAKY_RELU, x);
        return x->c < 60 ? concat(m, x, &other) : other;
    }
    default:
        return any_conv(m, x, between(m, 1, 12) * between(m, 1, 4));
    }
}

/* ---- the end ---- */

static struct value *classify(struct maker *m, const struct stored *x, int64_t classes)
{
    const struct stored flat = {
        unary(m, OP_FLATTEN, x->value), x->scale, x->zero, x->step, x->c, 1, 1};
    const bool is_gemm = one_in(m, 2), transposed = is_gemm && one_in(m, 2);
    struct stored y =
        terms(m, 120 * (double)x->step * 0.01 * 75 * sqrt((double)x->c), classes, 1, 1);
    struct value *w =
        numbers(m, DTYPE_I8, transposed ? SHAPE(classes, x->c) : SHAPE(x->c, classes), -127, 127);
    struct value *scale = numbers(m, DTYPE_F32, SHAPE(classes), 0.008, 0.012);
    struct value *zero = numbers(m, DTYPE_I8, SHAPE(classes), 0, 0);
    struct value *inputs[9] = {flat.value, x->scale, x->zero, w, scale, zero};
    size_t count = 6;
    if (is_gemm)
        inputs[count++] = numbers(m, DTYPE_I32, SHAPE(classes), -3000, 3000);
    inputs[count++] = y.scale;
    inputs[count++] = y.zero;
    struct node *node =
        append(m, is_gemm ? OP_QGEMM : OP_QLINEAR_MATMUL, is_gemm ? 1 : 10, inputs, count, 1);
    if (transposed)
        node_set_int(m->graph, node, "transB", 1);
    y.value = node->outputs[0];
    return dequantize(m, &y);
}

struct graph *random_quantized(uint32_t seed, int64_t height, int64_t width, bool operators_only)
{
    struct graph *graph = graph_create(NULL);
    if (!graph)
        return NULL;
    struct maker m = {.graph = graph,
                      .state = seed * 2654435761u + 1,
                      .dtype = seed % 2 ? DTYPE_U8 : DTYPE_I8,
                      .operators_only = operators_only};
    struct shape shape = SHAPE(DIM_UNKNOWN, 3, height, width);
    struct value **ends = arena_alloc(graph->arena, 2, sizeof *ends);
    ends[0] = graph_add_value(graph, "image", DTYPE_F32, &shape);
    random_next(&m.state);
    struct stored x = terms(&m, 1, 3, height, width);
    quantize(&m, ends[0], &x);
    x = any_conv(&m, &x, between(&m, 2, 8) * 4);
    for (int64_t i = between(&m, 3, 7); i > 0; i--)
        x = layer(&m, &x);
    x = mean(&m, &x);
    ends[1] = classify(&m, &x, between(&m, 5, 40));
    graph->opset = 17;
    graph->inputs = ends;
    graph->input_count = 1;
    graph->outputs = ends + 1;
    graph->output_count = 1;
    return graph;
}
