/* BatchNormalization, InstanceNormalization, GroupNormalization, LayerNormalization,
 * RMSNormalization, MeanVarianceNormalization, LpNormalization, LRN, and ScaleShift of the passes.
 * Statistics and results are computed in double and rounded once. */
#include <math.h>

#include "engine/base/size.h"
#include "engine/ops/resolve.h"
#include "engine/reference/convert.h"
#include "engine/reference/copy.h"
#include "engine/reference/nn.h"

/* dst = src * scale + shift for elements at … at+n-1 of tensors. */
static void affine_row(const struct tensor *x, struct tensor *y, size_t at, size_t n, double scale,
                       double shift)
{
    double values[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t count = n - i < BLOCK ? n - i : BLOCK;
        load_doubles(element(x->data, x->dtype, at + i), x->dtype, values, count);
        for (size_t k = 0; k < count; k++)
            values[k] = values[k] * scale + shift;
        store_doubles(values, y->dtype, element_at(y->data, y->dtype, at + i), count);
    }
}

/* Mean and population variance of every channel over images and positions. */
static void channel_statistics(const double *x, size_t images, size_t channels, size_t inner,
                               double *mean, double *variance)
{
    double count = (double)images * (double)inner;
    for (size_t c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (size_t n = 0; n < images; n++)
            for (size_t i = 0; i < inner; i++)
                sum += x[(n * channels + c) * inner + i];
        mean[c] = count > 0 ? sum / count : 0;
        for (size_t n = 0; n < images; n++)
            for (size_t i = 0; i < inner; i++) {
                double d = x[(n * channels + c) * inner + i] - mean[c];
                squares += d * d;
            }
        variance[c] = count > 0 ? squares / count : 0;
    }
}

/* Output i: the old statistic moved towards that of this batch. */
static enum status store_running(const struct kernel_args *args, size_t i, const double *old,
                                 const double *now, size_t channels, struct error *err)
{
    double *running, momentum = node_float(args->node, "momentum", 0.9f);
    TRY(result_open_doubles(args, i, &running, err));
    for (size_t c = 0; running && c < channels; c++)
        running[c] = old[c] * momentum + now[c] * (1 - momentum);
    result_store(args, i, ARITHMETIC_F64, running);
    return STATUS_OK;
}

/* y = (x - mean) / sqrt(variance + epsilon) * scale + shift, each a number a channel. */
static void normalise_channels(const struct kernel_args *args, size_t channels, size_t inner,
                               const double *scale, const double *shift, const double *mean,
                               const double *variance)
{
    const struct tensor *x = args->in[0];
    double epsilon = node_float(args->node, "epsilon", 1e-5f);
    size_t rows = (size_t)x->shape.dims[0] * channels;
    for (size_t i = 0; i < rows; i++) {
        size_t c = i % channels;
        double factor = scale[c] / sqrt(variance[c] + epsilon);
        affine_row(x, *args->out[0], i * inner, inner, factor, shift[c] - mean[c] * factor);
    }
}

KERNEL(kernel_batch_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    bool training = args->node->opset >= 14 && node_int(args->node, "training_mode", 0);
    bool spatial = args->node->opset >= 9 || node_int(args->node, "spatial", 1) != 0;
    size_t inner = spatial ? resolve_extent(x, 2, x->rank) : 1;
    size_t channels = resolve_extent(x, 1, spatial ? 2 : x->rank);
    const double *params[4], *src;
    TRY(operands_open(args, 1, COUNT_OF(params), params, err));
    const double *scale = params[0], *shift = params[1], *mean = params[2], *variance = params[3];
    if (!training) {
        normalise_channels(args, channels, inner, scale, shift, mean, variance);
        return STATUS_OK;
    }
    /* training_mode of opset 14: normalised by the statistics of X itself. */
    double *now = kernel_scratch(args, channels, 2 * sizeof *now, err);
    if (!now)
        return STATUS_NO_MEMORY;
    TRY(operands_open(args, 0, 1, &src, err));
    channel_statistics(src, (size_t)x->dims[0], channels, inner, now, now + channels);
    normalise_channels(args, channels, inner, scale, shift, now, now + channels);
    TRY(store_running(args, 1, mean, now, channels, err));
    return store_running(args, 2, variance, now + channels, channels, err);
}

