/* Parts of a graph whose shapes only a run knows: their products run on the backend, and give what
 * the reference kernels give, for shapes that come for the first time and that come again. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/random_build.h"

enum { IMAGES = 6, CHANNELS = 8, SIDE = 12, IMAGE_FLOATS = CHANNELS * SIDE * SIDE, OUTPUTS = 3 };

static struct value *node(struct builder *b, enum op op, size_t count, struct value *const *inputs,
                          struct node **ret)
{
    struct node *made;
    cr_assert_not_null(add(b, op, count, inputs, 1, ret ? ret : &made));
    return finish(b, ret ? *ret : made);
}

/* The rows of [IMAGES, …] that have a positive first element, of a new graph with that input. */
static struct value *positive_rows(struct builder *b)
{
    *b = (struct builder){.graph = graph_create(NULL), .state = 5};
    b->graph->opset = 13;
    b->graph->inputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    b->graph->outputs = arena_alloc(b->graph->arena, OUTPUTS, sizeof(struct value *));
    struct shape shape = SHAPE(IMAGES, CHANNELS, SIDE, SIDE);
    struct value *x = graph_add_value(b->graph, "x", DTYPE_F32, &shape);
    b->graph->inputs[b->graph->input_count++] = x;
    struct value *flat =
        node(b, OP_RESHAPE, 2, (struct value *[]){x, ints(b, (int64_t[]){IMAGES, IMAGE_FLOATS}, 2)},
             NULL);
    struct node *gather;
    cr_assert_not_null(
        add(b, OP_GATHER, 2, (struct value *[]){flat, ints(b, (int64_t[]){0}, 1)}, 1, &gather));
    node_set_int(b->graph, gather, "axis", 1);
    struct value *first = unary(b, OP_RELU, finish(b, gather));
    first =
        node(b, OP_RESHAPE, 2, (struct value *[]){first, ints(b, (int64_t[]){IMAGES}, 1)}, NULL);
    struct value *rows = node(b, OP_NON_ZERO, 1, &first, NULL);
    rows = node(b, OP_RESHAPE, 2, (struct value *[]){rows, ints(b, (int64_t[]){-1}, 1)}, NULL);
    return node(b, OP_GATHER, 2, (struct value *[]){x, rows}, NULL);
}

static void output(struct builder *b, struct value *value)
{
    b->graph->outputs[b->graph->output_count++] = value;
}

/* Convolutions, also grouped and transposed, a fully connected layer and products of two values. */
static void products(struct builder *b)
{
    struct value *x = positive_rows(b);
    struct node *made;
    struct value *y = node(b, OP_CONV, 3,
                           (struct value *[]){x, constant(b, SHAPE(24, CHANNELS, 3, 3), 0.2f, 0),
                                              constant(b, SHAPE(24), 1, 0)},
                           &made);
    node_set_ints(b->graph, made, "pads", (int64_t[]){1, 1, 1, 1}, 4);
    y = unary(b, OP_RELU, y);
    struct value *wide = node(
        b, OP_CONV, 2, (struct value *[]){y, constant(b, SHAPE(32, 12, 3, 3), 0.2f, 0)}, &made);
    node_set_int(b->graph, made, "group", 2);
    output(b, wide);
    struct value *up =
        node(b, OP_CONV_TRANSPOSE, 2,
             (struct value *[]){y, constant(b, SHAPE(24, 10, 2, 2), 0.2f, 0)}, &made);
    node_set_ints(b->graph, made, "strides", (int64_t[]){2, 2}, 2);
    output(b, up);
    struct value *flat =
        node(b, OP_RESHAPE, 2, (struct value *[]){y, ints(b, (int64_t[]){-1, 24 * SIDE * SIDE}, 2)},
             NULL);
    struct value *dense =
        node(b, OP_GEMM, 3,
             (struct value *[]){flat, constant(b, SHAPE(200, 24 * SIDE * SIDE), 0.02f, 0),
                                constant(b, SHAPE(200), 1, 0)},
             &made);
    node_set_int(b->graph, made, "transB", 1);
    struct value *square = node(b, OP_TRANSPOSE, 1, &dense, NULL);
    output(b, node(b, OP_MATMUL, 2, (struct value *[]){square, dense}, NULL));
}

/* The sign of image i's first element is bit i of `signs`. */
static void fill(float *data, unsigned signs)
{
    uint32_t state = 99 + signs;
    for (size_t i = 0; i < (size_t)IMAGES * IMAGE_FLOATS; i++)
        data[i] = random_unit(&state);
    for (size_t i = 0; i < IMAGES; i++)
        data[i * IMAGE_FLOATS] = signs >> i & 1 ? 0.5f : -0.5f;
}

