/* engine/quantize: ranges, and quantized graphs of random networks beside the float32 ones. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/quantize/quantize_ranges.h"
#include "tests/unit/random_graph.h"

/* ---- ranges ---- */

enum { NUMBERS = 4096 };

/* Of `channels`, which take turns. */
static struct number_range range_of(struct arena *arena, const float *values, size_t count,
                                    size_t channels, size_t inner)
{
    struct number_range range;
    struct error err;
    cr_assert_eq(range_init(&range, arena, channels, inner, &err), STATUS_OK);
    range_extend(&range, values, count / 2);
    range_extend(&range, values + count / 2, count / 2);
    range.bins = arena_alloc(arena, RANGE_BINS, sizeof *range.bins);
    range_count(&range, values, count);
    return range;
}

static float highest_of(struct number_scale as)
{
    return as.scale * (float)(255 - as.zero);
}

Test(quantize, ranges_include_zero_and_leave_out_what_costs_more_than_it_gains)
{
    static float values[NUMBERS];
    uint32_t state = 7;
    struct arena *arena = arena_create(0);
    for (size_t i = 0; i < NUMBERS; i++)
        values[i] = 1.5f + random_unit(&state);
    values[NUMBERS - 1] = 100; /* one that is far out */
    struct number_range range = range_of(arena, values, NUMBERS, 1, 16);
    cr_expect_eq(range_scale(&range, false).zero, 0);
    /* One in 4096 costs more than finer steps gain. */
    cr_expect_float_eq(highest_of(range_scale(&range, false)), 100, 0.1);
    for (int b = 0; b < RANGE_BINS - 1; b++)
        range.bins[b] *= 1000000;
    cr_expect_lt(highest_of(range_scale(&range, false)), 10);
    cr_expect_float_eq(highest_of(range_scale(&range, true)), 100, 0.1);
    for (size_t i = 0; i < NUMBERS; i++)
        values[i] = -2 - random_unit(&state);
    range = range_of(arena, values, NUMBERS, 1, 1);
    cr_expect_eq(range_scale(&range, false).zero, 255);
    cr_expect_leq(range_scale(&range, false).scale * 255, 3.01f);
    arena_free(arena);
}

Test(quantize, sums_are_those_of_channels)
{
    const float values[] = {1, 2, 3, 4, 10, 20, 30, 40};
    struct arena *arena = arena_create(0);
    struct number_range rows = range_of(arena, values, 8, 2, 1),
                        maps = range_of(arena, values, 8, 2, 2);
    cr_expect(rows.sums[0] == 44 && rows.sums[1] == 66 && rows.summed == 4);
    cr_expect(maps.sums[0] == 33 && maps.sums[1] == 77 && maps.summed == 4);
    arena_free(arena);
}

Test(quantize, numbers_that_are_not_finite_have_no_limits)
{
    const float values[][2] = {{1, INFINITY}, {-INFINITY, 1}, {1, NAN}, {0, 0}};
    struct arena *arena = arena_create(0);
    float low, high;
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct number_range range = range_of(arena, values[i], 2, 1, 1);
        cr_expect_eq(range_limits(&range, &low, &high), i == 3, "%zu", i);
        const struct number_scale as = range_scale(&range, true);
        cr_expect(i < 3 || (as.scale == 1 && as.zero == 0));
    }
    arena_free(arena);
}

/* ---- graphs ---- */

#define SIDE   24
#define IMAGES 6

struct images {
    float numbers[IMAGES][SIDE * SIDE * 3];
    size_t reads;
};

static enum status image_read(void *context, size_t i, const void **ret, struct error *err)
{
    struct images *images = context;
    (void)err;
    images->reads++;
    *ret = images->numbers[i];
    return STATUS_OK;
}

static struct session_options image_options(void)
{
    return (struct session_options){.device = DEVICE_HOST,
                                    .threads = 1,
                                    .max_batch = 1,
                                    .trial = true,
                                    .image_layout = IMAGE_NHWC_F32};
}

