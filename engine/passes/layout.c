/* The layout pass: images are [N, spatial…, C] inside the engine.
 *
 * ONNX has [N, C, spatial…]. One pass over the nodes rewrites the graph to a row-major graph with
 * permuted shapes and axes:
 *
 *   - an image operator that the backend runs channels-last reads and writes this layout;
 *   - elementwise operators, Concat, Split, Softmax, reductions, … follow their operands: their
 *     axes are renumbered, their constants permuted;
 *   - the file's own Transpose from NHWC to NCHW (ConvNeXt, Swin) becomes a view. For the way back,
 *     pass_strided_copies() removes the file's Transpose and the one that this pass inserts;
 *   - all other nodes, and the graph's outputs, get the value transposed back, which is only a view
 *     if all spatial extents are 1 (before Flatten → Gemm).
 *
 * Every value has up to two forms: ONNX's (plain) and channels-last. Where a reader needs the
 * missing form, the pass makes it once for all readers. */
#include "engine/op/ops.h"
#include "engine/op/resolve.h"
#include "engine/passes/passes.h"

struct forms {
    struct value *plain, *last;
};

struct layout_pass {
    struct edit *edit;
    struct forms *forms; /* by value->index, for the values from before the pass */
    size_t form_count;
    size_t at; /* new nodes are inserted before graph->nodes[at], which reads their results */
};

/* Returns the position of ONNX's axis `axis` in channels-last layout. */
static int place_of_axis(int axis, int rank)
{
    return axis == 0 ? 0 : axis == 1 ? rank - 1 : axis - 1;
}

static struct shape channels_last_shape(const struct shape *plain)
{
    struct shape shape = *plain;
    for (int a = 0; a < plain->rank; a++)
        shape.dims[place_of_axis(a, plain->rank)] = plain->dims[a];
    return shape;
}

/* Returns a value of rank 3 … 5 in the other layout, by a new Transpose or as a constant. */
static struct value *transposed(struct layout_pass *layout, struct value *value, bool to_last)
{
    struct shape shape = value->shape;
    int64_t perm[TENSOR_MAX_RANK];
    for (int a = 0; a < shape.rank; a++) {
        const int place = place_of_axis(a, shape.rank), from = to_last ? a : place;
        const int to = to_last ? place : a;
        perm[to] = from;
        shape.dims[to] = value->shape.dims[from];
    }
    struct value *result = edit_insert_value(layout->edit, layout->at++, OP_TRANSPOSE, 13, "layout",
                                             &value, 1, value->dtype, &shape);
    struct edit *edit = layout->edit;
    if (result && !node_set_ints(edit->graph, result->producer, "perm", perm, (size_t)shape.rank))
        edit_no_memory(edit);
    else if (result && value->known)
        edit->status = fold_node(result->producer, edit->graph->budget, edit->err);
    return result;
}

/* Returns the forms of a value that existed before the pass. Values that the pass makes have no
 * forms, because the pass uses them immediately. */
static struct forms *forms_of(struct layout_pass *layout, const struct value *value)
{
    return &layout->forms[value->index];
}

static bool is_last(struct layout_pass *layout, const struct value *value)
{
    return value && value->index < layout->form_count && forms_of(layout, value)->last == value;
}

/* True for the file's own Transpose from [N, spatial…, C] to [N, C, spatial…]. */
static bool is_to_plain(const struct node *node)
{
    const struct value *x = node_input(node, 0);
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    if (node->op != OP_TRANSPOSE || !perm || count != (size_t)x->shape.rank)
        return false;
    for (int a = 0; a < x->shape.rank; a++)
        if (perm[a] != place_of_axis(a, x->shape.rank))
            return false;
    return true;
}

/* Returns the channels-last form of a value of rank 3 … 5; NULL when out of memory. */
static struct value *get_last(struct layout_pass *layout, struct value *value)
{
    struct forms *forms = forms_of(layout, value);
    if (forms->last)
        return forms->last;
    if (value->producer && is_to_plain(value->producer))
        forms->last = value->producer->inputs[0]; /* the Transpose's operand is channels-last */
    else
        forms->last = transposed(layout, value, true);
    return forms->last;
}

/* Returns the value in ONNX's layout; NULL when out of memory. */
static struct value *get_plain(struct layout_pass *layout, struct value *value)
{
    if (!is_last(layout, value))
        return value;
    struct forms *forms = forms_of(layout, value);
    if (forms->plain)
        return forms->plain;
    forms->plain = transposed(layout, value, false);
    return forms->plain;
}

/* Permutes the value's shape, and records that the value is channels-last now. */
static void mark_last(struct layout_pass *layout, struct value *value)
{
    value->shape = channels_last_shape(&value->shape);
    forms_of(layout, value)->last = value;
}

static bool has_last_input(struct layout_pass *layout, const struct node *node)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (is_last(layout, node->inputs[i]))
            return true;
    return false;
}

