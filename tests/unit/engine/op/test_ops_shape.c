/* Operators on shapes and layouts: what the ONNX conformance cases leave open. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static const float numbers[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,
                                  15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29};

static void with_data(struct one_node *one, enum op op, int opset, size_t inputs,
                      struct shape shape)
{
    one_start(one, op, opset, inputs, 1);
    one_input(one, 0, DTYPE_F32, shape, numbers);
}

Test(ops_shape, reshape_resolves_zero_and_minus_one)
{
    static const struct {
        struct shape from;
        int64_t wanted[4];
        int64_t count, allow_zero;
        struct shape to; /* SHAPE_UNKNOWN: refused */
        const char *words;
    } cases[] = {
        {{2, {2, 6}}, {0, -1}, 2, 0, {2, {2, 6}}, NULL},
        {{2, {2, 6}}, {3, 0}, 2, 0, {-1, {0}}, "elements"},
        {{3, {0, 4, 5}}, {0, -1}, 2, 0, {2, {0, 20}}, NULL},
        {{2, {0, 4}}, {-1, 4}, 2, 0, {2, {0, 4}}, NULL},
        {{2, {0, 4}}, {4, 0}, 2, 1, {2, {4, 0}}, NULL},
        {{2, {0, 4}}, {0, -1}, 2, 1, {-1, {0}}, "both 0 and -1"},
        {{1, {6}}, {-1, -1}, 2, 0, {-1, {0}}, "more than one -1"},
        {{1, {6}}, {-1, 4}, 2, 0, {-1, {0}}, "divide"},
        {{1, {6}}, {6, -2}, 2, 0, {-1, {0}}, "expected"},
        {{1, {6}}, {6, 0}, 2, 0, {-1, {0}}, "no such dimension"},
        {{1, {6}}, {INT64_MAX, INT64_MAX}, 2, 0, {-1, {0}}, "expected"},
        {{1, {6}}, {INT64_MAX, -1}, 2, 0, {-1, {0}}, "divide"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        with_data(&one, OP_RESHAPE, 14, 2, cases[i].from);
        one_input(&one, 1, DTYPE_I64, SHAPE(cases[i].count), cases[i].wanted);
        one_int(&one, "allowzero", cases[i].allow_zero);
        if (cases[i].words) {
            one_fails(&one, STATUS_SHAPE, cases[i].words);
        } else {
            cr_assert_eq(one_run(&one), STATUS_OK, "case %zu: %s", i, one.err.message);
            one_equals(&one, 0, DTYPE_F32, cases[i].to, numbers);
        }
        one_end(&one);
    }
}

Test(ops_shape, slice_takes_extremes)
{
    static const struct {
        int64_t start, end, step, count;
        float expected[5];
    } cases[] = {
        {0, INT64_MAX, 1, 5, {0, 1, 2, 3, 4}},
        {INT64_MIN, INT64_MAX, 2, 3, {0, 2, 4}},
        {-1, INT64_MIN, -1, 5, {4, 3, 2, 1, 0}},
        {INT64_MAX, INT64_MIN, -2, 3, {4, 2, 0}},
        {INT64_MAX, INT64_MIN, INT64_MIN, 1, {4}},
        {0, 5, INT64_MAX, 1, {0}},
        {3, 1, 1, 0, {0}},
        {1, 3, -1, 0, {0}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        with_data(&one, OP_SLICE, 13, 5, SHAPE(5));
        ONE_I64(&one, 1, cases[i].start);
        ONE_I64(&one, 2, cases[i].end);
        ONE_I64(&one, 3, -1);
        ONE_I64(&one, 4, cases[i].step);
        cr_assert_eq(one_run(&one), STATUS_OK, "case %zu: %s", i, one.err.message);
        one_equals(&one, 0, DTYPE_F32, SHAPE(cases[i].count), cases[i].expected);
        one_end(&one);
    }
    struct one_node one;
    with_data(&one, OP_SLICE, 13, 5, SHAPE(0));
    ONE_I64(&one, 1, -1);
    ONE_I64(&one, 2, INT64_MIN);
    ONE_I64(&one, 4, -1);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, SHAPE(0), NULL);
    one_end(&one);
}

