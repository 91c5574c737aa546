/* Computes the crops of boxes, and the reading order of lines of text. */
#include "models/tasks/crops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/decoders.h"

#define TURN_RATIO   1.5 /* PP-OCR turns a crop if height / width is at least this */
#define ROW_DISTANCE 10  /* pixels; PP-OCR begins a row at a line this far below the line before */

static enum status no_pixel(struct error *err)
{
    return error_set(err, STATUS_INVALID, "the box has no pixel to crop");
}

static enum status crop_straight(const struct detection *box, double margin, uint32_t width,
                                 uint32_t height, struct crop *ret, struct error *err)
{
    const float across = (float)(margin * (double)(box->x2 - box->x1));
    const float down = (float)(margin * (double)(box->y2 - box->y1));
    const float left = decode_limit(floorf(box->x1 - across), (float)width);
    const float top = decode_limit(floorf(box->y1 - down), (float)height);
    const float right = decode_limit(ceilf(box->x2 + across), (float)width);
    const float bottom = decode_limit(ceilf(box->y2 + down), (float)height);
    if (right <= left || bottom <= top)
        return no_pixel(err);
    *ret = (struct crop){.x = (uint32_t)left,
                         .y = (uint32_t)top,
                         .width = (uint32_t)right - (uint32_t)left,
                         .height = (uint32_t)bottom - (uint32_t)top};
    return STATUS_OK;
}

static double distance(const float a[2], const float b[2])
{
    return hypot((double)a[0] - (double)b[0], (double)a[1] - (double)b[1]);
}

/* Sets the size of a crop from its corners. */
static enum status measure(double most, struct crop *ret, struct error *err)
{
    float(*c)[2] = ret->corners;
    const double width = fmax(distance(c[0], c[1]), distance(c[2], c[3]));
    const double height = fmax(distance(c[0], c[3]), distance(c[1], c[2]));
    if (!(width >= 1 && height >= 1))
        return no_pixel(err);
    /* A box lies in the picture, but its margin and angle can move corners far out of it. */
    if (!(width <= most && height <= most))
        return error_set(err, STATUS_INVALID,
                         "the box of %.0f x %.0f pixels is many times as large as its picture",
                         width, height);
    ret->is_warped = true;
    ret->width = (uint32_t)width;
    ret->height = (uint32_t)height;
    return STATUS_OK;
}

/* Scales a quadrilateral by 1 + 2 * margin around the mean of its corners. */
static void widen(float corners[4][2], double margin)
{
    for (int axis = 0; axis < 2; axis++) {
        float middle = 0;
        for (int i = 0; i < 4; i++)
            middle += corners[i][axis] / 4;
        for (int i = 0; i < 4; i++)
            corners[i][axis] += (corners[i][axis] - middle) * 2 * (float)margin;
    }
}

enum status crop_of(enum task_kind kind, const struct detections *found, size_t box, double margin,
                    uint32_t width, uint32_t height, struct crop *ret, struct error *err)
{
    const double most = 4 * ((double)width + (double)height);
    struct crop crop = {0};
    if (kind == TASK_TEXT_BOXES && found->points) {
        for (size_t i = 0; i < TEXT_CORNERS; i++) {
            const struct task_point *point = &found->points[box * TEXT_CORNERS + i];
            crop.corners[i][0] = decode_limit(rintf(point->x), (float)width - 1);
            crop.corners[i][1] = decode_limit(rintf(point->y), (float)height - 1);
        }
        widen(crop.corners, margin);
        TRY(measure(most, &crop, err));
        crop.is_turned = (double)crop.height >= TURN_RATIO * (double)crop.width;
    } else if (kind == TASK_ORIENTED) {
        /* detection_corners() starts with the bottom right corner. */
        static const int order[] = {2, 1, 0, 3};
        float corners[4][2];
        detection_corners(&found->items[box], corners);
        for (int i = 0; i < 4; i++)
            memcpy(crop.corners[i], corners[order[i]], sizeof crop.corners[i]);
        widen(crop.corners, margin);
        TRY(measure(most, &crop, err));
    } else {
        return crop_straight(&found->items[box], margin, width, height, ret, err);
    }
    *ret = crop;
    return STATUS_OK;
}

