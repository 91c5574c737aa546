/* Convolution and pooling: Conv, ConvTranspose, DeformConv, MaxPool, AveragePool, LpPool, the
 * global pools, MaxUnpool. */
#include <float.h>

#include "engine/base/size.h"
#include "engine/op/geometry.h"
#include "engine/op/kernels.h"
#include "engine/op/operands.h"
#include "engine/op/ops.h"

static enum status infer_conv(struct node *node, struct error *err)
{
    const struct shape *x = &node->inputs[0]->shape, *w = &node->inputs[1]->shape;
    struct conv_shape conv;
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_same_dtype(node, 1, "W", err));
    TRY(operand_same_dtype(node, 2, "B", err));
    TRY(node->op == OP_CONV ? conv_shape_init(node, x, w, &conv, err)
                            : conv_transpose_shape_init(node, x, w, &conv, err));
    TRY(operand_vector(node, 2, "B", (int64_t)conv.out_channels, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &conv.out, err);
}

static enum status infer_deform_conv(struct node *node, struct error *err)
{
    struct conv_shape conv;
    int64_t groups = node_int(node, "offset_group", 1), taps = groups, coordinates;
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_same_dtype(node, 1, "W", err));
    TRY(operand_same_dtype(node, 2, "offset", err));
    TRY(operand_same_dtype(node, 3, "B", err));
    TRY(operand_same_dtype(node, 4, "mask", err));
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[1]->shape, &conv, err));
    if (groups < 1 || (int64_t)conv.in_channels % groups)
        return error_set(err, STATUS_SHAPE,
                         "offset_group is %lld, which does not divide %zu input "
                         "channels",
                         (long long)groups, conv.in_channels);
    for (int i = 0; i < conv.window.spatial; i++)
        if (__builtin_mul_overflow(taps, conv.window.kernel[i], &taps))
            return error_set(err, STATUS_SHAPE, "offset_group is too large");
    if (__builtin_mul_overflow(taps, (int64_t)conv.window.spatial, &coordinates))
        return error_set(err, STATUS_SHAPE, "offset_group is too large");
    struct shape wanted = conv.out;
    wanted.dims[1] = coordinates;
    TRY(operand_has_shape(node, 2, "offset", &wanted, err));
    TRY(operand_vector(node, 3, "B", (int64_t)conv.out_channels, err));
    wanted.dims[1] = taps;
    TRY(operand_has_shape(node, 4, "mask", &wanted, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &conv.out, err);
}

static enum status check_norm(const struct node *node, struct error *err)
{
    const double p = pool_norm(node);
    if (p >= 1 && p <= DBL_MAX)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL, "p is %g, expected at least 1", p);
}

static enum status infer_pool(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct window window;
    unsigned dtypes = node->op == OP_MAX_POOL ? DTYPES_FLOAT | DTYPES_8BIT : DTYPES_FLOAT;
    TRY(operand_dtype(node, 0, "X", dtypes, err));
    TRY(pool_window_init(node, &x->shape, false, &window, err));
    if (node->op == OP_LP_POOL)
        TRY(check_norm(node, err));
    struct shape out = x->shape;
    for (int i = 0; i < window.spatial; i++)
        out.dims[2 + i] = window.out[i];
    if (node->op == OP_MAX_POOL)
        TRY(infer_output(node, 1, DTYPE_I64, &out, err));
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_global_pool(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "X", 3, TENSOR_MAX_RANK, err));
    if (node->op == OP_GLOBAL_LP_POOL)
        TRY(check_norm(node, err));
    struct shape out = x->shape;
    for (int i = 2; i < out.rank; i++) {
        if (out.dims[i] < 1)
            return error_set(err, STATUS_SHAPE, "spatial dimension %d of the input is empty",
                             i - 2);
        out.dims[i] = 1;
    }
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_max_unpool(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *indices = node->inputs[1];
    struct shape out;
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT | DTYPES_8BIT, err));
    TRY(operand_dtype(node, 1, "I", DTYPE_BIT(I64), err));
    TRY(unpool_shape_init(node, &x->shape, &out, err));
    if (!shape_equal(&x->shape, &indices->shape))
        return error_set(err, STATUS_SHAPE, "X %s and I %s must have one shape",
                         shape_text(&x->shape, left), shape_text(&indices->shape, right));
    if (node_input(node, 2)) {
        int64_t wanted[TENSOR_MAX_RANK];
        size_t count;
        bool known;
        TRY(infer_ints(node, 2, wanted, COUNT_OF(wanted), &count, &known, err));
        if (!known)
            return infer_unknown(node, 0, x->dtype);
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

#define WINDOW_ATTRS "auto_pad:string dilations:ints kernel_shape:ints pads:ints strides:ints"

/* ---- batches ---- */

/* Offsets and mask belong to the images, the weights do not. */
static int deform_axis(const struct node *node, const int *axes)
{
    return axes[1] == BATCH_FREE ? batch_of_samples(node, axes, 5) : BATCH_MIXES;
}

static int deform_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 2 || i == 4 ? 0 : BATCH_OTHER;
}

