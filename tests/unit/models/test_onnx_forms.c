/* Spellings of older opsets and of com.microsoft, which the importer rewrites. Expected numbers of
 * ImageScaler, Crop and Affine are ONNX Runtime 1.32's. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/passes/optimize.h"
#include "models/onnx/onnx_forms.h"
#include "tests/unit/engine/op/one_node.h"
#include "tests/unit/models/failing_memory.h"

static const float ramp[20] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                               10, 11, 12, 13, 14, 15, 16, 17, 18, 19};

static const struct onnx_form *form; /* of the node that is tested */

static void start_of(struct one_node *one, const char *domain, const char *name, int opset,
                     size_t inputs, size_t outputs)
{
    form = onnx_form_find(domain, name, opset);
    cr_assert_not_null(form, "%s", name);
    one_start(one, form->spec.op, opset, inputs, outputs);
}

static void start(struct one_node *one, const char *name, int opset, size_t inputs, size_t outputs)
{
    start_of(one, "", name, opset, inputs, outputs);
}

static enum status run(struct one_node *one)
{
    struct graph *graph = one->graph;
    struct value *outputs[ONE_MAX];
    size_t count = 0;
    for (size_t i = 0; i < one->node->output_count; i++)
        if (one->node->outputs[i])
            outputs[count++] = one->node->outputs[i];
    graph->outputs = outputs;
    graph->output_count = count;
    TRY(onnx_form_rewrite(form, graph, one->node, &one->err));
    TRY(graph_sort(graph, &one->err));
    return interpret(graph, NULL, one->out, &one->budget, NULL, &one->err);
}

/* Each allocation of the rewrite fails in turn: none is overlooked. */
static void rewrite_without_memory(const struct one_node *one)
{
    bool failed = true;
    for (long n = 1; failed; n++) {
        struct error err = {0};
        struct graph *copy;
        cr_assert_eq(graph_clone(one->graph, &copy, &err), STATUS_OK);
        atomic_store(&has_failed, false);
        atomic_store(&left, n);
        const enum status status = onnx_form_rewrite(form, copy, copy->nodes[0], &err);
        atomic_store(&left, LONG_MAX);
        failed = atomic_load(&has_failed);
        cr_expect_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK, "allocation %ld: %s", n,
                     err.message);
        graph_free(copy);
    }
}

static void run_ok(struct one_node *one)
{
    rewrite_without_memory(one);
    cr_assert_eq(run(one), STATUS_OK, "%s", one->err.message);
}

static void fails(struct one_node *one, enum status status, const char *words)
{
    cr_expect_eq(run(one), status, "%s", one->err.message);
    cr_expect(strstr(one->err.message, words), "%s", one->err.message);
}

static void expect_near(const struct one_node *one, const double *expected, size_t n)
{
    cr_assert_eq(shape_count(&one->out[0]->shape), n);
    for (size_t i = 0; i < n; i++) {
        const double got = tensor_number(one->out[0], i);
        cr_expect(fabs(got - expected[i]) <= 1e-5, "element %zu is %.9g, expected %.9g", i, got,
                  expected[i]);
    }
}

/* ---- experimental ---- */

Test(onnx_forms, image_scaler_adds_a_bias_to_each_channel)
{
    static const float bias[] = {10, -1};
    static const float scaled[] = {10, 12, 14, 16, 18, 20, 11, 13, 15, 17, 19, 21};
    static const float plain[] = {10, 11, 12, 13, 14, 15, 5, 6, 7, 8, 9, 10};
    for (int with = 0; with < 2; with++) {
        struct one_node one;
        start(&one, "ImageScaler", 7, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), ramp);
        one_floats(&one, "bias", bias, 2);
        if (with)
            one_float(&one, "scale", 2);
        run_ok(&one);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), with ? scaled : plain);
        one_end(&one);
    }
}

Test(onnx_forms, image_scaler_needs_a_bias)
{
    struct one_node one;
    start(&one, "ImageScaler", 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), ramp);
    fails(&one, STATUS_MODEL, "'bias' is missing");
    one_end(&one);
}

