/* Maps names of a graph or function to pointers during import.
 *
 * Open addressing; the hash has a random seed, so that a file cannot cause collisions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name_slot {
    const char *name; /* borrowed; NULL: the slot is empty */
    void *value;
};

/* Zeroed memory is an empty map. One thread at a time. */
struct name_map {
    struct name_slot *slots;
    size_t capacity, count;
    uint64_t seed;
};

void name_map_done(struct name_map *map);

/* The slot of `name`, or NULL. Valid until the next put. */
struct name_slot *name_map_find(const struct name_map *map, const char *name);

/* Adds an entry, which keeps the pointer `name`, or overwrites the value of an existing one.
 * Returns false when out of memory. */
bool name_map_put(struct name_map *map, const char *name, void *value);
