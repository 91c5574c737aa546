/* Runs of a session on a device: two in flight, bytes of photos; and that every wait in
 * engine/cuda/program/runs.c is needed. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/session.h"
#include "tests/fake_cuda/module_cases.h"
#include "tests/unit/random_graph.h"

enum { HEIGHT = 9, WIDTH = 7, CHANNELS = 3, CLASSES = 12, MOST = 4 };
enum { ROW = HEIGHT * WIDTH * CHANNELS };

static const struct device_id gpu = {DEVICE_CUDA, 0};

TestSuite(runs, .init = find_fake_module, .timeout = 120);

static struct session_pixels pixels_of(int channels, bool is_reversed)
{
    struct session_pixels pixels = {.channels = channels, .is_reversed = is_reversed};
    for (int c = 0; c < channels; c++)
        for (int x = 0; x < 256; x++)
            pixels.table[c][x] =
                ((float)x / 255 - 0.4f - 0.01f * (float)c) / (0.2f + 0.1f * (float)c);
    return pixels;
}

static struct session *open_session_on(struct device_id device, int channels,
                                       const struct session_pixels *pixels,
                                       enum precision precision)
{
    struct graph *graph = small_classifier(channels, HEIGHT, WIDTH, 20, CLASSES);
    struct session *session = NULL;
    struct error err = {0};
    const struct session_options options = {.device = device,
                                            .precision = precision,
                                            .max_batch = MOST,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .pixels = pixels};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    graph_free(graph);
    return session;
}

static struct session *open_session(int channels, const struct session_pixels *pixels,
                                    enum precision precision)
{
    return open_session_on(gpu, channels, pixels, precision);
}

/* Row r of a batch as a client's photo, as bytes and as the numbers they stand for. */
static void make_row(const struct session_pixels *pixels, uint32_t seed, uint8_t *bytes,
                     float *floats)
{
    uint32_t state = seed * 77 + 3;
    const int channels = pixels->channels;
    for (int e = 0; e < HEIGHT * WIDTH * channels; e++) {
        state = state * 1664525u + 1013904223u;
        bytes[e] = (uint8_t)(state >> 24);
    }
    for (int p = 0; p < HEIGHT * WIDTH; p++)
        for (int c = 0; c < channels; c++)
            floats[p * channels + c] =
                pixels
                    ->table[c][bytes[p * channels + (pixels->is_reversed ? channels - 1 - c : c)]];
}

static float *random_batch(uint32_t seed)
{
    float *batch = malloc(MOST * ROW * sizeof *batch);
    uint32_t state = seed * 31 + 7;
    for (int i = 0; i < MOST * ROW; i++)
        batch[i] = random_unit(&state);
    return batch;
}

/* Runs a batch and returns the session's outputs. */
static void run_batch(struct session *session, const float *batch, float *ret)
{
    const void *inputs[] = {batch};
    const struct tensor *output;
    struct error err = {0};
    cr_assert_eq(session_run(session, MOST, inputs, &output, &err), STATUS_OK, "%s", err.message);
    memcpy(ret, output->data, MOST * CLASSES * sizeof *ret);
}

