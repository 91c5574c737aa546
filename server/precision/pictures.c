/* Draws the pictures: each kind from noise, gradients and shapes of a fixed sequence of numbers. */
#include "server/precision/pictures.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

enum { SIDE = PICTURE_SIDE, HALF = SIDE / 2, KINDS = 8 };

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

/* `share` of b over a, written to a pixel. */
static void picture_put(uint8_t *pixel, const struct colour *a, const struct colour *b, float share)
{
    share = fminf(fmaxf(share, 0), 1);
    for (int c = 0; c < 3; c++)
        pixel[c] = (uint8_t)(a->part[c] + (b->part[c] - a->part[c]) * share + 0.5f);
}

/* The same over what the pixel holds already. */
static void paint(uint8_t *pixel, const struct colour *colour, float share)
{
    const struct colour under = {{(float)pixel[0], (float)pixel[1], (float)pixel[2]}};
    picture_put(pixel, &under, colour, share);
}

static uint8_t *pixel_at(uint8_t *rgb, int x, int y)
{
    return rgb + ((size_t)y * SIDE + (size_t)x) * 3;
}

static void draw_gradient(struct dice *dice, uint8_t *rgb)
{
    const struct colour a = dice_colour(dice), b = dice_colour(dice);
    const float angle = dice_between(dice, 0, 6.2831853f), bend = dice_between(dice, 0.5f, 2.0f);
    const float dx = cosf(angle) / SIDE, dy = sinf(angle) / SIDE;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float t = 0.5f + (float)(x - HALF) * dx + (float)(y - HALF) * dy;
            picture_put(pixel_at(rgb, x, y), &a, &b, powf(fmaxf(t, 0), bend));
        }
}

static void picture_fill(uint8_t *rgb, const struct colour *colour)
{
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++)
        picture_put(rgb + i * 3, colour, colour, 0);
}

static void draw_blobs(struct dice *dice, uint8_t *rgb)
{
    const struct colour ground = dice_colour(dice);
    picture_fill(rgb, &ground);
    for (int blob = 0; blob < 7; blob++) {
        const struct colour colour = dice_colour(dice);
        const float cx = dice_between(dice, 0, SIDE), cy = dice_between(dice, 0, SIDE);
        const float radius = dice_between(dice, SIDE * 0.06f, SIDE * 0.3f);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                float dx = ((float)x - cx) / radius, dy = ((float)y - cy) / radius;
                float distance = dx * dx + dy * dy;
                if (distance < 9)
                    paint(pixel_at(rgb, x, y), &colour, expf(-distance));
            }
    }
}

static void draw_grating(struct dice *dice, uint8_t *rgb)
{
    const struct colour a = dice_colour(dice), b = dice_colour(dice);
    const float angle = dice_between(dice, 0, 3.1415927f),
                other = dice_between(dice, 0, 3.1415927f);
    const float wave = 6.2831853f / dice_between(dice, 4, 48);
    const float wave2 = 6.2831853f / dice_between(dice, 20, 120);
    const float ax = cosf(angle) * wave, ay = sinf(angle) * wave;
    const float bx = cosf(other) * wave2, by = sinf(other) * wave2;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float fine = sinf((float)x * ax + (float)y * ay);
            float coarse = sinf((float)x * bx + (float)y * by);
            picture_put(pixel_at(rgb, x, y), &a, &b, 0.5f + 0.35f * fine + 0.15f * coarse);
        }
}

/* Checks and bars with hard edges, turned by some angle. */
static void draw_edges(struct dice *dice, uint8_t *rgb)
{
    const struct colour a = dice_colour(dice), b = dice_colour(dice), c = dice_colour(dice);
    const float angle = dice_between(dice, 0, 1.5707963f), dx = cosf(angle), dy = sinf(angle);
    const float tile = dice_between(dice, 10, 70), bar = dice_between(dice, 0.1f, 0.5f);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float u = ((float)x * dx + (float)y * dy) / tile;
            float v = ((float)y * dx - (float)x * dy) / tile;
            bool odd = ((int)floorf(u) + (int)floorf(v)) & 1;
            bool barred = u - floorf(u) < bar;
            const struct colour *colour = barred ? &c : odd ? &a : &b;
            picture_put(pixel_at(rgb, x, y), colour, colour, 0);
        }
}

/* Smoothed random numbers on a lattice of `cell` pixels: 0 … 1. */
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

/* Noise of several scales, the finer the fainter, as in photographs. */
static float cloud(uint32_t seed, int x, int y, float scale)
{
    float sum = 0, weight = 0.5f;
    for (uint32_t octave = 0; octave < 4; octave++, weight *= 0.5f, scale *= 0.5f)
        sum += weight * lattice_noise(seed + octave, (float)x / scale, (float)y / scale);
    return sum / 0.9375f;
}

static void draw_texture(struct dice *dice, uint8_t *rgb)
{
    const struct colour a = dice_colour(dice), b = dice_colour(dice);
    const uint32_t seed = dice_bits(dice);
    const float scale = dice_between(dice, 12, 100), contrast = dice_between(dice, 1, 3);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            picture_put(pixel_at(rgb, x, y), &a, &b,
                        0.5f + contrast * (cloud(seed, x, y, scale) - 0.5f));
}

