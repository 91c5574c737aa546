/* Arrays that grow. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* array_reserve() where the array is too small. */
bool array_grow(void *array, size_t *capacity, size_t count, size_t size);

/* Makes room for `count` elements of `size` bytes in the malloc'ed array that `array` points at (a
 * T **, of NULL at first), where *capacity fit now. It grows by half and more; new elements are not
 * initialised. False, with nothing changed, when out of memory or if `count` is too large. */
static inline bool array_reserve(void *array, size_t *capacity, size_t count, size_t size)
{
    return count <= *capacity || array_grow(array, capacity, count, size);
}
