/* Sessions of small graphs made to be awkward: what passes match nearly, where outputs lie, which
 * batches a graph allows. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/axes.h"
#include "tests/unit/random_build.h"

enum { MOST_ENDS = 3 };

/* A graph with one input, "image", of this dtype and shape. */
static struct value *begin(struct builder *b, enum dtype dtype, struct shape shape, int opset)
{
    *b = (struct builder){.graph = graph_create(NULL), .state = 77};
    b->graph->opset = opset;
    b->graph->inputs = arena_alloc(b->graph->arena, MOST_ENDS, sizeof(struct value *));
    b->graph->outputs = arena_alloc(b->graph->arena, MOST_ENDS, sizeof(struct value *));
    struct value *input = graph_add_value(b->graph, "image", dtype, &shape);
    b->graph->inputs[b->graph->input_count++] = input;
    return input;
}

static void end_at(struct builder *b, struct value *output)
{
    cr_assert_not_null(output);
    b->graph->outputs[b->graph->output_count++] = output;
}

static struct value *one_node(struct builder *b, enum op op, size_t count,
                              struct value *const *inputs)
{
    struct node *node;
    add(b, op, count, inputs, 1, &node);
    return finish(b, node);
}

static struct session *create(const struct builder *b, struct session_options options)
{
    struct error err = {0};
    struct session *session = NULL;
    options.threads = 1;
    cr_assert_eq(session_create(b->graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    return session;
}

static float *numbers(size_t count)
{
    float *data = malloc(count * sizeof *data);
    uint32_t state = 4711;
    for (size_t i = 0; i < count; i++)
        data[i] = random_unit(&state);
    return data;
}

/* The session against the interpreter, for the declared (known) shapes. Frees the graph. */
static void agrees(struct builder *b)
{
    struct error err = {0};
    struct session *session =
        create(b, (struct session_options){.max_batch = 1, .image_input = SIZE_MAX});
    struct tensor *inputs[MOST_ENDS], *expected[MOST_ENDS];
    const void *data[MOST_ENDS];
    const struct tensor *outputs[MOST_ENDS];
    for (size_t i = 0; i < b->graph->input_count; i++) {
        const struct value *value = b->graph->inputs[i];
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &value->shape, &inputs[i], &err), STATUS_OK);
        float *made = numbers(shape_count(&value->shape));
        if (inputs[i]->bytes)
            memcpy(inputs[i]->data, made, inputs[i]->bytes);
        free(made);
        data[i] = inputs[i]->data;
    }
    cr_assert_eq(interpret(b->graph, inputs, expected, NULL, NULL, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(session_run(session, 1, data, outputs, &err), STATUS_OK, "%s", err.message);
    for (size_t o = 0; o < b->graph->output_count; o++) {
        cr_assert(shape_equal(&expected[o]->shape, &outputs[o]->shape));
        for (size_t e = 0; e < shape_count(&expected[o]->shape); e++)
            cr_assert_float_eq(tensor_number(outputs[o], e), tensor_number(expected[o], e), 1e-4,
                               "output %zu, element %zu: %g, not %g", o, e,
                               tensor_number(outputs[o], e), tensor_number(expected[o], e));
        tensor_unref(expected[o]);
    }
    for (size_t i = 0; i < b->graph->input_count; i++)
        tensor_unref(inputs[i]);
    session_free(session);
    graph_free(b->graph);
}

/* ---- numbers ---- */

/* In every thread of a pass, and only there. */
/* A file may make an output of this, and leave the ratio to clients. */
Test(session_edges, dropout_of_a_constant)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(2, 3), 13);
    struct value *ratio = graph_add_value(b.graph, "ratio", DTYPE_F32, &SHAPE_SCALAR);
    b.graph->inputs[b.graph->input_count++] = ratio;
    end_at(&b, one_node(&b, OP_RELU, 1, &x));
    end_at(&b, binary(&b, OP_DROPOUT, constant(&b, SHAPE(1, 3), 1, 0), ratio));
    agrees(&b);
}

