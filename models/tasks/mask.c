/* Converts run lengths to bitmaps and polygons.
 *
 * Outlines are traced along the edges between pixels, with the mask on the right. Successive edges
 * that lie within the tolerance of one straight line are replaced by that line. */
#include "models/tasks/mask.h"

#include <math.h>

#include "engine/base/array.h"
#include "engine/base/size.h"

/* Decodes a run length like rleFrString() in COCO's maskApi.c. */
bool mask_next(struct mask_reader *reader, uint32_t *ret_length, bool *ret_is_inside)
{
    int64_t value = 0;
    int bits = 32;
    for (int shift = 0; bits & 32; shift += 5) {
        bits = *reader->at - 48;
        if (bits < 0 || bits > 63 || shift > 35)
            return false;
        reader->at++;
        value |= (int64_t)(bits & 31) << shift;
        if (!(bits & 32) && (bits & 16))
            value -= (int64_t)1 << (shift + 5);
    }
    if (reader->read > 2)
        value += reader->counts[1];
    if (value < 0 || value > UINT32_MAX)
        return false;
    reader->counts[1] = reader->counts[0];
    reader->counts[0] = value;
    *ret_length = (uint32_t)value;
    *ret_is_inside = reader->read++ % 2;
    return true;
}

static void extend(struct mask_bitmap *box, uint32_t x, uint32_t first, uint32_t last)
{
    const uint32_t right = box->width ? box->left + box->width : x;
    const uint32_t bottom = box->width ? box->top + box->height : first;
    if (!box->width) {
        box->left = x;
        box->top = first;
    }
    box->top = first < box->top ? first : box->top;
    box->width = (right > x + 1 ? right : x + 1) - box->left;
    box->height = (bottom > last + 1 ? bottom : last + 1) - box->top;
}

/* If box->pixels is NULL, extends `box` to the runs inside the mask, else sets the pixels of these
 * runs. */
static void for_columns(const char *counts, uint32_t height, struct mask_bitmap *box)
{
    struct mask_reader reader = {.at = counts};
    uint64_t at = 0;
    uint32_t length;
    for (bool inside; mask_next(&reader, &length, &inside); at += length) {
        for (uint64_t from = at; inside && from < at + length;) {
            const uint32_t x = (uint32_t)(from / height), y = (uint32_t)(from % height);
            const uint64_t end = (uint64_t)(x + 1) * height;
            const uint32_t count = (uint32_t)((end < at + length ? end : at + length) - from);
            for (uint32_t i = 0; box->pixels && i < count; i++)
                box->pixels[(size_t)(y + i - box->top) * box->width + x - box->left] = 1;
            if (!box->pixels)
                extend(box, x, y, y + count - 1);
            from += count;
        }
    }
}

enum status mask_bitmap_of(const char *counts, uint32_t height, struct mask_bitmap *ret,
                           struct error *err)
{
    struct mask_bitmap found = {0};
    for_columns(counts, height, &found);
    found.pixels = alloc_array(found.width, found.height);
    TRY(check_memory(found.pixels, "for the mask of an object", err));
    for_columns(counts, height, &found);
    *ret = found;
    return STATUS_OK;
}

/* Marks a pixel whose upper edge belongs to a traced outline. */
enum { IS_FOLLOWED = 2 };

struct corner {
    int64_t x, y;
};

/* An outline that is being traced. Its corners are simplified as they are added. */
struct outline {
    struct mask_polygons *into;
    size_t capacity;
    struct corner anchor, last;              /* `anchor` was kept last, `last` was added last */
    double left_x, left_y, right_x, right_y; /* directions that the line from `anchor` may have */
    double tolerance;                        /* pixels */
    bool has_line;
    bool failed;
};

static void outline_keep(struct outline *outline, struct corner corner)
{
    struct mask_polygons *into = outline->into;
    if (!array_reserve(&into->points, &outline->capacity, into->count + 2, sizeof *into->points)) {
        outline->failed = true;
        return;
    }
    into->points[into->count++] = (uint32_t)corner.x;
    into->points[into->count++] = (uint32_t)corner.y;
    outline->anchor = corner;
    outline->has_line = false;
}

/* True if the line from the anchor to the corner is near enough to all corners between them. */
static bool outline_fits(const struct outline *outline, double x, double y)
{
    return !outline->has_line || (outline->left_x * y - outline->left_y * x >= 0 &&
                                  outline->right_x * y - outline->right_y * x <= 0);
}

/* Narrows the directions of the line, so that it passes within the tolerance of this corner. */
static void outline_narrow(struct outline *outline, double x, double y)
{
    const double length = hypot(x, y), sine = outline->tolerance / length;
    if (sine >= 1)
        return;
    const double cosine = sqrt(1 - sine * sine);
    const double left_x = x * cosine + y * sine, left_y = y * cosine - x * sine;
    const double right_x = x * cosine - y * sine, right_y = y * cosine + x * sine;
    if (!outline->has_line || outline->left_x * left_y - outline->left_y * left_x > 0) {
        outline->left_x = left_x;
        outline->left_y = left_y;
    }
    if (!outline->has_line || outline->right_x * right_y - outline->right_y * right_x < 0) {
        outline->right_x = right_x;
        outline->right_y = right_y;
    }
    outline->has_line = true;
}

