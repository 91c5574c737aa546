/* Follows the images of a batch through a graph.
 *
 * A value is free of images, or its elements belong to them in turns: of the elements in a row,
 * `span` belong to the first image, `span` to the second and so on, and after the last image the
 * first follows again. So a Reshape changes nothing. Other operators need an axis along which the
 * images alternate; it need not be as long as the batch, as windows, heads or tokens may have been
 * merged into it. What mixes images, or is not known here, ends the proof. */
#include "engine/passes/rows.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/geometry.h"
#include "engine/ops/resolve.h"

enum { FREE = -1, MIXED = -2, MOST_OPERANDS = 16 };

struct rows {
    const struct graph *base; /* what was specialised; or NULL */
    size_t batch;
    size_t *spans;  /* by value->index; 0: free */
    uint64_t *hash; /* FNV-1a of what an image reads of free values, and of its shapes */
};

static size_t rows_span(const struct rows *rows, const struct node *node, size_t i)
{
    const struct value *value = i < node->input_count ? node->inputs[i] : NULL;
    return value && !value->known ? rows->spans[value->index] : 0;
}

/* The axis along which the images alternate; MIXED: none does, FREE. *ret_run: how many of its
 * elements in a row belong to one image. */
static int rows_axis_of(const struct rows *rows, const struct shape *shape, size_t span,
                        size_t *ret_run)
{
    for (int axis = 0; span && axis < shape->rank; axis++) {
        const size_t inner = resolve_extent(shape, axis + 1, shape->rank);
        const size_t length = (size_t)shape->dims[axis];
        *ret_run = inner ? span / inner : 0;
        if (*ret_run && span % inner == 0 && length % (*ret_run * rows->batch) == 0)
            return axis;
    }
    return span ? MIXED : FREE;
}

static int rows_axis(const struct rows *rows, const struct node *node, size_t i)
{
    size_t ignored;
    const size_t span = rows_span(rows, node, i);
    return span ? rows_axis_of(rows, &node->inputs[i]->shape, span, &ignored) : FREE;
}

static int64_t rows_attribute_axis(const struct node *node, int64_t otherwise)
{
    const int64_t axis = node_int(node, "axis", otherwise);
    return axis < 0 ? axis + node->inputs[0]->shape.rank : axis;
}

/* The axis of operand 0, where the others are free. */
static int rows_of_first(const struct rows *rows, const struct node *node)
{
    for (size_t i = 1; i < node->input_count; i++)
        if (rows_axis(rows, node, i) != FREE)
            return MIXED;
    return rows_axis(rows, node, 0);
}

static bool rows_is_elementwise(enum op op)
{
    return (op >= OP_ABS && op <= OP_WHERE) || op == OP_SILU || op == OP_MS_GELU ||
           op == OP_QLINEAR_ADD || op == OP_QLINEAR_MUL || op == OP_QLINEAR_WHERE ||
           op == OP_QLINEAR_SIGMOID || op == OP_QLINEAR_LEAKY_RELU;
}

/* Operands that broadcast: aligned at their ends, the images on one axis. */
static int rows_elementwise(const struct rows *rows, const struct node *node)
{
    const struct shape *out = &node->outputs[0]->shape;
    int axis = FREE;
    if (node_attr(node, "broadcast")) /* before opset 7 */
        return MIXED;
    for (size_t i = 0; i < node->input_count; i++) {
        const int from = rows_axis(rows, node, i);
        if (from == FREE)
            continue;
        const struct shape *in = &node->inputs[i]->shape;
        const int to = from + out->rank - in->rank;
        if (to < 0 || in->dims[from] != out->dims[to] || (axis != FREE && axis != to))
            return MIXED;
        axis = to;
    }
    return axis;
}

/* Operators that take each element of dimension 0 for itself, of the first `count` operands; the
 * others are free. */
