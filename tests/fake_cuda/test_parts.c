/* The CUDA backend over the stand-in on concatenations of channels that nobody has to copy: a
 * normalisation reads the parts where they are, and convolutions write into what joins them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/fake_cuda/module_cases.h"
#include "tests/unit/random_graph.h"

enum { BATCH = 2, HEIGHT = 5, WIDTH = 4 };

TestSuite(parts, .init = find_fake_module, .timeout = 240);

static struct value *random_constant(struct graph *graph, uint32_t *state,
                                     const struct shape *shape)
{
    struct tensor *tensor;
    struct error err;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, shape, &tensor, &err), STATUS_OK);
    const size_t count = shape_count(shape);
    const float scale = shape->rank == 4 ? sqrtf(2.0f * (float)shape->dims[0] / (float)count) : 1;
    for (size_t i = 0; i < count; i++)
        ((float *)tensor->data)[i] = scale * random_unit(state);
    struct value *value = graph_add_constant(graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *append(struct graph *graph, enum op op, struct value **inputs, size_t count)
{
    struct node *node = graph_add_node(graph, op, op_name(op), count, 1);
    node->opset = 13;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node_set_output(node, 0, graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE));
    return node->outputs[0];
}

static struct value *relu(struct graph *graph, struct value *x)
{
    return append(graph, OP_RELU, &x, 1);
}

/* A convolution that keeps the image's size. */
static struct value *conv(struct graph *graph, uint32_t *state, struct value *x, int64_t in,
                          int64_t out, int64_t taps, int64_t groups)
{
    struct value *weights = random_constant(graph, state, &SHAPE(out, in / groups, taps, taps));
    struct value *inputs[] = {x, weights, random_constant(graph, state, &SHAPE(out))};
    struct value *y = append(graph, OP_CONV, inputs, 3);
    const int64_t pad = taps / 2, pads[] = {pad, pad, pad, pad};
    cr_assert(node_set_ints(graph, y->producer, "pads", pads, 4));
    cr_assert(node_set_int(graph, y->producer, "group", groups));
    return y;
}

static struct value *join_channels(struct graph *graph, struct value **inputs, size_t count)
{
    struct value *y = append(graph, OP_CONCAT, inputs, count);
    cr_assert(node_set_int(graph, y->producer, "axis", 1));
    return y;
}

static struct value *normalise(struct graph *graph, uint32_t *state, struct value *x,
                               int64_t channels)
{
    struct value *inputs[5] = {x};
    for (size_t i = 1; i < COUNT_OF(inputs); i++)
        inputs[i] = random_constant(graph, state, &SHAPE(channels));
    float *variance = inputs[4]->known->data;
    for (int64_t c = 0; c < channels; c++)
        variance[c] = fabsf(variance[c]) + 0.5f;
    return append(graph, OP_BATCH_NORMALIZATION, inputs, COUNT_OF(inputs));
}

static struct graph *start_graph(int64_t channels)
{
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    graph->inputs = arena_alloc(graph->arena, 1, sizeof *graph->inputs);
    graph->inputs[0] =
        graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, channels, HEIGHT, WIDTH));
    graph->input_count = 1;
    graph->outputs = arena_alloc(graph->arena, 2, sizeof *graph->outputs);
    return graph;
}

static void add_output(struct graph *graph, struct value *value)
{
    graph->outputs[graph->output_count++] = value;
}

static const struct number_form {
    const char *name;
    enum precision precision;
    float tolerance;
    size_t tunings; /* of those below: how many candidates there may be */
} forms[] = {{"fp32", PRECISION_FP32, 1e-5f, 2},
             {"tf32", PRECISION_TF32, 3e-3f, 3},
             {"bf16", PRECISION_BF16, 4e-2f, 1},
             {"fp16", PRECISION_FP16, 5e-3f, 5}};
static const char *const tunings[] = {"off", "1", "2", "3", "5"};

enum { FORMS = COUNT_OF(forms), FP16 = FORMS - 1 };