static struct images *make_images(uint32_t seed)
{
    struct images *images = calloc(1, sizeof *images);
    for (size_t i = 0; i < IMAGES; i++)
        for (size_t k = 0; k < COUNT_OF(images->numbers[i]); k++)
            images->numbers[i][k] = random_unit(&seed);
    return images;
}

/* The first output for an image, copied; *ret_count: its numbers. */
static float *answer_of(const struct graph *graph, enum precision precision, const float *image,
                        size_t *ret_count)
{
    struct error err = {0};
    struct session *session;
    struct session_options options = image_options();
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const void *inputs[] = {image};
    options.precision = precision;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    *ret_count = shape_count(&outputs[0]->shape);
    float *copy = malloc(outputs[0]->bytes + 1);
    memcpy(copy, outputs[0]->data, outputs[0]->bytes);
    session_free(session);
    return copy;
}

static double relative_error(const struct graph *graph, const struct graph *quantized,
                             const float *image)
{
    size_t count, other;
    float *a = answer_of(graph, PRECISION_FP32, image, &count);
    const enum precision precision =
        quantizer_is_quantized(quantized) ? PRECISION_INT8 : PRECISION_FP32;
    float *b = answer_of(quantized, precision, image, &other);
    double error = 0, size = 1e-12;
    cr_assert_eq(count, other);
    for (size_t i = 0; i < count; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)a[i] * (double)a[i];
    }
    free(a);
    free(b);
    return sqrt(error / size);
}

static size_t count_ops(const struct graph *graph, enum op op)
{
    size_t count = 0;
    for (size_t n = 0; n < graph->node_count; n++)
        count += graph->nodes[n]->op == op;
    return count;
}

static struct quantizer *observed_for(const struct graph *graph, int weight_max,
                                      struct images *images, size_t memory)
{
    struct error err = {0};
    struct quantizer *quantizer;
    const struct session_options options = image_options();
    const struct quantizer_images feed = {.count = IMAGES, .read = image_read, .context = images};
    if (quantizer_create(graph, weight_max, &quantizer, &err) != STATUS_OK) {
        cr_assert_eq(err.status, STATUS_UNSUPPORTED, "%s", err.message);
        return NULL;
    }
    cr_assert_eq(quantizer_observe(quantizer, &options, &feed, memory, &err), STATUS_OK, "%s",
                 err.message);
    return quantizer;
}

static struct quantizer *observed(const struct graph *graph, struct images *images, size_t memory)
{
    return observed_for(graph, QUANTIZER_WEIGHT_MAX, images, memory);
}

static int greatest_weight(const struct graph *graph)
{
    int greatest = 0;
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct tensor *known = graph->values[v]->known;
        for (size_t i = 0; known && known->dtype == DTYPE_I8 && i < shape_count(&known->shape);
             i++) {
            const int weight = ((const int8_t *)known->data)[i];
            greatest = abs(weight) > greatest ? abs(weight) : greatest;
        }
    }
    return greatest;
}

Test(quantize, weights_for_avx2_have_7_bits)
{
    struct images *images = make_images(3);
    struct graph *graph = random_graph(3, SIDE, SIDE);
    for (int i = 0; i < 2; i++) {
        const int most = i ? QUANTIZER_WEIGHT_MAX_AVX2 : QUANTIZER_WEIGHT_MAX;
        struct error err = {0};
        struct graph *made;
        struct quantizer *quantizer = observed_for(graph, most, images, (size_t)64 << 20);
        cr_assert_eq(quantizer_make(quantizer, true, true, &made, &err), STATUS_OK, "%s",
                     err.message);
        cr_expect_eq(greatest_weight(made), most);
        cr_expect_lt(relative_error(graph, made, images->numbers[0]), 0.1);
        graph_free(made);
        quantizer_free(quantizer);
    }
    graph_free(graph);
    free(images);
}

