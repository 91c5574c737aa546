/* An arena: many small allocations with one lifetime, freed together.
 *
 * Chunks are chained; memory is zeroed and aligned to 16. One thread at a time. */
#pragma once

#include <stddef.h>

struct arena;

/* NULL when out of memory. `limit`: bytes the arena may hold in all, 0 = no limit. */
struct arena *arena_create(size_t limit);
void arena_free(struct arena *arena); /* NULL is fine */

/* count elements of `size` bytes, zeroed; NULL when the product overflows, the limit is passed, or
 * memory is short. */
void *arena_alloc(struct arena *arena, size_t count, size_t size);

/* A terminated copy of `size` bytes; NULL as above. */
char *arena_copy_text(struct arena *arena, const char *text, size_t size);
