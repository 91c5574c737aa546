/* Caches the vectors of recent texts by a hash of the text. A text replaces another with the same
 * place. Beyond the limit, the least recently used are removed. It belongs to the deployment that
 * computes them. For an encoder of photos it caches outputs by the photo's hash. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define TEXT_CACHE_PLACES   1024
#define TEXT_CACHE_TEXT_MAX 1024 /* bytes; longer texts are not cached */
#define TEXT_CACHE_BYTES    ((size_t)16 << 20)
#define PHOTO_CACHE_BYTES   ((size_t)64 << 20)

struct memory_budget;
struct text_cache;

/* `most` is the limit for vectors in bytes. Returns NULL when out of memory. */
struct text_cache *text_cache_create(size_t most);
void text_cache_free(struct text_cache *cache); /* NULL is fine */

/* Copies the `size` numbers cached for a text into `ret`. Returns false if there are none. A NULL
 * cache is empty. */
bool text_cache_find(struct text_cache *cache, const char *text, float *ret, size_t size);
/* The same for a vector of any size: a malloc'ed copy, or NULL. */
float *text_cache_copy(struct text_cache *cache, const char *text, size_t *ret_size);
/* Stores a vector's copy, if it fits. `budget` is charged for all vectors of this cache; may be
 * NULL. */
void text_cache_keep(struct text_cache *cache, const char *text, const float *vector, size_t size,
                     struct memory_budget *budget);