static void plain_inputs(struct layout_pass *layout, struct node *node)
{
    for (size_t i = 0; i < node->input_count; i++) {
        struct value *before = node->inputs[i];
        if (!before)
            continue;
        node->inputs[i] = get_plain(layout, before);
        if (node->epilogue.residual == before)
            node->epilogue.residual = node->inputs[i];
    }
}

static void image_op(struct layout_pass *layout, struct node *node)
{
    struct value *residual = node->epilogue.residual;
    node->inputs[0] = get_last(layout, node->inputs[0]);
    if (residual) {
        node->epilogue.residual = get_last(layout, residual);
        node->inputs[node->input_count - 1] = node->epilogue.residual;
    }
    node->channels_last = true;
    mark_last(layout, node->outputs[0]);
}

/* ---- operators that follow their operands ---- */

/* Returns the channels-last form of an operand of an elementwise operator whose results have rank
 * `rank`. Scalars do not change. */
static struct value *broadcast_operand(struct layout_pass *layout, struct value *value, int rank)
{
    if (is_last(layout, value) || shape_count(&value->shape) == 1)
        return value;
    if (value->shape.rank == rank)
        return get_last(layout, value);
    /* A lower rank, such as [C, 1, 1]: numpy aligns shapes at their ends, so prepend ones. */
    struct shape full = {.rank = rank};
    int missing = rank - value->shape.rank;
    for (int a = 0; a < rank; a++)
        full.dims[a] = a < missing ? 1 : value->shape.dims[a - missing];
    struct value *wide = value->known
                             ? edit_constant(layout->edit, value->dtype, &full, value->known->data)
                             : edit_insert_value(layout->edit, layout->at++, OP_RESHAPE, 13,
                                                 "layout", &value, 1, value->dtype, &full);
    return wide ? transposed(layout, wide, true) : NULL;
}

static bool follow_elementwise(struct layout_pass *layout, struct node *node, unsigned flags)
{
    if (!(flags & (OP_UNARY | OP_BROADCAST)) || node->epilogue.residual)
        return false;
    int rank = node->outputs[0]->shape.rank;
    for (size_t i = 0; i < node->input_count; i++)
        if (is_last(layout, node->inputs[i]) && node->inputs[i]->shape.rank != rank)
            return false;
    /* further inputs of a unary operator (Clip's limits) are scalars */
    size_t operands = flags & OP_UNARY ? 1 : node->input_count;
    for (size_t i = 0; i < operands; i++)
        if (node->inputs[i])
            node->inputs[i] = broadcast_operand(layout, node->inputs[i], rank);
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && node->outputs[o]->shape.rank == rank) /* skip scales */
            mark_last(layout, node->outputs[o]);
    return true;
}

/* Marks the results as channels-last, and renumbers attribute `axis` (default `otherwise`). */
static void follow_axis(struct layout_pass *layout, struct node *node, int64_t otherwise)
{
    int rank = node->outputs[0] ? node->outputs[0]->shape.rank : node->inputs[0]->shape.rank;
    int64_t axis = node_axis(node, otherwise, rank);
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o])
            mark_last(layout, node->outputs[o]);
    axis = place_of_axis((int)axis, rank);
    if (!node_set_int(layout->edit->graph, node, "axis", axis))
        edit_no_memory(layout->edit);
}

/* Follows a Concat of inputs `first`, first + step …: QLinearConcat's inputs are the result's scale
 * and zero point, then triples of operand, scale and zero point. */
static void follow_concat(struct layout_pass *layout, struct node *node, size_t first, size_t step)
{
    for (size_t i = first; i < node->input_count; i += step)
        node->inputs[i] = get_last(layout, node->inputs[i]);
    follow_axis(layout, node, 1);
}

/* Sets operand i of a reduction or Slice, which are axes. */
static void set_axes(struct layout_pass *layout, struct node *node, size_t i, const int64_t *axes,
                     size_t count)
{
    node->inputs[i] = edit_constant(layout->edit, DTYPE_I64, &SHAPE((int64_t)count), axes);
}

/* Follows a reduction that can read its operand channels-last, such as a mean over the spatial
 * axes. With keepdims its result is channels-last, too. Without keepdims the remaining axes must
 * have the same order in both layouts. Other reductions read ONNX's layout. */
static bool follow_reduce(struct layout_pass *layout, struct node *node)
{
    const bool keeps_dims = node_int(node, "keepdims", 1) != 0;
    const int rank = node->inputs[0]->shape.rank;
    struct reduction reduction;
    int64_t axes[TENSOR_MAX_RANK];
    size_t count = 0;
    if ((node->op != OP_REDUCE_MEAN && node->op != OP_REDUCE_SUM && node->op != OP_REDUCE_MAX) ||
        !is_last(layout, node->inputs[0]) || !node_input(node, 1) || !resolve_is_known(node) ||
        resolve_reduction(node, &reduction, NULL) != STATUS_OK)
        return false;
    for (int a = 0; a < rank; a++) {
        const bool remains = !(reduction.axes & 1u << a);
        if (!remains)
            axes[count++] = place_of_axis(a, rank);
        else if (a > 1 && !keeps_dims && !(reduction.axes & 1u << 1))
            return false; /* C and a spatial axis remain */
    }
    if (keeps_dims)
        mark_last(layout, node->outputs[0]);
    set_axes(layout, node, 1, axes, count);
    return true;
}