Test(session_edges, subnormal_numbers_count_as_zero)
{
    enum { N = 1 << 18 };
    static float data[N];
    volatile float tiny = 1e-39f;
    struct builder b;
    struct error err = {0};
    struct session *session = NULL;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, N), 13);
    const struct session_options options = {.max_batch = 1, .image_input = SIZE_MAX, .threads = 2};
    const struct tensor *output;
    end_at(&b, binary(&b, OP_ADD, x, x));
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    for (size_t i = 0; i < N; i++)
        data[i] = tiny;
    cr_assert_eq(session_run(session, 1, (const void *[]){data}, &output, &err), STATUS_OK, "%s",
                 err.message);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(((const float *)output->data)[i], 0.0f, "number %zu", i);
    cr_assert_gt(tiny + tiny, 0.0f, "the caller's own arithmetic has changed");
    session_free(session);
    graph_free(b.graph);
}

/* ---- passes ---- */

/* Ranks that no compiled product multiplies: the reference kernel runs, and knows no third
 * operand, which is where the optimiser puts a constant bias. */
Test(session_edges, product_of_mixed_ranks_has_its_bias)
{
    for (int variant = 0; variant < 4; variant++) {
        struct builder b;
        struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 4, 6, 5), 13);
        struct value *y = binary(&b, OP_MATMUL, x, constant(&b, SHAPE(4, 5, 3), 0.5f, 0));
        y = binary(&b, OP_ADD, constant(&b, SHAPE(1, 3), 1, 0), y);
        if (variant & 1)
            y = binary(&b, OP_ADD, y, unary(&b, OP_TANH, y));
        end_at(&b, variant & 2 ? unary(&b, OP_RELU, y) : y);
        agrees(&b);
    }
}

Test(session_edges, products_of_nothing)
{
    static const struct shape shapes[][2] = {{{2, {0, 4}}, {2, {4, 3}}},
                                             {{2, {2, 0}}, {2, {0, 3}}},
                                             {{2, {2, 4}}, {2, {4, 0}}},
                                             {{3, {5, 0, 4}}, {3, {5, 4, 3}}},
                                             {{3, {0, 2, 4}}, {3, {0, 4, 3}}}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct builder b;
        struct value *x = begin(&b, DTYPE_F32, shapes[i][0], 13);
        end_at(&b, binary(&b, OP_MATMUL, x, constant(&b, shapes[i][1], 0.5f, 0)));
        agrees(&b);
    }
}

/* Gemm's own C is also what is added behind it: both count. */
Test(session_edges, gemm_adds_its_operand_twice)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(3, 3), 13);
    struct value *c = unary(&b, OP_TANH, x);
    struct value *y =
        one_node(&b, OP_GEMM, 3, (struct value *[]){x, constant(&b, SHAPE(3, 3), 1, 0), c});
    end_at(&b, binary(&b, OP_ADD, y, c));
    agrees(&b);
}

/* ScaleShift, which BatchNormalization becomes, works on the last dimension. */
Test(session_edges, batch_normalisation_of_any_rank)
{
    static const struct shape shapes[] = {{2, {2, 3}},
                                          {3, {2, 3, 4}},
                                          {4, {2, 3, 2, 4}},
                                          {5, {1, 3, 2, 2, 4}},
                                          {6, {1, 3, 2, 2, 1, 2}}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct builder b;
        struct value *x = begin(&b, DTYPE_F32, shapes[i], 13);
        struct shape c = SHAPE(3);
        end_at(&b,
               one_node(&b, OP_BATCH_NORMALIZATION, 5,
                        (struct value *[]){x, constant(&b, c, 0.5f, 1), constant(&b, c, 0.3f, 0),
                                           constant(&b, c, 0.3f, 0), constant(&b, c, 0.4f, 1)}));
        agrees(&b);
    }
}

