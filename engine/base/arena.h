/* An arena: many small allocations with one lifetime, freed together.
 *
 * Chunks are chained; memory is zeroed and aligned to 16. One thread at a time. */
#pragma once

#include <stddef.h>

struct arena;

/* Returns NULL when out of memory. `limit` bounds the bytes of all allocations; 0: no limit. */
struct arena *arena_create(size_t limit);
void arena_free(struct arena *arena); /* NULL is fine */

/* Allocates `count` zeroed elements of `size` bytes. Returns NULL when the product overflows, the
 * limit is exceeded, or memory runs out. */
void *arena_alloc(struct arena *arena, size_t count, size_t size);

/* Returns a copy of `count` elements of `size` bytes. Returns NULL when arena_alloc() does. */
void *arena_copy(struct arena *arena, const void *elements, size_t count, size_t size);

/* Returns a copy of `size` bytes, followed by a 0 byte. Returns NULL when arena_alloc() does. */
char *arena_copy_text(struct arena *arena, const char *text, size_t size);
