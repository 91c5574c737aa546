/* Tensors: checked shapes, memory budgets, conversion of 16-bit floats. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/tensor.h"

Test(shape, check_refuses_what_overflows)
{
    struct error err = {0};
    size_t count, bytes;
    static const struct {
        struct shape shape;
        enum dtype dtype;
        enum status status;
    } cases[] = {
        {{2, {3, 4}}, DTYPE_F32, STATUS_OK},
        {{0, {0}}, DTYPE_I64, STATUS_OK},
        {{2, {0, 5}}, DTYPE_F32, STATUS_OK},
        {{2, {-1, 5}}, DTYPE_F32, STATUS_SHAPE},
        {{2, {INT64_MAX, 2}}, DTYPE_U8, STATUS_SHAPE},
        {{1, {INT64_MAX}}, DTYPE_F32, STATUS_SHAPE},
        {{3, {0, INT64_MAX, INT64_MAX}}, DTYPE_F32, STATUS_SHAPE},
        {{2, {(int64_t)1 << 32, (int64_t)1 << 32}}, DTYPE_F32, STATUS_SHAPE},
        {{9, {1}}, DTYPE_F32, STATUS_SHAPE},
        {{-1, {0}}, DTYPE_F32, STATUS_SHAPE},
        {{1, {1}}, DTYPE_NONE, STATUS_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(shape_check(&cases[i].shape, cases[i].dtype, &count, &bytes, &err),
                     cases[i].status, "case %zu", i);
    struct shape shape = SHAPE(3, 4);
    cr_assert_eq(shape_check(&shape, DTYPE_F16, &count, &bytes, &err), STATUS_OK);
    cr_assert_eq(count, 12);
    cr_assert_eq(bytes, 24);
}

Test(shape, text_is_bounded)
{
    char text[SHAPE_TEXT];
    struct shape shape = {
        8,
        {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};
    cr_assert_lt(strlen(shape_text(&shape, text)), (size_t)SHAPE_TEXT);
    shape = SHAPE(1, DIM_UNKNOWN, 3);
    cr_assert_str_eq(shape_text(&shape, text), "[1, ?, 3]");
    shape = SHAPE_SCALAR;
    cr_assert_str_eq(shape_text(&shape, text), "[]");
}

Test(budget, is_taken_and_given_back)
{
    struct memory_budget budget = {.limit = 1000};
    struct error err = {0};
    struct tensor *a, *b;
    struct shape big = SHAPE(200), bigger = SHAPE(300);
    cr_assert_eq(tensor_create(&budget, DTYPE_F32, &big, &a, &err), STATUS_OK);
    cr_assert_eq(tensor_create(&budget, DTYPE_F32, &bigger, &b, &err), STATUS_NO_MEMORY);
    cr_assert(strstr(err.message, "limit of 1000 bytes"), "%s", err.message);
    tensor_unref(a);
    cr_assert_eq(budget.used, 0);
}

Test(half, all_bit_patterns_survive_the_round_trip)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = half_to_float((uint16_t)bits);
        if (isnan(value)) {
            cr_assert(isnan(half_to_float(float_to_half(value))), "%04x", bits);
            continue;
        }
        cr_assert_eq(float_to_half(value), bits, "%04x %g", bits, (double)value);
        cr_assert_eq(float_to_bfloat16(bfloat16_to_float((uint16_t)bits)), bits, "%04x", bits);
    }
}

Test(half, rounds_to_nearest_even)
{
    cr_expect_eq(float_to_half(1.0f), 0x3c00);
    cr_expect_eq(float_to_half(65504.0f), 0x7bff);
    cr_expect_eq(float_to_half(65519.99f), 0x7bff);
    cr_expect_eq(float_to_half(65520.0f), 0x7c00);
    cr_expect_eq(float_to_half(0x1p-24f), 0x0001);
    cr_expect_eq(float_to_half(0x1p-25f), 0x0000);
    cr_expect_eq(float_to_half(0x1.8p-25f), 0x0001);
    cr_expect_eq(float_to_half(1.0f + 0x1p-11f), 0x3c00); /* half way, even below */
    cr_expect_eq(float_to_half(1.0f + 0x3p-11f), 0x3c02); /* half way, even above */
    cr_expect_eq(float_to_half(-INFINITY), 0xfc00);
    cr_expect_eq(float_to_bfloat16(1.0f + 0x1p-8f), 0x3f80);
    cr_expect_eq(float_to_bfloat16(1.0f + 0x3p-8f), 0x3f82);
    cr_expect_eq(float_to_bfloat16(3.4e38f), 0x7f80);
}
