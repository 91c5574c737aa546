/* Scores to classes: softmax, top-k, ties, values that are not finite, output shapes and dtypes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/class_scores.h"

Test(class_scores, softmax_and_order)
{
    static const float scores[] = {1, 3, 2};
    struct prediction *best;
    size_t count;
    cr_assert_eq(scores_top_k(scores, 3, false, 5, &best, &count, NULL), STATUS_OK);
    cr_assert_eq(count, 3, "k is cut to the number of classes");
    cr_assert_eq(best[0].index, 1);
    cr_assert_eq(best[1].index, 2);
    cr_assert_eq(best[2].index, 0);
    double sum = exp(-2) + 1 + exp(-1);
    cr_assert_float_eq(best[0].probability, 1 / sum, 1e-7);
    cr_assert_float_eq(best[1].probability, exp(-1) / sum, 1e-7);
    cr_assert_float_eq(best[2].probability, exp(-2) / sum, 1e-7);
    free(best);
}

Test(class_scores, huge_scores_do_not_overflow)
{
    static const float scores[] = {3e38f, -3e38f, 3e38f};
    struct prediction *best;
    size_t count;
    cr_assert_eq(scores_top_k(scores, 3, false, 3, &best, &count, NULL), STATUS_OK);
    cr_assert_eq(best[0].probability, 0.5f);
    cr_assert_eq(best[1].probability, 0.5f);
    cr_assert_eq(best[2].probability, 0);
    cr_assert_null(best[0].label);
    free(best);
}

Test(class_scores, many_small_scores_still_count)
{
    /* Each of the small terms is below half a unit in the last place of 1 in float32: summed there
     * they would vanish, and the first class would get 1. */
    enum { COUNT = 100001 };
    static float scores[COUNT];
    for (size_t i = 1; i < COUNT; i++)
        scores[i] = -25 * (float)M_LN2;
    size_t count;
    struct prediction *best;
    cr_assert_eq(scores_top_k(scores, COUNT, false, 1, &best, &count, NULL), STATUS_OK);
    double expected = 1 / (1 + 100000 * exp((double)scores[1]));
    cr_assert_float_eq(best[0].probability, expected, 1e-7);
    cr_assert_lt(best[0].probability, 0.998f);
    free(best);
}

Test(class_scores, equal_scores_lower_class_first)
{
    static const float scores[] = {1, 5, 5, 0, 5, 1};
    static const size_t expected[] = {1, 2, 4, 0, 5, 3};
    for (size_t k = 1; k <= 6; k++) {
        struct prediction *best;
        size_t count;
        cr_assert_eq(scores_top_k(scores, 6, false, k, &best, &count, NULL), STATUS_OK);
        cr_assert_eq(count, k);
        for (size_t i = 0; i < k; i++)
            cr_assert_eq(best[i].index, expected[i], "k=%zu, place %zu: %zu", k, i, best[i].index);
        free(best);
    }
}

static int compare_prediction(const void *a, const void *b)
{
    const struct prediction *x = a, *y = b;
    if (x->probability != y->probability)
        return x->probability > y->probability ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

Test(class_scores, top_k_is_the_head_of_a_full_sort)
{
    enum { MOST = 1200 };
    static float scores[MOST];
    static struct prediction sorted[MOST];
    srand(7);
    for (int round = 0; round < 200; round++) {
        size_t count = 1 + (size_t)rand() % MOST, k = 1 + (size_t)rand() % count, got;
        for (size_t i = 0; i < count; i++) {
            scores[i] = (float)(rand() % 50) - 25; /* many ties */
            sorted[i] = (struct prediction){.index = i, .probability = scores[i]};
        }
        qsort(sorted, count, sizeof *sorted, compare_prediction);
        struct prediction *best;
        cr_assert_eq(scores_top_k(scores, count, true, k, &best, &got, NULL), STATUS_OK);
        cr_assert_eq(got, k);
        for (size_t i = 0; i < k; i++) {
            cr_assert_eq(best[i].index, sorted[i].index, "round %d, place %zu", round, i);
            cr_assert_eq(best[i].probability, sorted[i].probability);
        }
        free(best);
    }
}

Test(class_scores, probabilities_are_left_alone)
{
    static const float scores[] = {0.25f, 0.75f};
    struct prediction *best;
    size_t count;
    cr_assert_eq(scores_top_k(scores, 2, true, 1, &best, &count, NULL), STATUS_OK);
    cr_assert_eq(best[0].probability, 0.75f);
    free(best);
}

Test(class_scores, a_single_score_is_logistic)
{
    static const float score = 2;
    struct prediction *best;
    size_t count;
    cr_assert_eq(scores_top_k(&score, 1, false, 5, &best, &count, NULL), STATUS_OK);
    cr_assert_float_eq(best[0].probability, 1 / (1 + exp(-2)), 1e-7);
    free(best);
}

Test(class_scores, what_is_not_finite_is_refused_with_its_class)
{
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        float scores[] = {1, 2, values[i], 3};
        struct prediction *best = NULL;
        size_t count;
        struct error err = {0};
        cr_assert_eq(scores_top_k(scores, 4, false, 1, &best, &count, &err), STATUS_NUMERIC);
        cr_assert_null(best);
        cr_assert(strstr(err.message, "class 2"), "%s", err.message);
        cr_assert(strstr(err.message, i == 0 ? "NaN" : "infinite"), "%s", err.message);
    }
}

