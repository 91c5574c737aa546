/* Batches whose first steps run as pieces: what is carried from these to the rest, where it lies,
 * and that answers are those of a session without. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/session.h"
#include "engine/session_internal.h"
#include "tests/unit/random_graph.h"
#include "tests/unit/random_quantised.h"

enum { SIZES = 4, LARGEST = 8, MOST_OUTPUTS = 3 }; /* compiled: 1, 2, 4, 8 */

/* `known` NULL: a session of a random graph that measures nothing, so that however slow the machine
 * is no batch is run as pieces; it has the sizes 1 and 8 alone. Else (nothing in it will do) one of
 * all sizes, for graphs so small that a batch is never cut. */
static struct session *create(const struct graph *graph, enum precision precision,
                              const struct session_facts *known)
{
    struct error err = {0};
    struct session_options options = {.threads = 1,
                                      .precision = precision,
                                      .max_batch = LARGEST,
                                      .image_layout = known ? IMAGE_AS_DECLARED : IMAGE_NHWC_F32,
                                      .trial = !known,
                                      .known = known};
    struct session *session = NULL;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    return session;
}

/* What was in the arena before must not matter: NaN in every format. */
static void poison(struct session *session)
{
    memset(session->backend->arena, 0xff, session->backend->arena_bytes);
}

static void run(struct session *session, size_t i, int images, const void *const *inputs,
                const struct tensor **outputs)
{
    struct error err = {0};
    poison(session);
    cr_assert_eq(compiled_run(session, &session->compiled[i], images, inputs, outputs, &err),
                 STATUS_OK, "%s", err.message);
}

static bool set_front(struct session *session, size_t i, size_t by, size_t steps)
{
    struct error err = {0};
    bool taken;
    cr_assert_eq(session_set_front(session, i, by, steps, &taken, &err), STATUS_OK);
    cr_assert_eq(session->ops->reserve(session->backend, &err), STATUS_OK, "%s", err.message);
    return taken;
}

static void unset_front(struct session *session, size_t i)
{
    struct error err = {0};
    bool taken;
    session->compiled[i].front = 0;
    cr_assert_eq(session->ops->set_front(session->compiled[i].program, NULL, NULL, &taken, &err),
                 STATUS_OK);
    cr_assert_eq(session->ops->reserve(session->backend, &err), STATUS_OK);
}

static float difference(const struct tensor *expected, const struct tensor *got)
{
    float largest = 1e-2f, worst = 0;
    const size_t count = shape_count(&expected->shape);
    cr_assert(shape_equal(&expected->shape, &got->shape));
    for (size_t e = 0; e < count; e++) {
        const float a = (float)tensor_number(expected, e), b = (float)tensor_number(got, e);
        if (isnan(a) && isnan(b))
            continue;
        const float d = fabsf(a - b);
        largest = fmaxf(largest, fabsf(a));
        worst = d <= worst ? worst : d; /* NaN stays */
    }
    return worst / largest;
}

static float *random_images(size_t count)
{
    float *data = malloc(count * sizeof *data);
    uint32_t state = 4711;
    for (size_t i = 0; data && i < count; i++)
        data[i] = random_unit(&state);
    cr_assert_not_null(data);
    return data;
}

/* ---- the plan ---- */

static bool is_read_from(const struct graph *graph, const struct value *value, size_t at)
{
    for (size_t n = at; n < graph->node_count; n++)
        for (size_t i = 0; i < graph->nodes[n]->input_count; i++)
            if (graph->nodes[n]->inputs[i] == value)
                return true;
    for (size_t i = 0; i < graph->output_count; i++)
        if (graph->outputs[i] == value)
            return true;
    return false;
}

static size_t maker_of(const struct graph *graph, const struct value *value)
{
    for (size_t n = 0; n < graph->node_count; n++)
        for (size_t o = 0; o < graph->nodes[n]->output_count; o++)
            if (graph->nodes[n]->outputs[o] == value)
                return n;
    return SIZE_MAX;
}

/* Of the graph itself, without asking the plan: is the value made before node `at`, and needed by
 * node `from` or one behind it? */
static bool lives(const struct graph *graph, const struct value *value, size_t at, size_t from)
{
    return maker_of(graph, value) < at && is_read_from(graph, value, from);
}

