/* GridSample and AffineGrid, 2-D and 3-D (GridSample also 1-D).
 *
 * Easy to get wrong: the grid's last dimension has x first. Coordinates outside the borders are
 * clamped or reflected before interpolation, and again for every tap; but with padding_mode
 * "border", cubic interpolation only clamps each tap (as in PyTorch and ONNX Runtime; ONNX's
 * reference clamps the coordinate). Nearest rounds half to even. A NaN in the grid is outside if
 * padding_mode is "zeros", otherwise a NaN means the first pixel. */
#include <math.h>
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

#define INTERPOLATIONS "linear nearest cubic"
enum interpolation { INTERPOLATE_LINEAR, INTERPOLATE_NEAREST, INTERPOLATE_CUBIC };
#define GRID_PADDINGS "zeros border reflection"
enum grid_padding { PADDING_ZEROS, PADDING_BORDER, PADDING_REFLECTION };

static enum status infer_grid_sample(struct node *node, struct error *err)
{
    const struct shape *x = &node->inputs[0]->shape, *grid = &node->inputs[1]->shape;
    TRY(operand_rank(node, 0, "X", 3, 5, err));
    if (grid->rank != x->rank || grid->dims[0] != x->dims[0] ||
        grid->dims[grid->rank - 1] != x->rank - 2)
        return error_set(err, STATUS_SHAPE,
                         "X %s and grid %s do not agree (need grid [N, out ..., %d])",
                         SHAPE_STRING(x), SHAPE_STRING(grid), x->rank - 2);
    TRY(infer_word(node, "mode", INTERPOLATIONS, err));
    TRY(infer_word(node, "padding_mode", GRID_PADDINGS, err));
    for (int i = 2; i < x->rank; i++)
        if (x->dims[i] < 1)
            return error_set(err, STATUS_SHAPE, "X has an empty spatial dimension: %s",
                             SHAPE_STRING(x));
    struct shape out = *x;
    for (int i = 2; i < x->rank; i++)
        out.dims[i] = grid->dims[i - 1];
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

static enum status infer_affine_grid(struct node *node, struct error *err)
{
    const struct value *theta = node->inputs[0];
    int64_t size[TENSOR_MAX_RANK];
    size_t count;
    TRY(resolve_list(node, 1, "size", size, COUNT_OF(size), &count, err));
    int spatial = (int)count - 2;
    if ((spatial != 2 && spatial != 3) || theta->shape.dims[1] != spatial ||
        theta->shape.dims[2] != spatial + 1 || theta->shape.dims[0] != size[0])
        return error_set(err, STATUS_SHAPE,
                         "theta has shape %s and size has %zu numbers, expected [N, 2, 3] and 4, "
                         "or [N, 3, 4] and 5",
                         SHAPE_STRING(&theta->shape), count);
    struct shape out = {.rank = spatial + 2};
    out.dims[0] = size[0];
    for (int i = 0; i < spatial; i++)
        out.dims[1 + i] = size[2 + i];
    out.dims[spatial + 1] = spatial;
    return infer_output(node, 0, theta->dtype, &out, err);
}

/* ---- GridSample ---- */

#define MAX_TAPS 4

struct sampler {
    enum interpolation interpolation;
    enum grid_padding padding;
    bool align_corners;
    int spatial;
    int64_t extent[3];
};

/* The input positions that one output position reads along one axis. An index of -1 is outside. */
struct grid_axis_taps {
    int count;
    int64_t index[MAX_TAPS];
    double weight[MAX_TAPS];
};

static void sampler_init(const struct node *node, const struct shape *x, struct sampler *ret)
{
    *ret = (struct sampler){
        .interpolation = (enum interpolation)node_word(node, "mode", INTERPOLATIONS),
        .padding = (enum grid_padding)node_word(node, "padding_mode", GRID_PADDINGS),
        .align_corners = node_int(node, "align_corners", 0) != 0,
        .spatial = x->rank - 2};
    for (int i = 0; i < ret->spatial; i++)
        ret->extent[i] = x->dims[2 + i];
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Mirrors x at low and high until x lies between low and high. */
static double reflect(double x, double low, double high)
{
    double range = high - low;
    if (range <= 0)
        return low;
    if (x >= low && x <= high)
        return x;
    double distance = x < low ? low - x : x - high;
    double reflections = trunc(distance / range), rest = distance - reflections * range;
    bool even = fmod(reflections, 2) == 0;
    return (x < low) == even ? low + rest : high - rest;
}

/* The input position of tap i, or -1 if tap i is outside. */
static int64_t tap_index(const struct sampler *s, double i, int64_t extent, double low, double high)
{
    double last = (double)(extent - 1);
    if (s->padding == PADDING_ZEROS)
        return i >= 0 && i <= last ? (int64_t)i : -1;
    if (s->padding == PADDING_REFLECTION)
        i = trunc(reflect(i, low, high));
    return (int64_t)clamp(i, 0, last);
}

/* Keys' cubic convolution with a = -0.75, for taps at -1, 0, 1, 2. */
static void cubic_weights(double x, double *ret)
{
    const double a = -0.75;
    for (int i = 0; i < 4; i++) {
        double d = fabs(x - (i - 1));
        ret[i] = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : (((d - 5) * d + 8) * d - 4) * a;
    }
}

static void find_taps(const struct sampler *s, double normalised, int64_t extent,
                      struct grid_axis_taps *ret)
{
    double n = (double)extent;
    double low = s->align_corners ? 0 : -0.5, high = s->align_corners ? n - 1 : n - 0.5;
    double x = s->align_corners ? (normalised + 1) / 2 * (n - 1) : ((normalised + 1) * n - 1) / 2;
    x = (float)x; /* as in ONNX's reference; the rounding matters for ties of mode "nearest" */
    ret->count = 0;
    if (isnan(x) || (isinf(x) && s->padding == PADDING_REFLECTION))
        x = s->padding == PADDING_ZEROS ? -1e9 : 0;
    x = clamp(x, -1e9 - n, 1e9 + n);
    if (s->interpolation == INTERPOLATE_NEAREST)
        x = rint(x);
    if (x < low || x > high) {
        /* With border padding, cubic interpolation clamps only the taps, one by one. */
        if (s->padding == PADDING_BORDER && s->interpolation != INTERPOLATE_CUBIC)
            x = clamp(x, 0, n - 1);
        else if (s->padding == PADDING_REFLECTION)
            x = reflect(x, low, high);
        else if (s->padding == PADDING_ZEROS && (x < -4 || x > n + 4))
            return; /* every tap is zero */
    }
    double base = floor(x), weights[MAX_TAPS] = {1};
    int first = 0;
    ret->count = 1;
    if (s->interpolation == INTERPOLATE_NEAREST) {
        base = trunc(x);
    } else if (s->interpolation == INTERPOLATE_LINEAR) {
        ret->count = 2;
        weights[0] = 1 - (x - base);
        weights[1] = x - base;
    } else {
        ret->count = 4;
        first = -1;
        cubic_weights(x - base, weights);
    }
    for (int i = 0; i < ret->count; i++) {
        ret->index[i] = tap_index(s, base + first + i, extent, low, high);
        ret->weight[i] = weights[i];
    }
}

/* The taps of one output position, in all axes together. */
struct grid_taps {
    int count;
    size_t at[MAX_TAPS * MAX_TAPS * MAX_TAPS];
    double weight[MAX_TAPS * MAX_TAPS * MAX_TAPS];
};

static void combine(const struct sampler *s, const struct grid_axis_taps *axes,
                    struct grid_taps *ret)
{
    int total = 1;
    ret->count = 0;
    for (int i = 0; i < s->spatial; i++)
        total *= axes[i].count;
    for (int n = 0; n < total; n++) {
        int64_t at = 0;
        double weight = 1;
        bool inside = true;
        int rest = n;
        for (int i = 0; i < s->spatial; i++) {
            int tap = rest % axes[i].count;
            rest /= axes[i].count;
            inside = inside && axes[i].index[tap] >= 0;
            at = at * s->extent[i] + (inside ? axes[i].index[tap] : 0);
            weight *= axes[i].weight[tap];
        }
        if (inside) {
            ret->at[ret->count] = (size_t)at;
            ret->weight[ret->count++] = weight;
        }
    }
}

static enum status sample_image(const struct kernel_args *args, const struct sampler *s,
                                const double *src, const double *grid, double *dst, size_t channels,
                                size_t plane, size_t positions, struct error *err)
{
    for (size_t p = 0; p < positions; p++) {
        TRY(kernel_goes_on(args, channels + MAX_TAPS, err));
        struct grid_axis_taps axes[3];
        struct grid_taps taps;
        for (int i = 0; i < s->spatial; i++)
            find_taps(s, grid[p * (size_t)s->spatial + (size_t)(s->spatial - 1 - i)], s->extent[i],
                      &axes[i]);
        combine(s, axes, &taps);
        for (size_t c = 0; c < channels; c++) {
            double sum = 0;
            for (int i = 0; i < taps.count; i++)
                sum += taps.weight[i] * src[c * plane + taps.at[i]];
            dst[c * positions + p] = sum;
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_grid_sample)
{
    const struct shape *x = &args->in[0]->shape, *out = &args->out[0]->shape;
    struct sampler sampler;
    const double *in[2];
    double *dst;
    sampler_init(args->node, x, &sampler);
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open(args, 0, DTYPE_F64, &dst, err));
    size_t channels = (size_t)x->dims[1], count = shape_count(out);
    size_t plane = resolve_extent(x, 2, x->rank), positions = resolve_extent(out, 2, x->rank);
    for (size_t n = 0; n < (size_t)x->dims[0] && channels && positions; n++)
        TRY(sample_image(args, &sampler, in[0] + n * channels * plane,
                         in[1] + n * positions * (size_t)sampler.spatial,
                         dst + n * channels * positions, channels, plane, positions, err));
    for (size_t i = 0; i < count && !dtype_is_float(args->in[0]->dtype); i++)
        dst[i] = rint(dst[i]);
    return STATUS_OK;
}

/* ---- AffineGrid ---- */

/* Position i of n along an axis that runs from -1 to 1. */
static double axis_coordinate(int64_t i, int64_t n, bool align_corners)
{
    if (align_corners)
        return n > 1 ? -1 + 2 * (double)i / (double)(n - 1) : 0;
    return (2 * (double)i + 1) / (double)n - 1;
}

/* grid [N, D, H, W, spatial] from theta [N, spatial, spatial + 1]; a 2-D grid has D = 1. */
KERNEL(kernel_affine_grid)
{
    const bool align_corners = node_int(args->node, "align_corners", 0) != 0;
    const struct shape *out = &args->out[0]->shape;
    const size_t spatial = (size_t)out->rank - 2;
    const double *theta;
    double *grid;
    int64_t extent[3] = {1, 1, 1};
    memcpy(extent + 3 - spatial, out->dims + 1, spatial * sizeof *extent);
    TRY(operands_open(args, 0, 1, &theta, err));
    TRY(result_open(args, 0, DTYPE_F64, &grid, err));
    const int64_t positions = extent[0] * extent[1] * extent[2];
    for (int64_t p = 0; p < out->dims[0] * positions; p++) {
        const int64_t x = p % extent[2], y = p / extent[2] % extent[1];
        const int64_t z = p / extent[2] / extent[1] % extent[0];
        const double at[3] = {axis_coordinate(x, extent[2], align_corners),
                              axis_coordinate(y, extent[1], align_corners),
                              axis_coordinate(z, extent[0], align_corners)};
        const double *t = theta + (size_t)(p / positions) * spatial * (spatial + 1);
        for (size_t row = 0; row < spatial; row++, t += spatial + 1) {
            double sum = t[spatial];
            for (size_t i = 0; i < spatial; i++)
                sum += t[i] * at[i];
            *grid++ = sum;
        }
    }
    return STATUS_OK;
}

const struct op_info ops_grid[] = {
    OP_ROW(GRID_SAMPLE, 16, 2, 2, "X:number grid:float", OP_HEAVY,
           "align_corners:int mode:string padding_mode:string", grid_sample,
           &batch_by_sample_of_two),
    OP_ROW(AFFINE_GRID, 20, 2, 2, "theta:float[NRC] size:integer#", OP_PLAIN, "align_corners:int",
           affine_grid, BATCH(batch_of_sample, batch_beside_shape)),
    {0},
};
