/* The layout pass: images are [N, spatial…, C] inside the engine.
 *
 * ONNX says [N, C, spatial…]. One pass over the nodes rewrites the graph so that it is again a
 * plain row-major graph, only with permuted shapes and axes:
 *
 *   - an image operator the backend runs channels-last gets its operand so, and its result is so;
 *   - elementwise operators, Concat, Split, Softmax, reductions, … follow their operands: their
 *     axes are renumbered, their constants permuted;
 *   - a Transpose of such a value is composed with the permutation, which turns ConvNeXt's and
 *     Swin's own NCHW → NHWC transposes into nothing;
 *   - everything else, and the graph's outputs, get the value transposed back, which is only a view
 *     where all spatial extents are 1 (in front of Flatten → Gemm).
 *
 * For every value there are up to two forms: as ONNX has it (plain) and channels-last. The pass
 * makes the missing one where it is needed, once. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/ops.h"
#include "engine/passes/passes.h"

struct forms {
    struct value *plain, *last;
};

struct layout_pass {
    struct graph *graph;
    const struct optimize_options *options;
    struct forms *forms; /* by value->index, as of the start of the pass */
    size_t form_count;
    struct node **nodes; /* the new order */
    size_t node_count, node_capacity;
};

/* Logical axis a of rank r stands at this place channels-last. */
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

static bool push_node(struct layout_pass *layout, struct node *node)
{
    if (layout->node_count == layout->node_capacity) {
        size_t capacity = layout->node_capacity ? layout->node_capacity * 2 : 256;
        struct node **nodes = arena_alloc(layout->graph->arena, capacity, sizeof(struct node *));
        if (!nodes)
            return false;
        if (layout->node_count)
            memcpy(nodes, layout->nodes, layout->node_count * sizeof(struct node *));
        layout->nodes = nodes;
        layout->node_capacity = capacity;
    }
    layout->nodes[layout->node_count++] = node;
    return true;
}

/* A node of the new order that reads `from` and makes a new value of `shape`. */
static struct value *make_node(struct layout_pass *layout, enum op op, struct value *from,
                               const struct shape *shape, const int64_t *perm)
{
    struct graph *graph = layout->graph;
    struct node *node = graph_add_node(graph, op, "layout", 1, 1);
    if (!node)
        return NULL;
    graph->node_count--; /* it stands in the new order only */
    struct value *value = graph_add_value(graph, "", from->dtype, shape);
    if (!value || (perm && !node_set_ints(graph, node, "perm", perm, (size_t)shape->rank)) ||
        !push_node(layout, node))
        return NULL;
    node->opset = 13;
    node->inputs[0] = from;
    node_set_output(node, 0, value);
    return value;
}

/* Do both layouts have the same bytes? (one channel, or one pixel) */
static bool same_bytes(const struct shape *plain)
{
    size_t spatial = 1;
    for (int a = 2; a < plain->rank; a++)
        spatial *= (size_t)plain->dims[a];
    return spatial == 1 || plain->dims[1] == 1;
}

