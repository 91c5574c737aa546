/* Single operators between DequantizeLinear and QuantizeLinear: what the passes make of them, run
 * by quick kernels, is within one stored step of what the interpreter makes of the file. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/passes/optimize.h"
#include "engine/runtime/session.h"
#include "tests/unit/axes.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

#define STEP       0.05f /* of the image and most results */
#define OTHER_STEP 0.03f

enum { IMAGES = 2, CHANNELS = 24, HEIGHT = 17, WIDTH = 31 };

struct maker {
    struct graph *graph;
    enum dtype dtype; /* of activations */
    uint32_t state;
};

static struct value *constant(struct maker *m, enum dtype dtype, struct shape shape,
                              const float *numbers)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++) {
        if (dtype == DTYPE_F32)
            ((float *)tensor->data)[i] = numbers[i];
        else if (dtype == DTYPE_I32)
            ((int32_t *)tensor->data)[i] = (int32_t)numbers[i];
        else if (dtype == DTYPE_U16)
            ((uint16_t *)tensor->data)[i] = (uint16_t)(int)numbers[i];
        else if (dtype == DTYPE_I64)
            ((int64_t *)tensor->data)[i] = (int64_t)numbers[i];
        else
            ((uint8_t *)tensor->data)[i] = (uint8_t)(int)numbers[i];
    }
    struct value *value = graph_add_constant(m->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *number(struct maker *m, enum dtype dtype, float x)
{
    return constant(m, dtype, SHAPE_SCALAR, &x);
}

static struct value *append(struct maker *m, enum op op, size_t count, struct value *const *inputs)
{
    struct node *node = graph_add_node(m->graph, op, "", count, 1);
    node->opset = 17;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node_set_output(node, 0, graph_add_value(m->graph, "", DTYPE_NONE, NULL));
    return node->outputs[0];
}

static struct value *unary(struct maker *m, enum op op, struct value *x)
{
    return append(m, op, 1, &x);
}

static struct value *binary(struct maker *m, enum op op, struct value *a, struct value *b)
{
    return append(m, op, 2, (struct value *[]){a, b});
}

/* A zero point that is neither end nor middle of the type's range. */
static float odd_zero(const struct maker *m)
{
    return m->dtype == DTYPE_I8 ? -11 : 117;
}

static struct value *through(struct maker *m, struct value *x, float step, float zero)
{
    struct value *terms[3] = {x, number(m, DTYPE_F32, step), number(m, m->dtype, zero)};
    terms[0] = append(m, OP_QUANTIZE_LINEAR, 3, terms);
    return append(m, OP_DEQUANTIZE_LINEAR, 3, terms);
}

static struct value *stored(struct maker *m, struct value *x)
{
    return through(m, x, STEP, odd_zero(m));
}

/* ---- the cases ---- */

struct weights {
    int64_t out, in, taps;
    enum dtype dtype; /* DTYPE_U8: around 128 */
    bool no_zero;     /* the zero point is left out */
    float off;        /* the zero point is so far from the middle */
};

static struct value *make_weights(struct maker *m, const struct weights *w)
{
    const struct shape shape = SHAPE(w->out, w->in, w->taps, w->taps);
    const size_t count = shape_count(&shape);
    float *numbers = calloc(count, sizeof *numbers), scales[CHANNELS * 2], zeros[CHANNELS * 2];
    cr_assert(numbers && w->out <= CHANNELS * 2);
    const float middle = w->dtype == DTYPE_U8 ? 128 : 0;
    for (size_t i = 0; i < count; i++)
        numbers[i] = middle + rintf(127 * random_unit(&m->state));
    for (int64_t i = 0; i < w->out; i++) {
        scales[i] =
            (0.2f + 0.1f * random_unit(&m->state)) / (127 * sqrtf((float)(count / (size_t)w->out)));
        zeros[i] = middle + w->off;
    }
    struct value *terms[3] = {constant(m, w->dtype, shape, numbers),
                              constant(m, DTYPE_F32, SHAPE(w->out), scales),
                              constant(m, w->dtype, SHAPE(w->out), zeros)};
    free(numbers);
    struct value *real = append(m, OP_DEQUANTIZE_LINEAR, w->no_zero ? 2 : 3, terms);
    cr_assert(node_set_int(m->graph, real->producer, "axis", 0));
    return real;
}

static struct value *conv(struct maker *m, struct value *x, const struct weights *w, int64_t stride)
{
    const int64_t pads[4] = {w->taps / 2, w->taps / 2, w->taps / 2, w->taps / 2};
    const int64_t strides[2] = {stride, stride};
    float biases[CHANNELS * 2];
    for (int64_t i = 0; i < w->out; i++)
        biases[i] = random_unit(&m->state);
    struct value *inputs[3] = {x, make_weights(m, w),
                               constant(m, DTYPE_F32, SHAPE(w->out), biases)};
    struct value *y = append(m, OP_CONV, 3, inputs);
    cr_assert(node_set_ints(m->graph, y->producer, "pads", pads, 4));
    cr_assert(node_set_ints(m->graph, y->producer, "strides", strides, 2));
    cr_assert(node_set_int(m->graph, y->producer, "group", CHANNELS / w->in));
    return y;
}

static struct value *depthwise(struct maker *m, struct value *x, int64_t taps, int64_t stride)
{
    const struct weights w = {CHANNELS, 1, taps, DTYPE_I8, false, 0};
    return conv(m, x, &w, stride);
}

#define DEPTHWISE(taps, stride)                                                                    \
    static struct value *depthwise_##taps##_##stride(struct maker *m, struct value *x)             \
    {                                                                                              \
        return depthwise(m, x, taps, stride);                                                      \
    }
DEPTHWISE(3, 1)
DEPTHWISE(3, 2)
DEPTHWISE(5, 1)
DEPTHWISE(5, 2)
DEPTHWISE(7, 1)
DEPTHWISE(7, 2)

static struct value *unsigned_weights(struct maker *m, struct value *x)
{
    const struct weights w = {CHANNELS * 2, CHANNELS, 1, DTYPE_U8, false, 0};
    return conv(m, x, &w, 1);
}

static struct value *weights_without_zero(struct maker *m, struct value *x)
{
    const struct weights w = {CHANNELS * 2, CHANNELS, 3, DTYPE_I8, true, 0};
    return conv(m, x, &w, 2);
}

/* The stored range does not end where the activation does. */
static struct value *relu_behind(struct maker *m, struct value *x)
{
    return unary(m, OP_RELU, weights_without_zero(m, x));
}

static struct value *clip_behind(struct maker *m, struct value *x)
{
    struct value *inputs[3] = {depthwise(m, x, 3, 1), number(m, DTYPE_F32, -0.31f),
                               number(m, DTYPE_F32, 0.52f)};
    return append(m, OP_CLIP, 3, inputs);
}

static struct value *silu(struct maker *m, struct value *x)
{
    const float low = m->dtype == DTYPE_I8 ? -128 : 0;
    return binary(m, OP_MUL, x, through(m, unary(m, OP_SIGMOID, x), 1.0f / 255, low));
}

/* Written out: x * clip(x + 3, 0, 6) / 6. */
static struct value *hard_swish(struct maker *m, struct value *x)
{
    struct value *inputs[3] = {binary(m, OP_ADD, x, number(m, DTYPE_F32, 3)),
                               number(m, DTYPE_F32, 0), number(m, DTYPE_F32, 6)};
    return binary(m, OP_DIV, binary(m, OP_MUL, x, append(m, OP_CLIP, 3, inputs)),
                  number(m, DTYPE_F32, 6));
}

static struct value *leaky_relu(struct maker *m, struct value *x)
{
    return unary(m, OP_LEAKY_RELU, x);
}

/* The greatest of each 3x3: numbers that are the same however they are computed. */
static struct value *largest(struct maker *m, struct value *x, int64_t stride)
{
    const int64_t kernel[2] = {3, 3}, strides[2] = {stride, stride}, pads[4] = {1, 1, 1, 1};
    struct value *y = unary(m, OP_MAX_POOL, x);
    cr_assert(node_set_ints(m->graph, y->producer, "kernel_shape", kernel, 2));
    cr_assert(node_set_ints(m->graph, y->producer, "strides", strides, 2));
    cr_assert(node_set_ints(m->graph, y->producer, "pads", pads, 4));
    return y;
}

static struct value *matrices(struct maker *m, struct value *x)
{
    enum { COLUMNS = 40 };
    const int64_t perm[4] = {0, 2, 3, 1};
    float numbers[CHANNELS * COLUMNS];
    struct value *last = unary(m, OP_TRANSPOSE, x);
    cr_assert(node_set_ints(m->graph, last->producer, "perm", perm, 4));
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        numbers[i] = rintf(127 * random_unit(&m->state));
    struct value *terms[3] = {constant(m, DTYPE_I8, SHAPE(CHANNELS, COLUMNS), numbers),
                              number(m, DTYPE_F32, 0.001f), number(m, DTYPE_I8, 0)};
    return binary(m, OP_MATMUL, last, append(m, OP_DEQUANTIZE_LINEAR, 3, terms));
}

/* Stored, too, but known once constants are folded. */
static struct value *folded_number(struct maker *m, struct value *x)
{
    struct value *root = unary(m, OP_SQRT, number(m, DTYPE_F32, 0.7f));
    return binary(m, OP_MUL, through(m, root, 0.01f, 3), x);
}

static struct value *product(struct maker *m, struct value *x)
{
    return binary(m, OP_MUL, x, through(m, largest(m, x, 1), OTHER_STEP, 3));
}

/* The gate's step is so small that one more or less of them is none of the result's. */
static struct value *gate(struct maker *m, struct value *x)
{
    return binary(m, OP_MUL, through(m, unary(m, OP_GLOBAL_AVERAGE_POOL, x), 0.003f, 101), x);
}

/* A stored number for each channel, which is the last dimension here: the bias of a MatMul. */
static struct value *with_row(struct maker *m, enum op op, struct value *x, bool first)
{
    const int64_t perm[4] = {0, 2, 3, 1};
    float numbers[CHANNELS];
    struct value *last = unary(m, OP_TRANSPOSE, x);
    cr_assert(node_set_ints(m->graph, last->producer, "perm", perm, 4));
    for (int c = 0; c < CHANNELS; c++)
        numbers[c] = (float)(c * 5 % 120);
    struct value *terms[3] = {constant(m, m->dtype, SHAPE(CHANNELS), numbers),
                              number(m, DTYPE_F32, 0.011f), number(m, m->dtype, odd_zero(m))};
    struct value *row = append(m, OP_DEQUANTIZE_LINEAR, 3, terms);
    return first ? binary(m, op, row, last) : binary(m, op, last, row);
}

static struct value *row_added(struct maker *m, struct value *x)
{
    return with_row(m, OP_ADD, x, true);
}

static struct value *row_multiplied(struct maker *m, struct value *x)
{
    return with_row(m, OP_MUL, x, false);
}

static struct value *sum(struct maker *m, struct value *x)
{
    return binary(m, OP_ADD, x, through(m, depthwise(m, x, 3, 1), OTHER_STEP, 9));
}

static struct value *concat(struct maker *m, struct value *x)
{
    struct value *parts[3] = {x, through(m, depthwise(m, x, 5, 1), OTHER_STEP, -7 + 128), x};
    if (m->dtype == DTYPE_I8)
        parts[1] = through(m, depthwise(m, x, 5, 1), OTHER_STEP, -7);
    struct value *y = append(m, OP_CONCAT, 3, parts);
    cr_assert(node_set_int(m->graph, y->producer, "axis", 1));
    return y;
}

static struct value *normalize(struct maker *m, struct value *x, int channels)
{
    float terms[4][CHANNELS * 2];
    for (int c = 0; c < channels; c++) {
        terms[0][c] = 0.1f * (float)(c % 11) - 0.3f;
        terms[1][c] = 0.2f * (float)(c % 5) - 0.4f;
        terms[2][c] = 0.15f * (float)(c % 3);
        terms[3][c] = 0.5f + 0.1f * (float)(c % 4);
    }
    struct value *inputs[5] = {x};
    for (size_t i = 0; i < 4; i++)
        inputs[1 + i] = constant(m, DTYPE_F32, SHAPE(channels), terms[i]);
    inputs[1] = through(m, inputs[1], 0.01f, 35); /* stored, too */
    return append(m, OP_BATCH_NORMALIZATION, 5, inputs);
}

static struct value *normalized(struct maker *m, struct value *x)
{
    return normalize(m, largest(m, x, 1), CHANNELS);
}

static struct value *normalized_relu(struct maker *m, struct value *x)
{
    return unary(m, OP_RELU, normalized(m, x));
}

static struct value *normalized_clip(struct maker *m, struct value *x)
{
    struct value *inputs[3] = {normalized(m, x), number(m, DTYPE_F32, -0.31f),
                               number(m, DTYPE_F32, 0.52f)};
    return append(m, OP_CLIP, 3, inputs);
}

/* A real number between two of them. */
static struct value *normalized_twice(struct maker *m, struct value *x)
{
    return normalize(m, unary(m, OP_RELU, normalized(m, x)), CHANNELS);
}

/* x and the greatest of its neighbours, stored on another scale. */
static struct value *doubled(struct maker *m, struct value *x)
{
    struct value *parts[2] = {x, through(m, largest(m, x, 1), OTHER_STEP, odd_zero(m) + 7)};
    struct value *y = append(m, OP_CONCAT, 2, parts);
    cr_assert(node_set_int(m->graph, y->producer, "axis", 1));
    return y;
}

static struct value *normalized_concat(struct maker *m, struct value *x)
{
    return unary(m, OP_RELU, normalize(m, stored(m, doubled(m, x)), CHANNELS * 2));
}

/* The Concat is not stored; one of its parts comes through a Transpose, in float32. */
static struct value *normalized_parts(struct maker *m, struct value *x)
{
    return unary(m, OP_RELU, normalize(m, doubled(m, x), CHANNELS * 2));
}

static struct value *split(struct maker *m, struct value *x)
{
    const float sizes[2] = {10, CHANNELS - 10};
    struct node *node = graph_add_node(m->graph, OP_SPLIT, "", 2, 2);
    node->opset = 17;
    node->inputs[0] = x;
    node->inputs[1] = constant(m, DTYPE_I64, SHAPE(2), sizes);
    for (size_t i = 0; i < 2; i++)
        node_set_output(node, i, graph_add_value(m->graph, "", DTYPE_NONE, NULL));
    cr_assert(node_set_int(m->graph, node, "axis", 1));
    struct value *parts[2] = {stored(m, node->outputs[1]), stored(m, node->outputs[0])};
    struct value *y = append(m, OP_CONCAT, 2, parts);
    cr_assert(node_set_int(m->graph, y->producer, "axis", 1));
    return y;
}

static struct value *mean_pool(struct maker *m, struct value *x, bool padding_counts)
{
    const int64_t kernel[2] = {3, 2}, strides[2] = {2, 1}, pads[4] = {1, 0, 1, 1};
    struct value *y = unary(m, OP_AVERAGE_POOL, x);
    cr_assert(node_set_ints(m->graph, y->producer, "kernel_shape", kernel, 2));
    cr_assert(node_set_ints(m->graph, y->producer, "strides", strides, 2));
    cr_assert(node_set_ints(m->graph, y->producer, "pads", pads, 4));
    cr_assert(node_set_int(m->graph, y->producer, "count_include_pad", padding_counts));
    return y;
}

static struct value *average(struct maker *m, struct value *x)
{
    return mean_pool(m, x, false);
}

static struct value *average_with_padding(struct maker *m, struct value *x)
{
    return mean_pool(m, x, true);
}

static struct value *max_pool(struct maker *m, struct value *x)
{
    return largest(m, x, 2);
}

static struct value *resize(struct maker *m, struct value *x)
{
    const float factors[4] = {1, 1, 2, 2};
    return append(m, OP_RESIZE, 3,
                  (struct value *[]){x, NULL, constant(m, DTYPE_F32, SHAPE(4), factors)});
}

static struct value *mean(struct maker *m, struct value *x)
{
    const int64_t axes[2] = {2, -1};
    struct value *y = unary(m, OP_REDUCE_MEAN, x);
    cr_assert(set_axes(m->graph, y->producer, axes, 2));
    return y;
}

/* ---- products whose result is not stored ---- */

static struct value *channels_last(struct maker *m, struct value *x)
{
    const int64_t perm[4] = {0, 2, 3, 1};
    struct value *last = unary(m, OP_TRANSPOSE, x);
    cr_assert(node_set_ints(m->graph, last->producer, "perm", perm, 4));
    return last;
}

static struct value *real_row(struct maker *m, int64_t count, float middle)
{
    float numbers[2 * CHANNELS];
    cr_assert(count <= 2 * CHANNELS);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = middle + 0.5f * random_unit(&m->state);
    return constant(m, DTYPE_F32, SHAPE(count), numbers);
}

/* x · weights + bias over the last dimension, weights with a scale a column or one. */
static struct value *linear(struct maker *m, struct value *x, int64_t in, int64_t out, bool one)
{
    float weights[2 * CHANNELS * CHANNELS], scales[2 * CHANNELS];
    cr_assert((size_t)(in * out) <= COUNT_OF(weights));
    for (int64_t i = 0; i < in * out; i++)
        weights[i] = rintf(127 * random_unit(&m->state));
    for (int64_t i = 0; i < out; i++)
        scales[i] = (0.4f + 0.2f * random_unit(&m->state)) / (127 * sqrtf((float)in));
    struct value *terms[3] = {
        constant(m, DTYPE_I8, SHAPE(in, out), weights),
        one ? number(m, DTYPE_F32, scales[0]) : constant(m, DTYPE_F32, SHAPE(out), scales), NULL};
    struct value *real = append(m, OP_DEQUANTIZE_LINEAR, 2, terms);
    return binary(m, OP_ADD, real_row(m, out, 0), binary(m, OP_MATMUL, x, real));
}

/* As PyTorch exports it. */
static struct value *gelu(struct maker *m, struct value *x)
{
    struct value *root = binary(m, OP_DIV, x, number(m, DTYPE_F32, sqrtf(2)));
    struct value *sum = binary(m, OP_ADD, unary(m, OP_ERF, root), number(m, DTYPE_F32, 1));
    return binary(m, OP_MUL, binary(m, OP_MUL, x, sum), number(m, DTYPE_F32, 0.5f));
}

static struct value *layer_norm(struct maker *m, struct value *x)
{
    struct value *inputs[3] = {x, real_row(m, CHANNELS, 1), real_row(m, CHANNELS, 0)};
    return append(m, OP_LAYER_NORMALIZATION, 3, inputs);
}

static struct value *linear_gelu(struct maker *m, struct value *x)
{
    return gelu(m, linear(m, channels_last(m, x), CHANNELS, 2 * CHANNELS, true));
}

/* A block of a transformer: what is stored is what a product reads. */
static struct value *mlp(struct maker *m, struct value *x)
{
    struct value *real = layer_norm(m, channels_last(m, x));
    struct value *wide =
        gelu(m, linear(m, through(m, real, OTHER_STEP, 5), CHANNELS, 2 * CHANNELS, false));
    struct value *back =
        linear(m, through(m, wide, OTHER_STEP, odd_zero(m)), 2 * CHANNELS, CHANNELS, false);
    return layer_norm(m, binary(m, OP_ADD, back, real));
}

/* The stored result of a normalisation is read in another order. */
static struct value *transposed_norm(struct maker *m, struct value *x)
{
    const int64_t perm[4] = {1, 0, 2, 3};
    struct value *real = layer_norm(m, channels_last(m, x));
    struct value *there = unary(m, OP_TRANSPOSE, real);
    cr_assert(node_set_ints(m->graph, there->producer, "perm", perm, 4));
    struct value *y = linear(m, through(m, there, OTHER_STEP, 5), CHANNELS, CHANNELS, true);
    y = unary(m, OP_TRANSPOSE, unary(m, OP_TANH, y));
    cr_assert(node_set_ints(m->graph, y->producer, "perm", perm, 4));
    return y;
}

/* Heads are the rows of the image. */
static struct value *attention(struct maker *m, struct value *x)
{
    const int64_t perm[4] = {0, 1, 3, 2};
    struct value *last = channels_last(m, x), *parts[3];
    for (size_t i = 0; i < 3; i++)
        parts[i] = linear(m, last, CHANNELS, CHANNELS, false);
    struct value *keys = unary(m, OP_TRANSPOSE, parts[1]);
    cr_assert(node_set_ints(m->graph, keys->producer, "perm", perm, 4));
    struct value *scores = unary(m, OP_SOFTMAX, binary(m, OP_MATMUL, parts[0], keys));
    struct value *y = through(m, binary(m, OP_MATMUL, scores, parts[2]), OTHER_STEP, odd_zero(m));
    return linear(m, y, CHANNELS, CHANNELS, true);
}

static struct value *dense(struct maker *m, struct value *x)
{
    const struct weights w = {CHANNELS, CHANNELS, 3, DTYPE_U8, false, 0};
    return conv(m, x, &w, 1);
}

static struct value *conv_tanh(struct maker *m, struct value *x)
{
    return unary(m, OP_TANH, dense(m, x));
}

static struct value *conv_read_twice(struct maker *m, struct value *x)
{
    struct value *y = dense(m, x);
    return binary(m, OP_ADD, unary(m, OP_SIGMOID, y), binary(m, OP_MAX, y, x));
}

static struct value *conv_added(struct maker *m, struct value *x)
{
    return unary(m, OP_RELU, binary(m, OP_ADD, unary(m, OP_TANH, x), dense(m, x)));
}

static struct value *gemm_behind_mean(struct maker *m, struct value *x)
{
    float weights[CHANNELS * CHANNELS];
    for (size_t i = 0; i < COUNT_OF(weights); i++)
        weights[i] = rintf(127 * random_unit(&m->state));
    struct value *terms[3] = {constant(m, DTYPE_I8, SHAPE(CHANNELS, CHANNELS), weights),
                              number(m, DTYPE_F32, 0.03f), NULL};
    struct value *flat = unary(m, OP_FLATTEN, unary(m, OP_GLOBAL_AVERAGE_POOL, x));
    struct value *inputs[3] = {through(m, flat, 0.002f, odd_zero(m)),
                               append(m, OP_DEQUANTIZE_LINEAR, 2, terms), real_row(m, CHANNELS, 0)};
    struct value *y = append(m, OP_GEMM, 3, inputs);
    cr_assert(node_set_int(m->graph, y->producer, "transB", 1));
    return binary(m, OP_ADD, unary(m, OP_TANH, y), flat);
}

/* ---- what stays as the file has it ---- */

static struct value *weights_off_the_middle(struct maker *m, struct value *x)
{
    const struct weights w = {CHANNELS * 2, CHANNELS, 3, DTYPE_U8, false, -17};
    return conv(m, x, &w, 1);
}

static struct value *signed_weights_off_the_middle(struct maker *m, struct value *x)
{
    const struct weights w = {CHANNELS, 1, 3, DTYPE_I8, false, 5};
    return conv(m, x, &w, 1);
}

/* The scale is a number of the image. */
static struct value *scale_of_the_run(struct maker *m, struct value *x)
{
    struct value *most = unary(m, OP_REDUCE_MAX, unary(m, OP_ABS, x));
    cr_assert(node_set_int(m->graph, most->producer, "keepdims", 0));
    struct value *terms[3] = {x, binary(m, OP_DIV, most, number(m, DTYPE_F32, 120)),
                              number(m, m->dtype, odd_zero(m))};
    terms[0] = append(m, OP_QUANTIZE_LINEAR, 3, terms);
    return depthwise(m, append(m, OP_DEQUANTIZE_LINEAR, 3, terms), 3, 1);
}

static struct value *sixteen_bits(struct maker *m, struct value *x)
{
    struct value *terms[3] = {unary(m, OP_SIGMOID, x), number(m, DTYPE_F32, 0.0001f),
                              number(m, DTYPE_U16, 301)};
    terms[0] = append(m, OP_QUANTIZE_LINEAR, 3, terms);
    terms[0]->producer->opset = 21;
    struct value *real = append(m, OP_DEQUANTIZE_LINEAR, 3, terms);
    real->producer->opset = 21;
    return binary(m, OP_MUL, x, real);
}

static struct value *scale_a_channel(struct maker *m, struct value *x)
{
    float steps[CHANNELS], zeros[CHANNELS];
    for (int c = 0; c < CHANNELS; c++) {
        steps[c] = 0.05f + 0.001f * (float)c;
        zeros[c] = (float)(c % 5);
    }
    struct value *terms[3] = {x, constant(m, DTYPE_F32, SHAPE(CHANNELS), steps),
                              constant(m, m->dtype, SHAPE(CHANNELS), zeros)};
    terms[0] = append(m, OP_QUANTIZE_LINEAR, 3, terms);
    cr_assert(node_set_int(m->graph, terms[0]->producer, "axis", 1));
    struct value *real = append(m, OP_DEQUANTIZE_LINEAR, 3, terms);
    cr_assert(node_set_int(m->graph, real->producer, "axis", 1));
    return largest(m, real, 1);
}

enum { ANY_KERNEL = 1000, PRODUCTS = 9 /* the first cases */ };

static const struct {
    const char *name;
    struct value *(*make)(struct maker *m, struct value *x);
    size_t steps;       /* at most so many */
    const char *kernel; /* one of them is this, where simd_has_dot(); or NULL */
} cases[] = {
    {"depthwise 3x3", depthwise_3_1, 5, "int8:depthwise"},
    {"depthwise 3x3 by two", depthwise_3_2, 5, "int8:depthwise"},
    {"depthwise 5x5", depthwise_5_1, 5, "int8:depthwise"},
    {"depthwise 5x5 by two", depthwise_5_2, 5, "int8:depthwise"},
    {"depthwise 7x7", depthwise_7_1, 5, "int8:depthwise"},
    {"depthwise 7x7 by two", depthwise_7_2, 5, "int8:depthwise"},
    {"unsigned weights", unsigned_weights, 5, NULL},
    {"weights without a zero point", weights_without_zero, 5, NULL},
    {"MatMul", matrices, 5, NULL},
    {"Relu that storing does not do", relu_behind, 6, "table"},
    {"Clip that storing does not do", clip_behind, 6, "table"},
    {"SiLU", silu, 3, "table"},
    {"HardSwish in primitives", hard_swish, 3, "table"},
    {"LeakyRelu", leaky_relu, 3, "table"},
    {"a number that folding finds", folded_number, 4, "table"},
    {"product", product, 7, NULL},
    {"gate", gate, 6, "int8:channels"},
    {"a row added", row_added, 5, "int8:channels"},
    {"a row multiplied", row_multiplied, 5, "int8:channels"},
    {"sum", sum, 6, NULL},
    {"Concat of two scales", concat, 6, "int8:concat"},
    {"BatchNormalization", normalized, 6, "int8:scale_shift"},
    {"BatchNormalization and Relu", normalized_relu, 6, "int8:scale_shift"},
    {"BatchNormalization and Clip", normalized_clip, 6, "int8:scale_shift"},
    {"BatchNormalization twice", normalized_twice, 7, "int8:scale_shift"},
    {"BatchNormalization of a Concat", normalized_concat, 8, "int8:scale_shift"},
    {"BatchNormalization of parts", normalized_parts, 9, "int8:scale_shift:parts"},
    {"Split", split, 5, "int8:concat"},
    {"AveragePool", average, 5, NULL},
    {"AveragePool, padding counted", average_with_padding, 5, NULL},
    {"MaxPool", max_pool, 6, NULL},
    {"Resize to nearest", resize, 6, "resize"},
    {"ReduceMean", mean, 6, NULL},
    {"MatMul, bias, GELU", linear_gelu, 4, NULL},
    {"MLP", mlp, 9, NULL},
    {"LayerNormalization, transposed", transposed_norm, 6, NULL},
    {"attention", attention, 8, NULL},
    {"Conv, Tanh", conv_tanh, 5, NULL},
    {"Conv read twice", conv_read_twice, 11, NULL},
    {"Conv, Add, Relu", conv_added, 9, NULL},
    {"Gemm, Tanh, Add", gemm_behind_mean, 9, NULL},
    {"weights off the middle", weights_off_the_middle, ANY_KERNEL, NULL},
    {"signed weights off the middle", signed_weights_off_the_middle, ANY_KERNEL, NULL},
    {"scale of the run", scale_of_the_run, ANY_KERNEL, NULL},
    {"16 bits", sixteen_bits, ANY_KERNEL, NULL},
    {"a scale a channel", scale_a_channel, ANY_KERNEL, NULL},
};

/* ---- */

static struct graph *make(size_t c, enum dtype dtype)
{
    struct maker m = {graph_create(NULL), dtype, 3 + (uint32_t)c};
    struct shape shape = SHAPE(DIM_UNKNOWN, CHANNELS, HEIGHT, WIDTH);
    struct value *image = graph_add_value(m.graph, "image", DTYPE_F32, &shape);
    struct value **ends = arena_alloc(m.graph->arena, 2, sizeof *ends);
    ends[0] = image;
    ends[1] = stored(&m, cases[c].make(&m, stored(&m, image)));
    m.graph->opset = 17;
    m.graph->inputs = ends;
    m.graph->input_count = 1;
    m.graph->outputs = ends + 1;
    m.graph->output_count = 1;
    return m.graph;
}

static void expect_steps(size_t c, struct session *session, struct error *err)
{
    struct session_step *steps;
    size_t count;
    bool found = !cases[c].kernel;
    if (cases[c].steps == ANY_KERNEL)
        return;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, err), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        cr_expect(strcmp(steps[i].kernel, "reference") != 0, "%s: step %zu is not a fast one",
                  cases[c].name, i);
        found = found || strcmp(steps[i].kernel, cases[c].kernel) == 0;
    }
    cr_expect_leq(count, cases[c].steps, "%s: %zu steps", cases[c].name, count);
    if (simd_has_dot(simd()))
        cr_expect(found, "%s: no step is %s", cases[c].name, cases[c].kernel);
    free(steps);
}

