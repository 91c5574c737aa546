/* Gather, scatter, selections, sorting: what the ONNX conformance cases leave open. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static const float numbers[24] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                  12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};

Test(ops_index, indices_out_of_range_are_named)
{
    static const int64_t bad[] = {3, -4, INT64_MAX, INT64_MIN};
    static const enum op ops[] = {OP_GATHER, OP_GATHER_ELEMENTS, OP_GATHER_ND, OP_SCATTER_ELEMENTS,
                                  OP_SCATTER_ND};
    for (size_t o = 0; o < COUNT_OF(ops); o++) {
        for (size_t i = 0; i < COUNT_OF(bad); i++) {
            struct one_node one;
            bool scatter = o >= 3;
            one_start(&one, ops[o], 16, scatter ? 3 : 2, 1);
            one_input(&one, 0, DTYPE_F32, SHAPE(3), numbers);
            one_input(&one, 1, DTYPE_I64,
                      ops[o] == OP_SCATTER_ND || ops[o] == OP_GATHER_ND ? SHAPE(1, 1) : SHAPE(1),
                      &bad[i]);
            if (scatter)
                one_input(&one, 2, DTYPE_F32, SHAPE(1), numbers);
            one_fails(&one, STATUS_INVALID, "out of range");
            char text[32];
            snprintf(text, sizeof text, "index %lld ", (long long)bad[i]);
            cr_expect(strstr(one.err.message, text), "%s", one.err.message);
            one_end(&one);
        }
    }
}

Test(ops_index, shapes_that_do_not_fit)
{
    static const struct {
        enum op op;
        struct shape data, indices, updates;
        const char *words;
    } cases[] = {
        {OP_GATHER, {0, {0}}, {1, {1}}, {-1, {0}}, "scalar"},
        {OP_GATHER_ELEMENTS, {2, {2, 3}}, {1, {2}}, {-1, {0}}, "do not fit"},
        {OP_GATHER_ELEMENTS, {2, {2, 3}}, {2, {2, 4}}, {-1, {0}}, "do not fit"},
        {OP_GATHER_ND, {2, {2, 3}}, {2, {1, 3}}, {-1, {0}}, "do not address"},
        {OP_GATHER_ND, {2, {2, 3}}, {2, {1, 0}}, {-1, {0}}, "do not address"},
        {OP_GATHER_ND, {2, {2, 3}}, {0, {0}}, {-1, {0}}, "do not address"},
        {OP_SCATTER_ND, {2, {2, 3}}, {2, {1, 3}}, {1, {1}}, "do not address"},
        {OP_SCATTER_ND, {2, {2, 3}}, {2, {1, 2}}, {2, {1, 1}}, "updates"},
        {OP_SCATTER_ELEMENTS, {2, {2, 3}}, {2, {1, 2}}, {2, {2, 1}}, "updates"},
    };
    const int64_t zeros[8] = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        bool scatter = cases[i].updates.rank >= 0;
        one_start(&one, cases[i].op, 16, scatter ? 3 : 2, 1);
        one_input(&one, 0, DTYPE_F32, cases[i].data, numbers);
        one_input(&one, 1, DTYPE_I64, cases[i].indices, zeros);
        if (cases[i].op == OP_GATHER_ELEMENTS)
            one_int(&one, "axis", 0);
        if (scatter)
            one_input(&one, 2, DTYPE_F32, cases[i].updates, numbers);
        one_fails(&one, STATUS_SHAPE, cases[i].words);
        one_end(&one);
    }
}

Test(ops_index, empty_sets_of_indices)
{
    struct one_node one;
    one_start(&one, OP_GATHER, 13, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(0, 3), NULL);
    one_input(&one, 1, DTYPE_I64, SHAPE(0), NULL);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(0, 3), NULL);
    one_end(&one);
    one_start(&one, OP_SCATTER_ND, 16, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 3), numbers);
    one_input(&one, 1, DTYPE_I64, SHAPE(0, 1), NULL);
    one_input(&one, 2, DTYPE_F32, SHAPE(0, 3), NULL);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 3), numbers);
    one_end(&one);
}

/* Later updates of one place win, and reductions see all of them, in every dtype. */
Test(ops_index, repeated_indices)
{
    static const struct {
        const char *reduction;
        double expected;
    } cases[] = {{"none", 3}, {"add", 9}, {"mul", 24}, {"max", 4}, {"min", 2}};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_I32,
                                        DTYPE_I64, DTYPE_U8,  DTYPE_BF16};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            struct one_node cast, one;
            const float from[] = {2, 4, 3};
            one_start(&cast, OP_CAST, 13, 1, 1);
            one_int(&cast, "to", dtypes[d]);
            one_input(&cast, 0, DTYPE_F32, SHAPE(3), from);
            cr_assert_eq(one_run(&cast), STATUS_OK);
            const char *data = cast.out[0]->data;
            one_start(&one, OP_SCATTER_ELEMENTS, 18, 3, 1);
            one_string(&one, "reduction", cases[i].reduction);
            one_input(&one, 0, dtypes[d], SHAPE(1), data);
            ONE_I64(&one, 1, 0, -1);
            one_int(&one, "axis", 0);
            one_input(&one, 2, dtypes[d], SHAPE(2), data + dtype_size(dtypes[d]));
            cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            cr_expect(tensor_number(one.out[0], 0) == cases[i].expected, "%s of %s: %g",
                      cases[i].reduction, dtype_name(dtypes[d]), tensor_number(one.out[0], 0));
            one_end(&one);
            one_end(&cast);
        }
    }
}