static struct value *permuted_constant(struct layout_pass *layout, const struct value *constant,
                                       const struct shape *plain, struct error *err)
{
    struct tensor *tensor;
    struct shape shape = channels_last_shape(plain);
    if (tensor_create(layout->graph->budget, constant->known->dtype, &shape, &tensor, err))
        return NULL;
    size_t size = dtype_size(tensor->dtype);
    size_t n = (size_t)plain->dims[0], channels = (size_t)plain->dims[1];
    size_t spatial = n && channels ? shape_count(plain) / n / channels : 0;
    const char *from = constant->known->data;
    char *to = tensor->data;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < channels; c++)
            for (size_t s = 0; s < spatial; s++)
                memcpy(to + ((i * spatial + s) * channels + c) * size,
                       from + ((i * channels + c) * spatial + s) * size, size);
    struct value *value = graph_add_constant(layout->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

/* Forms of values made during the pass are not tracked: they are used where they are made. */
static struct forms *forms_of(struct layout_pass *layout, const struct value *value)
{
    return &layout->forms[value->index];
}

static bool is_last(struct layout_pass *layout, const struct value *value)
{
    return value && value->index < layout->form_count && forms_of(layout, value)->last == value;
}

/* The channels-last form of a value of rank 3 … 5. */
static struct value *get_last(struct layout_pass *layout, struct value *value, struct error *err)
{
    struct forms *forms = forms_of(layout, value);
    if (forms->last)
        return forms->last;
    struct shape shape = channels_last_shape(&value->shape);
    int rank = value->shape.rank;
    int64_t perm[TENSOR_MAX_RANK];
    for (int a = 0; a < rank; a++)
        perm[place_of_axis(a, rank)] = a;
    if (value->known) {
        forms->last = permuted_constant(layout, value, &value->shape, err);
        return forms->last;
    }
    /* A Transpose in the file that goes back to NCHW: read what it read. */
    const struct node *producer = value->producer;
    size_t count = 0;
    const int64_t *made =
        producer && producer->op == OP_TRANSPOSE ? node_ints(producer, "perm", &count) : NULL;
    bool inverse = made && count == (size_t)rank;
    for (int a = 0; inverse && a < rank; a++)
        inverse = made[perm[a]] == a;
    if (inverse)
        forms->last = producer->inputs[0];
    else
        forms->last = make_node(layout, same_bytes(&value->shape) ? OP_RESHAPE : OP_TRANSPOSE,
                                value, &shape, same_bytes(&value->shape) ? NULL : perm);
    if (!forms->last)
        edit_no_memory(err);
    return forms->last;
}

/* The form ONNX has. */
static struct value *get_plain(struct layout_pass *layout, struct value *value, struct error *err)
{
    if (!is_last(layout, value))
        return value;
    struct forms *forms = forms_of(layout, value);
    if (forms->plain)
        return forms->plain;
    int rank = value->shape.rank;
    struct shape plain = value->shape;
    int64_t perm[TENSOR_MAX_RANK];
    for (int a = 0; a < rank; a++) {
        perm[a] = place_of_axis(a, rank);
        plain.dims[a] = value->shape.dims[perm[a]];
    }
    bool view = same_bytes(&plain);
    forms->plain =
        make_node(layout, view ? OP_RESHAPE : OP_TRANSPOSE, value, &plain, view ? NULL : perm);
    if (!forms->plain)
        edit_no_memory(err);
    return forms->plain;
}

/* The node's result is channels-last from now on. */
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

static enum status no_memory_unless(bool ok, struct error *err)
{
    return ok ? STATUS_OK : edit_no_memory(err);
}

static enum status plain_inputs(struct layout_pass *layout, struct node *node, struct error *err)
{
    for (size_t i = 0; i < node->input_count; i++) {
        if (!node->inputs[i])
            continue;
        struct value *before = node->inputs[i];
        if (!(node->inputs[i] = get_plain(layout, before, err)))
            return err ? err->status : STATUS_NO_MEMORY;
        if (node->epilogue.residual == before)
            node->epilogue.residual = node->inputs[i];
    }
    return STATUS_OK;
}

static enum status image_op(struct layout_pass *layout, struct node *node, struct error *err)
{
    struct value *residual = node->epilogue.residual;
    if (!(node->inputs[0] = get_last(layout, node->inputs[0], err)))
        return STATUS_NO_MEMORY;
    if (residual) {
        node->epilogue.residual = get_last(layout, residual, err);
        node->inputs[node->input_count - 1] = node->epilogue.residual;
        if (!node->epilogue.residual)
            return STATUS_NO_MEMORY;
    }
    node->channels_last = true;
    mark_last(layout, node->outputs[0]);
    return STATUS_OK;
}

/* ---- operators that follow their operands ---- */

/* An operand of an elementwise operator of rank `rank`, channels-last; scalars stay. */
static struct value *broadcast_operand(struct layout_pass *layout, struct value *value, int rank,
                                       struct error *err)
{
    if (is_last(layout, value) || shape_count(&value->shape) == 1)
        return value;
    if (value->shape.rank == rank)
        return get_last(layout, value, err);
    /* [C, 1, 1] and the like: numpy aligns at the end, so put ones in front first. */
    struct shape full = {.rank = rank};
    int missing = rank - value->shape.rank;
    for (int a = 0; a < rank; a++)
        full.dims[a] = a < missing ? 1 : value->shape.dims[a - missing];
    if (value->known)
        return permuted_constant(layout, value, &full, err);
    struct value *wide = make_node(layout, OP_RESHAPE, value, &full, NULL);
    if (!wide) {
        edit_no_memory(err);
        return NULL;
    }
    struct shape last = channels_last_shape(&full);
    int64_t perm[TENSOR_MAX_RANK];
    for (int a = 0; a < rank; a++)
        perm[place_of_axis(a, rank)] = a;
    bool view = same_bytes(&full);
    struct value *result =
        make_node(layout, view ? OP_RESHAPE : OP_TRANSPOSE, wide, &last, view ? NULL : perm);
    if (!result)
        edit_no_memory(err);
    return result;
}

static bool follows_elementwise(struct layout_pass *layout, const struct node *node, unsigned flags)
{
    if (!(flags & (OP_UNARY | OP_BROADCAST)) || node->epilogue.residual)
        return false;
    int rank = node->outputs[0]->shape.rank;
    bool any = false;
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        if (!value)
            continue;
        if (is_last(layout, value)) {
            if (value->shape.rank != rank)
                return false;
            any = true;
        }
    }
    return any;
}