/* x - mean(x) is one wide, its scale is three: broadcasting, not LayerNormalization. */
Test(session_edges, layer_norm_does_not_broadcast)
{
    for (int64_t width = 1; width <= 3; width += 2) {
        struct builder b;
        struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 4, width), 13);
        struct node *node;
        int64_t last = -1;
        add(&b, OP_REDUCE_MEAN, 1, &x, 1, &node);
        set_axes(b.graph, node, &last, 1);
        struct value *d = binary(&b, OP_SUB, x, finish(&b, node));
        struct value *v = binary(&b, OP_MUL, d, d);
        add(&b, OP_REDUCE_MEAN, 1, &v, 1, &node);
        set_axes(b.graph, node, &last, 1);
        v = binary(&b, OP_ADD, finish(&b, node), constant(&b, SHAPE(1), 0, 1e-5f));
        struct value *y = binary(&b, OP_DIV, d, unary(&b, OP_SQRT, v));
        y = binary(&b, OP_MUL, y, constant(&b, SHAPE(3), 0.5f, 1));
        end_at(&b, binary(&b, OP_ADD, y, constant(&b, SHAPE(3), 0.5f, 1)));
        agrees(&b);
    }
}

static void refuses_reference_steps(const struct builder *b)
{
    struct error err = {0};
    struct session_step *steps;
    size_t count;
    struct session *session =
        create(b, (struct session_options){.max_batch = 1, .image_input = SIZE_MAX});
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        cr_expect_str_neq(steps[i].kernel, "reference");
    free(steps);
    session_free(session);
}

/* What normalisations in primitives consist of. */
Test(session_edges, mean_square_of_rows)
{
    for (int64_t row = 1; row < 200; row += 66)
        for (int keep = 0; keep < 2; keep++) {
            struct builder b;
            const int64_t axes[1] = {-1};
            const float two = 2;
            struct value *x = begin(&b, DTYPE_F32, SHAPE(3, 5, row), 13);
            struct tensor *exponent;
            cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE_SCALAR, &exponent, NULL), STATUS_OK);
            memcpy(exponent->data, &two, sizeof two);
            x = binary(&b, OP_POW, x, graph_add_constant(b.graph, "two", exponent));
            tensor_unref(exponent);
            x = unary(&b, OP_REDUCE_MEAN, x);
            cr_assert(set_axes(b.graph, x->producer, axes, 1));
            cr_assert(node_set_int(b.graph, x->producer, "keepdims", keep));
            x->shape = keep ? SHAPE(3, 5, 1) : SHAPE(3, 5);
            end_at(&b, x);
            refuses_reference_steps(&b);
            agrees(&b);
        }
}

/* Until opset 3 Concat's axis is 1 where it is left out. */
/* Parts that nobody asked for, the first among them: no reason for a slow copy. */
Test(session_edges, split_leaves_parts_out)
{
    for (int is_image = 0; is_image < 2; is_image++) {
        struct builder b;
        struct error err = {0};
        struct node *node;
        struct session_step *steps;
        size_t count;
        struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 11, 5, 4), 13);
        if (is_image) /* channels-last from here on */
            x = one_node(&b, OP_CONV, 2,
                         (struct value *[]){x, constant(&b, SHAPE(11, 11, 1, 1), 1, 0)});
        static const int64_t sizes[] = {2, 4, 1, 4};
        add(&b, OP_SPLIT, 2, (struct value *[]){x, ints(&b, sizes, 4)}, 4, &node);
        node_set_int(b.graph, node, "axis", 1);
        node->outputs[0] = node->outputs[2] = NULL;
        cr_assert_eq(graph_infer_node(node, &err), STATUS_OK, "%s", err.message);
        struct value *kept[2] = {node->outputs[1], node->outputs[3]};
        end_at(&b, binary(&b, OP_ADD, kept[0], kept[1]));
        struct session *session =
            create(&b, (struct session_options){.max_batch = 1, .image_input = SIZE_MAX});
        cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
        for (size_t i = 0; i < count; i++)
            cr_expect_str_neq(steps[i].kernel, "reference", "%s", steps[i].name);
        free(steps);
        session_free(session);
        agrees(&b);
    }
}

