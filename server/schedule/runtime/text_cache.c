/* A table of texts and their vectors. */
#include "server/schedule/runtime/text_cache.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/thread.h"

struct kept_text {
    char *text; /* NULL: the place is empty */
    float *vector;
    size_t size;
};

struct text_cache {
    pthread_mutex_t lock;
    struct kept_text places[TEXT_CACHE_PLACES];
};

struct text_cache *text_cache_create(void)
{
    struct text_cache *cache = calloc(1, sizeof *cache);
    if (cache)
        pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

static void place_empty(struct kept_text *place)
{
    free(place->text);
    free(place->vector);
    *place = (struct kept_text){0};
}

void text_cache_free(struct text_cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < TEXT_CACHE_PLACES; i++)
        place_empty(&cache->places[i]);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static struct kept_text *place_of(struct text_cache *cache, const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *at = text; *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return &cache->places[(hash ^ hash >> 32) % TEXT_CACHE_PLACES];
}

bool text_cache_find(struct text_cache *cache, const char *text, float *ret, size_t size)
{
    if (!cache)
        return false;
    LOCK(&cache->lock);
    const struct kept_text *place = place_of(cache, text);
    if (!place->text || place->size != size || strcmp(place->text, text) != 0)
        return false;
    memcpy(ret, place->vector, size * sizeof *ret);
    return true;
}

void text_cache_keep(struct text_cache *cache, const char *text, const float *vector, size_t size)
{
    if (!cache || size > TEXT_CACHE_VECTOR_MAX || strlen(text) > TEXT_CACHE_TEXT_MAX)
        return;
    struct kept_text kept = {strdup(text), malloc(size * sizeof *vector), size};
    if (!kept.text || !kept.vector) {
        place_empty(&kept);
        return;
    }
    memcpy(kept.vector, vector, size * sizeof *vector);
    LOCK(&cache->lock);
    struct kept_text *place = place_of(cache, text);
    place_empty(place);
    *place = kept;
}
