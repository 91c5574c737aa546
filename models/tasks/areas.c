/* Interpolates scores between the points of a map, and writes run lengths.
 *
 * A pixel's scores are convex combinations of the scores at the four neighbouring points of the
 * map. A class that is the best at all four points is the best at every pixel between these points.
 * So scores are computed only between points whose best classes differ. */
#include "models/tasks/areas.h"

#include <math.h>

#include "engine/base/array.h"
#include "engine/base/size.h"

/* Adds `length` pixels of a class, or of AREA_NONE. */
static bool area_add(struct area_runs *runs, uint16_t index, uint32_t length)
{
    struct area_run *last = runs->count ? &runs->items[runs->count - 1] : NULL;
    if (length == 0)
        return true;
    if (last && last->index == index && last->length <= UINT32_MAX - length) {
        last->length += length;
        return true;
    }
    if (!array_reserve(&runs->items, &runs->capacity, runs->count + 1, sizeof *runs->items))
        return false;
    runs->items[runs->count++] = (struct area_run){index, length};
    return true;
}

/* Returns the class with the highest score. Scores of successive classes are `step` apart. */
static uint16_t area_best(const struct area_map *map, const float *scores, size_t step)
{
    uint16_t best = 0;
    if (map->classes == 1)
        return scores[0] > map->threshold ? 0 : AREA_NONE;
    for (size_t c = 1; c < map->classes; c++)
        if (scores[c * step] > scores[best * step])
            best = (uint16_t)c;
    return best;
}

void area_classify(struct area_map *map)
{
    const float *scores = map->scores, threshold = map->threshold;
    const size_t plane = map->plane;
    uint16_t *best = map->best;
    for (size_t i = 0; i < plane && map->classes == 1; i++)
        best[i] = scores[i] > threshold ? 0 : AREA_NONE;
    for (size_t i = 0; i < plane && map->classes > 1; i++)
        best[i] = area_best(map, scores + i, plane);
}

/* Sets `end` of each pixel: the first pixel after it with another `first`. */
static struct area_place *set_ends(struct area_place *places, size_t count)
{
    for (size_t i = count; places && i-- > 0;) {
        const bool goes_on = i + 1 < count && places[i + 1].first == places[i].first;
        places[i].end = goes_on ? places[i + 1].end : (uint32_t)(i + 1);
    }
    return places;
}

/* Like area_places(), but finds the nearest point of each pixel. Computes in float32, from the
 * start of a pixel instead of its centre, as torch's mode "nearest" does. */
static struct area_place *nearest_places(size_t count, float gain, float begin, float input,
                                         int32_t side)
{
    const bool is_whole = fabsf(begin) < 0.5f && fabsf(gain * (float)count - input) < 0.5f;
    const float scale = is_whole ? (float)side / (float)count : gain * ((float)side / input);
    const float start = is_whole ? 0 : begin * ((float)side / input);
    struct area_place *places = alloc_array(count, sizeof *places);
    for (size_t i = 0; places && i < count; i++) {
        const float point = floorf((float)i * scale + start);
        const int32_t at = point >= 0 && point < (float)side ? (int32_t)point : -1;
        places[i] = (struct area_place){.first = at, .second = at};
    }
    return set_ends(places, count);
}

struct area_place *area_places(size_t count, float gain, float begin, float input, int32_t side)
{
    struct area_place *places = alloc_array(count, sizeof *places);
    for (size_t i = 0; places && i < count; i++) {
        const float at = ((float)i + 0.5f) * gain + begin;
        float point = at * ((float)side / input) - 0.5f;
        point = point < 0 ? 0 : point;
        if (!(at >= 0 && at <= input)) {
            places[i] = (struct area_place){-1, -1, 0, 0};
            continue;
        }
        const int32_t first = point < (float)(side - 1) ? (int32_t)point : side - 1;
        places[i].first = first;
        places[i].second = first + 1 < side ? first + 1 : first;
        places[i].share = point - (float)first;
    }
    return set_ends(places, count);
}

