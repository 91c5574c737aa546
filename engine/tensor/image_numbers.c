/* Writes the numbers of an image as a session reads them, and compares two such forms. */
#include "engine/tensor/image_numbers.h"

#include <assert.h>
#include <string.h>

#include "engine/tensor/quantized_number.h"

bool image_numbers_equal(const struct image_numbers *a, const struct image_numbers *b)
{
    const bool is_stored = a->dtype == DTYPE_U8 || a->dtype == DTYPE_I8;
    return a->dtype == b->dtype && (!is_stored || (a->scale == b->scale && a->zero == b->zero));
}

static float stored(const struct image_numbers *as, float x)
{
    return quantized_number(x, as->scale, as->zero, as->dtype == DTYPE_I8);
}

void image_numbers_write(const struct image_numbers *as, const float *src, void *dst, size_t count)
{
    uint16_t *halves = dst;
    uint8_t *unsigned_bytes = dst;
    int8_t *signed_bytes = dst;
    switch (as->dtype) {
    case DTYPE_F32:
        memcpy(dst, src, count * sizeof *src);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < count; i++)
            halves[i] = float_to_bfloat16(src[i]);
        break;
    case DTYPE_U8:
        for (size_t i = 0; i < count; i++)
            unsigned_bytes[i] = (uint8_t)(int)stored(as, src[i]);
        break;
    case DTYPE_I8:
        for (size_t i = 0; i < count; i++)
            signed_bytes[i] = (int8_t)(int)stored(as, src[i]);
        break;
    default:
        assert(!"a session reads no other numbers of an image");
    }
}