/* With all layers in float32 nothing is stored and the answer is the same; with all in 8 bits it is
 * near. */
Test(quantize, random_networks_answer_nearly_as_in_float32)
{
    struct images *images = make_images(1);
    size_t quantized_networks = 0, near = 0;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        struct error err = {0};
        struct graph *graph = random_graph(seed, SIDE, SIDE), *made;
        struct quantizer *quantizer = observed(graph, images, (size_t)64 << 20);
        if (!quantizer) {
            graph_free(graph);
            continue;
        }
        cr_assert_eq(quantizer_make(quantizer, true, true, &made, &err), STATUS_OK, "%s",
                     err.message);
        cr_expect(quantizer_is_quantized(made) && !quantizer_is_quantized(graph));
        cr_expect_eq(made->output_count, graph->output_count);
        const double error = relative_error(graph, made, images->numbers[0]);
        quantized_networks++;
        near += error < 0.1;
        graph_free(made);
        size_t layers;
        struct quantizer_layer *layer = quantizer_layers(quantizer, &layers);
        for (size_t i = 0; i < layers; i++)
            layer[i].is_kept = true;
        cr_assert_eq(quantizer_make(quantizer, true, true, &made, &err), STATUS_OK);
        cr_expect_eq(count_ops(made, OP_QUANTIZE_LINEAR), 0);
        cr_expect_eq(count_ops(made, OP_DEQUANTIZE_LINEAR), 0);
        graph_free(made);
        quantizer_free(quantizer);
        graph_free(graph);
    }
    cr_expect_geq(quantized_networks, 20);
    cr_expect_geq(near, quantized_networks * 9 / 10, "%zu of %zu", near, quantized_networks);
    free(images);
}

/* ONNX Runtime makes int32 of a float32 bias, too, and overflows where it does not fit. The layers
 * share their weights, and have scales of their own. */
Test(quantize, large_biases_are_stored_as_int32)
{
    static const float biases[2][3] = {{0.5f, 1e6f, -0.5f}, {0, 0.25f, 0}};
    struct error err = {0};
    struct graph *graph = graph_create(NULL), *made;
    struct images *images = make_images(5);
    struct tensor *weights;
    graph->opset = 13;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(3, 3, 1, 1), &weights, &err), STATUS_OK);
    for (int i = 0; i < 9; i++)
        ((float *)weights->data)[i] = i < 3 ? 1e-9f : 0.25f;
    struct value *of_both = graph_add_constant(graph, "weights", weights);
    struct value *ends[2] = {
        graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 3, SIDE, SIDE))};
    struct value *x = ends[0];
    tensor_unref(weights);
    for (int l = 0; l < 2; l++) {
        struct tensor *bias;
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(3), &bias, &err), STATUS_OK);
        memcpy(bias->data, biases[l], sizeof biases[l]);
        struct node *conv = graph_add_node(graph, OP_CONV, l ? "second" : "first", 3, 1);
        conv->opset = 13;
        conv->inputs[0] = x;
        conv->inputs[1] = of_both;
        conv->inputs[2] = graph_add_constant(graph, "bias", bias);
        tensor_unref(bias);
        x = graph_add_value(graph, l ? "out" : "between", DTYPE_F32, NULL);
        node_set_output(conv, 0, x);
    }
    ends[1] = x;
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    struct quantizer *quantizer = observed(graph, images, (size_t)64 << 20);
    cr_assert(quantizer);
    cr_assert_eq(quantizer_make(quantizer, true, true, &made, &err), STATUS_OK);
    size_t layers = 0;
    for (size_t n = 0; n < made->node_count; n++) {
        const struct node *node = made->nodes[n];
        if (node->op != OP_CONV)
            continue;
        layers++;
        cr_assert(node->inputs[2]->producer, "the bias of %s is float32", node->name);
        const float *in = node->inputs[0]->producer->inputs[1]->known->data;
        const float *scales = node->inputs[1]->producer->inputs[1]->known->data;
        const float *units = node->inputs[2]->producer->inputs[1]->known->data;
        for (int m = 0; m < 3; m++)
            cr_expect_float_eq(units[m] / (*in * scales[m]), 1, 1e-6f, "%s, %d", node->name, m);
    }
    cr_expect_eq(layers, 2);
    cr_expect_lt(relative_error(graph, made, images->numbers[0]), 0.05);
    graph_free(made);
    quantizer_free(quantizer);
    graph_free(graph);
    free(images);
}

