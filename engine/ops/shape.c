/* Operators that make, describe and rearrange tensors: the table and inference. Where a shape is
 * given by the contents of an operand, resolve.c works it out, or the output stays unknown. */
#include "engine/ops/resolve.h"

#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/ops.h"

/* ---- generators ---- */

static enum status infer_constant(struct node *node, struct error *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        bool list;
    } forms[] = {{"value_float", DTYPE_F32, false},
                 {"value_floats", DTYPE_F32, true},
                 {"value_int", DTYPE_I64, false},
                 {"value_ints", DTYPE_I64, true}};
    const struct attr *value = node_attr(node, "value");
    if (value && value->kind == ATTR_TENSOR)
        return infer_output(node, 0, value->t->dtype, &value->t->shape, err);
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        const struct attr *attr = node_attr(node, forms[i].name);
        if (!attr)
            continue;
        struct shape shape = forms[i].list ? SHAPE((int64_t)attr->count) : SHAPE_SCALAR;
        return infer_output(node, 0, forms[i].dtype, &shape, err);
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "the node has none of the attributes value, value_float, value_floats, "
                     "value_int, value_ints (lensd has no string or sparse tensors)");
}

static enum status infer_constant_of_shape(struct node *node, struct error *err)
{
    enum dtype dtype = DTYPE_F32;
    const struct attr *value = node_attr(node, "value");
    if (value && value->kind == ATTR_TENSOR) {
        dtype = value->t->dtype;
        if (shape_count(&value->t->shape) != 1)
            return error_set(err, STATUS_SHAPE, "attribute 'value' holds %zu numbers, expected one",
                             shape_count(&value->t->shape));
    }
    struct shape out = {0};
    size_t count;
    bool known;
    TRY(infer_ints(node, 0, out.dims, TENSOR_MAX_RANK, &count, &known, err));
    if (!known)
        return infer_unknown(node, 0, dtype);
    out.rank = (int)count;
    return infer_output(node, 0, dtype, &out, err);
}

static enum status infer_range(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "start", DTYPES_NUMBER, err));
    for (size_t i = 0; i < 3; i++) {
        TRY(operand_same_dtype(node, i, i == 1 ? "limit" : "delta", err));
        TRY(operand_single(node, i, i == 0 ? "start" : i == 1 ? "limit" : "delta", err));
    }
    const struct tensor *known[3];
    enum dtype dtype = node->inputs[0]->dtype;
    if (!resolve_known(node, 0, known, 3))
        return infer_unknown(node, 0, dtype);
    int64_t count;
    TRY(resolve_range(known, &count, err));
    return infer_output(node, 0, dtype, &SHAPE(count), err);
}

static enum status infer_eye_like(struct node *node, struct error *err)
{
    int64_t dtype = node_int(node, "dtype", node->inputs[0]->dtype);
    TRY(operand_rank(node, 0, "input", 2, 2, err));
    if (dtype <= 0 || dtype > DTYPE_BF16 || !dtype_size((enum dtype)dtype))
        return error_set(err, STATUS_UNSUPPORTED, "a matrix of ONNX data type %lld",
                         (long long)dtype);
    return infer_output(node, 0, (enum dtype)dtype, &node->inputs[0]->shape, err);
}

/* ---- describers ---- */

static enum status infer_shape(struct node *node, struct error *err)
{
    int64_t rank = node->inputs[0]->shape.rank;
    int64_t start = node_int(node, "start", 0), end = node_int(node, "end", rank);
    start = start < -rank ? 0 : start < 0 ? start + rank : start > rank ? rank : start;
    end = end < -rank ? 0 : end < 0 ? end + rank : end > rank ? rank : end;
    return infer_output(node, 0, DTYPE_I64, &SHAPE(end > start ? end - start : 0), err);
}

static enum status infer_size(struct node *node, struct error *err)
{
    return infer_output(node, 0, DTYPE_I64, &SHAPE_SCALAR, err);
}

/* ---- views ---- */

