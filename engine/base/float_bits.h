/* The bits of a float32 (IEEE 754 binary32) as an integer. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Rounds to nearest even; NaN stays NaN. It has no branches, so that compilers can vectorise it. */
static inline uint16_t float_narrow_bfloat16(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 | 0x40) : rounded);
}
