/* The bits of a float32 (IEEE 754 binary32) as an integer, and conversions from and to 16 bits. */
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

/* Conversions between float32 and IEEE half or bfloat16. They round to nearest even, keep NaN, and
 * have no branches, so that compilers can vectorise loops of conversions. */
static inline float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t small = float_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = magnitude << 13 | 0x7f800000;
    uint32_t bits = magnitude < 0x400 ? small : magnitude >= 0x7c00 ? special : normal;
    return float_from_bits(sign | bits);
}

/* If the result is subnormal, adding 0.5 rounds to a multiple of 2^-24, the step of subnormal
 * halves. The last bits of the sum are then the result. 65520 and above round to infinity. */
static inline uint16_t float_to_half(float value)
{
    uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffff;
    uint32_t small = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x1ff);
    uint32_t half = magnitude < 0x38800000 ? small : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;
    half = magnitude > 0x7f800000 ? nan : half;
    return (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)half;
}

static inline float bfloat16_to_float(uint16_t bits)
{
    return float_from_bits((uint32_t)bits << 16);
}

static inline uint16_t float_to_bfloat16(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}
