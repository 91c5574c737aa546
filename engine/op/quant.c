/* Helpers of the reference kernels for quantized operators: ranges, scales and zero points, and
 * 8-bit operands widened to int32. */
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

void quant_widen(const struct tensor *src, const struct tensor *zeros, size_t run, int32_t *dst)
{
    size_t count = shape_count(&src->shape);
    bool single = !zeros || !run || shape_count(&zeros->shape) == 1;
    convert_row(src->data, src->dtype, dst, DTYPE_I32, count);
    for (size_t i = 0; i < count;) {
        size_t n = single ? count : run;
        int32_t zero = zeros ? (int32_t)tensor_int(zeros, single ? 0 : i / run) : 0;
        for (size_t k = 0; k < n; k++)
            dst[i + k] -= zero;
        i += n;
    }
}

enum dtype quantized_dtype(const struct node *node, size_t zero_point, enum dtype otherwise)
{
    const struct value *value = node_input(node, zero_point);
    return value ? value->dtype : otherwise;
}
