/* Operators that make, describe and rearrange tensors. If a shape depends on an operand's contents,
 * it is computed from these contents, mostly by resolve.c, or stays unknown until the contents are
 * known. */
#include <math.h>
#include <string.h>

#include "engine/op/elementwise.h"
#include "engine/op/family.h"
#include "engine/op/gemm.h"

/* ---- generators ---- */

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
    if (!node->inputs[0]->known)
        return infer_unknown(node, 0, dtype);
    TRY(resolve_list(node, 0, "input", out.dims, TENSOR_MAX_RANK, &count, err));
    out.rank = (int)count;
    return infer_output(node, 0, dtype, &out, err);
}

/* Number of elements of a Range: from input 0 to input 1, in steps of input 2. */
static enum status range_integers(const struct node *node, int64_t *ret_count, struct error *err)
{
    __int128 start = tensor_int(node->inputs[0]->known, 0);
    __int128 limit = tensor_int(node->inputs[1]->known, 0);
    __int128 delta = tensor_int(node->inputs[2]->known, 0);
    if (delta == 0)
        return error_set(err, STATUS_SHAPE, "the step of the range is 0");
    __int128 span = limit - start;
    if (delta < 0) {
        span = -span;
        delta = -delta;
    }
    __int128 count = span > 0 ? (span + delta - 1) / delta : 0;
    if (count > INT64_MAX)
        return error_set(err, STATUS_SHAPE, "the range has too many elements");
    *ret_count = (int64_t)count;
    return STATUS_OK;
}

static enum status range_numbers(const struct node *node, int64_t *ret_count, struct error *err)
{
    double start = tensor_number(node->inputs[0]->known, 0);
    double limit = tensor_number(node->inputs[1]->known, 0);
    double delta = tensor_number(node->inputs[2]->known, 0);
    double count = ceil((limit - start) / delta);
    if (delta == 0 || isnan(count) || count > 0x1p53)
        return error_set(err, STATUS_SHAPE,
                         "a range from %g to %g in steps of %g has no end, expected finite numbers "
                         "and a step that is not 0",
                         start, limit, delta);
    *ret_count = count > 0 ? (int64_t)count : 0;
    return STATUS_OK;
}

static enum status infer_range(struct node *node, struct error *err)
{
    const enum dtype dtype = node->inputs[0]->dtype;
    int64_t count = 0;
    TRY(dtype_is_float(dtype) ? range_numbers(node, &count, err)
                              : range_integers(node, &count, err));
    return infer_output(node, 0, dtype, &SHAPE(count), err);
}

static enum status infer_eye_like(struct node *node, struct error *err)
{
    int64_t dtype = node_int(node, "dtype", node->inputs[0]->dtype);
    if (dtype <= 0 || dtype > DTYPE_BF16 || !dtype_size((enum dtype)dtype))
        return error_set(err, STATUS_UNSUPPORTED,
                         "dtype is ONNX data type %lld, which lensd does not support",
                         (long long)dtype);
    return infer_output(node, 0, (enum dtype)dtype, &node->inputs[0]->shape, err);
}

