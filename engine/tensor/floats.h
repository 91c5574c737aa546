/* Reads numbers in the data types of inputs and outputs as float32. */
#pragma once

#include <string.h>

#include "engine/tensor/tensor.h"

#define FLOATS_FROM(name, type, convert)                                                           \
    case DTYPE_##name:                                                                             \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
            memcpy(&value, (const char *)src + i * sizeof value, sizeof value);                    \
            dst[i] = (float)convert(value);                                                        \
        }                                                                                          \
        return true;

/* Sets dst[i] = src[i], converted from `dtype`, at any alignment. False for other data types than
 * these. No overlap. Any thread. */
static inline bool floats_read(enum dtype dtype, const void *src, float *dst, size_t count)
{
    switch (dtype) {
        FLOATS_FROM(F32, float, )
        FLOATS_FROM(F64, double, )
        FLOATS_FROM(F16, uint16_t, half_to_float)
        FLOATS_FROM(BF16, uint16_t, bfloat16_to_float)
        FLOATS_FROM(I32, int32_t, )
        FLOATS_FROM(I64, int64_t, )
        FLOATS_FROM(U8, uint8_t, )
        FLOATS_FROM(BOOL, uint8_t, !!)
    default:
        return false;
    }
}