Test(session_edges, empty_tensors)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 3, 0, 4), 13);
    struct value *y =
        one_node(&b, OP_CONV, 2, (struct value *[]){x, constant(&b, SHAPE(2, 3, 1, 1), 1, 0)});
    if (y) {
        y = unary(&b, OP_RELU, y);
        end_at(&b, binary(&b, OP_ADD, y, constant(&b, SHAPE(2, 1, 1), 1, 0)));
    }
    end_at(&b, binary(&b, OP_MUL, x, x));
    end_at(&b, unary(&b, OP_FLATTEN, unary(&b, OP_SIGMOID, x)));
    agrees(&b);
}

/* The pass that folds Flatten and Reshape into a Softmax must not drop the attribute p. */
Test(session_edges, a_flattened_lp_normalization)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 3, 1, 1), 13);
    struct value *y = unary(&b, OP_LP_NORMALIZATION, unary(&b, OP_FLATTEN, x));
    node_set_int(b.graph, y->producer, "p", 1);
    end_at(&b, binary(&b, OP_RESHAPE, y, ints(&b, (int64_t[]){1, 3, 1, 1}, 4)));
    agrees(&b);
}

/* ---- where outputs lie, what they are called ---- */

/* Outputs are valid until the next run, whatever the caller does with its buffer. */
Test(session_edges, outputs_do_not_lie_in_the_caller_s_input)
{
    struct error err = {0};
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 3, 2, 2), 13);
    struct value *flat = unary(&b, OP_FLATTEN, x);
    end_at(&b, unary(&b, OP_IDENTITY, x));
    end_at(&b, binary(&b, OP_RESHAPE, flat, ints(&b, (int64_t[]){1, 2, 6}, 3)));
    end_at(&b, x);
    struct session *session = create(&b, (struct session_options){.max_batch = 1});
    float *data = numbers(12), *before = numbers(12);
    const void *inputs[] = {data};
    const struct tensor *outputs[3];
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    memset(data, 0, 12 * sizeof *data);
    for (int o = 0; o < 3; o++)
        cr_assert_arr_eq(outputs[o]->data, before, 12 * sizeof *before, "output %d", o);
    session_free(session);
    graph_free(b.graph);
    free(data);
    free(before);
}

/* Whatever passes do to the values behind them. */
Test(session_edges, outputs_keep_their_names)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F16, SHAPE(1, 3), 13);
    struct value *y = unary(&b, OP_IDENTITY, unary(&b, OP_RELU, x));
    y->name = "probabilities";
    end_at(&b, y);
    struct session *session = create(&b, (struct session_options){.max_batch = 1});
    cr_assert_str_eq(session_info(session)->outputs[0].name, "probabilities");
    cr_assert_str_eq(session_info(session)->inputs[0].name, "image");
    cr_assert_eq(session_info(session)->outputs[0].dtype, DTYPE_F16);
    session_free(session);
    graph_free(b.graph);
}

static struct value *half_constant(struct builder *b, float number)
{
    struct error err = {0};
    struct tensor *half;
    cr_assert_eq(tensor_create(NULL, DTYPE_F16, &SHAPE_SCALAR, &half, &err), STATUS_OK);
    ((uint16_t *)half->data)[0] = float_to_half(number);
    struct value *value = graph_add_constant(b->graph, "half", half);
    tensor_unref(half);
    return value;
}

static struct value *cast_to(struct builder *b, struct value *x, enum dtype dtype)
{
    struct node *cast;
    add(b, OP_CAST, 1, &x, 1, &cast);
    cr_assert(node_set_int(b->graph, cast, "to", dtype));
    return finish(b, cast);
}

