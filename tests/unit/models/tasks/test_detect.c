/* Decoders of detectors: each layout, suppression, bounds, hostile numbers, and back to the photo.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/answer.h"
#include "tests/unit/models/tasks/golden_task.h"

/* A photo of the input's size: coordinates stay what they are. */
static const struct task_geometry same = {1, 1, 0, 0, 64, 64, 64, 64};

static struct task_options options_of(float confidence, float iou)
{
    return (struct task_options){.confidence = confidence, .iou = iou, .max_detections = 300};
}

static struct detections decode_many(enum task_layout layout, const struct task_rows *rows,
                                     size_t count, const struct task_options *options,
                                     const struct task_geometry *geometry)
{
    const struct task task = {.kind = TASK_DETECTION, .layout = layout, .output_count = count};
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, rows, options, geometry, &found, &err), STATUS_OK, "%s",
                 err.message);
    return found;
}

static struct detections decode_one(enum task_layout layout, const float *data, struct shape shape,
                                    const struct task_options *options)
{
    const struct task_rows rows = {data, shape, shape_count(&shape)};
    return decode_many(layout, &rows, 1, options, &same);
}

static void expect_box(const struct detection *box, uint32_t index, float score, float x1, float y1,
                       float x2, float y2)
{
    cr_expect_eq(box->index, index, "class %u, not %u", box->index, index);
    cr_expect_float_eq(box->score, score, 1e-6f);
    const float found[] = {box->x1, box->y1, box->x2, box->y2}, wanted[] = {x1, y1, x2, y2};
    for (int i = 0; i < 4; i++)
        cr_expect_float_eq(found[i], wanted[i], 1e-4f, "corner %d is %g, not %g", i,
                           (double)found[i], (double)wanted[i]);
}

/* Columns of cx, cy, w, h and two classes. */
static const float v8[] = {32,  33,  10,  50,   5, 5, /* cx */
                           32,  32,  10,  20,   5, 5, /* cy */
                           16,  16,  8,   10,   2, 2, /* w */
                           24,  24,  8,   10,   2, 2, /* h */
                           .1f, .1f, .2f, .55f, 0, 0, .9f, .6f, .1f, 0, 0, 0};

Test(detect, yolov8)
{
    const struct task_options options = options_of(.25f, .7f);
    struct detections found = decode_one(LAYOUT_YOLOV8, v8, SHAPE(6, 6), &options);
    cr_assert_eq(found.count, 2);
    expect_box(&found.items[0], 1, .9f, 24, 20, 40, 44);
    expect_box(&found.items[1], 0, .55f, 45, 15, 55, 25);
    detections_done(&found);
}

Test(detect, threshold_is_strict_and_classes_are_chosen)
{
    struct task_options options = options_of(.55f, 1);
    struct detections found = decode_one(LAYOUT_YOLOV8, v8, SHAPE(6, 6), &options);
    cr_assert_eq(found.count, 2, "0.55 is not above 0.55; without an IoU nothing is suppressed");
    detections_done(&found);
    options = options_of(.25f, .7f);
    options.class_count = 1;
    options.classes[0] = 0;
    found = decode_one(LAYOUT_YOLOV8, v8, SHAPE(6, 6), &options);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].index, 0);
    detections_done(&found);
}

Test(detect, agnostic_suppression)
{
    /* Two classes on one place. */
    static const float rows[] = {0, 0, 10, 10, .9f, 0, 1, 0, 11, 10, .8f, 3};
    struct task_options options = options_of(.1f, .5f);
    struct detections found = decode_one(LAYOUT_YOLO_FINAL, rows, SHAPE(2, 6), &options);
    cr_expect_eq(found.count, 2);
    detections_done(&found);
    options.agnostic = 1;
    found = decode_one(LAYOUT_YOLO_FINAL, rows, SHAPE(2, 6), &options);
    cr_expect_eq(found.count, 1);
    detections_done(&found);
}

Test(detect, yolov5_multiplies_objectness)
{
    static const float rows[] = {50, 20, 20, 10, .8f, .1f, .9f, 10, 10, 4, 4, .9f, .2f, .1f};
    const struct task_options options = options_of(.25f, .45f);
    struct detections found = decode_one(LAYOUT_YOLOV5, rows, SHAPE(2, 7), &options);
    cr_assert_eq(found.count, 1);
    expect_box(&found.items[0], 1, .72f, 40, 15, 60, 25);
    detections_done(&found);
}