Test(onnx_forms, crop_cuts_borders_or_keeps_an_extent)
{
    static const struct {
        int64_t border[4], scale[2], out[2];
        float expected[6];
    } cases[] = {
        {{1, 0, 2, 1}, {0, 0}, {3, 2}, {1, 2, 6, 7, 11, 12}},
        {{1, 2, 0, 0}, {2, 3}, {2, 3}, {11, 12, 13, 16, 17, 18}},
        {{0, 0, 0, 0}, {2, 3}, {2, 3}, {0, 1, 2, 5, 6, 7}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        start(&one, "Crop", 7, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 5), ramp);
        one_ints(&one, "border", cases[i].border, 4);
        if (cases[i].scale[0])
            one_ints(&one, "scale", cases[i].scale, 2);
        run_ok(&one);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, cases[i].out[0], cases[i].out[1]),
                   cases[i].expected);
        one_end(&one);
    }
}

Test(onnx_forms, crop_refuses_what_is_no_border)
{
    static const struct {
        int64_t border[4], scale[2];
        size_t borders, scales;
    } cases[] = {
        {{-1, 0, 0, 0}, {0}, 4, 0},
        {{0, 0, INT64_MIN, 0}, {0}, 4, 0},
        {{1, 1, 0, 0}, {INT64_MAX, 1}, 4, 2},
        {{0, 0, 0, 0}, {0}, 2, 0},
        {{0, 0, 0, 0}, {2}, 4, 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        start(&one, "Crop", 7, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 5), ramp);
        one_ints(&one, "border", cases[i].border, cases[i].borders);
        if (cases[i].scales)
            one_ints(&one, "scale", cases[i].scale, cases[i].scales);
        fails(&one, STATUS_MODEL, "cannot crop");
        one_end(&one);
    }
}

Test(onnx_forms, affine)
{
    static const float expected[] = {-1, 1, 3};
    struct one_node one;
    start(&one, "Affine", 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_float(&one, "alpha", 2);
    one_float(&one, "beta", -1);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3), expected);
    one_end(&one);
    start(&one, "Affine", 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_end(&one);
}

/* ---- first opsets ---- */

Test(onnx_forms, upsample_1_takes_a_scale_for_each_axis_of_the_image)
{
    static const float x[] = {1, 2, 3, 4}, scales[] = {1, 1, 2, 3};
    static const float expected[] = {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2,
                                     3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4};
    struct one_node one, other;
    for (int linear = 0; linear < 2; linear++) {
        start(&one, "Upsample", 1, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), x);
        one_float(&one, "height_scale", 2);
        one_float(&one, "width_scale", 3);
        one_string(&one, "mode", linear ? "bilinear" : "nearest");
        run_ok(&one);
        start(&other, "Upsample", 7, 1, 1);
        one_input(&other, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), x);
        one_floats(&other, "scales", scales, 4);
        one_string(&other, "mode", linear ? "linear" : "nearest");
        run_ok(&other);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 6), other.out[0]->data);
        if (!linear)
            one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 6), expected);
        one_end(&one);
        one_end(&other);
    }
    start(&one, "Upsample", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), x);
    one_float(&one, "height_scale", 2);
    fails(&one, STATUS_SHAPE, "a scale is 0");
    one_end(&one);
    start(&one, "Upsample", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), x);
    one_float(&one, "height_scale", 2);
    one_float(&one, "width_scale", 2);
    fails(&one, STATUS_SHAPE, "scales has 4 numbers, expected 2");
    one_end(&one);
}

Test(onnx_forms, resize_10_takes_the_pixel_above_on_axes_that_shrink)
{
    static const float scales[] = {1, 1, 0.6f, 2};
    static const float expected[] = {0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9};
    struct one_node one;
    start(&one, "Resize", 10, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 5, 2), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(4), scales);
    one_string(&one, "mode", "nearest");
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 3, 4), expected);
    one_end(&one);
}

