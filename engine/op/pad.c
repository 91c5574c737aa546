/* Pad, CenterCropPad, Col2Im. */
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/gemm.h"

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

/* Col2Im: [N, C * product(block), L] to [N, C, image …]. */
struct col2im {
    int spatial; /* 1 … TENSOR_MAX_RANK - 2 */
    int64_t image[TENSOR_MAX_RANK], block[TENSOR_MAX_RANK], steps[TENSOR_MAX_RANK];
    int64_t stride[TENSOR_MAX_RANK], dilation[TENSOR_MAX_RANK], pad[TENSOR_MAX_RANK];
    struct shape out;
};

static enum status resolve_col2im(const struct node *node, struct col2im *ret, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape;
    size_t images, blocks, max = TENSOR_MAX_RANK - 2;
    int64_t pads[2 * TENSOR_MAX_RANK];
    TRY(resolve_list(node, 1, "image_shape", ret->image, max, &images, err));
    TRY(resolve_list(node, 2, "block_shape", ret->block, max, &blocks, err));
    if (data->rank != 3 || images != blocks || images == 0)
        return error_set(
            err, STATUS_SHAPE,
            "the input has shape %s, image_shape %zu dimensions and block_shape %zu: expected "
            "[N, C * block, L] and equally many dimensions",
            SHAPE_STRING(data), images, blocks);
    TRY(infer_list(node, "strides", images, 1, INT32_MAX, 1, ret->stride, err));
    TRY(infer_list(node, "dilations", images, 1, INT32_MAX, 1, ret->dilation, err));
    TRY(infer_list(node, "pads", 2 * images, 0, INT32_MAX, 0, pads, err));
    ret->spatial = (int)images;
    ret->out = (struct shape){.rank = 2 + ret->spatial, .dims = {data->dims[0]}};
    int64_t block = 1, steps = 1;
    for (int i = 0; i < ret->spatial; i++) {
        int64_t image = ret->image[i], extent = ret->block[i];
        if (image < 1 || extent < 1 || image > INT32_MAX || extent > INT32_MAX)
            return error_set(err, STATUS_SHAPE,
                             "the image's extent is %lld and the block's %lld, expected 1 to %d",
                             (long long)image, (long long)extent, INT32_MAX);
        int64_t room =
            image + pads[i] + pads[i + ret->spatial] - (ret->dilation[i] * (extent - 1) + 1);
        if (room < 0)
            return error_set(err, STATUS_SHAPE, "a block of extent %lld is larger than the image",
                             (long long)extent);
        ret->pad[i] = pads[i];
        ret->steps[i] = room / ret->stride[i] + 1;
        ret->out.dims[2 + i] = image;
        if (__builtin_mul_overflow(block, extent, &block) ||
            __builtin_mul_overflow(steps, ret->steps[i], &steps))
            return error_set(err, STATUS_SHAPE, "the block shape is too large to address");
    }
    if (data->dims[1] % block || data->dims[2] != steps)
        return error_set(err, STATUS_SHAPE,
                         "input %s does not hold a multiple of %lld rows (the block) by %lld block "
                         "positions",
                         SHAPE_STRING(data), (long long)block, (long long)steps);
    ret->out.dims[1] = data->dims[1] / block;
    return STATUS_OK;
}

static enum status infer_col2im(struct node *node, struct error *err)
{
    struct col2im col2im;
    TRY(resolve_col2im(node, &col2im, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &col2im.out, err);
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

/* Returns which of m elements is repeated at position p, which may be outside of 0 … m-1. */
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
    struct tensor *out = *args->out[0];
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
    pad_constant(x, &padding, &value, *args->out[0]);
    return STATUS_OK;
}

/* ---- Col2Im ---- */

/* Adds the row of one block element, its value at every block position, to an image channel. Sums
 * are double for floats, uint64 (wrapping) for integers. */
static void add_row(const struct col2im *g, size_t block_element, bool is_real, const void *row,
                    void *image, size_t positions)
{
    int64_t base[TENSOR_MAX_RANK], at[TENSOR_MAX_RANK] = {0};
    for (int d = g->spatial - 1; d >= 0; d--) {
        int64_t k = (int64_t)(block_element % (size_t)g->block[d]);
        block_element /= (size_t)g->block[d];
        base[d] = k * g->dilation[d] - g->pad[d];
    }
    for (size_t k = 0; k < positions; k++) {
        size_t index = 0;
        bool inside = true;
        for (int d = 0; d < g->spatial; d++) {
            int64_t p = base[d] + at[d] * g->stride[d];
            inside = inside && p >= 0 && p < g->image[d];
            index = index * (size_t)g->image[d] + (inside ? (size_t)p : 0);
        }
        if (inside && is_real)
            ((double *)image)[index] += ((const double *)row)[k];
        else if (inside)
            ((uint64_t *)image)[index] += ((const uint64_t *)row)[k];
        for (int d = g->spatial - 1; d >= 0; d--) {
            if (++at[d] < g->steps[d])
                break;
            at[d] = 0;
        }
    }
}

KERNEL(kernel_col2im)
{
    const struct shape *x = &args->in[0]->shape, *out = &(*args->out[0])->shape;
    const bool is_real = dtype_is_float(args->in[0]->dtype);
    const enum arithmetic arithmetic = is_real ? ARITHMETIC_F64 : ARITHMETIC_U64;
    const size_t number = arithmetic_size(arithmetic);
    struct col2im geometry;
    const void *src;
    void *dst;
    TRY(resolve_col2im(args->node, &geometry, err));
    TRY(operand_open(args, 0, arithmetic, &src, err));
    TRY(result_open(args, 0, arithmetic, &dst, err));
    const size_t pixels = resolve_extent(out, 2, out->rank), positions = (size_t)x->dims[2];
    size_t block = 1;
    for (int d = 0; d < geometry.spatial; d++)
        block *= (size_t)geometry.block[d];
    zero_bytes(dst, shape_count(out) * number);
    for (size_t row = 0; row < resolve_extent(x, 0, 2); row++)
        add_row(&geometry, row % block, is_real, (const char *)src + row * positions * number,
                (char *)dst + row / block * pixels * number, positions);
    return STATUS_OK;
}

const struct op_info ops_pad[] = {
    OP_ROW(PAD, 11, 2, 4, "data pads:integer# constant_value axes:integer#", OP_PLAIN,
           "mode:string", pad, BATCH(pad_axis, NULL)),
    OP_ROW(CENTER_CROP_PAD, 18, 2, 2, "input_data shape:integer#", OP_PLAIN, "axes:ints", pad,
           BATCH(pad_axis, batch_beside_shape)),
    OP_ROW(COL2IM, 18, 3, 3, "input image_shape:integer# block_shape:integer#", OP_HEAVY,
           "dilations:ints pads:ints strides:ints", col2im, &batch_by_sample),
    {0},
};
