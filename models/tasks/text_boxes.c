/* Finds lines of text in a map of probabilities, as PP-OCR does (DB, differentiable binarization).
 *
 * The numbers are those of post_process_object_detection() of Hugging Face's PP-OCR detectors:
 * OpenCV's contours of the pixels above 0.3, the smallest rectangle around each, its mean
 * probability, and the rectangle moved outwards. A contour goes around a connected part of text
 * (pixels that touch at a corner are connected) or around a hole in it. Its smallest rectangle is
 * also that of the convex hull, so only the ends of runs of pixels matter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/size.h"
#include "models/tasks/decoders.h"

/* A pixel above this is text. */
#define TEXT_PIXEL 0.3f

/* Least side of a rectangle in points of the map, before and after its sides move outwards. */
#define TEXT_LEAST_SIDE  3
#define TEXT_LEAST_MOVED 5

/* Sides move outwards by area / perimeter times this factor or lensd.json's unclip_ratio. */
#define TEXT_UNCLIP 1.5

/* Largest number of pixels of a map. */
#define TEXT_MOST_PIXELS ((size_t)1 << 24)

/* Pixels [begin, end) of a row: all are text, or none is. */
struct text_run {
    uint32_t row, begin, end;
    uint32_t parent; /* another run of the same part with a lower index, or the run itself */
    bool is_text;
};

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
    uint32_t dilation; /* pixels */
    double unclip;
    bool has_whole_points; /* boxes are enlarged as in pyclipper */
    struct text_run *runs;
    size_t run_count;
    size_t *row_runs;  /* index of each row's first run, then run_count */
    uint32_t *ordered; /* indexes of runs, sorted by their part */
    double *sums;      /* width + 1 per row: for each column, the sum of the pixels left of it */
    struct text_point *points, *hull;
    size_t point_capacity, hull_capacity;
};

static void text_map_done(struct text_map *map)
{
    FREE_ALL(map->runs, map->row_runs, map->ordered, map->sums, map->points, map->hull);
}

/* ---- parts ---- */

/* True if a pixel is text after the dilation, if there is one: cv2.dilate() with a 2 x 2 kernel of
 * ones, anchored at its bottom right pixel. */
static bool is_text(const struct text_map *map, uint32_t x, uint32_t y)
{
    for (uint32_t up = 0; up <= map->dilation && up <= y; up++)
        for (uint32_t left = 0; left <= map->dilation && left <= x; left++)
            if (map->data[(size_t)(y - up) * map->width + (x - left)] > TEXT_PIXEL)
                return true;
    return false;
}

/* Adds the runs of a row at `runs`, or only counts them if `runs` is NULL. */
static size_t find_runs(const struct text_map *map, uint32_t row, struct text_run *runs)
{
    size_t count = 0;
    for (uint32_t begin = 0, end; begin < map->width; begin = end, count++) {
        const bool inside = is_text(map, begin, row);
        for (end = begin + 1; end < map->width && is_text(map, end, row) == inside;)
            end++;
        if (runs)
            runs[count] = (struct text_run){row, begin, end, 0, inside};
    }
    return count;
}

static uint32_t part_of(struct text_map *map, uint32_t run)
{
    struct text_run *runs = map->runs;
    while (runs[run].parent != run) {
        runs[run].parent = runs[runs[run].parent].parent;
        run = runs[run].parent;
    }
    return run;
}

static void join(struct text_map *map, uint32_t a, uint32_t b)
{
    a = part_of(map, a);
    b = part_of(map, b);
    if (a < b)
        map->runs[b].parent = a;
    else
        map->runs[a].parent = b;
}

/* Merges the runs of a row with those above. Text is 8-connected, the background 4-connected. */
static void join_rows(struct text_map *map, uint32_t row)
{
    size_t first = map->row_runs[row - 1];
    for (size_t i = map->row_runs[row]; i < map->row_runs[row + 1]; i++) {
        const struct text_run *run = &map->runs[i];
        while (map->runs[first].end < run->begin)
            first++;
        for (size_t k = first; k < map->row_runs[row] && map->runs[k].begin <= run->end; k++) {
            const struct text_run *above = &map->runs[k];
            const bool is_side = above->begin < run->end && run->begin < above->end;
            if (above->is_text == run->is_text && (is_side || run->is_text))
                join(map, (uint32_t)k, (uint32_t)i);
        }
    }
}

