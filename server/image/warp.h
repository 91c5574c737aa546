/* Rectifies a part of a photo, like OpenCV's warpPerspective() and warpAffine(). */
#pragma once

#include "server/image/image.h"

/* Fills `width` x `height` pixels (contiguous RGB) with the quadrilateral between `corners` of the
 * photo: top left, top right, bottom right, bottom left. Outside the photo the pixels of its edge
 * are repeated. The pixels equal cv2.warpPerspective(image, cv2.getPerspectiveTransform(corners,
 * [[0, 0], [width, 0], [width, height], [0, height]]), (width, height), flags=INTER_CUBIC,
 * borderMode=BORDER_REPLICATE) of OpenCV 4, except a few in 100,000 (positions exactly between two
 * 32nds of a pixel). OpenCV 5 does not round positions, so its pixels differ by up to 7. Any
 * thread. */
void warp_quadrilateral(const struct image *image, const float corners[static 4][2], uint32_t width,
                        uint32_t height, uint8_t *ret);

/* Fills `width` x `height` pixels (contiguous RGB); (x, y) gets the picture's pixel at (map[0] x +
 * map[1] y + map[2], map[3] x + map[4] y + map[5]), or black outside the picture. With `fades`, the
 * pixels equal cv2.warpAffine(image, map, (width, height), flags=INTER_LINEAR | WARP_INVERSE_MAP)
 * of OpenCV 4, which blends pixels at the edge with black. Otherwise they equal those of
 * scipy.ndimage.affine_transform(order=1), which does not round positions, and makes everything
 * beyond the centres of the outermost pixels black. Any thread. */
void warp_affine(const struct image *image, const double map[static 6], uint32_t width,
                 uint32_t height, bool fades, uint8_t *ret);
