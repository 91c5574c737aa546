/* Maps names of a graph or function to pointers during import. The map is a tree of glibc
 * (tsearch()), which stays balanced whatever names a file has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct name_slot {
    const char *name; /* borrowed */
    void *value;
};

/* Zeroed memory is an empty map. One thread at a time. */
struct name_map {
    void *root;
};

void name_map_done(struct name_map *map);

/* The slot of `name`, or NULL. Valid until name_map_done(). */
struct name_slot *name_map_find(const struct name_map *map, const char *name);

/* Adds an entry, which keeps the pointer `name`. If the map has this name, only sets its value.
 * Returns false when out of memory. */
bool name_map_put(struct name_map *map, const char *name, void *value);
