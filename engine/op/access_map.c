/* Arithmetic of strided access maps, and their form in attributes. */
#include "engine/op/access_map.h"

#include "engine/base/size.h"

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

static enum status broken(const char *name, struct error *err)
{
    return error_set(err, STATUS_MODEL, "attribute '%s' points outside of its tensor", name);
}

enum status access_map_load(const struct node *node, const char *name, int groups, size_t elements,
                            struct access_map *ret, struct error *err)
{
    size_t count, n = 0;
    const int64_t *numbers = node_ints(node, name, &count);
    struct access_map map = {.groups = groups};
    if (!numbers || count < 1 || numbers[0] < 0)
        return broken(name, err);
    int64_t last = map.offset = numbers[n++];
    for (int g = 0; g < groups; g++) {
        struct access_map_group *group = &map.group[g];
        int64_t extent = 1;
        if (n >= count || numbers[n] < 0 || numbers[n] > ACCESS_MAP_PARTS ||
            count - n - 1 < 2 * (size_t)numbers[n])
            return broken(name, err);
        group->count = (int)numbers[n++];
        for (int p = 0; p < group->count; p++, n += 2) {
            int64_t reach;
            group->parts[p] = (struct access_map_part){numbers[n], numbers[n + 1]};
            if (numbers[n] < 1 || numbers[n + 1] < 0 ||
                __builtin_mul_overflow(numbers[n] - 1, numbers[n + 1], &reach) ||
                __builtin_add_overflow(last, reach, &last) ||
                __builtin_mul_overflow(extent, numbers[n], &extent))
                return broken(name, err);
        }
    }
    if (n != count || (uint64_t)last >= elements)
        return broken(name, err);
    *ret = map;
    return STATUS_OK;
}
