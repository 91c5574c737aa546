/* DeformConv: every tap samples the input at its own learned offset (multilinear, zero outside),
 * times a mask; the samples make a panel, and the weights' product with it is the convolution.
 * Computed in double. */
#include <math.h>

#include "engine/base/size.h"
#include "engine/op/copy.h"
#include "engine/op/nn.h"

#define POSITIONS ((size_t)64)

struct deform {
    struct conv_shape conv;
    struct window window; /* in 3-D */
    size_t offset_groups, taps, positions, plane;
    const double *src, *offset, *mask; /* of one image; mask may be NULL */
    double *panel;                     /* [channels * taps, POSITIONS] */
};

/* Where a sample lies between its neighbours: up to 8 corners that are inside. */
struct corners {
    int count;
    size_t at[8];
    double weight[8];
};

static void find_corners(const struct window *w, const double *position, double scale,
                         struct corners *ret)
{
    int64_t base[3];
    double fraction[3];
    ret->count = 0;
    for (int i = 0; i < 3; i++) {
        /* also false for NaN */
        if (!(position[i] > -1 && position[i] < (double)w->in[i]))
            return;
        double below = floor(position[i]);
        base[i] = (int64_t)below;
        fraction[i] = position[i] - below;
    }
    for (int corner = 0; corner < 8; corner++) {
        double weight = scale;
        int64_t at = 0;
        bool inside = true;
        for (int i = 0; i < 3; i++) {
            int up = corner >> i & 1;
            int64_t x = base[i] + up;
            weight *= up ? fraction[i] : 1 - fraction[i];
            inside = inside && x >= 0 && x < w->in[i];
            at = at * w->in[i] + x;
        }
        if (inside && weight != 0) {
            ret->at[ret->count] = (size_t)at;
            ret->weight[ret->count++] = weight;
        }
    }
}

/* The sampling position of one tap at output position t. */
static void sample_position(const struct deform *d, size_t group, size_t tap, size_t t, double *ret)
{
    const struct window *w = &d->window;
    int64_t x[3] = {(int64_t)t / w->out[2] / w->out[1], (int64_t)t / w->out[2] % w->out[1],
                    (int64_t)t % w->out[2]};
    int64_t k[3] = {(int64_t)tap / w->kernel[2] / w->kernel[1],
                    (int64_t)tap / w->kernel[2] % w->kernel[1], (int64_t)tap % w->kernel[2]};
    int spatial = d->conv.window.spatial, lead = 3 - spatial;
    size_t first = (group * d->taps + tap) * (size_t)spatial;
    for (int i = 0; i < 3; i++) {
        double offset = i < lead ? 0 : d->offset[(first + (size_t)(i - lead)) * d->positions + t];
        ret[i] = (double)(x[i] * w->stride[i] - w->pad_begin[i] + k[i] * w->dilation[i]) + offset;
    }
}

/* Panel columns for output positions t … t+count-1. */
static void fill_panel(const struct deform *d, size_t t, size_t count)
{
    size_t channels = d->conv.in_channels / d->offset_groups;
    struct corners corners[POSITIONS];
    for (size_t group = 0; group < d->offset_groups; group++) {
        for (size_t tap = 0; tap < d->taps; tap++) {
            for (size_t i = 0; i < count; i++) {
                double position[3], scale = 1;
                if (d->mask)
                    scale = d->mask[(group * d->taps + tap) * d->positions + t + i];
                sample_position(d, group, tap, t + i, position);
                find_corners(&d->window, position, scale, &corners[i]);
            }
            for (size_t c = group * channels; c < (group + 1) * channels; c++) {
                const double *plane = d->src + c * d->plane;
                double *row = d->panel + (c * d->taps + tap) * count;
                for (size_t i = 0; i < count; i++) {
                    double sum = 0;
                    for (int n = 0; n < corners[i].count; n++)
                        sum += corners[i].weight[n] * plane[corners[i].at[n]];
                    row[i] = sum;
                }
            }
        }
    }
}

/* One image: dst [M, positions]. */
static enum status deform_image(const struct kernel_args *args, const struct deform *d,
                                const double *weights, const double *bias, double *dst,
                                struct error *err)
{
    const struct conv_shape *conv = &d->conv;
    size_t rows = conv->out_channels / conv->group;
    size_t depth = conv->in_channels / conv->group * d->taps;
    for (size_t m = 0; m < conv->out_channels; m++)
        for (size_t t = 0; t < d->positions; t++)
            dst[m * d->positions + t] = bias ? bias[m] : 0;
    for (size_t t = 0; t < d->positions; t += POSITIONS) {
        size_t count = d->positions - t < POSITIONS ? d->positions - t : POSITIONS;
        TRY(kernel_goes_on(args, (rows * conv->group + 1) * depth * count, err));
        fill_panel(d, t, count);
        for (size_t g = 0; g < conv->group; g++)
            gemm_nn(ARITHMETIC_F64, rows, count, depth, weights + g * rows * depth, depth, 1,
                    d->panel + g * depth * count, count, dst + g * rows * d->positions + t,
                    d->positions);
    }
    return STATUS_OK;
}

static enum status deform_batch(const struct kernel_args *args, struct deform *d,
                                const double *const *in, double *dst, struct error *err)
{
    size_t taps = d->offset_groups * d->taps * d->positions;
    for (size_t n = 0; n < d->conv.batch; n++) {
        d->src = in[0] + n * d->conv.in_channels * d->plane;
        d->offset = in[2] + n * taps * (size_t)d->conv.window.spatial;
        d->mask = in[4] ? in[4] + n * taps : NULL;
        TRY(deform_image(args, d, in[1], in[3], dst + n * d->conv.out_channels * d->positions,
                         err));
    }
    return STATUS_OK;
}

KERNEL(kernel_deform_conv)
{
    struct deform d = {.offset_groups = (size_t)node_int(args->node, "offset_group", 1)};
    const double *in[5];
    double *dst;
    TRY(conv_shape_init(args->node, &args->in[0]->shape, &args->in[1]->shape, &d.conv, err));
    d.window = window_in_3d(&d.conv.window);
    d.taps = window_size(&d.window);
    d.positions = window_outputs(&d.window);
    d.plane = window_inputs(&d.window);
    size_t room;
    if (!size_mul(d.conv.in_channels, d.taps, &room) || !size_mul(room, POSITIONS, &room))
        return error_set(err, STATUS_NO_MEMORY, "the weights are too large");
    d.panel = kernel_scratch(args, room, sizeof *d.panel, err);
    if (!d.panel)
        return STATUS_NO_MEMORY;
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    TRY(deform_batch(args, &d, in, dst, err));
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}
