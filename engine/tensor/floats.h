/* Writes float32 numbers in the data type of a session's image input. */
#pragma once

#include <string.h>

#include "engine/tensor/tensor.h"

/* Sets dst[i] = src[i], converted to `dtype`, DTYPE_F32 or DTYPE_BF16. No overlap. Any thread. */
static inline void floats_write(enum dtype dtype, const float *src, void *dst, size_t count)
{
    uint16_t *halves = dst;
    if (dtype == DTYPE_F32)
        memcpy(dst, src, count * sizeof *src);
    for (size_t i = 0; dtype == DTYPE_BF16 && i < count; i++)
        halves[i] = float_to_bfloat16(src[i]);
}
