/* Gemm, MatMul, Einsum: what the ONNX conformance cases leave open. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

#define MANY 4096

/* Small whole numbers: sums of products are exact in float. */
static void fill(float *values, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        values[i] = (float)((int)((i * 7 + seed * 13) % 11) - 5);
}

static void expect_floats(struct one_node *one, struct shape shape, const float *expected)
{
    cr_assert_eq(one_run(one), STATUS_OK, "%s", one->err.message);
    one_equals(one, 0, DTYPE_F32, shape, expected);
    one_end(one);
}

Test(ops_linear, gemm_agrees_with_the_definition_at_odd_sizes)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {9, 17, 4}, {4, 8, 130}, {5, 300, 3}};
    static float a[MANY], b[MANY], c[MANY], expected[MANY];
    for (size_t s = 0; s < COUNT_OF(sizes) * 4; s++) {
        int64_t m = sizes[s / 4][0], n = sizes[s / 4][1], k = sizes[s / 4][2];
        bool trans_a = s & 1, trans_b = s & 2;
        fill(a, (size_t)(m * k), 1);
        fill(b, (size_t)(k * n), 2);
        fill(c, (size_t)n, 3);
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j++) {
                float sum = 0;
                for (int64_t p = 0; p < k; p++)
                    sum += (trans_a ? a[p * m + i] : a[i * k + p]) *
                           (trans_b ? b[j * k + p] : b[p * n + j]);
                expected[i * n + j] = 2 * sum + 0.5f * c[j];
            }
        }
        struct one_node one;
        one_start(&one, OP_GEMM, 13, 3, 1);
        one_input(&one, 0, DTYPE_F32, trans_a ? SHAPE(k, m) : SHAPE(m, k), a);
        one_input(&one, 1, DTYPE_F32, trans_b ? SHAPE(n, k) : SHAPE(k, n), b);
        one_input(&one, 2, DTYPE_F32, SHAPE(n), c);
        one_int(&one, "transA", trans_a);
        one_int(&one, "transB", trans_b);
        one_float(&one, "alpha", 2);
        one_float(&one, "beta", 0.5f);
        expect_floats(&one, SHAPE(m, n), expected);
    }
}

Test(ops_linear, integer_products_wrap_and_start_from_c)
{
    const int32_t a[] = {INT32_MAX, 2}, b[] = {2, 3}, c[] = {5};
    const int32_t expected[] = {9}; /* 2 * (2^31 - 1) + 6 + 5 modulo 2^32 */
    struct one_node one;
    one_start(&one, OP_GEMM, 13, 3, 1);
    one_input(&one, 0, DTYPE_I32, SHAPE(1, 2), a);
    one_input(&one, 1, DTYPE_I32, SHAPE(2, 1), b);
    one_input(&one, 2, DTYPE_I32, SHAPE(1), c);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I32, SHAPE(1, 1), expected);
    one_end(&one);
    const int64_t big[] = {INT64_MIN, INT64_MAX}, two[] = {2, 2}, sum[] = {-2};
    one_start(&one, OP_MATMUL, 13, 2, 1);
    one_input(&one, 0, DTYPE_I64, SHAPE(2), big);
    one_input(&one, 1, DTYPE_I64, SHAPE(2), two);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_I64, SHAPE_SCALAR, sum);
    one_end(&one);
}

Test(ops_linear, matmul_broadcasts_batches_both_ways)
{
    static float a[MANY], b[MANY], expected[MANY];
    fill(a, 2 * 1 * 3 * 4, 4);
    fill(b, 5 * 4 * 9, 5);
    for (size_t x = 0; x < 2; x++)
        for (size_t y = 0; y < 5; y++)
            for (size_t i = 0; i < 3; i++)
                for (size_t j = 0; j < 9; j++) {
                    float sum = 0;
                    for (size_t p = 0; p < 4; p++)
                        sum += a[x * 12 + i * 4 + p] * b[y * 36 + p * 9 + j];
                    expected[((x * 5 + y) * 3 + i) * 9 + j] = sum;
                }
    struct one_node one;
    one_start(&one, OP_MATMUL, 13, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 1, 3, 4), a);
    one_input(&one, 1, DTYPE_F32, SHAPE(5, 4, 9), b);
    expect_floats(&one, SHAPE(2, 5, 3, 9), expected);
}

Test(ops_linear, products_over_nothing_are_zero)
{
    const float zeros[6] = {0};
    static const enum op ops[] = {OP_MATMUL, OP_GEMM};
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        struct one_node one;
        one_start(&one, ops[i], 13, 2, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE(2, 0), NULL);
        one_input(&one, 1, DTYPE_F32, SHAPE(0, 3), NULL);
        expect_floats(&one, SHAPE(2, 3), zeros);
    }
}

Test(ops_linear, operands_that_do_not_fit)
{
    static const struct {
        enum op op;
        struct shape a, b, c;
        const char *words;
    } cases[] = {
        {OP_GEMM, {1, {4}}, {2, {4, 2}}, {-1, {0}}, "two matrices"},
        {OP_GEMM, {2, {3, 4}}, {2, {5, 2}}, {-1, {0}}, "A.cols == B.rows"},
        {OP_GEMM, {2, {3, 4}}, {2, {4, 2}}, {1, {3}}, "broadcast"},
        {OP_GEMM, {2, {1, 4}}, {2, {4, 2}}, {2, {3, 2}}, "broadcast"},
        {OP_MATMUL, {0, {0}}, {1, {4}}, {-1, {0}}, "cannot be multiplied"},
        {OP_MATMUL, {2, {3, 4}}, {1, {3}}, {-1, {0}}, "cannot be multiplied"},
        {OP_MATMUL, {3, {2, 3, 4}}, {3, {3, 4, 2}}, {-1, {0}}, "cannot be multiplied"},
    };
    static const float zeros[24];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        bool biased = cases[i].c.rank >= 0;
        one_start(&one, cases[i].op, 13, biased ? 3 : 2, 1);
        one_input(&one, 0, DTYPE_F32, cases[i].a, zeros);
        one_input(&one, 1, DTYPE_F32, cases[i].b, zeros);
        if (biased)
            one_input(&one, 2, DTYPE_F32, cases[i].c, zeros);
        one_fails(&one, STATUS_SHAPE, cases[i].words);
        one_end(&one);
    }
}

