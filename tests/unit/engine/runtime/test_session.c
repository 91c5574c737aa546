/* The compiled session against the interpreter: same graphs, same numbers. The interpreter runs the
 * reference kernels node by node without any rewrite, so a wrong fusion, layout, plan or kernel
 * shows up as a difference. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "engine/runtime/session_internal.h"
#include "tests/unit/axes.h"
#include "tests/unit/random_graph.h"

struct comparison {
    uint32_t seed;
    enum precision precision;
    enum image_layout layout;
    float tolerance; /* of the largest magnitude of an output */
};

/* Fills [n, 3, h, w] and the same image channels-last. */
static void make_images(uint32_t seed, size_t n, size_t h, size_t w, float *nchw, float *nhwc)
{
    uint32_t state = seed + 99;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++)
            for (size_t p = 0; p < h * w; p++) {
                float v = random_unit(&state);
                nchw[(i * 3 + c) * h * w + p] = v;
                nhwc[(i * h * w + p) * 3 + c] = v;
            }
}

static float difference(const struct tensor *expected, const struct tensor *got)
{
    const float *e = expected->data, *g = got->data;
    float largest = 1e-2f, worst = 0; /* what should be 0 is compared with 0.01 */
    size_t count = shape_count(&expected->shape);
    for (size_t i = 0; i < count; i++) {
        float d = fabsf(e[i] - g[i]);
        largest = fmaxf(largest, fabsf(e[i]));
        worst = d <= worst ? worst : d; /* NaN stays */
    }
    return worst / largest;
}

static void compare(struct comparison c, size_t h, size_t w)
{
    struct error err = {0};
    struct graph *graph = random_graph(c.seed, (int64_t)h, (int64_t)w);
    cr_assert_not_null(graph, "seed %u makes no graph", c.seed);
    enum { BATCH = 3 };
    float *nchw = malloc(4 * 3 * h * w * sizeof *nchw),
          *nhwc = malloc(4 * 3 * h * w * sizeof *nhwc);
    make_images(c.seed, 4, h, w, nchw, nhwc);

    struct session_options options = {
        .precision = c.precision, .threads = 2, .max_batch = 4, .image_layout = c.layout};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "seed %u: %s", c.seed,
                 err.message);

    struct shape shape = SHAPE(BATCH, 3, (int64_t)h, (int64_t)w);
    struct tensor *input, *expected[RANDOM_GRAPH_OUTPUTS] = {NULL};
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    memcpy(input->data, nchw, input->bytes);
    struct graph *reference;
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, expected, NULL, NULL, &err), STATUS_OK, "seed %u: %s",
                 c.seed, err.message);

    bool batched = session_info(session)->batched;
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const void *inputs[1] = {c.layout == IMAGE_AS_DECLARED ? nchw : nhwc};
    cr_assert_eq(session_info(session)->inputs[0].dtype, DTYPE_F32);
    for (int run = 0; run < 2 && batched; run++) { /* twice: nothing may linger in the arena */
        cr_assert_eq(session_run(session, BATCH, inputs, outputs, &err), STATUS_OK, "seed %u: %s",
                     c.seed, err.message);
        for (size_t o = 0; o < graph->output_count; o++) {
            cr_assert(shape_equal(&outputs[o]->shape, &expected[o]->shape), "seed %u output %zu",
                      c.seed, o);
            float d = difference(expected[o], outputs[o]);
            cr_assert(d <= c.tolerance, "seed %u, output %zu: relative difference %g", c.seed, o,
                      (double)d);
        }
    }
    cr_assert(batched, "seed %u: %s", c.seed, session_info(session)->note);
    for (size_t o = 0; o < RANDOM_GRAPH_OUTPUTS; o++)
        tensor_unref(expected[o]);
    tensor_unref(input);
    graph_free(reference);
    session_free(session);
    graph_free(graph);
    free(nchw);
    free(nhwc);
}

Test(session, agrees_with_the_interpreter)
{
    for (uint32_t seed = 1; seed <= 800; seed++)
        compare((struct comparison){seed, PRECISION_FP32, IMAGE_AS_DECLARED, 1e-4f}, 9 + seed % 5,
                8 + seed % 7);
}

Test(session, takes_images_channels_last)
{
    for (uint32_t seed = 1000; seed < 1300; seed++)
        compare((struct comparison){seed, PRECISION_FP32, IMAGE_NHWC_F32, 1e-4f}, 12,
                11 + seed % 3);
}

