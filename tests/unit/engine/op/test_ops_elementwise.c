/* Elementwise operators: what the ONNX conformance cases leave open. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

/* One operator on two scalars of a dtype. */
static void binary(struct one_node *one, enum op op, enum dtype dtype, const void *a, const void *b)
{
    one_start(one, op, 14, 2, 1);
    one_input(one, 0, dtype, SHAPE_SCALAR, a);
    one_input(one, 1, dtype, SHAPE_SCALAR, b);
}

Test(ops_elementwise, integer_division_by_zero_is_an_error)
{
    static const enum op ops[] = {OP_DIV, OP_MOD};
    static const enum dtype dtypes[] = {DTYPE_I8, DTYPE_I16, DTYPE_I32, DTYPE_I64,
                                        DTYPE_U8, DTYPE_U16, DTYPE_U32, DTYPE_U64};
    const uint64_t seven = 7, zero = 0;
    for (size_t o = 0; o < COUNT_OF(ops); o++) {
        for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
            struct one_node one;
            binary(&one, ops[o], dtypes[d], &seven, &zero);
            one_fails(&one, STATUS_INVALID, "divided by zero");
            one_end(&one);
        }
    }
}

Test(ops_elementwise, most_negative_number_wraps)
{
    const int64_t low = INT64_MIN, minus = -1, zero = 0;
    const int8_t low8 = INT8_MIN, minus8 = -1, zero8 = 0;
    static const struct {
        enum op op;
        bool wraps; /* to itself; else 0 */
    } cases[] = {{OP_DIV, true}, {OP_MUL, true}, {OP_MOD, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        binary(&one, cases[i].op, DTYPE_I64, &low, &minus);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_I64, SHAPE_SCALAR, cases[i].wraps ? &low : &zero);
        one_end(&one);
        binary(&one, cases[i].op, DTYPE_I8, &low8, &minus8);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_I8, SHAPE_SCALAR, cases[i].wraps ? &low8 : &zero8);
        one_end(&one);
    }
}

Test(ops_elementwise, remainder_takes_the_sign_it_should)
{
    const int32_t a[] = {-7, 7, -7, 7}, b[] = {3, -3, -3, 3};
    const int32_t floored[] = {2, -2, -1, 1}, truncated[] = {-1, 1, -1, 1};
    for (int fmod = 0; fmod < 2; fmod++) {
        struct one_node one;
        one_start(&one, OP_MOD, 13, 2, 1);
        one_int(&one, "fmod", fmod);
        one_input(&one, 0, DTYPE_I32, SHAPE(4), a);
        one_input(&one, 1, DTYPE_I32, SHAPE(4), b);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_I32, SHAPE(4), fmod ? truncated : floored);
        one_end(&one);
    }
}

Test(ops_elementwise, maximum_lets_nan_through)
{
    const float a[] = {NAN, 1, -INFINITY}, b[] = {1, NAN, 2};
    struct one_node one;
    one_start(&one, OP_MAX, 13, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), a);
    one_input(&one, 1, DTYPE_F32, SHAPE(3), b);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    const float *out = one.out[0]->data;
    cr_expect(isnan(out[0]) && isnan(out[1]) && out[2] == 2);
    one_end(&one);
}

Test(ops_elementwise, cast_of_what_does_not_fit_saturates)
{
    const float x[] = {NAN, INFINITY, -INFINITY, 3e10f, -3e10f, -1.9f, 300.7f, -0.5f};
    const int32_t i32[] = {0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, -1, 300, 0};
    const uint8_t u8[] = {0, 255, 0, 255, 0, 0, 255, 0};
    const int64_t i64[] = {0, INT64_MAX, INT64_MIN, 30000001024, -30000001024, -1, 300, 0};
    const uint8_t flags[] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct {
        enum dtype to;
        const void *expected;
    } cases[] = {{DTYPE_I32, i32}, {DTYPE_U8, u8}, {DTYPE_I64, i64}, {DTYPE_BOOL, flags}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, OP_CAST, 13, 1, 1);
        one_int(&one, "to", cases[i].to);
        one_input(&one, 0, DTYPE_F32, SHAPE(8), x);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, cases[i].to, SHAPE(8), cases[i].expected);
        one_end(&one);
    }
}

