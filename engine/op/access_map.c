/* Arithmetic of strided access maps, and their form in attributes. */
#include "engine/op/access_map.h"

#include <assert.h>

int64_t access_map_extent(const struct access_map_group *group)
{
    int64_t extent = 1;
    for (int p = 0; p < group->count; p++)
        extent *= group->parts[p].extent;
    return extent;
}

int64_t access_map_at(const struct access_map_group *group, int64_t i)
{
    int64_t at = 0;
    for (int p = group->count - 1; p >= 0; p--) {
        at += i % group->parts[p].extent * group->parts[p].stride;
        i /= group->parts[p].extent;
    }
    return at;
}

bool access_map_is_even(const struct access_map_group *group, int64_t *ret_stride)
{
    if (group->count > 1)
        return false;
    *ret_stride = group->count ? group->parts[0].stride : 0;
    return true;
}

void access_map_join(struct access_map_group *group)
{
    int kept = 0;
    for (int p = 0; p < group->count; p++) {
        const struct access_map_part part = group->parts[p];
        struct access_map_part *before = kept ? &group->parts[kept - 1] : NULL;
        if (part.extent == 1)
            continue;
        if (before && before->stride == part.extent * part.stride)
            *before = (struct access_map_part){before->extent * part.extent, part.stride};
        else
            group->parts[kept++] = part;
    }
    group->count = kept;
}

bool access_map_store(struct graph *graph, struct node *node, const char *name,
                      const struct access_map *map)
{
    int64_t numbers[1 + ACCESS_MAP_GROUPS * (1 + 2 * ACCESS_MAP_PARTS)];
    size_t n = 0;
    numbers[n++] = map->offset;
    for (int g = 0; g < map->groups; g++) {
        const struct access_map_group *group = &map->group[g];
        numbers[n++] = group->count;
        for (int p = 0; p < group->count; p++) {
            numbers[n++] = group->parts[p].extent;
            numbers[n++] = group->parts[p].stride;
        }
    }
    return node_set_ints(graph, node, name, numbers, n);
}

struct access_map access_map_load(const struct node *node, const char *name, int groups,
                                  size_t elements)
{
    size_t count, n = 0;
    const int64_t *numbers = node_ints(node, name, &count);
    struct access_map map = {.offset = numbers[n++], .groups = groups};
    int64_t last = map.offset;
    for (int g = 0; g < groups; g++) {
        struct access_map_group *group = &map.group[g];
        group->count = (int)numbers[n++];
        for (int p = 0; p < group->count; p++, n += 2) {
            group->parts[p] = (struct access_map_part){numbers[n], numbers[n + 1]};
            last += (numbers[n] - 1) * numbers[n + 1];
        }
    }
    assert(n == count && last >= 0 && (size_t)last < elements);
    (void)last, (void)elements;
    return map;
}

struct access_map access_map_of_copy(const struct node *node)
{
    const struct shape *x = &node->inputs[0]->shape;
    size_t count;
    if (node->op == OP_STRIDED_COPY)
        return access_map_load(node, "map", 1, shape_count(x));
    const int64_t *perm = node_ints(node, "perm", &count);
    int64_t steps[TENSOR_MAX_RANK], stride = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        steps[d] = stride;
        stride *= x->dims[d];
    }
    struct access_map map = {.groups = 1, .group[0].count = x->rank};
    for (int d = 0; d < x->rank; d++) {
        const int64_t from = perm ? perm[d] : x->rank - 1 - d;
        map.group[0].parts[d] = (struct access_map_part){x->dims[from], steps[from]};
    }
    access_map_join(&map.group[0]);
    return map;
}
