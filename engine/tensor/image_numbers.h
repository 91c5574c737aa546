/* The numbers of an image as a session reads them: float32, or what the first operator would make
 * of float32 before it does anything else. Who fills the input writes them so at once, and a pass
 * over the image and three quarters or half of its bytes are saved. */
#pragma once

#include <stddef.h>

#include "engine/tensor/tensor.h"

struct image_numbers {
    /* DTYPE_F32: as they are. DTYPE_BF16: rounded to nearest even, as Cast. DTYPE_U8, DTYPE_I8:
     * QuantizeLinear's saturate(round_half_even(x / scale) + zero), divided in float32; NaN becomes
     * the lowest. */
    enum dtype dtype;
    float scale; /* finite, above 0; of the last two */
    int zero;    /* in the range of the dtype */
};

bool image_numbers_equal(const struct image_numbers *a, const struct image_numbers *b);

/* dst[i] = src[i] as `as` says, for i < count; dst holds as->dtype, at any alignment of that, and
 * does not overlap src. Any thread. */
void image_numbers_write(const struct image_numbers *as, const float *src, void *dst, size_t count);