/* A round pen along a line. */
static void draw_line(uint8_t *rgb, const float from[2], const float to[2], float pen,
                      const struct colour *ink)
{
    const float length = hypotf(to[0] - from[0], to[1] - from[1]);
    const int dots = (int)length + 1, reach = (int)pen + 2;
    for (int d = 0; d <= dots; d++) {
        const float t = (float)d / (float)dots;
        const float cx = from[0] + (to[0] - from[0]) * t, cy = from[1] + (to[1] - from[1]) * t;
        for (int y = (int)cy - reach; y <= (int)cy + reach; y++)
            for (int x = (int)cx - reach; x <= (int)cx + reach; x++) {
                if (x < 0 || y < 0 || x >= SIDE || y >= SIDE)
                    continue;
                float away = hypotf((float)x - cx, (float)y - cy);
                if (away < pen + 1)
                    paint(pixel_at(rgb, x, y), ink, pen + 1 - away);
            }
    }
}

/* Ten figures as corners on a grid of 4 x 6, '.' lifts the pen. */
static void draw_strokes(struct dice *dice, uint8_t *rgb)
{
    static const char *const figures[10] = {
        "10 30 35 15 10", "11 20 25",          "11 20 30 32 15 35", "10 30 22 34 25 15",
        "20 13 33.20 25", "30 10 12 33 25 15", "30 13 15 35 33 13", "10 30 15",
        "10 30 15 35 10", "33 13 10 30 35",
    };
    const bool dark = dice_bits(dice) & 1;
    const float shade = dice_between(dice, 0, 60);
    struct colour ink = {{shade, shade, shade}}, paper = {{255 - shade, 255 - shade, 250 - shade}};
    if (dark) {
        const struct colour swapped = ink;
        ink = paper;
        paper = swapped;
    }
    picture_fill(rgb, &paper);
    const char *figure = figures[dice_bits(dice) % 10];
    const float unit = dice_between(dice, 26, 38), pen = dice_between(dice, 4, 13);
    const float left = dice_between(dice, 45, 75), top = dice_between(dice, 25, 45);
    const float slant = dice_between(dice, -0.25f, 0.25f);
    float last[2] = {0, 0};
    bool down = false;
    for (const char *p = figure; p[0] && p[1]; p += p[2] ? 3 : 2) {
        const float y = top + (float)(p[1] - '0') * unit;
        const float at[2] = {left + (float)(p[0] - '0') * unit - slant * (y - (float)HALF), y};
        if (down)
            draw_line(rgb, last, at, pen, &ink);
        last[0] = at[0];
        last[1] = at[1];
        down = p[2] != '.';
    }
}

static void draw_shape(struct dice *dice, uint8_t *rgb, const struct colour *colour)
{
    const float cx = dice_between(dice, 30, SIDE - 30), cy = dice_between(dice, 30, SIDE - 30);
    const float rx = dice_between(dice, 14, 80), ry = dice_between(dice, 14, 80);
    const bool round = dice_bits(dice) >> 4 & 1;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float dx = ((float)x - cx) / rx, dy = ((float)y - cy) / ry;
            float inside = round ? 1 - hypotf(dx, dy) : 1 - fmaxf(fabsf(dx), fabsf(dy));
            if (inside > 0) /* shaded like a solid, with a soft edge */
                paint(pixel_at(rgb, x, y), colour, fminf(inside * rx, 1) * (0.8f + 0.2f * dx));
        }
}

static void draw_shapes(struct dice *dice, uint8_t *rgb)
{
    draw_texture(dice, rgb);
    for (int shape = 0; shape < 5; shape++) {
        const struct colour colour = dice_colour(dice);
        draw_shape(dice, rgb, &colour);
    }
}

/* A sky, a rough ground, something standing on it. */
static void draw_scene(struct dice *dice, uint8_t *rgb)
{
    const struct colour zenith = dice_colour(dice), haze = dice_colour(dice);
    const struct colour soil = dice_colour(dice), grass = dice_colour(dice);
    const struct colour thing = dice_colour(dice);
    const uint32_t seed = dice_bits(dice);
    const int horizon = (int)dice_between(dice, SIDE * 0.3f, SIDE * 0.7f);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            const int hill = horizon + (int)(24 * lattice_noise(seed, (float)x / 50, 0));
            if (y < hill)
                picture_put(pixel_at(rgb, x, y), &zenith, &haze,
                            (float)y / (float)hill * 0.7f + 0.3f * cloud(seed + 9, x, y, 60));
            else
                picture_put(pixel_at(rgb, x, y), &soil, &grass,
                            0.5f + 2 * (cloud(seed + 5, x, y * 2, 18) - 0.5f));
        }
    draw_shape(dice, rgb, &thing);
}

void picture_draw(unsigned number, uint8_t *rgb)
{
    static void (*const kinds[KINDS])(struct dice *, uint8_t *) = {
        draw_scene, draw_gradient, draw_shapes,  draw_grating,
        draw_blobs, draw_edges,    draw_texture, draw_strokes};
    struct dice dice = {number * 2654435761u + 12345u};
    for (int i = 0; i < 4; i++)
        (void)dice_bits(&dice);
    kinds[number % KINDS](&dice, rgb);
}
