/* Conv, ConvTranspose, Col2Im, DeformConv. Conv is a matrix product of the weights and a panel of
 * input patches. The panel holds at most PANEL_ROWS x PANEL_COLUMNS elements at a time (a part of a
 * level-2 cache), so a whole im2col is never stored.
 *
 *     dst[m, t] += weights[m, k] * panel[k, t]     k: (channel, tap), t: output position */
#include <math.h>
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

static enum status infer_conv(struct node *node, struct error *err)
{
    const struct shape *x = &node->inputs[0]->shape, *w = &node->inputs[1]->shape;
    struct conv_shape conv;
    TRY(conv_shape_init(node, x, w, &conv, err));
    TRY(operand_has_shape(node, 2, "B", &SHAPE((int64_t)conv.out_channels), err));
    return infer_output(node, 0, node->inputs[0]->dtype, &conv.out, err);
}

static enum status infer_deform_conv(struct node *node, struct error *err)
{
    struct conv_shape conv;
    int64_t groups = node_int(node, "offset_group", 1), taps = groups, coordinates;
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[1]->shape, &conv, err));
    if (groups < 1 || (int64_t)conv.in_channels % groups)
        return error_set(err, STATUS_SHAPE,
                         "offset_group is %lld, which does not divide %zu input channels",
                         (long long)groups, conv.in_channels);
    for (int i = 0; i < conv.window.spatial; i++)
        if (__builtin_mul_overflow(taps, conv.window.kernel[i], &taps))
            return error_set(err, STATUS_SHAPE, "offset_group is too large");
    if (__builtin_mul_overflow(taps, (int64_t)conv.window.spatial, &coordinates))
        return error_set(err, STATUS_SHAPE, "offset_group is too large");
    struct shape wanted = conv.out;
    wanted.dims[1] = coordinates;
    TRY(operand_has_shape(node, 2, "offset", &wanted, err));
    TRY(operand_has_shape(node, 3, "B", &SHAPE((int64_t)conv.out_channels), err));
    wanted.dims[1] = taps;
    TRY(operand_has_shape(node, 4, "mask", &wanted, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &conv.out, err);
}

/* Each image has its own offsets and mask, but all images share the weights. */
static int deform_axis(const struct node *node, const int *axes)
{
    return axes[1] == BATCH_FREE ? batch_of_samples(node, axes, 5) : BATCH_MIXES;
}

static int deform_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 2 || i == 4 ? 0 : BATCH_OTHER;
}

/* ---- Conv ---- */

#define PANEL_ROWS    ((size_t)128)
#define PANEL_COLUMNS ((size_t)256)

/* The input of one group of one image, from which the panel is filled. */
struct patches {
    struct window window; /* in 3-D */
    size_t size;          /* bytes of an element */
    const char *src;      /* channels of [D, H, W] */
    size_t plane;         /* elements of a channel */
};

/* Fills a part of one output row, positions first … first+n-1 along the last axis, for one tap.
 * `row` is the start of the input row, or NULL in the padding. */
static void fill_row_part(const struct patches *p, char *dst, const char *row, int64_t tap,
                          int64_t first, int64_t n)
{
    const struct window *w = &p->window;
    int64_t stride = w->stride[2], offset = tap * w->dilation[2] - w->pad_begin[2];
    /* positions x with 0 <= x * stride + offset < in */
    int64_t low = offset >= 0 ? 0 : ceil_div(-offset, stride);
    int64_t high = w->in[2] - offset <= 0 ? 0 : (w->in[2] - offset - 1) / stride + 1;
    if (low < first)
        low = first;
    if (high > first + n)
        high = first + n;
    if (!row || high <= low) {
        zero_bytes(dst, (size_t)n * p->size);
        return;
    }
    size_t before = (size_t)(low - first), count = (size_t)(high - low);
    zero_bytes(dst, before * p->size);
    const char *from = row + (size_t)(low * stride + offset) * p->size;
    struct copy_dim dim = {count, (ptrdiff_t)p->size, (ptrdiff_t)stride * (ptrdiff_t)p->size};
    if (stride == 1)
        copy_bytes(dst + before * p->size, from, count * p->size);
    else
        copy_strided(dst + before * p->size, from, p->size, &dim, 1);
    zero_bytes(dst + (before + count) * p->size, ((size_t)n - before - count) * p->size);
}

