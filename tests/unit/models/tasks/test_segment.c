/* Areas of classes: upsampling, what the model has not seen, run lengths. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/answer.h"
#include "models/tasks/depth.h"
#include "models/tasks/detect.h"
#include "models/tasks/mask.h"
#include "models/tasks/segment.h"
#include "models/tasks/text_read.h"
#include "tests/unit/models/tasks/golden_task.h"

static const struct task_options all = {.confidence = -1};

static struct task_geometry stretched(float photo_width, float photo_height, float width,
                                      float height)
{
    return (struct task_geometry){width / photo_width, height / photo_height, 0,     0,
                                  photo_width,         photo_height,          width, height};
}

static struct segments decode(const float *scores, struct shape shape,
                              const struct task_options *options,
                              const struct task_geometry *geometry)
{
    const struct task_rows row = {scores, shape, shape_count(&shape)};
    struct segments found = {0};
    struct error err;
    cr_assert_eq(segment_decode(&row, options, geometry, &found, &err), STATUS_OK, "%s",
                 err.message);
    return found;
}

/* The mask of a text of counts, column by column; pycocotools' rleFrString and rleDecode. */
static void read_counts(const char *text, uint8_t *mask, size_t size)
{
    int64_t counts[4096];
    size_t count = 0, at = 0;
    while (*text) {
        int64_t value = 0;
        int shift = 0, bits;
        do {
            bits = *text++ - 48;
            value |= (int64_t)(bits & 31) << shift;
            shift += 5;
        } while (bits & 32);
        if (bits & 16)
            value |= -((int64_t)1 << shift);
        cr_assert_lt(count, COUNT_OF(counts));
        counts[count] = value + (count > 2 ? counts[count - 2] : 0);
        count++;
    }
    for (size_t i = 0; i < count; i++)
        for (int64_t k = 0; k < counts[i]; k++) {
            cr_assert_lt(at, size);
            mask[at++] = i % 2;
        }
    cr_assert_leq(at, size);
}

Test(segment, classes_of_a_map)
{
    /* The left column is class 0, the right one class 1. */
    static const float scores[] = {1, 0, 1, 0, 0, 1, 0, 1};
    const struct task_geometry same = stretched(2, 2, 2, 2);
    struct segments found = decode(scores, SHAPE(2, 2, 2), &all, &same);
    cr_assert_eq(found.count, 2);
    cr_expect_eq(found.items[0].area, 2);
    cr_expect_str_eq(found.items[0].counts, "022", "no zero, two ones, two zeros");
    cr_expect_str_eq(found.items[1].counts, "22");
    segments_done(&found);
    struct task_options one = all;
    one.class_count = 1;
    one.classes[0] = 1;
    found = decode(scores, SHAPE(2, 2, 2), &one, &same);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].index, 1);
    segments_done(&found);
}

/* Every pixel's class by torch's rule, without the short cut. */
static size_t class_at(const float *scores, size_t classes, int height, int width, int h, int w,
                       int y, int x)
{
    float v = ((float)y + .5f) * ((float)height / (float)h) - .5f;
    float u = ((float)x + .5f) * ((float)width / (float)w) - .5f;
    v = v < 0 ? 0 : v;
    u = u < 0 ? 0 : u;
    const int y0 = (int)v, x0 = (int)u, y1 = y0 + (y0 < height - 1), x1 = x0 + (x0 < width - 1);
    const float dy = v - (float)y0, dx = u - (float)x0;
    size_t best = 0;
    float greatest = -INFINITY;
    for (size_t c = 0; c < classes; c++) {
        const float *plane = scores + c * (size_t)(height * width);
        const float value =
            (1 - dy) * ((1 - dx) * plane[y0 * width + x0] + dx * plane[y0 * width + x1]) +
            dy * ((1 - dx) * plane[y1 * width + x0] + dx * plane[y1 * width + x1]);
        if (value > greatest) {
            greatest = value;
            best = c;
        }
    }
    return best;
}