enum status area_map_init(int64_t width, int64_t height, const struct task_geometry *g,
                          bool is_nearest, struct area_map *ret, struct error *err)
{
    struct area_place *(*const places)(size_t, float, float, float, int32_t) =
        is_nearest ? nearest_places : area_places;
    *ret = (struct area_map){.classes = 1,
                             .plane = (size_t)height * (size_t)width,
                             .width = (int32_t)width,
                             .height = (int32_t)height,
                             .photo_width = (uint32_t)g->photo_width,
                             .photo_height = (uint32_t)g->photo_height};
    ret->best = alloc_array(ret->plane, sizeof *ret->best);
    ret->columns = places(ret->photo_width, g->gain_x, g->left, g->input_width, ret->width);
    ret->rows = places(ret->photo_height, g->gain_y, g->top, g->input_height, ret->height);
    return check_memory(ret->best && ret->columns && ret->rows, "for the masks of an image", err);
}

void area_map_done(struct area_map *map)
{
    FREE_ALL(map->best, map->columns, map->rows, map->runs.items);
}

/* Classifies `count` pixels of column `x`, in rows[0] and the rows after it. These pixels lie
 * between the same two rows of the map, and the best classes of their four neighbours differ. */
static bool blend_rows(struct area_map *map, const struct area_place *x,
                       const struct area_place *rows, uint32_t count)
{
    float upper[SEGMENT_MAX_CLASSES], lower[SEGMENT_MAX_CLASSES], mixed[SEGMENT_MAX_CLASSES];
    const float *first = map->scores + (size_t)rows->first * (size_t)map->width;
    const float *second = map->scores + (size_t)rows->second * (size_t)map->width;
    for (size_t c = 0; c < map->classes; c++, first += map->plane, second += map->plane) {
        upper[c] = (1 - x->share) * first[x->first] + x->share * first[x->second];
        lower[c] = (1 - x->share) * second[x->first] + x->share * second[x->second];
    }
    for (uint32_t i = 0; i < count; i++) {
        const float share = rows[i].share;
        for (size_t c = 0; c < map->classes; c++)
            mixed[c] = (1 - share) * upper[c] + share * lower[c];
        if (!area_add(&map->runs, area_best(map, mixed, 1), 1))
            return false;
    }
    return true;
}

/* Classifies the pixels [top, bottom) of a column, and adds their classes to map->runs. */
static bool area_column(struct area_map *map, const struct area_place *x, uint32_t top,
                        uint32_t bottom)
{
    const struct area_place *rows = map->rows;
    const size_t width = (size_t)map->width, first = (size_t)x->first, second = (size_t)x->second;
    const uint16_t *points = map->best;
    uint16_t run = AREA_NONE; /* the class of `length` pixels that are not added yet */
    uint32_t length = 0;
    for (uint32_t y = top, next; y < bottom; y = next) {
        uint16_t best = AREA_NONE;
        bool is_one = true;
        next = rows[y].end < bottom ? rows[y].end : bottom;
        if (x->first >= 0 && rows[y].first >= 0) {
            const uint16_t *upper = points + (size_t)rows[y].first * width;
            const uint16_t *lower = points + (size_t)rows[y].second * width;
            best = upper[first];
            is_one = upper[second] == best && lower[first] == best && lower[second] == best;
        }
        if (is_one && best == run) {
            length += next - y;
            continue;
        }
        if (!area_add(&map->runs, run, length) ||
            (!is_one && !blend_rows(map, x, rows + y, next - y)))
            return false;
        run = best;
        length = is_one ? next - y : 0;
    }
    return area_add(&map->runs, run, length);
}

bool area_run(struct area_map *map, const struct area_part *part)
{
    const struct area_part all = {0, 0, map->photo_width, map->photo_height};
    const uint32_t height = map->photo_height;
    struct area_runs *runs = &map->runs;
    bool is_done = true;
    part = part ? part : &all;
    runs->count = 0;
    for (uint32_t x = 0; is_done && x < map->photo_width; x++)
        is_done = x < part->left || x >= part->right
                      ? area_add(runs, AREA_NONE, height)
                      : area_add(runs, AREA_NONE, part->top) &&
                            area_column(map, &map->columns[x], part->top, part->bottom) &&
                            area_add(runs, AREA_NONE, height - part->bottom);
    return is_done;
}