static void expect_apart(const struct graph *graph, const struct plan *plan, size_t at, size_t n)
{
    for (size_t v = 0; v < graph->value_count; v++)
        for (size_t w = 0; w < v; w++) {
            if (plan->places[v].kind != PLACE_ARENA || plan->places[w].kind != PLACE_ARENA ||
                plan->values[v].block == plan->values[w].block ||
                !lives(graph, graph->values[v], n > at ? n : at, n) ||
                !lives(graph, graph->values[w], n > at ? n : at, n))
                continue;
            const size_t a = plan->places[v].offset, b = plan->places[w].offset;
            cr_assert(a + plan->values[v].bytes <= b || b + plan->values[w].bytes <= a,
                      "cut at %zu, node %zu: two values of it lie in each other", at, n);
            cr_assert(a + plan->values[v].bytes <= plan->arena_bytes);
        }
}

Test(fronts, everything_alive_is_carried)
{
    size_t carried = 0;
    for (uint32_t seed = 1000; seed < 1012; seed++) {
        struct error err = {0};
        struct graph *random = random_graph(seed, 8, 8);
        struct session *session = create(random, PRECISION_FP32, NULL);
        const struct graph *graph = session->compiled[1].graph;
        struct plan plan;
        cr_assert_eq(plan_create(graph, cpu_in_place, &plan, &err), STATUS_OK);
        const size_t whole = plan.arena_bytes;
        for (size_t at = 1; at < graph->node_count; at++) {
            for (size_t v = 0; v < graph->value_count; v++) {
                if (plan.places[v].kind != PLACE_ARENA || !lives(graph, graph->values[v], at, at))
                    continue;
                carried++;
                cr_expect(plan_is_carried(&plan.blocks[plan.values[v].block], at),
                          "seed %u: value %zu is read behind node %zu", seed, v, at);
            }
            cr_assert_eq(plan_place_from(&plan, at, &err), STATUS_OK);
            cr_expect_leq(plan.arena_bytes, whole);
            for (size_t n = at; n < graph->node_count; n++)
                expect_apart(graph, &plan, at, n);
        }
        cr_assert_eq(plan_place_from(&plan, 0, &err), STATUS_OK);
        cr_expect_eq(plan.arena_bytes, whole);
        plan_done(&plan);
        session_free(session);
        graph_free(random);
    }
    cr_expect_gt(carried, 200);
}

/* Two blocks, of 2 x 64 and of 64 bytes for an image; the second one is read by node 3 alone. */
Test(fronts, rows_have_to_lie_one_after_the_other)
{
    struct place places[] = {{PLACE_ARENA, 0, 0}, {PLACE_ARENA, 0, 128}, {PLACE_INPUT, 0, 0}};
    struct plan_block blocks[] = {{128, 0, 0, 4}, {64, 128, 1, 3}};
    struct plan_value one[] = {{128, 1, 0, 0, 1}, {64, 1, 1, 1, 1}, {8, 1, 0, PLAN_NO_BLOCK, 1}};
    struct plan_value four[] = {{512, 4, 0, 0, 1}, {256, 4, 1, 1, 1}, {32, 4, 0, PLAN_NO_BLOCK, 1}};
    struct plan piece = {places, one, 3, blocks, 2, 192}, whole = {places, four, 3, blocks, 2, 768};
    cr_expect(plan_takes_pieces(&whole, &piece, 2, 1, 4));
    cr_expect_not(plan_takes_pieces(&whole, &piece, 2, 1, 2)); /* four images are no two */
    four[1].rows = 2; /* the same bytes, but no row for each image: [heads * N …] */
    cr_expect_not(plan_takes_pieces(&whole, &piece, 2, 1, 4));
    cr_expect(plan_takes_pieces(&whole, &piece, 1, 1, 4)); /* not there yet */
    cr_expect(plan_takes_pieces(&whole, &piece, 4, 1, 4)); /* no longer read */
    four[1] = one[1]; /* as large for one image as for all, but made of images: a scale for all */
    cr_expect_not(plan_takes_pieces(&whole, &piece, 2, 1, 4));
    four[1].from = one[1].from = 2; /* made of another input, which has no rows */
    cr_expect(plan_takes_pieces(&whole, &piece, 2, 1, 4));
    four[1] = (struct plan_value){240, 4, 1, 1, 1};
    one[1] = (struct plan_value){60, 1, 1, 1, 1}; /* rows would begin anywhere */
    cr_expect_not(plan_takes_pieces(&whole, &piece, 2, 1, 4));
    four[1] = (struct plan_value){256, 4, 1, 0, 1}; /* another graph */
    one[1] = (struct plan_value){64, 1, 1, 1, 1};
    cr_expect_not(plan_takes_pieces(&whole, &piece, 2, 1, 4));
}

/* ---- sessions ---- */

/* How far the answers of whole batches and of pieces are from each other without any front: one
 * more image may choose another kernel, and a rounding to integers take the other side. */
