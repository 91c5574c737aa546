/* Follows the images of a batch through a graph.
 *
 * A value is free of images, or its elements belong to them in turns: of the elements in a row,
 * `span` belong to the first image, `span` to the second and so on, and after the last image the
 * first follows again. So a Reshape changes nothing. Other operators need an axis along which the
 * images alternate; it need not be as long as the batch, as windows, heads or tokens may have been
 * merged into it. What mixes images, or is not known here, ends the proof. */
#include "engine/passes/rows.h"

#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/ops/geometry.h"
#include "engine/ops/resolve.h"

enum { FREE = -1, MIXED = -2, MOST_OPERANDS = 16 };

struct rows {
    size_t batch;
    size_t *spans; /* by value->index; 0: free */
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
    if (resize_plan_init(node, &plan, &is_known, &ignored) != STATUS_OK || !is_known ||
        plan.axis[0].resized)
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
static int rows_of_product(const struct rows *rows, const struct node *node)
{
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[1]->shape;
    const int of_a = rows_axis(rows, node, 0), of_b = rows_axis(rows, node, 1);
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
    return axis != rows_attribute_axis(node, 1) ? axis : MIXED;
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
    if (node->op >= OP_ABS && node->op <= OP_WHERE)
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
        return rows_by_sample(rows, node, 1);
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
        return rows_of_product(rows, node);
    case OP_GEMM:
        return rows_of_gemm(rows, node);
    case OP_CONCAT:
        return rows_concatenated(rows, node);
    case OP_SPLIT:
        return rows_beside(rows, node, rows_attribute_axis(node, 0));
    case OP_TOP_K:
    case OP_LP_NORMALIZATION:
        return rows_beside(rows, node, rows_attribute_axis(node, -1));
    case OP_SOFTMAX:
    case OP_LOG_SOFTMAX:
        return rows_of_softmax(rows, node);
    case OP_LAYER_NORMALIZATION:
    case OP_RMS_NORMALIZATION:
        return first < rows_attribute_axis(node, -1) ? rows_of_first(rows, node) : MIXED;
    case OP_QUANTIZE_LINEAR:
    case OP_DEQUANTIZE_LINEAR:
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

/* Notes where the outputs have the images; false: the proof ends. */
static bool rows_visit(const struct rows *rows, const struct node *node)
{
    bool is_free = node->capture_count == 0;
    for (size_t i = 0; i < node->input_count; i++)
        is_free = is_free && rows_span(rows, node, i) == 0;
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
    const size_t run = rows_run(rows, node);
    const int axis = run ? rows_follow(rows, node) : MIXED;
    for (size_t i = 0; axis >= 0 && i < node->output_count; i++) {
        const struct value *output = node->outputs[i];
        if (!output)
            continue;
        if (axis >= output->shape.rank ||
            (size_t)output->shape.dims[axis] % (run * rows->batch) != 0)
            return false;
        rows->spans[output->index] =
            run * resolve_extent(&output->shape, axis + 1, output->shape.rank);
        if (!rows->spans[output->index])
            return false;
    }
    return axis >= 0;
}

/* Whether the output has one part for each image, in their order. */
static bool rows_is_output(const struct rows *rows, const struct value *output)
{
    const size_t span = output->known ? 0 : rows->spans[output->index];
    return span == 0 ||
           (shape_is_known(&output->shape) && span * rows->batch == shape_count(&output->shape));
}

bool rows_are_separate(const struct graph *graph, int64_t batch)
{
    const struct shape *input = graph->input_count == 1 ? &graph->inputs[0]->shape : NULL;
    if (batch < 2 || !input || !shape_is_known(input) || input->rank < 1 || input->dims[0] != batch)
        return false;
    struct rows rows = {.batch = (size_t)batch,
                        .spans = alloc_array(graph->value_count, sizeof *rows.spans)};
    if (!rows.spans)
        return false;
    rows.spans[graph->inputs[0]->index] = resolve_extent(input, 1, input->rank);
    bool is_proven = true;
    for (size_t n = 0; is_proven && n < graph->node_count; n++)
        is_proven = rows_visit(&rows, graph->nodes[n]);
    for (size_t i = 0; is_proven && i < graph->output_count; i++)
        is_proven = rows_is_output(&rows, graph->outputs[i]);
    free(rows.spans);
    return is_proven;
}