static int rows_by_sample(const struct rows *rows, const struct node *node, size_t count)
{
    for (size_t i = 0; i < node->input_count; i++) {
        const int axis = rows_axis(rows, node, i);
        if (axis != FREE && (axis != 0 || i >= count ||
                             node->inputs[i]->shape.dims[0] != node->outputs[0]->shape.dims[0]))
            return MIXED;
    }
    return 0;
}

/* A scale next to 1 blends images though their number stays, and a region may turn them round. */
static int rows_resized(const struct rows *rows, const struct node *node)
{
    struct resize_plan plan;
    bool is_known;
    struct error ignored;
    if (resize_plan_init(node, &node->inputs[0]->shape, &plan, &is_known, &ignored) != STATUS_OK ||
        !is_known || plan.axis[0].resized)
        return MIXED;
    return rows_by_sample(rows, node, 1);
}

static int rows_transposed(const struct rows *rows, const struct node *node)
{
    const int from = rows_axis(rows, node, 0), rank = node->inputs[0]->shape.rank;
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    if (!count)
        return rank - 1 - from;
    for (int axis = 0; axis < rank && count == (size_t)rank; axis++)
        if (perm[axis] == from)
            return axis;
    return MIXED;
}

static int rows_reduced(const struct rows *rows, const struct node *node)
{
    const struct tensor *operands[MOST_OPERANDS] = {0};
    const int from = rows_of_first(rows, node);
    struct reduction reduction;
    struct error ignored;
    if (from < 0 || node->input_count > MOST_OPERANDS)
        return MIXED;
    for (size_t i = 0; i < node->input_count; i++)
        operands[i] = node->inputs[i] ? node->inputs[i]->known : NULL;
    if (node->input_count > 1 && node->inputs[1] && !operands[1])
        return MIXED;
    if (resolve_reduction(node, &node->inputs[0]->shape, operands, &reduction, &ignored) !=
            STATUS_OK ||
        reduction.axes >> from & 1)
        return MIXED;
    const unsigned before = reduction.axes & ((1u << from) - 1);
    return reduction.out.rank == node->inputs[0]->shape.rank ? from
                                                             : from - __builtin_popcount(before);
}

/* Whether Slice or Pad leaves an axis as it is. */
static bool rows_keeps_axis(const struct node *node, int axis)
{
    const struct tensor *operands[MOST_OPERANDS] = {0};
    const struct shape *in = &node->inputs[0]->shape;
    struct slice slice;
    struct padding padding;
    struct error ignored;
    if (node->input_count > MOST_OPERANDS)
        return false;
    for (size_t i = 1; i < node->input_count; i++) {
        operands[i] = node->inputs[i] ? node->inputs[i]->known : NULL;
        if (node->inputs[i] && !operands[i])
            return false;
    }
    if (node->op == OP_PAD)
        return resolve_pad(node, in, operands, &padding, &ignored) == STATUS_OK &&
               padding.begin[axis] == 0 && padding.end[axis] == 0;
    return resolve_slice(node, in, operands, &slice, &ignored) == STATUS_OK &&
           slice.start[axis] == 0 && slice.step[axis] == 1 &&
           slice.out.dims[axis] == in->dims[axis];
}

static int rows_gathered(const struct rows *rows, const struct node *node)
{
    const int data = rows_axis(rows, node, 0), indices = rows_axis(rows, node, 1);
    const int axis = (int)rows_attribute_axis(node, 0);
    if (data == FREE)
        return axis + indices;
    if (indices != FREE || data == axis)
        return MIXED;
    return data < axis ? data : data - 1 + node->inputs[1]->shape.rank;
}

/* The images are on an axis of the batch, or on the rows of a or the columns of b. */
static int rows_of_product(const struct rows *rows, const struct node *node, size_t second)
{
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[second]->shape;
    const int of_a = rows_axis(rows, node, 0), of_b = rows_axis(rows, node, second);
    const int rank = node->outputs[0]->shape.rank;
    if (a->rank < 2 || b->rank < 2 || of_a == a->rank - 1 || of_b == b->rank - 2)
        return MIXED;
    const int to_a = of_a + rank - a->rank, to_b = of_b + rank - b->rank;
    if (of_a == FREE || of_b == FREE)
        return of_a == FREE ? to_b : to_a;
    return to_a == to_b && to_a < rank - 2 && a->dims[of_a] == b->dims[of_b] ? to_a : MIXED;
}

