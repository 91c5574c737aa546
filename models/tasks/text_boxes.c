/* Finds lines of text in a map of probabilities, as PP-OCR does (DB, differentiable binarization).
 *
 * The numbers are those of post_process_object_detection() of Hugging Face's PP-OCR detectors:
 * OpenCV's contours of the pixels above 0.3, the smallest rectangle around each, its mean
 * probability, and the rectangle moved outwards. A contour goes around a connected part of text
 * (pixels that touch at a corner are connected) or around a hole in it. Its smallest rectangle is
 * also the smallest around the convex hull, so only a contour's first and last pixel in each row
 * matter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/decoders.h"

/* A pixel above this is text. */
#define TEXT_PIXEL 0.3f

#define TEXT_LEAST_SIDE  3 /* least side of a rectangle in points of the map */
#define TEXT_LEAST_MOVED 5 /* least side after the sides moved outwards */

/* Sides move outwards by area / perimeter times this factor or lensd.json's unclip_ratio. */
#define TEXT_UNCLIP 1.5

/* Largest number of pixels of a map. */
#define TEXT_MOST_PIXELS ((size_t)1 << 24)

/* Largest number of steps of a round corner; the largest map needs about 400. */
#define ROUND_STEPS 1000

struct text_point {
    int32_t x, y;
};

/* The smallest rectangle around points: centre, half of each side, direction of the first side. */
struct text_rectangle {
    double x, y, half_width, half_height, cosine, sine;
};

struct text_map {
    const float *data;
    uint32_t width, height;
    double unclip;
    bool has_whole_points;   /* boxes are enlarged as in pyclipper */
    struct mask_bitmap text; /* the whole map */
    double *sums; /* width + 1 per row: for each column, the sum of the pixels left of it */
    /* The first and the last pixel of a contour or polygon in each row; INT32_MAX and -1: the row
     * has no such pixel. All pixels are in the rows [top, bottom). */
    int32_t *left, *right;
    int64_t top, bottom;
    struct text_point *points, *hull;
    size_t point_count;
};

static void text_map_done(struct text_map *map)
{
    FREE_ALL(map->text.pixels, map->sums, map->left, map->right, map->points, map->hull);
}

static void extents_clear(struct text_map *map)
{
    for (int64_t y = map->top; y < map->bottom; y++) {
        map->left[y] = INT32_MAX;
        map->right[y] = -1;
    }
    map->top = map->height;
    map->bottom = 0;
}

static void extents_add(struct text_map *map, int64_t x, int64_t y)
{
    if (y < 0 || y >= map->height)
        return;
    map->left[y] = x < map->left[y] ? (int32_t)x : map->left[y];
    map->right[y] = x > map->right[y] ? (int32_t)x : map->right[y];
    map->top = y < map->top ? y : map->top;
    map->bottom = y >= map->bottom ? y + 1 : map->bottom;
}

/* Marks the pixels of text. With `dilates`, also marks their neighbours to the right and below,
 * like cv2.dilate() with a 2 x 2 kernel of ones anchored at its bottom right pixel. Goes from the
 * last pixel to the first, so that it reads no neighbour that it has changed. */
static void mark_text(struct text_map *map, bool dilates)
{
    const size_t width = map->width, count = width * map->height;
    uint8_t *text = map->text.pixels;
    for (size_t i = 0; i < count; i++)
        text[i] = map->data[i] > TEXT_PIXEL;
    for (size_t y = map->height; dilates && y-- > 0;)
        for (size_t x = width; x-- > 0;) {
            const size_t i = y * width + x;
            text[i] |=
                (x && text[i - 1]) || (y && text[i - width]) || (x && y && text[i - width - 1]);
        }
}

/* ---- the rectangle around a part ---- */