/* One attribute or list that is wrong, and the word that must be in the sentence. */
Test(ops_shape, wrong_axes_and_lists)
{
    static const struct {
        enum op op;
        int opset;
        struct shape data;
        const char *attribute; /* an int; NULL: none */
        int64_t value;
        int64_t list[4]; /* input 1 */
        int64_t count;   /* -1: no input 1 */
        const char *words;
    } cases[] = {
        {OP_CONCAT, 13, {2, {2, 3}}, "axis", 2, {0}, -1, "axis 2"},
        {OP_CONCAT, 13, {2, {2, 3}}, "axis", INT64_MIN, {0}, -1, "out of range"},
        {OP_CONCAT, 13, {2, {2, 3}}, NULL, 0, {0}, -1, "'axis'"},
        {OP_CONCAT, 13, {0, {0}}, "axis", 0, {0}, -1, "scalar"},
        {OP_FLATTEN, 13, {2, {2, 3}}, "axis", 3, {0}, -1, "axis 3"},
        {OP_FLATTEN, 13, {2, {2, 3}}, "axis", -3, {0}, -1, "axis -3"},
        {OP_SQUEEZE, 13, {2, {2, 3}}, NULL, 0, {0}, 1, "cannot be squeezed"},
        {OP_SQUEEZE, 13, {2, {1, 3}}, NULL, 0, {2}, 1, "axis 2"},
        {OP_UNSQUEEZE, 13, {2, {2, 3}}, NULL, 0, {0, 0}, 2, "twice"},
        {OP_UNSQUEEZE, 13, {2, {2, 3}}, NULL, 0, {0, -4}, 2, "twice"},
        {OP_UNSQUEEZE, 13, {2, {2, 3}}, NULL, 0, {4}, 1, "axis 4"},
        {OP_SPLIT, 13, {2, {2, 3}}, NULL, 0, {3}, 1, "add up"},
        {OP_SPLIT, 13, {2, {2, 3}}, NULL, 0, {-2}, 1, "expected"},
        {OP_SPLIT, 13, {2, {2, 3}}, NULL, 0, {1, 1}, 2, "2 extents for 1 outputs"},
        {OP_SPLIT, 18, {2, {2, 3}}, "num_outputs", 2, {0}, -1, "num_outputs"},
        {OP_EXPAND, 13, {2, {2, 3}}, NULL, 0, {2, 4}, 2, "broadcast"},
        {OP_EXPAND, 13, {2, {2, 3}}, NULL, 0, {-1}, 1, "dimension 0"},
        {OP_TILE, 13, {2, {2, 3}}, NULL, 0, {2}, 1, "1 repeats for 2 axes"},
        {OP_TILE, 13, {2, {2, 3}}, NULL, 0, {2, -1}, 2, "-1 times"},
        {OP_TILE, 13, {2, {2, 3}}, NULL, 0, {INT64_MAX, INT64_MAX}, 2, "times"},
        {OP_PAD, 13, {2, {2, 3}}, NULL, 0, {1, 1}, 2, "2 pads for 2 axes"},
        {OP_PAD, 13, {2, {2, 3}}, NULL, 0, {-3, 0, 0, 0}, 4, "cannot be padded"},
        {OP_PAD, 13, {2, {2, 3}}, NULL, 0, {INT64_MAX, 0, 1, 0}, 4, "cannot be padded"},
        {OP_DEPTH_TO_SPACE, 13, {4, {1, 3, 2, 2}}, "blocksize", 2, {0}, -1, "divide"},
        {OP_DEPTH_TO_SPACE, 13, {4, {1, 4, 2, 2}}, "blocksize", 0, {0}, -1, "blocksize"},
        {OP_SPACE_TO_DEPTH, 13, {4, {1, 1, 3, 4}}, "blocksize", 2, {0}, -1, "divide"},
        {OP_CENTER_CROP_PAD, 18, {2, {2, 3}}, NULL, 0, {2}, 1, "1 extents for 2 axes"},
        {OP_CENTER_CROP_PAD, 18, {2, {2, 3}}, NULL, 0, {2, -2}, 2, "-2"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        with_data(&one, cases[i].op, cases[i].opset, cases[i].count < 0 ? 1 : 2, cases[i].data);
        if (cases[i].attribute)
            one_int(&one, cases[i].attribute, cases[i].value);
        if (cases[i].count >= 0)
            one_input(&one, 1, DTYPE_I64, SHAPE(cases[i].count), cases[i].list);
        enum status status = one_run(&one);
        cr_expect(status == STATUS_SHAPE || status == STATUS_MODEL, "case %zu (%s): %s", i,
                  op_name(cases[i].op), status_word(status));
        cr_expect(status != STATUS_OK && strstr(one.err.message, cases[i].words),
                  "case %zu does not say '%s': %s", i, cases[i].words, one.err.message);
        one_end(&one);
    }
}

Test(ops_shape, permutations_are_checked)
{
    static const struct {
        int64_t perm[3];
        size_t count;
        const char *words;
    } cases[] = {{{0, 1}, 2, "2 axes"},
                 {{0, 1, 1}, 3, "twice"},
                 {{0, 1, 3}, 3, "axis 3, expected 0 to 2"},
                 {{0, 1, -1}, 3, "axis -1, expected 0 to 2"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        with_data(&one, OP_TRANSPOSE, 13, 1, SHAPE(2, 3, 4));
        one_ints(&one, "perm", cases[i].perm, cases[i].count);
        one_fails(&one, STATUS_SHAPE, cases[i].words);
        one_end(&one);
    }
}

/* What a few bytes of a model can ask for. */
Test(ops_shape, huge_outputs_are_refused_before_they_are_made)
{
    static const struct {
        enum op op;
        int64_t list[4];
        int64_t count;
    } cases[] = {
        {OP_EXPAND, {1000000000, 1, 1, 1}, 4},  {OP_EXPAND, {INT64_MAX / 8, 1}, 2},
        {OP_EXPAND, {INT64_MAX, INT64_MAX}, 2}, {OP_TILE, {1 << 30}, 1},
        {OP_PAD, {(int64_t)1 << 40, 0}, 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        with_data(&one, cases[i].op, 13, 2, SHAPE(1));
        one_input(&one, 1, DTYPE_I64, SHAPE(cases[i].count), cases[i].list);
        one.budget.limit = 64 << 20;
        enum status status = one_run(&one);
        cr_expect(status == STATUS_NO_MEMORY || status == STATUS_SHAPE, "%s: %s",
                  op_name(cases[i].op), status_word(status));
        one_end(&one);
    }
}

Test(ops_shape, ranges_end)
{
    static const struct {
        float start, limit, delta;
        int64_t count; /* -1: refused */
    } cases[] = {{0, 5, 2, 3},        {5, 0, -2, 3},       {5, 0, 1, 0},
                 {0, 1, 0, -1},       {0, NAN, 1, -1},     {0, INFINITY, 1, -1},
                 {INFINITY, 0, 1, 0}, {0, 1, INFINITY, 0}, {0, 1e30f, 1e-30f, -1},
                 {0, 1, NAN, -1},     {0, 0.6f, 0.2f, 4}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, OP_RANGE, 11, 3, 1);
        one_input(&one, 0, DTYPE_F32, SHAPE_SCALAR, &cases[i].start);
        one_input(&one, 1, DTYPE_F32, SHAPE_SCALAR, &cases[i].limit);
        one_input(&one, 2, DTYPE_F32, SHAPE_SCALAR, &cases[i].delta);
        enum status status = one_run(&one);
        if (cases[i].count < 0)
            cr_expect_eq(status, STATUS_SHAPE, "case %zu: %s", i, status_word(status));
        else
            cr_expect(status == STATUS_OK && one.out[0]->shape.dims[0] == cases[i].count,
                      "case %zu: %s", i, one.err.message);
        one_end(&one);
    }
    const int64_t low = INT64_MIN, high = INT64_MAX, one_step = 1, big = (int64_t)1 << 62;
    const int64_t expected[] = {low, low + big, 0, big};
    for (int i = 0; i < 2; i++) {
        struct one_node one;
        one_start(&one, OP_RANGE, 11, 3, 1);
        one_input(&one, 0, DTYPE_I64, SHAPE_SCALAR, &low);
        one_input(&one, 1, DTYPE_I64, SHAPE_SCALAR, &high);
        one_input(&one, 2, DTYPE_I64, SHAPE_SCALAR, i ? &big : &one_step);
        if (i) {
            cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            one_equals(&one, 0, DTYPE_I64, SHAPE(4), expected);
        } else {
            one_fails(&one, STATUS_SHAPE, "too many");
        }
        one_end(&one);
    }
}

/* Pads longer than the data, cropping on one side and padding on the other, for every mode. */
Test(ops_shape, padding_repeats_the_data_as_often_as_needed)
{
    static const struct {
        const char *mode;
        int64_t begin, end, count;
        float expected[12];
    } cases[] = {
        {"reflect", 5, 2, 10, {1, 0, 1, 2, 1, 0, 1, 2, 1, 0}},
        {"edge", 2, 2, 7, {0, 0, 0, 1, 2, 2, 2}},
        {"wrap", 4, 4, 11, {2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0}},
        {"constant", -1, 2, 4, {1, 2, 0, 0}},
        {"edge", -1, 2, 4, {1, 2, 2, 2}},
        {"wrap", -1, 2, 4, {1, 2, 1, 2}},
        {"reflect", 1, -1, 3, {1, 0, 1}},
        {"constant", -5, 6, 4, {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        with_data(&one, OP_PAD, 19, 2, SHAPE(3));
        ONE_I64(&one, 1, cases[i].begin, cases[i].end);
        one_string(&one, "mode", cases[i].mode);
        cr_assert_eq(one_run(&one), STATUS_OK, "case %zu: %s", i, one.err.message);
        one_equals(&one, 0, DTYPE_F32, SHAPE(cases[i].count), cases[i].expected);
        one_end(&one);
    }
    struct one_node one;
    with_data(&one, OP_PAD, 19, 2, SHAPE(0));
    ONE_I64(&one, 1, 1, 1);
    one_string(&one, "mode", "edge");
    one_fails(&one, STATUS_SHAPE, "no elements left");
    one_end(&one);
}

Test(ops_shape, transposes_of_every_order_and_size)
{
    static const int64_t dims[] = {3, 17, 5, 20};
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_F16, DTYPE_I32, DTYPE_F64};
    static uint8_t data[3 * 17 * 5 * 20 * 8];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 31 + i / 251);
    for (int order = 0; order < 24; order++) {
        int64_t perm[4], left[4] = {0, 1, 2, 3};
        for (int i = 0, code = order; i < 4; i++) {
            int pick = code % (4 - i);
            code /= 4 - i;
            perm[i] = left[pick];
            memmove(left + pick, left + pick + 1, (size_t)(3 - pick) * sizeof *left);
        }
        struct one_node one;
        enum dtype dtype = dtypes[order % 4];
        size_t size = dtype_size(dtype);
        one_start(&one, OP_TRANSPOSE, 13, 1, 1);
        one_input(&one, 0, dtype, SHAPE(3, 17, 5, 20), data);
        one_ints(&one, "perm", perm, 4);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        const uint8_t *out = one.out[0]->data;
        int64_t at[4] = {0};
        for (size_t n = 0; n < 3 * 17 * 5 * 20; n++) {
            int64_t from[4];
            for (int i = 0; i < 4; i++)
                from[perm[i]] = at[i];
            size_t source = (size_t)(((from[0] * 17 + from[1]) * 5 + from[2]) * 20 + from[3]);
            cr_assert(!memcmp(out + n * size, data + source * size, size), "order %d, element %zu",
                      order, n);
            for (int i = 3; i >= 0 && ++at[i] == dims[perm[i]]; i--)
                at[i] = 0;
        }
        one_end(&one);
    }
}

Test(ops_shape, views_share_the_memory)
{
    static const enum op ops[] = {OP_RESHAPE, OP_FLATTEN, OP_SQUEEZE, OP_UNSQUEEZE, OP_IDENTITY};
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        struct one_node one;
        bool list = ops[i] == OP_RESHAPE || ops[i] == OP_UNSQUEEZE;
        with_data(&one, ops[i], 13, list ? 2 : 1, SHAPE(2, 1, 3));
        if (list)
            ONE_I64(&one, 1, 0);
        if (ops[i] == OP_RESHAPE)
            ONE_I64(&one, 1, 3, 2);
        cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
        cr_expect_eq(one.out[0]->data, one.node->inputs[0]->known->data, "%s copies",
                     op_name(ops[i]));
        cr_expect_eq(one.budget.used, 0u);
        one_end(&one);
    }
}

/* The reverse of what a list needs: contents that are not known leave the output unknown. */
Test(ops_shape, unknown_contents_leave_the_shape_open)
{
    static const enum op ops[] = {OP_RESHAPE, OP_EXPAND, OP_TILE, OP_PAD, OP_UNSQUEEZE};
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        struct one_node one;
        with_data(&one, ops[i], 13, 2, SHAPE(2, 3));
        one.node->inputs[1] = graph_add_value(one.graph, "list", DTYPE_I64, &SHAPE(2));
        cr_expect_eq(graph_infer_node(one.node, &one.err), STATUS_OK, "%s", one.err.message);
        cr_expect_eq(one.node->outputs[0]->dtype, DTYPE_F32);
        cr_expect_eq(one.node->outputs[0]->shape.rank, SHAPE_UNKNOWN, "%s", op_name(ops[i]));
        one_fails(&one, STATUS_MODEL, "no contents");
        one_end(&one);
    }
}
