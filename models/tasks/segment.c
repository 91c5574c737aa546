/* Upsamples the scores of a segmenter, and finds the class of each pixel.
 *
 * A pixel's scores are convex combinations of those at the four neighbouring points of the map. If
 * one class is the best at all four, it is the best at every pixel between them. So scores are
 * computed only between points whose best classes differ. */
#include "models/tasks/segment.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

#define NO_CLASS UINT16_MAX

/* A run of pixels of one class, in column-major order. */
struct segment_run {
    uint16_t index;
    uint32_t length;
};

struct segment_runs {
    struct segment_run *items;
    size_t count, capacity;
};

/* A pixel's position between two rows or columns of the map. */
struct map_place {
    int32_t first, second; /* -1: not in the map */
    float share;           /* weight of the second */
};

struct segment_map {
    const float *scores;
    size_t classes, plane; /* floats of a plane */
    int32_t width, height;
    float threshold; /* of a single class */
    uint16_t *best;  /* best class of each point of the map */
};

void segments_done(struct segments *segments)
{
    for (size_t i = 0; i < segments->count; i++)
        free(segments->items[i].counts);
    free(segments->items);
    *segments = (struct segments){0};
}

static bool runs_add(struct segment_runs *runs, uint16_t index, uint32_t length)
{
    struct segment_run *last = runs->count ? &runs->items[runs->count - 1] : NULL;
    if (last && last->index == index && last->length <= UINT32_MAX - length) {
        last->length += length;
        return true;
    }
    if (runs->count == runs->capacity) {
        const size_t capacity = runs->capacity ? 2 * runs->capacity : 1024;
        struct segment_run *items = realloc(runs->items, capacity * sizeof *items);
        if (!items)
            return false;
        runs->items = items;
        runs->capacity = capacity;
    }
    runs->items[runs->count++] = (struct segment_run){index, length};
    return true;
}

/* ---- the map ---- */

static uint16_t best_of(const struct segment_map *map, const float *scores, size_t step)
{
    uint16_t best = 0;
    if (map->classes == 1)
        return scores[0] > map->threshold ? 0 : NO_CLASS;
    for (size_t c = 1; c < map->classes; c++)
        if (scores[c * step] > scores[best * step])
            best = (uint16_t)c;
    return best;
}

/* The threshold of a single class: 0.5 for probabilities, 0 for logits. */
static float threshold_of(const float *scores, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (scores[i] < 0 || scores[i] > 1)
            return 0;
    return 0.5f;
}

static enum status map_init(const struct task_rows *row, struct segment_map *ret, struct error *err)
{
    const struct shape *shape = &row->shape;
    if (shape->rank != 3 || row->count == 0 || shape->dims[0] > SEGMENT_MAX_CLASSES ||
        shape->dims[1] > INT32_MAX || shape->dims[2] > INT32_MAX)
        return task_rows_wrong(row,
                               "a score for each of at most 1024 classes and each point, "
                               "[classes, height, width]",
                               err);
    *ret = (struct segment_map){.scores = row->data,
                                .classes = (size_t)shape->dims[0],
                                .height = (int32_t)shape->dims[1],
                                .width = (int32_t)shape->dims[2]};
    ret->plane = (size_t)ret->height * (size_t)ret->width;
    ret->threshold = ret->classes == 1 ? threshold_of(row->data, row->count) : 0;
    ret->best = alloc_array(ret->plane, sizeof *ret->best);
    if (!ret->best)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a map of %zu points", ret->plane);
    bool is_number = true;
    for (size_t i = 0; i < ret->plane; i++) {
        ret->best[i] = best_of(ret, ret->scores + i, ret->plane);
        /* Nothing is greater than a NaN of class 0; those of others are never the best. */
        is_number = is_number && !isnan(ret->scores[i]);
    }
    if (is_number)
        return STATUS_OK;
    free(ret->best);
    return error_set(err, STATUS_NUMERIC,
                     "the model's scores of class 0 are not numbers (NaN) for this image");
}

/* The positions of the `count` pixels of one side; NULL when out of memory. */
static struct map_place *places_of(size_t count, float gain, float begin, float input, int32_t side)
{
    struct map_place *places = alloc_array(count, sizeof *places);
    for (size_t i = 0; places && i < count; i++) {
        const float at = ((float)i + 0.5f) * gain + begin;
        float point = at * ((float)side / input) - 0.5f;
        point = point < 0 ? 0 : point;
        if (!(at >= 0 && at <= input)) {
            places[i] = (struct map_place){-1, -1, 0};
            continue;
        }
        const int32_t first = point < (float)(side - 1) ? (int32_t)point : side - 1;
        places[i].first = first;
        places[i].second = first + 1 < side ? first + 1 : first;
        places[i].share = point - (float)first;
    }
    return places;
}

/* ---- columns of the photo ---- */

