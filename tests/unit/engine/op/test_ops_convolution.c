/* Convolutions and pools: geometry against the definition, hostile attributes, NaN. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

#define MANY 8192

static float values[MANY], weights[MANY], result[MANY];
static const float zeros[MANY];

/* Small whole numbers: every sum below is exact in float. */
static void fill(float *dst, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (float)((int)((i * 5 + seed * 3) % 9) - 4);
}

/* ---- Conv and ConvTranspose against the definition ---- */

struct geometry {
    int64_t n, c, m, group;
    int64_t in[3], kernel[3], stride[3], dilation[3], begin[3], end[3];
};

static int64_t conv_extent(const struct geometry *g, int i)
{
    return (g->in[i] + g->begin[i] + g->end[i] - (g->kernel[i] - 1) * g->dilation[i] - 1) /
               g->stride[i] +
           1;
}

/* Adds x * w to what output `o` of channel m holds for every pair of positions that meet. */
static void naive_conv(const struct geometry *g, const float *x, const float *w, float *y)
{
    int64_t out[3] = {conv_extent(g, 0), conv_extent(g, 1), conv_extent(g, 2)};
    int64_t taps = g->kernel[0] * g->kernel[1] * g->kernel[2], channels = g->c / g->group;
    int64_t plane = g->in[0] * g->in[1] * g->in[2], places = out[0] * out[1] * out[2];
    for (int64_t nm = 0; nm < g->n * g->m; nm++) {
        int64_t n = nm / g->m, m = nm % g->m, first = m / (g->m / g->group) * channels;
        for (int64_t o = 0; o < places; o++) {
            float sum = 0;
            for (int64_t ck = 0; ck < channels * taps; ck++) {
                int64_t k = ck % taps, at = 0;
                int64_t tap[3] = {k / g->kernel[2] / g->kernel[1], k / g->kernel[2] % g->kernel[1],
                                  k % g->kernel[2]};
                int64_t pos[3] = {o / out[2] / out[1], o / out[2] % out[1], o % out[2]};
                bool inside = true;
                for (int i = 0; i < 3; i++) {
                    int64_t p = pos[i] * g->stride[i] - g->begin[i] + tap[i] * g->dilation[i];
                    inside = inside && p >= 0 && p < g->in[i];
                    at = at * g->in[i] + p;
                }
                if (inside)
                    sum += x[(n * g->c + first + ck / taps) * plane + at] *
                           w[m * channels * taps + ck];
            }
            y[nm * places + o] = sum;
        }
    }
}

static void set_geometry(struct one_node *one, const struct geometry *g, int64_t pads[6])
{
    for (int i = 0; i < 3; i++) {
        pads[i] = g->begin[i];
        pads[3 + i] = g->end[i];
    }
    one_ints(one, "strides", g->stride, 3);
    one_ints(one, "dilations", g->dilation, 3);
    one_ints(one, "pads", pads, 6);
    one_int(one, "group", g->group);
}

static int64_t draw(unsigned *state, int64_t low, int64_t high)
{
    *state = *state * 1664525u + 1013904223u;
    return low + (int64_t)(*state >> 8) % (high - low + 1);
}

static struct geometry draw_geometry(unsigned *state)
{
    struct geometry g = {.n = draw(state, 1, 2), .group = draw(state, 1, 3)};
    g.c = g.group * draw(state, 1, 3);
    g.m = g.group * draw(state, 1, 5);
    for (int i = 0; i < 3; i++) {
        g.kernel[i] = draw(state, 1, 3);
        g.stride[i] = draw(state, 1, 3);
        g.dilation[i] = draw(state, 1, 2);
        g.begin[i] = draw(state, 0, 2);
        g.end[i] = draw(state, 0, 2);
        g.in[i] = draw(state, 5, 7);
    }
    return g;
}