Test(detect, yolox_grids)
{
    /* 64 x 64: grids of 8 x 8, 4 x 4 and 2 x 2 cells. */
    enum { CELLS = 64 + 16 + 4, COLUMNS = 6 };
    static float rows[CELLS * COLUMNS];
    const float first[] = {.5f, .25f, 0, logf(2), 1, .9f}; /* cell (3, 2) of 8 pixels */
    const float second[] = {0, 0, logf(.5f), 0, .5f, .8f}; /* cell (1, 1) of 32 pixels */
    memcpy(rows + (2 * 8 + 3) * COLUMNS, first, sizeof first);
    memcpy(rows + (64 + 16 + 3) * COLUMNS, second, sizeof second);
    const struct task_options options = options_of(.3f, .3f);
    struct detections found = decode_one(LAYOUT_YOLOX, rows, SHAPE(CELLS, COLUMNS), &options);
    cr_assert_eq(found.count, 2);
    expect_box(&found.items[0], 0, .9f, 28 - 4, 18 - 8, 28 + 4, 18 + 8);
    expect_box(&found.items[1], 0, .4f, 32 - 8, 32 - 16, 32 + 8, 32 + 16);
    detections_done(&found);
    const struct task_rows wrong = {rows, SHAPE(CELLS - 1, COLUMNS), (CELLS - 1) * COLUMNS};
    const struct task task = {.kind = TASK_DETECTION, .layout = LAYOUT_YOLOX, .output_count = 1};
    struct error err;
    cr_expect_eq(detect_decode(&task, &wrong, &options, &same, &found, &err), STATUS_INVALID);
    detections_done(&found);
}

Test(detect, queries)
{
    static const float boxes[] = {.5f, .5f, .25f, .5f, .1f, .1f, .1f, .1f};
    static const float softmax[] = {0, 9, 0, 0, 0, 9};
    static const float sigmoid[] = {2, 1, .5f, -9};
    const struct task_options options = options_of(.5f, 1);
    struct task_rows rows[] = {{softmax, SHAPE(2, 3), 6}, {boxes, SHAPE(2, 4), 8}};
    struct detections found = decode_many(LAYOUT_DETR, rows, 2, &options, &same);
    cr_assert_eq(found.count, 1, "the other query is mostly nothing");
    expect_box(&found.items[0], 1, (float)(exp(9) / (exp(9) + 2)), 24, 16, 40, 48);
    detections_done(&found);
    rows[0] = (struct task_rows){sigmoid, SHAPE(2, 2), 4};
    found = decode_many(LAYOUT_DETR_SIGMOID, rows, 2, &options, &same);
    cr_assert_eq(found.count, 2, "one query gives two pairs; of two queries two pairs count");
    expect_box(&found.items[0], 0, (float)(1 / (1 + exp(-2))), 24, 16, 40, 48);
    expect_box(&found.items[1], 1, (float)(1 / (1 + exp(-1))), 24, 16, 40, 48);
    detections_done(&found);
}

Test(detect, rtdetr)
{
    static const float old[] = {.5f, .5f, .25f, .5f, .1f, .9f, .3f};
    static const float final[] = {.5f, .5f, .25f, .5f, .9f, 1};
    const struct task_options options = options_of(.25f, 1);
    struct detections found = decode_one(LAYOUT_RTDETR, old, SHAPE(1, 7), &options);
    cr_assert_eq(found.count, 1);
    expect_box(&found.items[0], 1, .9f, 24, 16, 40, 48);
    detections_done(&found);
    found = decode_one(LAYOUT_RTDETR_FINAL, final, SHAPE(1, 6), &options);
    cr_assert_eq(found.count, 1);
    expect_box(&found.items[0], 1, .9f, 24, 16, 40, 48);
    detections_done(&found);
}