Test(onnx_forms, selu_1_has_rounded_defaults)
{
    static const float x[] = {-1, 0, 2};
    const double expected[] = {1.0507 * 1.6732 * expm1(-1), 0, 2 * 1.0507};
    struct one_node one;
    start(&one, "Selu", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    run_ok(&one);
    for (size_t i = 0; i < 3; i++)
        cr_expect(fabs(tensor_number(one.out[0], i) - expected[i]) <= 3e-7);
    one_end(&one);
}

Test(onnx_forms, cast_1_names_its_type)
{
    static const float x[] = {1.75f, -2.25f};
    static const int32_t expected[] = {1, -2};
    struct one_node one;
    start(&one, "Cast", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_string(&one, "to", "INT32");
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I32, SHAPE(2), expected);
    one_end(&one);
    start(&one, "Cast", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_string(&one, "to", "STRING");
    fails(&one, STATUS_UNSUPPORTED, "a cast to 'STRING'");
    one_end(&one);
}

static void tile(struct one_node *one, float tiles, float axis)
{
    start(one, "Tile", 1, 3, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_input(one, 1, DTYPE_F32, SHAPE_SCALAR, &tiles);
    one_input(one, 2, DTYPE_F32, SHAPE(1), &axis);
}

Test(onnx_forms, tile_1_repeats_along_one_axis)
{
    static const float columns[] = {0, 1, 0, 1, 2, 3, 2, 3}, rows[] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const float bad[][2] = {{2, 2}, {-1, 0}, {1e30f, 0}, {0x1p61f, 0}};
    struct one_node one;
    tile(&one, 2, 1);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 4), columns);
    one_end(&one);
    tile(&one, 2, -2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(4, 2), rows);
    one_end(&one);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        tile(&one, bad[i][0], bad[i][1]);
        cr_expect(run(&one) != STATUS_OK, "case %zu", i);
        one_end(&one);
    }
}

Test(onnx_forms, pad_1_and_split_1)
{
    static const int64_t paddings[] = {0, 1, 1, 0}, split[] = {1, 2};
    static const float padded[] = {9, 0, 1, 9, 2, 3, 9, 9, 9};
    struct one_node one;
    start(&one, "Pad", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_ints(&one, "paddings", paddings, 4);
    one_float(&one, "value", 9);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3, 3), padded);
    one_end(&one);
    start(&one, "Split", 1, 1, 2);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_ints(&one, "split", split, 2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1), ramp);
    one_equals(&one, 1, DTYPE_F32, SHAPE(2), ramp + 1);
    one_end(&one);
}

Test(onnx_forms, lp_pools_of_any_norm)
{
    static const float x[] = {3, -4, 1};
    static const int64_t kernel[] = {2};
    const double windows[] = {pow(pow(3, 1.5) + 8, 1 / 1.5), pow(8 + 1, 1 / 1.5)};
    const double all[] = {pow(pow(3, 1.5) + 8 + 1, 1 / 1.5)};
    struct one_node one;
    start(&one, "LpPool", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), x);
    one_ints(&one, "kernel_shape", kernel, 1);
    one_float(&one, "p", 1.5f);
    run_ok(&one);
    expect_near(&one, windows, 2);
    one_end(&one);
    start(&one, "GlobalLpPool", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), x);
    one_float(&one, "p", 1.5f);
    run_ok(&one);
    expect_near(&one, all, 1);
    one_end(&one);
    static const float bad[] = {0.5f, NAN, INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        start(&one, "GlobalLpPool", 1, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), x);
        one_float(&one, "p", bad[i]);
        fails(&one, STATUS_MODEL, "expected at least 1");
        one_end(&one);
    }
}

/* ---- broadcasting and axes ---- */

Test(onnx_forms, add_6_places_its_operand_at_an_axis)
{
    static const float b[] = {10, 20},
                       expected[] = {10, 11, 12, 13, 14, 15, 26, 27, 28, 29, 30, 31};
    for (int64_t axis = -2; axis <= 1; axis += 3) {
        struct one_node one;
        start(&one, "Add", 6, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 6), ramp);
        one_input(&one, 1, DTYPE_F32, SHAPE(2), b);
        one_int(&one, "broadcast", 1);
        one_int(&one, "axis", axis);
        run_ok(&one);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 2, 6), expected);
        one_end(&one);
    }
}