static float spread(struct session *plain, size_t by, const void *const *inputs)
{
    const struct tensor *whole[MOST_OUTPUTS], *piece[MOST_OUTPUTS];
    const size_t last = plain->compiled_count - 1;
    struct tensor *kept[MOST_OUTPUTS];
    struct error err = {0};
    const void *rows[2] = {NULL, plain->input_count > 1 ? inputs[1] : NULL};
    const struct value *input = plain->compiled[by].graph->inputs[0];
    const size_t bytes = shape_count(&input->shape) * dtype_size(input->dtype);
    float worst = 0;
    run(plain, last, LARGEST, inputs, whole);
    for (size_t o = 0; o < plain->output_count; o++) {
        cr_assert_eq(tensor_create(NULL, whole[o]->dtype, &whole[o]->shape, &kept[o], &err),
                     STATUS_OK);
        memcpy(kept[o]->data, whole[o]->data, whole[o]->bytes);
    }
    for (int first = 0; first < LARGEST; first += plain->compiled[by].size) {
        rows[0] =
            (const char *)inputs[0] + bytes / (size_t)plain->compiled[by].size * (size_t)first;
        run(plain, by, plain->compiled[by].size, rows, piece);
        for (size_t o = 0; o < plain->output_count; o++) {
            struct tensor part = *kept[o];
            part.data = (char *)kept[o]->data + kept[o]->bytes / LARGEST * (size_t)first;
            part.shape = piece[o]->shape;
            part.bytes = piece[o]->bytes;
            worst = fmaxf(worst, difference(&part, piece[o]));
        }
    }
    for (size_t o = 0; o < plain->output_count; o++)
        tensor_unref(kept[o]);
    return worst;
}

/* All fronts that the backend takes for `images` of the largest batch. Returns how many. */
static size_t compare_fronts(struct session *plain, struct session *session, uint32_t seed,
                             const void *const *inputs, float tolerance)
{
    const size_t last = session->compiled_count - 1;
    const struct tensor *expected[MOST_OUTPUTS], *got[MOST_OUTPUTS];
    size_t taken = 0;
    for (size_t by = 0; by < last; by++) {
        const float allowed = tolerance + spread(plain, by, inputs);
        for (size_t steps = 1; steps < session->compiled[last].graph->node_count; steps++) {
            if (!set_front(session, last, by, steps))
                continue;
            taken++;
            for (int images = LARGEST; images > 0; images -= 3) { /* 8, 5, 2 */
                run(plain, last, images, inputs, expected);
                run(session, last, images, inputs, got);
                for (size_t o = 0; o < session->output_count; o++) {
                    const float d = difference(expected[o], got[o]);
                    cr_expect(d <= allowed,
                              "seed %u, %d images, %zu steps in pieces of %d, output %zu: %g", seed,
                              images, steps, session->compiled[by].size, o, (double)d);
                }
            }
            unset_front(session, last);
        }
    }
    run(plain, last, LARGEST, inputs, expected);
    run(session, last, LARGEST, inputs, got); /* without one again: to the bit */
    for (size_t o = 0; o < session->output_count; o++)
        cr_expect_eq(memcmp(expected[o]->data, got[o]->data, got[o]->bytes), 0, "seed %u", seed);
    return taken;
}

static size_t compare_random(struct graph *graph, uint32_t seed, enum precision precision,
                             float tolerance)
{
    enum { H = 16, W = 16 };
    struct session *plain = create(graph, precision, NULL);
    struct session *session = create(graph, precision, NULL);
    float *images = random_images((size_t)LARGEST * 3 * H * W);
    const void *inputs[1] = {images};
    size_t taken = 0;
    if (session->compiled_count == 2)
        taken = compare_fronts(plain, session, seed, inputs, tolerance);
    free(images);
    session_free(plain);
    session_free(session);
    graph_free(graph);
    return taken;
}

Test(fronts, answers_are_those_of_whole_batches)
{
    size_t taken = 0;
    for (uint32_t seed = 1000; seed < 1120; seed++)
        taken += compare_random(random_graph(seed, 16, 16), seed, PRECISION_FP32, 1e-4f);
    cr_expect_gt(taken, 100, "%zu", taken);
}

Test(fronts, in_bfloat16)
{
    size_t taken = 0;
    if (!device_cpu_has_bf16())
        cr_skip("this CPU has no bfloat16 instructions");
    for (uint32_t seed = 300; seed < 330; seed++)
        taken += compare_random(random_graph(seed, 16, 16), seed, PRECISION_BF16, 0.08f);
    cr_expect_gt(taken, 20, "%zu", taken);
}

