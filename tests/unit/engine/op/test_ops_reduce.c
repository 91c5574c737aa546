/* Reductions: what the ONNX conformance cases leave open. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

/* What a reduction of nothing is. */
Test(ops_reduce, empty_sets)
{
    static const struct {
        enum op op;
        double expected;
    } cases[] = {{OP_REDUCE_SUM, 0},
                 {OP_REDUCE_PROD, 1},
                 {OP_REDUCE_MAX, -INFINITY},
                 {OP_REDUCE_MIN, INFINITY},
                 {OP_REDUCE_L1, 0},
                 {OP_REDUCE_L2, 0},
                 {OP_REDUCE_SUM_SQUARE, 0},
                 {OP_REDUCE_LOG_SUM, -INFINITY},
                 {OP_REDUCE_LOG_SUM_EXP, -INFINITY}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, cases[i].op, 18, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(2, 0, 3), NULL);
        ONE_I64(&one, 1, -2);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        cr_assert(shape_equal(&one.out[0]->shape, &SHAPE(2, 1, 3)));
        for (size_t k = 0; k < 6; k++)
            cr_expect(tensor_number(one.out[0], k) == cases[i].expected, "%s: %g",
                      op_name(cases[i].op), tensor_number(one.out[0], k));
        one_end(&one);
    }
    const int32_t low = INT32_MIN;
    struct one_node one;
    one_start(&one, OP_REDUCE_MAX, 18, 1, 1);
    one_int(&one, "keepdims", 0);
    one_input(&one, 0, DTYPE_I32, SHAPE(0), NULL);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I32, SHAPE_SCALAR, &low);
    one_end(&one);
    one_start(&one, OP_ARG_MAX, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(0, 3), NULL);
    one_fails(&one, STATUS_SHAPE, "empty");
    one_end(&one);
}

Test(ops_reduce, axes_are_checked)
{
    static const int64_t bad[] = {2, -3, INT64_MIN};
    const float x[6] = {0};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct one_node one;
        one_start(&one, OP_REDUCE_SUM, 13, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(2, 3), x);
        ONE_I64(&one, 1, bad[i]);
        one_fails(&one, STATUS_SHAPE, "out of range");
        one_end(&one);
        one_start(&one, OP_ARG_MIN, 13, 1, 1);
        one_int(&one, "axis", bad[i]);
        one_input(&one, 0, DTYPE_F32, SHAPE(2, 3), x);
        one_fails(&one, STATUS_SHAPE, "out of range");
        one_end(&one);
    }
}

/* Every set of axes of a 4-D tensor against sums over coordinates. */
Test(ops_reduce, every_set_of_axes)
{
    enum { COUNT = 3 * 1 * 5 * 300 };
    const struct shape shape = SHAPE(3, 1, 5, 300);
    static float x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(i * 7 % 23) - 11;
    for (unsigned mask = 0; mask < 16; mask++) {
        double sum[COUNT] = {0}, largest[COUNT];
        struct shape out = shape;
        int64_t axes[4], count = 0;
        for (int d = 0; d < 4; d++) {
            out.dims[d] = mask & 1u << d ? 1 : shape.dims[d];
            if (mask & 1u << d)
                axes[count++] = d;
        }
        for (int i = 0; i < COUNT; i++)
            largest[i] = -INFINITY;
        for (int i = 0; i < COUNT; i++) {
            int at[4] = {i / 1500, 0, i / 300 % 5, i % 300}, to = 0;
            for (int d = 0; d < 4; d++)
                to = to * (int)out.dims[d] + (mask & 1u << d ? 0 : at[d]);
            sum[to] += x[i];
            largest[to] = x[i] > largest[to] ? x[i] : largest[to];
        }
        for (int kind = 0; kind < 2; kind++) {
            struct one_node one;
            one_start(&one, kind ? OP_REDUCE_MAX : OP_REDUCE_SUM, 18, 2, 1);
            one_int(&one, "noop_with_empty_axes", 1);
            one_input(&one, 0, DTYPE_F32, shape, x);
            one_input(&one, 1, DTYPE_I64, SHAPE(count), axes);
            cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            cr_assert(shape_equal(&one.out[0]->shape, &out));
            for (size_t k = 0; k < shape_count(&out); k++)
                cr_assert(tensor_number(one.out[0], k) == (kind ? largest[k] : sum[k]),
                          "axes %#x, element %zu: %g", mask, k, tensor_number(one.out[0], k));
            one_end(&one);
        }
    }
}

Test(ops_reduce, integers_wrap_and_halves_do_not_overflow_on_the_way)
{
    const int32_t x[] = {INT32_MAX, 1}, wrapped = INT32_MIN;
    struct one_node one;
    one_start(&one, OP_REDUCE_SUM, 13, 1, 1);
    one_int(&one, "keepdims", 0);
    one_input(&one, 0, DTYPE_I32, SHAPE(2), x);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I32, SHAPE_SCALAR, &wrapped);
    one_end(&one);
    uint16_t halves[1000], expected = float_to_half(300);
    for (int i = 0; i < 1000; i++)
        halves[i] = float_to_half(300);
    one_start(&one, OP_REDUCE_MEAN, 18, 1, 1);
    one_int(&one, "keepdims", 0);
    one_input(&one, 0, DTYPE_F16, SHAPE(1000), halves);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F16, SHAPE_SCALAR, &expected);
    one_end(&one);
}

Test(ops_reduce, nan_and_ties)
{
    const float x[] = {1, NAN, 5, NAN}, y[] = {2, 7, 7, -0.0f, 0};
    static const struct {
        enum op op;
        int last;
        int64_t of_x, of_y;
    } cases[] = {
        {OP_ARG_MAX, 0, 1, 1}, {OP_ARG_MAX, 1, 3, 2}, {OP_ARG_MIN, 0, 1, 3}, {OP_ARG_MIN, 1, 3, 4}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (int which = 0; which < 2; which++) {
            struct one_node one;
            one_start(&one, cases[i].op, 13, 1, 1);
            one_int(&one, "select_last_index", cases[i].last);
            one_int(&one, "keepdims", 0);
            one_input(&one, 0, DTYPE_F32, which ? SHAPE(5) : SHAPE(4), which ? y : x);
            cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            one_equals(&one, 0, DTYPE_I64, SHAPE_SCALAR, which ? &cases[i].of_y : &cases[i].of_x);
            one_end(&one);
        }
    }
    struct one_node one;
    one_start(&one, OP_REDUCE_MIN, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(4), x);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    cr_expect(isnan(tensor_number(one.out[0], 0)));
    one_end(&one);
}

Test(ops_reduce, log_sum_exp_stays_finite)
{
    const float x[] = {1000, 1000, -1000};
    struct one_node one;
    one_start(&one, OP_REDUCE_LOG_SUM_EXP, 18, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    cr_expect_float_eq(tensor_number(one.out[0], 0), 1000 + log(2), 1e-4);
    one_end(&one);
}