/* The importer writes constants of old forms, and the divisor of a Mean, as CastLike. */
Test(session_edges, float16_beside_castlike_is_computed_in_float32)
{
    struct error err = {0};
    struct builder b;
    struct value *x = begin(&b, DTYPE_F16, SHAPE(1, 6), 19);
    struct value *sum = binary(&b, OP_ADD, x, x);
    struct value *two = binary(&b, OP_CAST_LIKE, constant(&b, SHAPE_SCALAR, 0, 2), sum);
    end_at(&b, binary(&b, OP_DIV, sum, two));
    struct session *session = create(&b, (struct session_options){.max_batch = 1});
    uint16_t data[6];
    for (int i = 0; i < 6; i++)
        data[i] = float_to_half(10000.0f * (float)i);
    const void *inputs[] = {data};
    const struct tensor *outputs[1];
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(outputs[0]->dtype, DTYPE_F16);
    cr_assert_arr_eq(outputs[0]->data, data, sizeof data);
    session_free(session);
    graph_free(b.graph);
}

/* A float16 file fed float32 images, whose quantization has float16 scales or float32 ones. */
Test(session_edges, float16_beside_quantization)
{
    for (int is_half = 0; is_half < 2; is_half++) {
        struct error err = {0};
        struct builder b;
        struct value *x = begin(&b, DTYPE_F16, SHAPE(1, 3, 2, 2), 19);
        struct value *y = binary(&b, OP_MUL, x, half_constant(&b, 2));
        struct value *scale =
            is_half ? half_constant(&b, 0.25f) : constant(&b, SHAPE_SCALAR, 0, 0.25f);
        y = binary(&b, OP_QUANTIZE_LINEAR, is_half ? y : cast_to(&b, y, DTYPE_F32), scale);
        y = binary(&b, OP_DEQUANTIZE_LINEAR, y, scale);
        end_at(&b, is_half ? cast_to(&b, y, DTYPE_F32) : y);
        struct session *session =
            create(&b, (struct session_options){.max_batch = 1, .image_layout = IMAGE_NHWC_F32});
        const float data[12] = {1, 2, 0.5f, 1, 2, 0.5f, 1, 2, 0.5f, 1, 2, 0.5f};
        const void *inputs[] = {data};
        const struct tensor *outputs[1];
        cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
        const float *got = outputs[0]->data;
        for (int i = 0; i < 12; i++)
            cr_assert_float_eq(got[i], i < 4 ? 2 : i < 8 ? 4 : 1, 1e-6, "element %d", i);
        session_free(session);
        graph_free(b.graph);
    }
}

/* What `lensd quantize` makes of a float16 file takes the image in float32, too: it is not rounded
 * to float16 before it is quantized. */
Test(session_edges, float16_images_are_quantized_from_float32)
{
    static const enum precision precisions[] = {PRECISION_FP32, PRECISION_INT8};
    for (size_t p = 0; p < COUNT_OF(precisions); p++) {
        struct error err = {0};
        struct builder b;
        struct value *x = begin(&b, DTYPE_F16, SHAPE(1, 3, 2, 2), 13);
        struct value *scale = constant(&b, SHAPE_SCALAR, 0, 0.25f);
        struct value *y = binary(&b, OP_QUANTIZE_LINEAR, cast_to(&b, x, DTYPE_F32), scale);
        y = binary(&b, OP_DEQUANTIZE_LINEAR, y, scale);
        end_at(&b, cast_to(&b, y, DTYPE_F16));
        struct session *session = create(
            &b, (struct session_options){
                    .max_batch = 1, .precision = precisions[p], .image_layout = IMAGE_NHWC_F32});
        cr_assert_eq(session_info(session)->inputs[0].dtype, DTYPE_F32);
        cr_assert_eq(session_info(session)->outputs[0].dtype, DTYPE_F16);
        const float data[12] = {1, 2, 0.5f, 1, 2, 0.5f, 1, 2, 0.5f, 1, 2, 0.5f};
        const void *inputs[] = {data};
        const struct tensor *outputs[1];
        cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
        const uint16_t *got = outputs[0]->data;
        for (int i = 0; i < 12; i++)
            cr_assert_eq(got[i], float_to_half(i < 4 ? 1 : i < 8 ? 2 : 0.5f), "element %d", i);
        struct session_step *steps;
        size_t count;
        cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
        for (size_t i = 0; i < count; i++)
            cr_expect_str_neq(steps[i].kernel, "reference", "step %zu", i);
        free(steps);
        session_free(session);
        graph_free(b.graph);
    }
}