static void agrees(struct builder *b, struct session *session, struct tensor *x, unsigned signs)
{
    struct error err = {0};
    struct tensor *expected[OUTPUTS];
    const struct tensor *outputs[OUTPUTS];
    const void *data = x->data;
    fill(x->data, signs);
    cr_assert_eq(interpret(b->graph, &x, expected, NULL, NULL, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_run(session, 1, &data, outputs, &err), STATUS_OK, "%s", err.message);
    for (size_t o = 0; o < OUTPUTS; o++) {
        cr_assert(shape_equal(&expected[o]->shape, &outputs[o]->shape));
        double largest = 0, worst = 0;
        for (size_t e = 0; e < shape_count(&expected[o]->shape); e++) {
            double want = tensor_number(expected[o], e), got = tensor_number(outputs[o], e);
            largest = want > largest ? want : -want > largest ? -want : largest;
            worst = got - want > worst ? got - want : want - got > worst ? want - got : worst;
        }
        cr_assert(worst <= 1e-5 * largest, "signs %x, output %zu: off by %g of %g", signs, o, worst,
                  largest);
        tensor_unref(expected[o]);
    }
}

Test(session_tail, products_agree_with_the_reference_kernels)
{
    struct error err = {0};
    struct builder b;
    struct session *session;
    struct session_options options = {.max_batch = 1, .threads = 2, .image_input = SIZE_MAX};
    products(&b);
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    struct tensor *x;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &b.graph->inputs[0]->shape, &x, &err), STATUS_OK);
    /* Rows picked: 0, 1, 2, 3, 6, and shapes that were there before, with other contents. */
    static const unsigned signs[] = {0, 1, 5, 11, 63, 32, 0, 48, 63, 42};
    for (size_t i = 0; i < COUNT_OF(signs); i++)
        agrees(&b, session, x, signs[i]);
    /* The graph's only weights are in that part: they were packed. */
    cr_expect_gt(session_info(session)->parameter_bytes, 200u * 24 * SIDE * SIDE * sizeof(float));
    tensor_unref(x);
    session_free(session);
    graph_free(b.graph);
}

/* More shapes than are kept: height and width follow the data too. */
Test(session_tail, programs_are_bounded)
{
    struct error err = {0};
    struct builder b;
    struct session *session;
    struct session_options options = {.max_batch = 1, .threads = 1, .image_input = SIZE_MAX};
    b = (struct builder){.graph = graph_create(NULL), .state = 5};
    b.graph->opset = 13;
    b.graph->inputs = arena_alloc(b.graph->arena, 1, sizeof(struct value *));
    b.graph->outputs = arena_alloc(b.graph->arena, 1, sizeof(struct value *));
    struct shape shape = SHAPE(300, 64);
    struct value *x = graph_add_value(b.graph, "x", DTYPE_F32, &shape);
    b.graph->inputs[b.graph->input_count++] = x;
    struct value *rows = node(&b, OP_NON_ZERO, 1, &x, NULL); /* [2, n] */
    struct node *cast;
    struct value *found = node(&b, OP_CAST, 1, &rows, &cast);
    node_set_int(b.graph, cast, "to", DTYPE_F32);
    found = node(&b, OP_TRANSPOSE, 1, &found, NULL); /* [n, 2] */
    output(&b, node(&b, OP_MATMUL, 2, (struct value *[]){found, constant(&b, SHAPE(2, 2000), 1, 0)},
                    NULL));
    cr_assert_eq(session_create(b.graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    struct tensor *image;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &image, &err), STATUS_OK);
    for (int round = 0; round < 2; round++)
        for (size_t n = 250; n < 420; n++) {
            const struct tensor *y;
            struct tensor *expected;
            const void *data = image->data;
            memset(image->data, 0, image->bytes);
            for (size_t i = 0; i < n; i++)
                ((float *)image->data)[i * 7 % 19200] = 1;
            cr_assert_eq(session_run(session, 1, &data, &y, &err), STATUS_OK, "%s", err.message);
            cr_assert_eq(y->shape.dims[0], (int64_t)n);
            if (n % 40)
                continue;
            cr_assert_eq(interpret(b.graph, &image, &expected, NULL, NULL, &err), STATUS_OK);
            for (size_t e = 0; e < n * 2000; e += 501)
                cr_assert_float_eq(((float *)y->data)[e], ((float *)expected->data)[e], 1e-2);
            tensor_unref(expected);
        }
    tensor_unref(image);
    session_free(session);
    graph_free(b.graph);
}
