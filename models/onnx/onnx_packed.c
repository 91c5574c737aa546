/* Unpacks constants with elements of less than a byte, and 8-bit floats.
 *
 * Source: onnx.proto, TensorProto.DataType: the first element is in the lowest bits. Float types:
 * ONNX's float8.md, "FP8 Formats for Deep Learning" (E4M3FN, E5M2), "8-bit Numerical Formats for
 * Deep Neural Networks" (FNUZ), OCP Microscaling Formats 1.0 (E2M1). */
#include <math.h>

#include "engine/base/size.h"
#include "models/onnx/onnx_file.h"

static const struct onnx_packed types[] = {
    [17] = {"float8e4m3fn", 8, DTYPE_F32, 3, 7, LAST_IS_NAN},
    [18] = {"float8e4m3fnuz", 8, DTYPE_F32, 3, 8, MINUS_0_IS_NAN},
    [19] = {"float8e5m2", 8, DTYPE_F32, 2, 15, AS_IEEE},
    [20] = {"float8e5m2fnuz", 8, DTYPE_F32, 2, 16, MINUS_0_IS_NAN},
    [21] = {"uint4", 4, DTYPE_U8, 0, 0, ALL_FINITE},
    [22] = {"int4", 4, DTYPE_I8, 0, 0, ALL_FINITE},
    [23] = {"float4e2m1", 4, DTYPE_F32, 1, 1, ALL_FINITE},
    [25] = {"uint2", 2, DTYPE_U8, 0, 0, ALL_FINITE},
    [26] = {"int2", 2, DTYPE_I8, 0, 0, ALL_FINITE},
};

const struct onnx_packed *onnx_packed_find(int32_t number)
{
    return number > 0 && (size_t)number < COUNT_OF(types) && types[number].name ? &types[number]
                                                                                : NULL;
}

static float float_of(const struct onnx_packed *type, unsigned bits)
{
    const unsigned magnitude = bits & ((1u << (type->bits - 1)) - 1);
    const unsigned mantissa = magnitude & ((1u << type->mantissa) - 1);
    const int exponent = (int)(magnitude >> type->mantissa);
    const unsigned all = (1u << (type->bits - 1)) - 1, last = all >> type->mantissa;
    const float sign = bits > all ? -1 : 1;
    if (type->specials == MINUS_0_IS_NAN && bits == all + 1)
        return NAN;
    if (type->specials == LAST_IS_NAN && magnitude == all)
        return NAN;
    if (type->specials == AS_IEEE && (unsigned)exponent == last)
        return mantissa ? NAN : sign * INFINITY;
    const unsigned whole = exponent ? mantissa | 1u << type->mantissa : mantissa;
    return sign * ldexpf((float)whole, (exponent ? exponent : 1) - type->bias - type->mantissa);
}

void onnx_packed_widen(const struct onnx_packed *type, const uint8_t *from, size_t count, void *to)
{
    const unsigned mask = (1u << type->bits) - 1, sign = 1u << (type->bits - 1);
    float floats[256];
    for (unsigned i = 0; type->dtype == DTYPE_F32 && i <= mask; i++)
        floats[i] = float_of(type, i);
    for (size_t i = 0; i < count; i++) {
        const unsigned bits = (unsigned)from[i * type->bits / 8] >> i * type->bits % 8 & mask;
        if (type->dtype == DTYPE_F32)
            ((float *)to)[i] = floats[bits];
        else if (type->dtype == DTYPE_I8)
            ((int8_t *)to)[i] = (int8_t)((int)(bits ^ sign) - (int)sign);
        else
            ((uint8_t *)to)[i] = (uint8_t)bits;
    }
}
