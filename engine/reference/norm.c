/* BatchNormalization, InstanceNormalization, GroupNormalization, LayerNormalization,
 * RMSNormalization, MeanVarianceNormalization, LpNormalization, LRN, and ScaleShift and Silu of the
 * passes. Statistics and results are computed in double and rounded once. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/ops/resolve.h"
#include "engine/reference/convert.h"
#include "engine/reference/copy.h"
#include "engine/reference/nn.h"

/* Operands first … first+count-1 in double; ret[count] zeroed by the caller. */
static enum status open_all(const struct kernel_args *args, size_t first, size_t count,
                            struct gemm_operand *ret, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (first + i < args->node->input_count && args->in[first + i])
            TRY(operand_open(args, args->in[first + i], ARITHMETIC_F64, &ret[i], err));
    return STATUS_OK;
}

static void close_all(struct gemm_operand *operands, size_t count)
{
    for (size_t i = 0; i < count; i++)
        operand_close(&operands[i]);
}

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
    struct result out = {0};
    double momentum = node_float(args->node, "momentum", 0.9f);
    if (i >= args->node->output_count || !args->out[i])
        return STATUS_OK;
    enum status status = result_open(args, *args->out[i], ARITHMETIC_F64, &out, err);
    for (size_t c = 0; c < channels && status == STATUS_OK; c++)
        ((double *)out.data)[c] = old[c] * momentum + now[c] * (1 - momentum);
    if (status == STATUS_OK)
        result_store(&out);
    result_close(&out);
    return status;
}

/* training_mode of opset 14: normalised by the statistics of X itself. */
static enum status normalise_by_own(const struct kernel_args *args, struct error *err)
{
    const struct tensor *x = args->in[0];
    struct gemm_operand in[5] = {0};
    double epsilon = node_float(args->node, "epsilon", 1e-5f);
    size_t channels = (size_t)x->shape.dims[1], inner = resolve_extent(&x->shape, 2, x->shape.rank);
    size_t rows = (size_t)x->shape.dims[0] * channels;
    double *now = kernel_scratch(args, channels, 2 * sizeof *now, err);
    enum status status = now ? open_all(args, 0, 5, in, err) : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        channel_statistics(in[0].data, (size_t)x->shape.dims[0], channels, inner, now,
                           now + channels);
    for (size_t i = 0; i < rows && status == STATUS_OK; i++) {
        size_t c = i % channels;
        double factor = ((const double *)in[1].data)[c] / sqrt(now[channels + c] + epsilon);
        affine_row(x, *args->out[0], i * inner, inner, factor,
                   ((const double *)in[2].data)[c] - now[c] * factor);
    }
    if (status == STATUS_OK)
        status = store_running(args, 1, in[3].data, now, channels, err);
    if (status == STATUS_OK)
        status = store_running(args, 2, in[4].data, now + channels, channels, err);
    close_all(in, 5);
    free(now);
    return status;
}