static void compare(size_t c, enum dtype dtype, const struct simd_kernels *kernels)
{
    struct error err = {0};
    struct graph *graph = make(c, dtype), *reference;
    const int images = cases[c].steps == ANY_KERNEL ? 1 : IMAGES; /* a scale may be of the batch */
    struct shape shape = SHAPE(images, CHANNELS, HEIGHT, WIDTH);
    struct tensor *input, *expected;
    uint32_t state = 5;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = 6 * random_unit(&state);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 cases[c].name, err.message);
    simd_use(kernels);
    struct session *session;
    const struct session_options options = {.precision = PRECISION_INT8,
                                            .threads = 2,
                                            .max_batch = images,
                                            .image_layout = IMAGE_AS_DECLARED};
    const void *inputs[1] = {input->data};
    const struct tensor *output;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s",
                 cases[c].name, err.message);
    cr_assert_eq(session_run(session, images, inputs, &output, &err), STATUS_OK, "%s: %s",
                 cases[c].name, err.message);
    cr_assert(shape_equal(&output->shape, &expected->shape), "%s", cases[c].name);
    const float *e = expected->data, *g = output->data;
    float total = 0;
    for (size_t i = 0; i < shape_count(&output->shape); i++) {
        total += fabsf(e[i]);
        cr_assert(fabsf(e[i] - g[i]) <= 1.01f * STEP, "%s, %s, %s: element %zu is %g, not %g",
                  cases[c].name, simd()->name, dtype_name(dtype), i, (double)g[i], (double)e[i]);
    }
    cr_assert_gt(total, 0.5f * STEP * (float)shape_count(&output->shape), "%s says nothing",
                 cases[c].name);
    expect_steps(c, session, &err);
    simd_use(NULL);
    session_free(session);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(graph);
}

