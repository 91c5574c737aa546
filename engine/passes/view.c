/* Traces a value back through nodes that only move elements, to the first value of the chain. */
#include "engine/passes/view.h"
#include "engine/op/ops.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/op/resolve.h"

static void set_plain(struct access_map_group *dim, int64_t extent, int64_t stride)
{
    dim->count = extent == 1 ? 0 : 1;
    dim->parts[0] = (struct access_map_part){extent, stride};
}

void view_init(struct view *view, struct value *value)
{
    int64_t stride = 1;
    *view = (struct view){.base = value, .scale = 1, .rank = value->shape.rank};
    for (int d = view->rank - 1; d >= 0; d--) {
        set_plain(&view->dims[d], value->shape.dims[d], stride);
        stride *= value->shape.dims[d];
    }
}

bool view_group(const struct view *view, int first, int last, struct access_map_group *ret)
{
    struct access_map_group group = {0};
    for (int d = first; d < last; d++) {
        const struct access_map_group *dim = &view->dims[d];
        for (int p = 0; p < dim->count; p++) {
            if (group.count == ACCESS_MAP_PARTS) {
                access_map_join(&group);
                if (group.count == ACCESS_MAP_PARTS)
                    return false;
            }
            group.parts[group.count++] = dim->parts[p];
        }
    }
    access_map_join(&group);
    *ret = group;
    return true;
}

bool view_is_plain(const struct view *view)
{
    struct access_map_group all;
    int64_t stride;
    return !view->offset && view->scale == 1 && view_group(view, 0, view->rank, &all) &&
           access_map_is_even(&all, &stride) && stride <= 1 &&
           access_map_extent(&all) == (int64_t)shape_count(&view->base->shape);
}

bool view_take_front(struct access_map_group *rest, int64_t extent, struct access_map_group *ret)
{
    *ret = (struct access_map_group){0};
    while (extent > 1) {
        if (!rest->count || ret->count == ACCESS_MAP_PARTS)
            return false;
        struct access_map_part *part = &rest->parts[0];
        if (extent % part->extent == 0) {
            extent /= part->extent;
            ret->parts[ret->count++] = *part;
            rest->count--;
            memmove(rest->parts, rest->parts + 1, (size_t)rest->count * sizeof *rest->parts);
            continue;
        }
        if (part->extent % extent)
            return false;
        const int64_t inner = part->extent / extent;
        ret->parts[ret->count++] = (struct access_map_part){extent, part->stride * inner};
        part->extent = inner;
        extent = 1;
    }
    return true;
}

static bool view_reshape(struct view *view, const struct shape *shape)
{
    struct access_map_group rest;
    if (!view_group(view, 0, view->rank, &rest))
        return false;
    view->rank = shape->rank;
    for (int d = 0; d < shape->rank; d++)
        if (!view_take_front(&rest, shape->dims[d], &view->dims[d]))
            return false;
    return !rest.count;
}

static void view_transpose(struct view *view, const int64_t *perm)
{
    struct access_map_group dims[TENSOR_MAX_RANK];
    memcpy(dims, view->dims, sizeof dims);
    for (int d = 0; d < view->rank; d++)
        view->dims[d] = dims[perm ? perm[d] : view->rank - 1 - d];
}

bool view_expand(struct view *view, const struct shape *shape)
{
    const int missing = shape->rank - view->rank;
    if (missing < 0)
        return false;
    memmove(view->dims + missing, view->dims, (size_t)view->rank * sizeof *view->dims);
    for (int d = 0; d < missing; d++)
        view->dims[d].count = 0;
    view->rank = shape->rank;
    for (int d = 0; d < shape->rank; d++) {
        const int64_t extent = access_map_extent(&view->dims[d]);
        if (extent == 1)
            set_plain(&view->dims[d], shape->dims[d], 0);
        else if (extent != shape->dims[d])
            return false;
    }
    return true;
}

/* Selects `count` indexes of dimension d from `start` on, `step` apart. */
static bool cut(struct view *view, int d, int64_t start, int64_t step, int64_t count)
{
    struct access_map_group *dim = &view->dims[d];
    access_map_join(dim);
    while (dim->count > 1) {
        struct access_map_part *outer = &dim->parts[0];
        const int64_t inner = access_map_extent(dim) / outer->extent;
        if (step == 1 && start % inner == 0 && count % inner == 0) {
            view->offset += start / inner * outer->stride;
            outer->extent = count / inner;
            access_map_join(dim);
            return true;
        }
        if (start / inner != (start + (count - 1) * step) / inner)
            return false;
        view->offset += start / inner * outer->stride;
        start %= inner;
        dim->count--;
        memmove(dim->parts, dim->parts + 1, (size_t)dim->count * sizeof *dim->parts);
    }
    if (dim->count) {
        view->offset += start * dim->parts[0].stride;
        set_plain(dim, count, dim->parts[0].stride * step);
    }
    return true;
}