Test(segment, bilinear_then_the_best)
{
    enum { CLASSES = 5, H = 7, W = 9, TALL = 61, WIDE = 83 };
    static float scores[CLASSES * H * W];
    uint32_t seed = 7;
    for (size_t i = 0; i < COUNT_OF(scores); i++) {
        seed = seed * 1664525u + 1013904223u;
        scores[i] = (float)(seed >> 8) / (1 << 24);
    }
    const struct task_geometry geometry = stretched(WIDE, TALL, 36, 28);
    struct segments found = decode(scores, SHAPE(CLASSES, H, W), &all, &geometry);
    size_t different = 0;
    uint64_t area = 0;
    for (size_t i = 0; i < found.count; i++) {
        static uint8_t mask[WIDE * TALL];
        memset(mask, 0, sizeof mask);
        read_counts(found.items[i].counts, mask, sizeof mask);
        area += found.items[i].area;
        for (int x = 0; x < WIDE; x++)
            for (int y = 0; y < TALL; y++)
                different += mask[x * TALL + y] != (class_at(scores, CLASSES, H, W, TALL, WIDE, y,
                                                             x) == found.items[i].index);
    }
    cr_expect_eq(area, WIDE * TALL, "every pixel has one class");
    cr_expect_leq(different, 4, "%zu pixels differ; only equal scores may", different);
    segments_done(&found);
}

Test(segment, what_the_crop_leaves_out)
{
    static const float scores[] = {1, 1, 1, 1, 0, 0, 0, 0};
    /* 8 x 4, of which the model sees the middle 4 x 4. */
    const struct task_geometry crop = {1, 1, -2, 0, 8, 4, 4, 4};
    struct segments found = decode(scores, SHAPE(2, 2, 2), &all, &crop);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].area, 16);
    static uint8_t mask[32];
    read_counts(found.items[0].counts, mask, sizeof mask);
    for (size_t x = 0; x < 8; x++)
        cr_expect_eq(mask[4 * x], x >= 2 && x < 6);
    segments_done(&found);
}

Test(segment, one_class)
{
    static const float logits[] = {-1, 2}, shares[] = {.2f, .6f};
    const struct task_geometry same = stretched(2, 1, 2, 1);
    struct segments found = decode(logits, SHAPE(1, 1, 2), &all, &same);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].area, 1);
    segments_done(&found);
    found = decode(shares, SHAPE(1, 1, 2), &all, &same);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].area, 1);
    segments_done(&found);
}

Test(segment, hostile_maps)
{
    static const float numbers[] = {0, INFINITY, -INFINITY, 1, NAN, NAN, NAN, NAN};
    static const float none[] = {1, NAN, 1, 1, 2, 2, 2, 2};
    const struct task_geometry geometry = stretched(7, 3000, 2, 2);
    struct segments found = decode(numbers, SHAPE(2, 2, 2), &all, &geometry);
    uint64_t area = 0;
    for (size_t i = 0; i < found.count; i++)
        area += found.items[i].area;
    cr_expect_eq(area, 7 * 3000);
    segments_done(&found);
    struct error err;
    struct task_rows row = {none, SHAPE(2, 2, 2), 8};
    cr_expect_eq(segment_decode(&row, &all, &geometry, &found, &err), STATUS_NUMERIC);
    segments_done(&found);
    row = (struct task_rows){NULL, SHAPE(2, 0, 2), 0};
    cr_expect_eq(segment_decode(&row, &all, &geometry, &found, &err), STATUS_INVALID);
    segments_done(&found);
    row = (struct task_rows){numbers, SHAPE(2, 4), 8};
    cr_expect_eq(segment_decode(&row, &all, &geometry, &found, &err), STATUS_INVALID);
    segments_done(&found);
}

/* ---- masks of objects ---- */