Test(detect, lists)
{
    static const float corners[] = {1, 2, 11, 22, 0, 0, 4, 4};
    static const float shares[] = {.25f, .5f, .5f, 1, 0, 0, 1, 1};
    static const float labels[] = {5, 1}, scores[] = {.75f, .6f}, one = 1;
    const struct task_options options = options_of(.5f, 1);
    struct task_rows rows[] = {{corners, SHAPE(2, 4), 8},
                               {labels, SHAPE(2), 2},
                               {scores, SHAPE(2), 2},
                               {&one, SHAPE_SCALAR, 1}};
    struct detections found = decode_many(LAYOUT_TORCHVISION, rows, 3, &options, &same);
    cr_assert_eq(found.count, 2);
    expect_box(&found.items[0], 5, .75f, 1, 2, 11, 22);
    detections_done(&found);
    rows[0].data = shares;
    found = decode_many(LAYOUT_TENSORFLOW, rows, 4, &options, &same);
    cr_assert_eq(found.count, 1, "num_detections is 1");
    expect_box(&found.items[0], 5, .75f, 32, 16, 64, 32);
    detections_done(&found);
}

Test(detect, back_to_the_photo)
{
    /* 100 x 50 letterboxed into 64 x 64: 64 x 32, 16 pixels above and below. */
    const struct task_geometry letterbox = {.64f, .64f, 0, 16, 100, 50, 64, 64};
    static const float rows[] = {32, 16, 64, 64, .9f, 0, -8, 0, 16, 32, .8f, 0};
    const struct task_rows row = {rows, SHAPE(2, 6), 12};
    const struct task_options options = options_of(.1f, 1);
    struct detections found = decode_many(LAYOUT_YOLO_FINAL, &row, 1, &options, &letterbox);
    cr_assert_eq(found.count, 2);
    expect_box(&found.items[0], 0, .9f, 50, 0, 100, 50);
    expect_box(&found.items[1], 0, .8f, 0, 0, 25, 25);
    detections_done(&found);
}

static void expect_golden(struct detections found, const char *name)
{
    const float *wanted = golden_boxes(name, 6, found.count);
    for (size_t i = 0; i < found.count; i++, wanted += 6) {
        const struct detection *box = &found.items[i];
        const float corners[] = {box->x1, box->y1, box->x2, box->y2};
        cr_expect_eq(box->index, (uint32_t)wanted[0]);
        cr_expect_float_eq(box->score, wanted[1], 1e-6f);
        for (int k = 0; k < 4; k++)
            cr_expect_float_eq(corners[k], wanted[2 + k], 1e-2f, "box %zu: %g, not %g", i,
                               (double)corners[k], (double)wanted[2 + k]);
    }
    detections_done(&found);
}

Test(detect, what_ultralytics_finds)
{
    /* 500 x 333 letterboxed: 64 x 43, 10 pixels above. */
    const struct task_geometry letterbox = {64 / 500.0f, 43 / 333.0f, 0, 10, 500, 333, 64, 64};
    const struct task_rows row = golden_rows("yolov8");
    struct task_options options = options_of(.25f, .45f);
    expect_golden(decode_many(LAYOUT_YOLOV8, &row, 1, &options, &letterbox), "yolov8_boxes");
    options.agnostic = 1;
    expect_golden(decode_many(LAYOUT_YOLOV8, &row, 1, &options, &letterbox),
                  "yolov8_boxes_agnostic");
}

static const struct task_geometry letterboxed = {64 / 500.0f, 43 / 333.0f, 0, 10, 500, 333, 64, 64};

static struct detections decode_task(struct task task, const struct task_rows *rows, float iou)
{
    const struct task_options options = options_of(.25f, iou);
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, rows, &options, &letterboxed, &found, &err), STATUS_OK, "%s",
                 err.message);
    return found;
}

Test(detect, oriented_boxes_of_ultralytics)
{
    const struct task task = {.kind = TASK_ORIENTED, .layout = LAYOUT_YOLOV8, .output_count = 1};
    const struct task_rows row = golden_rows("oriented");
    struct detections found = decode_task(task, &row, .4f);
    const float *wanted = golden_boxes("oriented_boxes", 7, found.count);
    for (size_t i = 0; i < found.count; i++, wanted += 7) {
        const struct detection *box = &found.items[i];
        const float numbers[] = {(float)box->index,
                                 box->score,
                                 (box->x1 + box->x2) / 2,
                                 (box->y1 + box->y2) / 2,
                                 box->x2 - box->x1,
                                 box->y2 - box->y1,
                                 box->angle};
        for (int k = 0; k < 7; k++)
            cr_expect_float_eq(numbers[k], wanted[k], 1e-2f, "box %zu: %g, not %g", i,
                               (double)numbers[k], (double)wanted[k]);
    }
    detections_done(&found);
}