static int rows_of_gemm(const struct rows *rows, const struct node *node)
{
    const int axis = node_int(node, "transA", 0) ? 1 : 0;
    return rows_of_first(rows, node) == axis ? 0 : MIXED;
}

/* Where one axis is read as a whole. */
static int rows_beside(const struct rows *rows, const struct node *node, int64_t axis)
{
    const int from = rows_of_first(rows, node);
    return from != axis ? from : MIXED;
}

static int rows_concatenated(const struct rows *rows, const struct node *node)
{
    int axis = FREE;
    for (size_t i = 0; i < node->input_count; i++) {
        const int own = rows_axis(rows, node, i);
        if (own != FREE && axis != FREE && own != axis)
            return MIXED;
        axis = own != FREE ? own : axis;
    }
    const int64_t joined = node_int(node, "axis", 1);
    return axis != (joined < 0 ? joined + node->outputs[0]->shape.rank : joined) ? axis : MIXED;
}

/* ArgMax: the axis that it looks along is left out unless keepdims. */
static int rows_of_greatest(const struct rows *rows, const struct node *node, int64_t axis)
{
    const int from = rows_of_first(rows, node);
    if (from < 0 || from == axis)
        return MIXED;
    return from > axis && !node_int(node, "keepdims", 1) ? from - 1 : from;
}

static int rows_summed_up(const struct rows *rows, const struct node *node)
{
    const struct tensor *axis = node->inputs[1]->known;
    const int from = rows_of_first(rows, node), rank = node->inputs[0]->shape.rank;
    if (!axis || shape_count(&axis->shape) != 1)
        return MIXED;
    const int64_t at =
        axis->dtype == DTYPE_I32 ? *(const int32_t *)axis->data : *(const int64_t *)axis->data;
    return (at < 0 ? at + rank : at) != from ? from : MIXED;
}

static int rows_tiled(const struct rows *rows, const struct node *node)
{
    const struct shape *in = &node->inputs[0]->shape, *out = &node->outputs[0]->shape;
    const int from = rows_of_first(rows, node);
    return from >= 0 && out->rank == in->rank && out->dims[from] == in->dims[from] ? from : MIXED;
}

/* The images are on the same letter of all operands that have them, and of the result. No free
 * operand has that letter. */
static int rows_of_einsum(const struct rows *rows, const struct node *node)
{
    const char *text = node_string(node, "equation", "");
    char letter = 0;
    int operand = 0, at = 0, to = MIXED;
    bool is_result = false, mixes = false;
    for (int pass = 0; pass < 2; pass++, operand = at = 0, is_result = false) {
        for (const char *c = text; *c; c++) {
            if (*c == ' ')
                continue;
            if (*c == ',' || *c == '-') {
                operand++;
                at = 0;
                is_result = *c == '-';
                c += is_result;
                continue;
            }
            const bool is_images = !is_result && (size_t)operand < node->input_count &&
                                   rows_axis(rows, node, (size_t)operand) == at;
            if (*c == '.' || (pass == 0 && is_images && letter && *c != letter))
                return MIXED;
            if (pass == 0 && is_images)
                letter = *c;
            else if (pass == 1 && *c == letter && is_result)
                to = at;
            else if (pass == 1 && !is_result)
                mixes = mixes || (*c == letter) != is_images;
            at++;
        }
    }
    return mixes ? MIXED : to;
}

static int rows_of_softmax(const struct rows *rows, const struct node *node)
{
    const int from = rows_of_first(rows, node);
    if (node->opset >= 13)
        return rows_beside(rows, node, rows_attribute_axis(node, -1));
    return from < rows_attribute_axis(node, 1) ? from : MIXED; /* all axes from that one on */
}