Test(ops_elementwise, cast_rounds_once)
{
    /* Just above the tie between two float16 numbers, by less than float32 can tell: rounding to
     * float32 first would land on the tie and then go down to even. */
    const double x[] = {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11, 65519.999999999, 65520, 0x1p-26};
    const uint16_t half[] = {0x3c01, 0x3c00, 0x7bff, 0x7c00, 0};
    const double y[] = {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8, -1e300};
    const uint16_t brain[] = {0x3f81, 0x3f80, 0xff80};
    struct one_node one;
    one_start(&one, OP_CAST, 13, 1, 1);
    one_int(&one, "to", DTYPE_F16);
    one_input(&one, 0, DTYPE_F64, SHAPE(5), x);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F16, SHAPE(5), half);
    one_end(&one);
    one_start(&one, OP_CAST, 13, 1, 1);
    one_int(&one, "to", DTYPE_BF16);
    one_input(&one, 0, DTYPE_F64, SHAPE(3), y);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_BF16, SHAPE(3), brain);
    one_end(&one);
}

Test(ops_elementwise, halves_survive_a_trip_through_float)
{
    enum { COUNT = 1 << 16 };
    static uint16_t bits[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        bits[i] = (uint16_t)i;
    static const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        struct one_node out, back;
        one_start(&out, OP_CAST, 13, 1, 1);
        one_int(&out, "to", DTYPE_F32);
        one_input(&out, 0, dtypes[d], SHAPE(COUNT), bits);
        cr_assert_eq(one_run(&out), STATUS_OK, "%s", out.err.message);
        const float *wide = out.out[0]->data;
        one_start(&back, OP_CAST, 13, 1, 1);
        one_int(&back, "to", dtypes[d]);
        one_input(&back, 0, DTYPE_F32, SHAPE(COUNT), wide);
        cr_assert_eq(one_run(&back), STATUS_OK, "%s", back.err.message);
        const uint16_t *narrow = back.out[0]->data;
        for (size_t i = 0; i < COUNT; i++) {
            float value =
                dtypes[d] == DTYPE_F16 ? half_to_float(bits[i]) : bfloat16_to_float(bits[i]);
            bool same = isnan(value) ? isnan(wide[i]) : value == wide[i] && narrow[i] == bits[i];
            cr_assert(same, "%s %04zx: %.9g, %04x", dtype_name(dtypes[d]), i, wide[i], narrow[i]);
        }
        one_end(&out);
        one_end(&back);
    }
}

Test(ops_elementwise, cast_to_a_missing_type_is_refused)
{
    static const int64_t types[] = {0, -1, 8, 14, 17, 99, INT64_MAX, INT64_MIN};
    const float x = 1;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct one_node one;
        one_start(&one, OP_CAST, 19, 1, 1);
        one_int(&one, "to", types[i]);
        one_input(&one, 0, DTYPE_F32, SHAPE_SCALAR, &x);
        one_fails(&one, STATUS_UNSUPPORTED, "data type");
        one_end(&one);
    }
    struct one_node one;
    one_start(&one, OP_CAST, 19, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE_SCALAR, &x);
    one_fails(&one, STATUS_MODEL, "'to'");
    one_end(&one);
}

Test(ops_elementwise, operands_are_checked)
{
    static const struct {
        const char *name, *words;
        enum op op;
        int opset;
        enum status status;
        struct shape a, b;
        enum dtype a_dtype, b_dtype;
    } cases[] = {
        {"shapes", "broadcast", OP_ADD, 14, STATUS_SHAPE, {1, {3}}, {1, {4}}, DTYPE_F32, DTYPE_F32},
        {"dtypes", "agree", OP_ADD, 14, STATUS_MODEL, {1, {3}}, {1, {3}}, DTYPE_F32, DTYPE_F64},
        {"bool", "expected one of", OP_MUL, 14, STATUS_MODEL, {0}, {0}, DTYPE_BOOL, DTYPE_BOOL},
        {"not bool", "expected one of", OP_AND, 7, STATUS_MODEL, {0}, {0}, DTYPE_F32, DTYPE_F32},
        {"slope", "slope", OP_PRELU, 9, STATUS_SHAPE, {1, {3}}, {2, {2, 3}}, DTYPE_F32, DTYPE_F32},
        {"opset", "opset", OP_MOD, 9, STATUS_UNSUPPORTED, {0}, {0}, DTYPE_I32, DTYPE_I32},
    };
    const double data[8] = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, cases[i].op, cases[i].opset, 2, 1);
        one_input(&one, 0, cases[i].a_dtype, cases[i].a, data);
        one_input(&one, 1, cases[i].b_dtype, cases[i].b, data);
        one_fails(&one, cases[i].status, cases[i].words);
        one_end(&one);
    }
}