static enum status infer_reshape(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const struct tensor *known[2];
    if (!resolve_known(node, 1, known, 2))
        return infer_unknown(node, 0, x->dtype);
    struct shape out;
    TRY(resolve_reshape(node, &x->shape, known, &out, err));
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_flatten(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axis = node_int(node, "axis", 1);
    int rank = x->shape.rank;
    if (axis < -rank || axis > rank)
        return error_set(err, STATUS_SHAPE, "axis %lld is out of range, expected %d to %d",
                         (long long)axis, -rank, rank);
    if (axis < 0)
        axis += rank;
    struct shape out = SHAPE((int64_t)resolve_extent(&x->shape, 0, (int)axis),
                             (int64_t)resolve_extent(&x->shape, (int)axis, rank));
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_squeeze(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    bool known;
    TRY(infer_ints(node, 1, axes, TENSOR_MAX_RANK, &count, &known, err));
    if (!known)
        return infer_unknown(node, 0, x->dtype);
    bool all = !node_input(node, 1);
    unsigned mask;
    TRY(resolve_axes(axes, count, x->shape.rank, false, &mask, err));
    struct shape out = {0};
    for (int i = 0; i < x->shape.rank; i++) {
        int64_t extent = x->shape.dims[i];
        if (mask & 1u << i && extent != 1)
            return error_set(err, STATUS_SHAPE, "axis %d has extent %lld and cannot be squeezed", i,
                             (long long)extent);
        if (!(mask & 1u << i) && !(all && extent == 1))
            out.dims[out.rank++] = extent;
    }
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_unsqueeze(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    bool known;
    TRY(infer_ints(node, 1, axes, TENSOR_MAX_RANK, &count, &known, err));
    if (!known)
        return infer_unknown(node, 0, x->dtype);
    struct shape out = {.rank = x->shape.rank + (int)count};
    if (out.rank > TENSOR_MAX_RANK)
        return error_set(err, STATUS_SHAPE, "the output has rank %d; lensd handles ranks up to %d",
                         out.rank, TENSOR_MAX_RANK);
    unsigned mask;
    TRY(resolve_axes(axes, count, out.rank, true, &mask, err));
    for (int i = 0, from = 0; i < out.rank; i++)
        out.dims[i] = mask & 1u << i ? 1 : x->shape.dims[from++];
    return infer_output(node, 0, x->dtype, &out, err);
}

/* ---- rearrangers ---- */

static enum status infer_transpose(struct node *node, struct error *err)
{
    const struct shape *shape = &node->inputs[0]->shape;
    struct shape out = {.rank = shape->rank};
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    if (perm && count != (size_t)shape->rank)
        return error_set(err, STATUS_SHAPE, "perm holds %zu axes, expected the %d of the input",
                         count, shape->rank);
    unsigned seen = 0;
    for (int i = 0; i < shape->rank; i++) {
        int64_t axis = perm ? perm[i] : shape->rank - 1 - i;
        TRY(infer_axis(&axis, shape->rank, err));
        if (seen & 1u << axis)
            return error_set(err, STATUS_SHAPE, "perm holds axis %lld twice", (long long)axis);
        seen |= 1u << axis;
        out.dims[i] = shape->dims[axis];
    }
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

static enum status infer_concat(struct node *node, struct error *err)
{
    char text[SHAPE_TEXT], first[SHAPE_TEXT];
    struct shape out = node->inputs[0]->shape;
    TRY(resolve_required(node, "axis", err));
    int64_t axis = node_int(node, "axis", 1);
    TRY(infer_axis(&axis, out.rank, err));
    for (size_t i = 1; i < node->input_count; i++) {
        TRY(operand_present(node, i, "input", err));
        TRY(operand_same_dtype(node, i, "input", err));
        struct shape shape = node->inputs[i]->shape;
        int64_t extent = shape.rank == out.rank ? shape.dims[axis] : 0;
        if (shape.rank == out.rank)
            shape.dims[axis] = out.dims[axis];
        if (!shape_equal(&shape, &out))
            return error_set(err, STATUS_SHAPE,
                             "input %zu has shape %s, which does not match %s outside of axis %lld",
                             i, shape_text(&node->inputs[i]->shape, text),
                             shape_text(&node->inputs[0]->shape, first), (long long)axis);
        if (__builtin_add_overflow(out.dims[axis], extent, &out.dims[axis]))
            return error_set(err, STATUS_SHAPE, "axis %lld becomes too long", (long long)axis);
    }
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

/* Extents that were given one by one, or equal parts, of which the last may be smaller. */
static enum status split_outputs(struct node *node, int64_t axis, const struct tensor *split,
                                 bool given, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct shape out = x->shape;
    int64_t extent = x->shape.dims[axis], parts = (int64_t)node->output_count, sum = 0;
    if (!given && extent / parts >= INT64_MAX / parts - 1)
        return error_set(err, STATUS_SHAPE,
                         "axis %lld of extent %lld does not split into %lld parts", (long long)axis,
                         (long long)extent, (long long)parts);
    for (size_t i = 0; i < node->output_count; i++) {
        out.dims[axis] = resolve_split(node, split, extent, i);
        if (out.dims[axis] < 0 || __builtin_add_overflow(sum, out.dims[axis], &sum))
            return error_set(err, STATUS_SHAPE,
                             "the extent of output %zu is %lld, expected 0 to %lld", i,
                             (long long)out.dims[axis], (long long)extent);
        TRY(infer_output(node, i, x->dtype, &out, err));
    }
    if (sum != extent)
        return error_set(err, STATUS_SHAPE,
                         "the extents add up to %lld, expected the %lld of axis %lld",
                         (long long)sum, (long long)extent, (long long)axis);
    return STATUS_OK;
}

static enum status split_count_check(const struct node *node, size_t count, struct error *err)
{
    if (count != node->output_count)
        return error_set(err, STATUS_SHAPE, "%zu extents for %zu outputs", count,
                         node->output_count);
    return STATUS_OK;
}

static enum status infer_split(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *split = node_input(node, 1);
    int64_t axis = node_int(node, "axis", 0), parts = node_int(node, "num_outputs", -1);
    TRY(infer_axis(&axis, x->shape.rank, err));
    if (split) {
        if (parts != -1)
            return error_set(err, STATUS_MODEL,
                             "both the input split and the attribute num_outputs "
                             "are given");
        TRY(operand_dtype(node, 1, "split", DTYPES_INDEX, err));
        TRY(operand_rank(node, 1, "split", 1, 1, err));
        TRY(split_count_check(node, shape_count(&split->shape), err));
        if (split->known)
            return split_outputs(node, axis, split->known, true, err);
        for (size_t i = 0; i < node->output_count; i++)
            infer_unknown(node, i, x->dtype);
        return STATUS_OK;
    }
    if (parts != -1 && parts != (int64_t)node->output_count)
        return error_set(err, STATUS_MODEL, "num_outputs is %lld but the node has %zu outputs",
                         (long long)parts, node->output_count);
    return split_outputs(node, axis, NULL, false, err);
}

static enum status infer_slice(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const struct tensor *known[5];
    if (!resolve_known(node, 1, known, 5))
        return infer_unknown(node, 0, x->dtype);
    struct slice slice;
    TRY(resolve_slice(node, &x->shape, known, &slice, err));
    return infer_output(node, 0, x->dtype, &slice.out, err);
}

static enum status infer_expand(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct shape wanted = {0}, out;
    size_t count;
    bool known;
    TRY(infer_ints(node, 1, wanted.dims, TENSOR_MAX_RANK, &count, &known, err));
    if (!known)
        return infer_unknown(node, 0, x->dtype);
    wanted.rank = (int)count;
    for (int i = 0; i < wanted.rank; i++)
        if (wanted.dims[i] < 0)
            return error_set(err, STATUS_SHAPE,
                             "dimension %d of the wanted shape is %lld, expected 0 or more", i,
                             (long long)wanted.dims[i]);
    TRY(infer_broadcast(&x->shape, &wanted, &out, err));
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_tile(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    char text[SHAPE_TEXT];
    int64_t repeats[TENSOR_MAX_RANK];
    struct shape out = x->shape;
    size_t count;
    bool known;
    TRY(infer_ints(node, 1, repeats, TENSOR_MAX_RANK, &count, &known, err));
    if (!known)
        return infer_unknown(node, 0, x->dtype);
    if (count != (size_t)out.rank)
        return error_set(err, STATUS_SHAPE, "%zu repeats for %d axes", count, out.rank);
    for (int i = 0; i < out.rank; i++)
        if (repeats[i] < 0 || __builtin_mul_overflow(out.dims[i], repeats[i], &out.dims[i]))
            return error_set(
                err, STATUS_SHAPE,
                "axis %d of %s cannot be repeated %lld times, expected 0 or more, and a "
                "result that can be addressed",
                i, shape_text(&x->shape, text), (long long)repeats[i]);
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_pad(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *fill = node_input(node, 2);
    const struct tensor *known[4];
    if (fill && shape_count(&fill->shape) != 0) { /* an empty tensor stands for none */
        TRY(operand_same_dtype(node, 2, "constant_value", err));
        TRY(operand_single(node, 2, "constant_value", err));
    }
    resolve_known(node, 1, known, 4);
    for (size_t i = 1; i < 4; i += 2) {
        if (node_input(node, i) && !known[i])
            return infer_unknown(node, 0, x->dtype);
    }
    struct padding padding;
    TRY(resolve_pad(node, &x->shape, known, &padding, err));
    return infer_output(node, 0, x->dtype, &padding.out, err);
}

static enum status infer_center(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const struct tensor *known[2];
    if (!resolve_known(node, 1, known, 2))
        return infer_unknown(node, 0, x->dtype);
    struct padding padding;
    TRY(resolve_center(node, &x->shape, known, &padding, err));
    return infer_output(node, 0, x->dtype, &padding.out, err);
}

static enum status infer_trilu(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_rank(node, 0, "input", 2, TENSOR_MAX_RANK, err));
    TRY(operand_dtype(node, 1, "k", DTYPES_INDEX, err));
    TRY(operand_single(node, 1, "k", err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

/* ---- blocks ---- */

static enum status block_check(const struct node *node, int64_t *ret_block, struct error *err)
{
    const char *mode = node_string(node, "mode", "DCR");
    TRY(resolve_required(node, "blocksize", err));
    TRY(operand_rank(node, 0, "input", 4, 4, err));
    *ret_block = node_int(node, "blocksize", 0);
    if (*ret_block < 1 || *ret_block > INT32_MAX)
        return error_set(err, STATUS_SHAPE, "blocksize is %lld, expected 1 to %d",
                         (long long)*ret_block, INT32_MAX);
    if (strcmp(mode, "DCR") && strcmp(mode, "CRD"))
        return error_set(err, STATUS_MODEL, "mode '%s' is neither DCR nor CRD", mode);
    return STATUS_OK;
}

static enum status infer_depth_to_space(struct node *node, struct error *err)
{
    struct shape out = node->inputs[0]->shape;
    int64_t block;
    TRY(block_check(node, &block, err));
    if (out.dims[1] % (block * block) || __builtin_mul_overflow(out.dims[2], block, &out.dims[2]) ||
        __builtin_mul_overflow(out.dims[3], block, &out.dims[3]))
        return error_set(err, STATUS_SHAPE,
                         "%lld channels do not divide into blocks of %lld x %lld",
                         (long long)out.dims[1], (long long)block, (long long)block);
    out.dims[1] /= block * block;
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

static enum status infer_space_to_depth(struct node *node, struct error *err)
{
    char text[SHAPE_TEXT];
    struct shape out = node->inputs[0]->shape;
    int64_t block;
    TRY(block_check(node, &block, err));
    if (out.dims[2] % block || out.dims[3] % block ||
        __builtin_mul_overflow(out.dims[1], block * block, &out.dims[1]))
        return error_set(err, STATUS_SHAPE, "%s does not divide into blocks of %lld x %lld",
                         shape_text(&node->inputs[0]->shape, text), (long long)block,
                         (long long)block);
    out.dims[2] /= block;
    out.dims[3] /= block;
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

static enum status infer_col2im(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const struct tensor *known[3];
    if (!resolve_known(node, 1, known, 3))
        return infer_unknown(node, 0, x->dtype);
    struct col2im col2im;
    TRY(resolve_col2im(node, &x->shape, known, &col2im, err));
    return infer_output(node, 0, x->dtype, &col2im.out, err);
}

/* ---- batches ---- */

static int transpose_axis(const struct node *node, const int *axes)
{
    const int rank = node->inputs[0]->shape.rank;
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    if (!count)
        return rank - 1 - axes[0];
    for (int axis = 0; axis < rank && count == (size_t)rank; axis++)
        if (perm[axis] == axes[0])
            return axis;
    return BATCH_MIXES;
}

static const struct batch_rule transpose_rule = {transpose_axis, NULL};

static int slice_axis(const struct node *node, const int *axes)
{
    const struct tensor *operands[5] = {0};
    const struct shape *in = &node->inputs[0]->shape;
    const int axis = batch_of_first(node, axes);
    struct slice slice;
    struct error ignored;
    return axis >= 0 && resolve_known(node, 1, operands, COUNT_OF(operands)) &&
                   resolve_slice(node, in, operands, &slice, &ignored) == STATUS_OK &&
                   slice.start[axis] == 0 && slice.step[axis] == 1 &&
                   slice.out.dims[axis] == in->dims[axis]
               ? axis
               : BATCH_MIXES;
}

/* The end may have the batch in it. */
static int slice_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 2 ? BATCH_EXTENTS : BATCH_OTHER;
}

static const struct batch_rule slice_rule = {slice_axis, slice_beside};

static int padded_axis(const struct padding *padding, int axis)
{
    return padding->begin[axis] == 0 && padding->end[axis] == 0 ? axis : BATCH_MIXES;
}

static int pad_axis(const struct node *node, const int *axes)
{
    const struct tensor *operands[4] = {0};
    const int axis = batch_of_first(node, axes);
    struct padding padding;
    struct error ignored;
    if (axis < 0 || !resolve_known(node, 1, operands, COUNT_OF(operands)) ||
        resolve_pad(node, &node->inputs[0]->shape, operands, &padding, &ignored) != STATUS_OK)
        return BATCH_MIXES;
    return padded_axis(&padding, axis);
}

static const struct batch_rule pad_rule = {pad_axis, NULL};

static int center_axis(const struct node *node, const int *axes)
{
    const struct tensor *operands[2] = {0};
    const int axis = batch_of_first(node, axes);
    struct padding padding;
    struct error ignored;
    if (axis < 0 || !resolve_known(node, 1, operands, COUNT_OF(operands)) ||
        resolve_center(node, &node->inputs[0]->shape, operands, &padding, &ignored) != STATUS_OK)
        return BATCH_MIXES;
    return padded_axis(&padding, axis);
}

/* Operand 1 is the shape of the result. */
static int shape_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 1 ? BATCH_EXTENTS : BATCH_OTHER;
}

static const struct batch_rule center_rule = {center_axis, shape_beside};

static int expand_axis(const struct node *node, const int *axes)
{
    const struct shape *in = &node->inputs[0]->shape, *out = &node->outputs[0]->shape;
    const int axis = batch_of_first(node, axes), to = axis + out->rank - in->rank;
    return axis >= 0 && in->dims[axis] == out->dims[to] ? to : BATCH_MIXES;
}

static const struct batch_rule expand_rule = {expand_axis, shape_beside};

static int tile_batch_axis(const struct node *node, const int *axes)
{
    const struct shape *in = &node->inputs[0]->shape, *out = &node->outputs[0]->shape;
    const int axis = batch_of_first(node, axes);
    return axis >= 0 && out->rank == in->rank && out->dims[axis] == in->dims[axis] ? axis
                                                                                   : BATCH_MIXES;
}

static const struct batch_rule tile_rule = {tile_batch_axis, NULL};

static int trilu_axis(const struct node *node, const int *axes)
{
    const int axis = batch_of_first(node, axes);
    return axis < node->inputs[0]->shape.rank - 2 ? axis : BATCH_MIXES;
}

static const struct batch_rule trilu_rule = {trilu_axis, NULL};

static int concat_axis(const struct node *node, const int *axes)
{
    int axis = BATCH_FREE;
    for (size_t i = 0; i < node->input_count; i++) {
        if (axes[i] != BATCH_FREE && axis != BATCH_FREE && axes[i] != axis)
            return BATCH_MIXES;
        axis = axes[i] != BATCH_FREE ? axes[i] : axis;
    }
    const int64_t joined = node_int(node, "axis", 1);
    return axis != (joined < 0 ? joined + node->outputs[0]->shape.rank : joined) ? axis
                                                                                 : BATCH_MIXES;
}

static int concat_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)i;
    return axis;
}

static const struct batch_rule concat_rule = {concat_axis, concat_beside};

/* ---- the table ---- */

static const struct op_info table[] = {
    {OP_CONSTANT, 1, 0, 0, 0, 1, 1, OP_PLAIN,
     "value:tensor value_float:float value_floats:floats value_int:int value_ints:ints "
     "value_string:string value_strings:strings",
     infer_constant, &batch_mixes, work_elements},
    {OP_CONSTANT_OF_SHAPE, 9, 0, 1, 1, 1, 1, OP_PLAIN, "value:tensor", infer_constant_of_shape,
     &batch_mixes, work_elements},
    {OP_SHAPE, 1, 0, 1, 1, 1, 1, OP_SHAPE_ONLY, "start:int end:int", infer_shape, &batch_mixes,
     work_elements},
    {OP_SIZE, 1, 0, 1, 1, 1, 1, OP_SHAPE_ONLY, NULL, infer_size, &batch_mixes, work_elements},
    {OP_RESHAPE, 5, 0, 2, 2, 1, 1, OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, "allowzero:int",
     infer_reshape, &batch_reshape, work_elements},
    {OP_FLATTEN, 1, 0, 1, 1, 1, 1, OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, "axis:int", infer_flatten,
     &batch_reshape, work_elements},
    {OP_SQUEEZE, 13, 0, 1, 2, 1, 1, OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, NULL, infer_squeeze,
     &batch_reshape, work_elements},
    {OP_UNSQUEEZE, 13, 0, 2, 2, 1, 1, OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, NULL, infer_unsqueeze,
     &batch_reshape, work_elements},
    {OP_TRANSPOSE, 1, 0, 1, 1, 1, 1, OP_MOVES | OP_KEEPS_NUMBERS, "perm:ints", infer_transpose,
     &transpose_rule, work_elements},
    {OP_CONCAT, 1, 0, 1, OP_VARIADIC, 1, 1, OP_PLAIN, "axis:int", infer_concat, &concat_rule,
     work_elements},
    {OP_SPLIT, 13, 0, 1, 2, 1, OP_VARIADIC, OP_MOVES | OP_KEEPS_NUMBERS, "axis:int num_outputs:int",
     infer_split, &batch_beside_first, work_elements},
    {OP_SLICE, 10, 0, 3, 5, 1, 1, OP_MOVES | OP_KEEPS_NUMBERS, NULL, infer_slice, &slice_rule,
     work_elements},
    {OP_EXPAND, 8, 0, 2, 2, 1, 1, OP_MOVES | OP_KEEPS_NUMBERS, NULL, infer_expand, &expand_rule,
     work_elements},
    {OP_TILE, 6, 0, 2, 2, 1, 1, OP_PLAIN, NULL, infer_tile, &tile_rule, work_elements},
    {OP_PAD, 11, 0, 2, 4, 1, 1, OP_PLAIN, "mode:string", infer_pad, &pad_rule, work_elements},
    {OP_RANGE, 11, 0, 3, 3, 1, 1, OP_PLAIN, "stash_type:int", infer_range, &batch_mixes,
     work_elements},
    {OP_EYE_LIKE, 9, 0, 1, 1, 1, 1, OP_PLAIN, "dtype:int k:int", infer_eye_like, &batch_mixes,
     work_elements},
    {OP_TRILU, 14, 0, 1, 2, 1, 1, OP_PLAIN, "upper:int", infer_trilu, &trilu_rule, work_elements},
    {OP_DEPTH_TO_SPACE, 1, 0, 1, 1, 1, 1, OP_MOVES | OP_KEEPS_NUMBERS, "blocksize:int mode:string",
     infer_depth_to_space, &batch_by_sample, work_elements},
    {OP_SPACE_TO_DEPTH, 1, 0, 1, 1, 1, 1, OP_MOVES | OP_KEEPS_NUMBERS, "blocksize:int mode:string",
     infer_space_to_depth, &batch_by_sample, work_elements},
    {OP_CENTER_CROP_PAD, 18, 0, 2, 2, 1, 1, OP_PLAIN, "axes:ints", infer_center, &center_rule,
     work_elements},
    {OP_COL2IM, 18, 0, 3, 3, 1, 1, OP_HEAVY, "dilations:ints pads:ints strides:ints", infer_col2im,
     &batch_by_sample, work_elements},
};

const struct op_family ops_shape = {table, COUNT_OF(table)};
