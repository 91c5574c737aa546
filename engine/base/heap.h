/* A binary min-heap of numbers, in an array of the caller. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Adds a number; `heap` must have room for one more than *count. */
static inline void heap_push(uint64_t *heap, size_t *count, uint64_t number)
{
    size_t at = (*count)++;
    for (; at > 0 && heap[(at - 1) / 2] > number; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = number;
}

/* Removes the least number and returns it; *count is not 0. */
static inline uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    const uint64_t least = heap[0], last = heap[--*count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < *count; at = child) {
        child += child + 1 < *count && heap[child + 1] < heap[child];
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return least;
}