static enum status find_parts(struct text_map *map, struct error *err)
{
    map->row_runs = alloc_array((size_t)map->height + 1, sizeof *map->row_runs);
    TRY(check_memory(map->row_runs, "for the text in an image", err));
    for (uint32_t y = 0; y < map->height; y++)
        map->row_runs[y + 1] = map->row_runs[y] + find_runs(map, y, NULL);
    map->run_count = map->row_runs[map->height];
    map->runs = alloc_array(map->run_count, sizeof *map->runs);
    map->ordered = alloc_array(map->run_count, sizeof *map->ordered);
    TRY(check_memory(map->runs && map->ordered, "for the text in an image", err));
    for (uint32_t y = 0; y < map->height; y++)
        (void)find_runs(map, y, map->runs + map->row_runs[y]);
    for (uint32_t i = 0; i < map->run_count; i++)
        map->runs[i].parent = i;
    for (uint32_t y = 1; y < map->height; y++)
        join_rows(map, y);
    return STATUS_OK;
}

/* Sorts the runs by their part, and by row within a part: counting sort by the first run of a part,
 * which has the lowest index. */
static enum status sort_runs(struct text_map *map, struct error *err)
{
    size_t *begins = alloc_array(map->run_count + 1, sizeof *begins);
    TRY(check_memory(begins, "for the text in an image", err));
    for (uint32_t i = 0; i < map->run_count; i++)
        begins[part_of(map, i) + 1]++;
    for (size_t i = 0; i < map->run_count; i++)
        begins[i + 1] += begins[i];
    for (uint32_t i = 0; i < map->run_count; i++)
        map->ordered[begins[part_of(map, i)]++] = i;
    free(begins);
    return STATUS_OK;
}

/* ---- the rectangle around a part ---- */

static bool add_end(struct text_map *map, size_t *count, uint32_t x, uint32_t y)
{
    if (!array_reserve(&map->points, &map->point_capacity, *count + 1, sizeof *map->points) ||
        !array_reserve(&map->hull, &map->hull_capacity, 2 * (*count + 1), sizeof *map->hull))
        return false;
    map->points[(*count)++] = (struct text_point){(int32_t)x, (int32_t)y};
    return true;
}

/* Adds the first and the last pixel of text in [begin, end) of a row. */
static bool add_text_beside(struct text_map *map, size_t *count, uint32_t begin, uint32_t end,
                            uint32_t y)
{
    while (begin < end && !is_text(map, begin, y))
        begin++;
    while (begin < end && !is_text(map, end - 1, y))
        end--;
    return begin == end || (add_end(map, count, begin, y) && add_end(map, count, end - 1, y));
}

/* Finds the pixels at which the contour of a part may turn; none for a background that is not a
 * hole. Returns false when out of memory. */
