/* The two passes of OpenCV's INTER_LINEAR on bytes, bit for bit (HResizeLinear and VResizeLinear of
 * modules/imgproc/src/resize.cpp). resample_plain.c and resample_x86.c include this file, so that
 * the loops are vectorised for each instruction set. Between the passes a sample has 15 bits: a
 * byte times 2^11, shifted right by 4. */
#pragma once

#include "server/image/resample.h"

static void linear_horizontal(uint8_t *const dst[4], const uint8_t *const src[4],
                              const struct resample_axis *axis, uint8_t flip)
{
    for (int r = 0; r < 4; r++) {
        uint16_t *to = (uint16_t *)(void *)dst[r];
        for (int i = 0; i < axis->count; i++, to += 3) {
            const int start = axis->start[i], last = axis->in - 1;
            const uint8_t *one = src[r] + (size_t)(start < 0 ? 0 : start) * 3;
            const uint8_t *two = src[r] + (size_t)(start < last ? start + 1 : last) * 3;
            const int32_t first = axis->weights[2 * i], second = axis->weights[2 * i + 1];
            for (int c = 0; c < 3; c++)
                to[c] = (uint16_t)(((one[c] ^ flip) * first + (two[c] ^ flip) * second) >> 4);
        }
    }
}

static void linear_vertical(uint8_t *dst, const uint8_t *const *rows, const int32_t *weights,
                            int length, size_t count)
{
    const uint16_t *one = (const uint16_t *)(const void *)rows[0];
    const uint16_t *two = (const uint16_t *)(const void *)rows[length - 1];
    const int32_t first = weights[0], second = weights[length - 1];
    for (size_t begin = 0; begin < count; begin += RESAMPLE_BLOCK)
        for (size_t i = begin; i < begin + RESAMPLE_BLOCK; i++)
            dst[i] = (uint8_t)((((first * one[i]) >> 16) + ((second * two[i]) >> 16) + 2) >> 2);
}