static void outline_add(struct outline *outline, struct corner corner)
{
    double x = (double)(corner.x - outline->anchor.x), y = (double)(corner.y - outline->anchor.y);
    if (!outline_fits(outline, x, y)) {
        outline_keep(outline, outline->last);
        x = (double)(corner.x - outline->anchor.x);
        y = (double)(corner.y - outline->anchor.y);
    }
    outline_narrow(outline, x, y);
    outline->last = corner;
}

static bool is_inside(const struct mask_bitmap *bitmap, int64_t x, int64_t y)
{
    return x >= 0 && y >= 0 && x < bitmap->width && y < bitmap->height &&
           bitmap->pixels[(size_t)y * bitmap->width + (size_t)x];
}

bool mask_next_edge(struct mask_bitmap *bitmap, bool joins_corners, struct mask_edge *edge)
{
    static const int step_x[] = {1, 0, -1, 0}, step_y[] = {0, 1, 0, -1}; /* clockwise */
    /* The two pixels beside the next edge if the outline goes straight on: right and left. */
    static const int right_x[] = {0, -1, -1, 0}, right_y[] = {0, 0, -1, -1};
    static const int left_x[] = {0, 0, -1, -1}, left_y[] = {-1, 0, 0, -1};
    const int h = edge->heading;
    if (h == 0)
        bitmap->pixels[(size_t)edge->y * bitmap->width + (size_t)edge->x] |= IS_FOLLOWED;
    edge->x += step_x[h];
    edge->y += step_y[h];
    const bool right = is_inside(bitmap, edge->x + right_x[h], edge->y + right_y[h]);
    const bool left = is_inside(bitmap, edge->x + left_x[h], edge->y + left_y[h]);
    const int turn = left && (right || joins_corners) ? 3 : right ? 0 : 1;
    edge->heading = (h + turn) % 4;
    return turn != 0;
}

/* Traces the outline from the upper edge of pixel (x, y) to the right. Returns twice the area that
 * it encloses: negative around a hole. */
static int64_t follow(struct mask_bitmap *bitmap, int64_t x, int64_t y, struct outline *outline)
{
    struct mask_edge edge = {x, y, 0};
    int64_t area = 0;
    do {
        const struct mask_edge from = edge;
        if (mask_next_edge(bitmap, false, &edge))
            outline_add(outline, (struct corner){edge.x + bitmap->left, edge.y + bitmap->top});
        area += from.x * (edge.y - from.y) - from.y * (edge.x - from.x);
    } while (edge.x != x || edge.y != y || edge.heading != 0);
    return area;
}

/* Traces the outline that begins at pixel (x, y) and adds its corners. Returns twice its area. */
static int64_t add_corners(struct mask_bitmap *bitmap, uint32_t x, uint32_t y, double tolerance,
                           struct outline *outline)
{
    const struct corner first = {x + (int64_t)bitmap->left, y + (int64_t)bitmap->top};
    outline->tolerance = tolerance;
    outline->last = first;
    outline_keep(outline, first);
    return follow(bitmap, x, y, outline);
}

/* Adds the outline that begins at pixel (x, y), unless it goes around a hole. */
static bool add_polygon(struct mask_bitmap *bitmap, uint32_t x, uint32_t y, struct outline *outline,
                        size_t *ends_capacity)
{
    struct mask_polygons *into = outline->into;
    const size_t begin = into->count;
    const int64_t area = add_corners(bitmap, x, y, 0.75, outline);
    if (area > 0 && into->count < begin + 6) { /* fewer than three corners are left */
        into->count = begin;
        (void)add_corners(bitmap, x, y, 0, outline);
    }
    if (area <= 0)
        into->count = begin;
    if (outline->failed || area <= 0)
        return !outline->failed;
    if (!array_reserve(&into->ends, ends_capacity, into->polygons + 1, sizeof *into->ends))
        return false;
    into->ends[into->polygons++] = into->count;
    return true;
}

enum status mask_polygons_of(struct mask_bitmap *bitmap, struct mask_polygons *ret,
                             struct error *err)
{
    struct outline outline = {.into = ret};
    size_t ends_capacity = 0;
    for (uint32_t y = 0; y < bitmap->height; y++)
        for (uint32_t x = 0; x < bitmap->width; x++) {
            if (mask_begins(bitmap, x, y) && !add_polygon(bitmap, x, y, &outline, &ends_capacity))
                return error_no_memory(err, "for the outline of a mask");
        }
    return STATUS_OK;
}