/* ---- Shape and Size: inference ---- */

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
    const struct shape *data = &node->inputs[0]->shape;
    int64_t wanted[TENSOR_MAX_RANK];
    size_t count;
    TRY(resolve_list(node, 1, "the new shape", wanted, TENSOR_MAX_RANK, &count, err));
    bool allow_zero = node_int(node, "allowzero", 0) != 0;
    struct shape out = {.rank = (int)count}, remaining = *data;
    int unknown = -1;
    int64_t named = 1; /* product of the explicit dimensions */
    for (int i = 0; i < out.rank; i++) {
        int64_t dim = out.dims[i] = wanted[i];
        if (dim == -1) {
            if (unknown >= 0)
                return error_set(err, STATUS_SHAPE, "the new shape has more than one -1");
            unknown = i;
        } else if (dim == 0 && !allow_zero) {
            if (i >= data->rank)
                return error_set(
                    err, STATUS_SHAPE,
                    "dimension %d of the new shape is 0 (copy from the input), but the "
                    "input %s has no such dimension",
                    i, SHAPE_STRING(data));
            /* Leave a copied dimension out of the division for -1: the dimension may be zero. */
            out.dims[i] = data->dims[i];
            remaining.dims[i] = 1;
        } else if (dim < 0 || __builtin_mul_overflow(named, dim, &named)) {
            return error_set(err, STATUS_SHAPE,
                             "dimension %d of the new shape is %lld, expected -1, 0, or a number "
                             "whose product with the others can be addressed",
                             i, (long long)dim);
        }
    }
    int64_t left = (int64_t)shape_count(&remaining);
    if (unknown >= 0) {
        if (named == 0)
            return error_set(err, STATUS_SHAPE,
                             "the new shape has both 0 and -1, which leaves -1 undefined");
        if (left % named)
            return error_set(err, STATUS_SHAPE,
                             "%s cannot be reshaped to %s: %lld elements do not divide by %lld",
                             SHAPE_STRING(data), SHAPE_STRING(&out), (long long)left,
                             (long long)named);
        out.dims[unknown] = left / named;
    }
    TRY(shape_check(&out, DTYPE_U8, NULL, NULL, err));
    if (shape_count(&out) != shape_count(data))
        return error_set(err, STATUS_SHAPE, "%s (%zu elements) cannot be reshaped to %s (%zu)",
                         SHAPE_STRING(data), shape_count(data), SHAPE_STRING(&out),
                         shape_count(&out));
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
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
    TRY(resolve_list(node, 1, "axes", axes, TENSOR_MAX_RANK, &count, err));
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
    TRY(resolve_list(node, 1, "axes", axes, TENSOR_MAX_RANK, &count, err));
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
        const int64_t axis = perm ? perm[i] : shape->rank - 1 - i;
        if (axis < 0 || axis >= shape->rank) /* ONNX does not allow negative axes in perm */
            return error_set(err, STATUS_SHAPE, "perm holds axis %lld, expected 0 to %d",
                             (long long)axis, shape->rank - 1);
        if (seen & 1u << axis)
            return error_set(err, STATUS_SHAPE, "perm holds axis %lld twice", (long long)axis);
        seen |= 1u << axis;
        out.dims[i] = shape->dims[axis];
    }
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

enum status infer_joined(const struct node *node, size_t first, size_t step, struct shape *ret,
                         struct error *err)
{
    struct shape out = node->inputs[first]->shape;
    int64_t axis = node_int(node, "axis", 0);
    TRY(resolve_required(node, "axis", err));
    TRY(infer_axis(&axis, out.rank, err));
    for (size_t i = first + step; i < node->input_count; i += step) {
        struct shape shape = node->inputs[i]->shape;
        int64_t extent = shape.rank == out.rank ? shape.dims[axis] : 0;
        if (shape.rank == out.rank)
            shape.dims[axis] = out.dims[axis];
        if (!shape_equal(&shape, &out))
            return error_set(err, STATUS_SHAPE,
                             "input %zu has shape %s, which does not match %s outside of axis %lld",
                             i, SHAPE_STRING(&node->inputs[i]->shape),
                             SHAPE_STRING(&node->inputs[first]->shape), (long long)axis);
        if (__builtin_add_overflow(out.dims[axis], extent, &out.dims[axis]))
            return error_set(err, STATUS_SHAPE, "axis %lld becomes too long", (long long)axis);
    }
    *ret = out;
    return STATUS_OK;
}