Test(ops_linear, an_outer_product_is_charged_before_it_is_made)
{
    struct one_node one;
    static float column[60000];
    one_start(&one, OP_MATMUL, 13, 2, 1);
    one.budget.limit = 1 << 20;
    one_input(&one, 0, DTYPE_F32, SHAPE(60000, 1), column);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 60000), column);
    one_fails(&one, STATUS_NO_MEMORY, "memory limit");
    one_end(&one);
}

/* ---- Einsum ---- */

static void einsum(struct one_node *one, const char *equation, struct shape a, struct shape b)
{
    static float values[24];
    for (size_t i = 0; i < COUNT_OF(values); i++)
        values[i] = (float)i;
    one_start(one, OP_EINSUM, 12, b.rank >= 0 ? 2 : 1, 1);
    one_input(one, 0, DTYPE_F32, a, values);
    if (b.rank >= 0)
        one_input(one, 1, DTYPE_F32, b, values);
    one_string(one, "equation", equation);
}

Test(ops_linear, einsum_diagonals_and_implicit_outputs)
{
    const float diagonal[] = {0, 4, 8}, turned[] = {0, 3, 1, 4, 2, 5};
    const float upper_first[] = {0, 3, 1, 4, 2, 5};
    struct one_node one;
    einsum(&one, "ii", SHAPE(2, 2), SHAPE_NONE);
    const float small[] = {3}; /* 0 + 3 */
    expect_floats(&one, SHAPE_SCALAR, small);
    einsum(&one, "ii->i", SHAPE(3, 3), SHAPE_NONE);
    expect_floats(&one, SHAPE(3), diagonal);
    einsum(&one, " ba ", SHAPE(2, 3), SHAPE_NONE);
    expect_floats(&one, SHAPE(3, 2), turned);
    einsum(&one, "bA", SHAPE(2, 3), SHAPE_NONE);
    expect_floats(&one, SHAPE(3, 2), upper_first);
    einsum(&one, "ij->", SHAPE(1, 4), SHAPE_NONE);
    const float sum[] = {6};
    expect_floats(&one, SHAPE_SCALAR, sum);
}

Test(ops_linear, einsum_ellipses_of_different_lengths)
{
    /* [2, 2] and [2]: the shorter ellipsis is aligned at its end */
    const float expected[] = {0, 1, 0, 3};
    struct one_node one;
    einsum(&one, "...,...->...", SHAPE(2, 2), SHAPE(2));
    expect_floats(&one, SHAPE(2, 2), expected);
}

Test(ops_linear, einsum_malformed_equations)
{
    static const struct {
        const char *equation;
        enum status status;
        const char *words;
    } cases[] = {
        {"ij", STATUS_MODEL, "terms"},
        {"ij,jk,kl->il", STATUS_MODEL, "terms"},
        {"ij,jk->iz", STATUS_MODEL, "no operand has"},
        {"ij,jk->ii", STATUS_MODEL, "twice"},
        {"i.j,jk->ik", STATUS_MODEL, "stray"},
        {"i......j,jk->ik", STATUS_MODEL, "stray"},
        {"i1,jk->ik", STATUS_MODEL, "holds '1'"},
        {"ij,jk-ik", STATUS_MODEL, "'-'"},
        {"ij,jk->ik,l", STATUS_MODEL, "after its output"},
        {"ijk,jk->ik", STATUS_SHAPE, "expected 3 dimensions"},
        {"i,jk->ik", STATUS_SHAPE, "expected 1 dimensions"},
        {"ij,ik->jk", STATUS_SHAPE, "2 and of 3"},
        {"ijklmnopqr,jk->ik", STATUS_UNSUPPORTED, "more than"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        einsum(&one, cases[i].equation, SHAPE(2, 3), SHAPE(3, 4));
        one_fails(&one, cases[i].status, cases[i].words);
        one_end(&one);
    }
}

Test(ops_linear, einsum_of_three_operands_and_of_nothing)
{
    const float a[] = {1, 2, 3, 4}, b[] = {1, 0, 0, 1}, c[] = {2, 0, 0, 2};
    const float expected[] = {2, 4, 6, 8};
    struct one_node one;
    one_start(&one, OP_EINSUM, 12, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 2), a);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), b);
    one_input(&one, 2, DTYPE_F32, SHAPE(2, 2), c);
    one_string(&one, "equation", "ij,jk,kl->il");
    expect_floats(&one, SHAPE(2, 2), expected);
    const float zeros[6] = {0};
    one_start(&one, OP_EINSUM, 12, 2, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, 0), NULL);
    one_input(&one, 1, DTYPE_F32, SHAPE(0, 3), NULL);
    one_string(&one, "equation", "ij,jk->ik");
    expect_floats(&one, SHAPE(2, 3), zeros);
}