Test(detect, key_points_of_ultralytics)
{
    const struct task task = {.kind = TASK_POSE,
                              .layout = LAYOUT_YOLOV8,
                              .output_count = 1,
                              .point_count = 2,
                              .point_numbers = 3};
    const struct task_rows row = golden_rows("pose");
    struct detections found = decode_task(task, &row, .45f);
    const float *wanted = golden_boxes("pose_boxes", 12, found.count);
    cr_assert_eq(found.point_count, 2);
    for (size_t i = 0; i < found.count; i++, wanted += 12) {
        cr_expect_float_eq(found.items[i].score, wanted[1], 1e-6f);
        cr_expect_float_eq(found.items[i].x2, wanted[4], 1e-2f);
        for (size_t p = 0; p < 2; p++) {
            const struct task_point *point = &found.points[2 * i + p];
            cr_expect_float_eq(point->x, wanted[6 + 3 * p], 1e-2f);
            cr_expect_float_eq(point->y, wanted[7 + 3 * p], 1e-2f);
            cr_expect_float_eq(point->score, wanted[8 + 3 * p], 1e-6f);
        }
    }
    detections_done(&found);
}

Test(detect, rows_with_more_numbers)
{
    static const float box[] = {32, 32, 16, 8, .9f, 1, 0.5f};
    static const float points[] = {8, 8, 24, 24, .9f, 0, 9, NAN, 1e9f, 20};
    struct task task = {.kind = TASK_ORIENTED, .layout = LAYOUT_YOLO_FINAL, .output_count = 1};
    const struct task_options options = options_of(.25f, 1);
    struct task_rows row = {box, SHAPE(1, 7), 7};
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, &row, &options, &same, &found, &err), STATUS_OK);
    cr_assert_eq(found.count, 1);
    expect_box(&found.items[0], 1, .9f, 24, 28, 40, 36);
    float corners[4][2];
    detection_corners(&found.items[0], corners);
    cr_expect_float_eq(corners[0][0], 32 + 8 * cosf(.5f) - 4 * sinf(.5f), 1e-4f);
    cr_expect_float_eq(corners[2][1], 32 - 8 * sinf(.5f) - 4 * cosf(.5f), 1e-4f);
    detections_done(&found);
    /* Points that are no numbers, or outside the photo, are clipped; without a score it is -1. */
    task = (struct task){.kind = TASK_POSE,
                         .layout = LAYOUT_YOLO_FINAL,
                         .output_count = 1,
                         .point_count = 2,
                         .point_numbers = 2};
    row = (struct task_rows){points, SHAPE(1, 10), 10};
    cr_assert_eq(detect_decode(&task, &row, &options, &same, &found, &err), STATUS_OK);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.points[0].x, 9);
    cr_expect_eq(found.points[0].y, 0);
    cr_expect_eq(found.points[1].x, 64);
    cr_expect(found.points[1].score < 0);
    detections_done(&found);
    row.shape = SHAPE(1, 9);
    cr_expect_eq(detect_decode(&task, &row, &options, &same, &found, &err), STATUS_INVALID);
    detections_done(&found);
}

/* The worst case of oriented boxes: none overlaps another, so all are compared with all. */
Test(detect, many_oriented_boxes)
{
    enum { ALL = 8400 };
    float *rows = alloc_array(ALL * 7, sizeof *rows);
    cr_assert_not_null(rows);
    for (size_t i = 0; i < ALL; i++) {
        const float row[] = {(float)(i % 100) * 9, (float)(i / 100) * 9, 4, 6, .5f, 0, (float)i};
        memcpy(rows + 7 * i, row, sizeof row);
    }
    const struct task task = {.kind = TASK_ORIENTED, .layout = LAYOUT_YOLO_FINAL};
    const struct task_rows row = {rows, SHAPE(ALL, 7), ALL * 7};
    struct task_options options = options_of(.25f, .7f);
    struct detections found = {0};
    struct error err;
    options.max_detections = TASK_MAX_DETECTIONS;
    cr_assert_eq(detect_decode(&task, &row, &options, &same, &found, &err), STATUS_OK);
    cr_expect_eq(found.count, TASK_MAX_DETECTIONS);
    for (size_t i = 0; i < found.count; i++)
        cr_expect_eq(found.items[i].place, i, "of equal scores the first are kept");
    detections_done(&found);
    free(rows);
}

