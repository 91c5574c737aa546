/* Interpolates a depth map to the photo in two passes, one for the range and one for the pixels.
 * Each pass resizes a row of the map to the photo's width once, and mixes four such rows into a row
 * of the photo. */
#include "models/tasks/depth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

enum { TAPS = 4 };

/* The points of the map around a pixel of the photo, and their weights. */
struct depth_taps {
    int32_t points[TAPS];
    float weights[TAPS];
};

struct depth_rows {
    const struct depth *depth;
    struct depth_taps *columns, *rows;
    uint32_t width, height; /* of the photo */
    float *wide[TAPS];      /* rows of the map, as wide as the photo */
    int32_t wide_row[TAPS]; /* number of each row in `wide`; -1: none */
    float *mixed;           /* a row of the photo */
};

void depth_done(struct depth *depth)
{
    free(depth->values);
    *depth = (struct depth){0};
}

enum status depth_decode(const struct task_rows *row, const struct task_geometry *geometry,
                         struct depth *ret, struct error *err)
{
    const struct shape *shape = &row->shape;
    const int last = shape->rank - 1;
    if (shape->rank < 2 || shape->rank > 3 || (shape->rank == 3 && shape->dims[0] != 1) ||
        row->count == 0 || row->count > INT32_MAX)
        return task_rows_wrong(row, "a depth for each point, [height, width]", err);
    for (size_t i = 0; i < row->count; i++)
        if (!isfinite(row->data[i]))
            return error_set(err, STATUS_NUMERIC,
                             "number %zu of the model's map is not finite for this image", i);
    struct depth copy = {.values = alloc_array(row->count, sizeof *copy.values),
                         .width = (uint32_t)shape->dims[last],
                         .height = (uint32_t)shape->dims[last - 1],
                         .geometry = *geometry};
    TRY(check_memory(copy.values, "for a depth map", err));
    memcpy(copy.values, row->data, row->count * sizeof *copy.values);
    *ret = copy;
    return STATUS_OK;
}

/* The cubic convolution of PyTorch, with the parameter -0.75. */
static float cubic(float distance)
{
    const float a = -0.75f, x = fabsf(distance);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((x - 5) * x + 8) * x * a - 4 * a : 0;
}

/* Returns the points and weights for the `count` pixels of a side, which the caller frees. */
static struct depth_taps *taps_of(uint32_t count, float gain, float begin, float input,
                                  uint32_t side)
{
    struct depth_taps *taps = alloc_array(count, sizeof *taps);
    for (uint32_t i = 0; taps && i < count; i++) {
        const float at = ((float)i + 0.5f) * gain + begin;
        const float clipped = at > 0 ? (at < input ? at : input) : 0; /* clamped to the edge */
        const float point = clipped * ((float)side / input) - 0.5f;
        const float first = floorf(point);
        for (int k = 0; k < TAPS; k++) {
            const float tap = first + (float)(k - 1);
            taps[i].points[k] = (int32_t)fmin(fmaxf(tap, 0), (double)side - 1);
            taps[i].weights[k] = cubic(point - tap);
        }
    }
    return taps;
}

static void rows_done(struct depth_rows *rows)
{
    FREE_ALL(rows->columns, rows->rows, rows->mixed);
    for (int k = 0; k < TAPS; k++)
        free(rows->wide[k]);
}

static bool rows_init(const struct depth *depth, struct depth_rows *ret)
{
    const struct task_geometry *g = &depth->geometry;
    *ret = (struct depth_rows){
        .depth = depth, .width = (uint32_t)g->photo_width, .height = (uint32_t)g->photo_height};
    ret->columns = taps_of(ret->width, g->gain_x, g->left, g->input_width, depth->width);
    ret->rows = taps_of(ret->height, g->gain_y, g->top, g->input_height, depth->height);
    ret->mixed = alloc_array(ret->width, sizeof *ret->mixed);
    bool has_all = ret->columns && ret->rows && ret->mixed;
    for (int k = 0; k < TAPS; k++) {
        ret->wide[k] = alloc_array(ret->width, sizeof *ret->wide[k]);
        ret->wide_row[k] = -1;
        has_all = has_all && ret->wide[k];
    }
    return has_all;
}

/* Returns a row of the map, as wide as the photo. Rows with equal `row % TAPS` share a buffer. */
static const float *wide_row(struct depth_rows *rows, int32_t row)
{
    const int place = row % TAPS;
    float *wide = rows->wide[place];
    if (rows->wide_row[place] == row)
        return wide;
    rows->wide_row[place] = row;
    const float *values = rows->depth->values + (size_t)row * rows->depth->width;
    for (uint32_t x = 0; x < rows->width; x++) {
        const struct depth_taps *taps = &rows->columns[x];
        float sum = 0;
        for (int k = 0; k < TAPS; k++)
            sum += taps->weights[k] * values[taps->points[k]];
        wide[x] = sum;
    }
    return wide;
}

static const float *photo_row(struct depth_rows *rows, uint32_t y)
{
    const struct depth_taps *taps = &rows->rows[y];
    memset(rows->mixed, 0, rows->width * sizeof *rows->mixed);
    for (int k = 0; k < TAPS; k++) {
        const float *wide = wide_row(rows, taps->points[k]);
        for (uint32_t x = 0; x < rows->width; x++)
            rows->mixed[x] += taps->weights[k] * wide[x];
    }
    return rows->mixed;
}

enum status depth_render(const struct depth *depth, uint16_t **ret, float *ret_least,
                         float *ret_greatest, struct error *err)
{
    struct depth_rows rows;
    size_t count;
    uint16_t *pixels = NULL;
    if (rows_init(depth, &rows) && size_mul(rows.width, rows.height, &count))
        pixels = alloc_array(count, sizeof *pixels);
    float least = INFINITY, greatest = -INFINITY;
    for (uint32_t y = 0; pixels && y < rows.height; y++) {
        const float *row = photo_row(&rows, y);
        for (uint32_t x = 0; x < rows.width; x++) {
            least = row[x] < least ? row[x] : least;
            greatest = row[x] > greatest ? row[x] : greatest;
        }
    }
    const float range = greatest - least;
    const float scale = isfinite(range) && range > 0 ? 65535 / range : 0;
    for (uint32_t y = 0; pixels && y < rows.height; y++) {
        const float *row = photo_row(&rows, y);
        for (uint32_t x = 0; x < rows.width; x++)
            pixels[(size_t)y * rows.width + x] =
                (uint16_t)lrintf(fminf(fmaxf((row[x] - least) * scale, 0), 65535));
    }
    rows_done(&rows);
    TRY(check_memory(pixels, "for a depth map", err));
    *ret = pixels;
    *ret_least = least;
    *ret_greatest = greatest;
    return STATUS_OK;
}
