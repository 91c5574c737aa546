/* Helpers of the reference kernels for quantized operators: ranges, scales and zero points. */
#include "engine/op/quant.h"
#include "engine/op/family.h"

void quant_range(enum dtype dtype, int64_t *ret_low, int64_t *ret_high)
{
    switch (dtype) {
#define RANGE_CASE(name, type, wide)                                                               \
    case DTYPE_##name:                                                                             \
        *ret_low = (type)-1 < 0 ? -(INT64_C(1) << (8 * sizeof(type) - 1)) : 0;                     \
        *ret_high = (INT64_C(1) << (8 * sizeof(type) - ((type)-1 < 0))) - 1;                       \
        return;
        RANGE_CASE(I8, int8_t, )
        RANGE_CASE(U8, uint8_t, )
        RANGE_CASE(I16, int16_t, )
        RANGE_CASE(U16, uint16_t, )
#undef RANGE_CASE
    default:
        *ret_low = INT32_MIN;
        *ret_high = INT32_MAX;
    }
}

struct quant quant_read(const struct kernel_args *args, size_t scale, enum dtype dtype)
{
    const struct tensor *s = kernel_input(args, scale), *z = kernel_input(args, scale + 1);
    struct quant quant = {.scale = s ? tensor_number(s, 0) : 1, .zero = z ? tensor_int(z, 0) : 0};
    quant_range(dtype, &quant.low, &quant.high);
    return quant;
}

enum dtype quantized_dtype(const struct node *node, size_t zero_point, enum dtype otherwise)
{
    const struct value *value = node_input(node, zero_point);
    return value ? value->dtype : otherwise;
}
