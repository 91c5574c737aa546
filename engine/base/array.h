/* Arrays that grow. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Only array_reserve() calls this, for an array that is too small. */
bool array_grow(void *array, size_t *capacity, size_t count, size_t size);

/* Makes room for `count` elements of `size` bytes in a malloc'ed array. `array` points to the
 * array's pointer (a T **, initially NULL); *capacity is its current capacity. It grows by at least
 * half; new elements are not initialised. Returns false and changes nothing when out of memory or
 * if `count` is too large. */
static inline bool array_reserve(void *array, size_t *capacity, size_t count, size_t size)
{
    return count <= *capacity || array_grow(array, capacity, count, size);
}