Test(onnx_forms, prelu_6_has_a_slope_for_each_channel)
{
    static const float x[] = {-1, -2, -3, 4}, slopes[] = {2, 10}, expected[] = {-2, -4, -30, 4};
    struct one_node one;
    start(&one, "PRelu", 6, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), slopes);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 2, 2), expected);
    one_end(&one);
}

Test(onnx_forms, concat_3_joins_along_axis_1)
{
    static const float expected[] = {0, 0, 1, 1, 2, 3};
    struct one_node one;
    start(&one, "Concat", 3, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 1), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), ramp);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 3), expected);
    one_end(&one);
}

Test(onnx_forms, softmax_12_takes_all_from_its_axis_on)
{
    static const float x[8] = {0};
    static const float expected[8] = {.25f, .25f, .25f, .25f, .25f, .25f, .25f, .25f};
    struct one_node one;
    start(&one, "Softmax", 12, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2, 2), x);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 2, 2), expected);
    one_end(&one);
}

/* Where one dimension from the axis on is not 1, what is left is one Softmax along it. */
Test(onnx_forms, softmax_12_of_rows_is_one_softmax)
{
    struct error err;
    struct one_node one;
    start(&one, "Softmax", 12, 1, 1);
    struct graph *graph = one.graph;
    struct value *ends[2] = {graph_add_value(graph, "x", DTYPE_F32, NULL), one.node->outputs[0]};
    one.node->inputs[0] = ends[0];
    graph->inputs = &ends[0];
    graph->outputs = &ends[1];
    graph->input_count = graph->output_count = 1;
    ends[0]->shape = SHAPE(DIM_UNKNOWN, DIM_UNKNOWN, DIM_UNKNOWN, DIM_UNKNOWN);
    cr_assert_eq(onnx_form_rewrite(form, graph, one.node, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(graph_sort(graph, &err), STATUS_OK, "%s", err.message);
    cr_assert_gt(graph->node_count, 1u);
    ends[0]->shape = SHAPE(2, 1, 5, 1);
    cr_assert_eq(optimize_specialise(graph, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(graph->node_count, 1u);
    cr_expect_eq(graph->nodes[0]->op, OP_SOFTMAX);
    cr_expect_eq(node_int(graph->nodes[0], "axis", -1), 2);
    one_end(&one);
}

/* ---- com.microsoft ---- */

Test(onnx_forms, fused_conv_adds_and_activates)
{
    static const float weights[] = {1, -1}, bias[] = {1, 0}, added[] = {0, 0, -5, 1, 1, 1};
    static const float expected[] = {1, 2, 0, 1, 0, 0};
    struct one_node one;
    start_of(&one, "com.microsoft", "FusedConv", 1, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 1, 1), weights);
    one_input(&one, 2, DTYPE_F32, SHAPE(2), bias);
    one_input(&one, 3, DTYPE_F32, SHAPE(1, 2, 3), added);
    one_string(&one, "activation", "Relu");
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 2, 3), expected);
    one_end(&one);
    start_of(&one, "com.microsoft", "FusedConv", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 1, 1), weights);
    one_string(&one, "activation", "LeakyRelu");
    fails(&one, STATUS_MODEL, "needs 1 activation_params");
    one_end(&one);
    start_of(&one, "com.microsoft", "FusedConv", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 1, 1), weights);
    one_string(&one, "activation", "Cosine");
    fails(&one, STATUS_UNSUPPORTED, "does not support the activation 'Cosine'");
    one_end(&one);
}

Test(onnx_forms, fused_matmul_transposes_and_scales)
{
    static const float expected[] = {2, 6, 6, 26};
    struct one_node one;
    start_of(&one, "com.microsoft", "FusedMatMul", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), ramp);
    one_int(&one, "transB", 1);
    one_float(&one, "alpha", 2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 2), expected);
    one_end(&one);
}

Test(onnx_forms, fused_gemm_activates)
{
    static const float b[] = {1, 0, 0, -1}, expected[] = {0, 0, 2, 0};
    struct one_node one;
    start_of(&one, "com.microsoft", "FusedGemm", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), b);
    one_string(&one, "activation", "Relu");
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 2), expected);
    one_end(&one);
}

