/* Draws on RGB pixels: antialiased lines, discs, labels and masks. Clips at the edges of the photo.
 * Lines and discs whose coordinates are not finite or far outside are not drawn. Pure; any
 * thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* RGB pixels of 3 bytes, borrowed. Rows begin `stride` bytes apart. */
struct canvas {
    uint8_t *pixels;
    size_t stride;
    uint32_t width, height;
};

struct rgb_colour {
    uint8_t red, green, blue;
};

#define DRAW_WHITE ((struct rgb_colour){255, 255, 255})

/* Returns the colour of class `index`. Classes with neighbouring indexes differ in colour, and
 * white letters are readable on each colour. */
struct rgb_colour draw_colour(uint32_t index);

/* Draws a line with round ends; a disc if both ends are equal. Pixel centres are at .5. */
void draw_line(const struct canvas *canvas, float x1, float y1, float x2, float y2, float thickness,
               struct rgb_colour colour);

/* Fills each pixel whose centre is in the rectangle. */
void draw_fill(const struct canvas *canvas, float x1, float y1, float x2, float y2,
               struct rgb_colour colour);

/* Draws over `count` pixels of column x, from row y down. `opacity`: 0 … 1. */
void draw_column(const struct canvas *canvas, uint32_t x, uint32_t y, uint32_t count, float opacity,
                 struct rgb_colour colour);

/* Returns the width in pixels of a text whose capitals are `size` pixels high. */
float draw_text_width(const char *text, float size);

/* Draws a text, UTF-8, with its left edge at x and the top of its capitals at y. Omits the accents
 * of Latin-1 letters; draws other characters as '?'. */
void draw_text(const struct canvas *canvas, float x, float y, float size, const char *text,
               struct rgb_colour colour);
