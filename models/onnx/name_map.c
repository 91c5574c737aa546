/* A map from names to pointers: a search tree of glibc, ordered by strcmp(). */
#include "models/onnx/name_map.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct name_slot *)a)->name, ((const struct name_slot *)b)->name);
}

void name_map_done(struct name_map *map)
{
    tdestroy(map->root, free);
    map->root = NULL;
}

struct name_slot *name_map_find(const struct name_map *map, const char *name)
{
    struct name_slot *const *found =
        tfind(&(const struct name_slot){.name = name}, &map->root, compare);
    return found ? *found : NULL;
}

bool name_map_put(struct name_map *map, const char *name, void *value)
{
    struct name_slot *slot = malloc(sizeof *slot), **found = NULL;
    if (slot) {
        *slot = (struct name_slot){name, value};
        found = tsearch(slot, &map->root, compare);
    }
    if (found)
        (*found)->value = value;
    if (!found || *found != slot)
        free(slot);
    return found;
}
