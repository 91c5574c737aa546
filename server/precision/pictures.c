/* Draws the pictures: a textured background of two colours, with shaded shapes except on every
 * fourth picture. Random numbers come from a fixed sequence. */
#include "server/precision/internal.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

enum { SIDE = PICTURE_SIDE, MOST_SHAPES = 7, OCTAVES = 4 };

/* A fixed sequence of numbers for one picture. */
struct dice {
    uint32_t state;
};

static uint32_t dice_bits(struct dice *dice)
{
    dice->state = dice->state * 1664525u + 1013904223u;
    uint32_t x = dice->state;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    return x ^ x >> 12;
}

/* Between `low` and `high`. */
static float dice_between(struct dice *dice, float low, float high)
{
    return low + (high - low) * (float)(dice_bits(dice) >> 8) * 0x1p-24f;
}

struct colour {
    float part[3]; /* 0 … 255 */
};

static struct colour dice_colour(struct dice *dice)
{
    struct colour colour;
    for (int c = 0; c < 3; c++)
        colour.part[c] = dice_between(dice, 0, 255);
    return colour;
}

/* Mixes `share` of b into a. */
static void put_mix(uint8_t *pixel, const struct colour *a, const struct colour *b, float share)
{
    share = fminf(fmaxf(share, 0), 1);
    for (int c = 0; c < 3; c++)
        pixel[c] = (uint8_t)(a->part[c] + (b->part[c] - a->part[c]) * share + 0.5f);
}

static uint8_t *pixel_at(uint8_t *rgb, int x, int y)
{
    return rgb + ((size_t)y * SIDE + (size_t)x) * 3;
}

/* Smoothed random numbers on a lattice, 0 … 1. */
static float lattice_noise(uint32_t seed, float x, float y)
{
    const int ix = (int)floorf(x), iy = (int)floorf(y);
    const float fx = x - (float)ix, fy = y - (float)iy;
    const float sx = fx * fx * (3 - 2 * fx), sy = fy * fy * (3 - 2 * fy);
    float corner[4];
    for (int i = 0; i < 4; i++) {
        uint32_t h = (uint32_t)(ix + (i & 1)) * 0x9e3779b1u ^ (uint32_t)(iy + i / 2) * 0x85ebca77u;
        h = (h ^ seed) * 0xc2b2ae3du;
        h = (h ^ h >> 15) * 0x27d4eb2fu;
        corner[i] = (float)(h >> 8) * 0x1p-24f;
    }
    const float top = corner[0] + (corner[1] - corner[0]) * sx;
    const float low = corner[2] + (corner[3] - corner[2]) * sx;
    return top + (low - top) * sy;
}

/* Adds noise of several scales, weaker at finer scales, as in photographs. */
static void draw_ground(struct dice *dice, uint8_t *rgb)
{
    const struct colour a = dice_colour(dice), b = dice_colour(dice);
    const uint32_t seed = dice_bits(dice);
    const float scale = dice_between(dice, 12, 100), contrast = dice_between(dice, 1, 3);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float sum = 0, weight = 1, all = 0;
            for (uint32_t octave = 0; octave < OCTAVES; octave++, weight /= 2) {
                const float cell = scale * weight;
                sum += weight * lattice_noise(seed + octave, (float)x / cell, (float)y / cell);
                all += weight;
            }
            put_mix(pixel_at(rgb, x, y), &a, &b, 0.5f + contrast * (sum / all - 0.5f));
        }
}

/* Draws an ellipse or a rectangle, shaded like a solid, with soft edges. */
static void draw_shape(struct dice *dice, uint8_t *rgb)
{
    const struct colour colour = dice_colour(dice);
    const float cx = dice_between(dice, 30, SIDE - 30), cy = dice_between(dice, 30, SIDE - 30);
    const float rx = dice_between(dice, 14, 80), ry = dice_between(dice, 14, 80);
    const bool round = dice_bits(dice) >> 4 & 1;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            const float dx = ((float)x - cx) / rx, dy = ((float)y - cy) / ry;
            const float inside = round ? 1 - hypotf(dx, dy) : 1 - fmaxf(fabsf(dx), fabsf(dy));
            if (inside <= 0)
                continue;
            uint8_t *pixel = pixel_at(rgb, x, y);
            const struct colour under = {{(float)pixel[0], (float)pixel[1], (float)pixel[2]}};
            put_mix(pixel, &under, &colour, fminf(inside * rx, 1) * (0.8f + 0.2f * dx));
        }
}

void picture_draw(unsigned number, uint8_t *rgb)
{
    struct dice dice = {number * 2654435761u + 12345u};
    for (int i = 0; i < 4; i++)
        (void)dice_bits(&dice);
    draw_ground(&dice, rgb);
    for (unsigned shape = 0; number % 4 && shape <= number % MOST_SHAPES; shape++)
        draw_shape(&dice, rgb);
}