Test(fronts, in_integers)
{
    size_t taken = 0;
    for (uint32_t seed = 1; seed < 40; seed++)
        taken += compare_random(random_quantised(seed, 16, 16, false), seed, PRECISION_INT8, 0.05f);
    cr_expect_gt(taken, 100, "%zu", taken);
}

static struct value *append(struct graph *graph, enum op op, struct value *a, struct value *b)
{
    struct node *node = graph_add_node(graph, op, "", b ? 2 : 1, 1);
    node->opset = 13;
    node->inputs[0] = a;
    if (b)
        node->inputs[1] = b;
    node_set_output(node, 0, graph_add_value(graph, "", DTYPE_F32, NULL));
    return node->outputs[0];
}

/* image [?, 16, 8, 8] ── relu ─┬─ · gain ── tanh ── + ─── · sigmoid(gain) ─── softmax ── out
 *                              └───────────────────────┘
 * gain [1, 16, 1, 1] is the same for all images; what is behind its product is an output, too. */
static struct graph *with_two_ends(void)
{
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    graph->inputs = arena_alloc(graph->arena, 2, sizeof(struct value *));
    graph->outputs = arena_alloc(graph->arena, 2, sizeof(struct value *));
    struct value *image = graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 16, 8, 8));
    struct value *gain = graph_add_value(graph, "gain", DTYPE_F32, &SHAPE(1, 16, 1, 1));
    struct value *first = append(graph, OP_RELU, image, NULL);
    struct value *shared = append(graph, OP_SIGMOID, gain, NULL);
    struct value *product = append(graph, OP_MUL, first, gain);
    struct value *sum = append(graph, OP_ADD, append(graph, OP_TANH, product, NULL), first);
    struct value *last = append(graph, OP_SOFTMAX, append(graph, OP_MUL, sum, shared), NULL);
    graph->inputs[0] = image;
    graph->inputs[1] = gain;
    graph->outputs[0] = product;
    graph->outputs[1] = last;
    graph->input_count = graph->output_count = 2;
    return graph;
}

static const struct session_facts nothing = {.count = 0};

Test(fronts, carry_inputs_outputs_and_what_all_images_share)
{
    struct graph *graph = with_two_ends();
    struct session *plain = create(graph, PRECISION_FP32, &nothing);
    struct session *session = create(graph, PRECISION_FP32, &nothing);
    float *images = random_images((size_t)LARGEST * 16 * 8 * 8), *gain = random_images(16);
    const void *inputs[2] = {images, gain};
    cr_assert_eq(session->compiled_count, SIZES);
    cr_expect_geq(compare_fronts(plain, session, 0, inputs, 1e-6f), 6);
    free(images);
    free(gain);
    session_free(plain);
    session_free(session);
    graph_free(graph);
}

static struct value *whole_number(struct graph *graph, int64_t number)
{
    struct tensor *tensor;
    const struct shape one = SHAPE(1);
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &one, &tensor, NULL), STATUS_OK);
    ((int64_t *)tensor->data)[0] = number;
    struct value *value = graph_add_constant(graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

/* The images in reverse order. */
static struct value *reversed(struct graph *graph, struct value *images)
{
    struct node *node = graph_add_node(graph, OP_SLICE, "", 5, 1);
    node->opset = 13;
    node->inputs[0] = images;
    node->inputs[1] = whole_number(graph, -1);
    node->inputs[2] = whole_number(graph, INT64_MIN + 1);
    node->inputs[3] = whole_number(graph, 0);
    node->inputs[4] = whole_number(graph, -1);
    node_set_output(node, 0, graph_add_value(graph, "", DTYPE_F32, NULL));
    return node->outputs[0];
}

/* image ── relu ── reversed ── tanh ── reversed ── sigmoid ── out: each image's own answer,
 * although the values between have the sizes of any others. */
Test(fronts, end_where_images_may_meet)
{
    struct graph *graph = graph_create(NULL);
    graph->opset = 13;
    graph->inputs = arena_alloc(graph->arena, 1, sizeof(struct value *));
    graph->outputs = arena_alloc(graph->arena, 1, sizeof(struct value *));
    struct value *image = graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, 16, 8, 8));
    struct value *turned = reversed(graph, append(graph, OP_RELU, image, NULL));
    struct value *back = reversed(graph, append(graph, OP_TANH, turned, NULL));
    graph->inputs[0] = image;
    graph->outputs[0] = append(graph, OP_SIGMOID, back, NULL);
    graph->input_count = graph->output_count = 1;
    struct session *plain = create(graph, PRECISION_FP32, &nothing);
    struct session *session = create(graph, PRECISION_FP32, &nothing);
    float *images = random_images((size_t)LARGEST * 16 * 8 * 8);
    const void *inputs[1] = {images};
    cr_assert_eq(session->compiled_count, SIZES);
    const size_t taken = compare_fronts(plain, session, 0, inputs, 1e-6f);
    cr_expect_eq(taken, SIZES - 2, "%zu",
                 taken); /* behind relu; of one image it is another graph */
    free(images);
    session_free(plain);
    session_free(session);
    graph_free(graph);
}