Test(ops_index, top_k_is_stable_and_puts_nan_first)
{
    const float x[] = {1, NAN, 3, -0.0f, 3, 0, -INFINITY, 3};
    const int64_t largest[] = {1, 2, 4, 7, 0}, smallest[] = {6, 3, 5, 0, 2};
    for (int i = 0; i < 2; i++) {
        struct one_node one;
        one_start(&one, OP_TOP_K, 11, 2, 2);
        one_input(&one, 0, DTYPE_F32, SHAPE(8), x);
        ONE_I64(&one, 1, 5);
        one_int(&one, "largest", i);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        one_equals(&one, 1, DTYPE_I64, SHAPE(5), i ? largest : smallest);
        one_end(&one);
    }
}

Test(ops_index, top_k_counts_are_checked)
{
    static const int64_t counts[] = {9, -1, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        struct one_node one;
        one_start(&one, OP_TOP_K, 11, 2, 2);
        one_input(&one, 0, DTYPE_F32, SHAPE(8), numbers);
        ONE_I64(&one, 1, counts[i]);
        one_fails(&one, STATUS_SHAPE, "must be 0 to 8, the size of axis 0");
        one_end(&one);
    }
    struct one_node one;
    one_start(&one, OP_TOP_K, 11, 2, 2);
    one_input(&one, 0, DTYPE_F32, SHAPE(8), numbers);
    ONE_I64(&one, 1, 0);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(0), NULL);
    one_end(&one);
}

/* Sorting in order of size against picking maxima one by one. */
Test(ops_index, top_k_of_many)
{
    enum { N = 1000, K = 100 };
    int32_t x[N], left[N];
    int64_t expected[K];
    for (int i = 0; i < N; i++)
        x[i] = left[i] = (int32_t)((uint32_t)i * 2654435761u % 257);
    for (int k = 0; k < K; k++) {
        int best = 0;
        for (int i = 1; i < N; i++)
            if (left[i] > left[best])
                best = i;
        expected[k] = best;
        left[best] = INT32_MIN;
    }
    struct one_node one;
    one_start(&one, OP_TOP_K, 11, 2, 2);
    one_input(&one, 0, DTYPE_I32, SHAPE(N), x);
    ONE_I64(&one, 1, K);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 1, DTYPE_I64, SHAPE(K), expected);
    one_end(&one);
}

Test(ops_index, one_hot_depth_is_bounded)
{
    static const int64_t depths[] = {0, -3, (int64_t)1 << 40, INT64_MAX};
    const int64_t indices[] = {0, 1};
    for (size_t i = 0; i < COUNT_OF(depths); i++) {
        struct one_node one;
        one_start(&one, OP_ONE_HOT, 11, 3, 1);
        one_input(&one, 0, DTYPE_I64, SHAPE(2), indices);
        one_input(&one, 1, DTYPE_I64, SHAPE_SCALAR, &depths[i]);
        one_input(&one, 2, DTYPE_F32, SHAPE(2), numbers);
        one.budget.limit = 1 << 20;
        enum status status = one_run(&one);
        cr_expect(status == STATUS_SHAPE || status == STATUS_NO_MEMORY, "%s", status_word(status));
        one_end(&one);
    }
}

Test(ops_index, non_zero_of_nothing_and_of_a_scalar)
{
    const float seven = 7, minus_zero = -0.0f;
    const int64_t first = 0;
    struct one_node one;
    one_start(&one, OP_NON_ZERO, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 0, 3), NULL);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I64, SHAPE(3, 0), NULL);
    one_end(&one);
    one_start(&one, OP_NON_ZERO, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE_SCALAR, &seven);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I64, SHAPE(1, 1), &first);
    one_end(&one);
    one_start(&one, OP_NON_ZERO, 13, 1, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1), &minus_zero);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I64, SHAPE(1, 0), NULL);
    one_end(&one);
}

Test(ops_index, unique_of_empty_and_of_nan)
{
    const float x[] = {NAN, 1, -0.0f, NAN, 0};
    const int64_t inverse[] = {2, 1, 0, 2, 0}, firsts[] = {2, 1, 0}, counts[] = {2, 1, 2};
    struct one_node one;
    one_start(&one, OP_UNIQUE, 11, 1, 4);
    one_input(&one, 0, DTYPE_F32, SHAPE(5), x);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 1, DTYPE_I64, SHAPE(3), firsts);
    one_equals(&one, 2, DTYPE_I64, SHAPE(5), inverse);
    one_equals(&one, 3, DTYPE_I64, SHAPE(3), counts);
    one_end(&one);
    one_start(&one, OP_UNIQUE, 11, 1, 4);
    one_input(&one, 0, DTYPE_I64, SHAPE(0), NULL);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I64, SHAPE(0), NULL);
    one_equals(&one, 3, DTYPE_I64, SHAPE(0), NULL);
    one_end(&one);
}

Test(ops_index, cumulative_sums_wrap_and_check_their_axis)
{
    const int32_t x[] = {INT32_MAX, 1, 1}, expected[] = {INT32_MAX, INT32_MIN, INT32_MIN + 1};
    const int64_t first = 0, beyond = 1;
    struct one_node one;
    one_start(&one, OP_CUM_SUM, 14, 2, 1);
    one_input(&one, 0, DTYPE_I32, SHAPE(3), x);
    one_input(&one, 1, DTYPE_I64, SHAPE_SCALAR, &first);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I32, SHAPE(3), expected);
    one_end(&one);
    one_start(&one, OP_CUM_SUM, 14, 2, 1);
    one_input(&one, 0, DTYPE_I32, SHAPE(3), x);
    one_input(&one, 1, DTYPE_I64, SHAPE_SCALAR, &beyond);
    one_fails(&one, STATUS_SHAPE, "axis 1");
    one_end(&one);
}
