/* Arrays that grow. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Private to array_reserve(), for an array that is too small. */
bool array_grow(void *array, size_t *capacity, size_t count, size_t size);

/* Makes room for `count` elements of `size` bytes in the malloc'ed array that `array` points at (a
 * T **, of NULL at first), now with room for *capacity. It grows by half or more; new elements are
 * not initialised. False, with nothing changed, when out of memory or if `count` is too large. */
static inline bool array_reserve(void *array, size_t *capacity, size_t count, size_t size)
{
    return count <= *capacity || array_grow(array, capacity, count, size);
}