/* The steps' kernels as one text, each behind a comma, after the first output is compared with the
 * interpreter's. Memory is filled with NaN before each run. */
static char *run_and_compare(const struct graph *graph, const struct number_form *form,
                             const char *name)
{
    const struct session_options options = {.device = {DEVICE_CUDA, 0},
                                            .precision = form->precision,
                                            .max_batch = BATCH,
                                            .trial = true,
                                            .poison = true};
    struct shape shape = graph->inputs[0]->shape;
    struct tensor *image, *expected[2] = {NULL};
    const struct tensor *outputs[2];
    struct graph *reference;
    struct session *session = NULL;
    struct session_step *steps;
    struct error err = {0};
    size_t count, at = 0;
    uint32_t state = 3;
    shape.dims[0] = BATCH;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &image, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)image->data)[i] = random_unit(&state);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &image, expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 name, err.message);
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    const void *inputs[] = {image->data};
    for (int run = 0; run < 2; run++) {
        cr_assert_eq(session_run(session, BATCH, inputs, outputs, &err), STATUS_OK, "%s: %s", name,
                     err.message);
        float worst = 0, largest = 0;
        for (size_t i = 0; i < shape_count(&expected[0]->shape); i++) {
            const float want = ((const float *)expected[0]->data)[i];
            const float off = fabsf(((const float *)outputs[0]->data)[i] - want);
            largest = fmaxf(largest, fabsf(want));
            worst = off <= worst ? worst : off; /* NaN stays */
        }
        cr_assert(worst <= form->tolerance * largest, "%s in %s: off by %g of %g", name, form->name,
                  (double)worst, (double)largest);
    }
    cr_assert_eq(session_profile(session, BATCH, 1, &steps, &count, &err), STATUS_OK, "%s",
                 err.message);
    char *text = calloc(count, 64);
    cr_assert_not_null(text);
    for (size_t i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, 64, ",%s", steps[i].kernel);
    free(steps);
    session_free(session);
    for (size_t i = 0; i < graph->output_count; i++)
        tensor_unref(expected[i]);
    tensor_unref(image);
    graph_free(reference);
    return text;
}

static size_t count_of(const char *text, const char *kernel)
{
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, kernel)); at += strlen(kernel))
        count++;
    return count;
}

/* A dense block as DenseNet has them: each layer reads all those before it, joined and normalised.
 */
static struct graph *dense_block(int64_t first, int64_t growth, size_t layers)
{
    enum { MOST = 40 };
    struct graph *graph = start_graph(3);
    struct value *parts[MOST];
    uint32_t state = 11;
    int64_t channels = first;
    parts[0] = conv(graph, &state, graph->inputs[0], 3, first, 3, 1);
    for (size_t i = 1; i <= layers; i++) {
        struct value *x = join_channels(graph, parts, i); /* torchvision's joins one, too */
        x = relu(graph, normalise(graph, &state, x, channels));
        parts[i] = conv(graph, &state, x, channels, i == layers ? 4 : growth, 1 + i % 2 * 2, 1);
        channels += growth;
    }
    add_output(graph, parts[layers]);
    return graph;
}

Test(parts, a_normalised_concatenation_is_read_where_it_lies)
{
    static const struct {
        int64_t first, growth;
        size_t layers;
    } blocks[] = {{16, 8, 5}, {5, 3, 4}, {8, 1, 27}}; /* of whole eights; not; two launches */
    for (size_t b = 0; b < COUNT_OF(blocks); b++) {
        struct graph *graph = dense_block(blocks[b].first, blocks[b].growth, blocks[b].layers);
        for (size_t f = 0; f < FORMS; f += FP16) {
            char *kernels = run_and_compare(graph, &forms[f], "a dense block");
            cr_assert_eq(count_of(kernels, ",scale_shift:parts"), blocks[b].layers - 1, "%s",
                         kernels);
            cr_assert_eq(count_of(kernels, ",copy"), 2, "%s: the image and the answer", kernels);
            free(kernels);
        }
        graph_free(graph);
    }
}