Test(detect, what_transformers_find)
{
    const struct task_geometry stretched = {64 / 500.0f, 64 / 333.0f, 0, 0, 500, 333, 64, 64};
    const struct task_rows rows[] = {golden_rows("query_logits"), golden_rows("query_boxes")};
    const struct task_options options = options_of(.3f, 1);
    expect_golden(decode_many(LAYOUT_DETR, rows, 2, &options, &stretched), "detr");
    expect_golden(decode_many(LAYOUT_DETR_SIGMOID, rows, 2, &options, &stretched), "rt_detr");
    const struct task pairs = {.kind = TASK_DETECTION,
                               .layout = LAYOUT_DETR_SIGMOID,
                               .output_count = 2,
                               .exceeds_queries = true};
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&pairs, rows, &options, &stretched, &found, &err), STATUS_OK);
    cr_expect_gt(found.count, (size_t)rows[1].shape.dims[0]);
    expect_golden(found, "deformable_detr");
}

Test(detect, hostile_numbers)
{
    static const float rows[] = {NAN, 0, 1,  1, .9f, 0,  0, 0, INFINITY, 1, .9f, 0,
                                 0,   0, 1,  1, NAN, 0,  0, 0, 1,        1, .9f, NAN,
                                 0,   0, 1,  1, .9f, -1, 0, 0, 1,        1, .9f, 1e30f,
                                 0,   0, -5, 1, .9f, 0,  1, 1, 1,        1, .8f, 2};
    const struct task_options options = options_of(.25f, .7f);
    struct detections found = decode_one(LAYOUT_YOLO_FINAL, rows, SHAPE(8, 6), &options);
    cr_expect_eq(found.count, 2, "what is left has no area");
    detections_done(&found);
    static const float vast[] = {-3e38f, -3e38f, 3e38f, 3e38f, .9f, 0, 0, 0, 5, 5, .8f, 0};
    found = decode_one(LAYOUT_YOLO_FINAL, vast, SHAPE(2, 6), &options);
    cr_expect_eq(found.count, 2);
    detections_done(&found);
    found = decode_one(LAYOUT_YOLO_FINAL, NULL, SHAPE(0, 6), &options);
    cr_expect_eq(found.count, 0);
    detections_done(&found);
    found = decode_one(LAYOUT_YOLOV8, NULL, SHAPE(84, 0), &options);
    cr_expect_eq(found.count, 0);
    detections_done(&found);
}

Test(detect, nothing_but_nan_is_an_error)
{
    static float scores[6 * 4]; /* boxes are numbers, scores are not */
    for (size_t i = 4 * 4; i < COUNT_OF(scores); i++)
        scores[i] = NAN;
    for (size_t i = 0; i < 2 * 4; i++)
        scores[i] = NAN;
    static const float final[] = {NAN, NAN, NAN, NAN, NAN, 3, NAN, NAN, NAN, NAN, INFINITY, 0};
    static const float queries[] = {NAN, NAN, NAN, NAN}, boxes[] = {0, 0, 1, 1, 0, 0, 1, 1};
    const struct task_rows outputs[][2] = {{{scores, SHAPE(6, 4), 24}},
                                           {{final, SHAPE(2, 6), 12}},
                                           {{queries, SHAPE(2, 2), 4}, {boxes, SHAPE(2, 4), 8}}};
    static const enum task_layout layouts[] = {LAYOUT_YOLOV8, LAYOUT_YOLO_FINAL, LAYOUT_DETR};
    const struct task_options options = options_of(.25f, .7f);
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        const struct task task = {
            .kind = TASK_DETECTION, .layout = layouts[i], .output_count = i == 2 ? 2 : 1};
        struct detections found = {0};
        struct error err;
        cr_expect_eq(detect_decode(&task, outputs[i], &options, &same, &found, &err),
                     STATUS_NUMERIC, "layout %zu", i);
        detections_done(&found);
        cr_expect_eq(found.count, 0);
    }
}

