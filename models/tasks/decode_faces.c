/* Decodes faces with five points: YuNet's like OpenCV's FaceDetectorYN, SCRFD's like InsightFace.
 *
 * The outputs are lists for cells that are 8, 16 and 32 pixels wide. YuNet has one anchor in each
 * cell, with class score, objectness, box and points. SCRFD has two anchors in each cell, with
 * score, distances of the box's sides, and points. */
#include <math.h>

#include "models/tasks/decoders.h"

enum { FACE_STRIDES = 3 };

/* The cells of one size. */
struct face_grid {
    const struct task_rows *scores, *objectness, *boxes, *points; /* objectness NULL: SCRFD */
    float stride;
    size_t width, anchors; /* `width`: cells in a row; `anchors`: entries of each list */
};

static struct face_grid face_grid_of(const struct task *task, const struct task_rows *outputs,
                                     const struct task_geometry *geometry, int i)
{
    const bool is_yunet = task->layout == LAYOUT_YUNET;
    const size_t stride = (size_t)8 << i, width = (size_t)geometry->input_width / stride;
    const size_t cells = width * ((size_t)geometry->input_height / stride);
    const struct task_rows *own = outputs + i, *boxes = own + (is_yunet ? 2 : 1) * FACE_STRIDES;
    return (struct face_grid){.scores = own,
                              .objectness = is_yunet ? own + FACE_STRIDES : NULL,
                              .boxes = boxes,
                              .points = boxes + FACE_STRIDES,
                              .stride = (float)stride,
                              .width = width,
                              .anchors = is_yunet ? cells : 2 * cells};
}

static enum status check_grid(const struct face_grid *grid, struct error *err)
{
    if (grid->scores->count != grid->anchors)
        return task_rows_wrong(grid->scores, "a score for each anchor, [anchors, 1]", err);
    if (grid->objectness && grid->objectness->count != grid->anchors)
        return task_rows_wrong(grid->objectness, "an objectness for each cell, [cells, 1]", err);
    if (grid->boxes->count != 4 * grid->anchors)
        return task_rows_wrong(grid->boxes, "a box for each anchor, [anchors, 4]", err);
    if (grid->points->count != 2 * FACE_POINTS * grid->anchors)
        return task_rows_wrong(grid->points, "five points for each anchor, [anchors, 10]", err);
    return STATUS_OK;
}

static float face_score(const struct face_grid *grid, size_t i)
{
    const float score = grid->scores->data[i];
    return grid->objectness
               ? sqrtf(decode_limit(score, 1) * decode_limit(grid->objectness->data[i], 1))
               : score;
}

/* Returns the column and the row of an anchor's cell. */
static void face_cell(const struct face_grid *grid, size_t i, float ret[static 2])
{
    const size_t cell = grid->objectness ? i : i / 2, row = cell / grid->width;
    ret[0] = (float)(cell % grid->width);
    ret[1] = (float)row;
}

static struct detection face_box(const struct face_grid *grid, size_t i)
{
    const float *box = grid->boxes->data + 4 * i, stride = grid->stride;
    float at[2];
    face_cell(grid, i, at);
    if (grid->objectness)
        return decode_centred((at[0] + box[0]) * stride, (at[1] + box[1]) * stride,
                              expf(box[2]) * stride, expf(box[3]) * stride);
    return decode_corners((at[0] - box[0]) * stride, (at[1] - box[1]) * stride,
                          (at[0] + box[2]) * stride, (at[1] + box[3]) * stride);
}

enum status decode_faces(const struct task_rows *outputs, struct candidates *candidates,
                         struct error *err)
{
    size_t first = 0;
    for (int s = 0; s < FACE_STRIDES; s++) {
        const struct face_grid grid =
            face_grid_of(candidates->task, outputs, candidates->geometry, s);
        TRY(check_grid(&grid, err));
        for (size_t i = 0; i < grid.anchors; i++) {
            const float score = face_score(&grid, i);
            if (score > candidates->options->confidence)
                candidates_add(candidates, face_box(&grid, i), score, 0, first + i);
        }
        first += grid.anchors;
    }
    return STATUS_OK;
}

void face_points(const struct task *task, const struct task_rows *outputs,
                 const struct task_geometry *geometry, uint32_t place,
                 float ret[static 2 * FACE_POINTS])
{
    int s = 0;
    struct face_grid grid = face_grid_of(task, outputs, geometry, s);
    while (place >= grid.anchors && s + 1 < FACE_STRIDES) {
        place -= (uint32_t)grid.anchors;
        grid = face_grid_of(task, outputs, geometry, ++s);
    }
    const float *points = grid.points->data + (size_t)place * 2 * FACE_POINTS;
    float at[2];
    face_cell(&grid, place, at);
    for (int p = 0; p < 2 * FACE_POINTS; p++)
        ret[p] = (points[p] + at[p % 2]) * grid.stride;
}
