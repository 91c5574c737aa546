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
    uint32_t end;          /* pixels from this one to `end` - 1 have the same `first` */
};

/* A map of scores, the classes of its points, and the positions of a photo's pixels in it. */
struct area_map {
    const float *scores;   /* of points; set by the caller, borrowed */
    size_t classes, plane; /* `plane`: floats in the scores of one class */
    int32_t width, height;
    float threshold; /* with one class: a point has the class if its score is higher */
    uint16_t *best;  /* best class of each point of the map, or AREA_NONE; see area_classify() */
    struct area_place *columns, *rows; /* positions of the photo's pixels */
    uint32_t photo_width, photo_height;
    struct area_runs runs;
};

/* A rectangle of a photo's pixels: [left, right) x [top, bottom). */
struct area_part {
    uint32_t left, top, right, bottom;
};

/* Makes a map of scores with one class and the threshold 0, which the caller may change. area_run()
 * gives each pixel the class of its nearest point if `is_nearest`, else the class of its
 * interpolated scores. The caller frees *ret with area_map_done(), also after an error.
 * STATUS_NO_MEMORY. */
enum status area_map_init(int64_t width, int64_t height, const struct task_geometry *geometry,
                          bool is_nearest, struct area_map *ret, struct error *err) MUST_USE;
void area_map_done(struct area_map *map);

/* Finds the best class of each point. With one class, the best class is 0, or AREA_NONE if the
 * point's score does not exceed the threshold. */
void area_classify(struct area_map *map);

/* Writes map->runs: the classes of the pixels of `part` (NULL: of the photo), and AREA_NONE for all
 * other pixels. Returns false when out of memory. */
bool area_run(struct area_map *map, const struct area_part *part);

/* Returns the positions of `count` pixels of the photo in a map of `side` points. The map covers
 * `input` pixels of the model's input, in which the centre of pixel i is at (i + 0.5) * gain +
 * begin. The caller frees the array. */
struct area_place *area_places(size_t count, float gain, float begin, float input, int32_t side);

/* Interpolates a map of `width` columns bilinearly at the given positions, which lie inside the
 * map. `dst`: row_count * column_count floats. */
void area_interpolate(const float *src, size_t width, const struct area_place *columns,
                      int32_t column_count, const struct area_place *rows, int32_t row_count,
                      float *dst);

/* Sets box->mask to the pixels of class `index` of the map. The mask's own class is box->index.
 * Sets the box's sides to those of the mask. The caller frees box->mask.counts. */
bool area_take(const struct area_map *map, uint16_t index, struct detection *box);

/* Returns COCO's compressed run lengths of class `index`, which has `pieces` runs. The caller frees
 * the text. */
char *area_counts(const struct area_runs *runs, uint16_t index, size_t pieces);
