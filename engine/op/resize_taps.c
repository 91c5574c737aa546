/* Which input positions make an output position of Resize, and how much each counts. Positions
 * outside are clamped to the edge, or left out (exclude_outside). */
#include <math.h>

#include "engine/op/geometry.h"

/* x / scale, by the exact ratio where there is one. A scale that was given is float32, and so is
 * the quotient: 6.5 / 2.6 is 2.5 then, as whoever wrote the scale meant it, and not a little more.
 */
static double unscale(const struct resize_axis *axis, double x)
{
    if (axis->from_sizes)
        return x * (double)axis->in / (double)axis->out;
    return (double)((float)x / (float)axis->scale);
}

/* Where output position i lies in the input. */
static double source_position(const struct resize_plan *plan, const struct resize_axis *axis,
                              int64_t i)
{
    double x = (double)i, in = (double)axis->in, out = (double)axis->out, span, first;
    switch (plan->coordinate) {
    case RESIZE_HALF_PIXEL:
        return unscale(axis, x + 0.5) - 0.5;
    case RESIZE_HALF_PIXEL_SYMMETRIC:
        /* in / 2 * (1 - out / (scale * in)) + (x + 0.5) / scale - 0.5 with one division, so that
         * the middle of the output is the middle of the input, exactly */
        return axis->from_sizes ? unscale(axis, x + 0.5) - 0.5
                                : (in - 1) / 2 + unscale(axis, x + 0.5 - out / 2);
    case RESIZE_PYTORCH_HALF_PIXEL:
        return axis->out > 1 ? unscale(axis, x + 0.5) - 0.5 : 0;
    case RESIZE_ALIGN_CORNERS:
        return axis->out > 1 ? x * (in - 1) / (out - 1) : 0;
    case RESIZE_ASYMMETRIC:
        return unscale(axis, x);
    case RESIZE_TF_HALF_PIXEL_FOR_NN:
        return unscale(axis, x + 0.5);
    case RESIZE_TF_CROP_AND_RESIZE:
        /* the region is given in float32; in double 0.8 - 0.1 would be less than 0.7 */
        span = (double)((float)axis->end - (float)axis->start);
        first = (double)((float)axis->start * (float)(axis->in - 1));
        return first + (axis->out > 1 ? x * span * (in - 1) / (out - 1) : span * (in - 1) / 2);
    }
    return x;
}

static double nearest_position(const struct resize_plan *plan, const struct resize_axis *axis,
                               double x)
{
    switch (plan->nearest) {
    case NEAREST_ROUND_PREFER_FLOOR:
        return ceil(x - 0.5);
    case NEAREST_ROUND_PREFER_CEIL:
        return floor(x + 0.5);
    case NEAREST_FLOOR:
        return floor(x);
    case NEAREST_CEIL:
        return ceil(x);
    case NEAREST_SIMPLE:
        return axis->scale < 1 ? ceil(x) : floor(x);
    }
    return x;
}

/* The cubic convolution kernel (Keys 1981) and the triangle. */
static double cubic(double x, double a)
{
    x = fabs(x);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* How far the kernel is stretched: antialiasing when going down. */
static double kernel_scale(const struct resize_plan *plan, const struct resize_axis *axis)
{
    return plan->antialias && axis->scale < 1 ? axis->scale : 1;
}

/* The first tap relative to the input position left of the source position. */
static int64_t first_tap(const struct resize_plan *plan, const struct resize_axis *axis)
{
    double reach = plan->mode == RESIZE_CUBIC ? 2 : 1;
    return (int64_t)floor(-reach / kernel_scale(plan, axis)) + 1;
}

size_t resize_tap_count(const struct resize_plan *plan, const struct resize_axis *axis)
{
    return plan->mode == RESIZE_NEAREST ? 1 : (size_t)(2 - 2 * first_tap(plan, axis));
}

/* A position may lie anywhere (crop regions come from the model), beyond int64 too. */
static double bounded(double x, const struct resize_axis *axis)
{
    double low = -1e9 - (double)axis->in, high = 1e9 + 2 * (double)axis->in;
    return x < low ? low : x > high ? high : x;
}

static size_t clamp_index(int64_t i, int64_t in)
{
    return (size_t)(i < 0 ? 0 : i >= in ? in - 1 : i);
}

/* Taps of one output position. */
static void fill_taps(const struct resize_plan *plan, const struct resize_axis *axis, double x,
                      size_t taps, size_t *index, double *weight)
{
    if (plan->mode == RESIZE_NEAREST) {
        index[0] = clamp_index((int64_t)nearest_position(plan, axis, x), axis->in);
        weight[0] = 1;
        return;
    }
    double scale = kernel_scale(plan, axis), sum = 0;
    /* left of x: an exact position counts as the right end of the interval before it */
    int64_t base = (int64_t)ceil(x) - 1, first = first_tap(plan, axis);
    double ratio = x - (double)base;
    for (size_t k = 0; k < taps; k++) {
        int64_t at = base + first + (int64_t)k;
        double distance = scale * ((double)(first + (int64_t)k) - ratio);
        weight[k] =
            plan->mode == RESIZE_CUBIC ? cubic(distance, plan->cubic_a) : triangle(distance);
        if (plan->exclude_outside && (at < 0 || at >= axis->in))
            weight[k] = 0;
        index[k] = clamp_index(at, axis->in);
        sum += weight[k];
    }
    if ((plan->exclude_outside || plan->antialias) && sum != 0)
        for (size_t k = 0; k < taps; k++)
            weight[k] /= sum;
}

bool resize_taps(const struct resize_plan *plan, const struct resize_axis *axis, int64_t i,
                 size_t *index, double *weight)
{
    const double x = source_position(plan, axis, i);
    fill_taps(plan, axis, bounded(x, axis), resize_tap_count(plan, axis), index, weight);
    return plan->coordinate == RESIZE_TF_CROP_AND_RESIZE && (x < 0 || x > (double)(axis->in - 1));
}