Test(detect, a_million_candidates)
{
    enum { ALL = 1000000 };
    float *rows = alloc_array(ALL * 6, sizeof *rows);
    cr_assert_not_null(rows);
    for (size_t i = 0; i < ALL; i++) {
        const float x = (float)(i % 1000) * 4, y = (float)(i / 1000 % 1000) * 4;
        const float row[] = {x, y, x + 3, y + 3, .3f + .6f * (float)(i * 7919 % ALL) / ALL, 0};
        memcpy(rows + 6 * i, row, sizeof row);
    }
    struct task_options options = options_of(.25f, .7f);
    options.max_detections = TASK_MAX_DETECTIONS;
    const struct task_geometry wide = {1, 1, 0, 0, 1e6f, 1e6f, 1e6f, 1e6f};
    const struct task_rows row = {rows, SHAPE(ALL, 6), ALL * 6};
    struct detections found = decode_many(LAYOUT_YOLO_FINAL, &row, 1, &options, &wide);
    cr_assert_eq(found.count, TASK_MAX_DETECTIONS);
    for (size_t i = 0; i < found.count; i++) /* the best of all, in order */
        cr_expect_float_eq(found.items[i].score, .3f + .6f * (1 - (float)(i + 1) / ALL), 1e-6f);
    detections_done(&found);
    free(rows);
}

/* The time that overlaps take is bounded: boxes behind so many better ones are not looked at. */
Test(detect, compares_the_best_2560)
{
    enum { ALL = 2561 };
    struct task_options options = options_of(.25f, .7f);
    options.max_detections = TASK_MAX_DETECTIONS;
    float *rows = calloc(ALL, 6 * sizeof *rows);
    cr_assert(rows);
    for (size_t i = 0; i < ALL; i++) {
        const float at = i + 1 < ALL ? 10 : 40, score = i + 1 < ALL ? .9f : .8f;
        memcpy(rows + 6 * i, (float[]){at, at, at + 10, at + 10, score, 0}, 6 * sizeof *rows);
    }
    struct detections found = decode_one(LAYOUT_YOLO_FINAL, rows, SHAPE(ALL, 6), &options);
    cr_expect_eq(found.count, 1);
    detections_done(&found);
    found = decode_one(LAYOUT_YOLO_FINAL, rows + 6, SHAPE(ALL - 1, 6), &options);
    cr_expect_eq(found.count, 2);
    detections_done(&found);
    free(rows);
}

Test(detect, equal_scores_keep_their_order)
{
    enum { ALL = 100 };
    static float rows[ALL * 6];
    for (size_t i = 0; i < ALL; i++) {
        rows[6 * i] = rows[6 * i + 2] = (float)i;
        rows[6 * i + 4] = .5f;
    }
    const struct task_options options = options_of(.25f, .7f);
    struct detections found = decode_one(LAYOUT_YOLO_FINAL, rows, SHAPE(ALL, 6), &options);
    cr_assert_eq(found.count, ALL);
    for (size_t i = 0; i < ALL; i++)
        cr_expect_eq(found.items[i].place, i);
    detections_done(&found);
}

Test(detect, rows_of_a_batch_in_halves)
{
    /* Two images; the second one's box, as float16. */
    static const uint16_t halves[] = {0, 0, 0, 0, 0, 0, 0x4000, 0x4000, 0x4400, 0x4400, 0x3800, 0};
    const struct tensor output = {.dtype = DTYPE_F16,
                                  .shape = SHAPE(2, 1, 6),
                                  .data = (void *)(uintptr_t)halves,
                                  .bytes = sizeof halves};
    const struct tensor *outputs[] = {&output};
    const struct task task = {
        .kind = TASK_DETECTION, .layout = LAYOUT_YOLO_FINAL, .output_count = 1};
    const struct task_options options = options_of(.25f, 1);
    struct task_buffer buffers[TASK_MAX_OUTPUTS] = {{0}};
    struct task_answer answer;
    struct error err;
    cr_assert_eq(task_answer_of(&task, outputs, 2, 1, &options, &same, buffers, &answer, &err),
                 STATUS_OK, "%s", err.message);
    cr_assert_eq(answer.detections.count, 1);
    expect_box(&answer.detections.items[0], 0, .5f, 2, 2, 4, 4);
    task_answer_done(&answer);
    cr_expect_eq(task_answer_of(&task, outputs, 3, 1, &options, &same, buffers, &answer, &err),
                 STATUS_INVALID);
    task_buffer_done(&buffers[0]);
}

