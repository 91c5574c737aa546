/* Normalisation: refused training forms, old axis rules, edges of the numbers. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const float ramp[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void run_ok(struct one_node *one)
{
    cr_assert_eq(one_run(one), STATUS_OK, "%s", one->err.message);
}

static void expect_near(const struct one_node *one, size_t i, const double *expected, size_t n)
{
    cr_assert_eq(shape_count(&one->out[i]->shape), n);
    for (size_t k = 0; k < n; k++) {
        double got = tensor_number(one->out[i], k);
        bool same = isnan(expected[k]) ? isnan(got) : fabs(got - expected[k]) <= 1e-5;
        cr_expect(same, "element %zu is %.9g, expected %.9g", k, got, expected[k]);
    }
}

/* ---- BatchNormalization ---- */

static void batch_normalization(struct one_node *one, int opset, struct shape params,
                                size_t outputs)
{
    one_start(one, OP_BATCH_NORMALIZATION, opset, 5, outputs);
    one_input(one, 0, DTYPE_F32, SHAPE(1, 2, 2), ramp);
    for (size_t i = 1; i < 5; i++)
        one_input(one, i, DTYPE_F32, params, ones);
}

Test(ops_norm, training_is_refused)
{
    struct one_node one;
    batch_normalization(&one, 15, SHAPE(2), 1);
    one_int(&one, "training_mode", 1);
    tensor_unref(one.node->inputs[0]->known); /* not a constant, but what a request brings */
    one.node->inputs[0]->known = NULL;
    cr_expect_eq(graph_infer_node(one.node, &one.err), STATUS_UNSUPPORTED);
    cr_expect(strstr(one.err.message, "eval mode"), "%s", one.err.message);
    one_end(&one);
    batch_normalization(&one, 9, SHAPE(2), 5);
    one_fails(&one, STATUS_UNSUPPORTED, "eval mode");
    one_end(&one);
}

/* How exporters write weight standardisation. */
Test(ops_norm, training_form_on_constants_is_weight_standardisation)
{
    const float x[] = {1, 3, 10, 10, 5, 7, 10, 14}; /* [2, 2, 2]: means 4 and 11 */
    const float scale[] = {2, 1}, shift[] = {0, 1}, old[] = {8, 8};
    const float variance[] = {5, 3};
    struct one_node one;
    one_start(&one, OP_BATCH_NORMALIZATION, 15, 5, 3);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), scale);
    one_input(&one, 2, DTYPE_F32, SHAPE(2), shift);
    one_input(&one, 3, DTYPE_F32, SHAPE(2), old);
    one_input(&one, 4, DTYPE_F32, SHAPE(2), old);
    one_int(&one, "training_mode", 1);
    one_float(&one, "epsilon", 0);
    one_float(&one, "momentum", 0.5f);
    run_ok(&one);
    const double means[] = {4, 11};
    for (size_t i = 0; i < 8; i++) {
        size_t c = i / 2 % 2;
        double expected = (x[i] - means[c]) / sqrt(variance[c]) * scale[c] + shift[c];
        cr_expect_float_eq(tensor_number(one.out[0], i), expected, 1e-5, "element %zu", i);
    }
    one_equals(&one, 1, DTYPE_F32, SHAPE(2), (const float[]){6, 9.5f});
    one_equals(&one, 2, DTYPE_F32, SHAPE(2), (const float[]){6.5f, 5.5f});
    one_end(&one);
}

Test(ops_norm, statistics_are_of_channels)
{
    struct one_node one;
    batch_normalization(&one, 9, SHAPE(2, 2), 1);
    one_fails(&one, STATUS_SHAPE, "expected [2]");
    one_end(&one);
}

/* ---- Softmax ---- */

static void softmax(struct one_node *one, enum op op, int opset, struct shape shape,
                    const float *data)
{
    one_start(one, op, opset, 1, 1);
    one_input(one, 0, DTYPE_F32, shape, data);
}

Test(ops_norm, softmax_of_numbers_at_the_edge)
{
    const float data[] = {1e38f, 1e38f, -1e38f, -INFINITY};
    const float hopeless[] = {-INFINITY, -INFINITY}, poisoned[] = {NAN, 1};
    struct one_node one;
    softmax(&one, OP_SOFTMAX, 13, SHAPE(4), data);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){0.5, 0.5, 0, 0}, 4);
    one_end(&one);
    softmax(&one, OP_SOFTMAX, 13, SHAPE(2), hopeless);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){NAN, NAN}, 2);
    one_end(&one);
    softmax(&one, OP_LOG_SOFTMAX, 13, SHAPE(2), poisoned);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){NAN, NAN}, 2);
    one_end(&one);
    softmax(&one, OP_SOFTMAX, 13, SHAPE(0, 3), NULL);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(0, 3), NULL);
    one_end(&one);
}