Test(session, computes_in_bfloat16)
{
    if (!device_cpu_has_bf16())
        cr_skip("this CPU has no bfloat16 instructions");
    for (uint32_t seed = 300; seed < 340; seed++)
        compare((struct comparison){seed, PRECISION_BF16, IMAGE_NHWC_F32, 0.08f}, 12, 12);
}

/* y = x - something of the whole batch: what one client gets is made of the others' pixels. The
 * first image may do without the others, which may not do without it. */
static void expect_mixed(bool first_only)
{
    struct error err = {0};
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    struct value *input = graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 3, 4, 4));
    struct node *of_batch = graph_add_node(graph, first_only ? OP_GATHER : OP_REDUCE_MEAN,
                                           "of batch", first_only ? 2 : 1, 1);
    static const int64_t axes[] = {0};
    struct tensor *first = NULL;
    of_batch->opset = 13;
    of_batch->inputs[0] = input;
    if (first_only) {
        cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE(1), &first, &err), STATUS_OK);
        ((int64_t *)first->data)[0] = 0;
        of_batch->inputs[1] = graph_add_constant(graph, "first", first);
    } else {
        cr_assert(set_axes(graph, of_batch, axes, 1));
    }
    node_set_output(of_batch, 0, graph_add_value(graph, "same for all", DTYPE_F32, NULL));
    struct node *sub = graph_add_node(graph, OP_SUB, "sub", 2, 1);
    sub->opset = 13;
    sub->inputs[0] = input;
    sub->inputs[1] = of_batch->outputs[0];
    node_set_output(sub, 0, graph_add_value(graph, "out", DTYPE_F32, NULL));
    struct value *ends[2] = {input, sub->outputs[0]};
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    struct session_options options = {.threads = 1, .max_batch = 4};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_not(session_info(session)->batched);
    cr_assert(session_info(session)->rows_mix);
    cr_assert(strstr(session_info(session)->note, "are not proven independent ("), "%s",
              session_info(session)->note);
    session_free(session);
    tensor_unref(first);
    graph_free(graph);
}

static struct value *ints_of(struct graph *graph, size_t count, const int64_t *data)
{
    struct tensor *tensor;
    struct error err;
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE((int64_t)count), &tensor, &err), STATUS_OK);
    memcpy(tensor->data, data, tensor->bytes);
    struct value *value = graph_add_constant(graph, "ints", tensor);
    tensor_unref(tensor);
    return value;
}

static struct node *node_of(struct graph *graph, enum op op, int opset, size_t count,
                            struct value *const *inputs, size_t outputs)
{
    struct node *node = graph_add_node(graph, op, op_name(op), count, outputs);
    node->opset = opset;
    for (size_t i = 0; i < count; i++)
        node->inputs[i] = inputs[i];
    for (size_t o = 0; o < outputs; o++)
        node_set_output(node, o, graph_add_value(graph, "", DTYPE_NONE, NULL));
    return node;
}

static struct value *lower_triangle(struct graph *graph, struct value *x)
{
    struct node *node = node_of(graph, OP_TRILU, 14, 1, &x, 1);
    cr_assert(node_set_int(graph, node, "upper", 0));
    return node->outputs[0];
}

static struct value *center(struct graph *graph, struct value *x)
{
    struct value *const operands[2] = {x, ints_of(graph, 2, (const int64_t[]){9, 2})};
    struct node *node = node_of(graph, OP_CENTER_CROP_PAD, 18, 2, operands, 1);
    cr_assert(node_set_ints(graph, node, "axes", (const int64_t[]){2, 3}, 2));
    return node->outputs[0];
}

static struct value *columns_to_image(struct graph *graph, struct value *x)
{
    struct value *const view[2] = {x, ints_of(graph, 3, (const int64_t[]){0, 8, -1})};
    struct value *rows = node_of(graph, OP_RESHAPE, 13, 2, view, 1)->outputs[0];
    struct value *const operands[3] = {rows, ints_of(graph, 2, (const int64_t[]){3, 3}),
                                       ints_of(graph, 2, (const int64_t[]){2, 2})};
    return node_of(graph, OP_COL2IM, 18, 3, operands, 1)->outputs[0];
}

static struct value *pool_and_back(struct graph *graph, struct value *x)
{
    static const int64_t two[2] = {2, 2};
    struct node *pool = node_of(graph, OP_MAX_POOL, 12, 1, &x, 2);
    struct node *unpool = node_of(graph, OP_MAX_UNPOOL, 11, 2, pool->outputs, 1);
    cr_assert(node_set_ints(graph, pool, "kernel_shape", two, 2) &&
              node_set_ints(graph, pool, "strides", two, 2));
    cr_assert(node_set_ints(graph, unpool, "kernel_shape", two, 2) &&
              node_set_ints(graph, unpool, "strides", two, 2));
    return unpool->outputs[0];
}

