/* What is cut out for a box, which boxes are, and in which order lines of text are read. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "models/tasks/crops.h"

static void expect_straight(struct detection box, double margin, struct crop wanted)
{
    const struct detections found = {.items = &box, .count = 1};
    struct crop crop;
    struct error err;
    cr_assert_eq(crop_of(TASK_DETECTION, &found, 0, margin, 100, 80, &crop, &err), STATUS_OK, "%s",
                 err.message);
    cr_expect_not(crop.is_warped);
    cr_expect(crop.x == wanted.x && crop.y == wanted.y && crop.width == wanted.width &&
                  crop.height == wanted.height,
              "%u, %u, %u x %u", crop.x, crop.y, crop.width, crop.height);
}

Test(crops, boxes_have_the_pixels_they_touch)
{
    expect_straight((struct detection){.x1 = 10, .y1 = 20, .x2 = 30, .y2 = 60}, 0,
                    (struct crop){.x = 10, .y = 20, .width = 20, .height = 40});
    expect_straight((struct detection){.x1 = 10.5f, .y1 = 20.9f, .x2 = 29.1f, .y2 = 59.5f}, 0,
                    (struct crop){.x = 10, .y = 20, .width = 20, .height = 40});
    expect_straight((struct detection){.x1 = 10, .y1 = 20, .x2 = 30, .y2 = 60}, 0.25,
                    (struct crop){.x = 5, .y = 10, .width = 30, .height = 60});
    expect_straight((struct detection){.x1 = 2, .y1 = 1, .x2 = 99, .y2 = 79.5f}, 0.5,
                    (struct crop){.x = 0, .y = 0, .width = 100, .height = 80});
    expect_straight((struct detection){.x1 = -5, .y1 = -5, .x2 = 1e9f, .y2 = 1}, 0,
                    (struct crop){.x = 0, .y = 0, .width = 100, .height = 1});
}

Test(crops, boxes_without_pixels)
{
    static const struct detection boxes[] = {{.x1 = 10, .y1 = 10, .x2 = 10, .y2 = 20},
                                             {.x1 = 30, .y1 = 10, .x2 = 20, .y2 = 20},
                                             {.x1 = 100, .y1 = 10, .x2 = 120, .y2 = 20},
                                             {.x1 = NAN, .y1 = NAN, .x2 = NAN, .y2 = NAN}};
    for (size_t i = 0; i < COUNT_OF(boxes); i++) {
        struct detection box = boxes[i];
        const struct detections found = {.items = &box, .count = 1};
        struct crop crop;
        struct error err;
        cr_expect_eq(crop_of(TASK_DETECTION, &found, 0, 0, 100, 80, &crop, &err), STATUS_INVALID);
        cr_expect_str_eq(err.message, "the box has no pixel to crop");
    }
}

/* Of another version of the model. */
Test(crops, lines_of_text_without_corners_are_boxes)
{
    struct detection box = {.x1 = 10, .y1 = 20, .x2 = 30, .y2 = 60};
    const struct detections found = {.items = &box, .count = 1};
    struct crop crop;
    struct error err;
    cr_assert_eq(crop_of(TASK_TEXT_BOXES, &found, 0, 0, 100, 80, &crop, &err), STATUS_OK);
    cr_expect(!crop.is_warped && crop.x == 10 && crop.y == 20 && crop.width == 20);
}

/* PP-OCR: corners to whole pixels within the picture, sizes of the longer sides cut to whole ones.
 */
Test(crops, lines_of_text)
{
    struct detection box = {.x1 = 0};
    struct task_point points[] = {{4.4f, 5.5f, -1}, {40.6f, 2, -1}, {42, 120, -1}, {6, 13.2f, -1}};
    const struct detections found = {
        .items = &box, .count = 1, .points = points, .point_count = TEXT_CORNERS};
    const float wanted[4][2] = {{4, 6}, {41, 2}, {42, 79}, {6, 13}};
    struct crop crop;
    struct error err;
    cr_assert_eq(crop_of(TASK_TEXT_BOXES, &found, 0, 0, 100, 80, &crop, &err), STATUS_OK);
    cr_expect(crop.is_warped);
    cr_expect_arr_eq(crop.corners, wanted, sizeof wanted);
    cr_expect_eq(crop.width, (uint32_t)hypot(36, 66)); /* of the bottom side */
    cr_expect_eq(crop.height, (uint32_t)hypot(1, 77)); /* of the right side */
    cr_expect_not(crop.is_turned);
}

