/* Resolves attributes and integer operands of shape operators.
 *
 * Numbers come from a file or a request: every sum and product is overflow-checked, or its factors
 * are bounded first. */
#include "engine/op/resolve.h"

#include "engine/base/size.h"

/* ---- checks ---- */

enum status resolve_required(const struct node *node, const char *attribute, struct error *err)
{
    if (!node_attr(node, attribute))
        return error_set(err, STATUS_MODEL, "the required attribute '%s' is missing", attribute);
    return STATUS_OK;
}

bool resolve_is_known(const struct node *node)
{
    for (size_t i = 1; i < node->input_count; i++)
        if (node->inputs[i] && !node->inputs[i]->known)
            return false;
    return true;
}

static bool is_integer(enum dtype dtype)
{
    return 1u << dtype & DTYPES_INTEGER;
}

enum status resolve_list(const struct node *node, size_t i, const char *what, int64_t *ret,
                         size_t max, size_t *ret_count, struct error *err)
{
    const struct tensor *list = resolve_contents(node, i);
    *ret_count = 0;
    if (!list)
        return STATUS_OK;
    if (!is_integer(list->dtype) || list->shape.rank > 1)
        return error_set(err, STATUS_SHAPE,
                         "%s is a %s tensor of shape %s, expected a list of integers", what,
                         dtype_name(list->dtype), SHAPE_STRING(&list->shape));
    size_t count = shape_count(&list->shape);
    if (count > max)
        return error_set(err, STATUS_SHAPE, "%s holds %zu numbers, expected at most %zu", what,
                         count, max);
    for (size_t k = 0; list->data && k < count; k++)
        ret[k] = tensor_int(list, k);
    *ret_count = count;
    return STATUS_OK;
}

enum status resolve_axes(const int64_t *axes, size_t count, int rank, bool unique,
                         unsigned *ret_mask, struct error *err)
{
    unsigned mask = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t axis = axes[i];
        TRY(infer_axis(&axis, rank, err));
        if (unique && mask & 1u << axis)
            return error_set(err, STATUS_SHAPE, "axis %lld is given twice, expected each once",
                             (long long)axes[i]);
        mask |= 1u << axis;
    }
    *ret_mask = mask;
    return STATUS_OK;
}

enum status resolve_axis_list(const int64_t *axes, size_t count, int rank,
                              int ret[static TENSOR_MAX_RANK], int *ret_count, struct error *err)
{
    unsigned ignored;
    *ret_count = axes ? (int)count : rank;
    if (axes)
        TRY(resolve_axes(axes, count, rank, true, &ignored, err));
    for (int i = 0; i < *ret_count; i++)
        ret[i] = !axes ? i : (int)(axes[i] < 0 ? axes[i] + rank : axes[i]);
    return STATUS_OK;
}

enum status resolve_indices(const struct tensor *indices, int64_t extent, int axis,
                            struct error *err)
{
    size_t count = shape_count(&indices->shape);
    for (size_t i = 0; i < count; i++) {
        const int64_t index = index_at(indices, i);
        if (index < -extent || index >= extent)
            return error_set(err, STATUS_INVALID,
                             "index %lld (element %zu of the indices) is out of range for axis %d "
                             "of extent %lld, expected %lld to %lld",
                             (long long)index, i, axis, (long long)extent, (long long)-extent,
                             (long long)extent - 1);
    }
    return STATUS_OK;
}

size_t resolve_extent(const struct shape *shape, int first, int last)
{
    size_t count = 1;
    for (int i = first; i < last; i++)
        count *= (size_t)shape->dims[i];
    return count;
}

struct axis_layout axis_layout_of(const struct shape *shape, int64_t axis)
{
    return (struct axis_layout){.outer = resolve_extent(shape, 0, (int)axis),
                                .extent = (size_t)shape->dims[axis],
                                .inner = resolve_extent(shape, (int)axis + 1, shape->rank)};
}

bool resolve_is_row(const struct shape *shape, const struct shape *x, int axis)
{
    return shape_count(shape) == resolve_extent(x, axis, x->rank) &&
           resolve_extent(shape, 0, shape->rank - (x->rank - axis)) == 1;
}

/* ---- Split ---- */

