/* An arena: many small allocations with one lifetime, freed together.
 *
 * Chunks are chained; memory is zeroed and aligned to 16. One thread at a time. */
#pragma once

#include <stddef.h>

struct arena;

/* Returns NULL when out of memory. `limit` is the most bytes the arena may hold, 0 for no limit. */
struct arena *arena_create(size_t limit);
void arena_free(struct arena *arena); /* NULL is fine */

/* Allocates `count` zeroed elements of `size` bytes. Returns NULL when the product overflows, the
 * limit is exceeded, or memory runs out. */
void *arena_alloc(struct arena *arena, size_t count, size_t size);

/* Returns a copy of `count` elements of `size` bytes; NULL as above. */
void *arena_copy(struct arena *arena, const void *elements, size_t count, size_t size);

/* Returns a terminated copy of `size` bytes; NULL as above. */
char *arena_copy_text(struct arena *arena, const char *text, size_t size);