Test(crops, high_lines_are_turned)
{
    struct detection box = {.x1 = 0};
    for (int i = 0; i < 2; i++) {
        const float bottom = i ? 40 : 39;
        struct task_point points[] = {
            {10, 10, -1}, {30, 10, -1}, {30, bottom, -1}, {10, bottom, -1}};
        const struct detections found = {
            .items = &box, .count = 1, .points = points, .point_count = TEXT_CORNERS};
        struct crop crop;
        cr_assert_eq(crop_of(TASK_TEXT_BOXES, &found, 0, 0, 100, 80, &crop, NULL), STATUS_OK);
        cr_expect_eq(crop.is_turned, i == 1, "20 x %u", crop.height);
    }
}

Test(crops, boxes_with_an_angle_are_rectified)
{
    /* 20 x 10 around (50, 40), a quarter turn; a margin of half of each side. */
    struct detection box = {.x1 = 40, .y1 = 35, .x2 = 60, .y2 = 45, .angle = 1.57079633f};
    const struct detections found = {.items = &box, .count = 1};
    const float wanted[4][2] = {{55, 30}, {55, 50}, {45, 50}, {45, 30}};
    const float widened[4][2] = {{60, 20}, {60, 60}, {40, 60}, {40, 20}};
    for (int i = 0; i < 2; i++) {
        struct crop crop;
        cr_assert_eq(crop_of(TASK_ORIENTED, &found, 0, i * 0.5, 100, 80, &crop, NULL), STATUS_OK);
        for (int k = 0; k < 8; k++)
            cr_expect_float_eq(crop.corners[k / 2][k % 2], (i ? widened : wanted)[k / 2][k % 2],
                               1e-3f);
        cr_expect_leq(crop.width - (i ? 39 : 19), 1);
        cr_expect_leq(crop.height - (i ? 19 : 9), 1);
        cr_expect_not(crop.is_turned);
    }
}

Test(crops, an_angle_makes_no_crop_of_any_size)
{
    struct detection box = {.x1 = -1e8f, .y1 = -1e8f, .x2 = 1e8f, .y2 = 1e8f, .angle = 0.5f};
    const struct detections found = {.items = &box, .count = 1};
    struct crop crop;
    cr_expect_eq(crop_of(TASK_ORIENTED, &found, 0, 0, 100, 80, &crop, NULL), STATUS_INVALID);
}

Test(crops, the_best_are_left)
{
    struct detection boxes[] = {
        {.score = 0.9f}, {.score = 0.8f}, {.score = 0.7f}, {.score = 0.7f}, {.score = 0.2f}};
    const struct detections found = {.items = boxes, .count = COUNT_OF(boxes)};
    bool wanted[] = {true, false, true, true, true};
    crops_limit(&found, wanted, 4);
    cr_expect(wanted[0] && !wanted[1] && wanted[2] && wanted[3] && wanted[4]);
    crops_limit(&found, wanted, 2);
    cr_expect(wanted[0] && !wanted[1] && wanted[2] && !wanted[3] && !wanted[4]);
}

/* The order of RapidOCR's TextDetector.sorted_boxes() for these first corners. */
Test(crops, reading_order)
{
    static const float corners[][2] = {{200, 100}, {10, 109},  {90, 30},
                                       {5, 39.6f}, {120, 118}, {7, 130}};
    static const uint32_t wanted[] = {2, 3, 1, 4, 0, 5};
    struct detections found = {.count = COUNT_OF(corners), .point_count = TEXT_CORNERS};
    found.items = alloc_array(found.count, sizeof *found.items);
    found.points = alloc_array(found.count * TEXT_CORNERS, sizeof *found.points);
    for (uint32_t i = 0; i < COUNT_OF(corners); i++) {
        found.items[i].place = i;
        found.points[i * TEXT_CORNERS] = (struct task_point){corners[i][0], corners[i][1], -1};
    }
    cr_assert_eq(text_reading_order(&found, NULL), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        cr_expect_eq(found.items[i].place, wanted[i], "line %zu is %u", i, found.items[i].place);
        cr_expect_float_eq(found.points[i * TEXT_CORNERS].x, corners[wanted[i]][0], 0);
    }
    detections_done(&found);
}
