/* Operators that make, describe or rearrange tensors. Views are kernel_view() (elementwise.c). */
#include "engine/reference/kernels.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/resolve.h"
#include "engine/reference/convert.h"
#include "engine/reference/copy.h"
#include "engine/reference/elementwise.h"

/* ---- generators ---- */

KERNEL(kernel_constant)
{
    struct tensor *out = *args->out[0];
    const struct attr *value = node_attr(args->node, "value");
    if (value && value->kind == ATTR_TENSOR) {
        copy_bytes(out->data, value->t->data, out->bytes);
        return STATUS_OK;
    }
    const struct attr *attr;
    if ((attr = node_attr(args->node, "value_float")))
        memcpy(out->data, &attr->f, sizeof attr->f);
    else if ((attr = node_attr(args->node, "value_int")))
        memcpy(out->data, &attr->i, sizeof attr->i);
    else if ((attr = node_attr(args->node, "value_floats")))
        copy_bytes(out->data, attr->floats, out->bytes);
    else if ((attr = node_attr(args->node, "value_ints")))
        copy_bytes(out->data, attr->ints, out->bytes);
    else
        return error_set(err, STATUS_UNSUPPORTED, "the constant has no numeric value");
    return STATUS_OK;
}

KERNEL(kernel_constant_of_shape)
{
    struct tensor *out = *args->out[0];
    const struct attr *value = node_attr(args->node, "value");
    if (value && value->kind == ATTR_TENSOR)
        fill_row(out->data, value->t->data, dtype_size(out->dtype), shape_count(&out->shape));
    else
        zero_bytes(out->data, out->bytes);
    return STATUS_OK;
}

/* start + i * delta, each element by itself: no error adds up. */
KERNEL(kernel_range)
{
    struct tensor *out = *args->out[0];
    size_t count = shape_count(&out->shape);
    bool real = dtype_is_float(out->dtype);
    double first = tensor_number(args->in[0], 0), step = tensor_number(args->in[2], 0);
    uint64_t whole_first = (uint64_t)tensor_int(args->in[0], 0);
    uint64_t whole_step = (uint64_t)tensor_int(args->in[2], 0);
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        void *to = element_at(out->data, out->dtype, done);
        double block[BLOCK];
        int64_t whole[BLOCK];
        for (size_t i = 0; i < n; i++) {
            block[i] = first + (double)(done + i) * step;
            whole[i] = (int64_t)(whole_first + (done + i) * whole_step);
        }
        if (real)
            store_doubles(block, out->dtype, to, n);
        else
            store_integers(whole, out->dtype, to, n);
    }
    return STATUS_OK;
}

KERNEL(kernel_eye_like)
{
    struct tensor *out = *args->out[0];
    int64_t rows = out->shape.dims[0], columns = out->shape.dims[1];
    int64_t k = node_int(args->node, "k", 0);
    double one = 1;
    zero_bytes(out->data, out->bytes);
    for (int64_t i = k < 0 && k > -rows ? -k : 0; i < rows && k > -rows && k < columns - i; i++)
        store_doubles(&one, out->dtype,
                      element_at(out->data, out->dtype, (size_t)(i * columns + i + k)), 1);
    return STATUS_OK;
}

/* ---- describers: the contents of the input do not matter, and may be missing ---- */

static const struct shape *described(const struct kernel_args *args)
{
    return args->in[0] ? &args->in[0]->shape : &args->node->inputs[0]->shape;
}

KERNEL(kernel_shape)
{
    const struct shape *shape = described(args);
    struct tensor *out = *args->out[0];
    int64_t start = node_int(args->node, "start", 0), rank = shape->rank;
    start = start < -rank ? 0 : start < 0 ? start + rank : start > rank ? rank : start;
    copy_bytes(out->data, shape->dims + start, out->bytes);
    return STATUS_OK;
}

KERNEL(kernel_size)
{
    *(int64_t *)(*args->out[0])->data = (int64_t)shape_count(described(args));
    return STATUS_OK;
}

/* ---- rearrangers ---- */

KERNEL(kernel_transpose)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    size_t item = dtype_size(x->dtype), count;
    const int64_t *perm = node_ints(args->node, "perm", &count);
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    struct copy_dim dims[COPY_MAX_RANK];
    int rank = x->shape.rank;
    contiguous_steps(&x->shape, item, from);
    contiguous_steps(&out->shape, item, to);
    for (int i = 0; i < rank; i++) {
        int axis = perm ? (int)(perm[i] < 0 ? perm[i] + rank : perm[i]) : rank - 1 - i;
        dims[i] = (struct copy_dim){(size_t)out->shape.dims[i], to[i], from[axis]};
    }
    copy_strided(out->data, x->data, item, dims, rank);
    return STATUS_OK;
}

/* Rows of `bytes` from one pitch to another. */
static void copy_rows(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t bytes,
                      size_t rows)
{
    char *to = dst;
    const char *from = src;
    for (size_t i = 0; bytes && i < rows; i++)
        memcpy(to + i * dst_pitch, from + i * src_pitch, bytes);
}

static int node_axis(const struct node *node, int64_t otherwise, int rank)
{
    int64_t axis = node_int(node, "axis", otherwise);
    return (int)(axis < 0 ? axis + rank : axis);
}

