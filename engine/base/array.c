/* Grows arrays. */
#include "engine/base/array.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

bool array_grow(void *array, size_t *capacity, size_t count, size_t size)
{
    void *items;
    size_t wanted;
    memcpy(&items, array, sizeof items); /* a T ** for any T */
    if (!size_add(count, count / 2 + 16, &wanted) || !(items = reallocarray(items, wanted, size)))
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = wanted;
    return true;
}
