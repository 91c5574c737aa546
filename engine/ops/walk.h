/* Walks: how an operator made by passes reads or writes the elements of a tensor that lies in
 * another order than the operator thinks of, so that Transposes, Reshapes, Splits and Slices in
 * front of it and behind it need not run.
 *
 * A walk has groups (a matrix: batch, rows, columns); each group counts through its parts, the last
 * one fastest, and a part moves `stride` elements a step. Stored as a list of integers in an
 * attribute: offset, then for each group the number of its parts and extent, stride of each. */
#pragma once

#include "engine/graph.h"

#define WALK_PARTS  12 /* of a group */
#define WALK_GROUPS 3

struct walk_part {
    int64_t extent, stride; /* extent >= 1; a stride of 0 repeats */
};

struct walk_group {
    int count;
    struct walk_part parts[WALK_PARTS];
};

struct walk {
    int64_t offset; /* elements from the tensor's first */
    int groups;     /* 1 … WALK_GROUPS */
    struct walk_group group[WALK_GROUPS];
};

/* Steps in a group: the product of its extents, 1 without parts. */
int64_t walk_extent(const struct walk_group *group);

/* Where step i of a group is: elements from the group's beginning. */
int64_t walk_at(const struct walk_group *group, int64_t i);

/* Is every step of the group `stride` elements after the one before? */
bool walk_is_even(const struct walk_group *group, int64_t *ret_stride);

/* Joins neighbouring parts that are one: (a, b * s), (b, s) is (a * b, s). */
void walk_join(struct walk_group *group);

/* Sets the attribute `name` of the node; false when out of memory. */
bool walk_store(struct graph *graph, struct node *node, const char *name, const struct walk *walk);

/* Reads it and checks that it stays within `elements` elements and has `groups` groups.
 * STATUS_MODEL otherwise. */
enum status walk_load(const struct node *node, const char *name, int groups, size_t elements,
                      struct walk *ret, struct error *err) MUST_USE;