/* ---- batches ---- */

/* The second input has two rows for every image; it does not follow the batch. */
Test(session_edges, second_input_stays_as_it_is)
{
    struct error err = {0};
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 4), 13);
    struct shape two = SHAPE(2, 4);
    struct value *rows = graph_add_value(b.graph, "rows", DTYPE_F32, &two);
    b.graph->inputs[b.graph->input_count++] = rows;
    struct node *node;
    add(&b, OP_GEMM, 2, (struct value *[]){x, rows}, 1, &node);
    node_set_int(b.graph, node, "transB", 1);
    end_at(&b, finish(&b, node));
    struct session *session = create(&b, (struct session_options){.max_batch = 4});
    cr_assert(session_info(session)->batched, "%s", session_info(session)->note);
    cr_assert_eq(session_info(session)->inputs[1].shape.dims[0], 2);
    float *images = numbers(16), *other = numbers(8);
    const struct tensor *outputs[1];
    cr_assert_eq(session_run(session, 3, (const void *[]){images, other}, outputs, &err),
                 STATUS_OK);
    for (int i = 0; i < 6; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++)
            sum += images[i / 2 * 4 + k] * other[i % 2 * 4 + k];
        cr_assert_float_eq(((const float *)outputs[0]->data)[i], sum, 1e-5);
    }
    session_free(session);
    graph_free(b.graph);
    free(images);
    free(other);
}

/* A file that fixes its batch to 4 runs 4 at a time; one image is described. */
Test(session_edges, fixed_batch_is_padded)
{
    struct error err = {0};
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(4, 3, 2, 2), 13);
    end_at(&b, unary(&b, OP_GLOBAL_AVERAGE_POOL, x));
    struct session *session = create(&b, (struct session_options){.max_batch = 8});
    struct shape input = SHAPE(1, 3, 2, 2), output = SHAPE(1, 3, 1, 1);
    cr_assert(shape_equal(&session_info(session)->inputs[0].shape, &input));
    cr_assert(shape_equal(&session_info(session)->outputs[0].shape, &output));
    cr_assert_eq(session_batch_for(session, 1), 4);
    cr_assert_eq(session_batch_for(session, 5), 0);
    float *images = numbers(48);
    const void *inputs[] = {images};
    const struct tensor *outputs[1];
    for (int batch = 3; batch >= 1; batch--) {
        cr_assert_eq(session_run(session, batch, inputs, outputs, &err), STATUS_OK);
        cr_assert_eq(outputs[0]->shape.dims[0], batch);
        cr_assert_eq(outputs[0]->bytes, (size_t)batch * 3 * sizeof(float));
    }
    cr_assert_eq(session_run(session, 5, inputs, outputs, &err), STATUS_INTERNAL);
    session_free(session);
    graph_free(b.graph);
    free(images);
}

static void refuses_batches(struct builder *b, struct session_options options)
{
    options.max_batch = 4;
    struct session *session = create(b, options);
    cr_assert_eq(session_batch_for(session, 2), 0, "%s", session_info(session)->note);
    session_free(session);
    graph_free(b->graph);
}

/* [4, N]: at a batch of 4 the first dimension is 4, but it is not the batch. */
Test(session_edges, first_dimension_that_only_looks_like_the_batch)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 2), 13);
    b.graph->inputs[0]->shape.dims[0] = DIM_UNKNOWN;
    struct node *node;
    add(&b, OP_TRANSPOSE, 1, &x, 1, &node);
    node_set_ints(b.graph, node, "perm", (int64_t[]){1, 0}, 2);
    end_at(&b, node->outputs[0]);
    refuses_batches(&b, (struct session_options){0});
}