/* Finds the pixels of the contour that begins at the upper edge of a pixel. */
static void trace_contour(struct text_map *map, uint32_t x, uint32_t y)
{
    struct mask_edge edge = {x, y, 0};
    extents_clear(map);
    do {
        extents_add(map, edge.x - (edge.heading == 1 || edge.heading == 2),
                    edge.y - (edge.heading >= 2));
        (void)mask_next_edge(&map->text, true, &edge);
    } while (edge.x != x || edge.y != y || edge.heading != 0);
}

static void add_point(struct text_map *map, int64_t x, int64_t y)
{
    map->points[map->point_count++] = (struct text_point){(int32_t)x, (int32_t)y};
}

static int by_place(const void *a, const void *b)
{
    const struct text_point *left = a, *right = b;
    if (left->x != right->x)
        return left->x < right->x ? -1 : 1;
    return (left->y > right->y) - (left->y < right->y);
}

static int64_t turn_of(struct text_point a, struct text_point b, struct text_point c)
{
    return (int64_t)(b.x - a.x) * (c.y - a.y) - (int64_t)(b.y - a.y) * (c.x - a.x);
}

/* Adds a point to a chain of the hull, and removes points at which the hull does not turn. */
static size_t extend_hull(struct text_point *hull, size_t first, size_t count,
                          struct text_point point)
{
    while (count >= first + 2 && turn_of(hull[count - 2], hull[count - 1], point) <= 0)
        count--;
    hull[count] = point;
    return count + 1;
}

/* Andrew's monotone chain. Returns the number of corners in map->hull, and drops the points. */
static size_t find_hull(struct text_map *map)
{
    const size_t count = map->point_count;
    size_t corners = 0;
    map->point_count = 0;
    qsort(map->points, count, sizeof *map->points, by_place);
    for (size_t i = 0; i < count; i++)
        corners = extend_hull(map->hull, 0, corners, map->points[i]);
    const size_t lower = corners - 1;
    for (size_t i = count - 1; i-- > 0;)
        corners = extend_hull(map->hull, lower, corners, map->points[i]);
    return corners - 1; /* without the last corner, which is the first one again */
}

/* Finds the smallest rectangle that has a side along the edge from corner `i` of the hull. */
static struct text_rectangle rectangle_along(const struct text_point *hull, size_t count, size_t i)
{
    const struct text_point from = hull[i], to = hull[i + 1 < count ? i + 1 : 0];
    const double x = to.x - from.x, y = to.y - from.y, length = sqrt(x * x + y * y);
    const double cosine = x / length, sine = y / length;
    double left = INFINITY, right = -INFINITY, top = INFINITY, bottom = -INFINITY;
    for (size_t k = 0; k < count; k++) {
        const double along = hull[k].x * cosine + hull[k].y * sine;
        const double across = hull[k].y * cosine - hull[k].x * sine;
        /* Not fmin and fmax: GCC 12 for arm64 has an internal error when it vectorises them. */
        left = along < left ? along : left;
        right = along > right ? along : right;
        top = across < top ? across : top;
        bottom = across > bottom ? across : bottom;
    }
    const double u = (left + right) / 2, v = (top + bottom) / 2;
    return (struct text_rectangle){.x = u * cosine - v * sine,
                                   .y = u * sine + v * cosine,
                                   .half_width = (right - left) / 2,
                                   .half_height = (bottom - top) / 2,
                                   .cosine = cosine,
                                   .sine = sine};
}

/* Finds the smallest rectangle around the hull: it has a side along an edge of the hull. */
static struct text_rectangle smallest_rectangle(const struct text_point *hull, size_t count)
{
    struct text_rectangle best = {0};
    double least = INFINITY;
    for (size_t i = 0; i < count && count > 2; i++) {
        const struct text_rectangle found = rectangle_along(hull, count, i);
        const double area = found.half_width * found.half_height;
        if (area < least) {
            least = area;
            best = found;
        }
    }
    return best;
}

/* ---- the score ---- */

/* Adds the pixels of a line, as OpenCV draws it from its left end. Of two equally near pixels
 * the line has the pixel nearer to its start. */
