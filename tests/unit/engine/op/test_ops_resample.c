/* Resize, GridSample, RoiAlign, NonMaxSuppression: numbers that come from data, and sizes that come
 * from files. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static const float ramp[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void run_ok(struct one_node *one)
{
    cr_assert_eq(one_run(one), STATUS_OK, "%s", one->err.message);
}

/* ---- Resize ---- */

static void resize(struct one_node *one, const float *scales, size_t count)
{
    one_start(one, OP_RESIZE, 13, 3, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    one_input(one, 2, DTYPE_F32, SHAPE((int64_t)count), scales);
}

Test(ops_resample, scales_that_are_none)
{
    static const float bad[][4] = {
        {1, 1, 0, 2}, {1, 1, -1, 2}, {1, 1, NAN, 2}, {1, 1, INFINITY, 2}, {1, 1, 1e30f, 2}};
    static const char *const words[] = {"above 0", "above 0", "above 0", "above 0", "too large"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct one_node one;
        resize(&one, bad[i], 4);
        one_fails(&one, STATUS_SHAPE, words[i]);
        one_end(&one);
    }
    struct one_node one;
    resize(&one, bad[0], 3);
    one_fails(&one, STATUS_SHAPE, "3 numbers, expected 4");
    one_end(&one);
    one_start(&one, OP_RESIZE, 13, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    one_fails(&one, STATUS_MODEL, "neither scales nor sizes");
    one_end(&one);
    one_start(&one, OP_RESIZE, 13, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    one_input(&one, 2, DTYPE_F32, SHAPE(4), ramp);
    ONE_I64(&one, 3, 1, 1, 2, 2);
    one_fails(&one, STATUS_MODEL, "both scales and sizes");
    one_end(&one);
}

Test(ops_resample, giant_resizes_are_refused)
{
    struct one_node one;
    const float scales[] = {1, 1, 30000, 30000};
    resize(&one, scales, 4);
    one.budget.limit = 1 << 24;
    one_fails(&one, STATUS_NO_MEMORY, "memory limit");
    one_end(&one);
    one_start(&one, OP_RESIZE, 13, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    ONE_I64(&one, 3, 1, 1, INT64_MAX, INT64_MAX);
    one_fails(&one, STATUS_SHAPE, "too large");
    one_end(&one);
}

Test(ops_resample, sizes_not_known_leave_the_shape_open)
{
    struct one_node one;
    one_start(&one, OP_RESIZE, 13, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    struct value *sizes = graph_add_value(one.graph, "sizes", DTYPE_I64, &SHAPE(4));
    cr_assert_not_null(sizes);
    one.node->inputs[3] = sizes;
    cr_assert_eq(graph_infer_node(one.node, &one.err), STATUS_OK, "%s", one.err.message);
    cr_expect_eq(one.node->outputs[0]->dtype, DTYPE_F32);
    cr_expect_eq(one.node->outputs[0]->shape.rank, SHAPE_UNKNOWN);
    one_end(&one);
}

Test(ops_resample, nearest_ties_go_where_the_mode_says)
{
    /* scale 0.5 with half pixels: every coordinate lies halfway */
    static const struct {
        const char *mode;
        float expected[2];
    } cases[] = {{"round_prefer_floor", {0, 2}},
                 {"round_prefer_ceil", {1, 3}},
                 {"floor", {0, 2}},
                 {"ceil", {1, 3}}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        const float scale[] = {0.5f};
        one_start(&one, OP_RESIZE, 13, 3, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(4), ramp);
        one_input(&one, 2, DTYPE_F32, SHAPE(1), scale);
        one_string(&one, "nearest_mode", cases[i].mode);
        run_ok(&one);
        one_equals(&one, 0, DTYPE_F32, SHAPE(2), cases[i].expected);
        one_end(&one);
    }
}

Test(ops_resample, a_written_scale_means_the_quotient_it_says)
{
    /* 3 / 0.6 is 5, although 0.6 as float32 is a little more */
    const float scale[] = {0.6f}, expected[] = {0, 1, 3, 5, 6, 8};
    struct one_node one;
    one_start(&one, OP_RESIZE, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(10), ramp);
    one_input(&one, 2, DTYPE_F32, SHAPE(1), scale);
    one_string(&one, "nearest_mode", "floor");
    one_string(&one, "coordinate_transformation_mode", "asymmetric");
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(6), expected);
    one_end(&one);
}

/* Sources that lie exactly on, or between, two positions, where the last bit decides; expected is
 * what the specification's own evaluator (onnx.reference 1.23) gives. */
Test(ops_resample, nearest_hits_what_lies_exactly_there)
{
    static const struct {
        const char *coordinate, *nearest;
        int64_t in, out; /* out 0: by the scale */
        float scale;
        float expected[13];
    } cases[] = {
        {"half_pixel_symmetric", "floor", 5, 0, 1.5f, {0, 0, 1, 2, 2, 3, 4}},
        {"half_pixel_symmetric", "ceil", 5, 0, 1.5f, {0, 1, 2, 2, 3, 4, 4}},
        {"half_pixel_symmetric", "floor", 3, 0, 1.5f, {0, 0, 1, 2}},
        {"half_pixel_symmetric", "round_prefer_floor", 2, 0, 0.75f, {0}},
        {"tf_crop_and_resize",
         "round_prefer_floor",
         5,
         13,
         0,
         {0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3}},
        /* an extent that stays is computed, too: ONNX Runtime copies there */
        {"tf_crop_and_resize", "round_prefer_floor", 5, 5, 0, {0, 1, 2, 2, 3}},
        {"asymmetric", "floor", 3, 0, 1.25f, {0, 0, 1}},
    };
    static const float region[] = {0.1f, 0.8f};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, OP_RESIZE, 19, 4, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(cases[i].in), ramp);
        one_input(&one, 1, DTYPE_F32, SHAPE(2), region);
        if (cases[i].out)
            ONE_I64(&one, 3, cases[i].out);
        else
            one_input(&one, 2, DTYPE_F32, SHAPE(1), &cases[i].scale);
        one_string(&one, "coordinate_transformation_mode", cases[i].coordinate);
        one_string(&one, "nearest_mode", cases[i].nearest);
        run_ok(&one);
        const float *got = one.out[0]->data;
        for (size_t k = 0; k < shape_count(&one.out[0]->shape); k++)
            cr_expect_eq(got[k], cases[i].expected[k], "case %zu, element %zu: %g, not %g", i, k,
                         (double)got[k], (double)cases[i].expected[k]);
        one_end(&one);
    }
}

Test(ops_resample, integers_are_rounded_and_saturate)
{
    const uint8_t x[] = {0, 255, 0, 255}, expected[] = {0, 0, 64, 191, 255, 191, 64, 0};
    struct one_node one;
    const float scale[] = {2};
    one_start(&one, OP_RESIZE, 13, 3, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(4), x);
    one_input(&one, 2, DTYPE_F32, SHAPE(1), scale);
    one_string(&one, "mode", "cubic");
    run_ok(&one);
    const uint8_t *out = one.out[0]->data;
    cr_expect_eq(out[0], 0, "%d: a cubic undershoots below 0 and must stop there", out[0]);
    cr_expect_eq(out[7], 255, "%d", out[7]);
    one_end(&one);
    one_start(&one, OP_RESIZE, 13, 3, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(4), x);
    one_input(&one, 2, DTYPE_F32, SHAPE(1), scale);
    one_string(&one, "mode", "linear");
    run_ok(&one);
    out = one.out[0]->data;
    cr_expect_eq(out[1], 64, "%d", out[1]); /* 63.75 */
    cr_expect_eq(out[2], 191, "%d", out[2]);
    cr_expect_eq(expected[2], 64);
    one_end(&one);
}

Test(ops_resample, regions_far_outside_extrapolate)
{
    const float roi[] = {-1e9f, 1e9f}, size_one[] = {0, 1e10f};
    struct one_node one;
    one_start(&one, OP_RESIZE, 13, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(4), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), roi);
    ONE_I64(&one, 3, 3);
    one_string(&one, "mode", "cubic");
    one_string(&one, "coordinate_transformation_mode", "tf_crop_and_resize");
    one_float(&one, "extrapolation_value", 7);
    run_ok(&one);
    const float *out = one.out[0]->data;
    cr_expect_eq(out[0], 7);
    cr_expect_eq(out[2], 7);
    one_end(&one);
    one_start(&one, OP_RESIZE, 13, 4, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(4), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), size_one);
    ONE_I64(&one, 3, 3);
    one_string(&one, "coordinate_transformation_mode", "tf_crop_and_resize");
    one_fails(&one, STATUS_SHAPE, "roi");
    one_end(&one);
}