KERNEL(kernel_concat)
{
    struct tensor *out = *args->out[0];
    int axis = node_axis(args->node, 1, out->shape.rank), rank = out->shape.rank;
    size_t rows = resolve_extent(&out->shape, 0, axis);
    size_t inner = resolve_extent(&out->shape, axis + 1, rank) * dtype_size(out->dtype);
    size_t pitch = inner * (size_t)out->shape.dims[axis], offset = 0;
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
    const struct tensor *x = args->in[0], *split = kernel_input(args, 1);
    int axis = node_axis(node, 0, x->shape.rank), rank = x->shape.rank;
    size_t rows = resolve_extent(&x->shape, 0, axis);
    size_t inner = resolve_extent(&x->shape, axis + 1, rank) * dtype_size(x->dtype);
    size_t pitch = inner * (size_t)x->shape.dims[axis], offset = 0;
    for (size_t i = 0; i < node->output_count && x->bytes; i++) {
        size_t bytes = inner * (size_t)resolve_split(node, split, x->shape.dims[axis], i);
        if (args->out[i])
            copy_rows((*args->out[i])->data, bytes, (const char *)x->data + offset, pitch, bytes,
                      rows);
        offset += bytes;
    }
    return STATUS_OK;
}

KERNEL(kernel_slice)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    size_t item = dtype_size(x->dtype);
    struct slice slice;
    TRY(resolve_slice(args->node, &x->shape, args->in, &slice, err));
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK], offset = 0;
    struct copy_dim dims[COPY_MAX_RANK];
    contiguous_steps(&x->shape, item, from);
    contiguous_steps(&out->shape, item, to);
    if (!out->bytes)
        return STATUS_OK;
    for (int i = 0; i < x->shape.rank; i++) {
        dims[i] =
            (struct copy_dim){(size_t)slice.out.dims[i], to[i], from[i] * (ptrdiff_t)slice.step[i]};
        offset += from[i] * (ptrdiff_t)slice.start[i];
    }
    copy_strided(out->data, (const char *)x->data + offset, item, dims, x->shape.rank);
    return STATUS_OK;
}

KERNEL(kernel_expand)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    size_t item = dtype_size(x->dtype);
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    struct copy_dim dims[COPY_MAX_RANK];
    contiguous_steps(&x->shape, item, from);
    contiguous_steps(&out->shape, item, to);
    int lead = out->shape.rank - x->shape.rank;
    for (int i = 0; i < out->shape.rank; i++) {
        bool moves = i >= lead && x->shape.dims[i - lead] != 1;
        dims[i] = (struct copy_dim){(size_t)out->shape.dims[i], to[i], moves ? from[i - lead] : 0};
    }
    copy_strided(out->data, x->data, item, dims, out->shape.rank);
    return STATUS_OK;
}

/* Each axis becomes two: the repeats, which do not move in the source, and the data. */
KERNEL(kernel_tile)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    size_t item = dtype_size(x->dtype);
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    struct copy_dim dims[COPY_MAX_RANK];
    contiguous_steps(&x->shape, item, from);
    contiguous_steps(&out->shape, item, to);
    if (!out->bytes)
        return STATUS_OK;
    for (int i = 0; i < x->shape.rank; i++) {
        size_t extent = (size_t)x->shape.dims[i];
        dims[2 * i] =
            (struct copy_dim){(size_t)out->shape.dims[i] / extent, to[i] * (ptrdiff_t)extent, 0};
        dims[2 * i + 1] = (struct copy_dim){extent, to[i], from[i]};
    }
    copy_strided(out->data, x->data, item, dims, 2 * x->shape.rank);
    return STATUS_OK;
}

/* Keeps columns first … last-1 of every row, clears the rest. */
KERNEL(kernel_trilu)
{
    const struct tensor *x = args->in[0];
    const struct tensor *diagonal = kernel_input(args, 1);
    struct tensor *out = *args->out[0];
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

/* Both block operators split two axes of one side in (outer, block) and move the blocks:
 * depth [N, (b, b, C) or (C, b, b), H, W] and space [N, C, (H, b), (W, b)]. */
KERNEL(kernel_blocks)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    bool to_space = args->node->op == OP_DEPTH_TO_SPACE;
    const struct shape *deep = to_space ? &x->shape : &out->shape;
    const struct shape *wide = to_space ? &out->shape : &x->shape;
    size_t item = dtype_size(x->dtype), block = (size_t)node_int(args->node, "blocksize", 1);
    bool depth_first = !strcmp(node_string(args->node, "mode", "DCR"), "DCR");
    ptrdiff_t d[TENSOR_MAX_RANK], w[TENSOR_MAX_RANK];
    contiguous_steps(deep, item, d);
    contiguous_steps(wide, item, w);
    size_t channels = (size_t)wide->dims[1];
    ptrdiff_t b = (ptrdiff_t)block;
    ptrdiff_t channel = depth_first ? d[1] : d[1] * b * b;
    ptrdiff_t column = depth_first ? d[1] * (ptrdiff_t)channels : d[1];
    /* batch, channel, row, row in block, column, column in block: steps in deep and in wide */
    const struct {
        size_t extent;
        ptrdiff_t deep, wide;
    } axes[] = {{(size_t)deep->dims[0], d[0], w[0]},     {channels, channel, w[1]},
                {(size_t)deep->dims[2], d[2], w[2] * b}, {block, column * b, w[2]},
                {(size_t)deep->dims[3], d[3], w[3] * b}, {block, column, w[3]}};
    /* In the order of the output, so that it is written from front to back. */
    static const int space_order[] = {0, 1, 2, 3, 4, 5};
    static const int dcr_order[] = {0, 3, 5, 1, 2, 4}, crd_order[] = {0, 1, 3, 5, 2, 4};
    const int *order = to_space ? space_order : depth_first ? dcr_order : crd_order;
    struct copy_dim dims[COPY_MAX_RANK];
    for (int i = 0; i < 6; i++) {
        int axis = order[i];
        dims[i] = (struct copy_dim){axes[axis].extent, to_space ? axes[axis].wide : axes[axis].deep,
                                    to_space ? axes[axis].deep : axes[axis].wide};
    }
    copy_strided(out->data, x->data, item, dims, 6);
    return STATUS_OK;
}
