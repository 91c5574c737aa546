/* Areas of classes: upsampling, what the model has not seen, run lengths. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/segment.h"

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
    row = (struct task_rows){NULL, SHAPE(2, 0, 2), 0};
    cr_expect_eq(segment_decode(&row, &all, &geometry, &found, &err), STATUS_INVALID);
    row = (struct task_rows){numbers, SHAPE(2, 4), 8};
    cr_expect_eq(segment_decode(&row, &all, &geometry, &found, &err), STATUS_INVALID);
}