Test(instances, prototypes_in_boxes)
{
    /* A prototype of 4 x 4 points whose left half is positive; the photo is the input, 16 x 16. */
    static const float prototype[] = {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1};
    static const float rows[] = {4, 4, 12, 12, .9f, 3, 1,  2,  2,  6, 6, .8f, 4, -1,
                                 9, 0, 16, 4,  .7f, 5, -2, 12, 12, 4, 4, .6f, 6, 1};
    const struct task task = {
        .kind = TASK_INSTANCES, .layout = LAYOUT_YOLO_FINAL, .output_count = 2, .prototypes = 1};
    const struct task_rows outputs[] = {{rows, SHAPE(4, 7), COUNT_OF(rows)},
                                        {prototype, SHAPE(1, 4, 4), COUNT_OF(prototype)}};
    const struct task_options options = {.confidence = .1f, .iou = 1, .max_detections = 9};
    const struct task_geometry geometry = stretched(16, 16, 16, 16);
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, outputs, &options, &geometry, &found, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(found.count, 2, "the second box has no pixel above 0, the last one none at all");
    cr_expect_eq(found.items[0].mask.index, 3);
    cr_expect_eq(found.items[0].mask.area, 4 * 8);
    cr_expect_eq(found.items[1].index, 5, "the box moved up with its mask");
    cr_expect_eq(found.items[1].mask.area, 7 * 4);
    uint8_t mask[256] = {0};
    read_counts(found.items[0].mask.counts, mask, sizeof mask);
    for (size_t i = 0; i < sizeof mask; i++)
        cr_expect_eq(mask[i], i / 16 >= 4 && i / 16 < 8 && i % 16 >= 4 && i % 16 < 12);
    detections_done(&found);
    const struct task_rows wrong[] = {outputs[0], {prototype, SHAPE(2, 2, 4), 16}};
    cr_expect_eq(detect_decode(&task, wrong, &options, &geometry, &found, &err), STATUS_INVALID);
    detections_done(&found);
}

Test(instances, masks_of_more_pixels_than_a_client_may_ask_for_are_refused)
{
    static const float prototype[] = {1, 1, 1, 1};
    static const float rows[] = {0, 0, 2, 2, .9f, 3, 1, 0, 0, 2, 2, .8f, 4, 1};
    const struct task task = {
        .kind = TASK_INSTANCES, .layout = LAYOUT_YOLO_FINAL, .output_count = 2, .prototypes = 1};
    const struct task_rows outputs[] = {{rows, SHAPE(2, 7), COUNT_OF(rows)},
                                        {prototype, SHAPE(1, 2, 2), COUNT_OF(prototype)}};
    const struct task_options options = {.confidence = .1f, .iou = 1, .max_detections = 9};
    const struct task_geometry geometry = stretched(24000, 24000, 2, 2);
    struct detections found = {0};
    struct error err;
    cr_expect_eq(detect_decode(&task, outputs, &options, &geometry, &found, &err),
                 STATUS_TOO_LARGE);
    detections_done(&found);
    cr_expect(strstr(err.message, "max_detections"), "%s", err.message);
}

Test(instances, masks_of_ultralytics)
{
    const struct task task = {
        .kind = TASK_INSTANCES, .layout = LAYOUT_YOLOV8, .output_count = 2, .prototypes = 4};
    const struct task_rows outputs[] = {golden_rows("masks_rows"), golden_rows("masks_prototypes")};
    const struct task_options options = {.confidence = .25f, .iou = .45f, .max_detections = 300};
    const struct task_geometry geometry = {64 / 500.0f, 43 / 333.0f, 0, 10, 500, 333, 64, 64};
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, outputs, &options, &geometry, &found, &err), STATUS_OK);
    const float *wanted = golden_boxes("masks", 7, found.count);
    for (size_t i = 0; i < found.count; i++, wanted += 7) {
        cr_expect_float_eq(found.items[i].score, wanted[1], 1e-6f);
        cr_expect_float_eq((float)found.items[i].mask.area, wanted[6], .01f * wanted[6] + 20,
                           "mask %zu has %g pixels, not %g", i, (double)found.items[i].mask.area,
                           (double)wanted[6]);
    }
    detections_done(&found);
}