static KERNEL(kernel_batch_normalization)
{
    if (args->node->opset >= 14 && node_int(args->node, "training_mode", 0))
        return normalise_by_own(args, err);
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    struct gemm_operand params[4] = {0};
    double epsilon = node_float(args->node, "epsilon", 1e-5f);
    bool spatial = args->node->opset >= 9 || node_int(args->node, "spatial", 1) != 0;
    size_t inner = spatial ? resolve_extent(&x->shape, 2, x->shape.rank) : 1;
    size_t channels = resolve_extent(&x->shape, 1, spatial ? 2 : x->shape.rank);
    size_t rows = (size_t)x->shape.dims[0] * channels;
    enum status status = open_all(args, 1, 4, params, err);
    const double *scale = params[0].data, *shift = params[1].data;
    const double *mean = params[2].data, *variance = params[3].data;
    for (size_t i = 0; i < rows && status == STATUS_OK; i++) {
        size_t c = i % channels;
        double factor = scale[c] / sqrt(variance[c] + epsilon);
        affine_row(x, y, i * inner, inner, factor, shift[c] - mean[c] * factor);
    }
    close_all(params, 4);
    return status;
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
static enum status run_groups(const struct kernel_args *args, size_t groups, bool per_group,
                              struct error *err)
{
    const struct shape *x = &args->in[0]->shape;
    struct gemm_operand in[3] = {0};
    struct result out = {0};
    double epsilon = node_float(args->node, "epsilon", 1e-5f);
    size_t channels = (size_t)x->dims[1], inner = resolve_extent(x, 2, x->rank);
    size_t per = channels / groups, block = per * inner;
    enum status status = open_all(args, 0, 3, in, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    const double *src = in[0].data, *scale = in[1].data, *shift = in[2].data;
    double *dst = out.data;
    for (size_t i = 0; i < (size_t)x->dims[0] * groups && block && status == STATUS_OK; i++) {
        double mean, factor;
        statistics(src + i * block, block, epsilon, &mean, &factor);
        for (size_t k = 0; k < block; k++) {
            size_t c = per_group ? i % groups : i % groups * per + k / inner;
            dst[i * block + k] = (src[i * block + k] - mean) * factor * scale[c] + shift[c];
        }
    }
    if (status == STATUS_OK)
        result_store(&out);
    close_all(in, 3);
    result_close(&out);
    return status;
}

static KERNEL(kernel_instance_normalization)
{
    size_t channels = (size_t)args->in[0]->shape.dims[1];
    return channels ? run_groups(args, channels, false, err) : STATUS_OK;
}

static KERNEL(kernel_group_normalization)
{
    return run_groups(args, (size_t)node_int(args->node, "num_groups", 1), args->node->opset < 21,
                      err);
}

/* ---- LayerNormalization ---- */

/* Numbers that broadcast to X: as they are where they have just X's normalised dimensions
 * (row_step 0), else spread over all of X (row_step = columns). */
struct spread {
    const double *data;
    size_t row_step;
    double *owned;
};

static enum status spread_operand(const struct kernel_args *args, const struct tensor *tensor,
                                  const double *data, const struct shape *x, int axis,
                                  struct spread *ret, struct error *err)
{
    *ret = (struct spread){.data = data};
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
    copy_strided(all, data, sizeof(double), dims, x->rank);
    *ret = (struct spread){.data = all, .row_step = columns, .owned = all};
    return STATUS_OK;
}

static void store_statistic(const struct kernel_args *args, size_t i, size_t row, double value)
{
    struct tensor *tensor = i < args->node->output_count && args->out[i] ? *args->out[i] : NULL;
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

static KERNEL(kernel_layer_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    const struct tensor *bias = args->node->input_count > 2 ? args->in[2] : NULL;
    int64_t axis = node_int(args->node, "axis", -1);
    struct gemm_operand in[3] = {0};
    struct result out = {0};
    struct spread scale = {0}, shift = {0};
    TRY(infer_axis(&axis, x->rank, err));
    enum status status = open_all(args, 0, 3, in, err);
    if (status == STATUS_OK)
        status = spread_operand(args, args->in[1], in[1].data, x, (int)axis, &scale, err);
    if (status == STATUS_OK)
        status = spread_operand(args, bias, in[2].data, x, (int)axis, &shift, err);
    if (status == STATUS_OK && args->out[0])
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    if (status == STATUS_OK) {
        layer_rows(args, resolve_extent(x, 0, (int)axis), resolve_extent(x, (int)axis, x->rank),
                   in[0].data, &scale, &shift, out.data);
        if (args->out[0])
            result_store(&out);
    }
    free(scale.owned);
    free(shift.owned);
    close_all(in, 3);
    result_close(&out);
    return status;
}

/* ---- RMSNormalization ---- */

static KERNEL(kernel_rms_normalization)
{
    const struct shape *shape = &args->in[0]->shape;
    const double epsilon = node_float(args->node, "epsilon", 1e-5f);
    int64_t axis = node_int(args->node, "axis", -1);
    struct gemm_operand in[2] = {0};
    struct result out = {0};
    struct spread scale = {0};
    TRY(infer_axis(&axis, shape->rank, err));
    const size_t rows = resolve_extent(shape, 0, (int)axis);
    const size_t columns = resolve_extent(shape, (int)axis, shape->rank);
    enum status status = open_all(args, 0, 2, in, err);
    if (status == STATUS_OK)
        status = spread_operand(args, args->in[1], in[1].data, shape, (int)axis, &scale, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    for (size_t r = 0; r < rows && status == STATUS_OK; r++) {
        const double *x = (const double *)in[0].data + r * columns;
        const double *s = scale.data + r * scale.row_step;
        double squares = 0, *y = (double *)out.data + r * columns;
        for (size_t i = 0; i < columns; i++)
            squares += x[i] * x[i];
        const double factor = 1 / sqrt(squares / (double)columns + epsilon);
        for (size_t i = 0; i < columns; i++)
            y[i] = x[i] * factor * s[i];
    }
    if (status == STATUS_OK)
        result_store(&out);
    free(scale.owned);
    close_all(in, 2);
    result_close(&out);
    return status;
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

static KERNEL(kernel_mean_variance_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    size_t total = shape_count(x);
    unsigned reduced;
    TRY(mean_variance_axes(args->node, x, &reduced, err));
    struct copy_dim dims[TENSOR_MAX_RANK], back[TENSOR_MAX_RANK];
    size_t columns = transposed_dims(x, reduced, dims);
    for (int i = 0; i < x->rank; i++)
        back[i] = (struct copy_dim){dims[i].extent, dims[i].src, dims[i].dst};
    struct gemm_operand in = {0};
    struct result out = {0};
    double *transposed = kernel_scratch(args, total, sizeof *transposed, err);
    enum status status = transposed ? STATUS_OK : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        status = operand_open(args, args->in[0], ARITHMETIC_F64, &in, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    if (status == STATUS_OK && total) {
        copy_strided(transposed, in.data, sizeof(double), dims, x->rank);
        normalise_rows(transposed, total / columns, columns);
        copy_strided(out.data, transposed, sizeof(double), back, x->rank);
        result_store(&out);
    }
    free(transposed);
    operand_close(&in);
    result_close(&out);
    return status;
}

/* ---- LpNormalization ---- */

static KERNEL(kernel_lp_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    int64_t axis = node_int(args->node, "axis", -1), p = node_int(args->node, "p", 2);
    struct gemm_operand in = {0};
    struct result out = {0};
    TRY(infer_axis(&axis, x->rank, err));
    size_t extent = (size_t)x->dims[axis], inner = resolve_extent(x, (int)axis + 1, x->rank);
    size_t columns = resolve_extent(x, 0, (int)axis) * inner;
    enum status status = operand_open(args, args->in[0], ARITHMETIC_F64, &in, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    const double *src = in.data;
    double *dst = out.data;
    for (size_t c = 0; c < columns && status == STATUS_OK; c++) {
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
    if (status == STATUS_OK)
        result_store(&out);
    operand_close(&in);
    result_close(&out);
    return status;
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

static KERNEL(kernel_lrn)
{
    const struct shape *x = &args->in[0]->shape;
    size_t channels = (size_t)x->dims[1], inner = resolve_extent(x, 2, x->rank);
    struct gemm_operand in = {0};
    struct result out = {0};
    double *sums = kernel_scratch(args, inner, sizeof *sums, err);
    enum status status = sums ? STATUS_OK : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        status = operand_open(args, args->in[0], ARITHMETIC_F64, &in, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    if (status == STATUS_OK) {
        size_t image = channels * inner;
        for (size_t n = 0; n < (size_t)x->dims[0] && image; n++)
            lrn_image(args->node, (const double *)in.data + n * image,
                      (double *)out.data + n * image, sums, channels, inner);
        result_store(&out);
    }
    free(sums);
    operand_close(&in);
    result_close(&out);
    return status;
}

/* ---- made by passes ---- */

static KERNEL(kernel_scale_shift)
{
    const struct shape *x = &args->in[0]->shape;
    size_t channels = (size_t)x->dims[x->rank - 1], count = shape_count(x);
    struct gemm_operand in[3] = {0};
    struct result out = {0};
    enum status status = open_all(args, 0, 3, in, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    if (status == STATUS_OK) {
        const double *src = in[0].data, *scale = in[1].data, *shift = in[2].data;
        for (size_t i = 0; i < count; i++)
            ((double *)out.data)[i] = src[i] * scale[i % channels] + shift[i % channels];
        result_store(&out);
    }
    close_all(in, 3);
    result_close(&out);
    return status;
}

/* Elementwise functions of the lensd and com.microsoft domains. */
static enum status run_unary(const struct kernel_args *args, double (*function)(double, double),
                             double alpha)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    size_t n = shape_count(&x->shape);
    double values[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t count = n - i < BLOCK ? n - i : BLOCK;
        load_doubles(element(x->data, x->dtype, i), x->dtype, values, count);
        for (size_t k = 0; k < count; k++)
            values[k] = function(values[k], alpha);
        store_doubles(values, y->dtype, element_at(y->data, y->dtype, i), count);
    }
    return STATUS_OK;
}

static double silu(double x, double alpha)
{
    return x / (1 + exp(-alpha * x));
}

static double gelu(double x, double alpha)
{
    (void)alpha;
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

static KERNEL(kernel_silu)
{
    (void)err;
    return run_unary(args, silu, node_float(args->node, "alpha", 1));
}

KERNEL(kernel_gelu)
{
    (void)err;
    return run_unary(args, gelu, 0);
}

static const struct kernel_entry entries[] = {
    {OP_BATCH_NORMALIZATION, kernel_batch_normalization},
    {OP_INSTANCE_NORMALIZATION, kernel_instance_normalization},
    {OP_LAYER_NORMALIZATION, kernel_layer_normalization},
    {OP_RMS_NORMALIZATION, kernel_rms_normalization},
    {OP_GROUP_NORMALIZATION, kernel_group_normalization},
    {OP_MEAN_VARIANCE_NORMALIZATION, kernel_mean_variance_normalization},
    {OP_LP_NORMALIZATION, kernel_lp_normalization},
    {OP_LRN, kernel_lrn},
    {OP_SOFTMAX, kernel_softmax},
    {OP_LOG_SOFTMAX, kernel_softmax},
    {OP_HARDMAX, kernel_hardmax},
    {OP_SCALE_SHIFT, kernel_scale_shift},
    {OP_SILU, kernel_silu},
};

const struct kernel_family kernels_norm = {entries, COUNT_OF(entries)};