int64_t resolve_split(const struct node *node, int64_t axis, size_t i)
{
    const struct tensor *split = resolve_contents(node, 1);
    if (split)
        return tensor_int(split, i);
    int64_t extent = node->inputs[0]->shape.dims[axis], parts = (int64_t)node->output_count;
    int64_t part = extent / parts + (extent % parts != 0);
    return i + 1 < node->output_count ? part : extent - part * (parts - 1);
}

/* ---- Slice ---- */

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Slices an axis of extent n by numpy's rules, INT64_MIN and INT64_MAX included. */
static void slice_axis(int64_t n, int64_t start, int64_t end, int64_t step, struct slice *ret,
                       int axis)
{
    if (start < 0)
        start += n;
    if (end < 0)
        end += n;
    uint64_t span = 0, stride;
    if (step > 0) {
        start = clamp(start, 0, n);
        end = clamp(end, 0, n);
        stride = (uint64_t)step;
        if (end > start)
            span = (uint64_t)(end - start);
    } else {
        start = clamp(start, n ? 0 : -1, n - 1);
        end = clamp(end, -1, n - 1);
        stride = 0 - (uint64_t)step;
        if (start > end)
            span = (uint64_t)(start - end);
    }
    int64_t count = (int64_t)(span / stride + (span % stride != 0));
    ret->start[axis] = count ? start : 0;
    ret->step[axis] = count > 1 ? step : 1;
    ret->out.dims[axis] = count;
}

enum status resolve_slice(const struct node *node, struct slice *ret, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape;
    const size_t max = TENSOR_MAX_RANK;
    int64_t starts[TENSOR_MAX_RANK], ends[TENSOR_MAX_RANK];
    int64_t axes[TENSOR_MAX_RANK], steps[TENSOR_MAX_RANK];
    size_t count, end_count, axis_count, step_count;
    unsigned seen = 0;
    TRY(resolve_list(node, 1, "starts", starts, max, &count, err));
    TRY(resolve_list(node, 2, "ends", ends, max, &end_count, err));
    TRY(resolve_list(node, 3, "axes", axes, max, &axis_count, err));
    TRY(resolve_list(node, 4, "steps", steps, max, &step_count, err));
    if (end_count != count || (axis_count && axis_count != count) ||
        (step_count && step_count != count))
        return error_set(err, STATUS_SHAPE,
                         "%zu starts, %zu ends, %zu axes and %zu steps: the counts must agree",
                         count, end_count, axis_count, step_count);
    *ret = (struct slice){.out = *data};
    for (size_t d = 0; d < max; d++)
        ret->step[d] = 1;
    for (size_t i = 0; i < count; i++) {
        int64_t axis = axis_count ? axes[i] : (int64_t)i, step = step_count ? steps[i] : 1;
        TRY(infer_axis(&axis, data->rank, err));
        if (seen & 1u << axis)
            return error_set(err, STATUS_SHAPE, "axis %lld is sliced twice", (long long)axis);
        seen |= 1u << axis;
        if (step == 0)
            return error_set(err, STATUS_SHAPE, "the step of axis %lld is 0", (long long)axis);
        slice_axis(data->dims[axis], starts[i], ends[i], step, ret, (int)axis);
    }
    return STATUS_OK;
}

/* ---- Pad, CenterCropPad ---- */

/* Sets an axis's extent after padding. Modes that repeat elements need at least one element. */
static enum status pad_axis(const struct shape *data, int axis, struct padding *padding,
                            struct error *err)
{
    int64_t n = data->dims[axis], begin = padding->begin[axis], end = padding->end[axis], out;
    if (__builtin_add_overflow(n, begin, &out) || __builtin_add_overflow(out, end, &out) || out < 0)
        return error_set(err, STATUS_SHAPE,
                         "axis %d of extent %lld cannot be padded by %lld and %lld, expected 0 or "
                         "more to be left",
                         axis, (long long)n, (long long)begin, (long long)end);
    /* The comparison with -n prevents overflow of the sum of removed elements. */
    bool cut_all = begin < -n || end < -n || n + (begin < 0 ? begin : 0) + (end < 0 ? end : 0) <= 0;
    if (cut_all && (begin > 0 || end > 0) && padding->mode != PAD_CONSTANT)
        return error_set(err, STATUS_SHAPE,
                         "axis %d has no elements left to repeat, only mode 'constant' can pad it",
                         axis);
    padding->out.dims[axis] = out;
    return STATUS_OK;
}