static void expect_query_masks(const struct task *task, const char *name)
{
    const struct task_rows outputs[] = {golden_rows("query_masks_logits"),
                                        golden_rows("query_masks")};
    const struct task_geometry geometry = {64 / 500.0f, 64 / 333.0f, 0, 0, 500, 333, 64, 64};
    struct task_options options = {.confidence = .3f, .iou = 1, .max_detections = 300};
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(task, outputs, &options, &geometry, &found, &err), STATUS_OK);
    const float *golden = golden_boxes(name, 7, found.count);
    for (size_t i = 0; i < found.count; i++, golden += 7) {
        const struct detection *box = &found.items[i];
        const float corners[] = {box->x1, box->y1, box->x2, box->y2};
        cr_expect_eq(box->index, (uint32_t)golden[0]);
        cr_expect_float_eq(box->score, golden[1], 1e-5f);
        cr_expect_eq(found.items[i].mask.index, box->index);
        for (int k = 0; k < 4; k++)
            cr_expect_float_eq(corners[k], golden[2 + k], 1.01f, "corner %d is %g, not %g", k,
                               (double)corners[k], (double)golden[2 + k]);
        cr_expect_float_eq((float)found.items[i].mask.area, golden[6], .001f * golden[6],
                           "%g pixels, not %g", (double)found.items[i].mask.area,
                           (double)golden[6]);
    }
    /* Classes are chosen, and boxes cut, after the masks have shared the pixels. */
    const uint64_t area = found.items[0].mask.area;
    const uint32_t first = found.items[0].index;
    detections_done(&found);
    options.max_detections = 1;
    options.class_count = 1;
    options.classes[0] = first;
    cr_assert_eq(detect_decode(task, outputs, &options, &geometry, &found, &err), STATUS_OK);
    cr_assert_eq(found.count, 1);
    cr_expect_eq(found.items[0].mask.area, area);
    detections_done(&found);
}

Test(instances, masks_of_queries)
{
    struct task task = {.kind = TASK_INSTANCES, .layout = LAYOUT_PANOPTIC, .output_count = 2};
    expect_query_masks(&task, "panoptic");
    task.layout = LAYOUT_MASKFORMER;
    expect_query_masks(&task, "maskformer");
    task.mask_side = 384;
    expect_query_masks(&task, "mask2former");
}

Test(instances, masks_of_queries_are_bounded)
{
    const struct task task = {.kind = TASK_INSTANCES, .layout = LAYOUT_PANOPTIC, .output_count = 2};
    const struct task_rows outputs[] = {golden_rows("query_masks_logits"),
                                        golden_rows("query_masks")};
    const struct task_options options = {.confidence = .3f, .iou = 1, .max_detections = 300};
    const struct task_geometry geometry = stretched(24000, 24000, 64, 64);
    struct detections found = {0};
    struct error err;
    cr_expect_eq(detect_decode(&task, outputs, &options, &geometry, &found, &err),
                 STATUS_TOO_LARGE);
    detections_done(&found);
    cr_expect(strstr(err.message, "confidence"), "%s", err.message);
    struct task_rows wrong[] = {outputs[0], {outputs[1].data, SHAPE(5, 12, 12), 5 * 144}};
    cr_expect_eq(detect_decode(&task, wrong, &options, &geometry, &found, &err), STATUS_INVALID);
    detections_done(&found);
}

/* RF-DETR: a mask of logits for each query, of which two pairs may be. */
Test(instances, masks_of_pairs)
{
    static const float logits[] = {2, 1, -9, -9}, boxes[] = {.5f, .5f, 1, 1, .1f, .1f, .1f, .1f};
    static const float masks[] = {1, 1, -1, -1, -1, -1, -1, -1};
    const struct task task = {.kind = TASK_INSTANCES, .layout = LAYOUT_RFDETR, .output_count = 3};
    const struct task_rows outputs[] = {
        {logits, SHAPE(2, 2), 4}, {boxes, SHAPE(2, 4), 8}, {masks, SHAPE(2, 2, 2), 8}};
    const struct task_options options = {.confidence = .5f, .iou = 1, .max_detections = 300};
    const struct task_geometry geometry = stretched(4, 4, 64, 64);
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, outputs, &options, &geometry, &found, &err), STATUS_OK);
    cr_assert_eq(found.count, 2);
    for (size_t i = 0; i < 2; i++) {
        cr_expect_eq(found.items[i].index, i);
        cr_expect_eq(found.items[i].mask.area, 8);
    }
    detections_done(&found);
}