static void extents_line(struct text_map *map, const int64_t a[2], const int64_t b[2])
{
    const int64_t *from = a[0] <= b[0] ? a : b, *to = a[0] <= b[0] ? b : a;
    const int64_t width = to[0] - from[0], height = to[1] - from[1];
    const int64_t high = height < 0 ? -height : height, down = height < 0 ? -1 : 1;
    const int64_t steps = width > high ? width : high, slow = width > high ? high : width;
    int64_t rest = steps - 2 * slow, moved = 0;
    for (int64_t i = 0; i <= steps; i++) {
        extents_add(map, from[0] + (width > high ? i : moved),
                    from[1] + down * (width > high ? moved : i));
        moved += rest < 0;
        rest += (rest < 0 ? 2 * steps : 0) - 2 * slow;
    }
}

/* Returns the mean of the map over the pixels of a rectangle: cv2.fillPoly of its corners,
 * truncated to integers. */
static double mean_inside(struct text_map *map, double corners[4][2])
{
    double left = INFINITY, top = INFINITY, sum = 0, pixels = 0;
    for (int i = 0; i < 4; i++) {
        left = fmin(left, corners[i][0]);
        top = fmin(top, corners[i][1]);
    }
    const int64_t x0 = (int64_t)fmin(fmax(floor(left), 0), (double)map->width - 1);
    const int64_t y0 = (int64_t)fmin(fmax(floor(top), 0), (double)map->height - 1);
    int64_t whole[4][2];
    for (int i = 0; i < 4; i++) {
        whole[i][0] = x0 + (int64_t)(corners[i][0] - (double)x0);
        whole[i][1] = y0 + (int64_t)(corners[i][1] - (double)y0);
    }
    extents_clear(map);
    for (int i = 0; i < 4; i++)
        extents_line(map, whole[i], whole[(i + 1) % 4]);
    for (int64_t y = map->top; y < map->bottom; y++) {
        const int64_t from = map->left[y] > x0 ? map->left[y] : x0;
        const int64_t to =
            map->right[y] < (int64_t)map->width ? map->right[y] + 1 : (int64_t)map->width;
        const double *sums = map->sums + (size_t)y * ((size_t)map->width + 1);
        if (from >= to)
            continue;
        sum += sums[to] - sums[from];
        pixels += (double)(to - from);
    }
    return pixels > 0 ? sum / pixels : 0;
}

static void sum_rows(struct text_map *map)
{
    const size_t columns = (size_t)map->width + 1;
    for (size_t y = 0; y < map->height; y++)
        for (size_t x = 0; x < map->width; x++) {
            const float value = map->data[y * map->width + x];
            map->sums[y * columns + x + 1] =
                map->sums[y * columns + x] + (isfinite(value) ? (double)value : 0);
        }
}

/* ---- all ---- */

static int32_t whole(double at)
{
    return (int32_t)(at < 0 ? at - 0.5 : at + 0.5);
}

/* Adds the round corner of a polygon that was moved outwards: an arc between two normals. */
static void add_round_corner(struct text_map *map, const int32_t at[2], const double from[2],
                             const double to[2], double outwards)
{
    const double turn = fmax(-1, fmin(1, from[0] * to[1] - to[0] * from[1]));
    const double angle = atan2(turn, from[0] * to[0] + from[1] * to[1]);
    /* The corners of a full circle: so many that no chord is further from its arc than a quarter of
     * the distance between two points of the map. */
    const double circle = fmin(acos(-1) / acos(1 - 0.25 / fmax(outwards, 1)), outwards * acos(-1));
    const double wanted = floor(circle / (2 * acos(-1)) * fabs(angle) + 0.5);
    const int steps = (int)fmax(1, fmin(wanted, ROUND_STEPS));
    for (int i = 0; i <= steps; i++) {
        const double by = 2 * acos(-1) / circle * i;
        const double x = i == steps ? to[0] : from[0] * cos(by) - from[1] * sin(by);
        const double y = i == steps ? to[1] : from[0] * sin(by) + from[1] * cos(by);
        add_point(map, whole(at[0] + x * outwards), whole(at[1] + y * outwards));
    }
}