/* The outputs are classes, not floats, and depend on all images of the batch. */
Test(session_edges, classes_that_mix_images)
{
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 40), 13);
    struct node *node;
    add(&b, OP_REDUCE_SUM, 2, (struct value *[]){x, ints(&b, (int64_t[]){0}, 1)}, 1, &node);
    struct value *sum = finish(&b, node);
    struct value *y =
        binary(&b, OP_ADD, binary(&b, OP_MUL, x, constant(&b, SHAPE(1), 0, 0.1f)), sum);
    add(&b, OP_ARG_MAX, 1, &y, 1, &node);
    node_set_int(b.graph, node, "axis", 1);
    end_at(&b, finish(&b, node));
    refuses_batches(&b, (struct session_options){0});
}

/* Warm-up must show integers and float16 numbers that differ, or mixing goes unnoticed. */
Test(session_edges, images_of_other_dtypes_that_mix)
{
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_F16, DTYPE_F64};
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        for (int layout = 0; layout < 2; layout++) {
            struct builder b;
            struct value *x = begin(&b, dtypes[i], SHAPE(1, 3, 2, 2), 13);
            struct node *node;
            add(&b, OP_CAST, 1, &x, 1, &node);
            node_set_int(b.graph, node, "to", DTYPE_F32);
            struct value *y = finish(&b, node);
            add(&b, OP_REDUCE_MEAN, 1, &y, 1, &node);
            set_axes(b.graph, node, (int64_t[]){0}, 1);
            end_at(&b, binary(&b, OP_SUB, y, finish(&b, node)));
            refuses_batches(&b, (struct session_options){
                                    .image_layout = layout ? IMAGE_NHWC_F32 : IMAGE_AS_DECLARED});
        }
    }
}

Test(session_edges, fixed_batch_beyond_reason)
{
    struct error err = {0};
    struct builder b;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(5000, 2), 13);
    end_at(&b, unary(&b, OP_RELU, x));
    struct session_options options = {.threads = 1, .max_batch = 1};
    struct session *session = NULL;
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_UNSUPPORTED);
    cr_assert(strstr(err.message, "5000"), "%s", err.message);
    graph_free(b.graph);
}