static bool through_slice(struct view *view, const struct node *node)
{
    struct slice slice;
    if (!resolve_is_known(node) || resolve_slice(node, &slice, NULL) != STATUS_OK)
        return false;
    for (int d = 0; d < slice.out.rank; d++)
        if (slice.step[d] < 1 || slice.out.dims[d] < 1 ||
            !cut(view, d, slice.start[d], slice.step[d], slice.out.dims[d]))
            return false;
    return true;
}

static bool through_split(struct view *view, const struct node *node, const struct value *output)
{
    const struct value *split = node_input(node, 1);
    int64_t axis = node_axis(node, 0, view->rank), start = 0;
    if (split && !split->known)
        return false;
    for (size_t o = 0; o < node->output_count; o++) {
        if (node->outputs[o] == output)
            return cut(view, (int)axis, start, 1, output->shape.dims[axis]);
        start += resolve_split(node, axis, o);
    }
    return false;
}

/* Selects one index of an axis. The axis disappears, or has extent 1 if the index is a list. */
static bool through_gather(struct view *view, const struct node *node)
{
    const struct value *index = node->inputs[1];
    if (!index->known || index->shape.rank > 1 || shape_count(&index->shape) != 1)
        return false;
    int64_t axis = node_axis(node, 0, view->rank), i = tensor_int(index->known, 0);
    i += i < 0 ? node->inputs[0]->shape.dims[axis] : 0;
    if (i < 0 || i >= node->inputs[0]->shape.dims[axis] || !cut(view, (int)axis, i, 1, 1))
        return false;
    if (index->shape.rank == 1)
        return true;
    memmove(view->dims + axis, view->dims + axis + 1,
            (size_t)(view->rank - 1 - axis) * sizeof *view->dims);
    view->rank--;
    return true;
}

static bool through_blocks(struct view *view, const struct node *node, const struct shape *y)
{
    struct shape apart;
    const int64_t *perm = resolve_blocks(node, &apart);
    if (!view_reshape(view, &apart))
        return false;
    view_transpose(view, perm);
    return view_reshape(view, y);
}

static bool through_scale(struct view *view, const struct node *node, const struct value *x)
{
    float factor;
    const bool first = node->inputs[0] == x;
    if (node->epilogue.activation || node->epilogue.residual ||
        !edit_scalar(node->inputs[first ? 1 : 0], &factor) ||
        !shape_equal(&x->shape, &node->outputs[0]->shape) || (node->op == OP_DIV && !first))
        return false;
    view->scale *= node->op == OP_DIV ? 1 / factor : factor;
    return true;
}

/* Returns the operand whose elements the node passes on, or NULL. */
static struct value *passes_on(const struct node *node, bool scaled)
{
    if (op_has(node->op, OP_MOVES))
        return node->inputs[0];
    if (scaled && (node->op == OP_MUL || node->op == OP_DIV))
        return node->inputs[node->inputs[0]->known ? 1 : 0];
    return NULL;
}

bool view_through(struct view *view, const struct node *node, const struct value *output,
                  bool scaled)
{
    size_t count;
    switch (node->op) {
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
        return view_reshape(view, &output->shape);
    case OP_IDENTITY:
        return true;
    case OP_TRANSPOSE:
        view_transpose(view, node_ints(node, "perm", &count));
        return true;
    case OP_SPLIT:
        return through_split(view, node, output);
    case OP_SLICE:
        return through_slice(view, node);
    case OP_GATHER:
        return through_gather(view, node);
    case OP_EXPAND:
        return view_expand(view, &output->shape);
    case OP_DEPTH_TO_SPACE:
    case OP_SPACE_TO_DEPTH:
        return through_blocks(view, node, &output->shape);
    case OP_MUL:
    case OP_DIV:
        return scaled && through_scale(view, node, passes_on(node, true));
    default:
        return false;
    }
}

void view_of(struct value *value, bool scaled, struct view *ret)
{
    enum { LONGEST = 32 };
    struct value *chain[LONGEST]; /* from the value upwards */
    int length = 0;
    for (struct value *v = value; v && length < LONGEST;) {
        chain[length++] = v;
        v = v->producer && v->shape.rank >= 0 ? passes_on(v->producer, scaled) : NULL;
        if (v && (v->dtype != value->dtype || v->shape.rank < 0 || !shape_count(&v->shape)))
            v = NULL;
    }
    /* Now apply the nodes from the start of the chain on. If a node's result is not an access map,
     * the view starts again at the node's operand, or, if that fails, too, at the node's result. */
    struct view view;
    view_init(&view, chain[length - 1]);
    for (int i = length - 1; i-- > 0;) {
        const struct node *node = chain[i]->producer;
        if (!view_through(&view, node, chain[i], scaled)) {
            view_init(&view, chain[i + 1]);
            if (!view_through(&view, node, chain[i], scaled)) {
                view_init(&view, chain[i]);
                continue;
            }
        }
        view.moves += !op_has(node->op, OP_VIEW);
    }
    *ret = view;
}
