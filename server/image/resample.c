/* Builds the tables of Pillow's and OpenCV's resampling: the first input position and the weights
 * of every output position. Selects the pixel loops for the CPU. */
#include "server/image/resample.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"

/* Pillow's filters with the same expressions, because weights must be equal to the last bit (this
 * file is compiled without fused multiply-add). */

static double box(double x)
{
    return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double hamming(double x)
{
    x = fabs(x);
    if (x == 0.0)
        return 1.0;
    if (x >= 1.0)
        return 0.0;
    x = x * M_PI;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double sinc(double x)
{
    if (x == 0.0)
        return 1.0;
    x = x * M_PI;
    return sin(x) / x;
}

static double lanczos(double x)
{
    return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

static const struct filter {
    double (*weight)(double x);
    double support; /* samples on each side, at scale 1 */
} filters[] = {
    [RESAMPLE_LANCZOS] = {lanczos, 3.0},  [RESAMPLE_BILINEAR] = {bilinear, 1.0},
    [RESAMPLE_BICUBIC] = {bicubic, 2.0},  [RESAMPLE_BOX] = {box, 0.5},
    [RESAMPLE_HAMMING] = {hamming, 1.0},  [RESAMPLE_LINEAR] = {bilinear, 1.0},
    [RESAMPLE_BLURRED] = {bilinear, 2.5},
};

void resample_axis_done(struct resample_axis *axis)
{
    FREE_ALL(axis->start, axis->weights);
    *axis = (struct resample_axis){0};
}

/* Makes new tables for axis->count outputs, with windows of `length` inputs. */
static enum status make_tables(struct resample_axis *axis, int length, struct error *err)
{
    const size_t count = (size_t)axis->count;
    const size_t weights = count * (size_t)length; /* below 2^48 */
    FREE_ALL(axis->start, axis->weights);
    axis->start = alloc_array(count, sizeof *axis->start);
    axis->weights = alloc_array(weights, sizeof *axis->weights);
    axis->length = length;
    return axis->start && axis->weights
               ? STATUS_OK
               : error_set(err, STATUS_NO_MEMORY,
                           "no memory for a resize with %zu weights; send a smaller picture or try "
                           "again",
                           weights);
}

/* Uses one input sample per output; also for an axis that keeps its size. As in Pillow's
 * ImagingScaleAffine (Geometry.c), the position is a running sum, not a product: their
 * rounding errors differ. */
static enum status fill_nearest(struct resample_axis *axis, struct error *err)
{
    TRY(make_tables(axis, 1, err));
    const double step = (double)axis->in / axis->out;
    double position = step * 0.5;
    for (int i = 0; i < axis->first + axis->count; i++, position += step) {
        int start = (int)position < axis->in ? (int)position : axis->in - 1;
        if (i < axis->first)
            continue;
        axis->start[i - axis->first] = start;
        axis->weights[i - axis->first] = 1 << RESAMPLE_BITS;
    }
    return STATUS_OK;
}

/* Like cv::resize(), uses float32 positions, and rounds each of the two weights separately. */
static enum status fill_linear(struct resample_axis *axis, struct error *err)
{
    TRY(make_tables(axis, 2, err));
    const double scale = 1.0 / ((double)axis->out / axis->in);
    for (int i = 0; i < axis->count; i++) {
        const float position = (float)((axis->first + i + 0.5) * scale - 0.5);
        const int start = (int)floorf(position);
        const float second = position - (float)start;
        axis->start[i] = start < axis->in ? start : axis->in - 1;
        axis->weights[2 * i] = (int32_t)lrintf((1.0f - second) * (1 << RESAMPLE_LINEAR_BITS));
        axis->weights[2 * i + 1] = (int32_t)lrintf(second * (1 << RESAMPLE_LINEAR_BITS));
    }
    return STATUS_OK;
}

/* Finds the inputs [*ret_low, *ret_high) of output `i`, as Pillow does in precompute_coeffs(). */
static void window_of(const struct resample_axis *axis, int i, double scale, double support,
                      int *ret_low, int *ret_high)
{
    const double center = (axis->first + i + 0.5) * scale;
    const int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
    *ret_low = low < 0 ? 0 : low;
    *ret_high = high > axis->in ? axis->in : high;
}

/* Computes the weights of output `i`, as Pillow does in the rest of precompute_coeffs() and in
 * normalize_coeffs_8bpc(). */
static void fill_output(struct resample_axis *axis, const struct filter *filter, int i,
                        double scale, double *scratch)
{
    const double filter_scale = scale < 1.0 ? 1.0 : scale;
    const double center = (axis->first + i + 0.5) * scale;
    const double inverse = 1.0 / filter_scale;
    int low, high;
    window_of(axis, i, scale, filter->support * filter_scale, &low, &high);
    double sum = 0.0;
    for (int t = 0; t < high - low; t++) {
        scratch[t] = filter->weight((t + low - center + 0.5) * inverse);
        sum += scratch[t];
    }
    /* Weights of 0 at the end, or in front if the input ends, make all windows equally long. */
    const int start = low + axis->length <= axis->in ? low : axis->in - axis->length;
    int32_t *weights = axis->weights + (size_t)i * (size_t)axis->length;
    memset(weights, 0, (size_t)axis->length * sizeof *weights);
    for (int t = 0; t < high - low; t++) {
        const double weight = sum != 0.0 ? scratch[t] / sum : scratch[t];
        const double scaled = weight * (1 << RESAMPLE_BITS);
        weights[low - start + t] = (int32_t)(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
    }
    axis->start[i] = start;
}

static enum status fill_filtered(struct resample_axis *axis, struct error *err)
{
    const struct filter *filter = &filters[axis->filter];
    const double scale = (double)axis->in / axis->out;
    const double support = filter->support * (scale < 1.0 ? 1.0 : scale);
    int length = 1;
    for (int i = 0; i < axis->count; i++) {
        int low, high;
        window_of(axis, i, scale, support, &low, &high);
        length = high - low > length ? high - low : length;
    }
    TRY(make_tables(axis, length, err));
    double *scratch = alloc_array((size_t)length, sizeof *scratch);
    TRY(check_memory(scratch, "for a resize; try again", err));
    for (int i = 0; i < axis->count; i++)
        fill_output(axis, filter, i, scale, scratch);
    free(scratch);
    return STATUS_OK;
}

/* Computes the weights of output `i`. The output interpolates between two samples, clamped at the
 * edges as in torch's interpolate(). Each sample is first blurred with its `radius` neighbours on
 * both sides; at the edges the neighbours are mirrored. */
static void fill_blurred_output(struct resample_axis *axis, int i, const double *blur, int radius,
                                double *sums)
{
    const int last = axis->padded - 1, length = axis->length;
    const double scale = (double)axis->padded / axis->out;
    const double position = fmin(fmax((axis->first + i + 0.5) * scale - 0.5, 0), last);
    const int low = (int)position - radius;
    const double share = position - (int)position;
    const int start = low < 0 ? 0 : low + length <= axis->in ? low : axis->in - length;
    memset(sums, 0, (size_t)length * sizeof *sums);
    for (int t = 0; t <= 2 * radius + 1; t++) {
        const int place = abs(low + t), at = place > last ? 2 * last - place : place;
        if (at >= start && at < start + length)
            sums[at - start] +=
                (t <= 2 * radius ? blur[t] * (1 - share) : 0) + (t > 0 ? blur[t - 1] * share : 0);
    }
    for (int t = 0; t < length; t++)
        axis->weights[(size_t)i * (size_t)length + (size_t)t] =
            (int32_t)(0.5 + sums[t] * (1 << RESAMPLE_BITS));
    axis->start[i] = start;
}

static enum status fill_blurred(struct resample_axis *axis, struct error *err)
{
    const double sigma = fmax(0, ((double)axis->padded / axis->out - 1) / 2);
    const int radius = (int)ceil(3 * sigma), window = 2 * radius + 2;
    TRY(make_tables(axis, window < axis->in ? window : axis->in, err));
    double *blur = alloc_array((size_t)window * 2, sizeof *blur), total = 0;
    TRY(check_memory(blur, "for a resize; try again", err));
    for (int t = 0; t <= 2 * radius; t++)
        total += blur[t] = t == radius ? 1 : exp(-0.5 * pow((t - radius) / sigma, 2));
    for (int t = 0; t <= 2 * radius; t++)
        blur[t] /= total;
    for (int i = 0; i < axis->count; i++)
        fill_blurred_output(axis, i, blur, radius, blur + window);
    free(blur);
    return STATUS_OK;
}

enum status resample_axis_prepare(struct resample_axis *axis, enum resample filter, int in,
                                  int padded, int out, int first, int count, struct error *err)
{
    const struct resample_axis wanted = {
        .filter = filter, .in = in, .padded = padded, .out = out, .first = first, .count = count};
    if (memcmp(axis, &wanted, offsetof(struct resample_axis, length)) == 0)
        return STATUS_OK;
    memcpy(axis, &wanted, offsetof(struct resample_axis, length));
    enum status status;
    if (filter == RESAMPLE_LINEAR)
        status = fill_linear(axis, err);
    else if (filter == RESAMPLE_BLURRED)
        status = fill_blurred(axis, err);
    else if (in == out || filter == RESAMPLE_NEAREST)
        status = fill_nearest(axis, err);
    else
        status = fill_filtered(axis, err);
    if (status != STATUS_OK)
        resample_axis_done(axis);
    return status;
}

void resample_reach(enum resample filter, int in, int out, int first, int count, int *ret_begin,
                    int *ret_end)
{
    const double scale = (double)in / out;
    const double widened = scale < 1.0 || filter == RESAMPLE_LINEAR ? 1.0 : scale;
    const double support = filters[filter].support * widened;
    const double low = floor((first + 0.5) * scale - support) - 1;
    const double high = ceil((first + count - 0.5) * scale + support) + 1;
    *ret_begin = low < 0 ? 0 : (int)low;
    *ret_end = high > in ? in : (int)high;
}

const struct resample_kernels *resample_kernels_at(int i)
{
#ifdef __x86_64__
    if (i == 1 && cpu_features()->avx2)
        return &resample_kernels_avx2;
#endif
    return i == 0 ? &resample_kernels_plain : NULL;
}

const struct resample_kernels *resample_kernels_pick(void)
{
    return resample_kernels_at(1) ? resample_kernels_at(1) : &resample_kernels_plain;
}
