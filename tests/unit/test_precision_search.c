/* Which layers --precision auto keeps in fp32: on a network whose weak spot is known. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/device.h"
#include "server/precision/agreement.h"
#include "server/precision/internal.h"
#include "tests/unit/random_graph.h"

enum { SIDE = 24, CHANNELS = 16, CLASSES = 10, SENSITIVE = 2 };

struct network {
    struct graph *graph;
    uint32_t state;
};

/* Random numbers of a size that keeps activations' as it is, times `scale`, plus `offset`. */
static struct value *constant(struct network *n, struct shape shape, double scale, float offset)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, &err), STATUS_OK);
    double inputs = 1;
    for (int d = 1; d < shape.rank; d++)
        inputs *= (double)shape.dims[d];
    float *numbers = tensor->data;
    for (size_t i = 0; i < shape_count(&shape); i++)
        numbers[i] = (float)(scale * sqrt(6 / inputs)) * random_unit(&n->state) + offset;
    struct value *value = graph_add_constant(n->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *append(struct network *n, enum op op, size_t count,
                            struct value *const *inputs)
{
    struct node *node = graph_add_node(n->graph, op, "layer", count, 1);
    node->opset = 13;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node_set_output(node, 0, graph_add_value(n->graph, "", DTYPE_NONE, NULL));
    return node->outputs[0];
}

static struct value *conv(struct network *n, struct value *x, int64_t in, int64_t taps, float bias)
{
    const int64_t pads[4] = {taps / 2, taps / 2, taps / 2, taps / 2};
    struct value *w = constant(n, SHAPE(CHANNELS, in, taps, taps), 1, 0);
    struct value *b = constant(n, SHAPE(CHANNELS), 0, bias);
    struct value *y = append(n, OP_CONV, 3, (struct value *[]){x, w, b});
    cr_assert(node_set_ints(n->graph, y->producer, "pads", pads, 4));
    return append(n, OP_RELU, 1, &y);
}

/* A convolution about 4096, where bfloat16 has steps of 32, less 4096. */
static struct value *weak_conv(struct network *n, struct value *x)
{
    struct value *y = conv(n, x, CHANNELS, 1, 4096);
    struct value *back = constant(n, SHAPE(1, CHANNELS, 1, 1), 0, -4096);
    return append(n, OP_ADD, 2, (struct value *[]){y, back});
}

/* image → conv → weak conv (layer SENSITIVE) → convs, weak ones or not → mean → scores */
static struct graph *make_network(int convs, bool all_weak)
{
    struct network n = {.graph = graph_create(NULL), .state = 5};
    struct shape shape = SHAPE(DIM_UNKNOWN, 3, SIDE, SIDE);
    struct value *image = graph_add_value(n.graph, "image", DTYPE_F32, &shape);
    struct value *x = conv(&n, image, 3, 3, 0);
    x = weak_conv(&n, x);
    for (int i = 2; i < convs; i++)
        x = all_weak ? weak_conv(&n, x) : conv(&n, x, CHANNELS, i % 2 ? 1 : 3, 0);
    x = append(&n, OP_GLOBAL_AVERAGE_POOL, 1, &x);
    x = append(&n, OP_FLATTEN, 1, &x);
    struct value *head = constant(&n, SHAPE(CHANNELS, CLASSES), all_weak ? 3 : 0.3, 0);
    x = append(&n, OP_MATMUL, 2, (struct value *[]){x, head});
    struct value **ends = arena_alloc(n.graph->arena, 2, sizeof *ends);
    ends[0] = image;
    ends[1] = x;
    x->name = "scores";
    n.graph->opset = 13;
    n.graph->inputs = ends;
    n.graph->input_count = 1;
    n.graph->outputs = ends + 1;
    n.graph->output_count = 1;
    return n.graph;
}

struct bench {
    struct model model;
    struct image_limits limits;
    struct trial_input input;
    struct survey survey;
    struct precision_trial plain, mixed;
    bool tried;
};

static struct bench *bench_create(struct graph *graph)
{
    struct error err = {0};
    struct bench *bench = calloc(1, sizeof *bench);
    cr_assert_not_null(bench);
    static char name[] = "network";
    bench->model = (struct model){.name = name, .graph = graph};
    preprocess_default(&bench->model.preprocess);
    bench->model.preprocess.width = bench->model.preprocess.height = SIDE;
    bench->limits = (struct image_limits)IMAGE_LIMITS_DEFAULT;
    bench->input.model = &bench->model;
    bench->input.options = (struct session_options){
        .threads = 1, .max_batch = 4, .trial = true, .image_layout = IMAGE_NHWC_F32};
    cr_assert_eq(probes_open(&bench->model, &bench->limits, &bench->input.probes, &err), STATUS_OK);
    cr_assert_eq(session_create(graph, &bench->input.options, &bench->input.reference, &err),
                 STATUS_OK, "%s", err.message);
    cr_assert_eq(
        trial_run(&bench->input, PRECISION_BF16, NULL, &bench->survey, &bench->plain, &err),
        STATUS_OK, "%s", err.message);
    return bench;
}

/* Times are made up: every layer gains alike. */
static void look(struct bench *bench)
{
    struct error err = {0};
    bench->survey.fp32_ms = 2 * bench->survey.layer_count;
    for (int layer = 1; layer <= bench->survey.layer_count; layer++)
        bench->survey.saved_ms[layer] = 1;
    cr_assert_eq(search_layers(&bench->input, &bench->survey, &bench->mixed, &bench->tried, &err),
                 STATUS_OK, "%s", err.message);
}

static void bench_free(struct bench *bench)
{
    session_free(bench->input.reference);
    probes_free(bench->input.probes);
    graph_free(bench->model.graph);
    free(bench);
}

Test(precision_search, finds_the_weak_spot)
{
    if (!device_cpu_has_bf16())
        cr_skip_test("this CPU is not good at bfloat16");
    struct bench *bench = bench_create(make_network(6, false));
    cr_expect_eq(bench->plain.outcome, TRIAL_DIFFERS);
    cr_expect_eq(bench->survey.layer_count, 7);
    cr_expect_eq(layer_set_count(&bench->plain.fp32_layers), 0);
    look(bench);
    cr_assert(bench->tried);
    cr_expect(layer_set_has(&bench->mixed.fp32_layers, SENSITIVE));
    cr_expect_eq(layer_set_count(&bench->mixed.fp32_layers), 1);
    cr_expect(agreement_holds(&bench->mixed), "greatest %g", bench->mixed.greatest);
    cr_expect_eq(bench->mixed.layer_count, 7);
    cr_expect_str_eq(bench->mixed.layer_names, "layer");
    cr_expect(bench->mixed.outcome == TRIAL_PASSED || bench->mixed.outcome == TRIAL_SLOWER);
    bench_free(bench);
}

struct seen {
    double last;
    int calls;
};

static void see(void *context, double fraction)
{
    struct seen *seen = context;
    cr_expect_geq(fraction, seen->last);
    cr_expect_leq(fraction, 0.99);
    seen->last = fraction;
    seen->calls++;
}

Test(precision_search, says_how_far_it_is)
{
    if (!device_cpu_has_bf16())
        cr_skip_test("this CPU is not good at bfloat16");
    struct bench *bench = bench_create(make_network(6, false));
    struct seen seen = {0, 0};
    bench->input.options.on_progress = see;
    bench->input.options.progress_context = &seen;
    bench->input.begin = clock_now();
    bench->input.end = bench->input.begin + 60 * INT64_C(1000000000);
    struct trial_work work = {.from = 0.3, .expected = 2.0 * probes_count(bench->input.probes)};
    bench->input.work = &work;
    look(bench);
    cr_assert(bench->tried);
    /* A session for each of 7 layers, and 16 batches of a selection's trial on both sides, which
     * ends before that where the clock finds it slower. */
    const bool is_whole = bench->mixed.outcome != TRIAL_SLOWER;
    cr_expect_geq(seen.calls, 7 + 2 * (is_whole ? 16 : 1));
    cr_expect_geq(work.done, is_whole ? 2.0 * probes_count(bench->input.probes) : 1);
    cr_expect_gt(seen.last, is_whole ? 0.3 + 0.69 * (1 - exp(-1)) - 1e-9 : 0.3);
    bench_free(bench);
}

Test(precision_search, tries_nothing_when_time_is_over)
{
    if (!device_cpu_has_bf16())
        cr_skip_test("this CPU is not good at bfloat16");
    struct bench *bench = bench_create(make_network(6, false));
    bench->input.begin = clock_now() - 2;
    bench->input.end = bench->input.begin + 1;
    look(bench);
    cr_expect_not(bench->tried);
    bench_free(bench);
}

Test(precision_search, mends_nothing_for_a_small_gain)
{
    if (!device_cpu_has_bf16())
        cr_skip_test("this CPU is not good at bfloat16");
    struct bench *bench = bench_create(make_network(6, false));
    struct error err = {0};
    bench->survey.fp32_ms = 100;
    for (int layer = 1; layer <= bench->survey.layer_count; layer++)
        bench->survey.saved_ms[layer] = 1;
    cr_assert_eq(search_layers(&bench->input, &bench->survey, &bench->mixed, &bench->tried, &err),
                 STATUS_OK);
    cr_expect_not(bench->tried);
    bench_free(bench);
}

Test(precision_search, gives_up_where_all_layers_are_weak)
{
    if (!device_cpu_has_bf16())
        cr_skip_test("this CPU is not good at bfloat16");
    struct bench *bench = bench_create(make_network(12, true));
    cr_expect_eq(bench->plain.outcome, TRIAL_DIFFERS);
    look(bench);
    cr_expect_not(bench->tried);
    bench_free(bench);
}

Test(precision_search, keeps_what_fp32_would_not_gain_by)
{
    if (!device_cpu_has_bf16())
        cr_skip_test("this CPU is not good at bfloat16");
    struct bench *bench = bench_create(make_network(6, false));
    look(bench);
    cr_assert(bench->tried);
    for (int layer = 1; layer <= bench->survey.layer_count; layer++)
        bench->survey.saved_ms[layer] = -1;
    struct error err = {0};
    cr_assert_eq(search_layers(&bench->input, &bench->survey, &bench->mixed, &bench->tried, &err),
                 STATUS_OK);
    cr_expect_not(bench->tried, "no layer gains by bfloat16, and there was a trial");
    bench_free(bench);
}