static struct value *positions(struct graph *graph, struct value *x)
{
    static const int64_t two[2] = {2, 2};
    struct node *pool = node_of(graph, OP_MAX_POOL, 12, 1, &x, 2);
    cr_assert(node_set_ints(graph, pool, "kernel_shape", two, 2));
    return node_of(graph, OP_CAST, 13, 1, &pool->outputs[1], 1)->outputs[0];
}

/* Nobody knows that the indices are those of the pool. */
static struct value *pool_and_elsewhere(struct graph *graph, struct value *x)
{
    struct value *back = pool_and_back(graph, x);
    struct node *unpool = back->producer;
    struct value *const sum[2] = {unpool->inputs[1], ints_of(graph, 1, (const int64_t[]){1})};
    struct node *add = node_of(graph, OP_ADD, 14, 2, sum, 1);
    struct node *last = graph->nodes[graph->node_count - 1];
    graph->nodes[graph->node_count - 1] = unpool; /* in topological order */
    graph->nodes[graph->node_count - 2] = last;
    unpool->inputs[1] = add->outputs[0];
    return back;
}

/* A batch of three against each of its images alone. */
static void run_three(struct value *(*build)(struct graph *, struct value *), bool is_batched)
{
    enum { EACH = 4 * 4 * 2, BATCH = 3 };
    struct error err = {0};
    struct graph *graph = graph_create(NULL);
    struct value *input = graph_add_value(graph, "in", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 2, 4, 4));
    struct value *ends[2] = {input, build(graph, input)};
    graph->opset = 18;
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    if (ends[1]->producer->op == OP_CAST)
        cr_assert(node_set_int(graph, ends[1]->producer, "to", DTYPE_F32));
    struct session_options options = {.threads = 1, .max_batch = 4};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_info(session)->batched, is_batched, "%s", session_info(session)->note);
    float images[4 * EACH], *together = NULL; /* a batch of three is padded to four */
    uint32_t state = 5;
    for (size_t i = 0; i < COUNT_OF(images); i++)
        images[i] = random_unit(&state);
    const struct tensor *output;
    const void *inputs = images;
    if (is_batched) {
        cr_assert_eq(session_run(session, BATCH, &inputs, &output, &err), STATUS_OK, "%s",
                     err.message);
        together = malloc(output->bytes);
        memcpy(together, output->data, output->bytes);
        const size_t each = output->bytes / BATCH;
        for (size_t i = 0; i < BATCH; i++) {
            inputs = images + i * EACH;
            cr_assert_eq(session_run(session, 1, &inputs, &output, &err), STATUS_OK);
            cr_assert_eq(output->bytes, each);
            cr_expect_arr_eq((char *)together + i * each, output->data, each);
        }
    }
    free(together);
    session_free(session);
    graph_free(graph);
}

Test(session, batches_operators_that_take_each_image_for_itself)
{
    run_three(lower_triangle, true);
    run_three(center, true);
    run_three(columns_to_image, true);
    run_three(pool_and_back, true);
}

Test(session, does_not_batch_indices_that_count_from_the_first_image)
{
    run_three(positions, false);
    run_three(pool_and_elsewhere, false);
}

Test(session, never_mixes_images_of_one_batch)
{
    expect_mixed(false);
    expect_mixed(true);
}

static struct value *reshape_to(struct graph *graph, struct value *x, int64_t rows, int64_t columns)
{
    struct tensor *to;
    struct error err;
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE(2), &to, &err), STATUS_OK);
    ((int64_t *)to->data)[0] = rows;
    ((int64_t *)to->data)[1] = columns;
    struct node *reshape = graph_add_node(graph, OP_RESHAPE, "reshape", 2, 1);
    reshape->inputs[0] = x;
    reshape->inputs[1] = graph_add_constant(graph, "to", to);
    tensor_unref(to);
    node_set_output(reshape, 0, graph_add_value(graph, "reshaped", DTYPE_F32, NULL));
    return reshape->outputs[0];
}

static struct value *append(struct graph *graph, enum op op, struct value *const *inputs,
                            size_t count, enum dtype dtype)
{
    struct node *node = graph_add_node(graph, op, "node", count, 1);
    node->opset = 13;
    memcpy(node->inputs, inputs, count * sizeof(struct value *));
    node_set_output(node, 0, graph_add_value(graph, "value", dtype, NULL));
    return node->outputs[0];
}

enum use_of_batch { ADDED, COUNTED, IN_WEIGHTS };