Test(embed, vectors_and_tokens)
{
    static const float numbers[] = {3, 4, 0, 0, 5, 12, NAN, 0};
    struct task_options options = {.normalize = 0};
    struct embedding vector;
    struct error err;
    struct task_rows row = {numbers, SHAPE(2, 1, 1), 2};
    cr_assert_eq(embed_decode(&row, &options, &vector, &err), STATUS_OK);
    cr_assert_eq(vector.count, 2);
    cr_expect_eq(vector.values[1], 4);
    embedding_done(&vector);
    options.normalize = 1;
    row = (struct task_rows){numbers, SHAPE(3, 2), 6};
    cr_assert_eq(embed_decode(&row, &options, &vector, &err), STATUS_OK);
    cr_assert_eq(vector.count, 2, "the first token");
    cr_expect_float_eq(vector.values[0], .6f, 1e-7f);
    embedding_done(&vector);
    row = (struct task_rows){numbers + 2, SHAPE(2), 2};
    cr_expect_eq(embed_decode(&row, &options, &vector, &err), STATUS_NUMERIC, "no direction");
    row = (struct task_rows){numbers + 6, SHAPE(2), 2};
    cr_expect_eq(embed_decode(&row, &options, &vector, &err), STATUS_NUMERIC);
    row = (struct task_rows){numbers, SHAPE(2, 2, 2), 8};
    cr_expect_eq(embed_decode(&row, &options, &vector, &err), STATUS_INVALID);
}

/* Boxes, and their points, as tests/tasks/make_apps_golden.py decodes them. */
static void expect_decoded(const struct detections *found, const char *name, size_t size)
{
    const float *wanted = golden_boxes(name, size, found->count);
    for (size_t i = 0; i < found->count; i++, wanted += size) {
        const struct detection *box = &found->items[i];
        const float own[] = {(float)box->index, box->score, box->x1, box->y1, box->x2, box->y2};
        for (size_t k = 0; k < size; k++) {
            const struct task_point *point =
                k < 6 ? NULL : &found->points[i * found->point_count + (k - 6) / 2];
            const float number = !point ? own[k] : k % 2 ? point->y : point->x;
            cr_expect_float_eq(number, wanted[k], 2e-3f, "%s: number %zu of box %zu is %g, not %g",
                               name, k, i, (double)number, (double)wanted[k]);
        }
    }
}

Test(detect, scrfd)
{
    enum { COLUMNS = 15, ANCHORS = 128 + 32 + 8 };
    static const size_t first[] = {0, 128, 160, ANCHORS}, begin[] = {0, 1, 5, COLUMNS};
    static float numbers[9][128 * 10];
    const struct task_rows all = golden_rows("scrfd");
    struct task_rows rows[9];
    cr_assert_eq(all.count, ANCHORS * COLUMNS);
    for (size_t o = 0; o < 9; o++) {
        const size_t stride = o % 3, kind = o / 3, columns = begin[kind + 1] - begin[kind];
        size_t count = 0;
        for (size_t i = first[stride]; i < first[stride + 1]; i++)
            for (size_t k = begin[kind]; k < begin[kind + 1]; k++)
                numbers[o][count++] = all.data[i * COLUMNS + k];
        rows[o] = (struct task_rows){numbers[o],
                                     SHAPE((int64_t)(count / columns), (int64_t)columns), count};
    }
    const struct task task = {.kind = TASK_POSE,
                              .layout = LAYOUT_SCRFD_FLAT,
                              .output_count = 9,
                              .point_count = FACE_POINTS,
                              .point_numbers = 2};
    const struct task_geometry corner = {64.f / 500, 42.f / 333, 0, 0, 500, 333, 64, 64};
    const struct task_options options = options_of(.5f, .4f);
    struct detections found;
    struct error err;
    cr_assert_eq(detect_decode(&task, rows, &options, &corner, &found, &err), STATUS_OK);
    cr_expect_gt(found.count, 10);
    expect_decoded(&found, "scrfd_faces", 16);
    detections_done(&found);
    rows[4].count--;
    cr_expect_eq(detect_decode(&task, rows, &options, &corner, &found, &err), STATUS_INVALID);
    detections_done(&found);
    cr_expect(strstr(err.message, "[anchors, 4]"), "%s", err.message);
}