Test(text, boxes)
{
    const struct task task = {.kind = TASK_TEXT_BOXES, .layout = LAYOUT_TEXT, .output_count = 1};
    const struct task_rows map = golden_rows("text_map");
    const struct task_options options = {.confidence = .68f, .iou = 1, .max_detections = 300};
    const struct task_geometry geometry = stretched(256, 256, 64, 64);
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, &map, &options, &geometry, &found, &err), STATUS_OK);
    const float *golden = golden_boxes("text_boxes", 10, found.count);
    cr_assert_eq(found.point_count, 4);
    for (size_t i = 0; i < found.count; i++, golden += 10) {
        cr_expect_float_eq(found.items[i].score, golden[1], 1e-5f);
        for (size_t k = 0; k < 4; k++) { /* whole pixels, cut to the photo */
            const struct task_point *corner = &found.points[4 * i + k];
            cr_expect_float_eq(corner->x, golden[2 + 2 * k], .51f);
            cr_expect_float_eq(corner->y, golden[3 + 2 * k], .51f);
        }
        cr_expect(found.items[i].x1 < found.items[i].x2 && found.items[i].y1 < found.items[i].y2);
    }
    detections_done(&found);
}

/* A frame of text: a contour outside, and one inside around the hole. */
Test(text, contours_of_holes)
{
    static float frame[32 * 32];
    for (int y = 4; y < 28; y++)
        for (int x = 2; x < 30; x++)
            frame[y * 32 + x] = x > 8 && x < 24 && y > 10 && y < 20 ? .25f : .9f;
    const struct task task = {.kind = TASK_TEXT_BOXES, .layout = LAYOUT_TEXT, .output_count = 1};
    const struct task_rows map = {frame, SHAPE(1, 32, 32), COUNT_OF(frame)};
    const struct task_options options = {.confidence = .3f, .iou = 1, .max_detections = 300};
    const struct task_geometry geometry = stretched(64, 64, 64, 64);
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, &map, &options, &geometry, &found, &err), STATUS_OK);
    cr_assert_eq(found.count, 2);
    /* 27 x 23 and 16 x 10 pixels between centres, moved outwards by 9.32 and 4.62. */
    cr_expect_float_eq(found.items[0].score, (float)((28 * 24 * .9 - 15 * 9 * .65) / (28 * 24)),
                       1e-5f);
    cr_expect_float_eq(found.items[1].score, (float)((17 * 11 * .9 - 15 * 9 * .65) / (17 * 11)),
                       1e-5f);
    cr_expect_float_eq(found.points[4].x, 2 * (8 - 1.5f * 160 / 52), 1e-3f);
    cr_expect_float_eq(found.points[4].y, 2 * (10 - 1.5f * 160 / 52), 1e-3f);
    detections_done(&found);
    for (size_t i = 0; i < COUNT_OF(frame); i++) /* a model without a sigmoid: means below 0 */
        frame[i] = frame[i] > .5f ? frame[i] : -9;
    cr_assert_eq(detect_decode(&task, &map, &options, &geometry, &found, &err), STATUS_OK, "%s",
                 err.message);
    cr_expect_eq(found.count, 0);
    detections_done(&found);
}

Test(text, lines)
{
    struct text_reading line = {0};
    struct error err;
    const struct task_rows scores = golden_rows("text_scores"), wanted = golden_rows("text_line");
    cr_assert_eq(text_decode(&scores, &line, &err), STATUS_OK);
    cr_assert_eq(line.count, wanted.count - 1);
    cr_expect_float_eq(line.score, wanted.data[0], 1e-6f);
    for (size_t i = 0; i < line.count; i++)
        cr_expect_eq(line.characters[i], (uint32_t)wanted.data[i + 1]);
    text_done(&line);
    /* Scores of which a softmax makes .2 .8, and .5 .5; their logarithms. */
    static const float raw[] = {2, 2 + 1.3862944f, -3, -3},
                       logs[] = {-1.6094379f, -.2231436f, -.6931472f, -.6931472f};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(text_decode(&(struct task_rows){i ? logs : raw, SHAPE(2, 2), 4}, &line, &err),
                     STATUS_OK);
        cr_expect(line.count == 1 && line.characters[0] == 0);
        cr_expect_float_eq(line.score, .8f, 1e-6f);
        text_done(&line);
    }
    static const float blanks[] = {1, 0, 1, 0}, none[] = {NAN, NAN};
    cr_assert_eq(text_decode(&(struct task_rows){blanks, SHAPE(2, 2), 4}, &line, &err), STATUS_OK);
    cr_expect(line.is_read && line.count == 0 && line.score <= 0);
    text_done(&line);
    cr_expect_eq(text_decode(&(struct task_rows){none, SHAPE(1, 2), 2}, &line, &err),
                 STATUS_NUMERIC);
    text_done(&line);
    cr_expect_eq(text_decode(&(struct task_rows){blanks, SHAPE(4), 4}, &line, &err),
                 STATUS_INVALID);
}