static const struct batch_rule deform_rule = {deform_axis, deform_beside};

/* ---- the table ---- */

static const struct op_info entries[] = {
    {OP_CONV, 1, 0, 2, 3, 1, 1, OP_PRODUCT | OP_HEAVY, WINDOW_ATTRS " group:int", infer_conv,
     &batch_by_sample, work_conv, kernel_conv},
    {OP_CONV_TRANSPOSE, 1, 0, 2, 3, 1, 1, OP_PRODUCT | OP_HEAVY,
     WINDOW_ATTRS " group:int output_padding:ints output_shape:ints", infer_conv, &batch_by_sample,
     work_conv_transpose, kernel_conv_transpose},
    {OP_DEFORM_CONV, 19, 0, 3, 5, 1, 1, OP_HEAVY, WINDOW_ATTRS " group:int offset_group:int",
     infer_deform_conv, &deform_rule, work_conv, kernel_deform_conv},
    {OP_MAX_POOL, 1, 0, 1, 1, 1, 2, OP_KEEPS_NUMBERS | OP_HEAVY,
     WINDOW_ATTRS " ceil_mode:int storage_order:int", infer_pool, &batch_by_sample, work_window,
     kernel_max_pool},
    {OP_AVERAGE_POOL, 1, 0, 1, 1, 1, 1, OP_HEAVY,
     WINDOW_ATTRS " ceil_mode:int count_include_pad:int", infer_pool, &batch_by_sample, work_window,
     kernel_average_pool},
    {OP_LP_POOL, 2, 0, 1, 1, 1, 1, OP_HEAVY, WINDOW_ATTRS " ceil_mode:int p:int", infer_pool,
     &batch_by_sample, work_window, kernel_lp_pool},
    {OP_GLOBAL_AVERAGE_POOL, 1, 0, 1, 1, 1, 1, OP_PLAIN, NULL, infer_global_pool, &batch_by_sample,
     work_elements, kernel_global_pool},
    {OP_GLOBAL_MAX_POOL, 1, 0, 1, 1, 1, 1, OP_PLAIN, NULL, infer_global_pool, &batch_by_sample,
     work_elements, kernel_global_pool},
    {OP_GLOBAL_LP_POOL, 2, 0, 1, 1, 1, 1, OP_PLAIN, "p:int", infer_global_pool, &batch_by_sample,
     work_elements, kernel_global_pool},
    {OP_MAX_UNPOOL, 9, 0, 2, 3, 1, 1, OP_PLAIN, "kernel_shape:ints pads:ints strides:ints",
     infer_max_unpool, &batch_by_sample_of_two, work_elements, kernel_max_unpool},
};

const struct op_family ops_convolution = {entries, COUNT_OF(entries)};
