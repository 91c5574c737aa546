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
    uint32_t end;          /* pixels from this one up to `end` have the same `first` */
};

struct area_map {
    const float *scores;
    size_t classes, plane; /* `plane`: floats in the scores of one class */
    int32_t width, height;
    float threshold; /* for one class: its score must exceed this */
    uint16_t *best;  /* best class of each point of the map, or AREA_NONE; owned by the caller */
};

/* Returns the class with the highest score; scores are `step` apart. If there is one class and its
 * score does not exceed the threshold, returns AREA_NONE. */
uint16_t area_best(const struct area_map *map, const float *scores, size_t step);

/* Returns the positions of `count` pixels in a map of `side` points; free() them. The map covers
 * `input` pixels of the model's input. In these, pixel i is at (i + 0.5) * gain + begin. */
struct area_place *area_places(size_t count, float gain, float begin, float input, int32_t side);

/* Adds `length` pixels of a class, or of AREA_NONE. */
bool area_add(struct area_runs *runs, uint16_t index, uint32_t length);

/* Classifies the pixels [top, bottom) of a column, and adds them. */
bool area_column(const struct area_map *map, const struct area_place *x,
                 const struct area_place *rows, uint32_t top, uint32_t bottom,
                 struct area_runs *runs);

/* Interpolates a map of `width` columns bilinearly at the given positions; all must lie inside it.
 * `dst`: row_count * column_count floats. */
void area_interpolate(const float *src, size_t width, const struct area_place *columns,
                      int32_t column_count, const struct area_place *rows, int32_t row_count,
                      float *dst);

/* Extracts the mask of class `index`, and sets the sides of the box around it. The mask's class is
 * box->index. `height` is the photo's. The caller frees ret->counts. */
bool area_take(const struct area_runs *runs, uint16_t index, uint32_t height, struct detection *box,
               struct segment *ret);

/* Returns COCO's compressed run lengths of class `index`, which has `pieces` runs; free() them. */
char *area_counts(const struct area_runs *runs, uint16_t index, size_t pieces);