/* Fills one panel row: channel k / volume, tap k % volume, output positions t … t+count-1. */
static void fill_panel_row(const struct patches *p, char *dst, size_t k, size_t t, size_t count)
{
    const struct window *w = &p->window;
    int64_t taps[3];
    taps[2] = (int64_t)k % w->kernel[2];
    taps[1] = (int64_t)k / w->kernel[2] % w->kernel[1];
    int64_t volume = w->kernel[0] * w->kernel[1] * w->kernel[2];
    taps[0] = (int64_t)k % volume / (w->kernel[1] * w->kernel[2]);
    size_t channel = (size_t)((int64_t)k / volume) * p->plane;
    int64_t x = (int64_t)t % w->out[2], y = (int64_t)t / w->out[2] % w->out[1];
    int64_t z = (int64_t)t / w->out[2] / w->out[1];
    while (count) {
        int64_t n = w->out[2] - x < (int64_t)count ? w->out[2] - x : (int64_t)count;
        int64_t iz = z * w->stride[0] - w->pad_begin[0] + taps[0] * w->dilation[0];
        int64_t iy = y * w->stride[1] - w->pad_begin[1] + taps[1] * w->dilation[1];
        bool inside = iz >= 0 && iz < w->in[0] && iy >= 0 && iy < w->in[1];
        size_t at = inside ? channel + (size_t)((iz * w->in[1] + iy) * w->in[2]) : 0;
        const char *row = inside && w->in[2] ? p->src + at * p->size : NULL;
        fill_row_part(p, dst, row, taps[2], x, n);
        dst += (size_t)n * p->size;
        count -= (size_t)n;
        x = 0;
        if (++y == w->out[1]) {
            y = 0;
            z++;
        }
    }
}

/* Sets dst [rows, positions] = bias[row], or 0 without a bias; elements have `size` bytes. */
static void conv_start_rows(void *dst, const void *bias, size_t rows, size_t positions, size_t size)
{
    static const char zero[8];
    for (size_t m = 0; m < rows; m++)
        fill_row((char *)dst + m * positions * size, bias ? (const char *)bias + m * size : zero,
                 size, positions);
}

