/* Functions of whole lines along an axis: Softmax, LogSoftmax, Hardmax and LpNormalization. */
#include <math.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

static enum status infer_softmax(struct node *node, struct error *err)
{
    int64_t axis;
    TRY(infer_attribute_axis(node, -1, &axis, err));
    return infer_like(node, err);
}

static enum status infer_lp_normalization(struct node *node, struct error *err)
{
    int64_t p = node_int(node, "p", 2);
    if (p != 1 && p != 2)
        return error_set(err, STATUS_MODEL, "p is %lld, expected 1 or 2", (long long)p);
    return infer_softmax(node, err);
}

static double largest(const double *values, size_t n)
{
    double max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = values[i] > max ? values[i] : max;
    return max;
}

static void softmax_column(const double *src, double *dst, size_t extent)
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

static void divide_by_norm(const double *src, double *dst, size_t extent, double norm)
{
    for (size_t i = 0; i < extent; i++)
        dst[i] = norm != 0 ? src[i] / norm : 0;
}

static void l1_normalize_column(const double *src, double *dst, size_t extent)
{
    double norm = 0;
    for (size_t i = 0; i < extent; i++)
        norm += fabs(src[i]);
    divide_by_norm(src, dst, extent, norm);
}

static void l2_normalize_column(const double *src, double *dst, size_t extent)
{
    double norm = 0;
    for (size_t i = 0; i < extent; i++)
        norm += src[i] * src[i];
    divide_by_norm(src, dst, extent, sqrt(norm));
}

static void (*column_function(const struct node *node))(const double *, double *, size_t)
{
    switch (node->op) {
    case OP_LOG_SOFTMAX:
        return log_softmax_column;
    case OP_HARDMAX:
        return hardmax_column;
    case OP_LP_NORMALIZATION:
        return node_int(node, "p", 2) == 1 ? l1_normalize_column : l2_normalize_column;
    default:
        return softmax_column;
    }
}

KERNEL(kernel_columns)
{
    void (*function)(const double *, double *, size_t) = column_function(args->node);
    const double *in;
    double *out;
    const struct shape *x = &args->in[0]->shape;
    const struct axis_layout layout = axis_layout_of(x, node_axis(args->node, -1, x->rank));
    double *column = kernel_scratch(args, layout.extent, 2 * sizeof *column, err);
    TRY(allocated(column));
    TRY(operands_open(args, 0, 1, &in, err));
    TRY(result_open(args, 0, DTYPE_F64, &out, err));
    double *result = column + layout.extent;
    for (size_t c = 0; c < layout.outer * layout.inner; c++) {
        const double *src = in + axis_line(&layout, c);
        double *dst = out + axis_line(&layout, c);
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
    return STATUS_OK;
}

const struct op_info ops_softmax[] = {
    OP_ROW_OF(SOFTMAX, 1, 1, 1, "input:float", OP_PROBABILITIES, "axis:int", softmax,
              &batch_beside_last, columns),
    OP_ROW_OF(LOG_SOFTMAX, 1, 1, 1, "input:float", OP_PLAIN, "axis:int", softmax,
              &batch_beside_last, columns),
    OP_ROW_OF(HARDMAX, 1, 1, 1, "input:float", OP_PLAIN, "axis:int", softmax, &batch_beside_last,
              columns),
    OP_ROW_OF(LP_NORMALIZATION, 1, 1, 1, "input:float", OP_PLAIN, "axis:int p:int",
              lp_normalization, &batch_beside_last, columns),
    {0},
};