Test(detect, yolo_nas)
{
    const struct task_rows rows[] = {golden_rows("yolo_nas_boxes"), golden_rows("yolo_nas_scores")};
    const struct task_rows flat = golden_rows("yolo_nas_flat");
    const struct task_geometry corner = {64.f / 500, 64.f / 500, 0, 0, 500, 333, 64, 64};
    struct task_options options = options_of(.25f, .7f);
    struct detections found = decode_many(LAYOUT_YOLO_NAS, rows, 2, &options, &corner);
    cr_expect_gt(found.count, 10);
    expect_decoded(&found, "yolo_nas", 6);
    detections_done(&found);
    options.iou = 1;
    found = decode_many(LAYOUT_YOLO_NAS_FLAT, &flat, 1, &options, &corner);
    expect_decoded(&found, "yolo_nas", 6);
    detections_done(&found);
}

/* Rows after the count, or without a class, are none; a count that cannot be true is an error. */
Test(detect, paddledetection)
{
    static const float data[] = {1,  .9f, 2, 3, 10, 12, /* class, score, corners */
                                 -1, .8f, 2, 3, 10, 12, 0, .7f, 20, 20, 30, 30};
    const float counts[] = {2, 3}, wrong[] = {4, 1e9f, -1, NAN, INFINITY};
    const size_t expected[] = {1, 2};
    const struct task_options options = options_of(.5f, 1);
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        const struct task_rows rows[] = {{data, SHAPE(3, 6), 18}, {&counts[i], SHAPE(1), 1}};
        struct detections found = decode_many(LAYOUT_PADDLE_FLAT, rows, 2, &options, &same);
        cr_assert_eq(found.count, expected[i], "count %zu", i);
        cr_expect(found.items[0].index == 1 && found.items[0].x1 == 2 && found.items[0].y2 == 12);
        detections_done(&found);
    }
    const struct task task = {.kind = TASK_DETECTION, .layout = LAYOUT_PADDLE, .output_count = 2};
    const struct task_rows none[] = {{data, SHAPE(3, 6), 18}, {NULL, SHAPE(0), 0}};
    struct detections found;
    struct error err;
    cr_expect_eq(detect_decode(&task, none, &options, &same, &found, &err), STATUS_INVALID);
    detections_done(&found);
    cr_expect(strstr(err.message, "the count of boxes"), "%s", err.message);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const struct task_rows rows[] = {{data, SHAPE(3, 6), 18}, {&wrong[i], SHAPE(1), 1}};
        cr_expect_eq(detect_decode(&task, rows, &options, &same, &found, &err), STATUS_INVALID);
        detections_done(&found);
        cr_expect(strstr(err.message, "its output has 3 rows"), "%s", err.message);
    }
}

/* Hostile numbers and the smallest maps: points stay near the photo, and nothing is read outside.
 */
Test(detect, heatmaps)
{
    const struct task task = {.kind = TASK_POSE,
                              .layout = LAYOUT_HEATMAPS,
                              .output_count = 1,
                              .point_count = 2,
                              .point_numbers = 3};
    const struct task_options options = options_of(0, 1);
    static const float cases[][8] = {{0, 0, 0, 1, .5f, .5f, .5f, .5f},
                                     {NAN, 1, INFINITY, 2, 3e38f, -3e38f, 0, 1},
                                     {-1, -2, -3, -4, .1f, 0, 0, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct task_rows rows = {cases[i], SHAPE(2, 2, 2), 8};
        struct detections found = {0};
        struct error err;
        cr_assert_eq(detect_decode(&task, &rows, &options, &same, &found, &err), STATUS_OK, "%s",
                     err.message);
        cr_assert_eq(found.count, 1);
        for (size_t p = 0; p < 2; p++) {
            cr_expect(found.points[p].x >= -64 && found.points[p].x <= 128, "case %zu", i);
            cr_expect(found.points[p].score >= 0 && found.points[p].score <= 1, "case %zu", i);
        }
        detections_done(&found);
    }
    const float thin[4] = {1, 1, 1, 1}, none[8] = {0};
    const struct task_rows wrong = {thin, SHAPE(2, 2, 1), 4}, empty = {none, SHAPE(2, 2, 2), 8};
    struct detections found = {0};
    struct error err;
    cr_expect_eq(detect_decode(&task, &wrong, &options, &same, &found, &err), STATUS_INVALID);
    detections_done(&found);
    cr_expect_eq(detect_decode(&task, &empty, &options, &same, &found, &err), STATUS_OK);
    cr_expect_eq(found.count, 0, "no point has a score");
    detections_done(&found);
}
