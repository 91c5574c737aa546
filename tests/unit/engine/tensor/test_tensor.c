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
    struct shape shape = {
        8,
        {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};
    cr_assert_lt(strlen(SHAPE_STRING(&shape)), (size_t)SHAPE_TEXT);
    shape = SHAPE(1, DIM_UNKNOWN, 3);
    cr_assert_str_eq(SHAPE_STRING(&shape), "[1, ?, 3]");
    shape = SHAPE_SCALAR;
    cr_assert_str_eq(SHAPE_STRING(&shape), "[]");
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

Test(budget, a_run_takes_its_part_of_the_whole)
{
    struct memory_budget whole = {.limit = 1000}, a = {.limit = 600, .whole = &whole}, b = a;
    struct error err = {0};
    cr_assert_eq(memory_charge(&a, 601, &err), STATUS_INVALID, "more than a run may have");
    cr_assert(strstr(err.message, "too large"), "%s", err.message);
    cr_assert_eq(whole.used, 0);
    cr_assert_eq(memory_charge(&a, 500, &err), STATUS_OK);
    cr_assert_eq(memory_charge(&b, 501, &err), STATUS_SHORT_OF_MEMORY, "the other has it");
    cr_assert(strstr(err.message, "try again"), "%s", err.message);
    cr_assert_eq(b.used, 0);
    cr_assert_eq(memory_charge(&b, 500, &err), STATUS_OK);
    cr_assert_eq(whole.used, 1000);
    memory_uncharge(&a, 500);
    whole.limit = 550;
    cr_assert_eq(memory_charge(&b, 51, &err), STATUS_INVALID, "it would never fit");
    cr_assert_eq(memory_charge(&b, SIZE_MAX, &err), STATUS_INVALID);
    memory_uncharge(&b, 500);
    cr_assert(a.used == 0 && b.used == 0 && whole.used == 0);
}

Test(budget, a_tensor_outlives_its_run)
{
    struct memory_budget whole = {.limit = 1000}, run = {.limit = 600, .whole = &whole};
    struct memory_budget load = {.limit = 1000};
    struct error err = {0};
    struct tensor *made, *flat, *row, *constant, *wrapped;
    char bytes[4] = {0};
    cr_assert_eq(tensor_create(&run, DTYPE_U8, &SHAPE(4, 10), &made, &err), STATUS_OK);
    for (int i = 0; i < 40; i++)
        ((uint8_t *)made->data)[i] = (uint8_t)i;
    cr_assert_eq(tensor_view(made, &SHAPE(2, 20), &flat, &err), STATUS_OK);
    cr_assert(tensor_keep(flat, &whole) && tensor_keep(made, &whole), "once or twice");
    cr_assert(run.used == 0 && whole.used == 40);
    cr_assert_eq(tensor_part(flat, 1, 2, &row, &err), STATUS_OK);
    tensor_unref(made);
    tensor_unref(flat);
    cr_assert(shape_equal(&row->shape, &SHAPE(1, 20)));
    cr_assert_eq(((uint8_t *)row->data)[0], 20);
    cr_assert_eq(whole.used, 40);
    tensor_unref(row);
    cr_assert_eq(whole.used, 0);
    cr_assert_eq(tensor_create(&load, DTYPE_U8, &SHAPE(4), &constant, &err), STATUS_OK);
    cr_assert_eq(tensor_wrap(DTYPE_U8, &SHAPE(4), bytes, NULL, NULL, &wrapped, &err), STATUS_OK);
    cr_assert_not(tensor_keep(constant, &whole), "who owns it may go first");
    cr_assert_not(tensor_keep(wrapped, &whole));
    tensor_unref(constant);
    tensor_unref(wrapped);
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
