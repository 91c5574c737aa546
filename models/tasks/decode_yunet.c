/* Decodes YuNet's faces: the numbers are those of OpenCV's FaceDetectorYN.
 *
 * Outputs, for cells of 8, 16 and 32 pixels each: class scores, objectness, boxes, points. */
#include <math.h>

#include "models/tasks/decoders.h"

enum { YUNET_STRIDES = 3 };

/* The cells of one size: outputs i, 3 + i, 6 + i and 9 + i. */
struct yunet_grid {
    const struct task_rows *scores, *objectness, *boxes, *points;
    float stride;
    size_t width, cells;
};

static struct yunet_grid yunet_grid_of(const struct task_rows *outputs,
                                       const struct task_geometry *geometry, int i)
{
    const size_t stride = (size_t)8 << i, width = (size_t)geometry->input_width / stride;
    return (struct yunet_grid){.scores = &outputs[i],
                               .objectness = &outputs[YUNET_STRIDES + i],
                               .boxes = &outputs[2 * YUNET_STRIDES + i],
                               .points = &outputs[3 * YUNET_STRIDES + i],
                               .stride = (float)stride,
                               .width = width,
                               .cells = width * ((size_t)geometry->input_height / stride)};
}

static enum status check_grid(const struct yunet_grid *grid, struct error *err)
{
    if (grid->scores->count != grid->cells)
        return task_rows_wrong(grid->scores, "a score for each cell, [cells, 1]", err);
    if (grid->objectness->count != grid->cells)
        return task_rows_wrong(grid->objectness, "an objectness for each cell, [cells, 1]", err);
    if (grid->boxes->count != 4 * grid->cells)
        return task_rows_wrong(grid->boxes, "a box for each cell, [cells, 4]", err);
    if (grid->points->count != 2 * YUNET_POINTS * grid->cells)
        return task_rows_wrong(grid->points, "five points for each cell, [cells, 10]", err);
    return STATUS_OK;
}

static float clamp_to_one(float number)
{
    return number > 0 ? (number < 1 ? number : 1) : 0;
}

enum status decode_yunet(const struct task_rows *outputs, struct candidates *candidates,
                         struct error *err)
{
    size_t first = 0;
    for (int s = 0; s < YUNET_STRIDES; s++) {
        const struct yunet_grid grid = yunet_grid_of(outputs, candidates->geometry, s);
        TRY(check_grid(&grid, err));
        for (size_t i = 0; i < grid.cells; i++) {
            const float *box = grid.boxes->data + 4 * i;
            const size_t column = i % grid.width, line = i / grid.width;
            const float score =
                sqrtf(clamp_to_one(grid.scores->data[i]) * clamp_to_one(grid.objectness->data[i]));
            if (!(score > candidates->options->confidence))
                continue;
            struct detection found = decode_centred(
                ((float)column + box[0]) * grid.stride, ((float)line + box[1]) * grid.stride,
                expf(box[2]) * grid.stride, expf(box[3]) * grid.stride);
            found.score = score;
            found.place = (uint32_t)(first + i);
            candidates_add(candidates, &found);
        }
        first += grid.cells;
    }
    return STATUS_OK;
}

void yunet_points(const struct task_rows *outputs, const struct task_geometry *geometry,
                  uint32_t place, float ret[static 2 * YUNET_POINTS])
{
    int s = 0;
    struct yunet_grid grid = yunet_grid_of(outputs, geometry, s);
    while (place >= grid.cells && s + 1 < YUNET_STRIDES) {
        place -= (uint32_t)grid.cells;
        grid = yunet_grid_of(outputs, geometry, ++s);
    }
    const float *points = grid.points->data + (size_t)place * 2 * YUNET_POINTS;
    const size_t column = place % grid.width, line = place / grid.width;
    for (int p = 0; p < YUNET_POINTS; p++) {
        ret[2 * p] = (points[2 * p] + (float)column) * grid.stride;
        ret[2 * p + 1] = (points[2 * p + 1] + (float)line) * grid.stride;
    }
}