static int rows_follow(const struct rows *rows, const struct node *node)
{
    if (rows_is_elementwise(node->op))
        return rows_elementwise(rows, node);
    if (node->op >= OP_REDUCE_SUM && node->op <= OP_REDUCE_SUM_SQUARE)
        return rows_reduced(rows, node);
    const int first = rows_axis(rows, node, 0);
    switch (node->op) {
    case OP_CONV:
    case OP_CONV_TRANSPOSE:
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
    case OP_LP_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_GLOBAL_LP_POOL:
    case OP_BATCH_NORMALIZATION:
    case OP_INSTANCE_NORMALIZATION:
    case OP_GROUP_NORMALIZATION:
    case OP_LRN:
    case OP_DEPTH_TO_SPACE:
    case OP_SPACE_TO_DEPTH:
    case OP_IMAGE_SCALER:
    case OP_ROTARY_EMBEDDING:
    case OP_QLINEAR_CONV:
    case OP_CONV_INTEGER:
    case OP_QLINEAR_AVERAGE_POOL:
    case OP_QLINEAR_GLOBAL_AVERAGE_POOL:
        return rows_by_sample(rows, node, 1);
    case OP_DEFORM_CONV: /* beside the weights */
        return rows_axis(rows, node, 1) == FREE ? rows_by_sample(rows, node, 5) : MIXED;
    case OP_RESIZE:
    case OP_UPSAMPLE:
        return rows_resized(rows, node);
    case OP_GRID_SAMPLE:
        return rows_by_sample(rows, node, 2);
    case OP_ONNX_ATTENTION: /* query, key, value */
        return rows_by_sample(rows, node, 3);
    case OP_TRANSPOSE:
        return rows_transposed(rows, node);
    case OP_GATHER:
        return rows_gathered(rows, node);
    case OP_SLICE:
    case OP_PAD:
        return first >= 0 && rows_keeps_axis(node, first) ? rows_of_first(rows, node) : MIXED;
    case OP_EXPAND: {
        const struct shape *in = &node->inputs[0]->shape, *out = &node->outputs[0]->shape;
        const int to = first + out->rank - in->rank;
        return rows_of_first(rows, node) >= 0 && in->dims[first] == out->dims[to] ? to : MIXED;
    }
    case OP_MATMUL:
    case OP_MATMUL_INTEGER:
        return rows_of_product(rows, node, 1);
    case OP_QLINEAR_MATMUL:
        return rows_of_product(rows, node, 3);
    case OP_EINSUM:
        return rows_of_einsum(rows, node);
    case OP_GEMM:
    case OP_QGEMM:
        return rows_of_gemm(rows, node);
    case OP_CONCAT:
    case OP_QLINEAR_CONCAT:
        return rows_concatenated(rows, node);
    case OP_SPLIT:
        return rows_beside(rows, node, rows_attribute_axis(node, 0));
    case OP_TOP_K:
    case OP_LP_NORMALIZATION:
        return rows_beside(rows, node, rows_attribute_axis(node, -1));
    case OP_ARG_MAX:
    case OP_ARG_MIN:
        return rows_of_greatest(rows, node, rows_attribute_axis(node, 0));
    case OP_CUM_SUM:
        return rows_summed_up(rows, node);
    case OP_TILE:
        return rows_tiled(rows, node);
    case OP_GATHER_ELEMENTS:
        return first == rows_axis(rows, node, 1) && first != rows_attribute_axis(node, 0) &&
                       node->inputs[0]->shape.dims[first] == node->inputs[1]->shape.dims[first]
                   ? first
                   : MIXED;
    case OP_SOFTMAX:
    case OP_LOG_SOFTMAX:
    case OP_HARDMAX:
        return rows_of_softmax(rows, node);
    case OP_QLINEAR_SOFTMAX:
        return first < rows_attribute_axis(node, -1) ? rows_of_first(rows, node) : MIXED;
    case OP_LAYER_NORMALIZATION:
    case OP_RMS_NORMALIZATION:
        return first < rows_attribute_axis(node, -1) ? rows_of_first(rows, node) : MIXED;
    case OP_QUANTIZE_LINEAR:
    case OP_DEQUANTIZE_LINEAR:
    case OP_MS_QUANTIZE_LINEAR:
    case OP_MS_DEQUANTIZE_LINEAR:
    case OP_LOOKUP:
        return rows_of_first(rows, node);
    default:
        return MIXED;
    }
}

