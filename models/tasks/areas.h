/* Private to models/tasks: converts scores at the points of a map to runs of the photo's pixels,
 * column by column. Functions return false or NULL when out of memory. */
#pragma once

#include "models/tasks/segment.h"

#define AREA_NONE UINT16_MAX

/* A run of pixels of one class, in column-major order. */
struct area_run {
    uint16_t index;
    uint32_t length;
};

/* Zeroed: empty. Free `items`. */
struct area_runs {
    struct area_run *items;
    size_t count, capacity;
};

/* A pixel's position between two rows or columns of the map. */
struct area_place {
    int32_t first, second; /* -1: outside the map */
    float share;           /* weight of `second` */
    uint32_t end;          /* all pixels before this one have the same `first` */
};

struct area_map {
    const float *scores;
    size_t classes, plane; /* plane: floats per plane */
    int32_t width, height;
    float threshold; /* for a single class */
    uint16_t *best;  /* best class of each point of the map, or AREA_NONE; owned by the caller */
};

/* The class with the highest score; scores are `step` apart. A single class must exceed the
 * threshold. */
uint16_t area_best(const struct area_map *map, const float *scores, size_t step);

/* The positions of the `count` pixels of one side; free() them. `side`: points of the map. */
struct area_place *area_places(size_t count, float gain, float begin, float input, int32_t side);

/* Adds `length` pixels of a class, or of AREA_NONE. */
bool area_add(struct area_runs *runs, uint16_t index, uint32_t length);

/* Adds the pixels [top, bottom) of a column. */
bool area_column(const struct area_map *map, const struct area_place *x,
                 const struct area_place *rows, uint32_t top, uint32_t bottom,
                 struct area_runs *runs);

/* Interpolates a map of `width` columns at the given positions; all must lie inside it. `dst`:
 * row_count * column_count floats. */
void area_interpolate(const float *src, size_t width, const struct area_place *columns,
                      int32_t column_count, const struct area_place *rows, int32_t row_count,
                      float *dst);

/* Extracts the mask of class `index`, and sets the sides of the box around it. `height` is the
 * photo's. The caller frees ret->counts. */
bool area_take(const struct area_runs *runs, uint16_t index, uint32_t height, struct detection *box,
               struct segment *ret);

/* COCO's compressed text for a class with `pieces` runs; free() it. */
char *area_counts(const struct area_runs *runs, uint16_t index, size_t pieces);
