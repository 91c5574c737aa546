/* The pixel loops in plain C, for machines without the vectors of resample_x86.c, and as the
 * reference for tests of resample_x86.c. */
#include "server/image/resample.h"
#include "server/image/resample_linear.h"

enum { HALF = 1 << (RESAMPLE_BITS - 1) };

static uint8_t to_byte(int32_t sum)
{
    const int32_t value = sum >> RESAMPLE_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void horizontal_row(uint8_t *dst, const uint8_t *src, const struct resample_axis *axis,
                           uint8_t flip)
{
    const int32_t *weights = axis->weights;
    for (int i = 0; i < axis->count; i++, weights += axis->length, dst += 3) {
        const uint8_t *pixel = src + (size_t)axis->start[i] * 3;
        int32_t red = HALF, green = HALF, blue = HALF;
        for (int t = 0; t < axis->length; t++, pixel += 3) {
            red += (pixel[0] ^ flip) * weights[t];
            green += (pixel[1] ^ flip) * weights[t];
            blue += (pixel[2] ^ flip) * weights[t];
        }
        dst[0] = to_byte(red);
        dst[1] = to_byte(green);
        dst[2] = to_byte(blue);
    }
}

static void horizontal(uint8_t *const dst[4], const uint8_t *const src[4],
                       const struct resample_axis *axis, uint8_t flip)
{
    for (int r = 0; r < 4; r++)
        horizontal_row(dst[r], src[r], axis, flip);
}

static void vertical(uint8_t *dst, const uint8_t *const *rows, const int32_t *weights, int length,
                     size_t count)
{
    for (size_t begin = 0; begin < count; begin += RESAMPLE_BLOCK) {
        int32_t sums[RESAMPLE_BLOCK];
        for (int i = 0; i < RESAMPLE_BLOCK; i++)
            sums[i] = HALF;
        for (int t = 0; t < length; t++) {
            const uint8_t *row = rows[t] + begin;
            for (int i = 0; i < RESAMPLE_BLOCK; i++)
                sums[i] += row[i] * weights[t];
        }
        for (int i = 0; i < RESAMPLE_BLOCK; i++)
            dst[begin + (size_t)i] = to_byte(sums[i]);
    }
}

const struct resample_kernels resample_kernels_plain = {
    "plain", {1, horizontal, vertical}, {2, linear_horizontal, linear_vertical}};
