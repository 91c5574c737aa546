/* MaxPool, AveragePool, LpPool, the global pools and MaxUnpool.
 *
 * NaN inside a window makes the result NaN, as in PyTorch. A window entirely in the padding has the
 * lowest number as its maximum and 0 as its mean. */
#include <float.h>
#include <math.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"
#include "engine/op/quant.h"

/* The p of LpPool and GlobalLpPool. */
static double pool_norm(const struct node *node)
{
    return node_float(node, "p", (float)node_int(node, "p", 2)); /* a float before opset 2 */
}

static enum status check_norm(const struct node *node, struct error *err)
{
    const double p = pool_norm(node);
    if (p >= 1 && p <= DBL_MAX)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL, "p is %g, expected at least 1", p);
}

enum status infer_pool(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const bool last = node_int(node, "channels_last", 0) != 0;
    struct window window;
    TRY(pool_window_init(node, &x->shape, last, &window, err));
    if (node->op == OP_LP_POOL)
        TRY(check_norm(node, err));
    struct shape out = x->shape;
    for (int i = 0; i < window.spatial; i++)
        out.dims[(last ? 1 : 2) + i] = window.out[i];
    if (node->op == OP_MAX_POOL)
        TRY(infer_output(node, 1, DTYPE_I64, &out, err));
    return infer_output(node, 0, quantized_dtype(node, 4, x->dtype), &out, err);
}

enum status infer_global_pool(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const int first = node_int(node, "channels_last", 0) ? 1 : 2;
    if (node->op == OP_GLOBAL_LP_POOL)
        TRY(check_norm(node, err));
    struct shape out = x->shape;
    for (int i = first; i < first + out.rank - 2; i++) {
        if (out.dims[i] < 1)
            return error_set(err, STATUS_SHAPE, "spatial dimension %d of the input is empty",
                             i - first);
        out.dims[i] = 1;
    }
    return infer_output(node, 0, quantized_dtype(node, 4, x->dtype), &out, err);
}

static enum status infer_max_unpool(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *indices = node->inputs[1];
    struct shape out;
    TRY(unpool_shape_init(node, &x->shape, &out, err));
    if (!shape_equal(&x->shape, &indices->shape))
        return error_set(err, STATUS_SHAPE, "X %s and I %s must have the same shape",
                         SHAPE_STRING(&x->shape), SHAPE_STRING(&indices->shape));
    if (node_input(node, 2)) {
        int64_t wanted[TENSOR_MAX_RANK];
        size_t count;
        TRY(resolve_list(node, 2, "output_shape", wanted, COUNT_OF(wanted), &count, err));
        if (count != (size_t)out.rank)
            return error_set(err, STATUS_SHAPE, "output_shape has %zu numbers, expected %d", count,
                             out.rank);
        for (int i = 0; i < out.rank; i++) {
            if (wanted[i] < out.dims[i] || (i < 2 && wanted[i] != out.dims[i]))
                return error_set(err, STATUS_SHAPE,
                                 "output_shape holds %lld at %d, where strides and kernel_shape "
                                 "give %lld",
                                 (long long)wanted[i], i, (long long)out.dims[i]);
            out.dims[i] = wanted[i];
        }
    }
    return infer_output(node, 0, x->dtype, &out, err);
}

/* Returns the position of the first maximum, or of the first NaN. */
static size_t find_max(const double *values, size_t count)
{
    size_t best = 0;
    for (size_t i = 1; i < count && !isnan(values[best]); i++)
        if (!(values[i] <= values[best]))
            best = i;
    return best;
}

/* Converts a position in a plane to a position in the tensor, in which the plane starts at `base`.
 * `column_major` is true for storage_order 1. */
static int64_t place_index(size_t position, size_t base, const struct window *w, bool column_major)
{
    const int64_t at = (int64_t)position;
    if (!column_major || !at) /* an empty plane may have an extent of 0: do not divide */
        return (int64_t)base + at;
    const int64_t x = at % w->in[2], y = at / w->in[2] % w->in[1], z = at / w->in[2] / w->in[1];
    return (int64_t)base + (x * w->in[1] + y) * w->in[0] + z;
}

static double power(double x, double p)
{
    x = fabs(x);
    return p == 1 ? x : p == 2 ? x * x : pow(x, p);
}

static double root(double x, double p)
{
    return p == 1 ? x : p == 2 ? sqrt(x) : pow(x, 1 / p);
}

/* The sum of the values if p is 0, otherwise the sum of the p-th powers of absolute values. */
static double sum_of(const double *values, size_t count, double p)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += p > 0 ? power(values[i], p) : values[i];
    return sum;
}

