/* Strided access maps: how an operator made by passes reads or writes a tensor whose elements are
 * stored in another order, so that Transposes, Reshapes, Splits and Slices around it need not run.
 *
 * A map has groups (a matrix: batch, rows, columns); each group counts through its parts, the last
 * one fastest, and a part moves `stride` elements a step. Stored as a list of integers in an
 * attribute: offset, then for each group the number of its parts and extent, stride of each. */
#pragma once

#include "engine/graph/graph.h"

#define ACCESS_MAP_PARTS  12 /* of a group */
#define ACCESS_MAP_GROUPS 3

struct access_map_part {
    int64_t extent, stride; /* extent >= 1; a stride of 0 repeats */
};

struct access_map_group {
    int count;
    struct access_map_part parts[ACCESS_MAP_PARTS];
};

struct access_map {
    int64_t offset; /* elements from the tensor's first */
    int groups;     /* 1 … ACCESS_MAP_GROUPS */
    struct access_map_group group[ACCESS_MAP_GROUPS];
};

/* Steps in a group: the product of its extents, 1 without parts. */
int64_t access_map_extent(const struct access_map_group *group);

/* Where step i of a group is: elements from the group's beginning. */
int64_t access_map_at(const struct access_map_group *group, int64_t i);

/* True if all steps of the group are the same number of elements apart, *ret_stride. */
bool access_map_is_even(const struct access_map_group *group, int64_t *ret_stride);

/* Joins neighbouring parts that are one: (a, b * s), (b, s) is (a * b, s). */
void access_map_join(struct access_map_group *group);

/* Sets the attribute `name` of the node; false when out of memory. */
bool access_map_store(struct graph *graph, struct node *node, const char *name,
                      const struct access_map *map);

/* Reads it; STATUS_MODEL unless it stays within `elements` elements and has `groups` groups. */
enum status access_map_load(const struct node *node, const char *name, int groups, size_t elements,
                            struct access_map *ret, struct error *err) MUST_USE;
