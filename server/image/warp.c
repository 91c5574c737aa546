/* Perspective and affine warps in OpenCV's fixed-point numbers: positions in 32nds of a pixel,
 * weights in 32768ths. */
#include "server/image/warp.h"

#include <math.h>
#include <string.h>

#include "engine/base/size.h"

enum { PLACES = 32, TAPS = 4, WEIGHT_ONE = 32768 };

/* Computes the weights of four neighbours for a position that is x after the second and 1 - x
 * before the third: Keys' cubic with a = -0.75. */
static void cubic_weights(float x, float ret[static TAPS])
{
    const float a = -0.75f;
    ret[0] = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a;
    ret[1] = ((a + 2) * x - (a + 3)) * x * x + 1;
    ret[2] = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1;
    ret[3] = 1.f - ret[0] - ret[1] - ret[2];
}

/* Multiplies the weights of both axes and rounds the products. Then changes one of the products 10,
 * 11, 14 and 15, the largest or the smallest, so that the sum is WEIGHT_ONE, as OpenCV does. */
static void square_weights(int x, int y, int16_t ret[static TAPS * TAPS])
{
    float across[TAPS], down[TAPS];
    cubic_weights((float)x / PLACES, across);
    cubic_weights((float)y / PLACES, down);
    int sum = 0;
    for (int k = 0; k < TAPS * TAPS; k++) {
        const float product = down[k / TAPS] * across[k % TAPS];
        ret[k] = (int16_t)lrintf(fminf(product * WEIGHT_ONE, INT16_MAX));
        sum += ret[k];
    }
    static const int middle[] = {10, 11, 14, 15};
    int least = middle[0], greatest = middle[0];
    for (size_t i = 1; i < COUNT_OF(middle); i++) {
        if (ret[middle[i]] < ret[least])
            least = middle[i];
        else if (ret[middle[i]] > ret[greatest])
            greatest = middle[i];
    }
    const int at = sum < WEIGHT_ONE ? greatest : least;
    ret[at] = (int16_t)(ret[at] - (sum - WEIGHT_ONE));
}

/* Finds the homography from the rectangle of `width` x `height` to the corners: (x, y) maps to
 * (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]) / (m[6] x + m[7] y + 1). Heckbert's formula. */
static void find_homography(const float corners[static 4][2], uint32_t width, uint32_t height,
                            double m[static 8])
{
    double c[4][2];
    for (int i = 0; i < 8; i++)
        c[i / 2][i % 2] = (double)corners[i / 2][i % 2];
    const double dx1 = c[1][0] - c[2][0], dx2 = c[3][0] - c[2][0],
                 dx3 = c[0][0] - c[1][0] + c[2][0] - c[3][0];
    const double dy1 = c[1][1] - c[2][1], dy2 = c[3][1] - c[2][1],
                 dy3 = c[0][1] - c[1][1] + c[2][1] - c[3][1];
    const double area = dx1 * dy2 - dx2 * dy1; /* 0 if the last three corners are on a line */
    const double g = fabs(area) > 0 ? (dx3 * dy2 - dx2 * dy3) / area : 0;
    const double h = fabs(area) > 0 ? (dx1 * dy3 - dx3 * dy1) / area : 0;
    for (int axis = 0; axis < 2; axis++) {
        m[3 * axis] = (c[1][axis] - c[0][axis] + g * c[1][axis]) / width;
        m[3 * axis + 1] = (c[3][axis] - c[0][axis] + h * c[3][axis]) / height;
        m[3 * axis + 2] = c[0][axis];
    }
    m[6] = g / width;
    m[7] = h / height;
}

static size_t clamp_place(int64_t at, uint32_t side)
{
    return at < 0 ? 0 : at >= (int64_t)side ? side - 1 : (size_t)at;
}