/* Pools one plane after the other, in double. */
static enum status pool_planes(const struct kernel_args *args, const struct window *w,
                               struct error *err)
{
    const struct node *node = args->node;
    const struct tensor *x = args->in[0];
    struct tensor *y = kernel_result(args, 0), *positions = kernel_result(args, 1);
    const bool takes_max = node->op == OP_MAX_POOL || node->op == OP_GLOBAL_MAX_POOL;
    const bool is_norm = node->op == OP_LP_POOL || node->op == OP_GLOBAL_LP_POOL;
    const double p = is_norm ? pool_norm(node) : 0;
    const bool count_include_pad = node_int(node, "count_include_pad", 0) != 0;
    const bool column_major = node_int(node, "storage_order", 0) != 0;
    const size_t in = window_volume(w->in), out = window_volume(w->out);
    double *src = kernel_scratch(args, in, sizeof *src, err);
    double *dst = kernel_scratch(args, out, sizeof *dst, err), *values;
    size_t *places;
    if (!src || !dst)
        return STATUS_NO_MEMORY;
    TRY(window_room(args, w, &values, &places, err));
    for (size_t n = 0; n < resolve_extent(&x->shape, 0, 2); n++) {
        convert_row(element(x->data, x->dtype, n * in), x->dtype, src, DTYPE_F64, in);
        for (size_t i = 0; i < out; i++) {
            double padded;
            const size_t count = window_read(w, i, src, values, places, &padded);
            TRY(kernel_goes_on(args, window_volume(w->kernel), err));
            if (takes_max) {
                const size_t best = find_max(values, count);
                dst[i] = count ? values[best] : -INFINITY;
                if (positions)
                    ((int64_t *)positions->data)[n * out + i] =
                        place_index(count ? places[best] : 0, n * in, w, column_major);
            } else {
                const double sum = sum_of(values, count, p);
                const double divisor = count_include_pad ? padded : (double)count;
                dst[i] = is_norm ? root(sum, p) : sum / (divisor > 0 ? divisor : 1);
            }
        }
        if (y)
            convert_row(dst, DTYPE_F64, element_at(y->data, y->dtype, n * out), y->dtype, out);
    }
    return STATUS_OK;
}

KERNEL(kernel_pool)
{
    struct window window;
    TRY(pool_window_init(args->node, &args->in[0]->shape, false, &window, err));
    window = window_in_3d(&window);
    return pool_planes(args, &window, err);
}

KERNEL(kernel_global_pool)
{
    const struct shape *x = &args->in[0]->shape;
    const int64_t plane = (int64_t)resolve_extent(x, 2, x->rank);
    const struct window window = {.spatial = 3,
                                  .in = {1, 1, plane},
                                  .out = {1, 1, 1},
                                  .kernel = {1, 1, plane},
                                  .stride = {1, 1, 1},
                                  .dilation = {1, 1, 1}};
    return pool_planes(args, &window, err);
}

/* ---- MaxUnpool ---- */

/* The position in `wider` of element `at` of `shape`, aligned at the origin. */
static size_t widen(const struct shape *shape, const struct shape *wider, size_t at)
{
    size_t result = 0, step = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        result += at % (size_t)shape->dims[i] * step;
        at /= (size_t)shape->dims[i];
        step *= (size_t)wider->dims[i];
    }
    return result;
}

KERNEL(kernel_max_unpool)
{
    const struct tensor *x = args->in[0];
    const int64_t *indices = args->in[1]->data;
    struct shape addressed;
    struct tensor *y = args->out[0]; /* at least as large as `addressed` */
    TRY(unpool_shape_init(args->node, &x->shape, &addressed, err));
    size_t count = shape_count(&x->shape), size = dtype_size(x->dtype);
    const size_t room =
        shape_count(&addressed); /* at most y's number of elements, which inference has checked */
    bool wider = !shape_equal(&addressed, &y->shape);
    zero_bytes(y->data, y->bytes);
    for (size_t i = 0; i < count; i++) {
        if (indices[i] < 0 || (uint64_t)indices[i] >= room)
            return error_set(err, STATUS_INVALID,
                             "index %lld is outside the %zu elements that strides and kernel_shape "
                             "give",
                             (long long)indices[i], room);
        size_t at = (size_t)indices[i];
        copy_bytes(element_at(y->data, y->dtype, wider ? widen(&addressed, &y->shape, at) : at),
                   element(x->data, x->dtype, i), size);
    }
    return STATUS_OK;
}

const struct op_info ops_pool[] = {
    {OP_MAX_POOL, 1, 0, 1, 1, 1, 2, "X:float|8bit", OP_KEEPS_NUMBERS | OP_HEAVY,
     WINDOW_ATTRS " ceil_mode:int storage_order:int", infer_pool, &batch_by_sample, work_window,
     kernel_pool},
    {OP_AVERAGE_POOL, 1, 0, 1, 1, 1, 1, "X:float", OP_HEAVY,
     WINDOW_ATTRS " ceil_mode:int count_include_pad:int", infer_pool, &batch_by_sample, work_window,
     kernel_pool},
    {OP_LP_POOL, 2, 0, 1, 1, 1, 1, "X:float", OP_HEAVY, WINDOW_ATTRS " ceil_mode:int p:int",
     infer_pool, &batch_by_sample, work_window, kernel_pool},
    OP_ROW(GLOBAL_AVERAGE_POOL, 1, 1, 1, "X:float[NCD*]", OP_PLAIN, NULL, global_pool,
           &batch_by_sample),
    OP_ROW(GLOBAL_MAX_POOL, 1, 1, 1, "X:float[NCD*]", OP_PLAIN, NULL, global_pool,
           &batch_by_sample),
    OP_ROW(GLOBAL_LP_POOL, 2, 1, 1, "X:float[NCD*]", OP_PLAIN, "p:int", global_pool,
           &batch_by_sample),
    OP_ROW(MAX_UNPOOL, 9, 2, 3, "X:float|8bit I:int64 output_shape:integer#", OP_PLAIN,
           "kernel_shape:ints pads:ints strides:ints", max_unpool, &batch_by_sample_of_two),
    {0},
};
