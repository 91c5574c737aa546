/* Pictures drawn by arithmetic, for probing a model with something that has structure: gradients,
 * blobs, gratings, edges, textures of several scales, strokes like digits, shapes, small scenes. */
#pragma once

#include <stdint.h>

#define PICTURE_SIDE 256

/* Draws picture `number` (any) as RGB [PICTURE_SIDE, PICTURE_SIDE, 3]. The same number always gives
 * the same picture; neighbours are of different kinds. */
void picture_draw(unsigned number, uint8_t *rgb);