Test(class_scores, output_shapes_that_are_scores)
{
    static const struct {
        const char *name;
        struct shape shape;
        enum dtype dtype;
        enum status status;
        size_t classes;
    } cases[] = {
        {"[N, C]", {2, {1, 1000}}, DTYPE_F32, STATUS_OK, 1000},
        {"[N, C, 1, 1]", {4, {1, 1000, 1, 1}}, DTYPE_F16, STATUS_OK, 1000},
        {"[N, 1, C]", {3, {1, 1, 10}}, DTYPE_BF16, STATUS_OK, 10},
        {"[C]", {1, {10}}, DTYPE_F64, STATUS_OK, 10},
        {"one score", {2, {1, 1}}, DTYPE_F32, STATUS_OK, 1},
        {"not known", {SHAPE_UNKNOWN, {0}}, DTYPE_F32, STATUS_OK, 0},
        {"boxes", {3, {1, 84, 8400}}, DTYPE_F32, STATUS_UNSUPPORTED, 0},
        {"a mask", {4, {1, 21, 64, 64}}, DTYPE_F32, STATUS_UNSUPPORTED, 0},
        {"nothing", {2, {1, 0}}, DTYPE_F32, STATUS_UNSUPPORTED, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct session_tensor output = {
            .name = "out", .dtype = cases[i].dtype, .shape = cases[i].shape};
        size_t classes = 0;
        struct error err = {0};
        cr_assert_eq(scores_check(&output, &classes, &err), cases[i].status, "%s: %s",
                     cases[i].name, err.message);
        cr_assert_eq(classes, cases[i].classes, "%s", cases[i].name);
        if (cases[i].status != STATUS_OK)
            cr_assert(strstr(err.message, "'out'"), "%s", err.message);
    }
}

/* [2, 3] of the dtype with values 0 … 5, row 1 read back. */
static void check_row(enum dtype dtype)
{
    struct tensor *tensor;
    struct shape shape = SHAPE(2, 3);
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, NULL), STATUS_OK);
    for (int i = 0; i < 6; i++) {
        float value = (float)i + 0.5f;
        if (dtype == DTYPE_F32)
            ((float *)tensor->data)[i] = value;
        else if (dtype == DTYPE_F64)
            ((double *)tensor->data)[i] = (double)value;
        else if (dtype == DTYPE_F16)
            ((uint16_t *)tensor->data)[i] = float_to_half(value);
        else
            ((uint16_t *)tensor->data)[i] = float_to_bfloat16(value);
    }
    struct task_buffer buffer = {0};
    const float *scores;
    size_t count;
    cr_assert_eq(scores_of_image(tensor, 2, 1, &buffer, &scores, &count, NULL), STATUS_OK);
    cr_assert_eq(count, 3);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(scores[i], (float)i + 3.5f, "%s", dtype_name(dtype));
    task_buffer_done(&buffer);
    tensor_unref(tensor);
}

Test(class_scores, a_row_of_every_floating_dtype)
{
    check_row(DTYPE_F32);
    check_row(DTYPE_F16);
    check_row(DTYPE_BF16);
    check_row(DTYPE_F64);
}

Test(class_scores, a_tensor_without_a_row_per_image_is_refused)
{
    struct tensor *tensor;
    struct shape shape = SHAPE(2, 3);
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, NULL), STATUS_OK);
    struct task_buffer buffer = {0};
    const float *scores;
    size_t count;
    struct error err = {0};
    cr_assert_eq(scores_of_image(tensor, 4, 0, &buffer, &scores, &count, &err), STATUS_INVALID);
    cr_assert(strstr(err.message, "[2, 3]"), "%s", err.message);
    cr_assert_eq(scores_of_image(tensor, 7, 0, &buffer, &scores, &count, &err), STATUS_INVALID);
    task_buffer_done(&buffer);
    tensor_unref(tensor);
}
