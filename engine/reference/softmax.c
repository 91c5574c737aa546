/* Softmax, LogSoftmax and Hardmax: since opset 13 along one axis, before that over everything from
 * the axis on. */
#include <math.h>
#include <stdlib.h>

#include "engine/reference/nn.h"

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

static enum status run_columns(const struct kernel_args *args,
                               void (*function)(const double *, double *, size_t),
                               struct error *err)
{
    const struct shape *x = &args->in[0]->shape;
    bool coerced = args->node->opset < 13;
    int64_t axis = node_int(args->node, "axis", coerced ? 1 : -1);
    struct gemm_operand in = {0};
    struct result out = {0};
    TRY(infer_axis(&axis, x->rank, err));
    struct softmax_layout layout = softmax_layout_of(x, axis, coerced);
    double *column = kernel_scratch(args, layout.extent, 2 * sizeof *column, err);
    enum status status = column ? STATUS_OK : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        status = operand_open(args, args->in[0], ARITHMETIC_F64, &in, err);
    if (status == STATUS_OK)
        status = result_open(args, *args->out[0], ARITHMETIC_F64, &out, err);
    double *result = column ? column + layout.extent : NULL;
    for (size_t c = 0; c < layout.outer * layout.inner && status == STATUS_OK; c++) {
        size_t first = c / layout.inner * layout.extent * layout.inner + c % layout.inner;
        const double *src = (const double *)in.data + first;
        double *dst = (double *)out.data + first;
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
    if (status == STATUS_OK)
        result_store(&out);
    free(column);
    operand_close(&in);
    result_close(&out);
    return status;
}

KERNEL(kernel_softmax)
{
    return run_columns(args, args->node->op == OP_LOG_SOFTMAX ? log_softmax_column : softmax_column,
                       err);
}

KERNEL(kernel_hardmax)
{
    return run_columns(args, hardmax_column, err);
}
