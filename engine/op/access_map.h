/* A strided access map tells an operator where in memory it reads or writes each element of an
 * operand. So a Transpose, Reshape, Split or Slice of that operand need not run.
 *
 * A map has groups (of a matrix: batch, rows, columns). A group is a nest of loops over its parts,
 * with the last part innermost; one step of a part moves `stride` elements. An attribute stores a
 * map as a list of integers: the offset, then for each group the number of its parts, and the
 * extent and stride of each part. */
#pragma once

#include "engine/graph/graph.h"

#define ACCESS_MAP_PARTS  12 /* maximum per group */
#define ACCESS_MAP_GROUPS 3

struct access_map_part {
    int64_t extent, stride; /* extent >= 1; a stride of 0 repeats the element */
};

struct access_map_group {
    int count;
    struct access_map_part parts[ACCESS_MAP_PARTS];
};

struct access_map {
    int64_t offset; /* in elements, from the start of the tensor */
    int groups;     /* 1 … ACCESS_MAP_GROUPS */
    struct access_map_group group[ACCESS_MAP_GROUPS];
};

/* Number of steps in a group: the product of its extents, 1 without parts. */
int64_t access_map_extent(const struct access_map_group *group);

/* Offset of step i of a group, in elements from the start of the group. */
int64_t access_map_at(const struct access_map_group *group, int64_t i);

/* True if the group has at most one part, so that all its steps are *ret_stride elements apart. */
bool access_map_is_even(const struct access_map_group *group, int64_t *ret_stride);

/* Merges neighbouring parts if possible: parts of (extent, stride) (a, b * s) and (b, s) become one
 * part (a * b, s). */
void access_map_join(struct access_map_group *group);

/* Stores the map as attribute `name` of the node. Returns false when out of memory. */
bool access_map_store(struct graph *graph, struct node *node, const char *name,
                      const struct access_map *map);

/* Reads the attribute `name`, which access_map_store() has written for a map of `groups` groups.
 * Asserts that the map stays inside a tensor of `elements` elements. */
struct access_map access_map_load(const struct node *node, const char *name, int groups,
                                  size_t elements);

/* The map, of one group, by which a Transpose or OP_STRIDED_COPY reads its operand. */
struct access_map access_map_of_copy(const struct node *node);