/* Finds the smallest rectangle around pyclipper's result for the corners (counter-clockwise).
 * Truncates the corners to integers, and moves the sides outwards with round corners. */
static struct text_rectangle move_whole_points(struct text_map *map, double corners[4][2],
                                               double outwards)
{
    double normals[4][2];
    int32_t cut[4][2];
    for (int i = 0; i < 8; i++)
        cut[i / 2][i % 2] = (int32_t)corners[3 - i / 2][i % 2];
    for (int i = 0; i < 4; i++) {
        const double x = cut[(i + 1) % 4][0] - cut[i][0], y = cut[(i + 1) % 4][1] - cut[i][1];
        const double length = fmax(hypot(x, y), 1);
        normals[i][0] = y / length;
        normals[i][1] = -x / length;
    }
    for (int i = 0; i < 4; i++)
        add_round_corner(map, cut[i], normals[(i + 3) % 4], normals[i], outwards);
    return smallest_rectangle(map->hull, find_hull(map));
}

static void add_rectangle(struct text_map *map, struct text_rectangle found, uint32_t place,
                          struct candidates *candidates)
{
    const double width = 2 * found.half_width, height = 2 * found.half_height;
    if (!(fmin(width, height) >= TEXT_LEAST_SIDE))
        return;
    double corners[4][2];
    for (int i = 0; i < 4; i++) {
        const double along = i < 2 ? found.half_width : -found.half_width;
        const double across = i == 0 || i == 3 ? found.half_height : -found.half_height;
        corners[i][0] = found.x + along * found.cosine - across * found.sine;
        corners[i][1] = found.y + along * found.sine + across * found.cosine;
    }
    const double score = mean_inside(map, corners);
    const double outwards = width * height * map->unclip / (2 * (width + height));
    if (map->has_whole_points) {
        found = move_whole_points(map, corners, outwards);
    } else {
        found.half_width += outwards;
        found.half_height += outwards;
    }
    if (!(2 * fmin(found.half_width, found.half_height) >= TEXT_LEAST_MOVED))
        return;
    struct detection box =
        decode_centred((float)found.x, (float)found.y, (float)(2 * found.half_width),
                       (float)(2 * found.half_height));
    box.angle = (float)atan2(found.sine, found.cosine);
    candidates_add(candidates, box, (float)fmin(score, 1), 0, place);
}

static void add_contours(struct text_map *map, struct candidates *candidates)
{
    uint32_t place = 0;
    for (uint32_t y = 0; y < map->height; y++)
        for (uint32_t x = 0; x < map->width; x++) {
            if (!mask_begins(&map->text, x, y))
                continue;
            trace_contour(map, x, y);
            for (int64_t row = map->top; row < map->bottom; row++) {
                if (map->right[row] < 0)
                    continue;
                add_point(map, map->left[row], row);
                add_point(map, map->right[row], row);
            }
            const struct text_rectangle found = smallest_rectangle(map->hull, find_hull(map));
            add_rectangle(map, found, place++, candidates);
        }
}