enum status conv_forward(const struct kernel_args *args, const struct conv_shape *conv,
                         enum dtype working, const void *src, const void *weights, const void *bias,
                         void *dst, struct error *err)
{
    struct patches p = {.window = window_in_3d(&conv->window), .size = dtype_size(working)};
    const struct window *w = &p.window;
    size_t channels = conv->in_channels / conv->group, rows = conv->out_channels / conv->group;
    size_t depth = channels * window_volume(w->kernel), positions = window_volume(w->out),
           size = p.size;
    p.plane = window_volume(w->in);
    char *panel = kernel_scratch(args, PANEL_ROWS * PANEL_COLUMNS, size, err);
    TRY(allocated(panel));
    for (size_t ng = 0; ng < conv->batch * conv->group && positions; ng++) {
        size_t g = ng % conv->group;
        const char *matrix = (const char *)weights + g * rows * depth * size;
        char *out = (char *)dst + ng * rows * positions * size;
        p.src = p.plane ? (const char *)src + ng * channels * p.plane * size : NULL;
        conv_start_rows(out, bias ? (const char *)bias + g * rows * size : NULL, rows, positions,
                        size);
        for (size_t t = 0; t < positions; t += PANEL_COLUMNS) {
            size_t count = positions - t < PANEL_COLUMNS ? positions - t : PANEL_COLUMNS;
            for (size_t k = 0; k < depth; k += PANEL_ROWS) {
                size_t part = depth - k < PANEL_ROWS ? depth - k : PANEL_ROWS;
                TRY(kernel_goes_on(args, (rows + 1) * count * part, err));
                for (size_t i = 0; i < part; i++)
                    fill_panel_row(&p, panel + i * count * size, k + i, t, count);
                gemm_nn(working, rows, count, part, matrix + k * size, depth, 1, panel, count,
                        out + t * size, positions);
            }
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_conv)
{
    const struct tensor *x = args->in[0];
    enum dtype working = working_dtype(x->dtype);
    struct conv_shape conv;
    const void *src, *weights, *bias;
    void *dst;
    TRY(conv_shape_init(args->node, &x->shape, &args->in[1]->shape, &conv, err));
    TRY(operand_open(args, 0, working, &src, err));
    TRY(operand_open(args, 1, working, &weights, err));
    TRY(operand_open(args, 2, working, &bias, err));
    TRY(result_open(args, 0, working, &dst, err));
    return conv_forward(args, &conv, working, src, weights, bias, dst, err);
}

/* ---- ConvTranspose ---- */

/* The product of the transposed weights and some input positions gives, for each tap, the
 * contribution of every input position to the output. These rows are then scattered.
 *
 *     column[(m, tap), t] = weights[c, (m, tap)] * src[c, t]
 *     dst[m, position(t) * stride + tap * dilation - pad] += column[(m, tap), t] */

/* dst[i * step] += src[i] */
static void add_row(enum dtype working, void *dst, size_t step, const void *src, size_t n)
{
    if (working == DTYPE_F64) {
        for (size_t i = 0; i < n; i++)
            ((double *)dst)[i * step] += ((const double *)src)[i];
    } else if (working == DTYPE_U64) {
        for (size_t i = 0; i < n; i++)
            ((uint64_t *)dst)[i * step] += ((const uint64_t *)src)[i];
    } else {
        for (size_t i = 0; i < n; i++)
            ((float *)dst)[i * step] += ((const float *)src)[i];
    }
}

/* Scatters one row of the column matrix: tap `k` of one output channel for input positions t …
 * t+count-1. */
static void scatter_row(const struct window *w, enum dtype working, char *plane, size_t k,
                        const char *row, size_t t, size_t count)
{
    size_t size = dtype_size(working);
    int64_t tap[3] = {(int64_t)k / w->kernel[2] / w->kernel[1],
                      (int64_t)k / w->kernel[2] % w->kernel[1], (int64_t)k % w->kernel[2]};
    int64_t x = (int64_t)t % w->in[2], y = (int64_t)t / w->in[2] % w->in[1];
    int64_t z = (int64_t)t / w->in[2] / w->in[1], stride = w->stride[2];
    int64_t offset = tap[2] * w->dilation[2] - w->pad_begin[2];
    /* input positions with a target inside: 0 <= x * stride + offset < out */
    int64_t low = offset >= 0 ? 0 : ceil_div(-offset, stride);
    int64_t high = w->out[2] - offset <= 0 ? 0 : (w->out[2] - offset - 1) / stride + 1;
    while (count) {
        int64_t n = w->in[2] - x < (int64_t)count ? w->in[2] - x : (int64_t)count;
        int64_t oz = z * w->stride[0] + tap[0] * w->dilation[0] - w->pad_begin[0];
        int64_t oy = y * w->stride[1] + tap[1] * w->dilation[1] - w->pad_begin[1];
        int64_t from = low > x ? low : x, to = high < x + n ? high : x + n;
        if (oz >= 0 && oz < w->out[0] && oy >= 0 && oy < w->out[1] && from < to) {
            int64_t at = (oz * w->out[1] + oy) * w->out[2] + from * stride + offset;
            add_row(working, plane + (size_t)at * size, (size_t)stride,
                    row + (size_t)(from - x) * size, (size_t)(to - from));
        }
        row += (size_t)n * size;
        count -= (size_t)n;
        x = 0;
        if (++y == w->in[1]) {
            y = 0;
            z++;
        }
    }
}

/* Computes one group of one image: src [channels, in …], weights [channels, outputs, taps], dst
 * [outputs, out …]. Before the call, dst contains the bias. */
static enum status transpose_group(const struct kernel_args *args, const struct window *w,
                                   enum dtype working, size_t channels, size_t outputs,
                                   const char *src, const char *weights, char *dst, char *column,
                                   struct error *err)
{
    size_t size = dtype_size(working);
    size_t taps = window_volume(w->kernel), rows = outputs * taps;
    size_t positions = window_volume(w->in), plane = window_volume(w->out);
    for (size_t t = 0; t < positions; t += PANEL_COLUMNS) {
        size_t count = positions - t < PANEL_COLUMNS ? positions - t : PANEL_COLUMNS;
        for (size_t r = 0; r < rows; r += PANEL_ROWS) {
            size_t part = rows - r < PANEL_ROWS ? rows - r : PANEL_ROWS;
            TRY(kernel_goes_on(args, (channels + 1) * count * part, err));
            zero_bytes(column, part * count * size);
            gemm_nn(working, part, count, channels, weights + r * size, 1, rows, src + t * size,
                    positions, column, count);
            for (size_t i = 0; i < part; i++)
                scatter_row(w, working, dst + (r + i) / taps * plane * size, (r + i) % taps,
                            column + i * count * size, t, count);
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_conv_transpose)
{
    const struct tensor *x = args->in[0], *w = args->in[1];
    enum dtype working = working_dtype(x->dtype);
    size_t size = dtype_size(working);
    struct conv_shape conv;
    const char *src, *weights, *bias;
    char *dst;
    TRY(conv_shape_init(args->node, &x->shape, &w->shape, &conv, err));
    char *column = kernel_scratch(args, PANEL_ROWS * PANEL_COLUMNS, size, err);
    TRY(allocated(column));
    TRY(operand_open(args, 0, working, &src, err));
    TRY(operand_open(args, 1, working, &weights, err));
    TRY(operand_open(args, 2, working, &bias, err));
    TRY(result_open(args, 0, working, &dst, err));
    struct window window = window_in_3d(&conv.window);
    size_t channels = conv.in_channels / conv.group, outputs = conv.out_channels / conv.group;
    size_t in = window_volume(window.in), out = window_volume(window.out);
    size_t matrix = channels * outputs * window_volume(window.kernel);
    for (size_t n = 0; n < conv.batch; n++)
        conv_start_rows(dst + n * conv.out_channels * out * size, bias, conv.out_channels, out,
                        size);
    for (size_t ng = 0; ng < conv.batch * conv.group; ng++)
        TRY(transpose_group(args, &window, working, channels, outputs,
                            src + ng * channels * in * size,
                            weights + ng % conv.group * matrix * size,
                            dst + ng * outputs * out * size, column, err));
    return STATUS_OK;
}

/* ---- Col2Im ---- */

/* Col2Im is the second half of a ConvTranspose: it scatters rows [N, C * taps, positions] to the
 * image [N, C, image …]. Its operand block_shape has the kernel's extents. */
static enum status col2im_init(const struct node *node, struct window *ret, struct shape *ret_out,
                               struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape;
    int64_t image[TENSOR_MAX_RANK], block[TENSOR_MAX_RANK], taps = 1, positions = 1;
    size_t images, blocks, max = TENSOR_MAX_RANK - 2;
    TRY(resolve_list(node, 1, "image_shape", image, max, &images, err));
    TRY(resolve_list(node, 2, "block_shape", block, max, &blocks, err));
    if (data->rank != 3 || images != blocks || images == 0)
        return error_set(
            err, STATUS_SHAPE,
            "the input has shape %s, image_shape %zu dimensions and block_shape %zu: expected "
            "[N, C * block, L] and equally many dimensions",
            SHAPE_STRING(data), images, blocks);
    TRY(window_init(node, (int)images, image, block, ret, err));
    *ret_out = (struct shape){.rank = 2 + ret->spatial, .dims = {data->dims[0]}};
    for (int i = 0; i < ret->spatial; i++) {
        ret_out->dims[2 + i] = image[i];
        if (__builtin_mul_overflow(taps, block[i], &taps) ||
            __builtin_mul_overflow(positions, ret->out[i], &positions))
            return error_set(err, STATUS_SHAPE, "the image or the block is too large to address");
        ret->in[i] = ret->out[i]; /* in and out are swapped, as in ConvTranspose */
        ret->out[i] = image[i];
    }
    if (data->dims[1] % taps || data->dims[2] != positions)
        return error_set(err, STATUS_SHAPE,
                         "input %s does not hold a multiple of %lld rows (the block) by %lld block "
                         "positions",
                         SHAPE_STRING(data), (long long)taps, (long long)positions);
    ret_out->dims[1] = data->dims[1] / taps;
    return STATUS_OK;
}

static enum status infer_col2im(struct node *node, struct error *err)
{
    struct window window;
    struct shape out;
    TRY(col2im_init(node, &window, &out, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

KERNEL(kernel_col2im)
{
    const struct shape *x = &args->in[0]->shape;
    const enum dtype working = dtype_is_float(args->in[0]->dtype) ? DTYPE_F64 : DTYPE_U64;
    const size_t size = dtype_size(working), positions = (size_t)x->dims[2];
    struct window w;
    struct shape out;
    const char *src;
    char *dst;
    TRY(col2im_init(args->node, &w, &out, err));
    TRY(operand_open(args, 0, working, &src, err));
    TRY(result_open(args, 0, working, &dst, err));
    w = window_in_3d(&w);
    const size_t taps = window_volume(w.kernel), plane = window_volume(w.out);
    zero_bytes(dst, shape_count(&out) * size);
    for (size_t row = 0; row < resolve_extent(x, 0, 2); row++)
        scatter_row(&w, working, dst + row / taps * plane * size, row % taps,
                    src + row * positions * size, 0, positions);
    return STATUS_OK;
}

/* ---- DeformConv ---- */

/* Every tap samples the input at its own learned offset (multilinear, zero outside), times a mask.
 * The samples form a panel, which is multiplied by the weights. Computed in double. */

#define POSITIONS ((size_t)64)

struct deform {
    struct conv_shape conv;
    struct window window; /* in 3-D */
    size_t offset_groups, taps, positions, plane;
    const double *src, *offset, *mask; /* of one image; mask may be NULL */
    double *panel;                     /* [channels * taps, POSITIONS] */
};

/* The neighbours of a sample: up to 8 corners inside the image. */
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
        /* the comparisons are also false for NaN */
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

/* Computes the position at which one tap samples the input for output position t. */
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

/* Fills panel columns for output positions t … t+count-1. */
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

/* Computes one image: dst [M, positions]. */
static enum status deform_image(const struct kernel_args *args, const struct deform *d,
                                const double *weights, const double *bias, double *dst,
                                struct error *err)
{
    const struct conv_shape *conv = &d->conv;
    size_t rows = conv->out_channels / conv->group;
    size_t depth = conv->in_channels / conv->group * d->taps;
    conv_start_rows(dst, bias, conv->out_channels, d->positions, sizeof *dst);
    for (size_t t = 0; t < d->positions; t += POSITIONS) {
        size_t count = d->positions - t < POSITIONS ? d->positions - t : POSITIONS;
        TRY(kernel_goes_on(args, (rows * conv->group + 1) * depth * count, err));
        fill_panel(d, t, count);
        for (size_t g = 0; g < conv->group; g++)
            gemm_nn(DTYPE_F64, rows, count, depth, weights + g * rows * depth, depth, 1,
                    d->panel + g * depth * count, count, dst + g * rows * d->positions + t,
                    d->positions);
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
    d.taps = window_volume(d.window.kernel);
    d.positions = window_volume(d.window.out);
    d.plane = window_volume(d.window.in);
    size_t room;
    if (!size_mul(d.conv.in_channels, d.taps, &room) || !size_mul(room, POSITIONS, &room))
        return error_set(err, STATUS_NO_MEMORY, "the weights are too large");
    d.panel = kernel_scratch(args, room, sizeof *d.panel, err);
    TRY(allocated(d.panel));
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open(args, 0, DTYPE_F64, &dst, err));
    const size_t offsets = d.offset_groups * d.taps * d.positions;
    for (size_t n = 0; n < d.conv.batch; n++) {
        d.src = in[0] + n * d.conv.in_channels * d.plane;
        d.offset = in[2] + n * offsets * (size_t)d.conv.window.spatial;
        d.mask = in[4] ? in[4] + n * offsets : NULL;
        TRY(deform_image(args, &d, in[1], in[3], dst + n * d.conv.out_channels * d.positions, err));
    }
    return STATUS_OK;
}

const struct op_info ops_conv[] = {
    {OP_CONV, 1, 0, 2, 3, 1, 1, "X:float W:= B:=", OP_PRODUCT | OP_HEAVY, WINDOW_ATTRS " group:int",
     infer_conv, &batch_by_sample, work_conv, kernel_conv},
    {OP_CONV_TRANSPOSE, 1, 0, 2, 3, 1, 1, "X:float W:= B:=", OP_PRODUCT | OP_HEAVY,
     WINDOW_ATTRS " group:int output_padding:ints output_shape:ints", infer_conv, &batch_by_sample,
     work_conv_transpose, kernel_conv_transpose},
    OP_ROW(COL2IM, 18, 3, 3, "input image_shape:integer# block_shape:integer#", OP_HEAVY,
           "dilations:ints pads:ints strides:ints", col2im, &batch_by_sample),
    {OP_DEFORM_CONV, 19, 0, 3, 5, 1, 1, "X:float W:= offset:= B:= mask:=", OP_HEAVY,
     WINDOW_ATTRS " group:int offset_group:int", infer_deform_conv,
     BATCH(deform_axis, deform_beside), work_conv, kernel_deform_conv},
    {0},
};
