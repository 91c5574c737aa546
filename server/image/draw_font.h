/* Private to server/image: the letters of labels (draw_font.c). */
#pragma once

/* The printable characters of ASCII, from the space to the tilde. */
#define DRAW_FONT_FIRST   32
#define DRAW_FONT_LETTERS 95

/* The y of the top of capital letters, and of the base line, in units of the font. y = 0 is the
 * middle of a line of text, and y grows downwards. */
#define DRAW_FONT_TOP  (-12)
#define DRAW_FONT_BASE 9

extern const char *const draw_font[DRAW_FONT_LETTERS];