static enum status text_map_init(const struct task *task, const struct task_rows *row,
                                 struct text_map *ret, struct error *err)
{
    const int rank = row->shape.rank;
    const uint32_t width = (uint32_t)row->shape.dims[rank - 1];
    const uint32_t height = (uint32_t)row->shape.dims[rank - 2];
    const size_t points = 2 * (size_t)height + 4 * (ROUND_STEPS + 1);
    const bool has_ratio = task->unclip_ratio > 0;
    *ret = (struct text_map){.data = row->data,
                             .width = width,
                             .height = height,
                             .has_whole_points = has_ratio,
                             .unclip = has_ratio ? (double)task->unclip_ratio : TEXT_UNCLIP,
                             .text = {0, 0, width, height, alloc_array(width, height)},
                             .sums = alloc_array(((size_t)width + 1) * height, sizeof *ret->sums),
                             .left = alloc_array(height, sizeof *ret->left),
                             .right = alloc_array(height, sizeof *ret->right),
                             .bottom = height,
                             .points = alloc_array(points, sizeof *ret->points),
                             .hull = alloc_array(2 * points, sizeof *ret->hull)};
    if (!ret->text.pixels || !ret->sums || !ret->left || !ret->right || !ret->points || !ret->hull)
        return error_no_memory(err, "for the text in an image");
    extents_clear(ret);
    mark_text(ret, task->dilates);
    sum_rows(ret);
    return STATUS_OK;
}

enum status decode_text_map(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct shape *shape = &outputs->shape;
    struct text_map map;
    if (shape->rank < 2 || shape->rank > 3 || (shape->rank == 3 && shape->dims[0] != 1) ||
        outputs->count == 0 || outputs->count > TEXT_MOST_PIXELS)
        return task_rows_wrong(outputs, "a probability for each point, [1, height, width]", err);
    const enum status status = text_map_init(candidates->task, outputs, &map, err);
    if (status == STATUS_OK)
        add_contours(&map, candidates);
    text_map_done(&map);
    return status;
}

/* ---- corners ---- */

/* Puts corners in reading order: top left, top right, bottom right, bottom left. The two corners
 * with the lower x are the left corners. */
static void order_corners(float corners[static 4][2])
{
    for (int i = 1; i < 4; i++)
        for (int k = i; k > 0 && corners[k][0] < corners[k - 1][0]; k--)
            for (int axis = 0; axis < 2; axis++) {
                const float swapped = corners[k][axis];
                corners[k][axis] = corners[k - 1][axis];
                corners[k - 1][axis] = swapped;
            }
    const int left_above = corners[1][1] > corners[0][1] ? 0 : 1;
    const int right_above = corners[3][1] > corners[2][1] ? 2 : 3;
    const int order[] = {left_above, right_above, 5 - right_above, 1 - left_above};
    float ordered[4][2];
    for (int i = 0; i < 4; i++)
        memcpy(ordered[i], corners[order[i]], sizeof ordered[i]);
    memcpy(corners, ordered, sizeof ordered);
}

enum status text_corners(const struct task_rows *outputs, const struct task_geometry *g,
                         struct detections *found, struct error *err)
{
    const struct shape *shape = &outputs[0].shape;
    const float scale_x = g->input_width / (float)shape->dims[shape->rank - 1];
    const float scale_y = g->input_height / (float)shape->dims[shape->rank - 2];
    found->points = alloc_array(found->count * TEXT_CORNERS, sizeof *found->points);
    found->point_count = TEXT_CORNERS;
    TRY(check_memory(found->points, "for the text in an image", err));
    for (size_t i = 0; i < found->count; i++) {
        struct detection *box = &found->items[i];
        float corners[TEXT_CORNERS][2];
        detection_corners(box, corners);
        order_corners(corners);
        box->x1 = box->y1 = INFINITY;
        box->x2 = box->y2 = box->angle = 0;
        for (int k = 0; k < TEXT_CORNERS; k++) {
            struct task_point *point = &found->points[i * TEXT_CORNERS + (size_t)k];
            point->x =
                decode_limit((corners[k][0] * scale_x - g->left) / g->gain_x, g->photo_width);
            point->y =
                decode_limit((corners[k][1] * scale_y - g->top) / g->gain_y, g->photo_height);
            point->score = -1;
            box->x1 = fminf(box->x1, point->x);
            box->y1 = fminf(box->y1, point->y);
            box->x2 = fmaxf(box->x2, point->x);
            box->y2 = fmaxf(box->y2, point->y);
        }
    }
    return STATUS_OK;
}