static enum status follow_elementwise(struct layout_pass *layout, struct node *node, unsigned flags,
                                      struct error *err)
{
    int rank = node->outputs[0]->shape.rank;
    /* further inputs of a unary operator (Clip's limits) are scalars */
    size_t operands = flags & OP_UNARY ? 1 : node->input_count;
    for (size_t i = 0; i < operands; i++)
        if (node->inputs[i] &&
            !(node->inputs[i] = broadcast_operand(layout, node->inputs[i], rank, err)))
            return STATUS_NO_MEMORY;
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && node->outputs[o]->shape.rank == rank) /* a scale is no image */
            mark_last(layout, node->outputs[o]);
    return STATUS_OK;
}

/* Renumbers attribute `axis` (default `otherwise`) for a value of rank `rank`. */
static bool renumber_axis(struct layout_pass *layout, struct node *node, int rank,
                          int64_t otherwise)
{
    int64_t axis = node_int(node, "axis", otherwise);
    if (axis < 0)
        axis += rank;
    return node_set_int(layout->graph, node, "axis", place_of_axis((int)axis, rank));
}

static enum status follow_concat(struct layout_pass *layout, struct node *node, struct error *err)
{
    int rank = node->outputs[0]->shape.rank;
    for (size_t i = 0; i < node->input_count; i++)
        if (!(node->inputs[i] = get_last(layout, node->inputs[i], err)))
            return STATUS_NO_MEMORY;
    mark_last(layout, node->outputs[0]);
    return no_memory_unless(renumber_axis(layout, node, rank, 1), err);
}

/* The operands are triples behind the result's scale and zero point. */
static enum status follow_quantised_concat(struct layout_pass *layout, struct node *node,
                                           struct error *err)
{
    const int rank = node->outputs[0]->shape.rank;
    for (size_t i = 2; i < node->input_count; i += 3)
        if (!(node->inputs[i] = get_last(layout, node->inputs[i], err)))
            return STATUS_NO_MEMORY;
    mark_last(layout, node->outputs[0]);
    return no_memory_unless(renumber_axis(layout, node, rank, 1), err);
}

static enum status follow_axis(struct layout_pass *layout, struct node *node, int64_t otherwise,
                               struct error *err)
{
    int rank = node->inputs[0]->shape.rank;
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o])
            mark_last(layout, node->outputs[o]);
    return no_memory_unless(renumber_axis(layout, node, rank, otherwise), err);
}

/* Axes of a reduction from attribute or input, made positive; false when they are not known. */
static bool read_axes(const struct node *node, size_t input, int rank, int64_t *axes,
                      size_t *ret_count)
{
    size_t count;
    const int64_t *attr = node_ints(node, "axes", &count);
    const struct value *value = node_input(node, input);
    if (!attr) {
        if (!value || !value->known)
            return false;
        count = shape_count(&value->known->shape);
    }
    if (count == 0 || count > (size_t)rank)
        return false;
    for (size_t i = 0; i < count; i++) {
        axes[i] = attr ? attr[i] : tensor_int(value->known, i);
        if (axes[i] < 0)
            axes[i] += rank;
        if (axes[i] < 0 || axes[i] >= rank)
            return false;
    }
    *ret_count = count;
    return true;
}