/* Interpolates at (`across`, `down`), in 1 / PLACES of a pixel, from 4 x 4 pixels. */
static void warp_pixel(const struct image *image, int64_t across, int64_t down,
                       int16_t (*weights)[TAPS * TAPS], uint8_t *ret)
{
    /* Shifting a negative number rounds down. */
    const int64_t left = (across >> 5) - 1, top = (down >> 5) - 1;
    const int16_t *w = weights[(down & (PLACES - 1)) * PLACES + (across & (PLACES - 1))];
    int sums[3] = {0};
    size_t columns[TAPS];
    for (int k = 0; k < TAPS; k++)
        columns[k] = 3 * clamp_place(left + k, image->width);
    for (int j = 0; j < TAPS; j++) {
        const uint8_t *row = image->pixels + clamp_place(top + j, image->height) * image->stride;
        for (int k = 0; k < TAPS; k++)
            for (int c = 0; c < 3; c++)
                sums[c] += row[columns[k] + (size_t)c] * w[j * TAPS + k];
    }
    for (int c = 0; c < 3; c++) {
        const int value = (sums[c] + WEIGHT_ONE / 2) >> 15;
        ret[c] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

void warp_quadrilateral(const struct image *image, const float corners[static 4][2], uint32_t width,
                        uint32_t height, uint8_t *ret)
{
    int16_t weights[PLACES * PLACES][TAPS * TAPS];
    double m[8];
    for (int i = 0; i < PLACES * PLACES; i++)
        square_weights(i % PLACES, i / PLACES, weights[i]);
    find_homography(corners, width, height, m);
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++, ret += 3) {
            const double w = m[6] * x + m[7] * y + 1, scale = fabs(w) > 0 ? PLACES / w : 0;
            const double across = (m[0] * x + m[1] * y + m[2]) * scale;
            const double down = (m[3] * x + m[4] * y + m[5]) * scale;
            warp_pixel(image, llrint(fmin(fmax(across, INT32_MIN), INT32_MAX)),
                       llrint(fmin(fmax(down, INT32_MIN), INT32_MAX)), weights, ret);
        }
}

/* Returns a position in 1024ths of a pixel, rounded as in OpenCV. */
static int64_t fine_place(double at)
{
    return llrint(fmin(fmax(at * 1024, INT32_MIN), INT32_MAX));
}

static void blend_pixel(const struct image *image, int64_t across, int64_t down, uint8_t *ret)
{
    const int64_t left = across >> 5, top = down >> 5;
    const int x = (int)(across & (PLACES - 1)), y = (int)(down & (PLACES - 1));
    const int64_t last_column = (int64_t)image->width - 1, last_row = (int64_t)image->height - 1;
    int sums[3] = {0};
    for (int k = 0; k < 4; k++) {
        const int64_t column = left + k % 2, row = top + k / 2;
        const int weight = (k % 2 ? x : PLACES - x) * (k / 2 ? y : PLACES - y);
        if (column < 0 || row < 0 || column > last_column || row > last_row)
            continue;
        const uint8_t *pixel = image->pixels + (size_t)row * image->stride + 3 * (size_t)column;
        for (int c = 0; c < 3; c++)
            sums[c] += weight * pixel[c];
    }
    for (int c = 0; c < 3; c++)
        ret[c] = (uint8_t)((sums[c] + PLACES * PLACES / 2) / (PLACES * PLACES));
}

/* Interpolates without rounding the position, as scipy does. */
static void blend_exactly(const struct image *image, double across, double down, uint8_t *ret)
{
    const double last_column = image->width - 1.0, last_row = image->height - 1.0;
    memset(ret, 0, 3);
    if (!(across >= 0 && down >= 0 && across <= last_column && down <= last_row))
        return;
    const double x = across - floor(across), y = down - floor(down);
    const size_t right = across < last_column ? 3 : 0, below = down < last_row ? image->stride : 0;
    const uint8_t *at = image->pixels + (size_t)down * image->stride + 3 * (size_t)across;
    for (int c = 0; c < 3; c++, at++)
        ret[c] = (uint8_t)((at[0] * (1 - x) + at[right] * x) * (1 - y) +
                           (at[below] * (1 - x) + at[below + right] * x) * y + 0.5);
}

void warp_affine(const struct image *image, const double map[static 6], uint32_t width,
                 uint32_t height, bool fades, uint8_t *ret)
{
    enum { HALF = 1024 / PLACES / 2 }; /* half of a 32nd of a pixel, in 1024ths */
    for (uint32_t y = 0; y < height; y++) {
        const int64_t across = fine_place(map[1] * y + map[2]) + HALF;
        const int64_t down = fine_place(map[4] * y + map[5]) + HALF;
        for (uint32_t x = 0; x < width; x++, ret += 3)
            if (fades)
                blend_pixel(image, (across + fine_place(map[0] * x)) >> 5,
                            (down + fine_place(map[3] * x)) >> 5, ret);
            else
                blend_exactly(image, map[0] * x + map[1] * y + map[2],
                              map[3] * x + map[4] * y + map[5], ret);
    }
}