Test(onnx_forms, fused_gemm_needs_the_parameters_of_its_activation)
{
    struct one_node one;
    start_of(&one, "com.microsoft", "FusedGemm", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), ramp);
    one_string(&one, "activation", "LeakyRelu");
    fails(&one, STATUS_MODEL, "needs 1 activation_params");
    one_end(&one);
}

Test(onnx_forms, gelus)
{
    static const float x[] = {-1, 0.5f, 2}, bias[] = {1, 1, 1};
    static const double quick[] = {-0.15420424, 0.35038633, 1.93565865};
    static const double biased[] = {0, 1.39978919, 2.99595031};
    static const double fast[] = {0, 1.39957249, 2.99636267};
    struct one_node one;
    start_of(&one, "com.microsoft", "QuickGelu", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    run_ok(&one);
    expect_near(&one, quick, 3);
    one_end(&one);
    start_of(&one, "com.microsoft", "BiasGelu", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(3), bias);
    run_ok(&one);
    expect_near(&one, biased, 3);
    one_end(&one);
    start_of(&one, "com.microsoft", "FastGelu", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(3), bias);
    run_ok(&one);
    expect_near(&one, fast, 3);
    one_end(&one);
}

Test(onnx_forms, skip_layer_normalization_normalises_a_sum)
{
    static const float skip[] = {1, 1, 1, 1}, scale[] = {1, 1, 2, 2}, shift[] = {0, 0, 0, 1};
    static const float sum[] = {1, 2, 3, 4};
    static const double expected[] = {-1.34164079, -0.4472136, 0.8944272, 3.68328157};
    struct one_node one;
    start_of(&one, "com.microsoft", "SkipLayerNormalization", 1, 4, 4);
    one.node->outputs[1] = one.node->outputs[2] = NULL;
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 4), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 4), skip);
    one_input(&one, 2, DTYPE_F32, SHAPE(4), scale);
    one_input(&one, 3, DTYPE_F32, SHAPE(4), shift);
    run_ok(&one);
    expect_near(&one, expected, 4);
    one_equals(&one, 1, DTYPE_F32, SHAPE(1, 4), sum);
    one_end(&one);
}

/* ---- normalisation ---- */

static const float quarters[8] = {1, 2, 4, 8, 1, 1, 1, 1};

static void batch_norm(struct one_node *one, int opset, struct shape params, size_t outputs)
{
    start(one, "BatchNormalization", opset, 5, outputs);
    one_input(one, 0, DTYPE_F32, SHAPE(1, 2, 2), ramp);
    for (size_t i = 1; i < 5; i++)
        one_input(one, i, DTYPE_F32, params, quarters);
    one_float(one, "epsilon", 0);
}

Test(onnx_forms, batch_norm_has_statistics_of_every_position_before_opset_9)
{
    struct one_node one;
    double expected[4];
    batch_norm(&one, 7, SHAPE(2, 2), 1);
    one_int(&one, "spatial", 0);
    run_ok(&one);
    for (size_t i = 0; i < 4; i++) /* scale, bias, mean and variance are q */
        expected[i] =
            (ramp[i] - quarters[i]) / sqrt((double)quarters[i]) * quarters[i] + quarters[i];
    expect_near(&one, expected, 4);
    one_end(&one);
    batch_norm(&one, 7, SHAPE(3, 2), 1);
    one_int(&one, "spatial", 0);
    fails(&one, STATUS_SHAPE, "cannot be broadcast");
    one_end(&one);
}

Test(onnx_forms, batch_norm_is_of_channels_by_default)
{
    struct one_node one;
    batch_norm(&one, 7, SHAPE(2), 1);
    run_ok(&one);
    expect_near(&one, (const double[]){0, 1, 2, 2 + sqrt(2)}, 4);
    one_end(&one);
}

Test(onnx_forms, batch_norm_in_training_is_refused)
{
    struct one_node one;
    batch_norm(&one, 6, SHAPE(2), 1);
    fails(&one, STATUS_UNSUPPORTED, "eval mode");
    one_end(&one);
    batch_norm(&one, 7, SHAPE(2), 5);
    fails(&one, STATUS_UNSUPPORTED, "eval mode");
    one_end(&one);
}

