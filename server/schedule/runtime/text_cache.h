/* Caches the vectors of recent texts. A hash of the text chooses the text's place; a new text
 * replaces the text in its place. Above the limit of bytes, the least recently used vectors are
 * removed. A cache belongs to the deployment that computes the vectors. For an encoder of photos
 * the text is a hash of the photo, and the vector its outputs. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define TEXT_CACHE_PLACES   1024
#define TEXT_CACHE_TEXT_MAX 1024 /* bytes; longer texts are not cached */
#define TEXT_CACHE_BYTES    ((size_t)16 << 20)
#define PHOTO_CACHE_BYTES   ((size_t)64 << 20)

struct memory_budget;
struct text_cache;

/* `most` is the limit of bytes for vectors. `budget` is charged for them; borrowed; may be NULL.
 * Returns NULL when out of memory. */
struct text_cache *text_cache_create(size_t most, struct memory_budget *budget);
void text_cache_free(struct text_cache *cache); /* NULL is fine */

/* Returns a malloc'ed copy of a text's vector, with *ret_size numbers; NULL if there is none. A
 * NULL cache is empty. */
float *text_cache_copy(struct text_cache *cache, const char *text, size_t *ret_size);
/* Stores a copy of a vector of `size` numbers, if it fits. */
void text_cache_keep(struct text_cache *cache, const char *text, const float *vector, size_t size);