/* x + N, x plus the image's place in the batch of N, or x times a matrix of N: right for one image
 * alone. */
static void expect_one_by_one(enum use_of_batch use)
{
    static const int64_t scalar[] = {0, 1};
    struct error err = {0};
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    struct value *input = graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 3));
    struct value *constants[2];
    for (int i = 0; i < 2; i++) {
        struct tensor *tensor = NULL;
        cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE_SCALAR, &tensor, &err), STATUS_OK);
        memcpy(tensor->data, &scalar[i], sizeof scalar[i]);
        constants[i] = graph_add_constant(graph, "constant", tensor);
        tensor_unref(tensor);
    }
    struct value *value = append(graph, OP_SHAPE, (struct value *[]){input}, 1, DTYPE_I64);
    value = append(graph, OP_GATHER, (struct value *[]){value, constants[0]}, 2, DTYPE_I64);
    if (use == COUNTED)
        value = append(graph, OP_RANGE, (struct value *[]){constants[0], value, constants[1]}, 3,
                       DTYPE_I64);
    value = append(graph, OP_CAST, &value, 1, DTYPE_F32);
    cr_assert(node_set_int(graph, value->producer, "to", 1));
    if (use == COUNTED)
        value = reshape_to(graph, value, -1, 1);
    if (use == IN_WEIGHTS) {
        struct tensor *square = NULL;
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(3, 3), &square, &err), STATUS_OK);
        for (int i = 0; i < 9; i++)
            ((float *)square->data)[i] = (float)i;
        struct value *weights = graph_add_constant(graph, "weights", square);
        tensor_unref(square);
        value = append(graph, OP_MUL, (struct value *[]){weights, value}, 2, DTYPE_F32);
    }
    struct value *ends[2] = {input, append(graph, use == IN_WEIGHTS ? OP_MATMUL : OP_ADD,
                                           (struct value *[]){input, value}, 2, DTYPE_F32)};
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    struct session_options options = {.threads = 1, .max_batch = 4};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_not(session_info(session)->batched);
    cr_assert(session_info(session)->rows_mix);
    session_free(session);
    graph_free(graph);
}

Test(session, runs_images_one_by_one_where_a_graph_computes_with_the_batch)
{
    expect_one_by_one(ADDED);
    expect_one_by_one(COUNTED);
    expect_one_by_one(IN_WEIGHTS);
}

/* A Reshape to a constant mixes images: the session must notice and run them one by one. */
Test(session, notices_that_a_graph_allows_no_batch)
{
    struct error err = {0};
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    struct shape shape = SHAPE(1, 3, 4, 4);
    struct value *input = graph_add_value(graph, "image", DTYPE_F32, &shape);
    struct tensor *to;
    struct shape two = SHAPE(2);
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &two, &to, &err), STATUS_OK);
    ((int64_t *)to->data)[0] = 1;
    ((int64_t *)to->data)[1] = -1;
    struct node *reshape = graph_add_node(graph, OP_RESHAPE, "flat", 2, 1);
    reshape->inputs[0] = input;
    reshape->inputs[1] = graph_add_constant(graph, "to", to);
    node_set_output(reshape, 0, graph_add_value(graph, "out", DTYPE_F32, NULL));
    struct node *softmax = graph_add_node(graph, OP_SOFTMAX, "softmax", 1, 1);
    softmax->inputs[0] = reshape->outputs[0];
    node_set_output(softmax, 0, graph_add_value(graph, "probabilities", DTYPE_F32, NULL));
    struct value *ends[2] = {input, softmax->outputs[0]};
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    struct session_options options = {.threads = 1, .max_batch = 4};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_not(session_info(session)->batched);
    cr_assert_eq(session_batch_for(session, 1), 1);
    cr_assert_eq(session_batch_for(session, 2), 0);
    cr_assert(strstr(session_info(session)->note, "one by one"), "%s", session_info(session)->note);
    session_free(session);
    tensor_unref(to);
    graph_free(graph);
}

/* Softmax over rows of Reshape(x, Min(Shape(x), [2, -1])): of single images where there are two, of
 * pairs where there are four. */