/* Bytes give what the numbers give, to the bit, and in any mixture. */
static void compare_pixels(int channels, bool is_reversed, enum precision precision)
{
    const struct session_pixels pixels = pixels_of(channels, is_reversed);
    struct session *session = open_session(channels, &pixels, precision);
    struct error err = {0};
    float floats[MOST][ROW], mixed[MOST][ROW], expected[MOST * CLASSES];
    const struct tensor *output;
    const size_t row = (size_t)(HEIGHT * WIDTH * channels);
    float *plain = malloc(MOST * row * sizeof *plain), *slots = malloc(MOST * row * sizeof *slots);
    cr_assert(session_info(session)->takes_pixels);
    cr_assert_eq(session_info(session)->depth, 2);
    for (unsigned kinds = 0; kinds < 1u << MOST; kinds++) {
        uint8_t are_pixels[MOST];
        for (size_t r = 0; r < MOST; r++) {
            are_pixels[r] = kinds >> r & 1;
            make_row(&pixels, kinds * MOST + (uint32_t)r, (uint8_t *)mixed[r], floats[r]);
            memcpy(plain + r * row, floats[r], row * sizeof(float));
            memcpy(slots + r * row, are_pixels[r] ? (void *)mixed[r] : (void *)floats[r],
                   are_pixels[r] ? row : row * sizeof(float));
        }
        const void *inputs[] = {plain};
        cr_assert_eq(session_run(session, MOST, inputs, &output, &err), STATUS_OK, "%s",
                     err.message);
        memcpy(expected, output->data, sizeof expected);
        inputs[0] = slots;
        const struct session_request run = {
            .batch = MOST, .inputs = inputs, .are_pixels = are_pixels, .valid_rows = MOST};
        cr_assert_eq(session_submit(session, &run, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(session_collect(session, &output, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(memcmp(expected, output->data, sizeof expected), 0, "mixture %x", kinds);
    }
    free(plain);
    free(slots);
    session_free(session);
    cr_assert_eq(fake.used(0), 0);
}

Test(runs, bytes_are_what_their_numbers_are)
{
    compare_pixels(3, false, PRECISION_FP32);
    compare_pixels(3, true, PRECISION_FP32);
    compare_pixels(1, false, PRECISION_FP32);
    compare_pixels(3, false, PRECISION_BF16);
    compare_pixels(3, true, PRECISION_FP16);
    compare_pixels(1, false, PRECISION_FP16);
}

static struct value *constant_of(struct graph *graph, const struct shape *shape, uint32_t seed)
{
    struct tensor *tensor;
    struct error err;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(shape); i++)
        ((float *)tensor->data)[i] = 0.1f * random_unit(&seed);
    struct value *value = graph_add_constant(graph, "w", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *added(struct graph *graph, enum op op, struct value *a, struct value *b)
{
    struct node *node = graph_add_node(graph, op, "node", b ? 2 : 1, 1);
    node->opset = 13;
    node->inputs[0] = a;
    if (b)
        node->inputs[1] = b;
    struct value *y = graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE);
    node_set_output(node, 0, y);
    return y;
}

enum { WORDS = 64, WIDE = 256 };

/* A network that reads words before it reads the photo, which the file declares as [N, H, W, C]. */
static struct session *open_words(const struct session_pixels *pixels)
{
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    graph->inputs = arena_alloc(graph->arena, 2, sizeof *graph->inputs);
    graph->input_count = 2;
    struct value *image = graph->inputs[0] =
        graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, HEIGHT, WIDTH, CHANNELS));
    struct value *words = graph->inputs[1] =
        graph_add_value(graph, "words", DTYPE_F32, &SHAPE(DIM_UNKNOWN, WORDS));
    struct value *a = added(graph, OP_MATMUL, words, constant_of(graph, &SHAPE(WORDS, WIDE), 1));
    a = added(graph, OP_MATMUL, a, constant_of(graph, &SHAPE(WIDE, WIDE), 2));
    a = added(graph, OP_MATMUL, a, constant_of(graph, &SHAPE(WIDE, CLASSES), 3));
    struct value *b = added(graph, OP_TRANSPOSE, image, NULL);
    cr_assert(node_set_ints(graph, b->producer, "perm", (const int64_t[]){0, 3, 1, 2}, 4));
    b = added(graph, OP_CONV, b, constant_of(graph, &SHAPE(CLASSES, CHANNELS, HEIGHT, WIDTH), 4));
    b = added(graph, OP_FLATTEN, added(graph, OP_GLOBAL_AVERAGE_POOL, b, NULL), NULL);
    graph->outputs = arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    graph->outputs[0] = added(graph, OP_ADD, a, b);
    graph->output_count = 1;
    struct session *session = NULL;
    struct error err = {0};
    const struct session_options options = {.device = gpu,
                                            .precision = PRECISION_FP16,
                                            .max_batch = MOST,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .image_channels_last = true,
                                            .pixels = pixels};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    graph_free(graph);
    return session;
}

Test(runs, steps_before_the_first_reader_keep_the_numbers_of_pixels)
{
    const struct session_pixels pixels = pixels_of(CHANNELS, false);
    float *batch = random_batch(6), words[MOST * WORDS], expected[MOST * CLASSES];
    uint32_t state = 9;
    struct error err = {0};
    const struct tensor *output;
    const void *inputs[] = {batch, words};
    for (size_t i = 0; i < MOST * WORDS; i++)
        words[i] = random_unit(&state);
    for (int have = 0; have < 2; have++) {
        struct session *session = open_words(have ? &pixels : NULL);
        cr_assert_eq(session_info(session)->takes_pixels, have);
        cr_assert_eq(session_run(session, MOST, inputs, &output, &err), STATUS_OK, "%s",
                     err.message);
        for (size_t i = 0; i < MOST * CLASSES && have; i++)
            cr_assert_float_eq(((const float *)output->data)[i], expected[i], 1e-3f);
        memcpy(expected, output->data, sizeof expected);
        session_free(session);
    }
    free(batch);
}

/* Number of device operations of a run. */
static size_t operations_of(const struct session_pixels *pixels)
{
    struct session *session = open_session(3, pixels, PRECISION_FP16);
    float expected[MOST * CLASSES], *batch = random_batch(4);
    const size_t before = fake.operations();
    run_batch(session, batch, expected);
    const size_t taken = fake.operations() - before;
    session_free(session);
    free(batch);
    return taken;
}

/* Pixels need more operations: a kernel that converts bytes, a copy of the marks, and a copy of
 * each row but the first. */
Test(runs, pixels_are_converted_at_once)
{
    const struct session_pixels pixels = pixels_of(3, false);
    const size_t with = operations_of(&pixels), without = operations_of(NULL);
    cr_assert_eq(with, without + 1 + MOST, "%zu operations, and %zu without pixels", with, without);
}

Test(runs, a_photo_is_a_quarter_of_the_bytes)
{
    const struct session_pixels pixels = pixels_of(3, false);
    struct session *session = open_session(3, &pixels, PRECISION_FP32);
    struct error err = {0};
    static float slots[MOST * ROW];
    const uint8_t are_pixels[MOST] = {1, 1, 1, 1};
    const void *inputs[] = {slots};
    const struct tensor *output;
    const struct session_request run = {
        .batch = 3, .inputs = inputs, .are_pixels = are_pixels, .valid_rows = 3};
    size_t in = fake.count(FAKE_CUDA_BYTES_IN, 0), out = fake.count(FAKE_CUDA_BYTES_OUT, 0);
    cr_assert_eq(session_submit(session, &run, &err), STATUS_OK);
    cr_assert_eq(session_collect(session, &output, &err), STATUS_OK);
    /* and a mark for each row of the batch of four; three rows of scores */
    cr_assert_eq(fake.count(FAKE_CUDA_BYTES_IN, 0) - in, 3 * ROW + 4);
    cr_assert_eq(fake.count(FAKE_CUDA_BYTES_OUT, 0) - out, 3 * CLASSES * sizeof(float));
    session_free(session);
}

enum { STREAM = 5 }; /* runs */

/* STREAM runs of several sizes, two in flight; how many of them gave what they give alone. */
static int run_stream(struct session *session, float *const *batches,
                      float (*expected)[MOST * CLASSES])
{
    static const int sizes[STREAM] = {4, 1, 3, 2, 4};
    struct error err = {0};
    const struct tensor *output;
    const void *inputs[STREAM];
    int good = 0;
    for (int i = 0; i <= STREAM; i++) {
        if (i < STREAM) {
            inputs[i] = batches[i];
            const struct session_request run = {
                .batch = sizes[i], .inputs = &inputs[i], .valid_rows = sizes[i]};
            cr_assert_eq(session_submit(session, &run, &err), STATUS_OK, "%s", err.message);
        }
        if (i == 0)
            continue;
        cr_assert_eq(session_collect(session, &output, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(output->shape.dims[0], sizes[i - 1]);
        good += memcmp(output->data, expected[i - 1],
                       (size_t)sizes[i - 1] * CLASSES * sizeof(float)) == 0;
    }
    return good;
}

/* Batches, and what the session gives for each alone. */
static void make_stream(struct session *session, float *batches[STREAM],
                        float expected[STREAM][MOST * CLASSES])
{
    for (int i = 0; i < STREAM; i++) {
        batches[i] = random_batch((uint32_t)i);
        run_batch(session, batches[i], expected[i]);
    }
}

Test(runs, every_wait_is_needed)
{
    static float expected[STREAM][MOST * CLASSES];
    struct session *session = open_session(3, NULL, PRECISION_FP32);
    float *batches[STREAM];
    char text[160];
    make_stream(session, batches, expected);
    size_t launches = fake.graph_launches(), waits = fake.count(FAKE_CUDA_WAITS, 0);
    fake.check_order(1);
    for (unsigned delay = 0; delay <= 400; delay += 200) {
        fake.delay(delay);
        cr_assert_eq(run_stream(session, batches, expected), STREAM);
        cr_assert_eq(fake.races(text, sizeof text), 0, "%s", text);
    }
    cr_assert_eq(fake.graph_launches() - launches, 3 * STREAM); /* one a batch */
    waits = (fake.count(FAKE_CUDA_WAITS, 0) - waits) / 3;
    cr_assert_eq(waits, 2 * STREAM);
    for (int n = 0; n < (int)waits; n++) {
        fake.check_order(1);
        fake.skip(FAKE_CUDA_WAIT, n);
        (void)run_stream(session, batches, expected);
        (void)run_stream(session, batches, expected); /* nothing of the first is left */
        cr_assert_gt(fake.races(text, sizeof text), 0, "wait %d is not needed", n);
    }
    /* Without the host's, it reads what is not there yet. */
    fake.delay(20000);
    fake.skip(FAKE_CUDA_SYNC, STREAM - 1);
    cr_assert_lt(run_stream(session, batches, expected), STREAM);
    for (int i = 0; i < STREAM; i++)
        free(batches[i]);
    session_free(session);
    cr_assert_eq(fake.used(0), 0);
}

/* A session of another kind of model, on the same device at the same time, disturbs none. */
Test(runs, sessions_do_not_share_what_they_write)
{
    static float expected[STREAM][MOST * CLASSES];
    struct session *one = open_session(3, NULL, PRECISION_FP32);
    struct session *two = open_session(3, NULL, PRECISION_BF16);
    struct error err = {0};
    const struct tensor *output;
    float *batches[STREAM];
    char text[160];
    make_stream(one, batches, expected);
    fake.check_order(1);
    fake.delay(200);
    const void *inputs[] = {batches[0]};
    const struct session_request run = {.batch = 4, .inputs = inputs, .valid_rows = 4};
    cr_assert_eq(session_submit(two, &run, &err), STATUS_OK);
    cr_assert_eq(run_stream(one, batches, expected), STREAM);
    cr_assert_eq(session_collect(two, &output, &err), STATUS_OK);
    cr_assert_eq(fake.races(text, sizeof text), 0, "%s", text);
    for (int i = 0; i < STREAM; i++)
        free(batches[i]);
    session_free(one);
    session_free(two);
}

Test(runs, weights_are_on_a_device_once)
{
    float expected[MOST * CLASSES], got[MOST * CLASSES], *batch = random_batch(3);
    struct session *one = open_session(3, NULL, PRECISION_FP32);
    const size_t alone = fake.used(0), weights = session_info(one)->parameter_bytes;
    struct session *two = open_session(3, NULL, PRECISION_FP32);
    cr_assert_gt(weights, 0);
    cr_assert_eq(fake.used(0), alone + session_info(two)->activation_bytes);
    run_batch(one, batch, expected);
    session_free(one); /* the other one goes on reading them */
    run_batch(two, batch, got);
    cr_assert_eq(memcmp(expected, got, sizeof got), 0);
    session_free(two);
    cr_assert_eq(fake.used(0), 0);
    free(batch);
}

/* cudaFree waits for all that a device does, also for other models. */
Test(runs, weights_are_freed_while_others_run)
{
    float expected[MOST * CLASSES], got[MOST * CLASSES], *batch = random_batch(3);
    for (int have = 1; have >= 0; have--) {
        fake.pools(have);
        struct session *session = open_session(3, NULL, PRECISION_FP32);
        run_batch(session, batch, have ? expected : got);
        const size_t stalls = fake.count(FAKE_CUDA_STALLS, 0);
        session_free(session);
        cr_assert_eq(fake.count(FAKE_CUDA_STALLS, 0) == stalls, have);
        cr_assert_eq(fake.used(0), 0);
    }
    cr_assert_eq(memcmp(expected, got, sizeof got), 0);
    free(batch);
}

Test(runs, weights_come_from_the_device_that_has_them)
{
    const struct device_id second = {DEVICE_CUDA, 1};
    float expected[MOST * CLASSES], got[MOST * CLASSES], *batch = random_batch(3);
    struct session *one = open_session(3, NULL, PRECISION_FP32);
    const size_t weights = session_info(one)->parameter_bytes;
    run_batch(one, batch, expected);
    for (int can = 0; can <= 1; can++) {
        fake.peers(can);
        const size_t before = fake.count(FAKE_CUDA_BYTES_FROM_PEERS, 1);
        struct session *two = open_session_on(second, 3, NULL, PRECISION_FP32);
        cr_assert_eq(fake.count(FAKE_CUDA_BYTES_FROM_PEERS, 1) - before, can ? weights : 0);
        run_batch(two, batch, got);
        cr_assert_eq(memcmp(expected, got, sizeof got), 0);
        session_free(two);
        cr_assert_eq(fake.used(1), 0);
    }
    session_free(one);
    free(batch);
}