Test(ops_resample, axes_named_twice_or_out_of_range)
{
    static const int64_t twice[] = {1, -1}, outside[] = {0, 2};
    const float scales[] = {2, 2};
    for (size_t i = 0; i < 2; i++) {
        struct one_node one;
        one_start(&one, OP_RESIZE, 18, 3, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), ramp);
        one_input(&one, 2, DTYPE_F32, SHAPE(2), scales);
        one_ints(&one, "axes", i ? outside : twice, 2);
        one_fails(&one, STATUS_SHAPE, i ? "out of range" : "twice");
        one_end(&one);
    }
}

/* ---- GridSample ---- */

Test(ops_resample, grids_of_nan_and_infinity)
{
    static const char *const modes[] = {"linear", "nearest", "cubic"};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    const float grid[] = {NAN, NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0, NAN};
    for (size_t i = 0; i < 18; i++) {
        struct one_node one;
        one_start(&one, OP_GRID_SAMPLE, 20, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
        one_input(&one, 1, DTYPE_F32, SHAPE(1, 1, 4, 2), grid);
        one_string(&one, "mode", modes[i % 3]);
        one_string(&one, "padding_mode", paddings[i / 3 % 3]);
        one_int(&one, "align_corners", i >= 9);
        run_ok(&one);
        const float *out = one.out[0]->data;
        for (size_t k = 0; k < 4; k++) {
            cr_expect(isfinite(out[k]) && out[k] > -4 && out[k] < 19, "%s %s: element %zu is %g",
                      modes[i % 3], paddings[i / 3 % 3], k, (double)out[k]);
            cr_expect(i / 3 % 3 || out[k] == 0, "%g outside with zeros", (double)out[k]);
        }
        one_end(&one);
    }
}

Test(ops_resample, grid_sample_refuses_words_of_other_opsets)
{
    const float grid[] = {0, 0};
    struct one_node one;
    one_start(&one, OP_GRID_SAMPLE, 20, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 1, 1, 2), grid);
    one_string(&one, "mode", "bilinear");
    one_fails(&one, STATUS_MODEL, "linear nearest cubic");
    one_end(&one);
}