Test(instances, torchvision)
{
    static const float boxes[] = {0, 0, 4, 4, 0, 0, 4, 4}, labels[] = {1, 2}, scores[] = {.6f, .9f};
    static const float masks[] = {1, 1, 0, 0, 0, .25f, .5f, .75f};
    const struct task task = {
        .kind = TASK_INSTANCES, .layout = LAYOUT_TORCHVISION, .output_count = 4};
    const struct task_rows outputs[] = {{boxes, SHAPE(2, 4), 8},
                                        {labels, SHAPE(2), 2},
                                        {scores, SHAPE(2), 2},
                                        {masks, SHAPE(2, 1, 2, 2), 8}};
    const struct task_options options = {.confidence = .1f, .iou = 1, .max_detections = 9};
    const struct task_geometry geometry = stretched(2, 2, 2, 2);
    struct detections found = {0};
    struct error err;
    cr_assert_eq(detect_decode(&task, outputs, &options, &geometry, &found, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(found.count, 2);
    cr_expect_eq(found.items[0].mask.area, 1, "0.5 is not above 0.5");
    cr_expect_eq(found.items[1].mask.area, 2);
    detections_done(&found);
    const struct task_rows none[] = {{NULL, SHAPE(0, 4), 0},
                                     {NULL, SHAPE(0), 0},
                                     {NULL, SHAPE(0), 0},
                                     {NULL, SHAPE(0, 1, 2, 2), 0}};
    cr_assert_eq(detect_decode(&task, none, &options, &geometry, &found, &err), STATUS_OK);
    cr_expect_eq(found.count, 0);
    detections_done(&found);
}

/* ---- bitmaps and polygons ---- */

/* The counts of a mask, as pycocotools writes them; small counts only. */
static void write_counts(const uint8_t *mask, size_t size, char *text)
{
    int64_t counts[512];
    size_t count = 0, length = 0;
    for (size_t i = 0; i <= size; i++) {
        if (i < size && mask[i] == count % 2) {
            length++;
            continue;
        }
        cr_assert_lt(count, COUNT_OF(counts));
        counts[count++] = (int64_t)length;
        length = 1;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t value = counts[i] - (i > 2 ? counts[i - 2] : 0);
        for (bool more = true; more;) {
            int bits = (int)(value & 31);
            value >>= 5;
            more = (bits & 16) ? value != -1 : value != 0;
            *text++ = (char)((bits | (more ? 32 : 0)) + 48);
        }
    }
    *text = '\0';
}

static struct mask_polygons polygons_of(const uint8_t *mask, uint32_t width, uint32_t height,
                                        struct mask_bitmap *bitmap)
{
    char text[4096];
    struct mask_polygons found = {0};
    struct error err;
    write_counts(mask, (size_t)width * height, text);
    cr_assert_eq(mask_bitmap_of(text, height, bitmap, &err), STATUS_OK);
    cr_assert_eq(mask_polygons_of(bitmap, &found, &err), STATUS_OK);
    return found;
}

Test(mask, rectangle)
{
    uint8_t mask[6 * 8] = {0}; /* column by column, 8 pixels high */
    for (size_t x = 2; x < 5; x++)
        for (size_t y = 3; y < 7; y++)
            mask[x * 8 + y] = 1;
    struct mask_bitmap bitmap;
    struct mask_polygons found = polygons_of(mask, 6, 8, &bitmap);
    cr_expect(bitmap.left == 2 && bitmap.top == 3 && bitmap.width == 3 && bitmap.height == 4);
    static const uint32_t wanted[] = {2, 3, 5, 3, 5, 7, 2, 7};
    cr_assert_eq(found.polygons, 1);
    cr_assert_eq(found.count, COUNT_OF(wanted));
    for (size_t i = 0; i < found.count; i++)
        cr_expect_eq(found.points[i], wanted[i]);
    free(bitmap.pixels);
    FREE_ALL(found.points, found.ends);
}

Test(mask, parts_and_holes)
{
    /* Two pixels that touch at a corner, and a ring. */
    uint8_t mask[9 * 4] = {0};
    mask[0] = mask[4 + 1] = 1;
    for (size_t x = 4; x < 7; x++)
        for (size_t y = 0; y < 3; y++)
            mask[x * 4 + y] = x != 5 || y != 1;
    struct mask_bitmap bitmap;
    struct mask_polygons found = polygons_of(mask, 9, 4, &bitmap);
    cr_expect_eq(found.polygons, 3);
    free(bitmap.pixels);
    FREE_ALL(found.points, found.ends);
}

Test(mask, a_disc_has_few_corners)
{
    enum { SIDE = 64 };
    static uint8_t mask[SIDE * SIDE];
    size_t area = 0;
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        const double x = (double)(i / SIDE) + .5 - 32, y = (double)(i % SIDE) + .5 - 32;
        mask[i] = x * x + y * y < 28 * 28;
        area += mask[i];
    }
    struct mask_bitmap bitmap;
    struct mask_polygons found = polygons_of(mask, SIDE, SIDE, &bitmap);
    cr_assert_eq(found.polygons, 1);
    cr_expect_lt(found.count / 2, 80, "%zu corners", found.count / 2);
    int64_t twice = 0;
    for (size_t i = 0; i < found.count; i += 2) {
        const size_t next = (i + 2) % found.count;
        twice += (int64_t)found.points[i] * found.points[next + 1] -
                 (int64_t)found.points[next] * found.points[i + 1];
    }
    cr_expect_float_eq((double)twice / 2, (double)area, .02 * (double)area, "%g of %zu pixels",
                       (double)twice / 2, area);
    free(bitmap.pixels);
    FREE_ALL(found.points, found.ends);
}

Test(mask, invalid_counts)
{
    static const char *const texts[] = {"", "0", "\x1f", "PPPPPPPPPPPPPPPP", "4O4", "zzzzzzz0"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct mask_reader reader = {.at = texts[i]};
        uint32_t length;
        bool inside;
        for (int k = 0; k < 20 && mask_next(&reader, &length, &inside); k++)
            ;
        cr_expect_leq(reader.at, texts[i] + strlen(texts[i]));
    }
}

/* ---- depth ---- */

Test(depth, as_torch_interpolates)
{
    struct depth depth;
    struct error err;
    const struct task_rows row = golden_rows("depth"), photo = golden_rows("depth_photo");
    const struct task_geometry geometry = stretched(17, 13, 12, 10);
    cr_assert_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_OK, "%s", err.message);
    uint16_t *pixels;
    float least, greatest;
    cr_assert_eq(depth_render(&depth, &pixels, &least, &greatest, &err), STATUS_OK);
    cr_assert_eq(photo.count, 17 * 13);
    for (size_t i = 0; i < photo.count; i++)
        cr_expect_float_eq(least + (greatest - least) * (float)pixels[i] / 65535, photo.data[i],
                           1e-3f, "pixel %zu", i);
    free(pixels);
    depth_done(&depth);
}

