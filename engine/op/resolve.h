/* Resolves attributes and integer operands of shape operators for the extents of input 0. Inference
 * functions, passes and kernels all use this file, so they cannot disagree. The file also has
 * small checks that inference functions share.
 *
 * The operands' contents are value->known of the node's inputs, which a run sets for its kernels.
 * All functions are thread-safe. Errors: STATUS_SHAPE / STATUS_MODEL, without the node's name. */
#pragma once

#include "engine/op/families.h"
#include "engine/op/operands.h"

/* Checks that the node has the attribute. STATUS_MODEL. */
enum status resolve_required(const struct node *node, const char *attribute,
                             struct error *err) MUST_USE;

/* The known contents of input i; NULL if the input is omitted or its contents are not known yet. */
static inline const struct tensor *resolve_contents(const struct node *node, size_t i)
{
    const struct value *value = node_input(node, i);
    return value ? value->known : NULL;
}

/* True if the contents of all inputs but the first are known. */
bool resolve_is_known(const struct node *node);

/* Reads the integers of input i: an integer tensor of rank <= 1 with at most `max` elements. If the
 * input is omitted or not known, the list is empty. Error texts name the operand `what`. */
enum status resolve_list(const struct node *node, size_t i, const char *what, int64_t *ret,
                         size_t max, size_t *ret_count, struct error *err) MUST_USE;

/* Converts axes to a bit mask over 0 … rank-1. STATUS_SHAPE for an axis out of range, or a repeated
 * axis when `unique`. */
enum status resolve_axes(const int64_t *axes, size_t count, int rank, bool unique,
                         unsigned *ret_mask, struct error *err) MUST_USE;

/* Converts a list of different axes to axes 0 … rank-1. NULL stands for all axes. */
enum status resolve_axis_list(const int64_t *axes, size_t count, int rank,
                              int ret[static TENSOR_MAX_RANK], int *ret_count,
                              struct error *err) MUST_USE;

/* Element i of an int32 / int64 tensor. */
static inline int64_t index_at(const struct tensor *indices, size_t i)
{
    return indices->dtype == DTYPE_I64 ? ((const int64_t *)indices->data)[i]
                                       : ((const int32_t *)indices->data)[i];
}

/* Checks that every element of an int32 / int64 tensor lies in -extent … extent-1. STATUS_INVALID
 * names the first element out of range, and `axis`. */
enum status resolve_indices(const struct tensor *indices, int64_t extent, int axis,
                            struct error *err) MUST_USE;

/* Product of the dimensions [first, last); the shape went through shape_check(). */
size_t resolve_extent(const struct shape *shape, int first, int last);

/* The shape as [outer, extent, inner] around an axis 0 … rank-1: lines of `extent` elements,
 * `inner` apart. Line `i` of outer * inner starts at axis_line(). */
struct axis_layout {
    size_t outer, extent, inner;
};
struct axis_layout axis_layout_of(const struct shape *shape, int64_t axis);
static inline size_t axis_line(const struct axis_layout *layout, size_t i)
{
    return i / layout->inner * layout->extent * layout->inner + i % layout->inner;
}

/* True if the shape, which broadcasts to x's shape, is equal to x's dimensions from `axis` on. For
 * x [4, 4], the scale [4, 1] has as many elements as the last dimension but is not such a row. */
bool resolve_is_row(const struct shape *shape, const struct shape *x, int axis);

/* Returns the extent of Split's output i along the axis: from the contents of input `split`, or an
 * equal part without `split`. Only for nodes that inference has accepted. */
int64_t resolve_split(const struct node *node, int64_t axis, size_t i);

/* Slice: out.dims[d] elements from start[d] on, `step[d]` apart. step is 1 if at most one element
 * is taken, so that step times stride never overflows. */
struct slice {
    int64_t start[TENSOR_MAX_RANK], step[TENSOR_MAX_RANK];
    struct shape out;
};
enum status resolve_slice(const struct node *node, struct slice *ret, struct error *err) MUST_USE;

/* Pad and CenterCropPad: elements that each axis gains at its ends, or loses if negative. */
#define PAD_MODES "constant reflect edge wrap"
enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };
struct padding {
    enum pad_mode mode;
    int64_t begin[TENSOR_MAX_RANK], end[TENSOR_MAX_RANK];
    struct shape out;
};
enum status resolve_padding(const struct node *node, struct padding *ret,
                            struct error *err) MUST_USE;

/* DepthToSpace and SpaceToDepth are a Reshape to six dimensions (*ret_apart), a Transpose by the
 * returned perm, and a Reshape to the output's shape. Any thread. */
const int64_t *resolve_blocks(const struct node *node, struct shape *ret_apart);

/* Reductions: the reduced axes and the output's shape. */
struct reduction {
    unsigned axes; /* bit mask */
    struct shape out;
};
enum status resolve_reduction(const struct node *node, struct reduction *ret,
                              struct error *err) MUST_USE;