/* How many elements in a row belong to one image on the operands' axes, which has to be the same;
 * 0: it is not, or one has no such axis. */
static size_t rows_run(const struct rows *rows, const struct node *node)
{
    size_t run = 0;
    for (size_t i = 0; i < node->input_count; i++) {
        size_t own = 0;
        const size_t span = rows_span(rows, node, i);
        if (span && (rows_axis_of(rows, &node->inputs[i]->shape, span, &own) == MIXED ||
                     (run && own != run)))
            return 0;
        run = span ? own : run;
    }
    return run;
}

static bool rows_shapes_are_known(struct value *const *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] && !shape_is_known(&values[i]->shape))
            return false;
    return true;
}

static bool rows_is_reshape(enum op op)
{
    return op == OP_RESHAPE || op == OP_FLATTEN || op == OP_SQUEEZE || op == OP_UNSQUEEZE ||
           op == OP_IDENTITY;
}

/* The axis of free operand i beside the images, which lie on `axis` of the result. Negative: it has
 * none, so all images read it as a whole. OTHER: it has nothing to do with the images. */
static int rows_beside_images(const struct node *node, size_t i, int axis)
{
    enum { OTHER = TENSOR_MAX_RANK };
    const int rank = node->inputs[i]->shape.rank;
    const int aligned = axis - node->outputs[0]->shape.rank + rank; /* at their ends */
    if (rows_is_elementwise(node->op))
        return aligned;
    switch (node->op) {
    case OP_MATMUL:
    case OP_MATMUL_INTEGER:
    case OP_QLINEAR_MATMUL:
        return rank < 3 ? OTHER : aligned < rank - 2 ? aligned : -1;
    case OP_GEMM:
        return i == 2 ? aligned : OTHER;
    case OP_QGEMM:
        return i == 6 ? aligned : OTHER;
    case OP_DEFORM_CONV:
        return i == 2 || i == 4 ? 0 : OTHER;
    case OP_LAYER_NORMALIZATION:
    case OP_RMS_NORMALIZATION:
        return aligned;
    case OP_CONCAT:
        return axis;
    case OP_QLINEAR_CONCAT: /* scales have no axis */
        return rank > 1 ? axis : -1;
    case OP_GRID_SAMPLE:
        return 0;
    case OP_ONNX_ATTENTION: /* a mask of two or three dimensions is for all images */
        return i < 3 || rank < 2 || rank > 3 ? 0 : OTHER;
    case OP_ROTARY_EMBEDDING: /* a cache of two dimensions is indexed by positions */
        return i == 3 || rank > 2 ? 0 : OTHER;
    case OP_QUANTIZE_LINEAR:
    case OP_DEQUANTIZE_LINEAR:
    case OP_MS_QUANTIZE_LINEAR:
    case OP_MS_DEQUANTIZE_LINEAR:
        return rank > 1 ? axis : rank == 1 && rows_attribute_axis(node, 1) == axis ? 0 : -1;
    default:
        return OTHER;
    }
}

static void rows_hash(const struct rows *rows, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t b = 0; b < bytes; b++)
        *rows->hash = (*rows->hash ^ byte[b]) * 0x100000001b3u;
}

/* Adds the shape that one image has, which lies on `axis`. */
static void rows_hash_shape(const struct rows *rows, const struct shape *shape, int axis)
{
    for (int k = 0; k < shape->rank; k++) {
        const int64_t dim = shape->dims[k] / (k == axis ? (int64_t)rows->batch : 1);
        rows_hash(rows, &dim, sizeof dim);
    }
}

