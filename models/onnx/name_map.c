/* A hash table with open addressing from names to pointers, seeded at random. */
#include "models/onnx/name_map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/hash.h"
#include "engine/base/size.h"

/* FNV-1a from the map's seed, mixed at the end. */
static uint64_t hash(uint64_t seed, const char *name)
{
    uint64_t h = fnv1a(seed ^ FNV1A_START, name, strlen(name));
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static struct name_slot *slot_of(const struct name_map *map, const char *name)
{
    size_t mask = map->capacity - 1, i = (size_t)hash(map->seed, name) & mask;
    while (map->slots[i].name && strcmp(map->slots[i].name, name))
        i = (i + 1) & mask;
    return &map->slots[i];
}

static bool grow(struct name_map *map)
{
    struct name_map bigger = {
        .capacity = map->capacity ? map->capacity * 2 : 32, .count = map->count, .seed = map->seed};
    if (!map->slots && getrandom(&bigger.seed, sizeof bigger.seed, GRND_NONBLOCK) < 0)
        bigger.seed = (uint64_t)(uintptr_t)map; /* no random numbers yet: use an address */
    bigger.slots = alloc_array(bigger.capacity, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].name)
            *slot_of(&bigger, map->slots[i].name) = map->slots[i];
    free(map->slots);
    *map = bigger;
    return true;
}

void name_map_done(struct name_map *map)
{
    free(map->slots);
    *map = (struct name_map){0};
}

struct name_slot *name_map_find(const struct name_map *map, const char *name)
{
    if (!map->slots)
        return NULL;
    struct name_slot *slot = slot_of(map, name);
    return slot->name ? slot : NULL;
}

bool name_map_put(struct name_map *map, const char *name, void *value)
{
    if (map->count + 1 > map->capacity / 4 * 3 && !grow(map))
        return false;
    struct name_slot *slot = slot_of(map, name);
    map->count += !slot->name;
    *slot = (struct name_slot){slot->name ? slot->name : name, value};
    return true;
}