/* The most characters of a count: it has 33 bits with its sign, of which a character holds 5. */
enum { COUNT_TEXT = 7 };

/* Writes counts[0], which is count number `i`, like rleToString() in COCO's maskApi.c: 5 bits per
 * character, and a sixth bit if more characters follow. From the fourth count on, writes the
 * difference from counts[2], the count two before. Returns the number of characters. */
static size_t put_count(const uint32_t counts[3], size_t i, char *text)
{
    int64_t value = (int64_t)counts[0] - (i > 2 ? (int64_t)counts[2] : 0);
    size_t used = 0;
    for (bool more = true; more;) {
        int bits = (int)(value & 31);
        value >>= 5;
        more = (bits & 16) ? value != -1 : value != 0;
        text[used++] = (char)((bits | (more ? 32 : 0)) + 48);
    }
    return used;
}

char *area_counts(const struct area_runs *runs, uint16_t index, size_t pieces)
{
    char *text = alloc_array(2 * pieces + 2, COUNT_TEXT);
    uint32_t counts[3] = {0}; /* this count, and the two before it */
    size_t used = 0, written = 0;
    bool inside = false;
    for (size_t i = 0; text && i < runs->count; i++) {
        const struct area_run *run = &runs->items[i];
        if ((run->index == index) != inside) {
            used += put_count(counts, written++, text + used);
            counts[2] = counts[1];
            counts[1] = counts[0];
            counts[0] = 0;
            inside = !inside;
        }
        counts[0] += run->length;
    }
    if (text)
        used += put_count(counts, written, text + used);
    if (text)
        text[used] = '\0';
    return text;
}

void area_interpolate(const float *src, size_t width, const struct area_place *columns,
                      int32_t column_count, const struct area_place *rows, int32_t row_count,
                      float *dst)
{
    for (int32_t y = 0; y < row_count; y++) {
        const struct area_place *row = &rows[y];
        const float *upper = src + (size_t)row->first * width;
        const float *lower = src + (size_t)row->second * width;
        for (int32_t x = 0; x < column_count; x++) {
            const struct area_place *at = &columns[x];
            const float above = (1 - at->share) * upper[at->first] + at->share * upper[at->second];
            const float below = (1 - at->share) * lower[at->first] + at->share * lower[at->second];
            *dst++ = (1 - row->share) * above + row->share * below;
        }
    }
}

bool area_take(const struct area_map *map, uint16_t index, struct detection *box)
{
    const struct area_runs *runs = &map->runs;
    const uint32_t height = map->photo_height;
    uint64_t at = 0, area = 0, left = UINT64_MAX, top = UINT64_MAX, right = 0, bottom = 0;
    size_t pieces = 0;
    for (size_t i = 0; i < runs->count; at += runs->items[i++].length) {
        const struct area_run *run = &runs->items[i];
        pieces += run->index == index;
        if (run->index != index)
            continue;
        const uint64_t last = at + run->length - 1;
        const bool is_one = at / height == last / height; /* in one column */
        const uint64_t first_row = is_one ? at % height : 0;
        const uint64_t last_row = is_one ? last % height : height - 1;
        left = at / height < left ? at / height : left;
        right = last / height + 1 > right ? last / height + 1 : right;
        top = first_row < top ? first_row : top;
        bottom = last_row + 1 > bottom ? last_row + 1 : bottom;
        area += run->length;
    }
    box->x1 = right ? (float)left : 0;
    box->y1 = right ? (float)top : 0;
    box->x2 = (float)right;
    box->y2 = (float)bottom;
    box->mask = (struct segment){box->index, area, area_counts(runs, index, pieces)};
    return box->mask.counts != NULL;
}