static void rows_hash_shapes(const struct rows *rows, const struct node *node, int axis)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (rows_span(rows, node, i))
            rows_hash_shape(rows, &node->inputs[i]->shape, rows_axis(rows, node, i));
    for (size_t i = 0; i < node->output_count; i++)
        if (node->outputs[i])
            rows_hash_shape(rows, &node->outputs[i]->shape, axis);
}

/* Extents may have the batch in them, where the shapes tell all that they do. */
static bool rows_are_extents(const struct node *node, size_t i)
{
    switch (node->op) {
    case OP_EXPAND:
        return i == 1;
    case OP_SLICE:
        return i == 2;
    case OP_RESIZE: /* with another policy two sizes with the same result differ in scale */
        return i == 3 &&
               !strcmp(node_string(node, "keep_aspect_ratio_policy", "stretch"), "stretch");
    default:
        return false;
    }
}

/* Adds what all images read as a whole. Not a constant of the file, which is the same for every
 * size of the batch. */
static void rows_hash_whole(const struct rows *rows, const struct node *node, size_t i)
{
    const struct value *value = node->inputs[i];
    const struct graph *base = rows->base;
    const bool is_of_file = base && value->index < base->value_count &&
                            base->values[value->index]->known == value->known;
    if (value->known && !is_of_file)
        rows_hash(rows, value->known->data, value->known->bytes);
}

/* Whether all images read the same numbers of a free value along its axis `at`, `run` elements in a
 * row for each. Adds those of the first image to the hash. */
static bool rows_are_alike(const struct rows *rows, const struct value *value, int at, size_t run)
{
    const struct shape *shape = &value->shape;
    const bool is_whole = at < 0 || shape->dims[at] == 1;
    if (!value->known)
        return is_whole;
    const size_t each =
        is_whole ? value->known->bytes
                 : run * resolve_extent(shape, at + 1, shape->rank) * dtype_size(value->dtype);
    const size_t all = is_whole ? each : rows->batch * each;
    const char *data = value->known->data;
    if (!is_whole && (size_t)shape->dims[at] % (run * rows->batch) != 0)
        return false;
    for (size_t from = 0; from < value->known->bytes; from += all) {
        for (size_t image = 1; image < all / each; image++)
            if (memcmp(data + from, data + from + image * each, each) != 0)
                return false;
        rows_hash(rows, data + from, each);
    }
    return true;
}

/* The same for all free operands of a node. */
static bool rows_free_are_alike(const struct rows *rows, const struct node *node, int axis,
                                size_t run)
{
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        if (!value || rows_span(rows, node, i))
            continue;
        const int at = rows_beside_images(node, i, axis);
        if (at >= value->shape.rank && rows_are_extents(node, i))
            continue;
        if (at >= value->shape.rank)
            rows_hash_whole(rows, node, i);
        else if (!rows_are_alike(rows, value, at, run))
            return false;
    }
    return true;
}

static int64_t rows_index(const struct tensor *indices, size_t i)
{
    return indices->dtype == DTYPE_I32 ? ((const int32_t *)indices->data)[i]
                                       : ((const int64_t *)indices->data)[i];
}

/* A Gather along the axis of the images (as exporters write as_strided): every image takes from
 * itself, and from the same places. *ret: the span of the result. */
static bool rows_gather_own(const struct rows *rows, const struct node *node, size_t *ret)
{
    const struct tensor *indices = node->op == OP_GATHER ? node->inputs[1]->known : NULL;
    const struct shape *in = &node->inputs[0]->shape;
    const int axis = indices ? rows_axis(rows, node, 0) : MIXED;
    if (axis < 0 || axis != rows_attribute_axis(node, 0) || indices->shape.rank < 1 ||
        (size_t)indices->shape.dims[0] % rows->batch != 0)
        return false;
    const size_t each = shape_count(&indices->shape) / rows->batch;
    const int64_t run = in->dims[axis] / (int64_t)rows->batch;
    const size_t inner = resolve_extent(in, axis + 1, in->rank);
    for (size_t i = 0; i < each * rows->batch; i++) {
        const int64_t first = rows_index(indices, i % each);
        if (first < 0 || first >= run ||
            rows_index(indices, i) != first + (int64_t)(i / each) * run)
            return false;
    }
    *ret = each * inner;
    if (rows_span(rows, node, 0) != (size_t)run * inner || *ret == 0)
        return false;
    rows_hash(rows, indices->data, indices->bytes / rows->batch); /* those of the first image */
    rows_hash_shapes(rows, node, axis);
    return true;
}

