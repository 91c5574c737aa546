/* QuantizeLinear for a single number. */
#pragma once

#include <stdbool.h>

/* Returns saturate(round_half_even(x / scale) + zero), divided in float32; NaN becomes the lowest
 * value. `scale` is finite and above 0. `zero` is in the range of the type: int8 with `is_signed`,
 * else uint8. It has no branches or calls, so that compilers can vectorise a loop of it. Adding and
 * subtracting `round` rounds a quotient within ±beyond half to even; any other quotient saturates
 * with every `zero`. */
static inline float quantized_number(float x, float scale, int zero, bool is_signed)
{
    const float beyond = 1024.0f, round = 12582912.0f;
    const float low = is_signed ? -128.0f : 0.0f, high = low + 255.0f;
    float q = x / scale;
    q = q > -beyond ? q : -beyond; /* also NaN */
    q = q < beyond ? q : beyond;
    q = (q + round) - round + (float)zero;
    q = q > low ? q : low;
    return q < high ? q : high;
}
