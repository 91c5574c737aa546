/* Quantized networks on the CUDA backend over the stand-in: against the interpreter, which computes
 * operators on stored numbers in integers, and what is between QuantizeLinear in float32. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/fake_cuda/module_cases.h"
#include "tests/unit/random_graph.h"
#include "tests/unit/random_quantized.h"

enum { HEIGHT = 11, WIDTH = 9, BATCH = 3, CHANNELS = 3 };

static const struct device_id gpu = {DEVICE_CUDA, 0};

TestSuite(cuda_int8, .init = find_fake_module, .timeout = 240);

static struct tensor *make_images(uint32_t seed, int batch)
{
    struct tensor *tensor;
    struct error err;
    uint32_t state = seed + 7;
    cr_assert_eq(
        tensor_create(NULL, DTYPE_F32, &SHAPE(batch, CHANNELS, HEIGHT, WIDTH), &tensor, &err), 0);
    for (size_t i = 0; i < shape_count(&tensor->shape); i++)
        ((float *)tensor->data)[i] = random_unit(&state);
    return tensor;
}

/* Returns how many sums are steps of their own. */
static int expect_no_host(struct session *session, uint32_t seed)
{
    struct session_step *steps;
    struct error err = {0};
    size_t count;
    int sums = 0;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        cr_expect(strcmp(steps[i].kernel, "host") != 0, "seed %u: %s runs on the host", seed,
                  steps[i].name);
        sums += strcmp(steps[i].kernel, "pointwise") == 0 &&
                strcmp(steps[i].name, op_name(OP_QLINEAR_ADD)) == 0;
    }
    free(steps);
    return sums;
}

struct outcome {
    double worst, sum; /* differences, relative to the greatest expected number */
    size_t count;
    int written, sums; /* QLinearAdds of the graphs, and those that are steps */
};

static void compare(uint32_t seed, bool operators_only, enum precision precision, bool poison,
                    struct outcome *ret)
{
    struct error err = {0};
    struct graph *graph = random_quantized(seed, HEIGHT, WIDTH, operators_only), *reference;
    struct session *session = NULL;
    struct tensor *input, *expected = NULL;
    const struct tensor *output;
    const struct session_options options = {.device = gpu,
                                            .precision = precision,
                                            .max_batch = BATCH,
                                            .image_layout = IMAGE_AS_DECLARED,
                                            .trial = true,
                                            .poison = poison};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "seed %u: %s", seed,
                 err.message);
    /* A scale of the whole batch makes images depend on each other: those run one by one. */
    const int batch = session_info(session)->batched ? BATCH : 1;
    input = make_images(seed, batch);
    const void *inputs[] = {input->data};
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%u: %s",
                 seed, err.message);
    for (int run = 0; run < 3; run++) {
        cr_assert_eq(session_run(session, batch, inputs, &output, &err), STATUS_OK, "seed %u: %s",
                     seed, err.message);
        const float *e = expected->data, *g = output->data;
        double greatest = 1e-3;
        for (size_t i = 0; i < shape_count(&expected->shape); i++)
            greatest = fmax(greatest, fabs((double)e[i]));
        for (size_t i = 0; i < shape_count(&expected->shape); i++, ret->count++) {
            const double d = fabs((double)e[i] - (double)g[i]) / greatest;
            cr_assert(d <= 0.1, "seed %u, run %d, element %zu: %g, not %g", seed, run, i,
                      (double)g[i], (double)e[i]);
            ret->worst = fmax(ret->worst, d);
            ret->sum += d;
        }
    }
    ret->sums += expect_no_host(session, seed);
    for (size_t n = 0; n < graph->node_count; n++)
        ret->written += graph->nodes[n]->op == OP_QLINEAR_ADD;
    tensor_unref(expected);
    tensor_unref(input);
    session_free(session);
    graph_free(reference);
    graph_free(graph);
    cr_assert_eq(fake.used(0), 0, "seed %u leaves %zu bytes on the device", seed, fake.used(0));
}

/* Both compute in integers: a number differs only where it lies between two steps. */
Test(cuda_int8, operators_on_stored_numbers)
{
    struct outcome all = {0};
    for (uint32_t seed = 1; seed <= 40; seed++)
        compare(seed, true, PRECISION_INT8, seed % 4 == 0, &all);
    cr_expect_leq(all.sum / (double)all.count, 1e-4, "mean difference %g",
                  all.sum / (double)all.count);
    cr_expect_gt(all.written, 3);
    cr_expect_eq(all.sums, 0, "%d of %d sums are no part of a product", all.sums, all.written);
    cr_expect_leq(all.worst, 0.03, "greatest difference %g", all.worst);
}

Test(cuda_int8, operators_between_quantize_linear)
{
    struct outcome all = {0};
    for (uint32_t seed = 1; seed <= 40; seed++)
        compare(seed, false, PRECISION_INT8, seed % 4 == 0, &all);
    cr_expect_leq(all.sum / (double)all.count, 2e-3, "mean difference %g",
                  all.sum / (double)all.count);
}

/* In other precisions what is between QuantizeLinear is computed in floats. */
Test(cuda_int8, floats_between_quantize_linear)
{
    struct outcome all = {0};
    for (uint32_t seed = 50; seed <= 60; seed++)
        compare(seed, false, seed % 2 ? PRECISION_FP32 : PRECISION_FP16, false, &all);
    cr_expect_leq(all.sum / (double)all.count, 5e-3, "mean difference %g",
                  all.sum / (double)all.count);
}