Test(ops_convolution, conv_agrees_with_the_definition)
{
    unsigned state = 1;
    for (int round = 0; round < 60; round++) {
        struct geometry g = draw_geometry(&state);
        struct one_node one;
        int64_t pads[6];
        fill(values, COUNT_OF(values), (unsigned)round);
        fill(weights, COUNT_OF(weights), (unsigned)round + 1);
        naive_conv(&g, values, weights, result);
        one_start(&one, OP_CONV, 11, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(g.n, g.c, g.in[0], g.in[1], g.in[2]), values);
        one_input(&one, 1, DTYPE_F32,
                  SHAPE(g.m, g.c / g.group, g.kernel[0], g.kernel[1], g.kernel[2]), weights);
        set_geometry(&one, &g, pads);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_F32,
                   SHAPE(g.n, g.m, conv_extent(&g, 0), conv_extent(&g, 1), conv_extent(&g, 2)),
                   result);
        one_end(&one);
    }
}

/* <conv(x), y> = <x, conv_transpose(y)> for the same weights. */
Test(ops_convolution, conv_transpose_is_the_adjoint)
{
    unsigned state = 7;
    for (int round = 0; round < 40; round++) {
        struct geometry g = draw_geometry(&state);
        static float x[MANY], y[MANY];
        int64_t out[3], adjust[3], pads[6];
        double left = 0, right = 0;
        for (int i = 0; i < 3; i++) {
            out[i] = conv_extent(&g, i);
            adjust[i] = (g.in[i] + g.begin[i] + g.end[i] - (g.kernel[i] - 1) * g.dilation[i] - 1) %
                        g.stride[i];
        }
        int64_t places = out[0] * out[1] * out[2], plane = g.in[0] * g.in[1] * g.in[2];
        fill(x, COUNT_OF(x), 2);
        fill(y, COUNT_OF(y), 5);
        fill(weights, COUNT_OF(weights), (unsigned)round);
        naive_conv(&g, x, weights, result);
        for (int64_t i = 0; i < g.n * g.m * places; i++)
            left += result[i] * y[i];
        struct one_node one;
        one_start(&one, OP_CONV_TRANSPOSE, 11, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(g.n, g.m, out[0], out[1], out[2]), y);
        one_input(&one, 1, DTYPE_F32,
                  SHAPE(g.m, g.c / g.group, g.kernel[0], g.kernel[1], g.kernel[2]), weights);
        set_geometry(&one, &g, pads);
        one_ints(&one, "output_padding", adjust, 3);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        cr_assert_eq(shape_count(&one.out[0]->shape), (size_t)(g.n * g.c * plane));
        for (int64_t i = 0; i < g.n * g.c * plane; i++)
            right += ((const float *)one.out[0]->data)[i] * x[i];
        cr_expect_eq(left, right, "round %d: %g and %g", round, left, right);
        one_end(&one);
    }
}

/* ---- hostile attributes ---- */

static const int64_t none[] = {0}, small[] = {1, 1}, huge[] = {INT64_MAX, INT64_MAX};

Test(ops_convolution, conv_refuses_what_does_not_fit)
{
    static const int64_t zero_stride[] = {0, 1}, short_pads[] = {1, 1}, kernel[] = {5, 5};
    static const int64_t negative[] = {-1, 0, 0, 0}, ends[] = {INT64_MAX, 0, INT64_MAX, 0};
    static const struct {
        struct shape x, w;
        const char *attr;
        const int64_t *list;
        size_t count;
        int64_t group;
        const char *words;
    } cases[] = {
        {{0, {0}}, {4, {2, 2, 3, 3}}, NULL, none, 0, 1, "1 to 3 spatial"},
        {{4, {1, 2, 5, 5}}, {3, {2, 2, 3}}, NULL, none, 0, 1, "expected rank 4"},
        {{4, {1, 3, 5, 5}}, {4, {2, 2, 3, 3}}, NULL, none, 0, 1, "group"},
        {{4, {1, 2, 5, 5}}, {4, {3, 1, 3, 3}}, NULL, none, 0, 2, "group"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, NULL, none, 0, -1, "group is -1"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, NULL, none, 0, INT64_MAX, "group"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 6, 3}}, NULL, none, 0, 1, "does not fit"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 0, 3}}, NULL, none, 0, 1, "extent 0 is 0"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "strides", zero_stride, 2, 1, "strides holds 0"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "strides", small, 1, 1, "1 numbers, expected 2"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "pads", short_pads, 2, 1, "expected 4"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "pads", negative, 4, 1, "pads holds -1"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "pads", ends, 4, 1, "too large"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "dilations", huge, 2, 1, "too large"},
        {{4, {1, 2, 5, 5}}, {4, {2, 2, 3, 3}}, "kernel_shape", kernel, 2, 1, "kernel_shape"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, OP_CONV, 11, 2, 1);
        one_input(&one, 0, DTYPE_F32, cases[i].x, zeros);
        one_input(&one, 1, DTYPE_F32, cases[i].w, zeros);
        one_int(&one, "group", cases[i].group);
        if (cases[i].attr)
            one_ints(&one, cases[i].attr, cases[i].list, cases[i].count);
        one_fails(&one, STATUS_SHAPE, cases[i].words);
        one_end(&one);
    }
}