Test(ops_norm, axes_out_of_range)
{
    static const enum op ops[] = {OP_SOFTMAX, OP_LOG_SOFTMAX, OP_HARDMAX, OP_LP_NORMALIZATION};
    static const int64_t axes[] = {2, -3, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(ops) * COUNT_OF(axes); i++) {
        struct one_node one;
        softmax(&one, ops[i % COUNT_OF(ops)], 13, SHAPE(2, 2), ramp);
        one_int(&one, "axis", axes[i / COUNT_OF(ops)]);
        one_fails(&one, STATUS_SHAPE, "out of range");
        one_end(&one);
    }
}

/* ---- the others ---- */

Test(ops_norm, layer_normalization_spreads_its_scale)
{
    /* x [2, 2] normalised over the last axis is ±1; the scale differs by row */
    const float x[] = {0, 2, 10, 12}, scale[] = {1, 10};
    struct one_node one;
    one_start(&one, OP_LAYER_NORMALIZATION, 17, 2, 3);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 1), scale);
    one_float(&one, "epsilon", 0);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){-1, 1, -10, 10}, 4);
    expect_near(&one, 1, (const double[]){1, 11}, 2);
    expect_near(&one, 2, (const double[]){1, 1}, 2);
    one_end(&one);
    one_start(&one, OP_LAYER_NORMALIZATION, 17, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(3, 2, 2), ramp);
    one_fails(&one, STATUS_SHAPE, "does not broadcast");
    one_end(&one);
}

Test(ops_norm, group_normalization_scales_by_channel)
{
    const float x[] = {0, 2, 0, 2};
    struct one_node one;
    one_start(&one, OP_GROUP_NORMALIZATION, 21, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 4, 1), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(4), ramp);
    one_input(&one, 2, DTYPE_F32, SHAPE(4), ones);
    one_int(&one, "num_groups", 2);
    one_float(&one, "epsilon", 0);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){1, 2, -1, 4}, 4);
    one_end(&one);
    one_start(&one, OP_GROUP_NORMALIZATION, 21, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 4, 1), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(4), ramp);
    one_input(&one, 2, DTYPE_F32, SHAPE(4), ones);
    one_int(&one, "num_groups", 3);
    one_fails(&one, STATUS_SHAPE, "divisor");
    one_end(&one);
}

Test(ops_norm, lrn_over_more_channels_than_there_are)
{
    const float x[] = {1, 2};
    struct one_node one;
    one_start(&one, OP_LRN, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 2), x);
    one_int(&one, "size", INT64_MAX);
    one_float(&one, "alpha", 0);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){1, 2}, 2);
    one_end(&one);
    one_start(&one, OP_LRN, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 2), x);
    one_fails(&one, STATUS_MODEL, "size is 0");
    one_end(&one);
}

Test(ops_norm, lp_normalization_of_zeros_is_zero)
{
    const float x[] = {0, 0, -3, 4};
    struct one_node one;
    one_start(&one, OP_LP_NORMALIZATION, 22, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), x);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){0, 0, -0.6, 0.8}, 4);
    one_end(&one);
}

Test(ops_norm, half_precision_accumulates_in_more)
{
    /* 2049 ones: a float16 sum would stop at 2048 */
    enum { COUNT = 2049 };
    static uint16_t x[COUNT], scale[COUNT];
    struct one_node one;
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = float_to_half(i ? 1 : 2050);
        scale[i] = float_to_half(1);
    }
    one_start(&one, OP_LAYER_NORMALIZATION, 17, 2, 2);
    one_input(&one, 0, DTYPE_F16, SHAPE(1, COUNT), x);
    one_input(&one, 1, DTYPE_F16, SHAPE(COUNT), scale);
    run_ok(&one);
    expect_near(&one, 1, (const double[]){2}, 1);
    one_end(&one);
}

Test(ops_norm, scale_shift_and_silu_of_the_passes)
{
    const float x[] = {1, 2, 3, 4}, scale[] = {2, 10}, shift[] = {0, 1};
    struct one_node one;
    one_start(&one, OP_SCALE_SHIFT, 1, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), scale);
    one_input(&one, 2, DTYPE_F32, SHAPE(2), shift);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){2, 21, 6, 41}, 4);
    one_end(&one);
    one_start(&one, OP_SILU, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    run_ok(&one);
    expect_near(&one, 0, (const double[]){0.731058579, 1.76159416}, 2);
    one_end(&one);
}