static struct value *add_numbers(struct graph *graph, const char *name, const struct shape *shape,
                                 const float *numbers)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, shape, &tensor, &err), STATUS_OK);
    memcpy(tensor->data, numbers, tensor->bytes);
    struct value *value = graph_add_constant(graph, name, tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *add_step(struct graph *graph, enum op op, const char *name,
                              struct value *const *inputs, size_t count)
{
    struct node *node = graph_add_node(graph, op, name, count, 1);
    for (size_t i = 0; i < count; i++)
        node->inputs[i] = inputs[i];
    struct value *value = graph_add_value(graph, name, DTYPE_F32, NULL);
    node_set_output(node, 0, value);
    return value;
}

enum norm_kind { AS_OPERATOR, AS_STEPS, READ_TWICE, SHOWS_STEP, NORMS };

/* A norm with one channel 100 times as great as the others, and a product to which all three
 * matter. AS_OPERATOR: an output reads the norm's gain, too. */
static struct graph *norm_graph(enum norm_kind kind)
{
    static const float gains[] = {1, 100, 1}, biases[] = {0.5f, -10, 0};
    static const int64_t order[] = {0, 2, 3, 1};
    float weights[3 * 4];
    for (int i = 0; i < 12; i++)
        weights[i] = (i / 4 == 1 ? 0.01f : 1) * (float)(i % 5 - 2);
    struct graph *graph = graph_create(NULL);
    graph->opset = 17;
    struct value **ends = arena_alloc(graph->arena, 3, sizeof *ends);
    ends[0] = graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 3, SIDE, SIDE));
    struct value *gain = add_numbers(graph, "gain", &SHAPE(3), gains);
    struct value *bias = add_numbers(graph, "bias", &SHAPE(3), biases);
    struct value *x = add_step(graph, OP_TRANSPOSE, "rows", &ends[0], 1), *scaled = NULL;
    node_set_ints(graph, x->producer, "perm", order, COUNT_OF(order));
    struct value *beside = add_step(graph, OP_MUL, "beside", (struct value *[]){x, gain}, 2);
    if (kind == AS_OPERATOR)
        x = add_step(graph, OP_LAYER_NORMALIZATION, "norm", (struct value *[]){x, gain, bias}, 3);
    else {
        scaled = add_step(graph, OP_MUL, "scaled", (struct value *[]){x, gain}, 2);
        x = add_step(graph, OP_ADD, "norm", (struct value *[]){bias, scaled}, 2);
    }
    ends[2] = kind == SHOWS_STEP    ? scaled
              : kind == AS_OPERATOR ? beside
                                    : add_step(graph, OP_SIGMOID, "other", &x, 1);
    x = add_step(graph, OP_IDENTITY, "same", &x, 1);
    struct value *of_product = add_numbers(graph, "weights", &SHAPE(3, 4), weights);
    ends[1] = add_step(graph, OP_MATMUL, "product", (struct value *[]){x, of_product}, 2);
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = 1;
    graph->output_count = kind == AS_STEPS ? 1 : 2;
    return graph;
}