/* Notes where the outputs have the images; false: the proof ends. */
static bool rows_visit(const struct rows *rows, const struct node *node)
{
    bool is_free = node->capture_count == 0;
    for (size_t i = 0; i < node->input_count; i++)
        is_free = is_free && rows_span(rows, node, i) == 0;
    for (size_t i = 0; is_free && i < node->input_count; i++)
        if (node->inputs[i]) /* computed in each pass, so its result is in no hash */
            rows_hash_whole(rows, node, i);
    if (is_free || node->op == OP_SHAPE || node->op == OP_SIZE)
        return true;
    if (node->capture_count || !node->outputs[0] ||
        !rows_shapes_are_known(node->inputs, node->input_count) ||
        !rows_shapes_are_known(node->outputs, node->output_count))
        return false;
    if (rows_is_reshape(node->op)) {
        rows->spans[node->outputs[0]->index] = rows_span(rows, node, 0);
        return rows_span(rows, node, 0) > 0;
    }
    if (rows->batch > 1 && rows_gather_own(rows, node, &rows->spans[node->outputs[0]->index]))
        return true;
    /* Of one image only what it reads is wanted. */
    const size_t run = rows->batch > 1 ? rows_run(rows, node) : 1;
    const int axis = rows->batch == 1 ? 0 : run ? rows_follow(rows, node) : MIXED;
    if (axis < 0 || !rows_free_are_alike(rows, node, axis, run))
        return false;
    rows_hash_shapes(rows, node, axis);
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *output = node->outputs[i];
        if (!output)
            continue;
        if (rows->batch == 1) {
            rows->spans[output->index] = 1;
            continue;
        }
        if (axis >= output->shape.rank ||
            (size_t)output->shape.dims[axis] % (run * rows->batch) != 0)
            return false;
        rows->spans[output->index] =
            run * resolve_extent(&output->shape, axis + 1, output->shape.rank);
        if (!rows->spans[output->index])
            return false;
    }
    return true;
}

/* Whether the output has one part for each image, in their order. */
static bool rows_is_output(const struct rows *rows, const struct value *output)
{
    const size_t span = output->known ? 0 : rows->spans[output->index];
    if (span == 0)
        return output->shape.rank > 0 && rows_are_alike(rows, output, 0, 1);
    return rows->batch == 1 ||
           (shape_is_known(&output->shape) && span * rows->batch == shape_count(&output->shape));
}

static bool rows_visit_all(const struct rows *rows, const struct graph *graph, const bool *follows)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct shape *shape = &graph->inputs[i]->shape;
        if (!shape_is_known(shape))
            return false;
        if (follows[i])
            rows->spans[graph->inputs[i]->index] = resolve_extent(shape, 1, shape->rank);
    }
    for (size_t n = 0; n < graph->node_count; n++)
        if (!rows_visit(rows, graph->nodes[n]))
            return false;
    for (size_t i = 0; i < graph->output_count; i++)
        if (!rows_is_output(rows, graph->outputs[i]))
            return false;
    return true;
}

bool rows_are_separate(const struct graph *graph, const struct graph *base, int64_t batch,
                       const bool *follows, uint64_t *ret_hash)
{
    struct rows rows = {.base = base,
                        .batch = (size_t)batch,
                        .spans = alloc_array(graph->value_count, sizeof *rows.spans),
                        .hash = ret_hash};
    *ret_hash = 0xcbf29ce484222325u;
    const bool is_proven = rows.spans && rows_visit_all(&rows, graph, follows);
    free(rows.spans);
    return is_proven;
}