Test(depth, odd_maps)
{
    static const float flat[] = {3, 3, 3, 3}, odd[] = {1, NAN}, vast[] = {-3e38f, 3e38f};
    const struct task_geometry geometry = stretched(3, 2, 4, 4);
    struct depth depth;
    struct error err;
    struct task_rows row = {flat, SHAPE(2, 2), 4};
    uint16_t *pixels;
    float least, greatest;
    cr_assert_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_OK);
    cr_assert_eq(depth_render(&depth, &pixels, &least, &greatest, &err), STATUS_OK);
    cr_expect_float_eq(least, 3, 1e-5f);
    cr_expect_float_eq(greatest, 3, 1e-5f);
    free(pixels);
    depth_done(&depth);
    row = (struct task_rows){vast, SHAPE(1, 2), 2};
    cr_assert_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_OK);
    cr_assert_eq(depth_render(&depth, &pixels, &least, &greatest, &err), STATUS_OK);
    free(pixels);
    depth_done(&depth);
    row = (struct task_rows){odd, SHAPE(1, 2), 2};
    cr_expect_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_NUMERIC);
    row = (struct task_rows){flat, SHAPE(4), 4};
    cr_expect_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_INVALID);
    row = (struct task_rows){flat, SHAPE(2, 1, 2), 4};
    cr_expect_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_INVALID);
    row = (struct task_rows){NULL, SHAPE(0, 2), 0};
    cr_expect_eq(depth_decode(&row, &geometry, &depth, &err), STATUS_INVALID);
}