/* Follows a Slice of a channels-last image with constant axes, which need only be renumbered. */
static bool follow_slice(struct layout_pass *layout, struct node *node)
{
    const int rank = node->inputs[0]->shape.rank;
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    if (node->op != OP_SLICE || !is_last(layout, node->inputs[0]) || !node_input(node, 3) ||
        !edit_integers(node, 3, axes, TENSOR_MAX_RANK, &count))
        return false;
    for (size_t k = 0; k < count; k++)
        axes[k] = place_of_axis((int)axes[k] + (axes[k] < 0 ? rank : 0), rank);
    mark_last(layout, node->outputs[0]);
    set_axes(layout, node, 3, axes, count);
    return true;
}

/* True for the file's own Transpose of a plain value from NHWC to NCHW, as at the end of ConvNeXt's
 * and of Swin's block. The Transpose's input is the channels-last form of its result. */
static bool is_way_back(struct layout_pass *layout, const struct node *node)
{
    const struct value *x = node_input(node, 0);
    return is_to_plain(node) && x->shape.rank >= 4 && x->shape.rank <= 5 && !x->known &&
           !is_last(layout, x);
}

/* Returns OP_BROADCAST or OP_UNARY for a quantized operator that is elementwise, because its scales
 * and zero points are scalars; otherwise 0. */
static unsigned quantized_flags(const struct node *node)
{
    bool of_two = false;
    switch (node->op) {
    case OP_QLINEAR_ADD:
    case OP_QLINEAR_MUL:
        of_two = true;
        break;
    case OP_QUANTIZE_LINEAR:
    case OP_DEQUANTIZE_LINEAR:
    case OP_DYNAMIC_QUANTIZE_LINEAR:
        break;
    default:
        return 0;
    }
    for (size_t i = 1; i < node->input_count; i++)
        if (node->inputs[i] && (!of_two || i != 3) && shape_count(&node->inputs[i]->shape) != 1)
            return 0;
    return of_two ? OP_BROADCAST : OP_UNARY;
}

/* True unless the node is a Resize that changes batch or channels. */
static bool keeps_channels(struct layout_pass *layout, const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (node->op != OP_RESIZE)
        return true;
    return x && y && x->shape.rank == 4 && x->shape.dims[0] == y->shape.dims[0] &&
           x->shape.dims[is_last(layout, x) ? 3 : 1] == y->shape.dims[1];
}

static void follow(struct layout_pass *layout, struct node *node)
{
    const struct op_info *info = op_find(node->op, node->opset);
    const unsigned flags = (info ? info->traits : 0) | quantized_flags(node);
    if (keeps_channels(layout, node) && edit_kernel_can(layout->edit, node, KERNEL_CHANNELS_LAST)) {
        image_op(layout, node);
        return;
    }
    if (is_way_back(layout, node)) {
        mark_last(layout, node->outputs[0]);
        (void)edit_become(layout->edit, node, OP_RESHAPE, 13, node->inputs, 1);
        return;
    }
    if (!has_last_input(layout, node))
        return;
    const bool image = is_last(layout, node->inputs[0]);
    if (node->op == OP_SCALE_SHIFT && image) {
        node->channels_last = true;
        mark_last(layout, node->outputs[0]);
    } else if (follow_elementwise(layout, node, flags)) {
        return;
    } else if (node->op == OP_CONCAT) {
        follow_concat(layout, node, 0, 1);
    } else if (node->op == OP_QLINEAR_CONCAT) {
        follow_concat(layout, node, 2, 3);
    } else if (node->op == OP_SPLIT && image) {
        follow_axis(layout, node, 0);
    } else if ((node->op == OP_SOFTMAX || node->op == OP_LOG_SOFTMAX) && node->opset >= 13 &&
               image) {
        follow_axis(layout, node, -1);
    } else if (!follow_reduce(layout, node) && !follow_slice(layout, node)) {
        plain_inputs(layout, node);
    }
}

void pass_layout(struct edit *edit)
{
    struct graph *graph = edit->graph;
    struct layout_pass layout = {
        .edit = edit,
        .form_count = graph->value_count,
        .forms = arena_alloc(graph->arena, graph->value_count, sizeof(struct forms))};
    if (!layout.forms)
        edit_no_memory(edit);
    bool ok = edit->status == STATUS_OK;
    for (; ok && layout.at < graph->node_count; layout.at++) {
        follow(&layout, graph->nodes[layout.at]);
        ok = edit->status == STATUS_OK;
    }
    for (size_t i = 0; ok && i < graph->output_count; i++) {
        struct value *plain = get_plain(&layout, graph->outputs[i]);
        ok = plain != NULL;
        graph->outputs[i] = plain ? plain : graph->outputs[i];
    }
    if (ok)
        edit_sweep(edit);
}
