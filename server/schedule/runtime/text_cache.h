/* Caches the vectors of recent texts, by a hash of the text; another text at the same place
 * replaces one. Belongs to the deployment that made them. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define TEXT_CACHE_PLACES     1024
#define TEXT_CACHE_TEXT_MAX   1024 /* bytes */
#define TEXT_CACHE_VECTOR_MAX 4096 /* numbers; larger ones and longer texts are not kept */

struct text_cache;

struct text_cache *text_cache_create(void);     /* NULL: out of memory */
void text_cache_free(struct text_cache *cache); /* NULL is fine */

/* Copies the `size` numbers cached for a text into `ret`; false if there are none. NULL is an empty
 * cache. / */
bool text_cache_find(struct text_cache *cache, const char *text, float *ret, size_t size);
void text_cache_keep(struct text_cache *cache, const char *text, const float *vector, size_t size);