Test(onnx_forms, group_norm_scales_groups_before_opset_21)
{
    const float x[] = {0, 2, 0, 2};
    struct one_node one;
    start(&one, "GroupNormalization", 18, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 4, 1), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), ramp);
    one_input(&one, 2, DTYPE_F32, SHAPE(2), quarters);
    one_int(&one, "num_groups", 2);
    one_float(&one, "epsilon", 0);
    run_ok(&one);
    expect_near(&one, (const double[]){1, 1, 1, 3}, 4);
    one_end(&one);
    for (int64_t groups = 0; groups < 4; groups += 3) {
        start(&one, "GroupNormalization", 18, 3, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 4, 1), x);
        one_input(&one, 1, DTYPE_F32, SHAPE(3), ramp);
        one_input(&one, 2, DTYPE_F32, SHAPE(3), ramp);
        one_int(&one, "num_groups", groups);
        fails(&one, STATUS_SHAPE, "divisor");
        one_end(&one);
    }
}

Test(onnx_forms, mean_variance_normalization_is_over_all_but_the_channels)
{
    const int64_t axes[] = {1, -1};
    const float x[] = {0, 2, 4, 4};
    for (size_t given = 0; given < 2; given++) {
        struct one_node one;
        start(&one, "MeanVarianceNormalization", 13, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 1, 2), x);
        if (given)
            one_ints(&one, "axes", axes, 2);
        run_ok(&one);
        const double all = 2.5, d = sqrt(2.75); /* of all four numbers */
        expect_near(&one,
                    given ? (const double[]){-all / d, -0.5 / d, 1.5 / d, 1.5 / d}
                          : (const double[]){-1, 1, 0, 0},
                    4);
        one_end(&one);
    }
}

Test(onnx_forms, sums_and_extremes_combine_any_number_of_operands)
{
    static const struct {
        const char *name;
        double expected[3][2]; /* of one, two and three operands */
    } cases[] = {{"Sum", {{1, 2}, {5, 6}, {8, 12}}},
                 {"Mean", {{1, 2}, {2.5, 3}, {8 / 3.0, 4}}},
                 {"Max", {{1, 2}, {4, 4}, {4, 6}}},
                 {"Min", {{1, 2}, {1, 2}, {1, 2}}}};
    const float x[] = {1, 2}, y = 4, z[] = {3, 6};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t count = 1; count <= 3; count++) {
            struct one_node one;
            start(&one, cases[i].name, 6, count, 1);
            one_input(&one, 0, DTYPE_F32, SHAPE(1, 2), x);
            if (count > 1)
                one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &y);
            if (count > 2)
                one_input(&one, 2, DTYPE_F32, SHAPE(2), z);
            run_ok(&one);
            cr_expect_eq(one.out[0]->shape.rank, 2);
            expect_near(&one, cases[i].expected[count - 1], 2);
            one_end(&one);
        }
    for (size_t left_out = 0; left_out < 2; left_out++) {
        struct one_node one;
        start(&one, "Max", 13, 3, 1);
        one_input(&one, 1 - left_out, DTYPE_F32, SHAPE(1, 2), x);
        one_input(&one, 2, DTYPE_F32, SHAPE(2), z);
        fails(&one, STATUS_MODEL, left_out ? "input 1 is left out" : "input 0 is left out");
        one_end(&one);
    }
}

Test(onnx_forms, mean_of_halves_does_not_overflow_on_the_way)
{
    const uint16_t numbers[] = {float_to_half(60000), float_to_half(60000), float_to_half(-60000)};
    const uint16_t third = float_to_half(20000);
    struct one_node one;
    start(&one, "Mean", 13, 3, 1);
    for (size_t i = 0; i < 3; i++)
        one_input(&one, i, DTYPE_F16, SHAPE_SCALAR, &numbers[i]);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F16, SHAPE_SCALAR, &third);
    one_end(&one);
}