/* Every pattern of broadcasting over three axes against the plain formula. */
Test(ops_elementwise, every_broadcast_pattern)
{
    enum { D0 = 3, D1 = 5, D2 = 7, COUNT = D0 * D1 * D2 };
    float data[COUNT];
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(i * i % 101) - 50;
    for (unsigned pattern = 0; pattern < 64; pattern++) {
        struct shape a = SHAPE(D0, D1, D2), b = a, out = a;
        for (int d = 0; d < 3; d++) {
            a.dims[d] = pattern & 1u << d ? 1 : a.dims[d];
            b.dims[d] = pattern & 8u << d ? 1 : b.dims[d];
            out.dims[d] = a.dims[d] > b.dims[d] ? a.dims[d] : b.dims[d];
        }
        float expected[COUNT];
        size_t n = 0;
        for (int64_t i = 0; i < out.dims[0]; i++)
            for (int64_t j = 0; j < out.dims[1]; j++)
                for (int64_t k = 0; k < out.dims[2]; k++) {
                    int64_t x =
                        (i % a.dims[0] * a.dims[1] + j % a.dims[1]) * a.dims[2] + k % a.dims[2];
                    int64_t y =
                        (i % b.dims[0] * b.dims[1] + j % b.dims[1]) * b.dims[2] + k % b.dims[2];
                    expected[n++] = data[x] - data[y];
                }
        struct one_node one;
        one_start(&one, OP_SUB, 14, 2, 1);
        one_input(&one, 0, DTYPE_F32, a, data);
        one_input(&one, 1, DTYPE_F32, b, data);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 0, DTYPE_F32, out, expected);
        one_end(&one);
    }
}

Test(ops_elementwise, integer_powers_are_exact)
{
    const int64_t base[] = {3, -2, 2, 0, -1, 5}, exponent[] = {39, 63, 64, 0, -3, -1};
    const int64_t expected[] = {4052555153018976267, INT64_MIN, 0, 1, -1, 0};
    struct one_node one;
    one_start(&one, OP_POW, 15, 2, 1);
    one_input(&one, 0, DTYPE_I64, SHAPE(6), base);
    one_input(&one, 1, DTYPE_I64, SHAPE(6), exponent);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I64, SHAPE(6), expected);
    one_end(&one);
}

Test(ops_elementwise, clip_with_crossed_bounds_gives_the_upper_one)
{
    const float x[] = {-5, 0, 5}, low = 2, high = -2, expected[] = {-2, -2, -2};
    struct one_node one;
    one_start(&one, OP_CLIP, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &low);
    one_input(&one, 2, DTYPE_F32, SHAPE_SCALAR, &high);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3), expected);
    one_end(&one);
}

/* Experimental before opset 10. */
Test(ops_elementwise, thresholded_relu_of_old_opsets)
{
    const float x[] = {-2, 1, 1.5f, 3}, expected[] = {0, 0, 0, 3};
    struct one_node one;
    one_start(&one, OP_THRESHOLDED_RELU, 7, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(4), x);
    one_float(&one, "alpha", 1.5f);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(4), expected);
    one_end(&one);
}

Test(ops_elementwise, dropout_refuses_training)
{
    const float x[] = {1, 2}, ratio = 0.5f, none = 0;
    const uint8_t yes = 1;
    struct one_node one;
    one_start(&one, OP_DROPOUT, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &ratio);
    one_input(&one, 2, DTYPE_BOOL, SHAPE_SCALAR, &yes);
    one_fails(&one, STATUS_UNSUPPORTED, "training_mode");
    one_end(&one);
    one_start(&one, OP_DROPOUT, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &none);
    one_input(&one, 2, DTYPE_BOOL, SHAPE_SCALAR, &yes);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2), x);
    one_end(&one);
    one_start(&one, OP_DROPOUT, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2), x);
    cr_expect_eq(one.out[0]->data, one.node->inputs[0]->known->data, "the data was copied");
    one_end(&one);
}

/* All unary operators on a tensor without elements and on every float dtype. */
Test(ops_elementwise, empty_tensors_and_every_float_type)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        const bool is_float = op_has((enum op)op, OP_UNARY) &&
                              op_record((enum op)op)->max_inputs == 1 &&
                              !op_has((enum op)op, OP_VIEW) && op != OP_CAST && op != OP_NOT &&
                              op != OP_DYNAMIC_ROUND;
        for (size_t d = 0; is_float && d < COUNT_OF(dtypes); d++) {
            struct one_node one;
            uint64_t data[300];
            memset(data, 0, sizeof data);
            one_start(&one, (enum op)op, 28, 1, 1);
            one_input(&one, 0, dtypes[d], SHAPE(2, 0), NULL);
            cr_expect_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            one_end(&one);
            one_start(&one, (enum op)op, 28, 1, 1);
            one_input(&one, 0, dtypes[d], SHAPE(300), data);
            cr_expect_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            double first = one.out[0] ? tensor_number(one.out[0], 0) : NAN;
            double last = one.out[0] ? tensor_number(one.out[0], 299) : NAN;
            cr_expect(first == last, "%s of 0 in %s: %g and %g", op_name((enum op)op),
                      dtype_name(dtypes[d]), first, last);
            one_end(&one);
        }
    }
}
