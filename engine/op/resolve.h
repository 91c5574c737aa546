/* For inference functions, passes and kernels: what attributes and integer operands of shape
 * operators mean for given extents, worked out in one place for inference and for kernels, so that
 * the two cannot disagree; and small checks that inference functions share.
 *
 * `operands` is an array of the node's inputs' contents in order: inference passes what is known,
 * a kernel its inputs. An entry is NULL when the optional input is left out. All functions are
 * thread-safe. Errors: STATUS_SHAPE / STATUS_MODEL, without the node's name. */
#pragma once

#include "engine/op/families.h"
#include "engine/op/operands.h"

/* More sets of dtypes than operands.h has. */
#define DTYPES_SIGNED (DTYPE_BIT(I8) | DTYPE_BIT(I16) | DTYPE_BIT(I32) | DTYPE_BIT(I64))
#define DTYPES_BOOL   DTYPE_BIT(BOOL)
#define DTYPES_INDEX  (DTYPE_BIT(I32) | DTYPE_BIT(I64))

/* STATUS_MODEL unless the node carries the attribute. */
enum status resolve_required(const struct node *node, const char *attribute,
                             struct error *err) MUST_USE;

/* ret[i] = known contents of input i for i < max. False when an input from `first` on is there but
 * its contents are not known yet. */
bool resolve_known(const struct node *node, size_t first, const struct tensor **ret, size_t max);

/* The integers of a list operand (`what` names it in errors): an integer tensor of rank <= 1 with
 * at most `max` elements. NULL reads as no elements. */
enum status resolve_list(const struct tensor *list, const char *what, int64_t *ret, size_t max,
                         size_t *ret_count, struct error *err) MUST_USE;

/* Axes as a bit mask over 0 … rank-1; STATUS_SHAPE for one out of range, or twice when `unique`. */
enum status resolve_axes(const int64_t *axes, size_t count, int rank, bool unique,
                         unsigned *ret_mask, struct error *err) MUST_USE;

/* STATUS_INVALID unless every element of an int32 / int64 tensor lies in -extent … extent-1;
 * the text names the first that does not. `axis` is for the text. */
enum status resolve_indices(const struct tensor *indices, int64_t extent, int axis,
                            struct error *err) MUST_USE;

/* How many dimensions of [first, last) multiply to; the shape went through shape_check(). */
size_t resolve_extent(const struct shape *shape, int first, int last);

/* The shape as [outer, extent, inner] around an axis 0 … rank-1: lines of `extent` elements,
 * `inner` apart. Line `i` of outer * inner begins at axis_line(). */
struct axis_layout {
    size_t outer, extent, inner;
};
struct axis_layout axis_layout_of(const struct shape *shape, int64_t axis);
static inline size_t axis_line(const struct axis_layout *layout, size_t i)
{
    return i / layout->inner * layout->extent * layout->inner + i % layout->inner;
}

/* Is the shape, which broadcasts to x's, one number for each of x's dimensions from `axis` on? Of
 * [4, 4] a scale [4, 1] is as many numbers as the last dimension has, but not its. */
bool resolve_is_row(const struct shape *shape, const struct shape *x, int axis);

/* Split: the extent of output i along the axis, from the contents of input `split`, or, without it,
 * equal parts. Only for nodes that inference has accepted. */
int64_t resolve_split(const struct node *node, const struct tensor *split, int64_t extent,
                      size_t i);

/* Reshape to operands[1]. */
enum status resolve_reshape(const struct node *node, const struct shape *data,
                            const struct tensor *const *operands, struct shape *ret,
                            struct error *err) MUST_USE;

/* Slice: out.dims[d] elements start at start[d], `step[d]` apart; step is 1 where at most one
 * element is taken, so that step times stride never overflows. */
struct slice {
    int64_t start[TENSOR_MAX_RANK], step[TENSOR_MAX_RANK];
    struct shape out;
};
enum status resolve_slice(const struct node *node, const struct shape *data,
                          const struct tensor *const *operands, struct slice *ret,
                          struct error *err) MUST_USE;

/* Pad, and CenterCropPad as such: elements added before and after each axis (negative: cut). */
enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };
struct padding {
    enum pad_mode mode;
    int64_t begin[TENSOR_MAX_RANK], end[TENSOR_MAX_RANK];
    struct shape out;
};
enum status resolve_padding(const struct node *node, const struct shape *data,
                            const struct tensor *const *operands, struct padding *ret,
                            struct error *err) MUST_USE;

/* Reductions: which axes go, and the output's shape. */
struct reduction {
    unsigned axes; /* bit mask */
    struct shape out;
};
enum status resolve_reduction(const struct node *node, const struct shape *data,
                              const struct tensor *const *operands, struct reduction *ret,
                              struct error *err) MUST_USE;