/* ---- RoiAlign ---- */

static void roi_align(struct one_node *one, const float *rois, const int64_t *batch, size_t count)
{
    one_start(one, OP_ROI_ALIGN, 16, 3, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), ramp);
    one_input(one, 1, DTYPE_F32, SHAPE((int64_t)count, 4), rois);
    one_input(one, 2, DTYPE_I64, SHAPE((int64_t)count), batch);
    one_int(one, "output_height", 2);
    one_int(one, "output_width", 2);
}

Test(ops_resample, regions_without_sense_are_bounded_work)
{
    const float rois[] = {NAN, 0, 1, 1, 0, 0, INFINITY, 2, -1e9f, -1e9f, 1e9f, 1e9f, 3, 3, 1, 1};
    const int64_t batch[] = {0, 0, 0, 0};
    for (int max = 0; max < 2; max++) {
        struct one_node one;
        roi_align(&one, rois, batch, 4);
        one_string(&one, "mode", max ? "max" : "avg");
        run_ok(&one);
        for (size_t i = 0; i < 16; i++)
            cr_expect(isfinite(tensor_number(one.out[0], i)), "element %zu", i);
        cr_expect_eq(tensor_number(one.out[0], 0), 0);
        one_end(&one);
    }
}

Test(ops_resample, batch_indices_out_of_range)
{
    const float rois[] = {0, 0, 2, 2};
    static const int64_t bad[] = {1, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct one_node one;
        roi_align(&one, rois, &bad[i], 1);
        one_fails(&one, STATUS_INVALID, "out of range");
        one_end(&one);
    }
    struct one_node one;
    const int64_t none[] = {0};
    roi_align(&one, rois, none, 1);
    one_int(&one, "sampling_ratio", INT64_MAX);
    one_fails(&one, STATUS_SHAPE, "sampling_ratio");
    one_end(&one);
}

/* ---- NonMaxSuppression ---- */

static void suppression(struct one_node *one, const float *boxes, const float *scores, size_t count,
                        int64_t max, float iou, size_t inputs)
{
    one_start(one, OP_NON_MAX_SUPPRESSION, 11, inputs, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(1, (int64_t)count, 4), boxes);
    one_input(one, 1, DTYPE_F32, SHAPE(1, 1, (int64_t)count), scores);
    if (inputs > 2)
        ONE_I64(one, 2, max);
    if (inputs > 3)
        one_input(one, 3, DTYPE_F32, SHAPE(1), &iou);
}

Test(ops_resample, scores_and_boxes_of_nan)
{
    const float boxes[] = {0, 0, 1, 1, 0, 0, 1, 1, NAN, NAN, NAN, NAN, 0, 0, 1, 1};
    const float scores[] = {0.5f, NAN, 0.9f, 0.7f};
    const int64_t expected[] = {0, 0, 2, 0, 0, 3}; /* the last box covers the first one */
    struct one_node one;
    suppression(&one, boxes, scores, 4, 10, 0.5f, 4);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I64, SHAPE(2, 3), expected);
    one_end(&one);
}

Test(ops_resample, equal_scores_keep_the_order_of_the_boxes)
{
    const float boxes[] = {0, 0, 1, 1, 5, 5, 6, 6, 9, 9, 8, 8};
    const float scores[] = {0.5f, 0.5f, 0.5f};
    const int64_t expected[] = {0, 0, 0, 0, 0, 1};
    struct one_node one;
    suppression(&one, boxes, scores, 3, 2, 0, 4);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I64, SHAPE(2, 3), expected);
    one_end(&one);
}

Test(ops_resample, no_maximum_means_no_boxes)
{
    const float boxes[] = {0, 0, 1, 1}, scores[] = {1};
    struct one_node one;
    suppression(&one, boxes, scores, 1, 0, 0, 2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I64, SHAPE(0, 3), NULL);
    one_end(&one);
    suppression(&one, boxes, scores, 1, -5, 0, 3);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I64, SHAPE(0, 3), NULL);
    one_end(&one);
    suppression(&one, boxes, scores, 1, 1, 1.5f, 4);
    one_fails(&one, STATUS_INVALID, "iou_threshold");
    one_end(&one);
    suppression(&one, boxes, scores, 1, 1, NAN, 4);
    one_fails(&one, STATUS_INVALID, "iou_threshold");
    one_end(&one);
}
