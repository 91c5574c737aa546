/* Draws "dead leaves": shaded ellipses and rectangles of many sizes that cover each other. As in
 * photographs, edges and areas occur at all scales (Lee, Mumford and Huang 2001). Random numbers
 * come from a fixed sequence. */
#include "server/precision/internal.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

enum { SIDE = PICTURE_SIDE, LEAVES = 300 };

#define LARGEST 100.0f /* radius in pixels */

/* The next random number between `low` and `high`. */
static float between(uint32_t *state, float low, float high)
{
    *state = *state * 1664525u + 1013904223u;
    uint32_t x = *state ^ *state >> 15;
    x *= 0x2c1b3c6du;
    return low + (high - low) * (float)((x ^ x >> 12) >> 8) * 0x1p-24f;
}

/* Draws a leaf with soft edges. The probability density of its radius r is proportional to r^-3 for
 * r >= `smallest`. Its colour differs from `ground` by up to `contrast`. */
static void draw_leaf(uint32_t *state, const float *ground, float contrast, float smallest,
                      uint8_t *rgb)
{
    const float share = smallest / LARGEST,
                radius = smallest / sqrtf(between(state, share * share, 1));
    const float cx = between(state, 0, SIDE), cy = between(state, 0, SIDE);
    const float rx = radius * between(state, 0.5f, 1), ry = radius * between(state, 0.5f, 1);
    const bool is_round = between(state, 0, 1) < 0.5f;
    float colour[3];
    for (int c = 0; c < 3; c++)
        colour[c] = fminf(fmaxf(ground[c] + between(state, -contrast, contrast), 0), 255);
    for (int y = (int)fmaxf(cy - ry, 0); y < SIDE && (float)y <= cy + ry; y++)
        for (int x = (int)fmaxf(cx - rx, 0); x < SIDE && (float)x <= cx + rx; x++) {
            const float dx = ((float)x - cx) / rx, dy = ((float)y - cy) / ry;
            const float inside = 1 - (is_round ? hypotf(dx, dy) : fmaxf(fabsf(dx), fabsf(dy)));
            const float opacity = fminf(fmaxf(inside * radius, 0), 1), light = 0.8f + 0.2f * dx;
            uint8_t *pixel = rgb + ((size_t)y * SIDE + (size_t)x) * 3;
            for (int c = 0; c < 3; c++)
                pixel[c] = (uint8_t)((float)pixel[c] * (1 - opacity) + colour[c] * light * opacity);
        }
}

void picture_draw(unsigned number, uint8_t *rgb)
{
    uint32_t state = number * 2654435761u + 12345u;
    float ground[3];
    for (int c = 0; c < 3; c++)
        ground[c] = between(&state, 0, 255);
    const float contrast = between(&state, 30, 255), smallest = between(&state, 2, 20);
    for (size_t i = 0; i < (size_t)SIDE * SIDE * 3; i++)
        rgb[i] = (uint8_t)ground[i % 3];
    for (int leaf = 0; leaf < LEAVES; leaf++)
        draw_leaf(&state, ground, contrast, smallest, rgb);
}
