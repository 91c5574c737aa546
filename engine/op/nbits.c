/* MatMulNBits: weights of 2, 4 or 8 bits, packed from the lowest bits of each byte on. */
#include "engine/base/size.h"
#include "engine/op/geometry.h"

static enum status check_count(const struct node *node, size_t i, const char *name, size_t wanted,
                               struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || shape_count(&value->shape) == wanted)
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE, "%s has shape %s, expected %zu numbers", name,
                     SHAPE_STRING(&value->shape), wanted);
}

enum status nbits_shape_init(const struct node *node, struct nbits_shape *ret, struct error *err)
{
    const int64_t n = node_int(node, "N", 0), k = node_int(node, "K", 0);
    const int64_t bits = node_int(node, "bits", 4), block = node_int(node, "block_size", 0);
    if (node_input(node, 4) || node_int(node, "weight_prepacked", 0))
        return error_set(err, STATUS_UNSUPPORTED, "g_idx and prepacked weights are not supported");
    if (bits != 2 && bits != 4 && bits != 8)
        return error_set(err, STATUS_UNSUPPORTED, "bits is %lld, expected 2, 4 or 8",
                         (long long)bits);
    if (n < 1 || n > INT32_MAX || k < 1 || k > INT32_MAX || block < 16 || block > INT32_MAX ||
        (block & (block - 1)))
        return error_set(err, STATUS_SHAPE,
                         "N is %lld, K %lld, block_size %lld; expected at least 1, at least 1, and "
                         "16 or a greater power of two",
                         (long long)n, (long long)k, (long long)block);
    *ret = (struct nbits_shape){.n = (size_t)n,
                                .k = (size_t)k,
                                .bits = (size_t)bits,
                                .block = (size_t)block,
                                .blocks = (size_t)((k + block - 1) / block)};
    const struct value *zeros = node_input(node, 3);
    const size_t scales = (size_t)n * ret->blocks; /* both factors fit in 31 bits */
    const size_t packed = (size_t)n * ((ret->blocks * ret->bits + 7) / 8);
    size_t bytes;
    if (!size_mul(scales, ret->block * ret->bits / 8, &bytes))
        return error_set(err, STATUS_TOO_LARGE, "the weights are too large");
    TRY(check_count(node, 1, "B", bytes, err));
    TRY(check_count(node, 2, "scales", scales, err));
    TRY(check_count(node, 3, "zero_points", zeros && zeros->dtype == DTYPE_U8 ? packed : scales,
                    err));
    return check_count(node, 5, "bias", (size_t)n, err);
}

static unsigned number_at(const uint8_t *packed, size_t i, size_t bits)
{
    return (unsigned)packed[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1);
}

void nbits_widen(const struct nbits_shape *shape, const struct tensor *weights,
                 const struct tensor *scales, const struct tensor *zeros, float *dst)
{
    const size_t n = shape->n, row = (shape->blocks * shape->bits + 7) / 8;
    for (size_t j = 0; j < n; j++)
        for (size_t b = 0; b < shape->blocks; b++) {
            const size_t at = j * shape->blocks + b, first = b * shape->block;
            const uint8_t *packed =
                (const uint8_t *)weights->data + at * shape->block * shape->bits / 8;
            const float scale = (float)tensor_number(scales, at);
            float zero = (float)(1u << (shape->bits - 1));
            if (zeros && zeros->dtype == DTYPE_U8)
                zero = (float)number_at((const uint8_t *)zeros->data + j * row, b, shape->bits);
            else if (zeros)
                zero = (float)tensor_number(zeros, at);
            for (size_t i = 0; i < shape->block && first + i < shape->k; i++)
                dst[(first + i) * n + j] =
                    ((float)number_at(packed, i, shape->bits) - zero) * scale;
        }
}