Test(session, mixes_no_images_in_larger_batches_either)
{
    struct error err = {0};
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    struct value *input = graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 48));
    struct tensor *most = NULL;
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &SHAPE(2), &most, &err), STATUS_OK);
    memcpy(most->data, (const int64_t[]){2, -1}, most->bytes);
    struct value *to = append(graph, OP_SHAPE, (struct value *[]){input}, 1, DTYPE_I64);
    to = append(graph, OP_MIN, (struct value *[]){to, graph_add_constant(graph, "most", most)}, 2,
                DTYPE_I64);
    tensor_unref(most);
    struct node *softmax = graph_add_node(graph, OP_SOFTMAX, "softmax", 1, 1);
    softmax->opset = 13;
    softmax->inputs[0] = append(graph, OP_RESHAPE, (struct value *[]){input, to}, 2, DTYPE_F32);
    node_set_output(softmax, 0, graph_add_value(graph, "probabilities", DTYPE_F32, NULL));
    struct value *ends[2] = {input, reshape_to(graph, softmax->outputs[0], -1, 48)};
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    struct session_options options = {.threads = 1, .max_batch = 4};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    const struct session_info *info = session_info(session);
    cr_assert_eq(info->batches[info->batch_count - 1].size, 2);
    cr_assert(strstr(info->note, "a batch of 4 are not proven independent"), "%s", info->note);
    session_free(session);
    graph_free(graph);
}

/* Bytes of a session for batches of up to `size`, from one that has no limit. */
static size_t planned(const struct session *session, int size)
{
    const struct session_info *info = session_info(session);
    for (size_t i = 0; i < info->batch_count; i++)
        if (info->batches[i].size == size)
            return info->parameter_bytes + info->batches[i].activation_bytes;
    cr_assert(false, "no batch of %d", size);
    return 0;
}

Test(session, respects_the_memory_limit)
{
    struct error err = {0};
    struct graph *graph = random_graph(7, 16, 16);
    struct session_options options = {.threads = 1, .max_batch = 8};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    size_t for_four = planned(session, 4), for_eight = planned(session, 8);
    cr_assert_lt(for_four, for_eight);
    session_free(session);

    /* The largest batch that fits, unless another one was asked for. */
    options.memory_limit = for_eight - 1;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    const struct session_info *info = session_info(session);
    cr_assert_eq(info->batches[info->batch_count - 1].size, 4);
    cr_assert(info->batched);
    cr_assert_leq(info->parameter_bytes + info->activation_bytes, options.memory_limit);
    cr_assert(strstr(info->note, "batches have at most 4 images"), "%s", info->note);
    session_free(session);
    options.max_batch_is_pinned = true;
    session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_NO_MEMORY);
    cr_assert(strstr(err.message, "batch of 8") && strstr(err.message, "1 bytes are missing") &&
                  strstr(err.message, "--max-batch 4"),
              "%s", err.message);
    options.memory_limit = for_eight;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    session_free(session);

    /* Batches may have less than single images. */
    options.max_batch_is_pinned = false;
    options.batch_memory = for_four;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_info(session)->batches[session_info(session)->batch_count - 1].size, 4);
    session_free(session);
    options.batch_memory = 1;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_info(session)->batch_count, 1);
    session_free(session);
    options.batch_memory = 0;
    options.max_batch_is_pinned = true;

    /* What the caller keeps beside it counts, too. */
    options.input_images = 1;
    session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_NO_MEMORY);
    options.input_images = 0;
    options.max_batch_is_pinned = false;
    for (size_t limit = 100; limit <= 2000; limit += 1900) {
        options.memory_limit = limit; /* not even one image, not even the weights */
        cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_NO_MEMORY);
        cr_assert(strstr(err.message, "missing") && strstr(err.message, "--memory"), "%s",
                  err.message);
    }
    cr_assert_null(session);
    graph_free(graph);
}

Test(session, stops_when_loading_is_cancelled)
{
    struct error err = {0};
    struct graph *graph = random_graph(7, 16, 16);
    _Atomic int cancel = 1;
    struct session_options options = {.threads = 1, .max_batch = 2, .cancel = &cancel};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_CANCELLED);
    graph_free(graph);
}

static struct session *create(const struct graph *graph, int max_batch)
{
    struct error err = {0};
    struct session_options options = {
        .threads = 1, .max_batch = max_batch, .image_layout = IMAGE_NHWC_F32};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    return session;
}

static bool stops_third_time(void *asked)
{
    return ++*(int *)asked == 3;
}

Test(session, a_run_can_be_stopped_between_its_steps)
{
    struct error err = {0};
    struct graph *graph = random_graph(7, 16, 16);
    struct session *session = create(graph, 1);
    float *image = calloc(16 * 16 * 3, sizeof *image);
    const void *inputs[] = {image};
    const struct tensor *outputs[8];
    int asked = 0;
    session_set_stop(session, stops_third_time, &asked);
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_CANCELLED);
    cr_expect_eq(asked, 3);
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    cr_expect_gt(asked, 5);
    session_free(session);
    graph_free(graph);
    free(image);
}

