/* Private to engine/passes/: what a chain of Transposes, Reshapes, Slices, Splits … makes of the
 * value it starts from, as one map over that value's elements. */
#pragma once

#include "engine/op/access_map.h"
#include "engine/passes/edit.h"

/* Dimension d counts through its own parts, the last one fastest. */
struct view {
    struct value *base;
    int64_t offset;
    float scale; /* the elements are this times the base's */
    int rank;
    struct access_map_group dims[TENSOR_MAX_RANK];
    size_t moves; /* nodes between base and value that would have moved bytes or computed */
};

/* The value itself. */
void view_init(struct view *view, struct value *value);

/* As far up as one access map reaches: through Reshape, Flatten, Squeeze, Unsqueeze, Identity,
 * Transpose, Split, and Slice, Gather, Expand with constant operands; with `scaled` also through
 * products with and quotients by one constant number. Shapes are known. */
void view_of(struct value *value, bool scaled, struct view *ret);

/* The single steps; false (view undefined) where the result is not an access map. */
bool view_through(struct view *view, const struct node *node, const struct value *output,
                  bool scaled);
bool view_reshape(struct view *view, const struct shape *shape);
void view_transpose(struct view *view, const int64_t *perm);
/* numpy broadcasting to `shape`. */
bool view_expand(struct view *view, const struct shape *shape);

/* Dimensions first … last - 1 as one group; false when that has too many parts. */
bool view_group(const struct view *view, int first, int last, struct access_map_group *ret);

/* True if the elements are those of the base in its order. */
bool view_is_plain(const struct view *view);