/* Mean and 1 / sqrt(variance + epsilon) of n numbers. */
static void statistics(const double *values, size_t n, double epsilon, double *ret_mean,
                       double *ret_factor)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    double mean = n ? sum / (double)n : 0;
    for (size_t i = 0; i < n; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    *ret_mean = mean;
    *ret_factor = 1 / sqrt((n ? squares / (double)n : 0) + epsilon);
}

/* InstanceNormalization (as many groups as channels) and GroupNormalization. */
static enum status normalise_groups(const struct kernel_args *args, size_t groups, bool per_group,
                                    struct error *err)
{
    const struct shape *x = &args->in[0]->shape;
    const double *in[3];
    double *dst, epsilon = node_float(args->node, "epsilon", 1e-5f);
    size_t channels = (size_t)x->dims[1], inner = resolve_extent(x, 2, x->rank);
    size_t per = channels / groups, block = per * inner;
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    const double *src = in[0], *scale = in[1], *shift = in[2];
    for (size_t i = 0; i < (size_t)x->dims[0] * groups && block; i++) {
        double mean, factor;
        statistics(src + i * block, block, epsilon, &mean, &factor);
        for (size_t k = 0; k < block; k++) {
            size_t c = per_group ? i % groups : i % groups * per + k / inner;
            dst[i * block + k] = (src[i * block + k] - mean) * factor * scale[c] + shift[c];
        }
    }
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}

KERNEL(kernel_instance_normalization)
{
    size_t channels = (size_t)args->in[0]->shape.dims[1];
    return channels ? normalise_groups(args, channels, false, err) : STATUS_OK;
}

KERNEL(kernel_group_normalization)
{
    return normalise_groups(args, (size_t)node_int(args->node, "num_groups", 1),
                            args->node->opset < 21, err);
}

/* ---- LayerNormalization ---- */

/* Numbers that broadcast to X: as they are where they have just X's normalised dimensions
 * (row_step 0), else spread over all of X (row_step = columns). */
struct spread {
    const double *data;
    size_t row_step;
};

static enum status spread_operand(const struct kernel_args *args, size_t input,
                                  const struct shape *x, int axis, struct spread *ret,
                                  struct error *err)
{
    const struct tensor *tensor = kernel_input(args, input);
    *ret = (struct spread){0};
    TRY(operands_open(args, input, 1, &ret->data, err));
    if (!tensor)
        return STATUS_OK;
    const struct shape *own = &tensor->shape;
    size_t columns = resolve_extent(x, axis, x->rank);
    if (shape_count(own) == columns && own->rank <= x->rank - axis)
        return STATUS_OK;
    double *all = kernel_scratch(args, shape_count(x), sizeof *all, err);
    if (!all)
        return STATUS_NO_MEMORY;
    struct copy_dim dims[TENSOR_MAX_RANK];
    ptrdiff_t dst = sizeof(double), src = sizeof(double);
    for (int i = 1; i <= x->rank; i++) {
        int64_t extent = i <= own->rank ? own->dims[own->rank - i] : 1;
        dims[x->rank - i] = (struct copy_dim){
            .extent = (size_t)x->dims[x->rank - i], .dst = dst, .src = extent == 1 ? 0 : src};
        dst *= (ptrdiff_t)x->dims[x->rank - i];
        src *= (ptrdiff_t)extent;
    }
    copy_strided(all, ret->data, sizeof(double), dims, x->rank);
    *ret = (struct spread){.data = all, .row_step = columns};
    return STATUS_OK;
}

static void store_statistic(const struct kernel_args *args, size_t i, size_t row, double value)
{
    struct tensor *tensor = kernel_result(args, i);
    if (tensor)
        store_doubles(&value, tensor->dtype, element_at(tensor->data, tensor->dtype, row), 1);
}