static struct value *int_constant(struct layout_pass *layout, const int64_t *data, size_t count,
                                  struct error *err)
{
    struct tensor *tensor;
    struct shape shape = SHAPE((int64_t)count);
    if (tensor_create(layout->graph->budget, DTYPE_I64, &shape, &tensor, err))
        return NULL;
    memcpy(tensor->data, data, count * sizeof *data);
    struct value *value = graph_add_constant(layout->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

/* Mean over the spatial axes (MnasNet, ShuffleNet, squeeze-and-excite): with keepdims the result is
 * channels-last too; without it is [N, C] in either layout. Other reductions go back to plain. */
static bool follows_reduce(struct layout_pass *layout, const struct node *node)
{
    if ((node->op != OP_REDUCE_MEAN && node->op != OP_REDUCE_SUM && node->op != OP_REDUCE_MAX) ||
        !is_last(layout, node->inputs[0]))
        return false;
    int rank = node->inputs[0]->shape.rank;
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    if (!read_axes(node, 1, rank, axes, &count))
        return false;
    bool reduced[TENSOR_MAX_RANK] = {false};
    for (size_t i = 0; i < count; i++)
        reduced[axes[i]] = true;
    if (node_int(node, "keepdims", 1))
        return true;
    /* the order of what remains must be the same: not both a channel and a spatial axis */
    bool spatial_left = false;
    for (int a = 2; a < rank; a++)
        spatial_left = spatial_left || !reduced[a];
    return reduced[1] || !spatial_left;
}

static enum status follow_reduce(struct layout_pass *layout, struct node *node, struct error *err)
{
    int rank = node->inputs[0]->shape.rank;
    int64_t axes[TENSOR_MAX_RANK];
    size_t count = 0, in_attr;
    bool attr = node_ints(node, "axes", &in_attr) != NULL;
    if (!read_axes(node, 1, rank, axes, &count))
        return error_set(err, STATUS_INTERNAL, "reduction without axes in the layout pass");
    for (size_t i = 0; i < count; i++)
        axes[i] = place_of_axis((int)axes[i], rank);
    if (node_int(node, "keepdims", 1))
        mark_last(layout, node->outputs[0]);
    if (attr)
        return no_memory_unless(node_set_ints(layout->graph, node, "axes", axes, count), err);
    return (node->inputs[1] = int_constant(layout, axes, count, err)) ? STATUS_OK
                                                                      : STATUS_NO_MEMORY;
}

/* Slice with constant axes: only the axes are renumbered. */
static bool follows_slice(struct layout_pass *layout, const struct node *node)
{
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    return node->op == OP_SLICE && node->opset >= 10 && is_last(layout, node->inputs[0]) &&
           node_input(node, 3) && read_axes(node, 3, node->inputs[0]->shape.rank, axes, &count);
}

static enum status follow_slice(struct layout_pass *layout, struct node *node, struct error *err)
{
    int rank = node->inputs[0]->shape.rank;
    int64_t axes[TENSOR_MAX_RANK];
    size_t count;
    if (!read_axes(node, 3, rank, axes, &count))
        return error_set(err, STATUS_INTERNAL, "slice without axes in the layout pass");
    for (size_t i = 0; i < count; i++)
        axes[i] = place_of_axis((int)axes[i], rank);
    mark_last(layout, node->outputs[0]);
    return (node->inputs[3] = int_constant(layout, axes, count, err)) ? STATUS_OK
                                                                      : STATUS_NO_MEMORY;
}

/* Transpose of a channels-last value: compose the permutations. The result is plain. */
static enum status compose_transpose(struct layout_pass *layout, struct node *node,
                                     bool *ret_identity, struct error *err)
{
    int rank = node->inputs[0]->shape.rank;
    int64_t perm[TENSOR_MAX_RANK];
    size_t count;
    const int64_t *own = node_ints(node, "perm", &count);
    *ret_identity = true;
    for (int a = 0; a < rank; a++) {
        int64_t logical = own ? own[a] : rank - 1 - a;
        perm[a] = place_of_axis((int)logical, rank);
        *ret_identity = *ret_identity && perm[a] == a;
    }
    return no_memory_unless(node_set_ints(layout->graph, node, "perm", perm, (size_t)rank), err);
}

/* NHWC to NCHW by the file's own Transpose of a plain value: what it reads is its result
 * channels-last already (the end of ConvNeXt's and of Swin's block). */
static bool is_way_back(struct layout_pass *layout, const struct node *node)
{
    const struct value *x = node_input(node, 0);
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    if (node->op != OP_TRANSPOSE || !perm || x->shape.rank < 4 || x->shape.rank > 5 || x->known ||
        count != (size_t)x->shape.rank || is_last(layout, x))
        return false;
    for (int a = 0; a < x->shape.rank; a++)
        if (perm[a] != place_of_axis(a, x->shape.rank))
            return false;
    return true;
}

/* A view of the same bytes from now on. */
static void become_view(struct node *node)
{
    node->op = OP_RESHAPE;
    node->input_count = 1;
    node->attr_count = 0;
    node->opset = 13;
}

/* Channel shuffle: Reshape [N, g, k, H, W], Transpose (0 2 1 3 4), Reshape [N, C, H, W] is,
 * channels last, a transpose of [N H W, g, k]. `node` is the first Reshape; the others follow in
 * the list. */
static bool is_shuffle(struct layout_pass *layout, const struct edit *edit, size_t n,
                       struct node **ret_transpose, struct node **ret_last)
{
    const struct graph *graph = layout->graph;
    const struct node *node = graph->nodes[n];
    if (node->op != OP_RESHAPE || !is_last(layout, node->inputs[0]) || n + 2 >= graph->node_count ||
        node->inputs[0]->shape.rank != 4)
        return false;
    struct node *transpose = graph->nodes[n + 1], *last = graph->nodes[n + 2];
    const struct shape *in = &node->inputs[0]->shape, *mid = &node->outputs[0]->shape;
    size_t count;
    const int64_t *perm = node_ints(transpose, "perm", &count);
    static const int64_t swap[5] = {0, 2, 1, 3, 4};
    if (transpose->op != OP_TRANSPOSE || last->op != OP_RESHAPE ||
        transpose->inputs[0] != node->outputs[0] || last->inputs[0] != transpose->outputs[0] ||
        !edit_single_reader(edit, node->outputs[0]) ||
        !edit_single_reader(edit, transpose->outputs[0]) || mid->rank != 5 || !perm || count != 5 ||
        memcmp(perm, swap, sizeof swap) != 0)
        return false;
    const struct shape *out = &last->outputs[0]->shape; /* plain: [N, C, H, W] */
    *ret_transpose = transpose;
    *ret_last = last;
    return mid->dims[0] == in->dims[0] && mid->dims[1] * mid->dims[2] == in->dims[3] &&
           mid->dims[3] == in->dims[1] && mid->dims[4] == in->dims[2] && out->rank == 4 &&
           out->dims[0] == in->dims[0] && out->dims[1] == in->dims[3] &&
           out->dims[2] == in->dims[1] && out->dims[3] == in->dims[2];
}

static enum status rewrite_shuffle(struct layout_pass *layout, struct node *node,
                                   struct node *transpose, struct node *last, struct error *err)
{
    const struct shape in = node->inputs[0]->shape;
    int64_t groups = node->outputs[0]->shape.dims[1], each = node->outputs[0]->shape.dims[2];
    static const int64_t swap[3] = {0, 2, 1};
    node->outputs[0]->shape = SHAPE(in.dims[0] * in.dims[1] * in.dims[2], groups, each);
    transpose->outputs[0]->shape = SHAPE(in.dims[0] * in.dims[1] * in.dims[2], each, groups);
    if (!node_set_ints(layout->graph, transpose, "perm", swap, 3) || !push_node(layout, node) ||
        !push_node(layout, transpose) || !push_node(layout, last))
        return edit_no_memory(err);
    mark_last(layout, last->outputs[0]);
    return STATUS_OK;
}

/* Scales and zero points of one number make these elementwise too. */
static unsigned quantised_flags(const struct node *node)
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
    case OP_QLINEAR_SIGMOID:
    case OP_QLINEAR_LEAKY_RELU:
        break;
    default:
        return 0;
    }
    for (size_t i = 1; i < node->input_count; i++)
        if (node->inputs[i] && (!of_two || i != 3) && shape_count(&node->inputs[i]->shape) != 1)
            return 0;
    return of_two ? OP_BROADCAST : OP_UNARY;
}

