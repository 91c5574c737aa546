/* Slices cover a photo as SAHI's do, and their boxes merge by its rules. */
#include <criterion/criterion.h>

#include "engine/base/size.h"
#include "models/tasks/slices.h"

static void expect_plan(uint32_t width, uint32_t height, uint32_t side, double overlap,
                        const struct photo_slice *wanted, size_t count)
{
    struct photo_slice found[16];
    cr_assert_eq(slices_plan(width, height, side, overlap, found, COUNT_OF(found)), count);
    for (size_t i = 0; i < count && i < COUNT_OF(found); i++)
        cr_expect_arr_eq(&found[i], &wanted[i], sizeof *found, "slice %zu is at %u, %u, %u × %u", i,
                         found[i].x, found[i].y, found[i].width, found[i].height);
}

/* Numbers of sahi 0.12's get_slice_bboxes(). */
Test(slices, cover_the_photo)
{
    const struct photo_slice six[] = {{0, 0, 512, 512},     {410, 0, 512, 512},
                                      {512, 0, 512, 512},   {0, 256, 512, 512},
                                      {410, 256, 512, 512}, {512, 256, 512, 512}};
    expect_plan(1024, 768, 512, 0.2, six, 6);
    const struct photo_slice narrow[] = {{0, 0, 100, 64}, {100, 0, 100, 64}, {150, 0, 100, 64}};
    expect_plan(250, 64, 100, 0, narrow, 3);
    const struct photo_slice exact[] = {{0, 0, 100, 100}, {100, 0, 100, 100}};
    expect_plan(200, 100, 100, 0, exact, 2);
    const struct photo_slice whole[] = {{0, 0, 90, 80}};
    expect_plan(90, 80, 100, 0.5, whole, 1);
}

Test(slices, a_plan_larger_than_the_array_is_only_counted)
{
    struct photo_slice first;
    cr_expect_eq(slices_plan(1024, 768, 512, 0.2, &first, 1), 6);
    cr_expect_eq(first.width, 512);
    cr_expect_eq(slices_plan(16384, 16384, 32, 0.9, NULL, 0), 4089u * 4089u);
}

static struct detections merged(const struct detection *left, size_t left_count,
                                const struct detection *right, size_t right_count,
                                enum slices_rule rule, bool agnostic, size_t most)
{
    static const struct photo_slice places[] = {{0, 0, 100, 100}, {80, 0, 100, 100}};
    const struct detections a = {.items = (struct detection *)(uintptr_t)left, .count = left_count};
    const struct detections b = {.items = (struct detection *)(uintptr_t)right,
                                 .count = right_count};
    const struct detections *const parts[] = {&a, &b};
    struct detections found;
    struct error err;
    cr_assert_eq(slices_merge(parts, places, 2, rule, agnostic, most, &found, &err), STATUS_OK);
    return found;
}

/* An object across the border of two slices: each sees a part of it. */
static const struct detection left_half = {.x1 = 60, .y1 = 10, .x2 = 100, .y2 = 30, .score = .8f};
static const struct detection right_half = {.x1 = 0, .y1 = 10, .x2 = 30, .y2 = 30, .score = .6f};

Test(slices, halves_of_an_object_are_united)
{
    struct detections found = merged(&left_half, 1, &right_half, 1, SLICES_GREEDY_NMM, false, 100);
    cr_assert_eq(found.count, 1);
    cr_expect_float_eq(found.items[0].x1, 60, 1e-6);
    cr_expect_float_eq(found.items[0].x2, 110, 1e-6);
    cr_expect_float_eq(found.items[0].score, .8f, 1e-6);
    detections_done(&found);
}

Test(slices, nms_keeps_both_where_they_overlap_by_less)
{
    struct detections found = merged(&left_half, 1, &right_half, 1, SLICES_NMS, false, 100);
    cr_expect_eq(found.count, 2);
    detections_done(&found);
}

Test(slices, classes_are_apart_unless_agnostic)
{
    struct detection other = right_half;
    other.index = 7;
    struct detections found = merged(&left_half, 1, &other, 1, SLICES_GREEDY_NMM, false, 100);
    cr_expect_eq(found.count, 2);
    detections_done(&found);
    found = merged(&left_half, 1, &other, 1, SLICES_GREEDY_NMM, true, 100);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].index, 0);
    detections_done(&found);
}

Test(slices, the_best_are_kept_and_nothing_is_none)
{
    const struct detection apart[] = {{.x1 = 0, .x2 = 5, .y2 = 5, .score = .3f},
                                      {.x1 = 20, .x2 = 25, .y2 = 5, .score = .9f}};
    struct detections found = merged(apart, 2, apart, 2, SLICES_GREEDY_NMM, false, 1);
    cr_assert_eq(found.count, 1);
    cr_expect_float_eq(found.items[0].score, .9f, 1e-6);
    detections_done(&found);
    found = merged(apart, 0, apart, 0, SLICES_NMS, false, 100);
    cr_expect_eq(found.count, 0);
    detections_done(&found);
}

/* Empty boxes divide zero by zero: they match nothing, and nothing is lost. */
Test(slices, empty_boxes_stay)
{
    const struct detection empty[] = {{.x1 = 5, .x2 = 5, .y1 = 5, .y2 = 5, .score = .5f},
                                      {.x1 = 5, .x2 = 5, .y1 = 5, .y2 = 5, .score = .4f}};
    struct detections found = merged(empty, 2, empty, 0, SLICES_GREEDY_NMM, false, 100);
    cr_expect_eq(found.count, 2);
    detections_done(&found);
}