/* Crops or pads an axis to the extent `wanted`. As ONNX specifies, half of the difference, rounded
 * down, is cut or added at the beginning, and the rest at the end. */
static enum status center_axis(const struct shape *data, int axis, int64_t wanted,
                               struct padding *ret, struct error *err)
{
    const int64_t n = data->dims[axis];
    if (wanted < 0)
        return error_set(err, STATUS_SHAPE, "the requested extent of axis %d is %lld", axis,
                         (long long)wanted);
    ret->begin[axis] = wanted >= n ? (wanted - n) / 2 : -((n - wanted) / 2);
    ret->end[axis] = wanted - n - ret->begin[axis];
    ret->out.dims[axis] = wanted;
    return STATUS_OK;
}

enum status resolve_padding(const struct node *node, struct padding *ret, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape;
    const bool pads = node->op == OP_PAD; /* operand 1: two pads per axis, or one extent per axis */
    int64_t numbers[2 * TENSOR_MAX_RANK], list[TENSOR_MAX_RANK];
    int axes[TENSOR_MAX_RANK], axis_count;
    size_t count, given;
    const int64_t *listed = node_ints(node, "axes", &given);
    TRY(resolve_list(node, 1, pads ? "pads" : "shape", numbers, COUNT_OF(numbers), &count, err));
    if (pads && resolve_contents(node, 3)) {
        TRY(resolve_list(node, 3, "axes", list, TENSOR_MAX_RANK, &given, err));
        listed = list;
    }
    TRY(resolve_axis_list(listed, given, data->rank, axes, &axis_count, err));
    if (count != (size_t)(pads ? 2 * axis_count : axis_count))
        return error_set(err, STATUS_SHAPE, "%zu %s for %d axes, expected %s per axis", count,
                         pads ? "pads" : "extents", axis_count, pads ? "two" : "one");
    TRY(infer_word(node, "mode", PAD_MODES, err));
    *ret =
        (struct padding){.mode = (enum pad_mode)node_word(node, "mode", PAD_MODES), .out = *data};
    for (int i = 0; i < axis_count; i++) {
        const int axis = axes[i];
        if (!pads) {
            TRY(center_axis(data, axis, numbers[i], ret, err));
            continue;
        }
        ret->begin[axis] = numbers[i];
        ret->end[axis] = numbers[i + axis_count];
        TRY(pad_axis(data, axis, ret, err));
    }
    return STATUS_OK;
}

/* ---- DepthToSpace, SpaceToDepth ---- */

const int64_t *resolve_blocks(const struct node *node, struct shape *ret_apart)
{
    /* [to space, to depth][DCR, CRD] */
    static const int64_t perms[2][2][6] = {{{0, 3, 4, 1, 5, 2}, {0, 1, 4, 2, 5, 3}},
                                           {{0, 3, 5, 1, 2, 4}, {0, 1, 3, 5, 2, 4}}};
    const int64_t *x = node->inputs[0]->shape.dims, b = node_int(node, "blocksize", 1);
    const bool to_depth = node->op == OP_SPACE_TO_DEPTH;
    const bool crd = node_word(node, "mode", "DCR CRD") == 1;
    *ret_apart = to_depth ? SHAPE(x[0], x[1], x[2] / b, b, x[3] / b, b)
                 : crd    ? SHAPE(x[0], x[1] / b / b, b, b, x[2], x[3])
                          : SHAPE(x[0], b, b, x[1] / b / b, x[2], x[3]);
    return perms[to_depth][crd];
}

/* ---- reductions ---- */

enum status resolve_reduction(const struct node *node, struct reduction *ret, struct error *err)
{
    const struct shape *data = &node->inputs[0]->shape;
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    TRY(resolve_list(node, 1, "axes", axes, TENSOR_MAX_RANK, &count, err));
    TRY(resolve_axes(axes, count, data->rank, false, &ret->axes, err));
    if (!count && !node_int(node, "noop_with_empty_axes", 0))
        ret->axes = (1u << data->rank) - 1;
    bool keep = node_int(node, "keepdims", 1) != 0;
    ret->out = (struct shape){0};
    for (int i = 0; i < data->rank; i++) {
        bool reduced = ret->axes & 1u << i;
        if (!reduced || keep)
            ret->out.dims[ret->out.rank++] = reduced ? 1 : data->dims[i];
    }
    return STATUS_OK;
}