/* A Resize that stretches the image alone; told apart by the shapes as ONNX has them. */
static bool keeps_channels(struct layout_pass *layout, const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (node->op != OP_RESIZE && node->op != OP_UPSAMPLE)
        return true;
    return x && y && x->shape.rank == 4 && x->shape.dims[0] == y->shape.dims[0] &&
           x->shape.dims[is_last(layout, x) ? 3 : 1] == y->shape.dims[1];
}

static enum status follow(struct layout_pass *layout, struct node *node, bool *ret_identity,
                          struct error *err)
{
    const struct op_info *info = op_find(node->op, node->opset);
    unsigned flags = info ? info->flags : 0;
    if (keeps_channels(layout, node) && layout->options->takes_channels_last(node))
        return image_op(layout, node, err);
    if (is_way_back(layout, node)) {
        mark_last(layout, node->outputs[0]);
        become_view(node);
        return STATUS_OK;
    }
    if (!has_last_input(layout, node))
        return STATUS_OK;
    if (node->op == OP_SCALE_SHIFT && is_last(layout, node->inputs[0])) {
        node->channels_last = true;
        mark_last(layout, node->outputs[0]);
        return STATUS_OK;
    }
    flags |= quantised_flags(node);
    if (follows_elementwise(layout, node, flags))
        return follow_elementwise(layout, node, flags, err);
    if (node->op == OP_CONCAT)
        return follow_concat(layout, node, err);
    if (node->op == OP_QLINEAR_CONCAT)
        return follow_quantised_concat(layout, node, err);
    if (node->op == OP_SPLIT && is_last(layout, node->inputs[0]))
        return follow_axis(layout, node, 0, err);
    if ((node->op == OP_SOFTMAX || node->op == OP_LOG_SOFTMAX) && node->opset >= 13 &&
        is_last(layout, node->inputs[0]))
        return follow_axis(layout, node, -1, err);
    if (follows_reduce(layout, node))
        return follow_reduce(layout, node, err);
    if (follows_slice(layout, node))
        return follow_slice(layout, node, err);
    if (node->op == OP_TRANSPOSE)
        return compose_transpose(layout, node, ret_identity, err);
    return plain_inputs(layout, node, err);
}