/* A made-up input says nothing about the model: measured with zeros, the depth is 0. */
Test(session_edges, one_hot_whose_depth_is_an_input)
{
    static const float numbers_of_two[] = {0, 1};
    static const int64_t classes = 1;
    struct builder b;
    struct error err = {0};
    struct value *depth = begin(&b, DTYPE_I64, SHAPE(1), 13);
    struct tensor *values, *index;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(2), &values, &err), STATUS_OK);
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE(1), &index, &err), STATUS_OK);
    memcpy(values->data, numbers_of_two, sizeof numbers_of_two);
    memcpy(index->data, &classes, sizeof classes);
    struct value *pair = graph_add_value(b.graph, "pair", DTYPE_F32, &SHAPE(2));
    struct value *which = graph_add_value(b.graph, "which", DTYPE_I64, &SHAPE(1));
    pair->known = values;
    which->known = index;
    end_at(&b, one_node(&b, OP_ONE_HOT, 3, (struct value *[]){which, depth, pair}));
    struct session *session =
        create(&b, (struct session_options){.max_batch = 1, .image_input = SIZE_MAX});
    const int64_t three = 3;
    const struct tensor *output;
    cr_assert_eq(session_run(session, 1, (const void *[]){&three}, &output, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert(shape_equal(&output->shape, &SHAPE(1, 3)));
    for (size_t i = 0; i < 3; i++)
        cr_expect_eq(tensor_number(output, i), i == 1);
    const int64_t zero = 0;
    cr_expect_neq(session_run(session, 1, (const void *[]){&zero}, &output, &err), STATUS_OK);
    cr_expect(strstr(err.message, "depth is 0"), "%s", err.message);
    session_free(session);
    graph_free(b.graph);
}

Test(session_edges, outputs_of_another_type_than_declared)
{
    struct builder b;
    struct error err = {0};
    struct session *session;
    const struct session_options options = {.max_batch = 2, .image_input = SIZE_MAX, .threads = 1};
    struct value *x = begin(&b, DTYPE_F32, SHAPE(DIM_UNKNOWN, 4), 13);
    struct node *node = graph_add_node(b.graph, OP_RELU, "relu", 1, 1);
    node->inputs[0] = x;
    struct value *y = graph_add_value(b.graph, "scores", DTYPE_I64, &SHAPE(DIM_UNKNOWN, 4));
    node_set_output(node, 0, y);
    end_at(&b, y);
    cr_expect_eq(session_create(b.graph, &options, &session, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "'scores' is declared int64, but the graph makes float32"), "%s",
              err.message);
    graph_free(b.graph);
}

/* What looks like a GroupNormalization of an image without channels is none. */
Test(session_edges, group_normalization_without_channels)
{
    struct builder b;
    struct node *node;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 2, 4), 13);
    struct value *first = ints(&b, (int64_t[]){0}, 1), *axis = ints(&b, (int64_t[]){1}, 1);
    struct value *shape = ints(&b, (int64_t[]){1, 0, 4}, 3);
    struct value *none = constant(&b, SHAPE(0), 1, 0), *row = constant(&b, SHAPE(0, 1), 1, 0);
    x = one_node(&b, OP_SLICE, 4, (struct value *[]){x, first, first, axis});
    x = binary(&b, OP_RESHAPE, one_node(&b, OP_RELU, 1, &x), shape);
    x = one_node(&b, OP_INSTANCE_NORMALIZATION, 3, (struct value *[]){x, none, none});
    x = binary(&b, OP_ADD, binary(&b, OP_MUL, binary(&b, OP_RESHAPE, x, shape), row), row);
    add(&b, OP_REDUCE_SUM, 1, &x, 1, &node);
    node_set_int(b.graph, node, "keepdims", 0);
    end_at(&b, finish(&b, node));
    agrees(&b);
}

/* A sanitizer's own memory does not fit. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* With 48 MiB of addresses more than now. */
static enum status create_with_little_memory(struct builder *b, struct session **ret,
                                             struct error *err)
{
    struct rlimit before, after;
    unsigned long pages = 0;
    const struct session_options options = {.max_batch = 1, .image_input = SIZE_MAX, .threads = 1};
    FILE *file = fopen("/proc/self/statm", "r");
    cr_assert(file && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
    cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
    const struct rlimit limit = {pages * (rlim_t)sysconf(_SC_PAGESIZE) + (48 << 20),
                                 before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_assert_eq(getrlimit(RLIMIT_AS, &after), 0);
    if (after.rlim_cur != limit.rlim_cur)
        cr_skip("qemu-user ignores limits of the address space");
    const enum status status = session_create(b->graph, &options, ret, err);
    cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
    return status;
}

Test(session_edges, weights_that_cannot_be_packed_are_refused)
{
    struct builder b;
    struct error err = {0};
    struct session *session;
    struct value *x = begin(&b, DTYPE_F32, SHAPE(1, 4096), 13);
    end_at(&b, binary(&b, OP_MATMUL, x, constant(&b, SHAPE(4096, 4096), 0.5f, 0)));
    cr_expect_eq(create_with_little_memory(&b, &session, &err), STATUS_NO_MEMORY);
    cr_expect(strstr(err.message, "packing the model's weights takes 128.0 MiB"), "%s",
              err.message);
    graph_free(b.graph);
}

Test(session_edges, a_table_is_not_packed)
{
    struct builder b;
    struct error err = {0};
    struct session *session;
    struct value *x = begin(&b, DTYPE_I64, SHAPE(1, 2), 13);
    end_at(&b, binary(&b, OP_GATHER, constant(&b, SHAPE(4096, 4096), 0.5f, 0), x));
    cr_assert_eq(create_with_little_memory(&b, &session, &err), STATUS_OK, "%s", err.message);
    session_free(session);
    graph_free(b.graph);
}
#endif