static enum status infer_concat(struct node *node, struct error *err)
{
    struct shape out;
    TRY(infer_joined(node, 0, 1, &out, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

/* Sets the outputs' shapes. If `given`, input `split` has the extents; otherwise they are equal,
 * except that the last may be smaller. */
static enum status split_outputs(struct node *node, int64_t axis, bool given, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct shape out = x->shape;
    int64_t extent = x->shape.dims[axis], parts = (int64_t)node->output_count, sum = 0;
    if (!given && extent / parts >= INT64_MAX / parts - 1)
        return error_set(err, STATUS_SHAPE,
                         "axis %lld of extent %lld does not split into %lld parts", (long long)axis,
                         (long long)extent, (long long)parts);
    for (size_t i = 0; i < node->output_count; i++) {
        out.dims[axis] = resolve_split(node, axis, i);
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

static enum status infer_split(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *split = node_input(node, 1);
    int64_t axis, parts = node_int(node, "num_outputs", -1);
    TRY(infer_attribute_axis(node, 0, &axis, err));
    if (split) {
        if (parts != -1)
            return error_set(err, STATUS_MODEL,
                             "both the input split and the attribute num_outputs are given");
        if (shape_count(&split->shape) != node->output_count)
            return error_set(err, STATUS_SHAPE, "%zu extents for %zu outputs",
                             shape_count(&split->shape), node->output_count);
        if (split->known)
            return split_outputs(node, axis, true, err);
        for (size_t i = 0; i < node->output_count; i++)
            infer_unknown(node, i, x->dtype);
        return STATUS_OK;
    }
    if (parts != -1 && parts != (int64_t)node->output_count)
        return error_set(err, STATUS_MODEL, "num_outputs is %lld but the node has %zu outputs",
                         (long long)parts, node->output_count);
    return split_outputs(node, axis, false, err);
}

static enum status infer_slice(struct node *node, struct error *err)
{
    struct slice slice;
    TRY(resolve_slice(node, &slice, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &slice.out, err);
}

static enum status infer_expand(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct shape wanted = {0}, out;
    size_t count;
    TRY(resolve_list(node, 1, "shape", wanted.dims, TENSOR_MAX_RANK, &count, err));
    wanted.rank = (int)count;
    for (int i = 0; i < wanted.rank; i++)
        if (wanted.dims[i] < 0)
            return error_set(err, STATUS_SHAPE,
                             "dimension %d of the requested shape is %lld, expected 0 or more", i,
                             (long long)wanted.dims[i]);
    TRY(infer_broadcast(&x->shape, &wanted, &out, err));
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_tile(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t repeats[TENSOR_MAX_RANK];
    struct shape out = x->shape;
    size_t count;
    TRY(resolve_list(node, 1, "repeats", repeats, TENSOR_MAX_RANK, &count, err));
    if (count != (size_t)out.rank)
        return error_set(err, STATUS_SHAPE, "%zu repeats for %d axes", count, out.rank);
    for (int i = 0; i < out.rank; i++)
        if (repeats[i] < 0 || __builtin_mul_overflow(out.dims[i], repeats[i], &out.dims[i]))
            return error_set(
                err, STATUS_SHAPE,
                "axis %d of %s cannot be repeated %lld times, expected 0 or more, and a "
                "result that fits in memory",
                i, SHAPE_STRING(&x->shape), (long long)repeats[i]);
    return infer_output(node, 0, x->dtype, &out, err);
}

/* ---- blocks ---- */

static enum status block_check(const struct node *node, int64_t *ret_block, struct error *err)
{
    TRY(resolve_required(node, "blocksize", err));
    *ret_block = node_int(node, "blocksize", 0);
    if (*ret_block < 1 || *ret_block > INT32_MAX)
        return error_set(err, STATUS_SHAPE, "blocksize is %lld, expected 1 to %d",
                         (long long)*ret_block, INT32_MAX);
    return infer_word(node, "mode", "DCR CRD", err);
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
    struct shape out = node->inputs[0]->shape;
    int64_t block;
    TRY(block_check(node, &block, err));
    if (out.dims[2] % block || out.dims[3] % block ||
        __builtin_mul_overflow(out.dims[1], block * block, &out.dims[1]))
        return error_set(err, STATUS_SHAPE, "%s does not divide into blocks of %lld x %lld",
                         SHAPE_STRING(&node->inputs[0]->shape), (long long)block, (long long)block);
    out.dims[2] /= block;
    out.dims[3] /= block;
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

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

static int slice_axis(const struct node *node, const int *axes)
{
    const int axis = batch_of_first(node, axes);
    struct slice slice;
    return axis >= 0 && resolve_is_known(node) && resolve_slice(node, &slice, NULL) == STATUS_OK &&
                   slice.start[axis] == 0 && slice.step[axis] == 1 &&
                   slice.out.dims[axis] == node->inputs[0]->shape.dims[axis]
               ? axis
               : BATCH_MIXES;
}

/* Input 2, the end, may be the batch size. */
static int slice_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 2 ? BATCH_EXTENTS : BATCH_OTHER;
}

static int expand_axis(const struct node *node, const int *axes)
{
    const struct shape *in = &node->inputs[0]->shape, *out = &node->outputs[0]->shape;
    const int axis = batch_of_first(node, axes), to = axis + out->rank - in->rank;
    return axis >= 0 && in->dims[axis] == out->dims[to] ? to : BATCH_MIXES;
}

static int tile_batch_axis(const struct node *node, const int *axes)
{
    const struct shape *in = &node->inputs[0]->shape, *out = &node->outputs[0]->shape;
    const int axis = batch_of_first(node, axes);
    return axis >= 0 && out->rank == in->rank && out->dims[axis] == in->dims[axis] ? axis
                                                                                   : BATCH_MIXES;
}

static int trilu_axis(const struct node *node, const int *axes)
{
    const int axis = batch_of_first(node, axes);
    return axis < node->inputs[0]->shape.rank - 2 ? axis : BATCH_MIXES;
}

KERNEL(kernel_constant_of_shape)
{
    struct tensor *out = args->out[0];
    const struct attr *value = node_attr(args->node, "value");
    if (value && value->kind == ATTR_TENSOR)
        fill_row(out->data, value->t->data, dtype_size(out->dtype), shape_count(&out->shape));
    else
        zero_bytes(out->data, out->bytes);
    return STATUS_OK;
}

/* Computes start + i * delta for each element, so that errors do not accumulate. */
KERNEL(kernel_range)
{
    const struct tensor *start = args->in[0], *delta = args->in[2];
    const bool is_real = dtype_is_float(start->dtype);
    const size_t count = shape_count(&args->out[0]->shape);
    const double first = tensor_number(start, 0), step = tensor_number(delta, 0);
    const uint64_t whole_first = (uint64_t)tensor_int(start, 0);
    const uint64_t whole_step = (uint64_t)tensor_int(delta, 0);
    void *to;
    TRY(result_open(args, 0, is_real ? DTYPE_F64 : DTYPE_U64, &to, err));
    for (size_t i = 0; i < count; i++)
        if (is_real)
            ((double *)to)[i] = first + (double)i * step;
        else
            ((uint64_t *)to)[i] = whole_first + i * whole_step;
    return STATUS_OK;
}

KERNEL(kernel_eye_like)
{
    struct tensor *out = args->out[0];
    int64_t rows = out->shape.dims[0], columns = out->shape.dims[1];
    int64_t k = node_int(args->node, "k", 0);
    double one = 1;
    zero_bytes(out->data, out->bytes);
    for (int64_t i = k < 0 && k > -rows ? -k : 0; i < rows && k > -rows && k < columns - i; i++)
        store_doubles(&one, out->dtype,
                      element_at(out->data, out->dtype, (size_t)(i * columns + i + k)), 1);
    return STATUS_OK;
}

/* ---- Shape and Size: they do not read the input's data, which may be NULL ---- */

KERNEL(kernel_shape)
{
    const struct shape *shape = &args->in[0]->shape;
    struct tensor *out = args->out[0];
    int64_t start = node_int(args->node, "start", 0), rank = shape->rank;
    start = start < -rank ? 0 : start < 0 ? start + rank : start > rank ? rank : start;
    copy_bytes(out->data, shape->dims + start, out->bytes);
    return STATUS_OK;
}

KERNEL(kernel_size)
{
    *(int64_t *)args->out[0]->data = (int64_t)shape_count(&args->in[0]->shape);
    return STATUS_OK;
}

/* ---- rearrangers ---- */

/* A copy of input 0 to output 0 in another order; the kernel sets `dims`. */
struct rearrangement {
    const struct tensor *x;
    struct tensor *out;
    size_t item;
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK]; /* steps of x and out in bytes */
    struct copy_dim dims[COPY_MAX_RANK];
};

static struct rearrangement rearrangement_of(const struct kernel_args *args)
{
    struct rearrangement r = {
        .x = args->in[0], .out = args->out[0], .item = dtype_size(args->in[0]->dtype)};
    contiguous_steps(&r.x->shape, r.item, r.from);
    contiguous_steps(&r.out->shape, r.item, r.to);
    return r;
}

/* Copies x, reshaped to `shape`, with the dimensions in the order of `perm` (NULL: reversed). */
static void copy_transposed(struct rearrangement *r, const struct shape *shape, const int64_t *perm)
{
    ptrdiff_t step = (ptrdiff_t)r->item;
    contiguous_steps(shape, r->item, r->from);
    for (int i = shape->rank - 1; i >= 0; i--) {
        const int64_t axis = perm ? perm[i] : shape->rank - 1 - i, extent = shape->dims[axis];
        r->dims[i] = (struct copy_dim){(size_t)extent, step, r->from[axis]};
        step *= (ptrdiff_t)extent;
    }
    copy_strided(r->out->data, r->x->data, r->item, r->dims, shape->rank);
}

KERNEL(kernel_transpose)
{
    struct rearrangement r = rearrangement_of(args);
    size_t count;
    copy_transposed(&r, &r.x->shape, node_ints(args->node, "perm", &count));
    return STATUS_OK;
}

KERNEL(kernel_blocks)
{
    struct rearrangement r = rearrangement_of(args);
    struct shape apart;
    const int64_t *perm = resolve_blocks(args->node, &apart);
    copy_transposed(&r, &apart, perm);
    return STATUS_OK;
}

/* Copies rows of `bytes` bytes between buffers of different pitches. */
static void copy_rows(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t bytes,
                      size_t rows)
{
    char *to = dst;
    const char *from = src;
    for (size_t i = 0; bytes && i < rows; i++)
        memcpy(to + i * dst_pitch, from + i * src_pitch, bytes);
}

KERNEL(kernel_concat)
{
    struct tensor *out = args->out[0];
    const int axis = (int)node_axis(args->node, 0, out->shape.rank);
    const struct axis_layout layout = axis_layout_of(&out->shape, axis);
    const size_t rows = layout.outer, inner = layout.inner * dtype_size(out->dtype);
    size_t pitch = inner * layout.extent, offset = 0;
    for (size_t i = 0; i < args->node->input_count && out->bytes; i++) {
        const struct tensor *x = args->in[i];
        size_t bytes = inner * (size_t)x->shape.dims[axis];
        copy_rows((char *)out->data + offset, pitch, x->data, bytes, bytes, rows);
        offset += bytes;
    }
    return STATUS_OK;
}

KERNEL(kernel_split)
{
    const struct node *node = args->node;
    const struct tensor *x = args->in[0];
    const int axis = (int)node_axis(node, 0, x->shape.rank);
    const struct axis_layout layout = axis_layout_of(&x->shape, axis);
    const size_t rows = layout.outer, inner = layout.inner * dtype_size(x->dtype);
    size_t pitch = inner * layout.extent, offset = 0;
    for (size_t i = 0; i < node->output_count && x->bytes; i++) {
        size_t bytes = inner * (size_t)resolve_split(node, axis, i);
        if (args->out[i])
            copy_rows(args->out[i]->data, bytes, (const char *)x->data + offset, pitch, bytes,
                      rows);
        offset += bytes;
    }
    return STATUS_OK;
}

KERNEL(kernel_slice)
{
    struct rearrangement r = rearrangement_of(args);
    const int rank = r.x->shape.rank;
    struct slice slice;
    TRY(resolve_slice(args->node, &slice, err));
    ptrdiff_t offset = 0;
    for (int i = 0; i < rank; i++) {
        r.dims[i] = (struct copy_dim){(size_t)slice.out.dims[i], r.to[i],
                                      r.from[i] * (ptrdiff_t)slice.step[i]};
        offset += r.from[i] * (ptrdiff_t)slice.start[i];
    }
    copy_strided(r.out->data, (const char *)r.x->data + offset, r.item, r.dims, rank);
    return STATUS_OK;
}

KERNEL(kernel_expand)
{
    const struct tensor *x = args->in[0];
    const struct tensor *out = args->out[0];
    copy_broadcast(out->data, &out->shape, x->data, &x->shape, dtype_size(x->dtype));
    return STATUS_OK;
}

/* Each axis becomes two axes: the repeats, with a source step of 0, and the data. */
KERNEL(kernel_tile)
{
    struct rearrangement r = rearrangement_of(args);
    const int rank = r.x->shape.rank;
    for (int i = 0; i < rank; i++) {
        const size_t extent = (size_t)r.x->shape.dims[i];
        r.dims[2 * i] = (struct copy_dim){(size_t)r.out->shape.dims[i] / extent,
                                          r.to[i] * (ptrdiff_t)extent, 0};
        r.dims[2 * i + 1] = (struct copy_dim){extent, r.to[i], r.from[i]};
    }
    copy_strided(r.out->data, r.x->data, r.item, r.dims, 2 * rank);
    return STATUS_OK;
}

/* In each row, keeps the columns from `split` on (upper) or before `split`, and sets all other
 * columns to 0. */
KERNEL(kernel_trilu)
{
    const struct tensor *x = args->in[0];
    const struct tensor *diagonal = kernel_input(args, 1);
    struct tensor *out = args->out[0];
    bool upper = node_int(args->node, "upper", 1) != 0;
    int rank = x->shape.rank;
    int64_t rows = x->shape.dims[rank - 2], columns = x->shape.dims[rank - 1];
    int64_t k = diagonal ? tensor_int(diagonal, 0) : 0;
    k = k < -rows ? -rows : k > columns ? columns : k;
    size_t item = dtype_size(x->dtype);
    size_t matrices = x->bytes ? resolve_extent(&x->shape, 0, rank - 2) : 0;
    char *to = out->data;
    const char *from = x->data;
    for (size_t m = 0; m < matrices; m++) {
        for (int64_t row = 0; row < rows; row++) {
            int64_t split = row + k + (upper ? 0 : 1); /* the first column of the upper part */
            split = split < 0 ? 0 : split > columns ? columns : split;
            size_t left = (size_t)split * item, right = (size_t)(columns - split) * item;
            if (upper) {
                zero_bytes(to, left);
                copy_bytes(to + left, from + left, right);
            } else {
                copy_bytes(to, from, left);
                zero_bytes(to + left, right);
            }
            to += left + right;
            from += left + right;
        }
    }
    return STATUS_OK;
}

const struct op_info ops_shape[] = {
    OP_ROW(CONSTANT_OF_SHAPE, 9, 1, 1, "input:integer", OP_PLAIN, "value:tensor", constant_of_shape,
           &batch_mixes),
    OP_ROW(SHAPE, 1, 1, 1, NULL, OP_SHAPE_ONLY, "start:int end:int", shape, &batch_mixes),
    OP_ROW(SIZE, 1, 1, 1, NULL, OP_SHAPE_ONLY, NULL, size, &batch_mixes),
    OP_ROW_OF(RESHAPE, 5, 2, 2, "data shape:integer#", OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS,
              "allowzero:int", reshape, &batch_reshape, view),
    OP_ROW_OF(FLATTEN, 1, 1, 1, NULL, OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, "axis:int", flatten,
              &batch_reshape, view),
    OP_ROW_OF(SQUEEZE, 13, 1, 2, "data axes:integer#", OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, NULL,
              squeeze, &batch_reshape, view),
    OP_ROW_OF(UNSQUEEZE, 13, 2, 2, "data axes:integer#", OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS,
              NULL, unsqueeze, &batch_reshape, view),
    OP_ROW(TRANSPOSE, 1, 1, 1, NULL, OP_MOVES | OP_KEEPS_NUMBERS, "perm:ints", transpose,
           BATCH(transpose_axis, NULL)),
    OP_ROW(CONCAT, 1, 1, OP_VARIADIC, "input ...input:=!", OP_PLAIN, "axis:int", concat,
           BATCH(batch_of_concat, batch_same)),
    {OP_SPLIT, 13, 0, 1, 2, 1, OP_VARIADIC, "input split:index[N]", OP_MOVES | OP_KEEPS_NUMBERS,
     "axis:int num_outputs:int", infer_split, &batch_beside_first, work_elements, kernel_split},
    OP_ROW(SLICE, 10, 3, 5, "data starts:integer# ends:integer# axes:integer# steps:integer#",
           OP_MOVES | OP_KEEPS_NUMBERS, NULL, slice, BATCH(slice_axis, slice_beside)),
    OP_ROW(EXPAND, 8, 2, 2, "input shape:integer#", OP_MOVES | OP_KEEPS_NUMBERS, NULL, expand,
           BATCH(expand_axis, batch_beside_shape)),
    OP_ROW(TILE, 6, 2, 2, "input repeats:integer#", OP_PLAIN, NULL, tile,
           BATCH(tile_batch_axis, NULL)),
    OP_ROW(RANGE, 11, 3, 3, "start:number[1]# limit:=[1]# delta:=[1]#", OP_PLAIN, "stash_type:int",
           range, &batch_mixes),
    OP_ROW(EYE_LIKE, 9, 1, 1, "input[MN]", OP_PLAIN, "dtype:int k:int", eye_like, &batch_mixes),
    OP_ROW_OF(TRILU, 14, 1, 2, "input[*MN] k:index[1]", OP_PLAIN, "upper:int", like,
              BATCH(trilu_axis, NULL), trilu),
    OP_ROW_OF(DEPTH_TO_SPACE, 1, 1, 1, "input[NCHW]", OP_MOVES | OP_KEEPS_NUMBERS,
              "blocksize:int mode:string", depth_to_space, &batch_by_sample, blocks),
    OP_ROW_OF(SPACE_TO_DEPTH, 1, 1, 1, "input[NCHW]", OP_MOVES | OP_KEEPS_NUMBERS,
              "blocksize:int mode:string", space_to_depth, &batch_by_sample, blocks),
    {0},
};
