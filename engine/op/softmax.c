/* Softmax, LogSoftmax and Hardmax. */
#include <math.h>

#include "engine/op/nn.h"

struct softmax_layout softmax_layout_of(const struct shape *shape, int64_t axis, bool coerced)
{
    struct softmax_layout layout = {1, 1, 1};
    for (int i = 0; i < shape->rank; i++) {
        size_t dim = (size_t)shape->dims[i];
        if (i < axis)
            layout.outer *= dim;
        else if (i == axis || coerced)
            layout.extent *= dim;
        else
            layout.inner *= dim;
    }
    return layout;
}

static double largest(const double *values, size_t n)
{
    double max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = values[i] > max ? values[i] : max;
    return max;
}

void softmax_column(const double *src, double *dst, size_t extent)
{
    double max = largest(src, extent), sum = 0;
    for (size_t i = 0; i < extent; i++)
        sum += dst[i] = exp(src[i] - max);
    for (size_t i = 0; i < extent; i++)
        dst[i] /= sum;
}

static void log_softmax_column(const double *src, double *dst, size_t extent)
{
    double max = largest(src, extent), sum = 0;
    for (size_t i = 0; i < extent; i++)
        sum += exp(src[i] - max);
    double shift = max + log(sum);
    for (size_t i = 0; i < extent; i++)
        dst[i] = src[i] - shift;
}

/* 1 at the first maximum, 0 elsewhere. */
static void hardmax_column(const double *src, double *dst, size_t extent)
{
    size_t best = 0;
    for (size_t i = 0; i < extent; i++) {
        if (src[i] > src[best])
            best = i;
        dst[i] = 0;
    }
    if (extent)
        dst[best] = 1;
}

static enum status softmax_run(const struct kernel_args *args,
                               void (*function)(const double *, double *, size_t),
                               struct error *err)
{
    const struct shape *x = &args->in[0]->shape;
    int64_t axis = node_int(args->node, "axis", -1);
    const double *in;
    double *out;
    TRY(infer_axis(&axis, x->rank, err));
    struct softmax_layout layout = softmax_layout_of(x, axis, false);
    double *column = kernel_scratch(args, layout.extent, 2 * sizeof *column, err);
    if (!column)
        return STATUS_NO_MEMORY;
    TRY(operands_open(args, 0, 1, &in, err));
    TRY(result_open_doubles(args, 0, &out, err));
    double *result = column + layout.extent;
    for (size_t c = 0; c < layout.outer * layout.inner; c++) {
        size_t first = c / layout.inner * layout.extent * layout.inner + c % layout.inner;
        const double *src = in + first;
        double *dst = out + first;
        if (layout.inner == 1) {
            function(src, dst, layout.extent);
            continue;
        }
        for (size_t i = 0; i < layout.extent; i++)
            column[i] = src[i * layout.inner];
        function(column, result, layout.extent);
        for (size_t i = 0; i < layout.extent; i++)
            dst[i * layout.inner] = result[i];
    }
    result_store(args, 0, ARITHMETIC_F64, out);
    return STATUS_OK;
}

KERNEL(kernel_softmax)
{
    return softmax_run(args, args->node->op == OP_LOG_SOFTMAX ? log_softmax_column : softmax_column,
                       err);
}

KERNEL(kernel_hardmax)
{
    return softmax_run(args, hardmax_column, err);
}
