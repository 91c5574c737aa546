/* Gather and scatter operators, OneHot, NonZero, CumSum. Inference checks constant indices, so that
 * a model with an invalid one is refused at load; kernels check the contents of each run again. */
#include <string.h>

#include "engine/op/elementwise.h"
#include "engine/op/family.h"
#include "engine/op/gemm.h"

/* Checks that constant indices (input 1) lie within `axis` of input 0. */
static enum status indices_check(const struct node *node, int64_t axis, struct error *err)
{
    const struct tensor *indices = node->inputs[1]->known;
    if (!indices)
        return STATUS_OK;
    return resolve_indices(indices, node->inputs[0]->shape.dims[axis], (int)axis, err);
}

/* Appends dimensions first … last - 1 of `from`. */
static enum status append_dims(struct shape *out, const struct shape *from, int first, int last,
                               struct error *err)
{
    for (int i = first; i < last; i++) {
        if (out->rank == TENSOR_MAX_RANK)
            return error_set(err, STATUS_SHAPE,
                             "the output has a rank above %d, which is the most "
                             "that lensd handles",
                             TENSOR_MAX_RANK);
        out->dims[out->rank++] = from->dims[i];
    }
    return STATUS_OK;
}

/* ---- gather ---- */

static enum status infer_gather(struct node *node, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape, *indices = &node->inputs[1]->shape;
    int64_t axis;
    TRY(infer_attribute_axis(node, 0, &axis, err));
    TRY(indices_check(node, axis, err));
    struct shape out = {0};
    TRY(append_dims(&out, data, 0, (int)axis, err));
    TRY(append_dims(&out, indices, 0, indices->rank, err));
    TRY(append_dims(&out, data, (int)axis + 1, data->rank, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

/* Checks the indices of GatherElements and ScatterElements. The tensor of indices has the data's
 * rank, and may be larger than the data only along `axis`. */
static enum status elements_check(const struct node *node, int64_t axis, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape, *indices = &node->inputs[1]->shape;
    bool fits = data->rank == indices->rank;
    for (int i = 0; fits && i < data->rank; i++)
        fits = i == axis || indices->dims[i] <= data->dims[i];
    if (!fits)
        return error_set(err, STATUS_SHAPE,
                         "indices of shape %s do not fit data of shape %s (axis %lld)",
                         SHAPE_STRING(indices), SHAPE_STRING(data), (long long)axis);
    return indices_check(node, axis, err);
}

static enum status infer_gather_elements(struct node *node, struct error *err)
{
    int64_t axis;
    TRY(infer_attribute_axis(node, 0, &axis, err));
    TRY(elements_check(node, axis, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &node->inputs[1]->shape, err);
}

/* ---- index tuples ---- */

/* Tuples of `depth` indices into dimensions from `first` on; each addresses `slice` elements. */
struct tuples {
    const struct tensor *indices;
    const struct shape *shape;
    int first, depth;
    size_t slice;
};

static void tuples_init(struct tuples *tuples, const struct shape *data,
                        const struct tensor *indices, int first)
{
    tuples->indices = indices;
    tuples->shape = data;
    tuples->first = first;
    tuples->depth = (int)indices->shape.dims[indices->shape.rank - 1];
    tuples->slice = resolve_extent(data, first + tuples->depth, data->rank);
}

/* The offset in elements that tuple t addresses, within its batch. */
static enum status tuple_offset(const struct tuples *tuples, size_t t, size_t *ret,
                                struct error *err)
{
    size_t position = 0;
    for (int k = 0; k < tuples->depth; k++) {
        int axis = tuples->first + k;
        int64_t extent = tuples->shape->dims[axis];
        int64_t index = index_at(tuples->indices, t * (size_t)tuples->depth + (size_t)k);
        if (index < -extent || index >= extent)
            return error_set(err, STATUS_INVALID,
                             "index %lld (part %d of tuple %zu) is out of range for axis %d of "
                             "extent %lld, expected %lld to %lld",
                             (long long)index, k, t, axis, (long long)extent, (long long)-extent,
                             (long long)extent - 1);
        position = position * (size_t)extent + (size_t)(index < 0 ? index + extent : index);
    }
    *ret = position * tuples->slice;
    return STATUS_OK;
}

/* Checks constant index tuples of GatherND and ScatterND; `first` is the first dimension of the
 * data that a tuple addresses. */
static enum status tuples_check(const struct node *node, int first, struct error *err)
{
    const struct tensor *indices = node->inputs[1]->known;
    struct tuples tuples;
    size_t ignored;
    if (!indices)
        return STATUS_OK;
    tuples_init(&tuples, &node->inputs[0]->shape, indices, first);
    for (size_t t = 0; t < shape_count(&indices->shape) / (size_t)tuples.depth; t++)
        TRY(tuple_offset(&tuples, t, &ignored, err));
    return STATUS_OK;
}

static enum status infer_gather_nd(struct node *node, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape, *indices = &node->inputs[1]->shape;
    int64_t batch = node_int(node, "batch_dims", 0);
    int least = data->rank < indices->rank ? data->rank : indices->rank;
    bool fits = least >= 1 && batch >= 0 && batch < least;
    for (int i = 0; fits && i < batch; i++)
        fits = data->dims[i] == indices->dims[i];
    int64_t depth = fits ? indices->dims[indices->rank - 1] : 0;
    if (!fits || depth < 1 || depth > data->rank - batch)
        return error_set(err, STATUS_SHAPE,
                         "indices of shape %s do not address data of shape %s with %lld batch "
                         "dimensions (need a last dimension that is no longer than what is left of "
                         "the data's rank)",
                         SHAPE_STRING(indices), SHAPE_STRING(data), (long long)batch);
    TRY(tuples_check(node, (int)batch, err));
    struct shape out = {0};
    TRY(append_dims(&out, indices, 0, indices->rank - 1, err));
    TRY(append_dims(&out, data, (int)(batch + depth), data->rank, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

/* ---- scatter ---- */

/* Values of the scatters' attribute `reduction`. */
#define REDUCTIONS "none add mul max min"

static enum status infer_scatter_elements(struct node *node, struct error *err)
{
    int64_t axis;
    TRY(infer_word(node, "reduction", REDUCTIONS, err));
    TRY(infer_attribute_axis(node, 0, &axis, err));
    TRY(elements_check(node, axis, err));
    TRY(operand_has_shape(node, 2, "updates", &node->inputs[1]->shape, err));
    return infer_like(node, err);
}

static enum status infer_scatter_nd(struct node *node, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape, *indices = &node->inputs[1]->shape;
    TRY(infer_word(node, "reduction", REDUCTIONS, err));
    int64_t depth = indices->rank ? indices->dims[indices->rank - 1] : 0;
    if (data->rank < 1 || depth < 1 || depth > data->rank)
        return error_set(err, STATUS_SHAPE, "indices of shape %s do not address data of shape %s",
                         SHAPE_STRING(indices), SHAPE_STRING(data));
    struct shape updates = {0};
    TRY(append_dims(&updates, indices, 0, indices->rank - 1, err));
    TRY(append_dims(&updates, data, (int)depth, data->rank, err));
    TRY(operand_has_shape(node, 2, "updates", &updates, err));
    TRY(tuples_check(node, 0, err));
    return infer_like(node, err);
}

/* ---- one-hot, selections ---- */

static enum status infer_one_hot(struct node *node, struct error *err)
{
    const struct value *indices = node->inputs[0], *depth = node->inputs[1];
    const struct value *values = node->inputs[2];
    int64_t axis = node_int(node, "axis", -1);
    struct shape out = {.rank = indices->shape.rank + 1};
    if (out.rank > TENSOR_MAX_RANK)
        return error_set(err, STATUS_SHAPE, "the output has rank %d; lensd handles ranks up to %d",
                         out.rank, TENSOR_MAX_RANK);
    TRY(infer_axis(&axis, out.rank, err));
    if (!depth->known)
        return infer_unknown(node, 0, values->dtype);
    int64_t classes = tensor_int(depth->known, 0);
    if (classes < 1)
        return error_set(err, STATUS_SHAPE, "depth is %lld, expected at least 1",
                         (long long)classes);
    for (int i = 0, from = 0; i < out.rank; i++)
        out.dims[i] = i == axis ? classes : indices->shape.dims[from++];
    return infer_output(node, 0, values->dtype, &out, err);
}

static enum status infer_cum_sum(struct node *node, struct error *err)
{
    const struct value *axis = node->inputs[1];
    if (axis->known) {
        int64_t index = tensor_int(axis->known, 0);
        TRY(infer_axis(&index, node->inputs[0]->shape.rank, err));
    }
    return infer_like(node, err);
}

static int gather_axis(const struct node *node, const int *axes)
{
    const int axis = (int)node_axis(node, 0, node->inputs[0]->shape.rank);
    if (axes[0] == BATCH_FREE)
        return axis + axes[1];
    if (axes[1] != BATCH_FREE || axes[0] == axis)
        return BATCH_MIXES;
    return axes[0] < axis ? axes[0] : axes[0] - 1 + node->inputs[1]->shape.rank;
}

static int gather_elements_axis(const struct node *node, const int *axes)
{
    return axes[0] == axes[1] && axes[0] != node_axis(node, 0, node->inputs[0]->shape.rank) &&
                   node->inputs[0]->shape.dims[axes[0]] == node->inputs[1]->shape.dims[axes[0]]
               ? axes[0]
               : BATCH_MIXES;
}

/* The images are on a batch dimension of both operands, on an axis of the indices, or on an axis of
 * the data that the indices do not address. */
static int gather_nd_axis(const struct node *node, const int *axes)
{
    const struct shape *indices = &node->inputs[1]->shape;
    const int batch = (int)node_int(node, "batch_dims", 0);
    const int addressed = batch + (int)indices->dims[indices->rank - 1];
    if (axes[0] == BATCH_FREE)
        return batch == 0 && axes[1] < indices->rank - 1 ? axes[1] : BATCH_MIXES;
    if (axes[0] < batch)
        return axes[1] == BATCH_FREE || axes[1] == axes[0] ? axes[0] : BATCH_MIXES;
    return axes[1] == BATCH_FREE && axes[0] >= addressed ? indices->rank - 1 + axes[0] - addressed
                                                         : BATCH_MIXES;
}

static int gather_nd_beside(const struct node *node, size_t i, int axis)
{
    return i == 1 && axis < node_int(node, "batch_dims", 0) ? axis : BATCH_OTHER;
}

/* The images must be on the same axis of all operands, with equal extents, and not on the indexed
 * axis. */
static int scatter_elements_axis(const struct node *node, const int *axes)
{
    int axis = BATCH_FREE;
    for (size_t i = 0; i < 3; i++)
        axis = axes[i] != BATCH_FREE ? axes[i] : axis;
    for (size_t i = 0; i < 3; i++)
        if ((axes[i] != BATCH_FREE && axes[i] != axis) ||
            node->inputs[i]->shape.dims[axis] != node->inputs[0]->shape.dims[axis])
            return BATCH_MIXES;
    return axis != node_axis(node, 0, node->inputs[0]->shape.rank) ? axis : BATCH_MIXES;
}

static int one_hot_axis(const struct node *node, const int *axes)
{
    const int from = batch_of_first(node, axes);
    return from >= 0 && from >= node_axis(node, -1, node->outputs[0]->shape.rank) ? from + 1 : from;
}

static int cum_sum_axis(const struct node *node, const int *axes)
{
    const struct tensor *axis = node->inputs[1]->known;
    const int from = batch_of_first(node, axes);
    if (!axis || shape_count(&axis->shape) != 1)
        return BATCH_MIXES;
    const int64_t at = tensor_int(axis, 0);
    return (at < 0 ? at + node->inputs[0]->shape.rank : at) != from ? from : BATCH_MIXES;
}

/* memcpy(), but faster for elements of 4 or 8 bytes. */
static void copy_item(void *dst, const void *src, size_t bytes)
{
    if (bytes == 4)
        memcpy(dst, src, 4);
    else if (bytes == 8)
        memcpy(dst, src, 8);
    else
        memcpy(dst, src, bytes);
}

KERNEL(kernel_gather)
{
    const struct tensor *data = args->in[0], *indices = args->in[1];
    const int axis = (int)node_axis(args->node, 0, data->shape.rank);
    int64_t extent = data->shape.dims[axis];
    TRY(resolve_indices(indices, extent, axis, err));
    const struct axis_layout layout = axis_layout_of(&data->shape, axis);
    size_t count = shape_count(&indices->shape), bytes = layout.inner * dtype_size(data->dtype);
    char *to = args->out[0]->data;
    const char *from = data->data;
    for (size_t o = 0; o < layout.outer; o++) {
        for (size_t i = 0; i < count; i++) {
            int64_t index = index_at(indices, i);
            const char *row = from + (size_t)(index < 0 ? index + extent : index) * bytes;
            copy_item(to, row, bytes);
            to += bytes;
        }
        from += (size_t)extent * bytes;
    }
    return STATUS_OK;
}

/* ---- one element at a time along an axis ---- */

/* Starts an iterator over the coordinates in `shape`. Its offset is that of the coordinates, with
 * the one along `axis` set to 0, in an array of shape `other`. Returns the array's step along
 * `axis`. */
static size_t elements_start(struct strided_iterator *it, const struct shape *shape,
                             const struct shape *other, int axis)
{
    size_t step = 1, along = 0;
    memset(it, 0, sizeof *it);
    it->rank = shape->rank;
    for (int i = other->rank; i-- > 0;) {
        it->extent[i] = (size_t)shape->dims[i];
        it->step[0][i] = i == axis ? 0 : step;
        along = i == axis ? step : along;
        step *= (size_t)other->dims[i];
    }
    return along;
}

/* Returns the operator that combines updates with the data; BINARY_COUNT: updates replace the
 * data. */
static enum binary_op scatter_op(const struct node *node, enum dtype dtype)
{
    static const enum binary_op numbers[] = {BINARY_COUNT, BINARY_ADD, BINARY_MUL, BINARY_MAX,
                                             BINARY_MIN};
    static const enum binary_op flags[] = {BINARY_COUNT, BINARY_OR, BINARY_AND, BINARY_OR,
                                           BINARY_AND};
    return (dtype == DTYPE_BOOL ? flags : numbers)[node_word(node, "reduction", REDUCTIONS)];
}

/* GatherElements, or with updates ScatterElements. */
KERNEL(kernel_elements)
{
    const struct tensor *data = args->in[0], *indices = args->in[1];
    const struct tensor *updates = kernel_input(args, 2);
    struct tensor *out = args->out[0];
    const int axis = (int)node_axis(args->node, 0, data->shape.rank);
    int64_t extent = data->shape.dims[axis];
    size_t count = shape_count(&indices->shape), item = dtype_size(data->dtype);
    const enum binary_op combine = scatter_op(args->node, data->dtype);
    struct strided_iterator it;
    TRY(resolve_indices(indices, extent, axis, err));
    if (updates)
        copy_bytes(out->data, data->data, data->bytes);
    size_t along = elements_start(&it, &indices->shape, &data->shape, axis);
    for (size_t i = 0; i < count; i++) {
        int64_t index = index_at(indices, i);
        size_t position = it.offset[0] + (size_t)(index < 0 ? index + extent : index) * along;
        char *to = (char *)out->data + (updates ? position : i) * item;
        const char *from = updates ? (const char *)updates->data + i * item
                                   : (const char *)data->data + position * item;
        if (combine != BINARY_COUNT)
            TRY(binary_apply(combine, data->dtype, to, true, from, true, to, 1));
        else
            copy_item(to, from, item);
        strided_next(&it, 1);
    }
    return STATUS_OK;
}

/* GatherND, or with updates ScatterND, which has no batch dimensions. */
KERNEL(kernel_tuples)
{
    const struct tensor *data = args->in[0], *indices = args->in[1];
    const struct tensor *updates = kernel_input(args, 2);
    struct tensor *out = args->out[0];
    int batch_dims = (int)node_int(args->node, "batch_dims", 0);
    struct tuples tuples;
    const enum binary_op combine = scatter_op(args->node, data->dtype);
    tuples_init(&tuples, &data->shape, indices, batch_dims);
    size_t count = resolve_extent(&indices->shape, 0, indices->shape.rank - 1);
    size_t batches = resolve_extent(&indices->shape, 0, batch_dims);
    size_t batch = resolve_extent(&data->shape, batch_dims, data->shape.rank);
    size_t bytes = tuples.slice * dtype_size(data->dtype);
    if (updates)
        copy_bytes(out->data, data->data, data->bytes);
    for (size_t t = 0; t < count; t++) {
        size_t offset = 0, item = t * tuples.slice;
        TRY(tuple_offset(&tuples, t, &offset, err));
        offset += t / (count / batches) * batch;
        if (!bytes)
            continue;
        void *to = element_at(out->data, data->dtype, updates ? offset : item);
        const void *from = updates ? element(updates->data, data->dtype, item)
                                   : element(data->data, data->dtype, offset);
        if (combine != BINARY_COUNT)
            TRY(binary_apply(combine, data->dtype, to, true, from, true, to, tuples.slice));
        else
            memcpy(to, from, bytes);
    }
    return STATUS_OK;
}

/* ---- selections ---- */

KERNEL(kernel_one_hot)
{
    const struct tensor *indices = args->in[0], *values = args->in[2];
    struct tensor *out = args->out[0];
    const int64_t axis = node_axis(args->node, -1, out->shape.rank);
    int64_t depth = out->shape.dims[axis];
    size_t item = dtype_size(values->dtype), count = shape_count(&indices->shape);
    size_t inner = resolve_extent(&out->shape, (int)axis + 1, out->shape.rank);
    const char *on = (const char *)values->data + item;
    fill_row(out->data, values->data, item, shape_count(&out->shape));
    for (size_t i = 0; i < count; i++) {
        int64_t index = tensor_int(indices, i);
        if (index < -depth || index >= depth)
            continue; /* out of range: all values of this row stay off */
        size_t row = i / inner * (size_t)depth + (size_t)(index < 0 ? index + depth : index);
        memcpy((char *)out->data + (row * inner + i % inner) * item, on, item);
    }
    return STATUS_OK;
}

KERNEL(kernel_non_zero)
{
    const struct tensor *x = args->in[0];
    size_t count = shape_count(&x->shape), found = 0;
    uint8_t *flags = kernel_scratch(args, count, 1, err);
    TRY(allocated(flags));
    convert_row(x->data, x->dtype, flags, DTYPE_BOOL, count);
    for (size_t i = 0; i < count; i++)
        found += flags[i];
    int rank = x->shape.rank ? x->shape.rank : 1; /* a scalar counts as a list of one */
    TRY(kernel_output(args, 0, DTYPE_I64, &SHAPE(rank, (int64_t)found), err));
    int64_t *to = args->out[0]->data, at[TENSOR_MAX_RANK] = {0};
    for (size_t i = 0, column = 0; i < count; i++) {
        for (int d = 0; flags[i] && d < rank; d++)
            to[(size_t)d * found + column] = at[d];
        column += flags[i];
        for (int d = x->shape.rank - 1; d >= 0; d--) {
            if (++at[d] < x->shape.dims[d])
                break;
            at[d] = 0;
        }
    }
    return STATUS_OK;
}

/* ---- CumSum ---- */

/* Sums in double, or in 64-bit integers that wrap. A row of sums is the previous row of sums plus a
 * row of x: the row at the same position, or with `exclusive` the previous row. */
KERNEL(kernel_cum_sum)
{
    const struct tensor *x = args->in[0];
    const bool is_real = dtype_is_float(x->dtype);
    const bool reverse = node_int(args->node, "reverse", 0) != 0;
    const bool exclusive = node_int(args->node, "exclusive", 0) != 0;
    int64_t axis = tensor_int(args->in[1], 0);
    const void *src;
    void *dst;
    TRY(infer_axis(&axis, x->shape.rank, err));
    TRY(operand_open(args, 0, is_real ? DTYPE_F64 : DTYPE_U64, &src, err));
    TRY(result_open(args, 0, is_real ? DTYPE_F64 : DTYPE_U64, &dst, err));
    const struct axis_layout layout = axis_layout_of(&x->shape, axis);
    const size_t extent = layout.extent, inner = layout.inner;
    for (size_t line = 0; line < layout.outer * extent; line++) {
        const size_t k = line % extent, row = (reverse ? line - k + extent - 1 - k : line) * inner;
        const size_t before = reverse ? row + inner : row - inner, from = exclusive ? before : row;
        const bool adds = k || !exclusive;
        for (size_t i = 0; i < inner; i++)
            if (is_real)
                ((double *)dst)[row + i] = (k ? ((double *)dst)[before + i] : 0) +
                                           (adds ? ((const double *)src)[from + i] : 0);
            else
                ((uint64_t *)dst)[row + i] = (k ? ((uint64_t *)dst)[before + i] : 0) +
                                             (adds ? ((const uint64_t *)src)[from + i] : 0);
    }
    return STATUS_OK;
}

const struct op_info ops_index[] = {
    OP_ROW(GATHER, 1, 2, 2, "data indices:index", OP_MOVES, "axis:int", gather,
           BATCH(gather_axis, NULL)),
    OP_ROW_OF(GATHER_ELEMENTS, 11, 2, 2, "data indices:index", OP_PLAIN, "axis:int",
              gather_elements, BATCH(gather_elements_axis, NULL), elements),
    OP_ROW_OF(GATHER_ND, 11, 2, 2, "data indices:index", OP_PLAIN, "batch_dims:int", gather_nd,
              BATCH(gather_nd_axis, gather_nd_beside), tuples),
    OP_ROW_OF(SCATTER_ELEMENTS, 11, 3, 3, "data indices:index updates:=", OP_PLAIN,
              "axis:int reduction:string", scatter_elements,
              BATCH(scatter_elements_axis, batch_same), elements),
    OP_ROW_OF(SCATTER_ND, 11, 3, 3, "data indices:index updates:=", OP_PLAIN, "reduction:string",
              scatter_nd, &batch_mixes, tuples),
    OP_ROW(ONE_HOT, 9, 3, 3, "indices:number depth:number[1] values[2]", OP_PLAIN, "axis:int",
           one_hot, BATCH(one_hot_axis, NULL)),
    OP_ROW_OF(NON_ZERO, 9, 1, 1, NULL, OP_DATA_SHAPE, NULL, unknown_i64, &batch_mixes, non_zero),
    OP_ROW(CUM_SUM, 11, 2, 2, "x:number axis:index[1]", OP_PLAIN, "exclusive:int reverse:int",
           cum_sum, BATCH(cum_sum_axis, NULL)),
    {0},
};
