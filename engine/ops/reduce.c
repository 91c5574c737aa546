/* Reductions and ArgMax / ArgMin: the table and inference. */
#include "engine/ops/resolve.h"

#include "engine/base/size.h"
#include "engine/ops/ops.h"

static enum status infer_reduce(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    bool order = node->op == OP_REDUCE_MAX || node->op == OP_REDUCE_MIN;
    TRY(operand_dtype(node, 0, "data", order ? DTYPES_ANY : DTYPES_NUMBER, err));
    const struct tensor *known[2];
    if (!resolve_known(node, 1, known, 2))
        return infer_unknown(node, 0, x->dtype);
    struct reduction reduction;
    TRY(resolve_reduction(node, &x->shape, known, &reduction, err));
    return infer_output(node, 0, x->dtype, &reduction.out, err);
}

static enum status infer_arg(struct node *node, struct error *err)
{
    const struct shape *shape = &node->inputs[0]->shape;
    int64_t axis = node_int(node, "axis", 0);
    TRY(operand_dtype(node, 0, "data", DTYPES_NUMBER, err));
    TRY(infer_axis(&axis, shape->rank, err));
    struct shape out = {0};
    for (int i = 0; i < shape->rank; i++)
        if (i != axis)
            out.dims[out.rank++] = shape->dims[i];
        else if (node_int(node, "keepdims", 1))
            out.dims[out.rank++] = 1;
    if (shape->dims[axis] == 0 && shape_count(&out) != 0)
        return error_set(err, STATUS_SHAPE,
                         "axis %lld is empty: it has no largest or smallest "
                         "element",
                         (long long)axis);
    return infer_output(node, 0, DTYPE_I64, &out, err);
}

/* ---- batches ---- */

static int reduce_axis(const struct node *node, const int *axes)
{
    const struct tensor *operands[2] = {0};
    const int from = batch_of_first(node, axes);
    struct reduction reduction;
    struct error ignored;
    if (from < 0 || !resolve_known(node, 1, operands, COUNT_OF(operands)) ||
        resolve_reduction(node, &node->inputs[0]->shape, operands, &reduction, &ignored) !=
            STATUS_OK ||
        reduction.axes >> from & 1)
        return BATCH_MIXES;
    const unsigned before = reduction.axes & ((1u << from) - 1);
    return reduction.out.rank == node->inputs[0]->shape.rank ? from
                                                             : from - __builtin_popcount(before);
}

static const struct batch_rule reduce_rule = {reduce_axis, NULL};

/* ArgMax: the axis that it looks along is left out unless keepdims. */
static int arg_axis(const struct node *node, const int *axes)
{
    const int from = batch_of_first(node, axes);
    const int64_t axis = batch_attribute_axis(node, 0);
    if (from < 0 || from == axis)
        return BATCH_MIXES;
    return from > axis && !node_int(node, "keepdims", 1) ? from - 1 : from;
}

static const struct batch_rule arg_rule = {arg_axis, NULL};

/* ---- the table ---- */

/* From opset 18 on, ReduceSum from 13; the importer turns attributes of older files into operands.
 */
#define REDUCE(id)                                                                                 \
    {                                                                                              \
        OP_##id, 13, 0, 1, 2, 1, 1, OP_PLAIN, "keepdims:int noop_with_empty_axes:int",             \
            infer_reduce, &reduce_rule, work_elements                                              \
    }

static const struct op_info table[] = {
    REDUCE(REDUCE_SUM),
    REDUCE(REDUCE_MEAN),
    REDUCE(REDUCE_MAX),
    REDUCE(REDUCE_MIN),
    REDUCE(REDUCE_PROD),
    REDUCE(REDUCE_L1),
    REDUCE(REDUCE_L2),
    REDUCE(REDUCE_LOG_SUM),
    REDUCE(REDUCE_LOG_SUM_EXP),
    REDUCE(REDUCE_SUM_SQUARE),
    {OP_ARG_MAX, 1, 0, 1, 1, 1, 1, OP_PLAIN, "axis:int keepdims:int select_last_index:int",
     infer_arg, &arg_rule, work_elements},
    {OP_ARG_MIN, 1, 0, 1, 1, 1, 1, OP_PLAIN, "axis:int keepdims:int select_last_index:int",
     infer_arg, &arg_rule, work_elements},
};

const struct op_family ops_reduce = {table, COUNT_OF(table)};
