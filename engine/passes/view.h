/* Private to engine/passes/: describes the result of a chain of Transposes, Reshapes, Slices,
 * Splits … as one access map over the elements of the chain's first value. */
#pragma once

#include "engine/op/access_map.h"
#include "engine/passes/edit.h"

/* dims[d] has the parts of the value's dimension d; the last part changes fastest. */
struct view {
    struct value *base;
    int64_t offset;
    float scale; /* factor on the base's elements */
    int rank;
    struct access_map_group dims[TENSOR_MAX_RANK];
    size_t moves; /* nodes between base and value that would have copied or computed */
};

/* Starts a view with the value itself. */
void view_init(struct view *view, struct value *value);

/* Follows `value` up as far as one access map allows: through Reshape, Flatten, Squeeze, Unsqueeze,
 * Identity, Transpose, Split, DepthToSpace and SpaceToDepth, and Slice, Gather and Expand with
 * constant operands. With `scaled` also through multiplication and division by a constant scalar.
 * All shapes must be known. */
void view_of(struct value *value, bool scaled, struct view *ret);

/* Applies one node to the view. Returns false if the result is not an access map. */
bool view_through(struct view *view, const struct node *node, const struct value *output,
                  bool scaled);
/* Broadcasts the view to `shape` by numpy's rules. */
bool view_expand(struct view *view, const struct shape *shape);

/* Joins dimensions first … last - 1 to one group. Returns false if the group has too many parts. */
bool view_group(const struct view *view, int first, int last, struct access_map_group *ret);

/* Splits *rest in two: *ret gets the outer `extent` steps, *rest keeps the inner ones. Returns
 * false if a part's extent is not divisible accordingly, or *ret has too many parts. */
bool view_take_front(struct access_map_group *rest, int64_t extent, struct access_map_group *ret);

/* True if the view has the base's elements in their original order. */
bool view_is_plain(const struct view *view);
