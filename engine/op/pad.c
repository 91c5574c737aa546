/* Pad and CenterCropPad. */
#include <string.h>

#include "engine/op/family.h"

static enum status infer_pad(struct node *node, struct error *err)
{
    const struct value *fill = node_input(node, 2);
    if (fill && shape_count(&fill->shape) != 0) { /* an empty tensor counts as omitted */
        TRY(operand_same_dtype(node, 2, "constant_value", 0, err));
        TRY(operand_single(node, 2, "constant_value", err));
    }
    struct padding padding;
    TRY(resolve_padding(node, &padding, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &padding.out, err);
}

static int pad_axis(const struct node *node, const int *axes)
{
    const int axis = batch_of_first(node, axes);
    struct padding padding;
    return axis >= 0 && resolve_is_known(node) &&
                   resolve_padding(node, &padding, NULL) == STATUS_OK && padding.begin[axis] == 0 &&
                   padding.end[axis] == 0
               ? axis
               : BATCH_MIXES;
}

/* ---- padding with a constant: fill everything, then copy the overlap ---- */

static void pad_constant(const struct tensor *x, const struct padding *padding, const void *value,
                         struct tensor *out)
{
    size_t item = dtype_size(x->dtype);
    fill_row(out->data, value, item, shape_count(&out->shape));
    if (!x->bytes)
        return;
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK], src = 0, dst = 0;
    struct copy_dim dims[COPY_MAX_RANK];
    contiguous_steps(&x->shape, item, from);
    contiguous_steps(&out->shape, item, to);
    for (int i = 0; i < x->shape.rank; i++) {
        int64_t begin = padding->begin[i], extent = out->shape.dims[i];
        int64_t first = begin > 0 ? begin : 0; /* first output element that comes from the input */
        int64_t last = begin + x->shape.dims[i] < extent ? begin + x->shape.dims[i] : extent;
        if (last <= first)
            return;
        dims[i] = (struct copy_dim){(size_t)(last - first), to[i], from[i]};
        dst += to[i] * (ptrdiff_t)first;
        src += from[i] * (ptrdiff_t)(first - begin);
    }
    copy_strided((char *)out->data + dst, (const char *)x->data + src, item, dims, x->shape.rank);
}

/* ---- padding with the data itself: a table of source positions per axis ---- */

/* Returns the position, 0 … m-1, of the element that a padded axis has at position p. */
static int64_t source(enum pad_mode mode, int64_t p, int64_t m)
{
    if (p >= 0 && p < m)
        return p;
    if (mode == PAD_EDGE)
        return p < 0 ? 0 : m - 1;
    int64_t period = mode == PAD_WRAP ? m : m > 1 ? 2 * (m - 1) : 1;
    p %= period;
    if (p < 0)
        p += period;
    return p < m ? p : period - p;
}

static void pad_table(const struct padding *padding, int axis, int64_t extent, ptrdiff_t step,
                      ptrdiff_t *ret)
{
    int64_t begin = padding->begin[axis], end = padding->end[axis];
    int64_t first = begin < 0 ? -begin : 0, kept = extent - first + (end < 0 ? end : 0);
    for (int64_t i = 0; i < padding->out.dims[axis]; i++) {
        int64_t p = i - (begin > 0 ? begin : 0);
        ret[i] = (ptrdiff_t)(first + source(padding->mode, p, kept)) * step;
    }
}

#define DEFINE_PICK(TYPE)                                                                          \
    static void pick_##TYPE(void *dst_data, const char *src, const ptrdiff_t *offsets, size_t n)   \
    {                                                                                              \
        TYPE *dst = dst_data;                                                                      \
        for (size_t i = 0; i < n; i++)                                                             \
            dst[i] = *(const TYPE *)(const void *)(src + offsets[i]);                              \
    }
EACH_ITEM_TYPE(DEFINE_PICK)

static enum status pad_repeat(const struct kernel_args *args, const struct padding *padding,
                              struct error *err)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = args->out[0];
    int rank = x->shape.rank;
    size_t item = dtype_size(x->dtype), total = 0, start[TENSOR_MAX_RANK];
    ptrdiff_t from[TENSOR_MAX_RANK];
    if (rank == 0) {
        copy_bytes(out->data, x->data, out->bytes);
        return STATUS_OK;
    }
    contiguous_steps(&x->shape, item, from);
    for (int i = 0; i < rank; i++) {
        start[i] = total;
        if (!size_add(total, (size_t)out->shape.dims[i], &total))
            return error_set(err, STATUS_NO_MEMORY, "the padding is too large");
    }
    ptrdiff_t *table = kernel_scratch(args, total, sizeof *table, err);
    TRY(allocated(table));
    for (int i = 0; i < rank; i++)
        pad_table(padding, i, x->shape.dims[i], from[i], table + start[i]);
    size_t at[TENSOR_MAX_RANK] = {0}, row = (size_t)out->shape.dims[rank - 1];
    size_t rows = shape_count(&out->shape) / row;
    char *to = out->data;
    for (size_t r = 0; r < rows; r++) {
        ptrdiff_t offset = 0;
        for (int i = 0; i < rank - 1; i++)
            offset += table[start[i] + at[i]];
        BY_ITEM_SIZE(item, pick, to, (const char *)x->data + offset, table + start[rank - 1], row);
        to += row * item;
        for (int i = rank - 2; i >= 0; i--) {
            if (++at[i] < (size_t)out->shape.dims[i])
                break;
            at[i] = 0;
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_pad)
{
    const struct tensor *x = args->in[0], *fill = kernel_input(args, 2);
    struct padding padding;
    uint64_t value = 0;
    TRY(resolve_padding(args->node, &padding, err));
    if (padding.mode != PAD_CONSTANT)
        return pad_repeat(args, &padding, err);
    if (fill && fill->bytes)
        memcpy(&value, fill->data, dtype_size(x->dtype));
    pad_constant(x, &padding, &value, args->out[0]);
    return STATUS_OK;
}

const struct op_info ops_pad[] = {
    OP_ROW(PAD, 11, 2, 4, "data pads:integer# constant_value axes:integer#", OP_PLAIN,
           "mode:string", pad, BATCH(pad_axis, NULL)),
    OP_ROW(CENTER_CROP_PAD, 18, 2, 2, "input_data shape:integer#", OP_PLAIN, "axes:ints", pad,
           BATCH(pad_axis, batch_beside_shape)),
    {0},
};