enum joined { WHOLE, ODD, READ, TWICE, SAME, DEPTHWISE, GROUPED, SILU };

/* Two or three layers that a Concat joins, and one that reads it. */
static struct graph *fire(enum joined variant)
{
    const int64_t wide = variant == ODD ? 12 : 24, in = 16;
    struct graph *graph = start_graph(3);
    uint32_t state = 17;
    struct value *x = relu(graph, conv(graph, &state, graph->inputs[0], 3, in, 3, 1));
    struct value *a =
        relu(graph, conv(graph, &state, x, in, variant == DEPTHWISE ? in : wide,
                         variant == DEPTHWISE ? 3 : 1, variant == DEPTHWISE ? in : 1));
    struct value *b =
        conv(graph, &state, x, in, variant == ODD ? 9 : 16, 3, variant == GROUPED ? 2 : 1);
    if (variant == SILU) {
        struct value *gate = append(graph, OP_SIGMOID, &b, 1);
        b = append(graph, OP_MUL, (struct value *[]){b, gate}, 2);
    }
    struct value *parts[] = {a, b, variant == TWICE ? a : variant == SAME ? x : NULL};
    struct value *joined = join_channels(graph, parts, parts[2] ? 3 : 2);
    const int64_t channels = (variant == DEPTHWISE ? in : wide) + (variant == ODD ? 9 : 16) +
                             (variant == TWICE  ? wide
                              : variant == SAME ? in
                                                : 0);
    add_output(graph, relu(graph, conv(graph, &state, joined, channels, 10, 1, 1)));
    if (variant == READ)
        add_output(graph, relu(graph, conv(graph, &state, a, wide, 10, 1, 1)));
    return graph;
}

Test(parts, layers_write_into_the_concatenation_that_reads_them)
{
    static const char by_inputs[] = ",written by its inputs";
    static const struct {
        enum joined variant;
        const char *name;
        bool is_written;
    } cases[] = {{WHOLE, "two layers", true},
                 {GROUPED, "a layer of two groups", true},
                 {SILU, "a layer with SiLU", true},
                 {ODD, "rows that are no whole vectors", false},
                 {READ, "a layer that is read elsewhere", false},
                 {TWICE, "a layer that is there twice", false},
                 {SAME, "the layers' own input", false},
                 {DEPTHWISE, "a depthwise layer", false}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct graph *graph = fire(cases[c].variant);
        for (size_t f = cases[c].is_written ? 0 : FP16; f < FORMS; f++) {
            for (size_t t = 0; t < (cases[c].is_written ? forms[f].tunings : 1); t++) {
                setenv("LENSD_CUDA_TUNING", tunings[t], 1);
                char *kernels = run_and_compare(graph, &forms[f], cases[c].name);
                cr_assert_eq(count_of(kernels, by_inputs), cases[c].is_written, "%s, %s: %s",
                             cases[c].name, forms[f].name, kernels);
                free(kernels);
            }
        }
        graph_free(graph);
    }
}

/* What is written is what an operation is saved for. */
Test(parts, nothing_is_launched_for_a_concatenation_that_is_written)
{
    size_t taken[2];
    const enum joined variants[] = {WHOLE, DEPTHWISE};
    for (size_t v = 0; v < COUNT_OF(variants); v++) {
        struct graph *graph = fire(variants[v]);
        const struct session_options options = {
            .device = {DEVICE_CUDA, 0}, .max_batch = 1, .trial = true};
        struct session *session = NULL;
        struct error err = {0};
        const struct tensor *outputs[1];
        static const float image[3 * HEIGHT * WIDTH];
        const void *inputs[] = {image};
        cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
        const size_t before = fake.operations();
        cr_assert_eq(session_run(session, 1, inputs, outputs, &err), STATUS_OK, "%s", err.message);
        taken[v] = fake.operations() - before;
        session_free(session);
        graph_free(graph);
    }
    cr_assert_eq(taken[0] + 1, taken[1]);
}