/* Classifies the pixels of a column from row `y` on that lie between the same two rows of the map,
 * if the best classes of the four neighbours differ. */
static bool blend_rows(const struct segment_map *map, const struct map_place *x,
                       const struct map_place *rows, uint32_t count, struct segment_runs *runs)
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
        if (!runs_add(runs, best_of(map, mixed, 1), 1))
            return false;
    }
    return true;
}

static bool add_column(const struct segment_map *map, const struct map_place *x,
                       const struct map_place *rows, uint32_t height, struct segment_runs *runs)
{
    for (uint32_t y = 0, next; y < height; y = next) {
        for (next = y + 1; next < height && rows[next].first == rows[y].first; next++)
            ;
        if (x->first < 0 || rows[y].first < 0) {
            if (!runs_add(runs, NO_CLASS, next - y))
                return false;
            continue;
        }
        const uint16_t *upper = map->best + (size_t)rows[y].first * (size_t)map->width;
        const uint16_t *lower = map->best + (size_t)rows[y].second * (size_t)map->width;
        const uint16_t best = upper[x->first];
        const bool is_one =
            upper[x->second] == best && lower[x->first] == best && lower[x->second] == best;
        if (!(is_one ? runs_add(runs, best, next - y)
                     : blend_rows(map, x, rows + y, next - y, runs)))
            return false;
    }
    return true;
}

static bool add_columns(const struct segment_map *map, const struct task_geometry *g,
                        struct segment_runs *runs)
{
    const uint32_t width = (uint32_t)g->photo_width, height = (uint32_t)g->photo_height;
    struct map_place *columns = places_of(width, g->gain_x, g->left, g->input_width, map->width);
    struct map_place *rows = places_of(height, g->gain_y, g->top, g->input_height, map->height);
    bool is_done = columns && rows;
    for (uint32_t x = 0; is_done && x < width; x++)
        is_done = add_column(map, &columns[x], rows, height, runs);
    free(columns);
    free(rows);
    return is_done;
}

/* ---- run lengths of a class ---- */

/* Most characters of a count: 33 bits with sign, 5 bits per character. */
enum { COUNT_TEXT = 7 };

/* As rleToString in COCO's maskApi.c: 5 bits per character; the sixth bit says that more follow.
 * From the fourth count on it writes the difference to the count two before. */
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

/* The text of a class that `pieces` runs have. */
static char *counts_of(const struct segment_runs *runs, uint16_t index, size_t pieces)
{
    char *text = alloc_array(2 * pieces + 2, COUNT_TEXT);
    uint32_t counts[3] = {0}; /* this count, and the two before it */
    size_t used = 0, written = 0;
    bool inside = false;
    for (size_t i = 0; text && i < runs->count; i++) {
        const struct segment_run *run = &runs->items[i];
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

static int by_area(const void *a, const void *b)
{
    const struct segment *left = a, *right = b;
    if (left->area != right->area)
        return left->area > right->area ? -1 : 1;
    return left->index < right->index ? -1 : 1;
}

static bool collect(const struct segment_runs *runs, const struct task_options *options,
                    struct segments *ret)
{
    uint64_t areas[SEGMENT_MAX_CLASSES] = {0};
    size_t pieces[SEGMENT_MAX_CLASSES] = {0}, present = 0;
    for (size_t i = 0; i < runs->count; i++) {
        const uint16_t index = runs->items[i].index;
        if (index == NO_CLASS || !task_option_wants(options, index))
            continue;
        present += areas[index] == 0;
        areas[index] += runs->items[i].length;
        pieces[index]++;
    }
    ret->items = alloc_array(present, sizeof *ret->items);
    for (uint16_t c = 0; ret->items && c < SEGMENT_MAX_CLASSES; c++) {
        if (!areas[c])
            continue;
        char *counts = counts_of(runs, c, pieces[c]);
        if (!counts)
            return false;
        ret->items[ret->count++] = (struct segment){c, areas[c], counts};
    }
    if (ret->items)
        qsort(ret->items, ret->count, sizeof *ret->items, by_area);
    return ret->items != NULL;
}

enum status segment_decode(const struct task_rows *row, const struct task_options *options,
                           const struct task_geometry *geometry, struct segments *ret,
                           struct error *err)
{
    struct segment_map map;
    struct segment_runs runs = {0};
    struct segments found = {.width = (uint32_t)geometry->photo_width,
                             .height = (uint32_t)geometry->photo_height};
    TRY(map_init(row, &map, err));
    const bool is_done = add_columns(&map, geometry, &runs) && collect(&runs, options, &found);
    free(map.best);
    free(runs.items);
    if (!is_done) {
        segments_done(&found);
        return error_set(err, STATUS_NO_MEMORY, "no memory for the areas of an image");
    }
    *ret = found;
    return STATUS_OK;
}
