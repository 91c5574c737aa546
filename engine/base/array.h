/* Arrays that grow. */
#pragma once

#include <string.h>

#include "engine/base/size.h"

/* Makes room for `count` elements of `size` bytes in a malloc'ed array. `array` points to the
 * array's pointer (a T **, initially NULL); *capacity is its current capacity. It grows by at least
 * half; new elements are not initialised. Returns false and changes nothing when out of memory or
 * if `count` is too large. */
static inline bool array_reserve(void *array, size_t *capacity, size_t count, size_t size)
{
    void *items;
    size_t wanted;
    if (count <= *capacity)
        return true;
    memcpy(&items, array, sizeof items); /* a T ** for any T */
    if (!size_add(count, count / 2 + 16, &wanted) || !(items = reallocarray(items, wanted, size)))
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = wanted;
    return true;
}