static enum status layout_nodes(struct layout_pass *layout, const struct edit *edit,
                                struct error *err)
{
    struct graph *graph = layout->graph;
    size_t count = graph->node_count;
    for (size_t n = 0; n < count; n++) {
        struct node *node = graph->nodes[n], *transpose, *last;
        bool identity = false;
        if (is_shuffle(layout, edit, n, &transpose, &last)) {
            TRY(rewrite_shuffle(layout, node, transpose, last, err));
            n += 2;
            continue;
        }
        TRY(follow(layout, node, &identity, err));
        if (identity) /* keeps its place as a view: outputs and readers stay as they are */
            become_view(node);
        if (!push_node(layout, node))
            return edit_no_memory(err);
    }
    for (size_t i = 0; i < graph->output_count; i++)
        if (!(graph->outputs[i] = get_plain(layout, graph->outputs[i], err)))
            return STATUS_NO_MEMORY;
    graph->nodes = layout->nodes;
    graph->node_count = layout->node_count;
    graph->node_capacity = layout->node_capacity;
    return STATUS_OK;
}

enum status pass_layout(struct graph *graph, const struct optimize_options *options,
                        struct error *err)
{
    struct layout_pass layout = {.graph = graph, .options = options};
    /* Values the pass adds are used where they are made; forms are kept for the others only. */
    layout.form_count = graph->value_count;
    layout.forms = arena_alloc(graph->arena, layout.form_count, sizeof *layout.forms);
    if (!layout.forms)
        return edit_no_memory(err);
    struct edit edit;
    enum status status = edit_init(&edit, graph, err);
    if (status == STATUS_OK)
        status = layout_nodes(&layout, &edit, err);
    edit_done(&edit);
    return status == STATUS_OK ? edit_sweep(graph, err) : status;
}