Test(ops_convolution, giant_outputs_are_refused)
{
    static const int64_t pads[] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
    static const int64_t strides[] = {INT64_MAX / 8, 1};
    struct one_node one;
    one_start(&one, OP_CONV, 11, 2, 1);
    one.budget.limit = 1 << 24;
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), zeros);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 1, 3, 3), zeros);
    one_ints(&one, "pads", pads, 4);
    one_fails(&one, STATUS_NO_MEMORY, "memory limit");
    one_end(&one);
    one_start(&one, OP_CONV_TRANSPOSE, 11, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 40, 4), zeros);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 1, 3, 3), zeros);
    one_ints(&one, "strides", strides, 2);
    one_fails(&one, STATUS_SHAPE, "too large");
    one_end(&one);
}

Test(ops_convolution, steps_of_any_size_over_a_single_window)
{
    static const int64_t kernel[] = {1, 1};
    struct one_node one;
    fill(values, 4, 3);
    one_start(&one, OP_MAX_POOL, 12, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), values);
    one_ints(&one, "kernel_shape", kernel, 2);
    one_ints(&one, "strides", huge, 2);
    one_ints(&one, "dilations", huge, 2);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 1, 1), values);
    one_end(&one);
}

/* ---- pools ---- */

static void pool(struct one_node *one, enum op op, int opset, const float *data, int64_t extent,
                 const int64_t *kernel)
{
    one_start(one, op, opset, 1, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(1, 1, extent), data);
    one_ints(one, "kernel_shape", kernel, 1);
}

Test(ops_convolution, nan_in_a_window_is_the_result)
{
    static const int64_t two[] = {2};
    const float data[] = {1, NAN, 3, INFINITY, -INFINITY, 2};
    const bool max_is_nan[] = {true, true, false, false, false};
    struct one_node one;
    pool(&one, OP_MAX_POOL, 12, data, 6, two);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    const float *out = one.out[0]->data;
    for (size_t i = 0; i < 5; i++)
        cr_expect_eq(isnan(out[i]) != 0, max_is_nan[i], "element %zu is %g", i, (double)out[i]);
    cr_expect(isinf(out[2]) && isinf(out[3]));
    one_end(&one);
    pool(&one, OP_AVERAGE_POOL, 11, data, 6, two);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    out = one.out[0]->data;
    cr_expect(isnan(out[0]) && isnan(out[1]) && isinf(out[2]) && isnan(out[3]));
    one_end(&one);
    one_start(&one, OP_GLOBAL_MAX_POOL, 1, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 6), data);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    cr_expect(isnan(*(const float *)one.out[0]->data));
    one_end(&one);
}

Test(ops_convolution, windows_that_hold_only_padding)
{
    static const int64_t kernel[] = {2}, dilation[] = {2}, pads[] = {1, 1};
    const float data[] = {5}, means[] = {0};
    const float maxima[] = {-INFINITY};
    struct one_node one;
    pool(&one, OP_MAX_POOL, 12, data, 1, kernel);
    one_ints(&one, "dilations", dilation, 1);
    one_ints(&one, "pads", pads, 2);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 1), maxima);
    one_end(&one);
    pool(&one, OP_AVERAGE_POOL, 19, data, 1, kernel);
    one_ints(&one, "dilations", dilation, 1);
    one_ints(&one, "pads", pads, 2);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 1), means);
    one_end(&one);
}