static void layer_rows(const struct kernel_args *args, size_t rows, size_t columns,
                       const double *src, const struct spread *scale, const struct spread *shift,
                       double *dst)
{
    double epsilon = node_float(args->node, "epsilon", 1e-5f);
    for (size_t r = 0; r < rows; r++) {
        double mean, factor;
        const double *x = src + r * columns;
        statistics(x, columns, epsilon, &mean, &factor);
        store_statistic(args, 1, r, mean);
        store_statistic(args, 2, r, factor);
        if (!dst)
            continue;
        const double *s = scale->data + r * scale->row_step;
        const double *b = shift->data ? shift->data + r * shift->row_step : NULL;
        for (size_t i = 0; i < columns; i++)
            dst[r * columns + i] = (x[i] - mean) * factor * s[i] + (b ? b[i] : 0);
    }
}

KERNEL(kernel_layer_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    int64_t axis = node_int(args->node, "axis", -1);
    const double *src;
    double *dst;
    struct spread scale, shift;
    TRY(infer_axis(&axis, x->rank, err));
    TRY(operands_open(args, 0, 1, &src, err));
    TRY(spread_operand(args, 1, x, (int)axis, &scale, err));
    TRY(spread_operand(args, 2, x, (int)axis, &shift, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    layer_rows(args, resolve_extent(x, 0, (int)axis), resolve_extent(x, (int)axis, x->rank), src,
               &scale, &shift, dst);
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}

/* ---- RMSNormalization ---- */

KERNEL(kernel_rms_normalization)
{
    const struct shape *shape = &args->in[0]->shape;
    const double epsilon = node_float(args->node, "epsilon", 1e-5f);
    int64_t axis = node_int(args->node, "axis", -1);
    const double *src;
    double *dst;
    struct spread scale;
    TRY(infer_axis(&axis, shape->rank, err));
    const size_t rows = resolve_extent(shape, 0, (int)axis);
    const size_t columns = resolve_extent(shape, (int)axis, shape->rank);
    TRY(operands_open(args, 0, 1, &src, err));
    TRY(spread_operand(args, 1, shape, (int)axis, &scale, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    for (size_t r = 0; r < rows; r++) {
        const double *x = src + r * columns, *s = scale.data + r * scale.row_step;
        double squares = 0, *y = dst + r * columns;
        for (size_t i = 0; i < columns; i++)
            squares += x[i] * x[i];
        const double factor = 1 / sqrt(squares / (double)columns + epsilon);
        for (size_t i = 0; i < columns; i++)
            y[i] = x[i] * factor * s[i];
    }
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}

/* ---- MeanVarianceNormalization ---- */

/* Dimensions of x in the order kept, then reduced. src: steps of x, dst: steps of the contiguous
 * transposed array. */
static size_t transposed_dims(const struct shape *x, unsigned reduced, struct copy_dim *ret)
{
    ptrdiff_t steps[TENSOR_MAX_RANK], step = sizeof(double);
    size_t columns = 1;
    int rank = 0;
    contiguous_steps(x, sizeof(double), steps);
    for (unsigned pass = 0; pass < 2; pass++)
        for (int i = 0; i < x->rank; i++)
            if ((reduced >> i & 1) == pass)
                ret[rank++] = (struct copy_dim){.extent = (size_t)x->dims[i], .src = steps[i]};
    for (int i = rank - 1; i >= 0; i--) {
        ret[i].dst = step;
        step *= (ptrdiff_t)ret[i].extent;
    }
    for (int i = 0; i < x->rank; i++)
        if (reduced >> i & 1)
            columns *= (size_t)x->dims[i];
    return columns;
}

static void normalise_rows(double *values, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++) {
        double mean, factor, *x = values + r * columns;
        statistics(x, columns, 0, &mean, &factor);
        double deviation = 1 / factor;
        for (size_t i = 0; i < columns; i++)
            x[i] = (x[i] - mean) / (deviation + 1e-9);
    }
}

KERNEL(kernel_mean_variance_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    size_t total = shape_count(x);
    unsigned reduced;
    TRY(mean_variance_axes(args->node, x, &reduced, err));
    struct copy_dim dims[TENSOR_MAX_RANK], back[TENSOR_MAX_RANK];
    size_t columns = transposed_dims(x, reduced, dims);
    for (int i = 0; i < x->rank; i++)
        back[i] = (struct copy_dim){dims[i].extent, dims[i].src, dims[i].dst};
    const double *src;
    double *dst, *transposed = kernel_scratch(args, total, sizeof *transposed, err);
    if (!transposed)
        return STATUS_NO_MEMORY;
    TRY(operands_open(args, 0, 1, &src, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    if (!total)
        return STATUS_OK;
    copy_strided(transposed, src, sizeof(double), dims, x->rank);
    normalise_rows(transposed, total / columns, columns);
    copy_strided(dst, transposed, sizeof(double), back, x->rank);
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}

/* ---- LpNormalization ---- */

KERNEL(kernel_lp_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    int64_t axis = node_int(args->node, "axis", -1), p = node_int(args->node, "p", 2);
    const double *src;
    double *dst;
    TRY(infer_axis(&axis, x->rank, err));
    size_t extent = (size_t)x->dims[axis], inner = resolve_extent(x, (int)axis + 1, x->rank);
    size_t columns = resolve_extent(x, 0, (int)axis) * inner;
    TRY(operands_open(args, 0, 1, &src, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    for (size_t c = 0; c < columns; c++) {
        size_t first = c / inner * extent * inner + c % inner;
        double norm = 0;
        for (size_t i = 0; i < extent; i++) {
            double v = src[first + i * inner];
            norm += p == 1 ? fabs(v) : v * v;
        }
        norm = p == 1 ? norm : sqrt(norm);
        for (size_t i = 0; i < extent; i++)
            dst[first + i * inner] = norm != 0 ? src[first + i * inner] / norm : 0;
    }
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}

/* ---- LRN ---- */

/* One image: src, dst [channels, inner]; sums [inner]. */
static void lrn_image(const struct node *node, const double *src, double *dst, double *sums,
                      size_t channels, size_t inner)
{
    size_t size = (size_t)node_int(node, "size", 1);
    size_t before = (size - 1) / 2, after = size - 1 - before;
    double alpha = node_float(node, "alpha", 1e-4f), beta = node_float(node, "beta", 0.75f);
    double bias = node_float(node, "bias", 1);
    for (size_t c = 0; c < channels; c++) {
        size_t first = c > before ? c - before : 0;
        size_t last = after < channels - 1 - c ? c + after : channels - 1;
        for (size_t i = 0; i < inner; i++)
            sums[i] = 0;
        for (size_t k = first; k <= last; k++)
            for (size_t i = 0; i < inner; i++)
                sums[i] += src[k * inner + i] * src[k * inner + i];
        for (size_t i = 0; i < inner; i++)
            dst[c * inner + i] =
                src[c * inner + i] / pow(bias + alpha / (double)size * sums[i], beta);
    }
}

KERNEL(kernel_lrn)
{
    const struct shape *x = &args->in[0]->shape;
    size_t channels = (size_t)x->dims[1], inner = resolve_extent(x, 2, x->rank);
    size_t image = channels * inner;
    const double *src;
    double *dst, *sums = kernel_scratch(args, inner, sizeof *sums, err);
    if (!sums)
        return STATUS_NO_MEMORY;
    TRY(operands_open(args, 0, 1, &src, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    for (size_t n = 0; n < (size_t)x->dims[0] && image; n++)
        lrn_image(args->node, src + n * image, dst + n * image, sums, channels, inner);
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}

/* ---- made by passes ---- */

KERNEL(kernel_scale_shift)
{
    const struct shape *x = &args->in[0]->shape;
    size_t channels = (size_t)x->dims[x->rank - 1], count = shape_count(x);
    const double *in[3];
    double *dst;
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open_doubles(args, 0, &dst, err));
    for (size_t i = 0; i < count; i++)
        dst[i] = in[0][i] * in[1][i % channels] + in[2][i % channels];
    result_store(args, 0, ARITHMETIC_F64, dst);
    return STATUS_OK;
}