Test(onnx_forms, compress_looks_at_the_whole_condition)
{
    const uint8_t late[] = {0, 0, 0, 1}, unset[] = {1, 0, 0, 0};
    struct one_node one;
    start(&one, "Compress", 11, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_input(&one, 1, DTYPE_BOOL, SHAPE(4), late);
    fails(&one, STATUS_INVALID, "index 3");
    one_end(&one);
    start(&one, "Compress", 11, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_input(&one, 1, DTYPE_BOOL, SHAPE(2, 2), late);
    fails(&one, STATUS_SHAPE, "squeezed");
    one_end(&one);
    start(&one, "Compress", 11, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_input(&one, 1, DTYPE_BOOL, SHAPE(4), unset);
    run_ok(&one);
    expect_near(&one, (const double[]){ramp[0]}, 1);
    one_end(&one);
}

Test(onnx_forms, qlinear_softmax_of_an_old_opset_is_over_all_following_dimensions)
{
    const uint8_t x[8] = {0}, zero = 0;
    const float one_step = 1, fine = 1.0f / 256;
    for (int64_t opset = 11; opset <= 13; opset += 2) {
        struct one_node one;
        start_of(&one, "com.microsoft", "QLinearSoftmax", 1, 5, 1);
        one_input(&one, 0, DTYPE_U8, SHAPE(1, 2, 4), x);
        one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &one_step);
        one_input(&one, 2, DTYPE_U8, SHAPE_SCALAR, &zero);
        one_input(&one, 3, DTYPE_F32, SHAPE_SCALAR, &fine);
        one_input(&one, 4, DTYPE_U8, SHAPE_SCALAR, &zero);
        one_int(&one, "axis", 1);
        one_int(&one, "opset", opset);
        run_ok(&one);
        const double each = opset < 13 ? 32 : 128;
        expect_near(&one, (const double[]){each, each, each, each, each, each, each, each}, 8);
        one_end(&one);
    }
}

Test(onnx_forms, qlinear_results_have_the_type_of_their_operand_without_a_zero_point)
{
    const int8_t x[3] = {-4, 0, 4}, zero = 0;
    const float scale = 0.5f;
    struct one_node one;
    start_of(&one, "com.microsoft", "QLinearLeakyRelu", 1, 4, 1);
    one_input(&one, 0, DTYPE_I8, SHAPE(3), x);
    one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &scale);
    one_input(&one, 2, DTYPE_I8, SHAPE_SCALAR, &zero);
    one_input(&one, 3, DTYPE_F32, SHAPE_SCALAR, &scale);
    one_float(&one, "alpha", 0.5f);
    run_ok(&one);
    cr_expect_eq(one.out[0]->dtype, DTYPE_I8);
    expect_near(&one, (const double[]){-2, 0, 4}, 3);
    one_end(&one);
    start_of(&one, "com.microsoft", "QLinearLeakyRelu", 1, 3, 1);
    one_input(&one, 0, DTYPE_I8, SHAPE(3), x);
    one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &scale);
    one_input(&one, 2, DTYPE_I8, SHAPE_SCALAR, &zero);
    fails(&one, STATUS_MODEL, "the output's scale");
    one_end(&one);
}

/* ---- refusals ---- */

Test(onnx_forms, attributes_that_are_operands_now_may_not_be_missing)
{
    static const struct {
        const char *name, *words;
        int opset;
        size_t outputs;
    } cases[] = {
        {"TopK", "attribute 'k' is missing", 1, 2},
        {"Unsqueeze", "attribute 'axes' is missing", 1, 1},
        {"Slice", "attribute 'ends' is missing", 1, 1},
        {"Pad", "attribute 'pads' is missing", 2, 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        start(&one, cases[i].name, cases[i].opset, 1, cases[i].outputs);
        one_input(&one, 0, DTYPE_F32, SHAPE(4, 5), ramp);
        fails(&one, STATUS_MODEL, cases[i].words);
        one_end(&one);
    }
}

Test(onnx_forms, reshape_1_without_a_shape_makes_a_scalar)
{
    struct one_node one;
    start(&one, "Reshape", 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1), ramp + 3);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE_SCALAR, ramp + 3);
    one_end(&one);
}