/* As an earlier start left it: the front is there for good, its steps are gone. */
Test(fronts, are_taken_over_and_profiled)
{
    struct error err = {0};
    struct graph *graph = with_two_ends();
    struct session *plain = create(graph, PRECISION_FP32, &nothing);
    struct session_facts known = *session_facts(plain);
    float *images = random_images((size_t)LARGEST * 16 * 8 * 8), *gain = random_images(16);
    const void *inputs[2] = {images, gain};
    known.times[SIZES - 1].front = 2;
    known.times[SIZES - 1].front_steps = 3;
    known.times[SIZES - 2].front = 3; /* no size of it */
    known.times[SIZES - 2].front_steps = 3;
    struct session *other = create(graph, PRECISION_FP32, &known);
    cr_expect_eq(other->info.batches[SIZES - 2].front, 0);
    session_free(other);
    known.times[SIZES - 2].front = known.times[SIZES - 2].front_steps = 0;
    struct session *session = create(graph, PRECISION_FP32, &known);
    const struct session_batch *batch = &session_info(session)->batches[SIZES - 1];
    cr_expect_eq(batch->front, 2);
    cr_expect_eq(batch->front_steps, 3);
    cr_expect_eq(session_facts(session)->times[SIZES - 1].front, 2);
    for (int images_run = 1; images_run <= LARGEST; images_run++) {
        const struct tensor *expected[2], *got[2];
        poison(session);
        cr_assert_eq(session_run(plain, images_run, inputs, expected, &err), STATUS_OK);
        cr_assert_eq(session_run(session, images_run, inputs, got, &err), STATUS_OK);
        for (size_t o = 0; o < 2; o++)
            cr_expect_leq(difference(expected[o], got[o]), 1e-6f, "%d images", images_run);
    }
    struct session_step *whole, *steps;
    size_t whole_count, count;
    cr_assert_eq(session_profile(plain, LARGEST, 1, &whole, &whole_count, &err), STATUS_OK);
    cr_assert_eq(session_profile(session, LARGEST, 1, &steps, &count, &err), STATUS_OK);
    cr_assert_eq(count, whole_count);
    for (size_t s = 0; s < count; s++) {
        cr_expect_str_eq(steps[s].name, whole[s].name);
        cr_expect_gt(steps[s].milliseconds, 0);
        cr_expect_geq(steps[s].bytes, whole[s].bytes); /* of all pieces */
    }
    free(whole);
    free(steps);
    free(images);
    free(gain);
    session_free(plain);
    session_free(session);
    graph_free(graph);
}

/* By made-up times one image takes 1 ms in each step, eight take 20 in the first three and 2 in
 * those behind; as all four sizes count as 1000 ms, what is measured is quicker. */
Test(fronts, begin_and_end_where_steps_are_quickest)
{
    struct error err = {0};
    struct graph *graph = with_two_ends();
    struct session *session = create(graph, PRECISION_FP32, &nothing);
    double cost[LARGEST + 1];
    int first[LARGEST + 1];
    const size_t sizes[] = {0, SIZES - 1};
    struct session_step *steps;
    size_t count;
    cr_assert_eq(session_profile(session, LARGEST, 1, &steps, &count, &err), STATUS_OK);
    free(steps);
    cr_assert_gt(count, 4);
    for (size_t i = 0; i < SIZES; i++) {
        session->info.batches[i].milliseconds = 1000;
        session->times[i].cpu = 0; /* not known */
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct session_steps *of = &session->steps[sizes[i]];
        of->ms = alloc_array(count, sizeof *of->ms);
        of->count = count;
        for (size_t s = 0; s < count; s++)
            of->ms[s] = i == 0 ? 1 : s < 3 ? 20 : 2;
    }
    cr_assert_eq(session_find_fronts(session, cost, first, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(session->compiled[SIZES - 1].front, 1);
    cr_expect_eq(session->compiled[SIZES - 1].front_steps, 3);
    cr_expect_lt(session->info.batches[SIZES - 1].milliseconds, 1000);
    cr_expect_eq(session->compiled[SIZES - 2].front, 0);
    session_free(session);
    graph_free(graph);
}