Test(session, compiles_the_sizes_that_are_asked_for)
{
    enum { H = 12, W = 11 };
    struct error err = {0};
    struct graph *graph = random_graph(1003, H, W);
    const struct session_options options = {
        .threads = 1, .max_batch = 5, .batches = {3, 5}, .image_layout = IMAGE_NHWC_F32};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    const struct session_info *info = session_info(session);
    cr_assert_eq(info->batch_count, 2);
    cr_expect(info->batches[0].size == 3 && info->batches[1].size == 5);
    cr_expect(session_batch_for(session, 1) == 3 && session_batch_for(session, 4) == 5);
    cr_expect_eq(session_info(session)->outputs[0].shape.dims[0], 1);
    session_free(session);
    graph_free(graph);
}

/* Every number of images runs the next compiled size, however long that takes. */
Test(session, runs_exactly_one_size)
{
    static const int padded[] = {1, 1, 2, 4, 4, 6, 6};
    enum { H = 12, W = 11, MOST = 6 };
    struct graph *graph = random_graph(1003, H, W);
    struct session *session = create(graph, MOST), *alone = create(graph, 1);
    float *nchw = malloc(sizeof *nchw * MOST * 3 * H * W);
    float *nhwc = malloc(sizeof *nhwc * MOST * 3 * H * W);
    make_images(3, MOST, H, W, nchw, nhwc);
    cr_assert(session->info.batched && session->info.batch_count == 4);
    session->info.batches[3].milliseconds = 1e6;
    for (int n = 1; n <= MOST; n++) {
        struct error err = {0};
        const void *inputs[1] = {nhwc}, *last[1] = {nhwc + (size_t)(n - 1) * 3 * H * W};
        const struct tensor *one[RANDOM_GRAPH_OUTPUTS], *all[RANDOM_GRAPH_OUTPUTS];
        cr_expect_eq(session_batch_for(session, n), padded[n]);
        cr_assert_eq(session_run(alone, 1, last, one, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(session_run(session, n, inputs, all, &err), STATUS_OK, "%s", err.message);
        for (size_t o = 0; o < graph->output_count; o++) {
            const size_t row = shape_count(&one[o]->shape);
            struct tensor of_last = *one[o];
            cr_assert_eq(all[o]->shape.dims[0], n);
            of_last.data = (float *)all[o]->data + (size_t)(n - 1) * row;
            cr_expect_leq(difference(one[o], &of_last), 1e-4f, "%d images, output %zu", n, o);
        }
    }
    cr_expect_eq(session_batch_for(session, MOST + 1), 0);
    session_free(session);
    session_free(alone);
    graph_free(graph);
    free(nchw);
    free(nhwc);
}

/* Several runs of 1 … 6 images are in flight. Streams have one thread or two. */
Test(session, streams_give_the_same_answers)
{
    enum { H = 24, W = 21, MOST = 6, RUNS = 8 };
    static const int threads[] = {3, 12, 16}, streams[] = {3, 6, 8};
    int tested = 0;
    for (uint32_t seed = 1; seed < 40; seed++) {
        struct error err = {0};
        struct graph *graph = random_graph(seed, H, W);
        struct session *session, *alone = create(graph, MOST);
        const struct session_options options = {.threads = threads[seed % COUNT_OF(threads)],
                                                .max_batch = MOST,
                                                .image_layout = IMAGE_NHWC_F32};
        cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
        float *nchw = malloc(sizeof *nchw * RUNS * MOST * 3 * H * W);
        float *nhwc = malloc(sizeof *nhwc * RUNS * MOST * 3 * H * W);
        make_images(seed, (size_t)RUNS * MOST, H, W, nchw, nhwc);
        const void *inputs[RUNS];
        session->info.streams = session->info.batched ? session->backend->stream_count : 0;
        session->info.depth = session->backend->stream_count + 1;
        tested += session->info.streams > 0;
        if (session->info.streams)
            cr_expect_eq(session->info.streams, streams[seed % COUNT_OF(threads)]);
        int submitted = 0;
        for (int run = 0; session->info.streams && run < RUNS; run++) {
            for (; submitted < RUNS && session_may_submit(session); submitted++) {
                inputs[submitted] = nhwc + (size_t)submitted * MOST * 3 * H * W;
                const struct session_request request = {.batch = 1 + submitted % MOST,
                                                        .inputs = &inputs[submitted],
                                                        .valid_rows = 1 + submitted % MOST,
                                                        .in_streams = true};
                cr_assert_eq(session_submit(session, &request, &err), STATUS_OK, "%s", err.message);
            }
            const struct tensor *expected[RANDOM_GRAPH_OUTPUTS], *got[RANDOM_GRAPH_OUTPUTS];
            cr_assert_eq(session_collect(session, got, &err), STATUS_OK, "%s", err.message);
            cr_assert_eq(session_run(alone, 1 + run % MOST, &inputs[run], expected, &err),
                         STATUS_OK);
            for (size_t o = 0; o < graph->output_count; o++)
                cr_expect_leq(difference(expected[o], got[o]), 1e-4f, "seed %u, run %d, output %zu",
                              seed, run, o);
        }
        session_free(session);
        session_free(alone);
        graph_free(graph);
        free(nchw);
        free(nhwc);
    }
    cr_expect_gt(tested, 5, "only %d graphs have streams", tested);
}

static bool stops_once(void *asked)
{
    return ++*(int *)asked == 1;
}

static void count_ended(void *ended)
{
    atomic_fetch_add((atomic_int *)ended, 1);
}

Test(session, a_run_in_streams_can_be_stopped)
{
    enum { H = 24, W = 21, MOST = 6 };
    struct error err = {0};
    struct graph *graph = random_graph(1, H, W);
    struct session *session;
    const struct session_options options = {
        .threads = 2, .max_batch = MOST, .image_layout = IMAGE_NHWC_F32};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert(session->backend->streams);
    session->info.streams = session->info.depth = 2;
    float *image = calloc((size_t)MOST * H * W * 3, sizeof *image);
    const void *inputs[] = {image};
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const struct session_request request = {
        .batch = MOST, .inputs = inputs, .valid_rows = MOST, .in_streams = true};
    int asked = 0;
    atomic_int ended = 0;
    session_set_stop(session, stops_once, &asked);
    session_set_run_ended(session, count_ended, &ended);
    cr_assert_eq(session_submit(session, &request, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_submit(session, &request, &err), STATUS_OK, "%s", err.message);
    cr_expect(!session_may_submit(session));
    cr_expect_eq(session_collect(session, outputs, &err), STATUS_CANCELLED);
    cr_expect_eq(session_collect(session, outputs, &err), STATUS_OK, "%s", err.message);
    session_release_pages(session); /* ends the threads, so that they have called count_ended() */
    cr_expect_geq(atomic_load(&ended), 1);
    cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    session_free(session);
    graph_free(graph);
    free(image);
}

/* Streams hold the shared arena as long as their session is busy. An idle session that gives back
 * its pages must not wait for that, and one that wants to resize the arena may come at any time. */
Test(session, streams_do_not_block_an_idle_session)
{
    enum { H = 24, W = 21, MOST = 6 };
    struct error err = {0};
    struct shared_arena arena;
    struct graph *graph = random_graph(1, H, W);
    struct session *busy, *idle = create(graph, MOST);
    const struct session_options options = {
        .threads = 2, .max_batch = MOST, .image_layout = IMAGE_NHWC_F32};
    cr_assert_eq(session_create(graph, &options, &busy, &err), STATUS_OK, "%s", err.message);
    shared_arena_init(&arena);
    cr_assert(session_share_arena(busy, &arena) && session_share_arena(idle, &arena));
    cr_assert(busy->backend->streams);
    busy->info.streams = busy->info.depth = 2;
    float *image = calloc((size_t)H * W * 3, sizeof *image);
    const void *inputs[] = {image};
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const struct session_request request = {
        .batch = 1, .inputs = inputs, .valid_rows = 1, .in_streams = true};
    cr_assert_eq(session_submit(busy, &request, &err), STATUS_OK, "%s", err.message);
    session_release_pages(idle);
    cr_expect(session_may_submit(busy));
    atomic_fetch_add(&arena.waiting, 1);
    cr_expect(!session_may_submit(busy));
    cr_assert_eq(session_submit(busy, &request, &err), STATUS_OK, "%s", err.message);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(session_collect(busy, outputs, &err), STATUS_OK, "%s", err.message);
    session_free(busy);
    session_free(idle);
    shared_arena_done(&arena);
    graph_free(graph);
    free(image);
}

static size_t resident_pages(const struct session *session)
{
    enum { PAGE = 4096, MOST = 65536 };
    static unsigned char pages[MOST];
    const size_t count = (session->backend->arena->bytes + PAGE - 1) / PAGE;
    size_t resident = 0;
    cr_assert_leq(count, (size_t)MOST);
    cr_assert_eq(mincore(session->backend->arena->base, session->backend->arena->bytes, pages), 0);
    for (size_t p = 0; p < count; p++)
        resident += pages[p] & 1;
    return resident;
}

/* Measuring has used the memory of all sizes. */
Test(session, takes_no_memory_for_sizes_that_do_not_run)
{
    enum { H = 12, W = 11 };
    struct error err = {0};
    struct graph *graph = random_graph(1003, H, W);
    struct session *session = create(graph, 4);
    float *images = calloc(4 * 3 * H * W, sizeof *images);
    const void *inputs[1] = {images};
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    cr_expect_eq(resident_pages(session), 0);
    cr_assert_eq(session_run(session, 4, inputs, outputs, &err), STATUS_OK, "%s", err.message);
    cr_expect_gt(resident_pages(session), 0);
    session_free(session);
    graph_free(graph);
    free(images);
}

/* Sessions of other shapes, one of which makes the arena grow and move while the other one's output
 * is still to be read. */
Test(session, computes_in_an_arena_that_others_share)
{
    enum { SMALL = 12, LARGE = 40, RUNS = 3 };
    static const int sides[] = {SMALL, LARGE};
    struct error err = {0};
    struct shared_arena arena;
    struct session *session[2];
    struct graph *graph[2];
    struct tensor *expected[2];
    const struct tensor *outputs[2][RANDOM_GRAPH_OUTPUTS];
    float *images = calloc(3 * LARGE * LARGE, sizeof *images);
    const void *inputs[1] = {images};
    shared_arena_init(&arena);
    for (int i = 0; i < 2; i++) {
        const size_t before = arena.bytes;
        graph[i] = random_graph(1003, (size_t)sides[i], (size_t)sides[i]);
        session[i] = create(graph[i], 1);
        make_images(7, 1, (size_t)sides[i], (size_t)sides[i], images, images);
        cr_assert_eq(session_run(session[i], 1, inputs, outputs[i], &err), STATUS_OK);
        cr_assert_eq(
            tensor_create(NULL, outputs[i][0]->dtype, &outputs[i][0]->shape, &expected[i], &err),
            STATUS_OK);
        memcpy(expected[i]->data, outputs[i][0]->data, expected[i]->bytes);
        const size_t shared = session_share_arena(session[i], &arena);
        cr_assert_gt(shared, before);
        cr_assert_eq(arena.bytes, shared);
        cr_assert_leq(shared, session_info(session[i])->activation_bytes);
    }
    for (int run = 0; run < RUNS; run++)
        for (int i = 0; i < 2; i++) {
            make_images(7, 1, (size_t)sides[i], (size_t)sides[i], images, images);
            cr_assert_eq(session_run(session[i], 1, inputs, outputs[i], &err), STATUS_OK);
            for (int k = 0; k < 2; k++)
                if (run > 0 || k <= i)
                    cr_assert_eq(memcmp(outputs[k][0]->data, expected[k]->data, expected[k]->bytes),
                                 0);
        }
    const size_t both = arena.bytes;
    session_free(session[1]);
    cr_assert_lt(arena.bytes, both);
    make_images(7, 1, SMALL, SMALL, images, images);
    cr_assert_eq(session_run(session[0], 1, inputs, outputs[0], &err), STATUS_OK);
    cr_assert_eq(memcmp(outputs[0][0]->data, expected[0]->data, expected[0]->bytes), 0);
    session_free(session[0]);
    cr_assert_eq(arena.bytes, 0);
    shared_arena_done(&arena);
    for (int i = 0; i < 2; i++) {
        tensor_unref(expected[i]);
        graph_free(graph[i]);
    }
    free(images);
}

struct seen {
    double last;
    int in_first, calls; /* of them while the first size was compiled */
};

static void see(void *context, const char *phase, double fraction)
{
    struct seen *seen = context;
    cr_expect(phase && phase[0]);
    cr_expect_geq(fraction, seen->last);
    cr_expect_leq(fraction, 1);
    seen->in_first += fraction > PROGRESS_WEIGHTS && fraction < PROGRESS_FIRST;
    seen->last = fraction;
    seen->calls++;
}

/* Each node that is compiled is a step, and none goes back. */
Test(session, says_how_far_its_making_is)
{
    struct error err = {0};
    struct graph *graph = random_graph(7, 16, 16);
    struct seen seen = {0};
    struct session_options options = {
        .max_batch = 8, .threads = 1, .on_progress = see, .progress_context = &seen};
    struct session *session;
    cr_assert_not_null(graph);
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    const int nodes = (int)session_info(session)->node_count;
    cr_expect_geq(seen.in_first, nodes / 2, "%d of %d nodes", seen.in_first, nodes);
    cr_expect_geq(seen.calls, 2 * nodes);
    cr_expect_eq(seen.last, 1);
    session_free(session);
    graph_free(graph);
}
