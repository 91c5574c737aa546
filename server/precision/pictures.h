/* Draws structured test images as probes: textures of several scales, edges and shaded shapes. */
#pragma once

#include <stdint.h>

#define PICTURE_SIDE 256

/* Draws image `number` (any) as RGB [PICTURE_SIDE, PICTURE_SIDE, 3]. The same number always gives
 * the same image. */
void picture_draw(unsigned number, uint8_t *rgb);