Test(quantized_ops, agree_with_the_file)
{
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int is_signed = 0; is_signed < 2; is_signed++) {
            const enum dtype dtype = is_signed ? DTYPE_I8 : DTYPE_U8;
            for (size_t v = 0; simd_at(v); v++)
                compare(c, dtype, simd_at(v));
        }
}

/* ---- biases ---- */

static void end_graph(struct maker *m, struct value *from, struct value *to)
{
    struct value **ends = arena_alloc(m->graph->arena, 2, sizeof *ends);
    ends[0] = from;
    ends[1] = to;
    m->graph->opset = 21;
    m->graph->inputs = ends;
    m->graph->input_count = 1;
    m->graph->outputs = ends + 1;
    m->graph->output_count = 1;
}

static bool is_integer_product(const struct node *node)
{
    return node->op == OP_QLINEAR_CONV || node->op == OP_QLINEAR_MATMUL || node->op == OP_QGEMM;
}

/* The interpreter's answers for the graph as it is and after the pass; which frees the graph. How
 * many products of integers the pass has made: */
static size_t expect_same(const char *name, struct graph *graph, struct shape shape,
                          bool multiplies_to_float)
{
    struct error err = {0};
    struct graph *quantized;
    struct tensor *input, *expected, *got;
    uint32_t state = 5;
    size_t made = 0;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = 6 * random_unit(&state);
    cr_assert_eq(graph_clone(graph, &quantized, &err), STATUS_OK);
    cr_assert_eq(optimize_quantized(quantized, multiplies_to_float, &err), STATUS_OK, "%s: %s",
                 name, err.message);
    for (size_t n = 0; n < quantized->node_count; n++)
        made += is_integer_product(quantized->nodes[n]);
    cr_assert_eq(interpret(graph, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    cr_assert_eq(interpret(quantized, &input, &got, NULL, NULL, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    const float *e = expected->data, *g = got->data;
    for (size_t i = 0; i < shape_count(&expected->shape); i++)
        cr_expect(fabsf(e[i] - g[i]) <= 1.01f * STEP, "%s: element %zu is %g, not %g", name, i,
                  (double)g[i], (double)e[i]);
    tensor_unref(got);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(quantized);
    graph_free(graph);
    return made;
}

Test(quantized_ops, a_bias_of_rows_is_none_of_columns)
{
    enum { ROWS = 4, COLUMNS = 4, SUMS = 8 };
    static const struct {
        struct shape shape;
        bool by_column;
    } biases[] = {{SHAPE(COLUMNS), true}, {SHAPE(1, COLUMNS), true}, {SHAPE(ROWS, 1), false}};
    const float numbers[ROWS] = {-3, -1, 2, 4};
    for (size_t b = 0; b < COUNT_OF(biases); b++) {
        struct maker m = {graph_create(NULL), DTYPE_I8, 3};
        struct shape shape = SHAPE(ROWS, SUMS);
        float weights[SUMS * COLUMNS];
        for (size_t i = 0; i < COUNT_OF(weights); i++)
            weights[i] = rintf(100 * random_unit(&m.state));
        struct value *terms[3] = {constant(&m, DTYPE_I8, SHAPE(SUMS, COLUMNS), weights),
                                  number(&m, DTYPE_F32, 0.001f), number(&m, DTYPE_I8, 0)};
        struct value *x = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
        struct value *inputs[3] = {stored(&m, x), append(&m, OP_DEQUANTIZE_LINEAR, 3, terms),
                                   constant(&m, DTYPE_F32, biases[b].shape, numbers)};
        end_graph(&m, x, stored(&m, append(&m, OP_GEMM, 3, inputs)));
        cr_expect_eq(expect_same("Gemm", m.graph, shape, false), biases[b].by_column, "bias %zu",
                     b);
    }
}

Test(quantized_ops, a_bias_in_blocks_stays)
{
    enum { BLOCK = 2 };
    for (int blocks = 0; blocks < 2; blocks++) {
        struct maker m = {graph_create(NULL), DTYPE_I8, 3};
        struct shape shape = SHAPE(1, CHANNELS, 5, 6);
        const struct weights w = {CHANNELS, CHANNELS, 1, DTYPE_I8, false, 0};
        float numbers[CHANNELS], scales[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) {
            numbers[c] = (float)(c % 2 ? 100 : -90);
            scales[c] = 0.001f * (float)(c + 1);
        }
        struct value *x = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
        struct value *y = conv(&m, stored(&m, x), &w, 1);
        struct value *terms[2] = {
            constant(&m, DTYPE_I32, SHAPE(CHANNELS), numbers),
            constant(&m, DTYPE_F32, SHAPE(blocks ? CHANNELS / BLOCK : CHANNELS), scales)};
        struct value *bias = append(&m, OP_DEQUANTIZE_LINEAR, 2, terms);
        bias->producer->opset = 21;
        cr_assert(node_set_int(m.graph, bias->producer, "axis", 0));
        if (blocks)
            cr_assert(node_set_int(m.graph, bias->producer, "block_size", BLOCK));
        struct node *product = y->producer, *dequantize = bias->producer;
        product->inputs[2] = bias;
        /* in front of the Conv that reads it */
        const size_t last = m.graph->node_count - 1;
        cr_assert(m.graph->nodes[last] == dequantize && m.graph->nodes[last - 1] == product);
        m.graph->nodes[last - 1] = dequantize;
        m.graph->nodes[last] = product;
        end_graph(&m, x, stored(&m, y));
        cr_expect_eq(expect_same("Conv", m.graph, shape, false), (size_t)!blocks);
    }
}

static size_t products_of(struct value *(*make_case)(struct maker *m, struct value *x),
                          bool multiplies_to_float)
{
    struct maker m = {graph_create(NULL), DTYPE_U8, 3};
    struct shape shape = SHAPE(1, CHANNELS, 5, 6);
    struct value *x = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
    end_graph(&m, x, stored(&m, make_case(&m, stored(&m, x))));
    return expect_same("product", m.graph, shape, multiplies_to_float);
}

/* Those whose result is not stored only where the backend has them. */
Test(quantized_ops, a_result_in_float32_is_the_backends_choice)
{
    static const struct {
        struct value *(*make)(struct maker *m, struct value *x);
        size_t products, stored; /* in all; and whose result is stored by the file */
    } all[] = {{linear_gelu, 1, 0},      {mlp, 2, 0},        {attention, 4, 0}, {conv_tanh, 1, 0},
               {gemm_behind_mean, 1, 0}, {conv_added, 1, 0}, {dense, 1, 1}};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        cr_expect_eq(products_of(all[i].make, true), all[i].products, "case %zu", i);
        cr_expect_eq(products_of(all[i].make, false), all[i].stored, "case %zu", i);
    }
}

/* A session's answers are the interpreter's, which frees the graph. */
static void expect_answers(const char *name, struct graph *graph, struct shape shape)
{
    struct error err = {0};
    struct tensor *input, *expected;
    struct session *session;
    uint32_t state = 5;
    const struct session_options options = {.precision = PRECISION_INT8,
                                            .threads = 2,
                                            .max_batch = 1,
                                            .image_layout = IMAGE_AS_DECLARED};
    const struct tensor *output;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = 6 * random_unit(&state);
    cr_assert_eq(interpret(graph, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    const void *inputs[1] = {input->data};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    cr_assert_eq(session_run(session, 1, inputs, &output, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    const float *e = expected->data, *g = output->data;
    for (size_t i = 0; i < shape_count(&expected->shape); i++)
        cr_assert(fabsf(e[i] - g[i]) <= 1.01f * STEP, "%s: element %zu is %g, not %g", name, i,
                  (double)g[i], (double)e[i]);
    session_free(session);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(graph);
}

/* Kernels divide by the scale: what has 0 or a subnormal stays a step of its own. The image is so
 * large that float32 written in place of bytes leaves the arena. */
Test(quantized_ops, scales_of_nothing_are_not_stored_with)
{
    static const float steps[] = {0, 1e-40f};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct maker m = {graph_create(NULL), DTYPE_U8, 3};
        struct shape shape = SHAPE(1, CHANNELS, 320, 310);
        const int64_t perm[4] = {1, 0, 2, 3};
        struct value *x = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
        struct value *there =
            unary(&m, OP_TRANSPOSE, layer_norm(&m, channels_last(&m, stored(&m, x))));
        cr_assert(node_set_ints(m.graph, there->producer, "perm", perm, 4));
        end_graph(&m, x, through(&m, there, steps[i], 5));
        expect_answers("transposed norm", m.graph, shape);
    }
}

/* Its weights' scale is a number of the image. */
Test(quantized_ops, a_products_scale_may_be_of_the_run)
{
    struct maker m = {graph_create(NULL), DTYPE_U8, 3};
    struct shape shape = SHAPE(1, CHANNELS, 5, 6);
    struct value *x = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
    struct value *most = unary(&m, OP_REDUCE_MAX, unary(&m, OP_ABS, x));
    cr_assert(node_set_int(m.graph, most->producer, "keepdims", 0));
    float weights[CHANNELS * CHANNELS];
    for (size_t i = 0; i < COUNT_OF(weights); i++)
        weights[i] = rintf(127 * random_unit(&m.state));
    struct value *terms[6] = {channels_last(&m, x), number(&m, DTYPE_F32, STEP),
                              number(&m, DTYPE_U8, 128)};
    terms[0] = append(&m, OP_QUANTIZE_LINEAR, 3, terms);
    terms[3] = constant(&m, DTYPE_I8, SHAPE(CHANNELS, CHANNELS), weights);
    terms[4] = binary(&m, OP_DIV, most, number(&m, DTYPE_F32, 5000));
    terms[5] = number(&m, DTYPE_I8, 0);
    struct value *y = append(&m, OP_QLINEAR_MATMUL, 6, terms);
    y = binary(&m, OP_MUL, binary(&m, OP_ADD, y, real_row(&m, CHANNELS, 0)),
               real_row(&m, CHANNELS, 1));
    end_graph(&m, x, y);
    expect_answers("product", m.graph, shape);
}

/* A column of zeros with a scale of 1: its bias is no multiple of that. */
Test(quantized_ops, a_column_of_zeros_keeps_its_bias)
{
    struct maker m = {graph_create(NULL), DTYPE_U8, 3};
    struct shape shape = SHAPE(1, CHANNELS, 5, 6);
    struct value *x = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
    float weights[CHANNELS * CHANNELS], scales[CHANNELS];
    for (size_t i = 0; i < COUNT_OF(weights); i++)
        weights[i] = i % CHANNELS == 7 ? 0 : rintf(127 * random_unit(&m.state));
    for (size_t c = 0; c < CHANNELS; c++)
        scales[c] = c == 7 ? 100 : 0.001f;
    struct value *terms[3] = {constant(&m, DTYPE_I8, SHAPE(CHANNELS, CHANNELS), weights),
                              constant(&m, DTYPE_F32, SHAPE(CHANNELS), scales), NULL};
    struct value *real = append(&m, OP_DEQUANTIZE_LINEAR, 2, terms);
    struct value *y = binary(&m, OP_MATMUL, channels_last(&m, stored(&m, x)), real);
    end_graph(&m, x, binary(&m, OP_ADD, y, real_row(&m, CHANNELS, 1)));
    expect_answers("product", m.graph, shape);
}

/* Sums beyond int32 once they are scaled, all negative. */
Test(quantized_ops, depthwise_saturates_below)
{
    const float step = 1e-9f;
    for (int64_t taps = 3; taps <= 7; taps += 2) {
        struct error err = {0};
        struct maker m = {graph_create(NULL), DTYPE_I8, 3};
        struct shape shape = SHAPE(1, CHANNELS, HEIGHT, WIDTH);
        float weights[CHANNELS * 49];
        for (size_t i = 0; i < COUNT_OF(weights); i++)
            weights[i] = -100;
        struct value *terms[3] = {constant(&m, DTYPE_I8, SHAPE(CHANNELS, 1, taps, taps), weights),
                                  number(&m, DTYPE_F32, 0.01f), number(&m, DTYPE_I8, 0)};
        struct value *x = graph_add_value(m.graph, "image", DTYPE_F32, &shape);
        struct value *y =
            binary(&m, OP_CONV, stored(&m, x), append(&m, OP_DEQUANTIZE_LINEAR, 3, terms));
        cr_assert(node_set_int(m.graph, y->producer, "group", CHANNELS));
        end_graph(&m, x, through(&m, y, step, odd_zero(&m)));
        struct tensor *input;
        struct session *session;
        const struct tensor *output;
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
        for (size_t i = 0; i < shape_count(&shape); i++)
            ((float *)input->data)[i] = 1 + (float)(i % 5);
        const struct session_options options = {.precision = PRECISION_INT8,
                                                .threads = 1,
                                                .max_batch = 1,
                                                .image_layout = IMAGE_AS_DECLARED};
        const void *inputs[1] = {input->data};
        cr_assert_eq(session_create(m.graph, &options, &session, &err), STATUS_OK, "%s",
                     err.message);
        cr_assert_eq(session_run(session, 1, inputs, &output, &err), STATUS_OK);
        const float *g = output->data, lowest = (-128 - odd_zero(&m)) * step;
        for (size_t i = 0; i < shape_count(&output->shape); i++)
            cr_assert(fabsf(g[i] - lowest) < 0.01f * step, "%d taps, element %zu is %g, not %g",
                      (int)taps, i, (double)g[i], (double)lowest);
        session_free(session);
        tensor_unref(input);
        graph_free(m.graph);
    }
}

/* ---- quantize_dynamic ---- */

/* scale · integer product, of x stored in 8 bits as its range asks for. */
static struct value *dynamic_product(struct maker *m, struct value *x, enum op op, struct value *w)
{
    struct node *store = graph_add_node(m->graph, OP_DYNAMIC_QUANTIZE_LINEAR, "", 1, 3);
    store->opset = 11;
    store->inputs[0] = x;
    for (size_t i = 0; i < 3; i++)
        node_set_output(store, i, graph_add_value(m->graph, "", DTYPE_NONE, NULL));
    struct value *inputs[4] = {store->outputs[0], w, store->outputs[2], number(m, DTYPE_U8, 121)};
    struct value *sums = append(m, op, 4, inputs), *real = unary(m, OP_CAST, sums);
    cr_assert(node_set_int(m->graph, real->producer, "to", DTYPE_F32));
    return binary(m, OP_MUL, real,
                  binary(m, OP_MUL, store->outputs[1], number(m, DTYPE_F32, 0.0021f)));
}

static struct value *byte_weights(struct maker *m, struct shape shape)
{
    float numbers[CHANNELS * CHANNELS * 9];
    const size_t count = shape_count(&shape);
    cr_assert(count <= COUNT_OF(numbers));
    for (size_t i = 0; i < count; i++)
        numbers[i] = 128 + rintf(127 * random_unit(&m->state));
    return constant(m, DTYPE_U8, shape, numbers);
}

/* image → ConvInteger → mean → MatMulInteger */
static struct graph *make_dynamic(void)
{
    const int64_t pads[4] = {1, 1, 1, 1};
    struct maker m = {graph_create(NULL), DTYPE_U8, 21};
    struct shape shape = SHAPE(DIM_UNKNOWN, CHANNELS, HEIGHT, WIDTH);
    struct value **ends = arena_alloc(m.graph->arena, 2, sizeof *ends);
    ends[0] = graph_add_value(m.graph, "image", DTYPE_F32, &shape);
    struct value *x = dynamic_product(&m, ends[0], OP_CONV_INTEGER,
                                      byte_weights(&m, SHAPE(CHANNELS, CHANNELS, 3, 3)));
    for (size_t n = 0; n < m.graph->node_count; n++)
        if (m.graph->nodes[n]->op == OP_CONV_INTEGER)
            cr_assert(node_set_ints(m.graph, m.graph->nodes[n], "pads", pads, 4));
    x = unary(&m, OP_FLATTEN, unary(&m, OP_GLOBAL_AVERAGE_POOL, x));
    ends[1] = dynamic_product(&m, x, OP_MATMUL_INTEGER, byte_weights(&m, SHAPE(CHANNELS, 18)));
    m.graph->opset = 17;
    m.graph->inputs = ends;
    m.graph->input_count = 1;
    m.graph->outputs = ends + 1;
    m.graph->output_count = 1;
    return m.graph;
}

/* A session answers nearly what the interpreter does, without its kernels. Frees the graph. */
static void runs_quickly(struct graph *graph, struct shape shape)
{
    struct error err = {0};
    struct graph *reference;
    struct tensor *input, *expected;
    struct session *session;
    struct session_step *steps;
    size_t count;
    uint32_t state = 5;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = 6 * random_unit(&state) + 1;
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s",
                 err.message);
    const struct session_options options = {.precision = PRECISION_FP32,
                                            .threads = 2,
                                            .max_batch = 1,
                                            .image_layout = IMAGE_AS_DECLARED};
    const void *inputs[1] = {input->data};
    const struct tensor *output;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, 1, inputs, &output, &err), STATUS_OK, "%s", err.message);
    cr_assert(shape_equal(&output->shape, &expected->shape));
    const float *e = expected->data, *g = output->data;
    float most = 0;
    for (size_t i = 0; i < shape_count(&output->shape); i++)
        most = fabsf(e[i]) > most ? fabsf(e[i]) : most;
    cr_assert_gt(most, 0.01f);
    /* one of 24 means may be rounded the other way: a 255th of their range times a weight */
    for (size_t i = 0; i < shape_count(&output->shape); i++)
        cr_assert(fabsf(e[i] - g[i]) <= 0.01f * most, "element %zu is %g, not %g", i, (double)g[i],
                  (double)e[i]);
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        cr_expect(strcmp(steps[i].kernel, "reference") != 0, "step %zu is not a fast one", i);
    free(steps);
    session_free(session);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(graph);
}

Test(quantized_ops, dynamic_products_are_those_of_real_numbers)
{
    runs_quickly(make_dynamic(), SHAPE(1, CHANNELS, HEIGHT, WIDTH));
}

/* MatMulNBits: weights of 4 bits, [40, 70] in blocks of 32. */
Test(quantized_ops, packed_weights_become_real_ones)
{
    enum { INPUTS = 70, RESULTS = 40, BLOCKS = 3 };
    for (size_t operands = 3; operands <= 6; operands += 3) {
        struct maker m = {graph_create(NULL), DTYPE_U8, 8};
        struct shape shape = SHAPE(DIM_UNKNOWN, INPUTS);
        struct value **ends = arena_alloc(m.graph->arena, 2, sizeof *ends);
        ends[0] = graph_add_value(m.graph, "x", DTYPE_F32, &shape);
        struct value *inputs[6] = {ends[0],
                                   byte_weights(&m, SHAPE(RESULTS, BLOCKS, 16)),
                                   byte_weights(&m, SHAPE(RESULTS * BLOCKS)),
                                   NULL,
                                   NULL,
                                   NULL};
        inputs[2] = unary(&m, OP_CAST, inputs[2]);
        cr_assert(node_set_int(m.graph, inputs[2]->producer, "to", DTYPE_F32));
        if (operands > 5) {
            static float biases[RESULTS];
            biases[7] = 1000;
            inputs[5] = constant(&m, DTYPE_F32, SHAPE(RESULTS), biases);
        }
        ends[1] = append(&m, OP_MATMUL_NBITS, operands, inputs);
        struct node *node = ends[1]->producer;
        node->opset = 1;
        cr_assert(node_set_int(m.graph, node, "K", INPUTS) &&
                  node_set_int(m.graph, node, "N", RESULTS) &&
                  node_set_int(m.graph, node, "block_size", 32));
        m.graph->opset = 17;
        m.graph->inputs = ends;
        m.graph->outputs = ends + 1;
        m.graph->input_count = m.graph->output_count = 1;
        runs_quickly(m.graph, SHAPE(1, INPUTS));
    }
}

Test(quantized_ops, int8_is_not_for_dynamic_quantization)
{
    struct error err = {0};
    struct graph *graph = make_dynamic();
    struct session *session = NULL;
    const struct session_options options = {.precision = PRECISION_INT8, .max_batch = 1};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_UNSUPPORTED);
    cr_expect(strstr(err.message, "this one is quantized dynamically"), "%s", err.message);
    graph_free(graph);
}

/* Each variant's table of 256, with every rest of a register, for rows with gaps. */
Test(quantized_ops, tables_answer_for_every_byte)
{
    const struct simd_kernels *all[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(all);
    uint8_t table[256], x[600], y[601];
    uint32_t state = 9;
    for (size_t i = 0; i < sizeof table; i++)
        table[i] = (uint8_t)(random_unit(&state) * 127 + 128);
    for (size_t i = 0; i < sizeof x; i++)
        x[i] = (uint8_t)(i * 167);
    for (size_t k = 0; k < variant_count; k++)
        for (size_t n = 0; n <= sizeof x; n += n < 140 ? 1 : 46) {
            memset(y, 0x5a, sizeof y);
            all[k]->lookup(&(struct lookup_rows){.table = table}, x, y, 1, n);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(y[i], table[x[i]], "%s, %zu of %zu", all[k]->name, i, n);
            cr_assert_eq(y[n], 0x5a, "%s writes behind %zu", all[k]->name, n);
        }
    for (size_t k = 0; k < variant_count; k++) {
        const struct lookup_rows rows = {table, 70, 90};
        memset(y, 0x5a, sizeof y);
        all[k]->lookup(&rows, x, y, 5, 67);
        for (size_t i = 0; i < 5 * rows.y_step; i++) {
            const size_t r = i / rows.y_step, c = i % rows.y_step;
            cr_assert_eq(y[i], c < 67 ? table[x[r * rows.x_step + c]] : 0x5a, "%s: %zu of row %zu",
                         all[k]->name, c, r);
        }
    }
}