Test(ops_convolution, a_window_far_wider_than_its_input_is_quick)
{
    static const int64_t kernel[] = {INT64_C(1) << 40}, pads[] = {INT64_C(1) << 40, 0};
    const float data[] = {3, 5}, expected[] = {3, 5, 5};
    struct one_node one;
    static const int64_t stride[] = {1};
    pool(&one, OP_MAX_POOL, 12, data, 2, kernel);
    one_ints(&one, "pads", pads, 2);
    one_ints(&one, "strides", stride, 1);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    cr_assert_eq(one.out[0]->shape.dims[2], 3);
    const float *out = one.out[0]->data;
    cr_expect(isinf(out[0]) || out[0] == expected[0]);
    cr_expect_eq(out[2], expected[2]);
    one_end(&one);
}

Test(ops_convolution, ceil_mode_drops_a_window_in_the_end_padding)
{
    static const int64_t kernel[] = {2}, stride[] = {2}, pads[] = {0, 1};
    const float data[] = {1, 2, 3, 4}, expected[] = {1.5f, 3.5f};
    struct one_node one;
    pool(&one, OP_AVERAGE_POOL, 19, data, 4, kernel);
    one_ints(&one, "strides", stride, 1);
    one_ints(&one, "pads", pads, 2);
    one_int(&one, "ceil_mode", 1);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 2), expected);
    one_end(&one);
}

/* torch.nn.AvgPool1d and MaxPool1d(10, stride, padding, ceil_mode=True) of 1, 2, 3, 4. */
Test(ops_convolution, ceil_mode_keeps_a_window_larger_than_the_picture)
{
    static const struct {
        enum op op;
        int64_t stride, pads[2];
        int count_include_pad;
        float expected;
    } cases[] = {
        {OP_AVERAGE_POOL, 10, {0, 0}, 1, 2.5f},
        {OP_AVERAGE_POOL, 7, {0, 0}, 1, 2.5f},
        {OP_AVERAGE_POOL, 10, {1, 1}, 1, 10.0f / 6.0f},
        {OP_AVERAGE_POOL, 10, {1, 1}, 0, 2.5f},
        {OP_MAX_POOL, 10, {0, 0}, -1, 4},
    };
    static const int64_t kernel[] = {10};
    const float data[] = {1, 2, 3, 4};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct one_node one;
        pool(&one, cases[i].op, 19, data, 4, kernel);
        one_ints(&one, "strides", &cases[i].stride, 1);
        one_ints(&one, "pads", cases[i].pads, 2);
        one_int(&one, "ceil_mode", 1);
        if (cases[i].count_include_pad >= 0)
            one_int(&one, "count_include_pad", cases[i].count_include_pad);
        cr_assert_eq(one_run(&one), STATUS_OK, "%zu: %s", i, one.err.message);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 1), &cases[i].expected);
        one_end(&one);
    }
    static const int64_t stride[] = {6}; /* PyTorch: output size is too small */
    struct one_node one;
    pool(&one, OP_AVERAGE_POOL, 19, data, 4, kernel);
    one_ints(&one, "strides", stride, 1);
    one_int(&one, "ceil_mode", 1);
    cr_assert_eq(one_run(&one), STATUS_SHAPE);
    one_end(&one);
}

Test(ops_convolution, maxpool_indices_count_columns_first_on_request)
{
    static const int64_t kernel[] = {2, 2};
    const float data[] = {0, 1, 2, 3, 9, 5};
    for (int column_major = 0; column_major < 2; column_major++) {
        /* the 9 lies in row 1, column 1 of the second of two planes [2, 3] */
        const int64_t row_major_index[] = {4, 4}, column_major_index[] = {3, 3};
        const float maxima[] = {9, 9};
        struct one_node one;
        one_start(&one, OP_MAX_POOL, 12, 1, 2);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 3), data);
        one_ints(&one, "kernel_shape", kernel, 2);
        one_int(&one, "storage_order", column_major);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 1, 2), maxima);
        one_equals(&one, 1, DTYPE_I64, SHAPE(1, 1, 1, 2),
                   column_major ? column_major_index : row_major_index);
        one_end(&one);
    }
}

