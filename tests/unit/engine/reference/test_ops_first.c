/* Operators as their first opsets have them, and the experimental ones of opset 1 to 9 that old
 * exporters wrote. Expected numbers of ImageScaler, Crop and Affine are ONNX Runtime 1.32's. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/base/size.h"
#include "tests/unit/engine/reference/one_node.h"

static const float ramp[20] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                               10, 11, 12, 13, 14, 15, 16, 17, 18, 19};

static void run_ok(struct one_node *one)
{
    cr_assert_eq(one_run(one), STATUS_OK, "%s", one->err.message);
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

Test(ops_first, image_scaler_adds_a_bias_to_each_channel)
{
    static const float bias[] = {10, -1};
    static const float scaled[] = {10, 12, 14, 16, 18, 20, 11, 13, 15, 17, 19, 21};
    static const float plain[] = {10, 11, 12, 13, 14, 15, 5, 6, 7, 8, 9, 10};
    for (int with = 0; with < 2; with++) {
        struct one_node one;
        one_start(&one, OP_IMAGE_SCALER, 7, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), ramp);
        one_floats(&one, "bias", bias, 2);
        if (with)
            one_float(&one, "scale", 2);
        run_ok(&one);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), with ? scaled : plain);
        one_end(&one);
    }
}

Test(ops_first, image_scaler_refuses_another_number_of_channels)
{
    static const float bias[] = {1};
    struct one_node one;
    one_start(&one, OP_IMAGE_SCALER, 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), ramp);
    one_floats(&one, "bias", bias, 1);
    one_fails(&one, STATUS_SHAPE, "bias has 1 numbers, expected 2");
    one_end(&one);
    one_start(&one, OP_IMAGE_SCALER, 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 2, 2, 3), ramp);
    one_fails(&one, STATUS_MODEL, "bias");
    one_end(&one);
}

Test(ops_first, crop_cuts_borders_or_keeps_an_extent)
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
        one_start(&one, OP_CROP, 7, 1, 1);
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

Test(ops_first, crop_refuses_what_does_not_fit)
{
    static const struct {
        int64_t border[4], scale[2];
        size_t borders, scales;
        const char *words;
    } cases[] = {
        {{3, 0, 3, 0}, {0}, 4, 0, "cannot be cropped"},
        {{0, 0, 0, 0}, {9, 3}, 4, 2, "cannot be cropped"},
        {{-1, 0, 0, 0}, {0}, 4, 0, "cannot be cropped"},
        {{0, 0, INT64_MIN, 0}, {0}, 4, 0, "cannot be cropped"},
        {{1, 1, 0, 0}, {INT64_MAX, INT64_MAX}, 4, 2, "cannot be cropped"},
        {{0, 0, 0, 0}, {0}, 2, 0, "border has 2 numbers"},
        {{0, 0, 0, 0}, {2}, 4, 1, "scale 1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, OP_CROP, 7, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 5), ramp);
        one_ints(&one, "border", cases[i].border, cases[i].borders);
        if (cases[i].scales)
            one_ints(&one, "scale", cases[i].scale, cases[i].scales);
        one_fails(&one, STATUS_SHAPE, cases[i].words);
        one_end(&one);
    }
}

Test(ops_first, affine)
{
    static const float expected[] = {-1, 1, 3};
    struct one_node one;
    one_start(&one, OP_AFFINE, 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_float(&one, "alpha", 2);
    one_float(&one, "beta", -1);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3), expected);
    one_end(&one);
    one_start(&one, OP_AFFINE, 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_end(&one);
}

/* ---- first opsets ---- */

Test(ops_first, upsample_1_takes_a_scale_for_each_axis_of_the_image)
{
    static const float x[] = {1, 2, 3, 4}, scales[] = {1, 1, 2, 3};
    static const float expected[] = {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2,
                                     3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4};
    struct one_node one, other;
    for (int linear = 0; linear < 2; linear++) {
        one_start(&one, OP_UPSAMPLE, 1, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), x);
        one_float(&one, "height_scale", 2);
        one_float(&one, "width_scale", 3);
        one_string(&one, "mode", linear ? "bilinear" : "nearest");
        run_ok(&one);
        one_start(&other, OP_UPSAMPLE, 7, 1, 1);
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
    one_start(&one, OP_UPSAMPLE, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), x);
    one_float(&one, "height_scale", 2);
    one_fails(&one, STATUS_SHAPE, "a scale is 0");
    one_end(&one);
    one_start(&one, OP_UPSAMPLE, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), x);
    one_float(&one, "height_scale", 2);
    one_float(&one, "width_scale", 2);
    one_fails(&one, STATUS_SHAPE, "scales has 4 numbers, expected 2");
    one_end(&one);
}