Test(onnx_forms, top_k_1_takes_k_as_an_attribute)
{
    static const float greatest[] = {4, 3, 9, 8, 14, 13, 19, 18};
    struct one_node one;
    start(&one, "TopK", 1, 1, 2);
    one_input(&one, 0, DTYPE_F32, SHAPE(4, 5), ramp);
    one_int(&one, "k", 2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(4, 2), greatest);
    one_end(&one);
}

/* com.microsoft's operators have a scale per channel, whatever the file's opset is. */
Test(onnx_forms, quantize_linear_of_microsoft_has_an_axis)
{
    static const float scales[] = {1, 2};
    static const uint8_t zeros[] = {0, 10}, expected[] = {0, 1, 11, 12};
    struct one_node one;
    start_of(&one, "com.microsoft", "QuantizeLinear", 1, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), (const float[]){0, 1, 2, 4});
    one_input(&one, 1, DTYPE_F32, SHAPE(2), scales);
    one_input(&one, 2, DTYPE_U8, SHAPE(2), zeros);
    one_int(&one, "axis", 0);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(2, 2), expected);
    one_end(&one);
}

Test(onnx_forms, qlinear_where_chooses_among_scaled_bytes)
{
    static const bool condition[] = {true, false};
    static const uint8_t x[] = {4, 4}, y[] = {9, 9}, zero = 0;
    static const float half = 0.5f, one_step = 1;
    struct one_node one;
    start_of(&one, "com.microsoft", "QLinearWhere", 1, 9, 1);
    one_input(&one, 0, DTYPE_BOOL, SHAPE(2), condition);
    one_input(&one, 1, DTYPE_U8, SHAPE(2), x);
    one_input(&one, 2, DTYPE_F32, SHAPE_SCALAR, &half);
    one_input(&one, 3, DTYPE_U8, SHAPE_SCALAR, &zero);
    one_input(&one, 4, DTYPE_U8, SHAPE(2), y);
    one_input(&one, 5, DTYPE_F32, SHAPE_SCALAR, &one_step);
    one_input(&one, 6, DTYPE_U8, SHAPE_SCALAR, &zero);
    one_input(&one, 7, DTYPE_F32, SHAPE_SCALAR, &one_step);
    one_input(&one, 8, DTYPE_U8, SHAPE_SCALAR, &zero);
    run_ok(&one);
    expect_near(&one, (const double[]){2, 9}, 2);
    one_end(&one);
}

Test(onnx_forms, what_microsofts_operators_may_not_leave_out)
{
    const uint8_t x[3] = {0};
    struct one_node one;
    start_of(&one, "com.microsoft", "QLinearSigmoid", 1, 4, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(3), x);
    one.node->inputs[1] = NULL;
    fails(&one, STATUS_MODEL, "left out");
    one_end(&one);
    start_of(&one, "com.microsoft", "FusedMatMul", 1, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), ramp);
    one_int(&one, "transBatchA", 1);
    fails(&one, STATUS_UNSUPPORTED, "transBatchA");
    one_end(&one);
    start_of(&one, "com.microsoft", "SkipLayerNormalization", 1, 3, 2);
    for (size_t i = 0; i < 3; i++)
        one_input(&one, i, DTYPE_F32, SHAPE(1, 4), ramp);
    fails(&one, STATUS_UNSUPPORTED, "mean and inv_std_var");
    one_end(&one);
}

Test(onnx_forms, skip_simplified_layer_normalization_adds_a_bias)
{
    static const float ones[] = {1, 1, 1, 1}, bias[] = {1, 0, 0, 0};
    static const double expected[] = {0.69631062, 0.69631062, 1.04446594, 1.39262125};
    struct one_node one;
    start_of(&one, "com.microsoft", "SkipSimplifiedLayerNormalization", 1, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 4), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 4), ones);
    one_input(&one, 2, DTYPE_F32, SHAPE(4), ones);
    one_input(&one, 3, DTYPE_F32, SHAPE(4), bias);
    run_ok(&one); /* of 2, 2, 3, 4: divided by the root of 33 / 4 */
    expect_near(&one, expected, 4);
    one_end(&one);
}