/* ---- anomalies ---- */

/* Makes an output for a batch of one photo. */
static struct tensor *output_of(struct task_rows rows)
{
    struct tensor *tensor;
    struct shape shape = SHAPE(1);
    for (int d = 0; d < rows.shape.rank; d++)
        shape.dims[shape.rank++] = rows.shape.dims[d];
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, NULL), STATUS_OK);
    memcpy(tensor->data, rows.data, rows.count * sizeof *rows.data);
    return tensor;
}

Test(anomaly, as_anomalib_says)
{
    static const float score = .3f, label = 1;
    struct tensor *const outputs[] = {output_of((struct task_rows){&score, SHAPE(1), 1}),
                                      output_of((struct task_rows){&label, {0}, 1}),
                                      output_of(golden_rows("depth")),
                                      output_of(golden_rows("anomaly_mask"))};
    const struct tensor *const *const given = (const struct tensor *const *)outputs;
    const struct task_options options = TASK_OPTIONS_NONE;
    const struct task_rows photo = golden_rows("anomaly_photo");
    const struct task_geometry geometry = stretched(23, 11, 12, 10);
    struct task task = {.kind = TASK_ANOMALY,
                        .anomaly_parts = 15,
                        .output_count = COUNT_OF(outputs),
                        .outputs = {0, 1, 2, 3}};
    struct task_buffer buffers[TASK_MAX_OUTPUTS] = {0};
    struct task_answer answer = {0};
    struct mask_bitmap bitmap;
    struct error err;
    cr_assert_eq(task_answer_of(&task, given, 1, 0, &options, &geometry, buffers, &answer, &err),
                 STATUS_OK, "%s", err.message);
    const struct anomaly *found = &answer.anomaly;
    cr_expect(found->is_set && found->is_anomalous && found->score <= .3f && found->score >= .3f);
    cr_expect(answer.depth.width == 6 && answer.depth.height == 5);
    cr_assert_eq(answer.segments.count, 1);
    cr_assert_eq(mask_bitmap_of(answer.segments.items[0].counts, 11, &bitmap, NULL), STATUS_OK);
    for (uint32_t y = 0; y < 11; y++)
        for (uint32_t x = 0; x < 23; x++) {
            const bool is_in = y >= bitmap.top && y < bitmap.top + bitmap.height &&
                               x >= bitmap.left && x < bitmap.left + bitmap.width;
            const bool is_set =
                is_in && bitmap.pixels[(y - bitmap.top) * bitmap.width + x - bitmap.left];
            cr_expect_eq(is_set, photo.data[y * 23 + x] > 0, "%u, %u", x, y);
        }
    free(bitmap.pixels);
    task_answer_done(&answer);
    task.anomaly_parts = 1u << ANOMALY_SCORE;
    task.output_count = 1;
    cr_assert_eq(task_answer_of(&task, given, 1, 0, &options, &geometry, buffers, &answer, &err),
                 STATUS_OK);
    cr_expect_not(found->is_anomalous, "0.3 is below 0.5");
    for (size_t i = 0; i < COUNT_OF(outputs); i++)
        tensor_unref(outputs[i]);
}
