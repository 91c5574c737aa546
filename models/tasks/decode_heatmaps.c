/* Finds key points in heatmaps, one for each point of one body.
 *
 * The results equal those of post_process_pose_estimation() of Hugging Face's VitPose: the maximum
 * of a map, moved by DARK (Zhang et al., Distribution-Aware Coordinate Representation for Human
 * Pose Estimation, CVPR 2020) to the top of the parabola through the logarithm of the blurred map.
 * The corner pixels of a map and of the model's input have the same centres (align_corners). */
#include <math.h>

#include "models/tasks/decoders.h"

enum { RADIUS = 5 }; /* radius of the blur: Gaussian, sigma 0.8 */

/* Reflects an index beyond the edges into the map: d c b a | a b c d | d c b a. */
static size_t reflect_index(int64_t at, int64_t side)
{
    const int64_t turn = ((at % (2 * side)) + 2 * side) % (2 * side);
    return (size_t)(turn < side ? turn : 2 * side - 1 - turn);
}

/* Returns the logarithm of the blurred map at (x, y). Clamps x and y to the map. */
static double log_of_blurred(const float *map, int64_t width, int64_t height, int64_t x, int64_t y)
{
    double sum = 0, weights = 0;
    x = x < 0 ? 0 : x >= width ? width - 1 : x;
    y = y < 0 ? 0 : y >= height ? height - 1 : y;
    for (int64_t j = -RADIUS; j <= RADIUS; j++) {
        const float *row = map + reflect_index(y + j, height) * (size_t)width;
        for (int64_t i = -RADIUS; i <= RADIUS; i++) {
            const double weight = exp(-(double)(i * i + j * j) / (2 * 0.8 * 0.8));
            sum += weight * (double)row[reflect_index(x + i, width)];
            weights += weight;
        }
    }
    return log(fmin(fmax(sum / weights, 0.001), 50));
}

/* Moves a point by one Newton step towards the maximum. */
static void refine(const float *map, int64_t width, int64_t height, double point[static 2])
{
    double at[3][3];
    for (int64_t j = 0; j < 3; j++)
        for (int64_t i = 0; i < 3; i++)
            at[j][i] = log_of_blurred(map, width, height, (int64_t)point[0] + i - 1,
                                      (int64_t)point[1] + j - 1);
    const double tiny = 0x1p-23; /* epsilon of float32, as in the reference */
    const double dx = (at[1][2] - at[1][0]) / 2, dy = (at[2][1] - at[0][1]) / 2;
    const double dxx = at[1][2] - 2 * at[1][1] + at[1][0] + tiny;
    const double dyy = at[2][1] - 2 * at[1][1] + at[0][1] + tiny;
    const double dxy =
        (at[2][2] - at[1][2] - at[2][1] + 2 * at[1][1] - at[1][0] - at[0][1] + at[0][0]) / 2;
    const double determinant = dxx * dyy - dxy * dxy;
    if (!(fabs(determinant) > 0))
        return;
    point[0] -= (dyy * dx - dxy * dy) / determinant;
    point[1] -= (dxx * dy - dxy * dx) / determinant;
}

void heatmap_point(const struct task_rows *rows, const struct task_geometry *geometry, size_t p,
                   float ret[static 3])
{
    const int64_t height = rows->shape.dims[1], width = rows->shape.dims[2];
    const float *map = rows->data + p * (size_t)(width * height);
    int64_t best = 0;
    for (int64_t i = 1; i < width * height; i++)
        best = map[i] > map[best] ? i : best;
    const int64_t row = best / width;
    double point[2] = {(double)(best % width), (double)row};
    ret[2] = map[best];
    if (map[best] > 0)
        refine(map, width, height, point);
    ret[0] = (float)(point[0] * ((double)geometry->input_width - 1) / (double)(width - 1));
    ret[1] = (float)(point[1] * ((double)geometry->input_height - 1) / (double)(height - 1));
}

/* Finds one body. Its box is the whole photo, and its score is the mean of its points' scores. */
enum status decode_heatmaps(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct task_geometry *g = candidates->geometry;
    const struct shape *shape = &outputs->shape;
    const size_t points = candidates->task->point_count;
    if (shape->rank != 3 || shape->dims[0] != (int64_t)points || shape->dims[1] < 2 ||
        shape->dims[2] < 2)
        return task_rows_wrong(outputs, "[points, height, width], with maps of at least 2 x 2",
                               err);
    float score = 0;
    const struct detection body =
        decode_corners(g->left, g->top, g->left + g->gain_x * g->photo_width,
                       g->top + g->gain_y * g->photo_height);
    for (size_t p = 0; p < points; p++) {
        float point[3];
        heatmap_point(outputs, g, p, point);
        score += fminf(fmaxf(point[2], 0), 1) / (float)points;
    }
    candidates_add(candidates, body, score, 0, 0);
    return STATUS_OK;
}