static bool collect_ends(struct text_map *map, const uint32_t *runs, size_t run_count,
                         size_t *ret_count)
{
    *ret_count = 0;
    for (size_t i = 0; i < run_count; i++) {
        const struct text_run *run = &map->runs[runs[i]];
        if (run->is_text) {
            if (!add_end(map, ret_count, run->begin, run->row) ||
                !add_end(map, ret_count, run->end - 1, run->row))
                return false;
            continue;
        }
        if (run->begin == 0 || run->end == map->width || run->row == 0 ||
            run->row + 1 == map->height) { /* the background is no hole */
            *ret_count = 0;
            return true;
        }
        if (!add_end(map, ret_count, run->begin - 1, run->row) ||
            !add_end(map, ret_count, run->end, run->row) ||
            !add_text_beside(map, ret_count, run->begin, run->end, run->row - 1) ||
            !add_text_beside(map, ret_count, run->begin, run->end, run->row + 1))
            return false;
    }
    return true;
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

/* Andrew's monotone chain. Returns the number of corners in map->hull. */
static size_t find_hull(struct text_map *map, size_t count)
{
    size_t corners = 0;
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

/* Rows of a polygon's pixels: [left, right]; `top` is the row of the first entry. */
struct text_extents {
    int64_t top, count;
    int32_t *left, *right;
};

static void extents_add(struct text_extents *extents, int64_t x, int64_t y)
{
    const int64_t row = y - extents->top;
    if (row < 0 || row >= extents->count)
        return;
    if (x < extents->left[row])
        extents->left[row] = (int32_t)x;
    if (x > extents->right[row])
        extents->right[row] = (int32_t)x;
}

/* Adds the pixels of a line, as OpenCV draws it from its left end. Between two equally near pixels
 * it takes the one nearer to the start. */
static void extents_line(struct text_extents *extents, const int64_t a[2], const int64_t b[2])
{
    const int64_t *from = a[0] <= b[0] ? a : b, *to = a[0] <= b[0] ? b : a;
    const int64_t width = to[0] - from[0], height = to[1] - from[1];
    const int64_t high = height < 0 ? -height : height, down = height < 0 ? -1 : 1;
    const int64_t steps = width > high ? width : high, slow = width > high ? high : width;
    int64_t rest = steps - 2 * slow, moved = 0;
    for (int64_t i = 0; i <= steps; i++) {
        extents_add(extents, from[0] + (width > high ? i : moved),
                    from[1] + down * (width > high ? moved : i));
        moved += rest < 0;
        rest += (rest < 0 ? 2 * steps : 0) - 2 * slow;
    }
}

/* Returns the mean of the map over the pixels of a rectangle: cv2.fillPoly of its corners,
 * truncated to integers. Returns NaN when out of memory. */
static double mean_inside(const struct text_map *map, double corners[4][2])
{
    double left = INFINITY, top = INFINITY, bottom = -INFINITY;
    for (int i = 0; i < 4; i++) {
        left = fmin(left, corners[i][0]);
        top = fmin(top, corners[i][1]);
        bottom = fmax(bottom, corners[i][1]);
    }
    const double last = (double)map->height - 1;
    const int64_t x0 = (int64_t)fmin(fmax(floor(left), 0), (double)map->width - 1);
    const int64_t y0 = (int64_t)fmin(fmax(floor(top), 0), last);
    struct text_extents extents = {.top = y0,
                                   .count = (int64_t)fmin(fmax(ceil(bottom), 0), last) - y0 + 1};
    extents.left = alloc_array((size_t)extents.count, sizeof *extents.left);
    extents.right = alloc_array((size_t)extents.count, sizeof *extents.right);
    double sum = 0, pixels = 0;
    for (int64_t i = 0; extents.left && extents.right && i < extents.count; i++) {
        extents.left[i] = INT32_MAX;
        extents.right[i] = -1;
    }
    int64_t whole[4][2];
    for (int i = 0; i < 4; i++) {
        whole[i][0] = x0 + (int64_t)(corners[i][0] - (double)x0);
        whole[i][1] = y0 + (int64_t)(corners[i][1] - (double)y0);
    }
    for (int i = 0; extents.left && extents.right && i < 4; i++)
        extents_line(&extents, whole[i], whole[(i + 1) % 4]);
    for (int64_t i = 0; extents.left && extents.right && i < extents.count; i++) {
        const int64_t from = extents.left[i] > x0 ? extents.left[i] : x0;
        const int64_t to =
            extents.right[i] < (int64_t)map->width ? extents.right[i] + 1 : (int64_t)map->width;
        const double *sums = map->sums + (size_t)(y0 + i) * ((size_t)map->width + 1);
        if (from >= to)
            continue;
        sum += sums[to] - sums[from];
        pixels += (double)(to - from);
    }
    const bool has_memory = extents.left && extents.right;
    FREE_ALL(extents.left, extents.right);
    return !has_memory ? NAN : pixels > 0 ? sum / pixels : 0;
}

static enum status sum_rows(struct text_map *map, struct error *err)
{
    const size_t columns = (size_t)map->width + 1;
    map->sums = alloc_array(columns * map->height, sizeof *map->sums);
    TRY(check_memory(map->sums, "for the text in an image", err));
    for (size_t y = 0; y < map->height; y++)
        for (size_t x = 0; x < map->width; x++) {
            const float value = map->data[y * map->width + x];
            map->sums[y * columns + x + 1] =
                map->sums[y * columns + x] + (isfinite(value) ? (double)value : 0);
        }
    return STATUS_OK;
}

/* ---- all ---- */

static int32_t whole(double at)
{
    return (int32_t)(at < 0 ? at - 0.5 : at + 0.5);
}

/* Adds the round corner of a polygon that was moved outwards: an arc between two normals. */
static bool add_round_corner(struct text_map *map, size_t *count, const int32_t at[2],
                             const double from[2], const double to[2], double outwards)
{
    const double turn = fmax(-1, fmin(1, from[0] * to[1] - to[0] * from[1]));
    const double angle = atan2(turn, from[0] * to[0] + from[1] * to[1]);
    /* Enough corners that no chord is further than a quarter of a map's point from its arc. */
    const double circle = fmin(acos(-1) / acos(1 - 0.25 / fmax(outwards, 1)), outwards * acos(-1));
    const int steps = (int)fmax(1, floor(circle / (2 * acos(-1)) * fabs(angle) + 0.5));
    for (int i = 0; i <= steps; i++) {
        const double by = 2 * acos(-1) / circle * i;
        const double x = i == steps ? to[0] : from[0] * cos(by) - from[1] * sin(by);
        const double y = i == steps ? to[1] : from[0] * sin(by) + from[1] * cos(by);
        if (!add_end(map, count, (uint32_t)whole(at[0] + x * outwards),
                     (uint32_t)whole(at[1] + y * outwards)))
            return false;
    }
    return true;
}

/* Finds the smallest rectangle around pyclipper's result for the corners (counter-clockwise).
 * Truncates the corners to integers, and moves the sides outwards with round corners. Returns false
 * when out of memory. */
static bool move_whole_points(struct text_map *map, double corners[4][2], double outwards,
                              struct text_rectangle *ret)
{
    double normals[4][2];
    int32_t cut[4][2];
    size_t count = 0;
    for (int i = 0; i < 8; i++)
        cut[i / 2][i % 2] = (int32_t)corners[3 - i / 2][i % 2];
    for (int i = 0; i < 4; i++) {
        const double x = cut[(i + 1) % 4][0] - cut[i][0], y = cut[(i + 1) % 4][1] - cut[i][1];
        const double length = fmax(hypot(x, y), 1);
        normals[i][0] = y / length;
        normals[i][1] = -x / length;
    }
    for (int i = 0; i < 4; i++)
        if (!add_round_corner(map, &count, cut[i], normals[(i + 3) % 4], normals[i], outwards))
            return false;
    *ret = smallest_rectangle(map->hull, find_hull(map, count));
    return true;
}

static enum status add_rectangle(struct text_map *map, struct text_rectangle found, uint32_t place,
                                 struct candidates *candidates, struct error *err)
{
    const double width = 2 * found.half_width, height = 2 * found.half_height;
    if (!(fmin(width, height) >= TEXT_LEAST_SIDE))
        return STATUS_OK;
    double corners[4][2];
    for (int i = 0; i < 4; i++) {
        const double along = i < 2 ? found.half_width : -found.half_width;
        const double across = i == 0 || i == 3 ? found.half_height : -found.half_height;
        corners[i][0] = found.x + along * found.cosine - across * found.sine;
        corners[i][1] = found.y + along * found.sine + across * found.cosine;
    }
    const double score = mean_inside(map, corners);
    if (isnan(score))
        return error_no_memory(err, "for the text in an image");
    const double outwards = width * height * map->unclip / (2 * (width + height));
    if (map->has_whole_points && !move_whole_points(map, corners, outwards, &found))
        return error_no_memory(err, "for the text in an image");
    if (!map->has_whole_points) {
        found.half_width += outwards;
        found.half_height += outwards;
    }
    if (!(2 * fmin(found.half_width, found.half_height) >= TEXT_LEAST_MOVED))
        return STATUS_OK;
    struct detection box =
        decode_centred((float)found.x, (float)found.y, (float)(2 * found.half_width),
                       (float)(2 * found.half_height));
    box.angle = (float)atan2(found.sine, found.cosine);
    box.score = (float)fmin(score, 1);
    box.place = place;
    candidates_add(candidates, &box);
    return STATUS_OK;
}

static enum status add_parts(struct text_map *map, struct candidates *candidates, struct error *err)
{
    for (size_t i = 0, end; i < map->run_count; i = end) {
        const uint32_t part = part_of(map, map->ordered[i]);
        for (end = i + 1; end < map->run_count && part_of(map, map->ordered[end]) == part;)
            end++;
        size_t count;
        TRY(check_memory(collect_ends(map, map->ordered + i, end - i, &count),
                         "for the text in an image", err));
        if (count < 3)
            continue;
        const size_t corners = find_hull(map, count);
        TRY(add_rectangle(map, smallest_rectangle(map->hull, corners), part, candidates, err));
    }
    return STATUS_OK;
}

enum status decode_text_map(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct task *task = candidates->task;
    const struct task_rows *row = &outputs[0];
    const int rank = row->shape.rank;
    if (rank < 2 || rank > 3 || (rank == 3 && row->shape.dims[0] != 1) || row->count == 0 ||
        row->count > TEXT_MOST_PIXELS)
        return task_rows_wrong(row, "a probability for each point, [1, height, width]", err);
    struct text_map map = {.data = row->data,
                           .width = (uint32_t)row->shape.dims[rank - 1],
                           .height = (uint32_t)row->shape.dims[rank - 2],
                           .dilation = task->dilates,
                           .has_whole_points = task->unclip_ratio > 0,
                           .unclip =
                               task->unclip_ratio > 0 ? (double)task->unclip_ratio : TEXT_UNCLIP};
    enum status status = find_parts(&map, err);
    IF_OK(status, sort_runs(&map, err));
    IF_OK(status, sum_rows(&map, err));
    IF_OK(status, add_parts(&map, candidates, err));
    text_map_done(&map);
    return status;
}

/* ---- corners ---- */

/* Puts corners in reading order: top left, top right, bottom right, bottom left. The two with the
 * lower x are the left ones. */
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
