/* A table of texts and their vectors. */
#include "server/schedule/runtime/text_cache.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "engine/tensor/tensor.h"

struct kept_text {
    char *text; /* NULL: the place is empty */
    float *vector;
    size_t size;
    uint64_t used; /* text_cache.uses when it was last used */
};

struct text_cache {
    pthread_mutex_t lock;
    struct kept_text places[TEXT_CACHE_PLACES];
    struct memory_budget *budget; /* charged for the vectors */
    size_t bytes, most;           /* bytes of the vectors; the limit of bytes */
    uint64_t uses;
};

struct text_cache *text_cache_create(size_t most, struct memory_budget *budget)
{
    struct text_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    pthread_mutex_init(&cache->lock, NULL);
    cache->most = most;
    cache->budget = budget;
    return cache;
}

static void place_empty(struct text_cache *cache, struct kept_text *place)
{
    const size_t bytes = place->size * sizeof *place->vector;
    memory_uncharge(cache->budget, bytes);
    cache->bytes -= bytes;
    FREE_ALL(place->text, place->vector);
    *place = (struct kept_text){0};
}

void text_cache_free(struct text_cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < TEXT_CACHE_PLACES; i++)
        place_empty(cache, &cache->places[i]);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static struct kept_text *place_of(struct text_cache *cache, const char *text)
{
    const uint64_t hash = fnv1a(FNV1A_START, text, strlen(text));
    return &cache->places[(hash ^ hash >> 32) % TEXT_CACHE_PLACES];
}

float *text_cache_copy(struct text_cache *cache, const char *text, size_t *ret_size)
{
    if (!cache)
        return NULL;
    LOCK(&cache->lock);
    struct kept_text *place = place_of(cache, text);
    if (!place->text || strcmp(place->text, text) != 0)
        return NULL;
    place->used = ++cache->uses;
    float *copy = malloc(place->size * sizeof *copy);
    if (copy)
        memcpy(copy, place->vector, place->size * sizeof *copy);
    *ret_size = place->size;
    return copy;
}

/* Empties places, the least recently used first, until a vector of `bytes` fits, and charges it.
 * Returns false if it does not fit even then. */
static bool make_room(struct text_cache *cache, size_t bytes)
{
    while (bytes > cache->most - cache->bytes ||
           memory_charge(cache->budget, bytes, NULL) != STATUS_OK) {
        struct kept_text *oldest = NULL;
        for (size_t i = 0; i < TEXT_CACHE_PLACES; i++)
            if (cache->places[i].text && (!oldest || cache->places[i].used < oldest->used))
                oldest = &cache->places[i];
        if (!oldest)
            return false;
        place_empty(cache, oldest);
    }
    cache->bytes += bytes;
    return true;
}

void text_cache_keep(struct text_cache *cache, const char *text, const float *vector, size_t size)
{
    size_t bytes;
    if (!cache || !size_mul(size, sizeof *vector, &bytes) || bytes > cache->most ||
        strlen(text) > TEXT_CACHE_TEXT_MAX)
        return;
    struct kept_text kept = {strdup(text), malloc(bytes), size, 0};
    if (kept.text && kept.vector) {
        memcpy(kept.vector, vector, bytes);
        LOCK(&cache->lock);
        struct kept_text *place = place_of(cache, text);
        place_empty(cache, place);
        kept.used = ++cache->uses;
        if (make_room(cache, bytes)) {
            *place = kept;
            return;
        }
    }
    FREE_ALL(kept.text, kept.vector);
}