static double error_made(struct quantizer *quantizer, bool keeps, const struct graph *graph,
                         const float *image)
{
    struct error err = {0};
    struct graph *made;
    size_t layers;
    quantizer_layers(quantizer, &layers)->is_kept = true;
    cr_assert_eq(quantizer_make(quantizer, keeps, false, &made, &err), STATUS_OK, "%s",
                 err.message);
    for (size_t n = 0; n < made->node_count; n++)
        for (size_t i = 0; i < made->nodes[n]->input_count; i++) {
            const struct value *input = made->nodes[n]->inputs[i];
            cr_expect(!input || !input->known || *input->name, "%s", NODE_STRING(made->nodes[n]));
        }
    const double error = relative_error(graph, made, image);
    graph_free(made);
    return error;
}

Test(quantize, smoothing_evens_out_the_channels_of_a_norm)
{
    struct images *images = make_images(9);
    const struct session_options options = image_options();
    const struct quantizer_images feed = {.count = IMAGES, .read = image_read, .context = images};
    for (enum norm_kind kind = 0; kind < NORMS; kind++) {
        struct error err = {0};
        struct graph *graph = norm_graph(kind);
        struct quantizer *plain = observed(graph, images, (size_t)64 << 20), *smooth;
        cr_assert_eq(quantizer_smooth(plain, &smooth, &err), STATUS_OK, "%s", err.message);
        if (kind == READ_TWICE || kind == SHOWS_STEP) {
            cr_expect_null(smooth, "%d: the norm is read by more than the product", kind);
        } else {
            cr_assert(smooth, "%d", kind);
            cr_assert_eq(quantizer_observe(smooth, &options, &feed, (size_t)64 << 20, &err),
                         STATUS_OK, "%s", err.message);
            const float *image = images->numbers[0];
            cr_expect_lt(error_made(smooth, true, graph, image), 1e-5, "%d", kind);
            const double before = error_made(plain, false, graph, image);
            const double after = error_made(smooth, false, graph, image);
            cr_expect_lt(after, before / 5, "%d: %g, %g", kind, before, after);
        }
        quantizer_free(smooth);
        quantizer_free(plain);
        graph_free(graph);
    }
    free(images);
}

/* Tensors are observed in parts that fit the memory: the same ranges. */
Test(quantize, parts_give_the_same_graph)
{
    struct images *images = make_images(2);
    struct graph *graph = random_graph(3, SIDE, SIDE), *whole, *parts;
    struct error err = {0};
    struct quantizer *a = observed(graph, images, (size_t)64 << 20);
    cr_assert(a);
    cr_expect_eq(images->reads, 2 * IMAGES);
    images->reads = 0;
    struct quantizer *b = observed(graph, images, 1);
    cr_expect_gt(images->reads, 2 * IMAGES);
    cr_assert_eq(quantizer_make(a, true, true, &whole, &err), STATUS_OK);
    cr_assert_eq(quantizer_make(b, true, true, &parts, &err), STATUS_OK);
    cr_expect_eq(count_ops(whole, OP_QUANTIZE_LINEAR), count_ops(parts, OP_QUANTIZE_LINEAR));
    const double error = fabs(relative_error(graph, whole, images->numbers[0]) -
                              relative_error(graph, parts, images->numbers[0]));
    cr_expect_lt(error, 1e-3);
    graph_free(whole);
    graph_free(parts);
    quantizer_free(a);
    quantizer_free(b);
    graph_free(graph);
    free(images);
}

Test(quantize, refuses_what_is_quantized_already)
{
    struct images *images = make_images(4);
    struct graph *graph = random_graph(3, SIDE, SIDE), *made;
    struct error err = {0};
    struct quantizer *quantizer = observed(graph, images, (size_t)64 << 20), *again;
    cr_assert_eq(quantizer_make(quantizer, true, true, &made, &err), STATUS_OK);
    cr_expect_eq(quantizer_create(made, QUANTIZER_WEIGHT_MAX, &again, &err), STATUS_UNSUPPORTED);
    cr_expect(strstr(err.message, "quantized already"));
    graph_free(made);
    quantizer_free(quantizer);
    graph_free(graph);
    free(images);
}