Test(ops_convolution, maxpool_indices_of_an_empty_plane_are_0)
{
    static const int64_t kernel[] = {1}, pads[] = {1, 1}, indices[] = {0, 0};
    const float maxima[] = {-INFINITY, -INFINITY};
    for (int column_major = 0; column_major < 2; column_major++) {
        struct one_node one;
        one_start(&one, OP_MAX_POOL, 12, 1, 2);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 0), NULL);
        one_ints(&one, "kernel_shape", kernel, 1);
        one_ints(&one, "pads", pads, 2);
        one_int(&one, "storage_order", column_major);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 1, 2), maxima);
        one_equals(&one, 1, DTYPE_I64, SHAPE(1, 1, 2), indices);
        one_end(&one);
    }
}

Test(ops_convolution, pools_refuse_what_is_missing_or_wrong)
{
    static const int64_t kernel[] = {2, 2};
    struct one_node one;
    one_start(&one, OP_MAX_POOL, 12, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), zeros);
    one_fails(&one, STATUS_MODEL, "kernel_shape is missing");
    one_end(&one);
    one_start(&one, OP_AVERAGE_POOL, 11, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4), zeros);
    one_ints(&one, "kernel_shape", kernel, 2);
    one_fails(&one, STATUS_SHAPE, "2 numbers, expected 1");
    one_end(&one);
    one_start(&one, OP_MAX_POOL, 12, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4), zeros);
    one_ints(&one, "kernel_shape", kernel, 2);
    one_string(&one, "auto_pad", "SIDEWAYS");
    one_fails(&one, STATUS_MODEL, "SIDEWAYS");
    one_end(&one);
    one_start(&one, OP_MAX_POOL, 12, 1, 1);
    one_input(&one, 0, DTYPE_I64, SHAPE(1, 1, 4, 4), zeros);
    one_ints(&one, "kernel_shape", kernel, 2);
    one_fails(&one, STATUS_MODEL, "int64");
    one_end(&one);
}

Test(ops_convolution, unpool_refuses_indices_outside)
{
    static const int64_t kernel[] = {2, 2}, bad[] = {16, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct one_node one;
        const int64_t indices[] = {0, 2, 8, bad[i]};
        one_start(&one, OP_MAX_UNPOOL, 11, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(1, 1, 2, 2), zeros);
        one_input(&one, 1, DTYPE_I64, SHAPE(1, 1, 2, 2), indices);
        one_ints(&one, "kernel_shape", kernel, 2);
        one_ints(&one, "strides", kernel, 2);
        one_fails(&one, STATUS_INVALID, "outside");
        one_end(&one);
    }
}

/* ---- DeformConv ---- */

static void deform(struct one_node *one, const float *offsets)
{
    fill(values, 2 * 4 * 5, 1);
    fill(weights, 3 * 2 * 2 * 2, 2);
    one_start(one, OP_DEFORM_CONV, 19, 3, 1);
    one_input(one, 0, DTYPE_F32, SHAPE(1, 2, 4, 5), values);
    one_input(one, 1, DTYPE_F32, SHAPE(3, 2, 2, 2), weights);
    one_input(one, 2, DTYPE_F32, SHAPE(1, 8, 3, 4), offsets);
}

Test(ops_convolution, deform_conv_without_offsets_is_conv)
{
    struct geometry g = {.n = 1,
                         .c = 2,
                         .m = 3,
                         .group = 1,
                         .in = {1, 4, 5},
                         .kernel = {1, 2, 2},
                         .stride = {1, 1, 1},
                         .dilation = {1, 1, 1}};
    struct one_node one;
    deform(&one, zeros);
    naive_conv(&g, values, weights, result);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(1, 3, 3, 4), result);
    one_end(&one);
}

Test(ops_convolution, deform_conv_offsets_that_lead_nowhere_give_zero)
{
    static const float far[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f};
    for (size_t f = 0; f < COUNT_OF(far); f++) {
        float offsets[8 * 12];
        struct one_node one;
        for (size_t i = 0; i < COUNT_OF(offsets); i++)
            offsets[i] = far[f];
        deform(&one, offsets);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_F32, SHAPE(1, 3, 3, 4), zeros);
        one_end(&one);
    }
}