Test(ops_first, selu_1_has_rounded_defaults)
{
    static const float x[] = {-1, 0, 2};
    const double expected[] = {1.0507 * 1.6732 * expm1(-1), 0, 2 * 1.0507};
    struct one_node one;
    one_start(&one, OP_SELU, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    run_ok(&one);
    for (size_t i = 0; i < 3; i++)
        cr_expect(fabs(tensor_number(one.out[0], i) - expected[i]) <= 3e-7);
    one_end(&one);
}

Test(ops_first, cast_1_names_its_type)
{
    static const float x[] = {1.75f, -2.25f};
    static const int32_t expected[] = {1, -2};
    struct one_node one;
    one_start(&one, OP_CAST, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_string(&one, "to", "INT32");
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I32, SHAPE(2), expected);
    one_end(&one);
    one_start(&one, OP_CAST, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_string(&one, "to", "STRING");
    one_fails(&one, STATUS_UNSUPPORTED, "a cast to 'STRING'");
    one_end(&one);
}

static void tile(struct one_node *one, float tiles, float axis)
{
    one_start(one, OP_TILE, 1, 3, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_input(one, 1, DTYPE_F32, SHAPE_SCALAR, &tiles);
    one_input(one, 2, DTYPE_F32, SHAPE(1), &axis);
}

Test(ops_first, tile_1_repeats_along_one_axis)
{
    static const float columns[] = {0, 1, 0, 1, 2, 3, 2, 3}, rows[] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const float bad[][2] = {{2, 2}, {-1, 0}, {NAN, 0}, {2, NAN}, {1e30f, 0}, {0x1p61f, 0}};
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
        cr_expect(one_run(&one) != STATUS_OK, "case %zu", i);
        one_end(&one);
    }
}

Test(ops_first, pad_1_and_split_1)
{
    static const int64_t paddings[] = {0, 1, 1, 0}, split[] = {1, 2};
    static const float padded[] = {9, 0, 1, 9, 2, 3, 9, 9, 9};
    struct one_node one;
    one_start(&one, OP_PAD, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
    one_ints(&one, "paddings", paddings, 4);
    one_float(&one, "value", 9);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3, 3), padded);
    one_end(&one);
    one_start(&one, OP_SPLIT, 1, 1, 2);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), ramp);
    one_ints(&one, "split", split, 2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1), ramp);
    one_equals(&one, 1, DTYPE_F32, SHAPE(2), ramp + 1);
    one_end(&one);
}

Test(ops_first, lp_pools_of_any_norm)
{
    static const float x[] = {3, -4, 1};
    static const int64_t kernel[] = {2};
    const double windows[] = {pow(pow(3, 1.5) + 8, 1 / 1.5), pow(8 + 1, 1 / 1.5)};
    const double all[] = {pow(pow(3, 1.5) + 8 + 1, 1 / 1.5)};
    struct one_node one;
    one_start(&one, OP_LP_POOL, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), x);
    one_ints(&one, "kernel_shape", kernel, 1);
    one_float(&one, "p", 1.5f);
    run_ok(&one);
    expect_near(&one, windows, 2);
    one_end(&one);
    one_start(&one, OP_GLOBAL_LP_POOL, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), x);
    one_float(&one, "p", 1.5f);
    run_ok(&one);
    expect_near(&one, all, 1);
    one_end(&one);
    static const float bad[] = {0.5f, NAN, INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        one_start(&one, OP_GLOBAL_LP_POOL, 1, 1, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 3), x);
        one_float(&one, "p", bad[i]);
        one_fails(&one, STATUS_MODEL, "expected at least 1");
        one_end(&one);
    }
}