enum status crop_align(const struct detections *found, size_t box, const struct align_template *to,
                       struct crop *ret, struct error *err)
{
    const struct task_point *from = found->points + box * found->point_count;
    if (!found->points || found->point_count != to->count)
        return error_set(err, STATUS_INVALID, "the box has %zu points to align, not %zu",
                         found->points ? found->point_count : 0, to->count);
    double middle[4] = {0}; /* mean x and y of the box's points, then of the template's */
    for (size_t i = 0; i < to->count; i++) {
        middle[0] += (double)from[i].x / (double)to->count;
        middle[1] += (double)from[i].y / (double)to->count;
        middle[2] += (double)to->points[i][0] / (double)to->count;
        middle[3] += (double)to->points[i][1] / (double)to->count;
    }
    /* Points are complex numbers. The transform multiplies them by (along + i across) / spread. Its
     * inverse, from the crop to the photo, multiplies by a - i b. */
    double along = 0, across = 0, spread = 0;
    for (size_t i = 0; i < to->count; i++) {
        const double x = (double)from[i].x - middle[0], y = (double)from[i].y - middle[1];
        const double u = (double)to->points[i][0] - middle[2];
        const double v = (double)to->points[i][1] - middle[3];
        along += x * u + y * v;
        across += x * v - y * u;
        spread += x * x + y * y;
    }
    const double gain = along * along + across * across;
    if (!(spread > 0 && gain > 0))
        return error_set(err, STATUS_INVALID, "all points of the box are at the same place");
    const double a = along * spread / gain, b = across * spread / gain;
    *ret = (struct crop){.is_warped = true,
                         .is_aligned = true,
                         .width = (uint32_t)to->width,
                         .height = (uint32_t)to->height,
                         .map = {a, b, middle[0] - a * middle[2] - b * middle[3], -b, a,
                                 middle[1] + b * middle[2] - a * middle[3]}};
    return STATUS_OK;
}

void crops_limit(const struct detections *found, bool *wanted, size_t most)
{
    size_t count = 0;
    for (size_t i = 0; i < found->count; i++)
        count += wanted[i];
    for (; count > most; count--) {
        size_t worst = SIZE_MAX;
        for (size_t i = 0; i < found->count; i++)
            if (wanted[i] &&
                (worst == SIZE_MAX || found->items[i].score <= found->items[worst].score))
                worst = i;
        if (worst < found->count)
            wanted[worst] = false;
    }
}

struct read_line {
    float x, y;
    size_t row, place;
    struct detection item;
    struct task_point points[TEXT_CORNERS];
};

static int by_height(const void *a, const void *b)
{
    const struct read_line *left = a, *right = b;
    if (left->y < right->y || left->y > right->y)
        return left->y < right->y ? -1 : 1;
    return (left->place > right->place) - (left->place < right->place);
}

static int by_row(const void *a, const void *b)
{
    const struct read_line *left = a, *right = b;
    if (left->row != right->row)
        return left->row < right->row ? -1 : 1;
    if (left->x < right->x || left->x > right->x)
        return left->x < right->x ? -1 : 1;
    return by_height(a, b);
}

enum status text_reading_order(struct detections *found, struct error *err)
{
    const size_t count = found->count;
    struct read_line *lines = alloc_array(count, sizeof *lines);
    TRY(check_memory(lines, "for the order of lines of text", err));
    for (size_t i = 0; i < count; i++) {
        const struct task_point *points = &found->points[i * TEXT_CORNERS];
        lines[i] = (struct read_line){
            .x = rintf(points->x), .y = rintf(points->y), .place = i, .item = found->items[i]};
        memcpy(lines[i].points, points, sizeof lines[i].points);
    }
    qsort(lines, count, sizeof *lines, by_height);
    for (size_t i = 1; i < count; i++)
        lines[i].row = lines[i - 1].row + (lines[i].y - lines[i - 1].y >= ROW_DISTANCE);
    qsort(lines, count, sizeof *lines, by_row);
    for (size_t i = 0; i < count; i++) {
        found->items[i] = lines[i].item;
        memcpy(&found->points[i * TEXT_CORNERS], lines[i].points, sizeof lines[i].points);
    }
    free(lines);
    return STATUS_OK;
}
